//! Functions that go through the plain operation table, or through function pointers in an object.

use std::ffi::{c_int, c_uint, c_void};

use rdma_core_sys::*;

use crate::fixture::Fixture;
use crate::record::{Word, observe, record, token};
use crate::shim;

/// One test per function: the slot gets a recording function, and Rust and C are called with the same arguments.
macro_rules! forwards {
    ($f:ident: $(
        $name:ident($($arg:ident: $ty:ty = $value:expr),* $(,)?) $(-> $ret:ty)? => $slot:expr;
    )*) => {$(
        #[test]
        fn $name() {
            unsafe extern "C" fn recorder($($arg: $ty),*) $(-> $ret)? {
                record(stringify!($name), &[$(Word::word($arg)),*]);
                Word::sample()
            }
            let $f = Fixture::new();
            // SAFETY: the objects of the fixture are live and known to this thread alone.
            unsafe { $slot = Some(recorder) };
            // SAFETY: the type is that of the slot, which the header's function has too.
            let c = unsafe { shim::inline::<unsafe extern "C" fn($($ty),*) $(-> $ret)?>(stringify!($name)) };
            // SAFETY: the objects are live and the recording function follows no pointer.
            let ours = observe(|| unsafe { rdma_core_sys::$name($($value),*) });
            // SAFETY: as above.
            let theirs = observe(|| unsafe { c($($value),*) });
            assert_eq!(ours.calls.len(), 1);
            assert_eq!(ours, theirs);
        }
    )*};
}

