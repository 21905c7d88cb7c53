//! The functions of `rdma/rdma_verbs.h`.

use std::ffi::{c_int, c_void};

use rdma_core_sys::*;

use crate::fixture::Fixture;
use crate::record::{Word, observe, record, script, scripted, token};
use crate::shim;

/// What all sends have: id, list end, opcode, flags, and the entries by value.
fn words_of(wr: &ibv_send_wr) -> Vec<u64> {
    let mut words = vec![
        wr.wr_id,
        wr.next.word(),
        wr.num_sge.word(),
        u64::from(wr.opcode.0),
        wr.send_flags.word(),
    ];
    for index in 0..usize::try_from(wr.num_sge).expect("a count") {
        let sge = wr.sg_list.wrapping_add(index);
        // SAFETY: the request has that many entries.
        let sge = unsafe { *sge };
        words.extend([sge.addr, sge.length.into(), sge.lkey.into()]);
    }
    words
}

unsafe extern "C" fn capture_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the function under test passes a filled request.
    let wr = unsafe { &*wr };
    let mut words = words_of(wr);
    words.push(qp.word());
    record("post_send", &words);
    scripted()
}

unsafe extern "C" fn capture_rdma(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the function under test passes a filled request.
    let wr = unsafe { &*wr };
    let mut words = words_of(wr);
    // SAFETY: a write or read has these fields.
    let rdma = unsafe { wr.wr.rdma };
    words.extend([qp.word(), rdma.remote_addr, rdma.rkey.into()]);
    record("post_send", &words);
    scripted()
}

unsafe extern "C" fn capture_ud(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    _bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the function under test passes a filled request.
    let wr = unsafe { &*wr };
    let mut words = words_of(wr);
    // SAFETY: a datagram has these fields.
    let ud = unsafe { wr.wr.ud };
    words.extend([
        qp.word(),
        ud.ah.word(),
        ud.remote_qpn.into(),
        ud.remote_qkey.into(),
    ]);
    record("post_send", &words);
    scripted()
}

fn record_recv(name: &'static str, to: u64, wr: *mut ibv_recv_wr) -> c_int {
    // SAFETY: the function under test passes a filled request.
    let wr = unsafe { &*wr };
    // SAFETY: the tests post receives with at least one entry.
    let sge = unsafe { *wr.sg_list };
    record(
        name,
        &[
            to,
            wr.wr_id,
            wr.next.word(),
            wr.num_sge.word(),
            sge.addr,
            sge.length.into(),
            sge.lkey.into(),
        ],
    );
    scripted()
}

unsafe extern "C" fn capture_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    record_recv("post_recv", qp.word(), wr)
}

unsafe extern "C" fn capture_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    record_recv("post_srq_recv", srq.word(), wr)
}

/// Calls Rust and C with the same arguments, once with success and once with a failure from the provider.
macro_rules! compare {
    ($name:ident($($ty:ty = $value:expr),* $(,)?) -> $ret:ty) => {{
        // SAFETY: the type is that of the header's function.
        let c = unsafe { shim::inline::<unsafe extern "C" fn($($ty),*) -> $ret>(stringify!($name)) };
        for ret in [0, libc::ENOMEM] {
            script(&[ret]);
            // SAFETY: the objects that are followed are live.
            let ours = observe(|| unsafe { rdma_core_sys::$name($($value),*) });
            script(&[ret]);
            // SAFETY: as above.
            let theirs = observe(|| unsafe { c($($value),*) });
            assert_eq!(ours, theirs, "the provider returns {ret}");
            assert_eq!(ours.calls.len(), 1);
            assert_eq!(ours.errno, ret);
        }
    }};
}

fn entries() -> [ibv_sge; 2] {
    [
        ibv_sge {
            addr: 1,
            length: 2,
            lkey: 3,
        },
        ibv_sge {
            addr: 4,
            length: 5,
            lkey: 6,
        },
    ]
}

#[test]
fn sends_are_filled_as_in_c() {
    let f = Fixture::new();
    // SAFETY: the objects are live and known to this thread alone.
    unsafe { (*f.ops()).post_send = Some(capture_send) };
    // SAFETY: as above.
    unsafe { (*f.mr).lkey = 77 };
    let mut list = entries();
    let list = list.as_mut_ptr();
    compare!(rdma_post_sendv(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut ibv_sge = list, c_int = 2, c_int = 3) -> c_int);
    for mr in [f.mr, std::ptr::null_mut()] {
        compare!(rdma_post_send(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut c_void = token(2), usize = 3, *mut ibv_mr = mr, c_int = 8) -> c_int);
    }
}

