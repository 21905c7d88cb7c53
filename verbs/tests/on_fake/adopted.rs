//! Objects that other code has made by C calls, and that are handed over.

use std::ptr::{self, NonNull};

use verbs::sys::fake::control;
use verbs::{
    Address, AddressHandle, CompletionChannel, CompletionQueue, Context, DeviceList, ErrorKind,
    Gid, MemoryRegion, MemoryWindow, ProtectionDomain, QpState, QpType, QueuePair, RecvRequest,
    SendFlags, SendRequest, SharedReceiveQueue, ThreadDomain, WindowType, XrcDomain, XrcTarget,
    sys,
};

use super::common::{Memory, everything, outcomes, sge, soon, to_init, to_rtr, to_rts};

fn made<T>(pointer: *mut T) -> NonNull<T> {
    NonNull::new(pointer).expect("made")
}

/// A context opened by C calls alone.
fn raw_context() -> NonNull<sys::ibv_context> {
    // SAFETY: no count is asked for.
    let list = unsafe { sys::ibv_get_device_list(ptr::null_mut()) };
    // SAFETY: the list has two devices.
    let device = unsafe { list.read() };
    // SAFETY: the list keeps the device alive.
    let context = made(unsafe { sys::ibv_open_device(device) });
    // SAFETY: the list is freed once.
    unsafe { sys::ibv_free_device_list(list) };
    context
}

/// A queue pair made by a C call alone, with queues of 4 requests.
fn raw_qp(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    srq: Option<&SharedReceiveQueue>,
    qp_type: QpType,
) -> NonNull<sys::ibv_qp> {
    let mut init = sys::ibv_qp_init_attr {
        send_cq: cq.as_raw(),
        recv_cq: cq.as_raw(),
        srq: srq.map_or(ptr::null_mut(), SharedReceiveQueue::as_raw),
        cap: sys::ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        qp_type: sys::ibv_qp_type(qp_type.raw()),
        ..Default::default()
    };
    // SAFETY: domain and queues are live and of one device.
    made(unsafe { sys::ibv_create_qp(pd.as_raw(), &mut init) })
}

#[test]
fn what_is_handed_over_works_and_is_destroyed_in_order() {
    let fake = control::session();
    let raw = raw_context();
    // SAFETY: the context is this test's, and is handed over.
    let context = unsafe { Context::from_raw_owned(raw) }.expect("a context");
    // SAFETY: the context is open.
    let raw = made(unsafe { sys::ibv_alloc_pd(context.as_raw()) });
    // SAFETY: as above, for the domain.
    let pd = unsafe { ProtectionDomain::from_raw(raw, &context) };
    assert_eq!((pd.context(), pd.parent()), (&context, None));
    // SAFETY: the context is open.
    let raw = made(unsafe { sys::ibv_create_comp_channel(context.as_raw()) });
    // SAFETY: as above, for the channel.
    let channel = unsafe { CompletionChannel::from_raw(raw, &context) }.expect("a channel");
    assert_eq!(channel.as_raw(), raw.as_ptr());
    let strange = (&raw const fake).cast_mut().cast();
    // SAFETY: context and channel are live.
    let raw = unsafe { sys::ibv_create_cq(context.as_raw(), 16, strange, channel.as_raw(), 0) };
    // SAFETY: the queue is handed over, and reports to that channel.
    let cq = unsafe { CompletionQueue::from_raw(made(raw), &context, Some(&channel), false) };
    assert_eq!(cq.entries(), 16);

    // SAFETY: both are handed over with all that they were made with.
    let adopt = |raw| unsafe { QueuePair::from_raw(raw, &pd, &cq, &cq, None) };
    let (a, b) = (
        adopt(raw_qp(&pd, &cq, None, QpType::RC)).expect("room"),
        adopt(raw_qp(&pd, &cq, None, QpType::RC)).expect("room"),
    );
    assert_eq!((a.state(), a.qp_type()), (QpState::RESET, QpType::RC));
    assert_eq!(a.capabilities().max_send_sge, 2);
    for (qp, peer) in [(&a, &b), (&b, &a)] {
        to_init(qp).expect("INIT");
        to_rtr(qp, peer).expect("RTR");
        to_rts(qp, 7).expect("RTS");
    }
    let memory = Memory::new(16);
    let raw = memory.register(&pd, everything()).expect("registered");
    let addr = raw.addr();
    drop(raw);
    // SAFETY: the memory outlives the region, and nothing borrows it.
    let raw = unsafe { sys::ibv_reg_mr(pd.as_raw(), addr.cast(), 16, everything().bits()) };
    // SAFETY: as above; the region is handed over.
    let region = unsafe { MemoryRegion::from_raw(made(raw), &pd, addr.addr() as u64) };
    assert_eq!((region.addr(), region.len(), region.pd()), (addr, 16, &pd));

    // A message, waited for by way of the channel.
    let pieces = [sge(&region, 8)];
    // SAFETY: the memory outlives the requests, and nothing borrows it.
    unsafe { b.post_recv(&mut RecvRequest::new(1, &pieces)) }.expect("taken");
    cq.arm().expect("armed");
    let mut send = SendRequest::send(2, &pieces).with_flags(SendFlags::SIGNALED);
    // SAFETY: as above.
    unsafe { a.post_send(&mut send) }.expect("taken");
    let event = channel.next_event(soon()).expect("an event");
    assert_eq!(event.queue(), cq.id());
    let mut done = outcomes(&cq);
    done.sort_unstable();
    assert_eq!(done, [(1, 0), (2, 0)]);

    // What is handed over keeps what it needs, and goes before that.
    drop((context, pd, channel, region));
    assert!(fake.count("ibv_dealloc_pd") == 0);
    let failed = cq.close().expect_err("queue pairs use it");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    drop((a, b));
    drop(failed);
    let calls = fake.calls();
    let ends: Vec<_> = calls
        .iter()
        .filter(|call| {
            ["ibv_de", "ibv_close"]
                .iter()
                .any(|end| call.starts_with(end))
        })
        .copied()
        .collect();
    assert_eq!(
        ends[ends.len() - 6..],
        [
            "ibv_destroy_qp",
            "ibv_destroy_qp",
            "ibv_dealloc_pd",
            "ibv_destroy_cq",
            "ibv_destroy_comp_channel",
            "ibv_close_device"
        ]
    );
    fake.finish();
}