forwards! { f:
    ibv_post_send(qp: *mut ibv_qp = f.qp, wr: *mut ibv_send_wr = token(1), bad: *mut *mut ibv_send_wr = token(2)) -> c_int
        => (*f.ops()).post_send;
    ibv_post_recv(qp: *mut ibv_qp = f.qp, wr: *mut ibv_recv_wr = token(1), bad: *mut *mut ibv_recv_wr = token(2)) -> c_int
        => (*f.ops()).post_recv;
    ibv_post_srq_recv(srq: *mut ibv_srq = f.srq, wr: *mut ibv_recv_wr = token(1), bad: *mut *mut ibv_recv_wr = token(2)) -> c_int
        => (*f.ops()).post_srq_recv;
    ibv_poll_cq(cq: *mut ibv_cq = f.cq, n: c_int = 7, wc: *mut ibv_wc = token(1)) -> c_int => (*f.ops()).poll_cq;
    ibv_req_notify_cq(cq: *mut ibv_cq = f.cq, solicited: c_int = 1) -> c_int => (*f.ops()).req_notify_cq;
    ibv_alloc_mw(pd: *mut ibv_pd = f.pd, kind: ibv_mw_type = ibv_mw_type::IBV_MW_TYPE_2) -> *mut ibv_mw
        => (*f.ops()).alloc_mw;
    ibv_dealloc_mw(mw: *mut ibv_mw = f.mw) -> c_int => (*f.ops()).dealloc_mw;

    ibv_memcpy_to_dm(dm: *mut ibv_dm = f.dm, offset: u64 = 3, host: *const c_void = token(1), length: usize = 5) -> c_int
        => (*f.dm).memcpy_to_dm;
    ibv_memcpy_from_dm(host: *mut c_void = token(1), dm: *mut ibv_dm = f.dm, offset: u64 = 3, length: usize = 5) -> c_int
        => (*f.dm).memcpy_from_dm;
    ibv_post_wq_recv(wq: *mut ibv_wq = f.wq, wr: *mut ibv_recv_wr = token(1), bad: *mut *mut ibv_recv_wr = token(2)) -> c_int
        => (*f.wq).post_recv;

    ibv_start_poll(cq: *mut ibv_cq_ex = f.cq_ex, attr: *mut ibv_poll_cq_attr = token(1)) -> c_int => (*f.cq_ex).start_poll;
    ibv_next_poll(cq: *mut ibv_cq_ex = f.cq_ex) -> c_int => (*f.cq_ex).next_poll;
    ibv_end_poll(cq: *mut ibv_cq_ex = f.cq_ex) => (*f.cq_ex).end_poll;
    ibv_wc_read_opcode(cq: *mut ibv_cq_ex = f.cq_ex) -> ibv_wc_opcode => (*f.cq_ex).read_opcode;
    ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_vendor_err;
    ibv_wc_read_byte_len(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_byte_len;
    ibv_wc_read_imm_data(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_imm_data;
    ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_imm_data;
    ibv_wc_read_qp_num(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_qp_num;
    ibv_wc_read_src_qp(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_src_qp;
    ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex = f.cq_ex) -> c_uint => (*f.cq_ex).read_wc_flags;
    ibv_wc_read_slid(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_slid;
    ibv_wc_read_sl(cq: *mut ibv_cq_ex = f.cq_ex) -> u8 => (*f.cq_ex).read_sl;
    ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex = f.cq_ex) -> u8 => (*f.cq_ex).read_dlid_path_bits;
    ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex = f.cq_ex) -> u64 => (*f.cq_ex).read_completion_ts;
    ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex = f.cq_ex) -> u64 => (*f.cq_ex).read_completion_wallclock_ns;
    ibv_wc_read_cvlan(cq: *mut ibv_cq_ex = f.cq_ex) -> u16 => (*f.cq_ex).read_cvlan;
    ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex = f.cq_ex) -> u32 => (*f.cq_ex).read_flow_tag;
    ibv_wc_read_tm_info(cq: *mut ibv_cq_ex = f.cq_ex, info: *mut ibv_wc_tm_info = token(1)) => (*f.cq_ex).read_tm_info;

    ibv_wr_start(qp: *mut ibv_qp_ex = f.qp_ex) => (*f.qp_ex).wr_start;
    ibv_wr_complete(qp: *mut ibv_qp_ex = f.qp_ex) -> c_int => (*f.qp_ex).wr_complete;
    ibv_wr_abort(qp: *mut ibv_qp_ex = f.qp_ex) => (*f.qp_ex).wr_abort;
    ibv_wr_atomic_cmp_swp(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1, addr: u64 = 2, compare: u64 = 3, swap: u64 = 4)
        => (*f.qp_ex).wr_atomic_cmp_swp;
    ibv_wr_atomic_fetch_add(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1, addr: u64 = 2, add: u64 = 3)
        => (*f.qp_ex).wr_atomic_fetch_add;
    ibv_wr_atomic_write(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1, addr: u64 = 2, data: *const c_void = token(3))
        => (*f.qp_ex).wr_atomic_write;
    ibv_wr_bind_mw(qp: *mut ibv_qp_ex = f.qp_ex, mw: *mut ibv_mw = f.mw, rkey: u32 = 1, info: *const ibv_mw_bind_info = token(2))
        => (*f.qp_ex).wr_bind_mw;
    ibv_wr_local_inv(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1) => (*f.qp_ex).wr_local_inv;
    ibv_wr_rdma_read(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1, addr: u64 = 2) => (*f.qp_ex).wr_rdma_read;
    ibv_wr_rdma_write(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1, addr: u64 = 2) => (*f.qp_ex).wr_rdma_write;
    ibv_wr_rdma_write_imm(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1, addr: u64 = 2, imm: u32 = 3)
        => (*f.qp_ex).wr_rdma_write_imm;
    ibv_wr_send(qp: *mut ibv_qp_ex = f.qp_ex) => (*f.qp_ex).wr_send;
    ibv_wr_send_imm(qp: *mut ibv_qp_ex = f.qp_ex, imm: u32 = 1) => (*f.qp_ex).wr_send_imm;
    ibv_wr_send_inv(qp: *mut ibv_qp_ex = f.qp_ex, rkey: u32 = 1) => (*f.qp_ex).wr_send_inv;
    ibv_wr_send_tso(qp: *mut ibv_qp_ex = f.qp_ex, header: *mut c_void = token(1), size: u16 = 2, mss: u16 = 3)
        => (*f.qp_ex).wr_send_tso;
    ibv_wr_set_ud_addr(qp: *mut ibv_qp_ex = f.qp_ex, ah: *mut ibv_ah = token(1), qpn: u32 = 2, qkey: u32 = 3)
        => (*f.qp_ex).wr_set_ud_addr;
    ibv_wr_set_xrc_srqn(qp: *mut ibv_qp_ex = f.qp_ex, srqn: u32 = 1) => (*f.qp_ex).wr_set_xrc_srqn;
    ibv_wr_set_inline_data(qp: *mut ibv_qp_ex = f.qp_ex, addr: *mut c_void = token(1), length: usize = 2)
        => (*f.qp_ex).wr_set_inline_data;
    ibv_wr_set_inline_data_list(qp: *mut ibv_qp_ex = f.qp_ex, n: usize = 1, list: *const ibv_data_buf = token(2))
        => (*f.qp_ex).wr_set_inline_data_list;
    ibv_wr_set_sge(qp: *mut ibv_qp_ex = f.qp_ex, lkey: u32 = 1, addr: u64 = 2, length: u32 = 3) => (*f.qp_ex).wr_set_sge;
    ibv_wr_set_sge_list(qp: *mut ibv_qp_ex = f.qp_ex, n: usize = 1, list: *const ibv_sge = token(2))
        => (*f.qp_ex).wr_set_sge_list;
}

