//! Extended reliable connections: what the provider is given for each of their objects.

use std::os::fd::AsFd;

use verbs::sys::fake::control;
use verbs::{
    AccessFlags, Address, CompletionQueue, Context, DeviceList, ErrorKind, Gid, InitAttributes,
    PathMtu, PostErrorKind, ProtectionDomain, QpState, QpType, QueuePair, RecvRequest,
    RtrAttributes, RtsAttributes, SendOps, SendRequest, SharedReceiveQueue, XrcDomain, XrcSharing,
    XrcTarget,
};

fn open(name: &str) -> Context {
    let list = DeviceList::new().expect("a list");
    let device = list.by_name(name).expect("in the list");
    device.open().expect("opened")
}

struct Parts {
    context: Context,
    pd: ProtectionDomain,
    domain: XrcDomain,
    cq: CompletionQueue,
}

impl Parts {
    fn new() -> Self {
        let context = open("fake0");
        let cq = CompletionQueue::builder(&context, 8).build().expect("made");
        Self {
            pd: ProtectionDomain::new(&context).expect("made"),
            domain: XrcDomain::new(&context).expect("opened"),
            cq,
            context,
        }
    }

    fn srq(&self, max_wr: u32) -> Result<SharedReceiveQueue, verbs::Error> {
        SharedReceiveQueue::new_xrc(&self.pd, &self.domain, &self.cq, max_wr, 1)
    }
}

fn init() -> InitAttributes {
    let mut init = InitAttributes::new(1);
    init.access = AccessFlags::REMOTE_WRITE;
    init
}

fn rtr(peer: u32) -> RtrAttributes {
    let address = Address::roce(1, 0, Gid([1; 16]));
    RtrAttributes::new(address, PathMtu::MTU_1024, peer, 7)
}

#[test]
fn a_domain_is_private_or_of_a_file_as_asked() {
    let fake = control::session();
    let context = open("fake0");
    let file = std::fs::File::open("/dev/null").expect("there");
    let one = XrcDomain::new(&context).expect("opened");
    let mut all = vec![];
    for sharing in [
        XrcSharing::Existing,
        XrcSharing::Create,
        XrcSharing::CreateNew,
    ] {
        all.push(XrcDomain::shared(&context, file.as_fd(), sharing).expect("opened"));
    }
    assert_eq!(
        fake.arguments("ibv_open_xrcd"),
        [
            "comp_mask=3 file=none oflags=0o100",
            "comp_mask=3 file=some oflags=0o0",
            "comp_mask=3 file=some oflags=0o100",
            "comp_mask=3 file=some oflags=0o300",
        ]
    );
    let two = one.clone();
    let failed = one.close().expect_err("another handle");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    drop(two);
    failed.handle.close().expect("closed");
    drop((all, context));

    let other = open("fake1");
    let error = XrcDomain::new(&other).expect_err("no such operation");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    drop(other);
    fake.finish();
}

#[test]
fn a_shared_receive_queue_has_its_completion_queue_and_its_number() {
    let fake = control::session();
    let parts = Parts::new();
    let srq = parts.srq(5).expect("made");
    assert_eq!(
        fake.arguments("ibv_create_srq_ex"),
        ["comp_mask=15 type=1 max_wr=5 max_sge=1"]
    );
    assert!(srq.xrc_number().expect("a number") >= 0x8000);
    assert!(srq.xrc_domain().is_some());
    // SAFETY: the request has no memory.
    unsafe { srq.post_recv(&mut RecvRequest::new(1, &[])) }.expect("taken");
    // All receives have to find room in the completion queue.
    let error = parts
        .srq(4)
        .expect_err("five of eight entries are promised");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    let error = srq.resize(9).expect_err("there are eight entries");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert_eq!(srq.max_wr(), 5);
    srq.resize(8).expect("just enough");
    // Other queue pairs cannot use it, and others have no such number.
    let rc = QueuePair::builder(&parts.pd, QpType::RC, &parts.cq, &parts.cq);
    let error = rc.max_send_wr(0).srq(&srq).build().expect_err("not for RC");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let plain = SharedReceiveQueue::new(&parts.pd, 4, 1).expect("made");
    let error = plain.xrc_number().expect_err("it has none");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert_eq!(fake.count("ibv_get_srq_num"), 1);

    // It keeps all that it needs, and goes before that.
    let Parts {
        context,
        pd,
        domain,
        cq,
    } = parts;
    let failed = domain.close().expect_err("the queue is of it");
    let failed_cq = cq.close().expect_err("the queue completes in it");
    drop((failed, failed_cq, pd, plain, context));
    assert_eq!(fake.count("ibv_close_xrcd"), 0);
    assert_eq!(fake.count("ibv_destroy_cq"), 0);
    drop(srq);
    assert_eq!(fake.count("ibv_close_xrcd"), 1);
    assert_eq!(fake.count("ibv_destroy_cq"), 1);
    fake.finish();
}

