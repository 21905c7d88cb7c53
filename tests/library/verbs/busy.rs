//! What the kernel refuses to destroy while something depends on it, and that a refusal changes
//! nothing: the ground on which handles keep each other alive.

use std::net::Ipv6Addr;

use harness::{Child, Need, Outcome, Role, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    CompletionChannel, CompletionQueue, Gid, InitAttributes, MemoryWindow, ProtectionDomain,
    QpState, QpType, QueuePair, RecvRequest, SharedReceiveQueue, WindowType, sys,
};

use super::by_hand::{End, QKEY, handle};
use super::objects::open;
use crate::raw::{Buffer, poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "no_object_is_destroyed_under_another_that_needs_it",
            &[Need::Device],
            under_another,
        ),
        test(
            "queue_pairs_of_every_type_are_made_and_tell_what_they_are",
            &[Need::Device],
            every_type,
        ),
        test(
            "a_plain_user_gets_no_privileged_q_key",
            &[Need::Device, Need::Root],
            || {
                Child::role("privileged_qkey", "", &[])?
                    .finish(WAIT)?
                    .success()?;
                Ok(())
            },
        ),
        test(
            "a_vector_that_the_device_lacks_is_refused_by_name",
            &[Need::Device],
            vectors,
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[("privileged_qkey", privileged_qkey)];

/// The C call must answer EBUSY.
fn busy(what: &str, ret: i32) -> Outcome {
    let errno = if ret == -1 {
        std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
    } else {
        ret.abs()
    };
    ensure_eq!(errno, libc::EBUSY, "{what}");
    Ok(())
}

fn under_another() -> Outcome {
    let context = open()?;
    type Make = fn(&ProtectionDomain) -> Result<Box<dyn std::any::Any>, harness::Failed>;
    let of_a_domain: [(&str, Make); 5] = [
        ("a region", |pd| Ok(Box::new(Buffer::new(pd, 4096)?))),
        ("a window", |pd| {
            Ok(Box::new(MemoryWindow::new(pd, WindowType::TYPE_1)?))
        }),
        ("an address handle", |pd| Ok(Box::new(handle(pd)?))),
        ("a shared receive queue", |pd| {
            Ok(Box::new(SharedReceiveQueue::new(pd, 4, 1)?))
        }),
        ("a queue pair", |pd| {
            let cq = CompletionQueue::builder(pd.context(), 64).build()?;
            Ok(Box::new(
                QueuePair::builder(pd, QpType::RC, &cq, &cq).build()?,
            ))
        }),
    ];
    for (what, make) in of_a_domain {
        let pd = ProtectionDomain::new(&context)?;
        let made = make(&pd)?;
        // SAFETY: the domain is live; while something is in it the call frees nothing.
        let ret = unsafe { sys::ibv_dealloc_pd(pd.as_raw()) };
        busy(&format!("a domain with {what}"), ret)?;
        drop(made);
        // It is as it was.
        make(&pd)?;
        pd.close()?;
    }

    let channel = CompletionChannel::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64)
        .own_channel(&channel)
        .build()?;
    // SAFETY: the queue is live; its channel never changes.
    let raw = unsafe { (*cq.as_raw()).channel };
    // SAFETY: the channel is live; while a queue uses it the call frees nothing.
    busy("a channel with a queue", unsafe {
        sys::ibv_destroy_comp_channel(raw)
    })?;

    let pd = ProtectionDomain::new(&context)?;
    let srq = SharedReceiveQueue::new(&pd, 4, 1)?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .srq(&srq)
        .build()?;
    // SAFETY: the queue is live; while a queue pair uses it the call frees nothing.
    busy("a completion queue with a queue pair", unsafe {
        sys::ibv_destroy_cq(cq.as_raw())
    })?;
    // SAFETY: as above.
    busy("a shared receive queue with a queue pair", unsafe {
        sys::ibv_destroy_srq(srq.as_raw())
    })?;
    qp.close()?;

    let group: Ipv6Addr = "ff0e::7:7:7".parse()?;
    let end = End::new(&pd, QpType::UD, |qp| qp)?;
    end.qp.attach_multicast(Gid(group.octets()), 0)?;
    // SAFETY: the queue pair is live; while it is in a group the call frees nothing.
    busy("a queue pair in a group", unsafe {
        sys::ibv_destroy_qp(end.qp.as_raw())
    })?;
    // It still works.
    end.recv(5)?;
    end.qp.set_error()?;
    ensure_eq!(poll(&end.recv_cq)?.wr_id(), 5, "receive");
    Ok(())
}