#[test]
fn reads_and_writes_are_filled_as_in_c() {
    let f = Fixture::new();
    // SAFETY: the objects are live and known to this thread alone.
    unsafe { (*f.ops()).post_send = Some(capture_rdma) };
    // SAFETY: as above.
    unsafe { (*f.mr).lkey = 77 };
    let mut list = entries();
    let list = list.as_mut_ptr();
    compare!(rdma_post_readv(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut ibv_sge = list, c_int = 2, c_int = 2, u64 = 9, u32 = 10) -> c_int);
    compare!(rdma_post_writev(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut ibv_sge = list, c_int = 2, c_int = 2, u64 = 9, u32 = 10) -> c_int);
    compare!(rdma_post_read(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut c_void = token(2), usize = 3, *mut ibv_mr = f.mr, c_int = 2, u64 = 9, u32 = 10) -> c_int);
    for mr in [f.mr, std::ptr::null_mut()] {
        compare!(rdma_post_write(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut c_void = token(2), usize = 3, *mut ibv_mr = mr, c_int = 2, u64 = 9, u32 = 10) -> c_int);
    }
}

#[test]
fn datagrams_are_filled_as_in_c() {
    let f = Fixture::new();
    // SAFETY: the objects are live and known to this thread alone.
    unsafe { (*f.ops()).post_send = Some(capture_ud) };
    for mr in [f.mr, std::ptr::null_mut()] {
        compare!(rdma_post_ud_send(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut c_void = token(2), usize = 3, *mut ibv_mr = mr, c_int = 2, *mut ibv_ah = token(4), u32 = 5) -> c_int);
    }
}

#[test]
fn receives_go_to_the_shared_queue_when_there_is_one() {
    let f = Fixture::new();
    // SAFETY: the objects are live and known to this thread alone.
    unsafe { (*f.ops()).post_recv = Some(capture_recv) };
    // SAFETY: as above.
    unsafe { (*f.ops()).post_srq_recv = Some(capture_srq_recv) };
    let mut buffer = [0_u8; 64];
    let buffer: *mut c_void = buffer.as_mut_ptr().cast();
    // SAFETY: the region is live.
    unsafe { (*f.mr).addr = buffer };
    // SAFETY: the region is live.
    unsafe { (*f.mr).length = 64 };
    let mut list = entries();
    let list = list.as_mut_ptr();
    for srq in [std::ptr::null_mut(), f.srq] {
        // SAFETY: the id is live.
        unsafe { (*f.id).srq = srq };
        compare!(rdma_post_recvv(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut ibv_sge = list, c_int = 2) -> c_int);
        compare!(rdma_post_recv(*mut rdma_cm_id = f.id, *mut c_void = token(1), *mut c_void = buffer, usize = 64, *mut ibv_mr = f.mr) -> c_int);
    }
}

#[test]
fn a_receive_outside_its_region_is_refused() {
    let f = Fixture::new();
    // SAFETY: the objects are live and known to this thread alone.
    unsafe { (*f.ops()).post_recv = Some(capture_recv) };
    // SAFETY: the region is live.
    unsafe { (*f.mr).addr = token(4) };
    // SAFETY: the region is live.
    unsafe { (*f.mr).length = 4096 };
    for (addr, length) in [
        (token(3), 1),
        (token(4), 4097),
        (token(5), 1),
        (token(4), usize::MAX),
    ] {
        // SAFETY: the objects are live; what is refused is not posted.
        let ours = observe(|| unsafe {
            rdma_core_sys::rdma_post_recv(f.id, token(1), addr, length, f.mr)
        });
        assert!(ours.calls.is_empty(), "{addr:?} {length}");
        assert_eq!((ours.returned, ours.errno), ((-1).word(), libc::EINVAL));
    }
}