#[test]
fn a_queue_pair_is_taken_over_in_the_state_that_it_is_in() {
    let fake = control::session();
    let context = DeviceList::new().and_then(|l| l.by_name("fake0")?.open());
    let context = context.expect("opened");
    let pd = ProtectionDomain::new(&context).expect("made");
    let cq = CompletionQueue::builder(&context, 8).build().expect("made");
    let raw = raw_qp(&pd, &cq, None, QpType::UD);
    let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE
        | sys::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
        | sys::ibv_qp_attr_mask::IBV_QP_PORT
        | sys::ibv_qp_attr_mask::IBV_QP_QKEY;
    let mut init = sys::ibv_qp_attr {
        qp_state: sys::ibv_qp_state::IBV_QPS_INIT,
        port_num: 1,
        ..Default::default()
    };
    // SAFETY: the queue pair is live.
    let ret = unsafe { sys::ibv_modify_qp(raw.as_ptr(), &mut init, mask.0.cast_signed()) };
    assert_eq!(ret, 0);
    // SAFETY: the queue pair is handed over with all that it was made with.
    let qp = unsafe { QueuePair::from_raw(raw, &pd, &cq, &cq, None) }.expect("room");
    assert_eq!((qp.state(), qp.qp_type()), (QpState::INIT, QpType::UD));
    // SAFETY: the request has no memory.
    unsafe { qp.post_recv(&mut RecvRequest::new(1, &[])) }.expect("taken in INIT");
    drop((qp, cq, pd, context));
    fake.finish();
}