fn every_type() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64).build()?;
    let mut numbers = Vec::new();
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        for signal_all in [false, true] {
            let qp = QueuePair::builder(&pd, qp_type, &cq, &cq)
                .max_send_wr(3)
                .max_recv_wr(5)
                .max_send_sge(2)
                .max_recv_sge(1)
                .max_inline_data(20)
                .signal_all(signal_all)
                .build()?;
            ensure_eq!(qp.qp_type(), qp_type, "type");
            ensure_eq!(qp.state(), QpState::RESET, "state");
            let (attributes, queried) = qp.query()?;
            ensure_eq!(attributes.state(), Some(QpState::RESET), "state");
            let granted = *qp.capabilities();
            ensure!(
                granted.max_send_wr >= 3
                    && granted.max_recv_wr >= 5
                    && granted.max_send_sge >= 2
                    && granted.max_recv_sge >= 1
                    && granted.max_inline_data >= 20,
                "{granted:?}"
            );
            ensure!(queried.max_inline_data >= 20, "{queried:?}");
            ensure!((1..1 << 24).contains(&qp.number()), "{qp:?}");
            numbers.push(qp.number());
            qp.close()?;
        }
    }
    // Other types have requests of their own, which are not offered.
    for raw in [0, 5, 8, 9, 10, 255, u32::MAX] {
        let error = QueuePair::builder(&pd, QpType::from_raw(raw), &cq, &cq)
            .build()
            .err()
            .ok_or(format!("type {raw} was made"))?;
        ensure_eq!(
            error.kind(),
            rpma::cm::verbs::ErrorKind::Unsupported,
            "{error}"
        );
    }
    Ok(())
}

/// As nobody, with a Q_Key whose top bit is set.
fn privileged_qkey() -> Outcome {
    const NOBODY: u32 = 65534;
    // SAFETY: changes this process only, which has one thread.
    let group = unsafe { libc::setgid(NOBODY) };
    // SAFETY: as above.
    let user = unsafe { libc::setuid(NOBODY) };
    ensure!(group == 0 && user == 0, "cannot become nobody");
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 8).build()?;
    let qp = QueuePair::builder(&pd, QpType::UD, &cq, &cq)
        .max_send_wr(1)
        .max_recv_wr(1)
        .build()?;
    let mut init = InitAttributes::new(device().port);
    init.qkey = 0x8000_0001;
    let error = qp.to_init(&init).err().ok_or("a privileged Q_Key")?;
    ensure_eq!(error.errno(), Some(libc::EPERM), "{error}");
    ensure_eq!(qp.state(), QpState::RESET, "state");
    init.qkey = QKEY;
    qp.to_init(&init)?;
    // SAFETY: the request has no memory.
    Ok(unsafe { qp.post_recv(&mut RecvRequest::new(1, &[])) }?)
}

fn vectors() -> Outcome {
    let context = open()?;
    // SAFETY: the context is open; the field is set when it was opened.
    let count = unsafe { (*context.as_raw()).num_comp_vectors };
    let count = u32::try_from(count)?.max(1);
    let build = |vector| CompletionQueue::builder(&context, 8).vector(vector).build();
    build(count - 1)?;
    for vector in [count, i32::MAX.cast_unsigned(), u32::MAX] {
        let error = build(vector).err().ok_or("there is no such vector")?;
        ensure!(error.to_string().contains(&vector.to_string()), "{error}");
    }
    Ok(())
}