#[test]
fn registration_gives_the_rights_that_c_gives() {
    type Ours = unsafe fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr;
    type Theirs = unsafe extern "C" fn(*mut rdma_cm_id, *mut c_void, usize) -> *mut ibv_mr;
    let f = Fixture::new();
    let functions: [(&str, Ours); 3] = [
        ("rdma_reg_msgs", rdma_core_sys::rdma_reg_msgs),
        ("rdma_reg_read", rdma_core_sys::rdma_reg_read),
        ("rdma_reg_write", rdma_core_sys::rdma_reg_write),
    ];
    for (name, function) in functions {
        // SAFETY: the type is that of the header's function.
        let c = unsafe { shim::inline::<Theirs>(name) };
        // SAFETY: the id is live and the stand-ins follow no pointer.
        let ours = observe(|| unsafe { function(f.id, token(1), 2) });
        // SAFETY: as above.
        let theirs = observe(|| unsafe { c(f.id, token(1), 2) });
        // With constant flags C takes the older function, which has no address of its own for the peer.
        let [domain, addr, length, iova, access] = ours.calls[0].words[..] else {
            panic!("{ours:?}")
        };
        assert_eq!(ours.calls[0].name, "ibv_reg_mr_iova2");
        assert_eq!(iova, addr);
        assert_eq!(theirs.calls[0].words, [domain, addr, length, access]);
        assert_eq!((ours.returned, ours.errno), (theirs.returned, theirs.errno));
    }
}

#[test]
fn deregistration_reports_through_errno() {
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<unsafe extern "C" fn(*mut ibv_mr) -> c_int>("rdma_dereg_mr") };
    // SAFETY: the stand-in follows no pointer.
    let ours = observe(|| unsafe { rdma_core_sys::rdma_dereg_mr(token(1)) });
    // SAFETY: as above.
    let theirs = observe(|| unsafe { c(token(1)) });
    assert_eq!(ours, theirs);
    assert_eq!(ours.errno, c_int::sample());
}

#[test]
fn an_errno_value_becomes_minus_one() {
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<unsafe extern "C" fn(c_int) -> c_int>("rdma_seterrno") };
    for value in [0, 1, 95, -1] {
        let ours = observe(|| rdma_core_sys::rdma_seterrno(value));
        // SAFETY: the function only sets errno.
        let theirs = observe(|| unsafe { c(value) });
        assert_eq!(ours, theirs);
    }
}

#[test]
fn waiting_polls_arms_polls_and_only_then_blocks() {
    unsafe extern "C" fn poll(cq: *mut ibv_cq, n: c_int, wc: *mut ibv_wc) -> c_int {
        record("poll_cq", &[cq.word(), n.word(), wc.word()]);
        scripted()
    }
    unsafe extern "C" fn arm(cq: *mut ibv_cq, solicited: c_int) -> c_int {
        record("req_notify_cq", &[cq.word(), solicited.word()]);
        scripted()
    }
    type Ours = unsafe fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int;
    type Theirs = unsafe extern "C" fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int;
    let f = Fixture::new();
    // The stand-in finds the queue of an event in the channel's context field.
    let mut channel = ibv_comp_channel {
        context: f.cq.cast(),
        ..Default::default()
    };
    let channel = &raw mut channel;
    // SAFETY: all objects are live and known to this thread alone.
    unsafe { (*f.cq).cq_context = f.id.cast() };
    // SAFETY: as above.
    unsafe { (*f.id).send_cq_channel = channel };
    // SAFETY: as above.
    unsafe { (*f.id).recv_cq_channel = channel };
    // SAFETY: as above.
    unsafe { (*f.ops()).poll_cq = Some(poll) };
    // SAFETY: as above.
    unsafe { (*f.ops()).req_notify_cq = Some(arm) };

    let functions: [(&str, Ours); 2] = [
        ("rdma_get_send_comp", rdma_core_sys::rdma_get_send_comp),
        ("rdma_get_recv_comp", rdma_core_sys::rdma_get_recv_comp),
    ];
    // In the order of the calls: poll, arm, poll, event, and again.
    let stories: [(&[c_int], usize); 7] = [
        (&[1], 1),
        (&[-5], 1),
        (&[0, 12], 2),
        (&[0, 0, 1], 3),
        (&[0, 0, -5], 3),
        (&[0, 0, 0, -1], 4),
        (&[0, 0, 0, 0, 1], 6),
    ];
    for (name, function) in functions {
        // SAFETY: the type is that of the header's function.
        let c = unsafe { shim::inline::<Theirs>(name) };
        for (story, calls) in stories {
            script(story);
            // SAFETY: the objects are live and the recording functions do not write the entry.
            let ours = observe(|| unsafe { function(f.id, token(1)) });
            script(story);
            // SAFETY: as above.
            let theirs = observe(|| unsafe { c(f.id, token(1)) });
            assert_eq!(ours, theirs, "{name} {story:?}");
            assert_eq!(ours.calls.len(), calls, "{name} {story:?}");
        }
    }
}