#[test]
fn a_failing_call_leaves_no_part_of_a_shared_receive_queue() {
    let fake = control::session();
    let parts = Parts::new();
    fake.fail("ibv_create_srq_ex", 0, libc::ENOMEM);
    let error = parts.srq(8).expect_err("told to fail");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_create_srq_ex", Some(libc::ENOMEM))
    );
    // The room that it had asked for is free again.
    drop(parts.srq(8).expect("made"));
    let strange = open("fake0");
    let domain = XrcDomain::new(&strange).expect("opened");
    let error = SharedReceiveQueue::new_xrc(&parts.pd, &domain, &parts.cq, 1, 1);
    let error = error.expect_err("a domain of another handle of the device");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    drop((parts, domain, strange));
    fake.finish();
}

#[test]
fn the_sending_end_names_the_receive_queue_and_receives_nothing() {
    let fake = control::session();
    let parts = Parts::new();
    let srq = parts.srq(4).expect("made");
    let build = || {
        QueuePair::builder(&parts.pd, QpType::XRC_SEND, &parts.cq, &parts.cq)
            .max_send_wr(2)
            .max_recv_wr(100)
    };
    let qp = build().build().expect("made");
    assert_eq!(qp.capabilities().max_recv_wr, 0, "no room is taken for it");
    // SAFETY: the request has no memory.
    let refused = unsafe { qp.post_recv(&mut RecvRequest::new(1, &[])) };
    assert!(refused.is_err());
    let error = build().srq(&srq).build().expect_err("it receives nothing");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let error = build()
        .build_extended(SendOps::SEND)
        .expect_err("no way to name the queue");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");

    qp.to_init(&init()).expect("to INIT");
    // SAFETY: the request has no memory.
    let refused = unsafe { qp.post_recv(&mut RecvRequest::new(1, &[])) };
    let error = refused.expect_err("there is no receive queue");
    assert_eq!(error.kind, PostErrorKind::SharedReceives);
    qp.to_rtr(&rtr(99)).expect("to RTR");
    qp.to_rts(&RtsAttributes::new(3)).expect("to RTS");
    assert_eq!(qp.state(), QpState::RTS);
    assert_eq!(
        fake.arguments("ibv_modify_qp"),
        ["mask=0x39", "mask=0x101181", "mask=0x12e01"]
    );
    let mut request = SendRequest::send(1, &[]).to_xrc_srq(srq.xrc_number().expect("a number"));
    // SAFETY: the request has no memory.
    unsafe { qp.post_send(&mut request) }.expect("taken");
    drop((qp, srq, parts));
    fake.finish();
}

#[test]
fn the_receiving_end_is_made_of_the_domain_alone_and_shared_by_its_number() {
    let fake = control::session();
    let parts = Parts::new();
    let target = XrcTarget::new(&parts.domain).expect("made");
    assert_eq!(
        fake.arguments("ibv_create_qp_ex"),
        ["type=10 comp_mask=2 pd=false cq=false"]
    );
    target.to_init(&init()).expect("to INIT");
    target.to_rtr(&rtr(99)).expect("to RTR");
    target.to_rts(&RtsAttributes::new(3)).expect("to RTS");
    assert_eq!(
        fake.arguments("ibv_modify_qp"),
        ["mask=0x39", "mask=0x129181", "mask=0x10201"]
    );
    let now = target.query().expect("answered");
    assert_eq!(
        (now.state(), now.dest_qp_number()),
        (Some(QpState::RTS), 99)
    );

    let again = XrcTarget::open(&parts.domain, target.number()).expect("opened");
    assert_eq!(again.number(), target.number());
    let (number, calls) = (target.number(), fake.arguments("ibv_open_qp"));
    assert_eq!(calls, [format!("comp_mask=11 qp_num={number} type=10")]);
    let error = XrcTarget::open(&parts.domain, number + 1).expect_err("none of that number");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    target.set_error().expect("to ERR");
    target.reset().expect("to RESET");
    target.close().expect("closed");
    // Handles keep the domain.
    let failed = parts.domain.close().expect_err("one is open");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    drop((failed, parts.context, parts.pd, parts.cq));
    assert_eq!(fake.count("ibv_close_xrcd"), 0);
    drop(again);
    fake.finish();
}