/// The flush goes through the slot behind the last one of rdma-core 44, in C as here.
#[test]
fn ibv_wr_flush() {
    type Flush = ibv_wr_flush_fn;
    unsafe extern "C" fn recorder(
        qp: *mut ibv_qp_ex,
        rkey: u32,
        addr: u64,
        len: usize,
        kind: u8,
        level: u8,
    ) {
        record(
            "wr_flush",
            &[
                qp.word(),
                rkey.word(),
                addr.word(),
                len.word(),
                kind.word(),
                level.word(),
            ],
        );
    }
    let f = Fixture::new();
    let offset = std::mem::offset_of!(ibv_qp_ex, wr_atomic_write) + size_of::<usize>();
    let slot = f.qp_ex.wrapping_byte_add(offset).cast::<Option<Flush>>();
    // SAFETY: the fixture's queue pair has room behind the struct.
    unsafe { slot.write(Some(recorder)) };
    // SAFETY: the queue pair is live and the recording function follows no pointer.
    let ours = observe(|| unsafe { rdma_core_sys::ibv_wr_flush(f.qp_ex, 1, 2, 3, 4, 5) });
    let expected: Vec<u64> = vec![f.qp_ex.word(), 1, 2, 3, 4, 5];
    assert_eq!(ours.calls.len(), 1);
    assert_eq!(ours.calls[0].words, expected);
    if shim::has_flush() {
        // SAFETY: the type is that of the header's function.
        let c = unsafe { shim::inline::<Flush>("ibv_wr_flush") };
        // SAFETY: as for ours.
        let theirs = observe(|| unsafe { c(f.qp_ex, 1, 2, 3, 4, 5) });
        assert_eq!(ours, theirs);
    }
}

#[test]
fn posting_through_an_empty_slot_is_refused_and_names_the_first_request() {
    let f = Fixture::new();
    let mut bad_send = std::ptr::null_mut();
    // SAFETY: the queue pair is live; with an empty slot the request is not followed.
    let ret = unsafe { rdma_core_sys::ibv_post_send(f.qp, token(1), &raw mut bad_send) };
    assert_eq!((ret, bad_send), (libc::EOPNOTSUPP, token(1)));
    let mut bad_recv = std::ptr::null_mut();
    // SAFETY: as above.
    let ret = unsafe { rdma_core_sys::ibv_post_recv(f.qp, token(1), &raw mut bad_recv) };
    assert_eq!((ret, bad_recv), (libc::EOPNOTSUPP, token(1)));
    // SAFETY: as above.
    let ret = unsafe { rdma_core_sys::ibv_post_srq_recv(f.srq, token(2), &raw mut bad_recv) };
    assert_eq!((ret, bad_recv), (libc::EOPNOTSUPP, token(2)));
    // SAFETY: as above.
    let ret = unsafe { rdma_core_sys::ibv_post_wq_recv(f.wq, token(3), &raw mut bad_recv) };
    assert_eq!((ret, bad_recv), (libc::EOPNOTSUPP, token(3)));
}

#[test]
fn polling_through_an_empty_slot_is_refused() {
    let f = Fixture::new();
    // SAFETY: the queue is live; with an empty slot nothing is written.
    let ret = unsafe { rdma_core_sys::ibv_poll_cq(f.cq, 1, token(1)) };
    assert_eq!(ret, -libc::EOPNOTSUPP);
    // SAFETY: the queue is live.
    let ret = unsafe { rdma_core_sys::ibv_req_notify_cq(f.cq, 0) };
    assert_eq!(ret, libc::EOPNOTSUPP);
    // SAFETY: the queue is live; with an empty slot the attributes are not read.
    let ret = unsafe { rdma_core_sys::ibv_start_poll(f.cq_ex, token(1)) };
    assert_eq!(ret, libc::EOPNOTSUPP);
    // SAFETY: the queue is live.
    let ret = unsafe { rdma_core_sys::ibv_next_poll(f.cq_ex) };
    assert_eq!(ret, libc::EOPNOTSUPP);
}

#[test]
#[should_panic(expected = "ibv_cq_ex has no read_byte_len")]
fn a_reader_that_was_not_asked_for_is_named() {
    let f = Fixture::new();
    // SAFETY: the queue is live.
    let _ = unsafe { rdma_core_sys::ibv_wc_read_byte_len(f.cq_ex) };
}

#[test]
#[should_panic(expected = "ibv_qp_ex has no wr_send_tso")]
fn an_operation_that_was_not_asked_for_is_named() {
    let f = Fixture::new();
    // SAFETY: the queue pair is live; with an empty slot the header is not read.
    unsafe { rdma_core_sys::ibv_wr_send_tso(f.qp_ex, token(1), 2, 3) };
}