#[test]
fn what_is_not_taken_over_is_still_the_callers() {
    let fake = control::session();
    let open = || DeviceList::new().and_then(|l| l.by_name("fake0")?.open());
    let (context, other) = (open().expect("opened"), open().expect("opened"));
    let pd = ProtectionDomain::new(&context).expect("made");
    let cq = CompletionQueue::builder(&context, 7).build().expect("made");
    let foreign = CompletionQueue::builder(&other, 64).build().expect("made");
    let raw = raw_qp(&pd, &cq, None, QpType::RC);
    // SAFETY: the queue pair is this test's, made with these.
    let error = unsafe { QueuePair::from_raw(raw, &pd, &cq, &cq, None) };
    assert_eq!(error.expect_err("8 into 7").kind(), ErrorKind::Limit);
    // SAFETY: refused before anything is done with the queue.
    let error = unsafe { QueuePair::from_raw(raw, &pd, &foreign, &cq, None) };
    let error = error.expect_err("another device");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    fake.fail("ibv_query_qp", 0, libc::EIO);
    // SAFETY: as above.
    let error = unsafe { QueuePair::from_raw(raw, &pd, &cq, &cq, None) };
    assert_eq!(error.expect_err("told to fail").errno(), Some(libc::EIO));
    assert_eq!(fake.count("ibv_destroy_qp"), 0);
    // SAFETY: the queue pair is this test's still.
    assert_eq!(unsafe { sys::ibv_destroy_qp(raw.as_ptr()) }, 0);
    // The room that was asked for is free again.
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(4)
        .max_recv_wr(3)
        .build();
    drop(qp.expect("room"));

    let mut init = sys::ibv_srq_init_attr::default();
    init.attr.max_wr = 4;
    init.attr.max_sge = 1;
    // SAFETY: the domain is live.
    let raw = made(unsafe { sys::ibv_create_srq(pd.as_raw(), &mut init) });
    fake.fail("ibv_query_srq", 0, libc::EIO);
    // SAFETY: the queue is this test's.
    let error = unsafe { SharedReceiveQueue::from_raw(raw, &pd) };
    assert_eq!(error.expect_err("told to fail").errno(), Some(libc::EIO));
    // SAFETY: the queue is this test's still, and is handed over now.
    let srq = unsafe { SharedReceiveQueue::from_raw(raw, &pd) }.expect("answered");
    assert_eq!((srq.max_wr(), srq.max_sge()), (4, 1));
    let raw = raw_qp(&pd, &cq, Some(&srq), QpType::RC);
    // SAFETY: the queue pair is this test's, made with these.
    let error = unsafe { QueuePair::from_raw(raw, &pd, &cq, &cq, Some(&srq)) };
    let error = error.expect_err("four sends and four shared receives into 7");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    cq.resize(8).expect("just enough");
    // SAFETY: the queue pair is this test's still, and is handed over now.
    let qp = unsafe { QueuePair::from_raw(raw, &pd, &cq, &cq, Some(&srq)) }.expect("room");
    assert!(qp.srq().is_some());
    drop((srq, cq, pd, context, other, foreign));
    drop(qp);
    fake.finish();
}

#[test]
fn the_smaller_objects_are_handed_over_as_well() {
    let fake = control::session();
    let context = DeviceList::new().and_then(|l| l.by_name("fake0")?.open());
    let context = context.expect("opened");
    let pd = ProtectionDomain::new(&context).expect("made");
    let mut address = Address::roce(1, 0, Gid([1; 16])).to_raw();
    // SAFETY: the domain is live.
    let raw = made(unsafe { sys::ibv_create_ah(pd.as_raw(), &mut address) });
    // SAFETY: the handle is handed over.
    let ah = unsafe { AddressHandle::from_raw(raw, &pd) };
    assert_eq!((ah.as_raw(), ah.pd()), (raw.as_ptr(), &pd));
    let type_2 = sys::ibv_mw_type::IBV_MW_TYPE_2;
    // SAFETY: the domain is live.
    let raw = made(unsafe { sys::ibv_alloc_mw(pd.as_raw(), type_2) });
    // SAFETY: the window is handed over, bound to nothing.
    let window = unsafe { MemoryWindow::from_raw(raw, &pd) };
    assert_eq!(window.window_type(), WindowType::TYPE_2);
    assert_eq!(window.as_raw(), raw.as_ptr());
    let mut attributes = sys::ibv_td_init_attr { comp_mask: 0 };
    // SAFETY: the context is open.
    let raw = made(unsafe { sys::ibv_alloc_td(context.as_raw(), &mut attributes) });
    // SAFETY: the thread domain is handed over.
    let thread = unsafe { ThreadDomain::from_raw(raw, &context) };
    assert_eq!(thread.as_raw(), raw.as_ptr());
    let mut attributes = sys::ibv_xrcd_init_attr {
        comp_mask: 3,
        fd: -1,
        oflags: libc::O_CREAT,
    };
    // SAFETY: the context is open.
    let raw = made(unsafe { sys::ibv_open_xrcd(context.as_raw(), &mut attributes) });
    // SAFETY: the domain is handed over.
    let domain = unsafe { XrcDomain::from_raw(raw, &context) };
    assert_eq!(domain.as_raw(), raw.as_ptr());
    let mut init = sys::ibv_qp_init_attr_ex {
        qp_type: sys::ibv_qp_type::IBV_QPT_XRC_RECV,
        comp_mask: sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0,
        xrcd: domain.as_raw(),
        ..Default::default()
    };
    // SAFETY: the context is open, and the domain live.
    let raw = made(unsafe { sys::ibv_create_qp_ex(context.as_raw(), &mut init) });
    let cq = CompletionQueue::builder(&context, 8).build().expect("made");
    // SAFETY: refused before anything is done with the queue pair.
    let error = unsafe { QueuePair::from_raw(raw, &pd, &cq, &cq, None) };
    let error = error.expect_err("nothing is posted to it");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // SAFETY: the target is handed over.
    let target = unsafe { XrcTarget::from_raw(raw, &domain) };
    assert_eq!(target.as_raw(), raw.as_ptr());
    drop((context, pd, domain, cq));
    drop((ah, window, thread, target));
    fake.finish();
}
