//! Registration and memory windows.

use std::ffi::{c_int, c_uint, c_void};

use rdma_core_sys::*;

use crate::fixture::Fixture;
use crate::record::{Word, observe, record, token};
use crate::shim;

#[test]
fn registration_takes_the_path_that_knows_optional_access_bits() {
    type Reg = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_uint) -> *mut ibv_mr;
    type RegIova =
        unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
    type Constant = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize) -> *mut ibv_mr;
    // SAFETY: the type is that of the header's macro.
    let reg = unsafe { shim::inline::<Reg>("ibv_reg_mr") };
    // SAFETY: as above.
    let reg_iova = unsafe { shim::inline::<RegIova>("ibv_reg_mr_iova") };
    // SAFETY: as above.
    let constant = unsafe { shim::inline::<Constant>("constant ibv_reg_mr") };

    // SAFETY: the stand-in follows no pointer.
    let ours = observe(|| unsafe { rdma_core_sys::ibv_reg_mr(token(1), token(2), 3, 4) });
    // SAFETY: as above.
    let theirs = observe(|| unsafe { reg(token(1), token(2), 3, 4) });
    assert_eq!(ours, theirs);
    assert_eq!(ours.calls[0].name, "ibv_reg_mr_iova2");

    // SAFETY: as above.
    let ours = observe(|| unsafe { rdma_core_sys::ibv_reg_mr_iova(token(1), token(2), 3, 4, 5) });
    // SAFETY: as above.
    let theirs = observe(|| unsafe { reg_iova(token(1), token(2), 3, 4, 5) });
    assert_eq!(ours, theirs);
    assert_eq!(ours.calls[0].name, "ibv_reg_mr_iova2");

    let access =
        ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
    // SAFETY: as above.
    let ours = observe(|| unsafe { rdma_core_sys::ibv_reg_mr(token(1), token(2), 3, access.0) });
    // SAFETY: as above.
    let theirs = observe(|| unsafe { constant(token(1), token(2), 3) });
    assert_eq!(ours, theirs);
}

#[test]
fn binding_a_window_checks_type_range_and_domain_as_in_c() {
    unsafe extern "C" fn recorder(
        qp: *mut ibv_qp,
        mw: *mut ibv_mw,
        bind: *mut ibv_mw_bind,
    ) -> c_int {
        record("bind_mw", &[qp.word(), mw.word(), bind.word()]);
        Word::sample()
    }
    type Bind = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int;
    let f = Fixture::new();
    let other = Fixture::new();
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<Bind>("ibv_bind_mw") };
    // SAFETY: the table is live and known to this thread alone.
    unsafe { (*f.ops()).bind_mw = Some(recorder) };
    let mut results = Vec::new();
    for kind in [0, 1, 2] {
        // SAFETY: the window is live.
        unsafe { (*f.mw).type_ = ibv_mw_type(kind) };
        for mr in [std::ptr::null_mut(), f.mr, other.mr] {
            for (addr, length) in [(0, 0), (1, 0), (0, 1)] {
                let mut bind = ibv_mw_bind {
                    bind_info: ibv_mw_bind_info {
                        mr,
                        addr,
                        length,
                        mw_access_flags: 0,
                    },
                    ..Default::default()
                };
                let bind = &raw mut bind;
                // SAFETY: all objects are live.
                let ours = observe(|| unsafe { rdma_core_sys::ibv_bind_mw(f.qp, f.mw, bind) });
                // SAFETY: as above.
                let theirs = observe(|| unsafe { c(f.qp, f.mw, bind) });
                assert_eq!(
                    ours, theirs,
                    "type {kind}, region {mr:?}, address {addr}, length {length}"
                );
                results.push(ours.returned);
            }
        }
    }
    let count = |value: c_int| {
        results
            .iter()
            .filter(|result| **result == value.word())
            .count()
    };
    assert_eq!(count(libc::EINVAL), 9 + 9 + 2);
    assert_eq!(count(libc::EPERM), 3);
    assert_eq!(count(c_int::sample()), 4);
}

#[test]
fn a_window_without_the_operation_is_refused() {
    type Alloc = unsafe extern "C" fn(*mut ibv_pd, ibv_mw_type) -> *mut ibv_mw;
    let f = Fixture::new();
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<Alloc>("ibv_alloc_mw") };
    let kind = ibv_mw_type::IBV_MW_TYPE_1;
    // SAFETY: the domain is live.
    let ours = observe(|| unsafe { rdma_core_sys::ibv_alloc_mw(f.pd, kind) });
    // SAFETY: as above.
    let theirs = observe(|| unsafe { c(f.pd, kind) });
    assert_eq!(ours, theirs);
    assert_eq!(ours.errno, libc::EOPNOTSUPP);
    // SAFETY: the window is live.
    let ret = unsafe { rdma_core_sys::ibv_dealloc_mw(f.mw) };
    assert_eq!(ret, libc::EOPNOTSUPP);
}
