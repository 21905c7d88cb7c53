//! The checks that the counted posts include: each refuses what it is for, and the provider sees nothing of it.

use verbs::{
    DeviceList, LocalKey, PostError, PostErrorKind, QpState, QpType, QueuePair, RecvRequest,
    RemoteAddr, SendFlags, SendRequest, Sge, SharedReceiveQueue, WrOpcode,
};

use super::common::{Pair, connect, to_init, to_rtr, to_rts};
use super::rig::Rig;
use crate::harness::provider::{install, taken};

/// Posts `request` alone, and at the end of a list after one that is all right: neither must get through.
fn refused(
    qp: &QueuePair,
    request: SendRequest<'_>,
    expected: PostErrorKind,
) -> Result<(), String> {
    let before = taken();
    let mut single = request;
    // SAFETY: the provider reaches no memory.
    let alone = unsafe { qp.post_send(&mut single) };
    compare("alone", alone, expected)?;
    let good = SendRequest::send(0, &[]);
    // SAFETY: as above.
    let listed = unsafe { qp.post_send_list(&mut [good, request]) };
    compare("in a list", listed, expected)?;
    nothing_taken(before)
}

fn refused_receive(
    post: impl Fn(&mut [RecvRequest<'_>]) -> Result<(), PostError>,
    request: RecvRequest<'_>,
    expected: PostErrorKind,
) -> Result<(), String> {
    let before = taken();
    compare("alone", post(&mut [request]), expected)?;
    let good = RecvRequest::new(0, &[]);
    compare("in a list", post(&mut [good, request]), expected)?;
    nothing_taken(before)
}

fn compare(how: &str, found: Result<(), PostError>, expected: PostErrorKind) -> Result<(), String> {
    match found {
        Err(PostError {
            kind, queued: 0, ..
        }) if kind == expected => Ok(()),
        other => Err(format!("{how}: expected {expected:?}, found {other:?}")),
    }
}

fn nothing_taken(before: u64) -> Result<(), String> {
    match taken() - before {
        0 => Ok(()),
        count => Err(format!("the provider got {count} requests all the same")),
    }
}

/// Posts what may be posted, and looks whether the provider got it.
fn taken_as_it_is(qp: &QueuePair, mut request: SendRequest<'_>) -> Result<(), String> {
    let before = taken();
    // SAFETY: the provider reaches no memory.
    unsafe { qp.post_send(&mut request) }.map_err(|e| format!("{request:?}: {e}"))?;
    // SAFETY: as above.
    unsafe { qp.post_send_list(&mut [request, request]) }
        .map_err(|e| format!("a list of {request:?}: {e}"))?;
    match taken() - before {
        3 => Ok(()),
        count => Err(format!("{request:?}: the provider got {count} of 3")),
    }
}

/// Bytes of `count` SGEs of `len` each. Nothing reaches them.
fn sges(count: usize, len: u32) -> Vec<Sge> {
    vec![Sge::new(0x1000, len, LocalKey(1)); count]
}

pub(crate) fn each_refuses(rig: &Rig) -> Result<(), String> {
    let (qp, remote) = (&rig.pair.a, rig.remote);
    let limits = *qp.capabilities();
    let text = |e: verbs::Error| e.to_string();

    // As many as there may be, and one more.
    let most = sges(limits.max_send_sge as usize, 8);
    taken_as_it_is(qp, SendRequest::write(1, &most, remote))?;
    let many = sges(most.len() + 1, 8);
    let (given, max) = (limits.max_send_sge + 1, limits.max_send_sge);
    refused(
        qp,
        SendRequest::write(1, &many, remote),
        PostErrorKind::TooManySges { given, max },
    )?;

    let (fits, long) = (
        sges(1, limits.max_inline_data),
        sges(1, limits.max_inline_data + 1),
    );
    let inline = |sges| SendRequest::send(1, sges).with_flags(SendFlags::INLINE);
    taken_as_it_is(qp, inline(&fits))?;
    let (given, max) = (
        u64::from(limits.max_inline_data) + 1,
        limits.max_inline_data,
    );
    refused(
        qp,
        inline(&long),
        PostErrorKind::InlineTooLong { given, max },
    )?;
    let one = sges(1, 8);
    refused(
        qp,
        SendRequest::read(1, &one, remote).with_flags(SendFlags::INLINE),
        PostErrorKind::InlineNotAllowed(WrOpcode::RDMA_READ),
    )?;

    taken_as_it_is(qp, SendRequest::fetch_and_add(1, &one, remote, 1))?;
    let aside = RemoteAddr {
        addr: remote.addr + 4,
        ..remote
    };
    refused(
        qp,
        SendRequest::fetch_and_add(1, &one, aside, 1),
        PostErrorKind::NotEightBytes {
            addr: aside.addr,
            len: 8,
        },
    )?;
    let four = sges(1, 4);
    refused(
        qp,
        SendRequest::compare_and_swap(1, &four, remote, 1, 2),
        PostErrorKind::NotEightBytes {
            addr: remote.addr,
            len: 4,
        },
    )?;

    // iWARP has neither atomics nor immediate data.
    let context = DeviceList::new()
        .and_then(|list| list.by_name("fake1")?.open())
        .map_err(text)?;
    install(&context);
    let iwarp = Pair::of(context).map_err(text)?;
    connect(&iwarp.a, &iwarp.b, 7).map_err(text)?;
    taken_as_it_is(&iwarp.a, SendRequest::send(1, &one))?;
    refused(
        &iwarp.a,
        SendRequest::send_with_imm(1, &one, 5),
        PostErrorKind::Unsupported(WrOpcode::SEND_WITH_IMM),
    )?;
    refused(
        &iwarp.a,
        SendRequest::fetch_and_add(1, &one, remote, 1),
        PostErrorKind::Unsupported(WrOpcode::ATOMIC_FETCH_AND_ADD),
    )?;
    before_its_state(rig)?;
    receives(rig)
}

fn to_itself(qp: &QueuePair) -> Result<(), verbs::Error> {
    to_init(qp)?;
    to_rtr(qp, qp)?;
    to_rts(qp, 7)
}

/// Neither a queue pair that was never brought to RTS, nor one that was taken back.
fn before_its_state(rig: &Rig) -> Result<(), String> {
    let text = |e: verbs::Error| e.to_string();
    let pair = &rig.pair;
    let fresh = QueuePair::builder(&pair.pd, QpType::RC, &rig.spare_cq, &rig.spare_cq)
        .build()
        .map_err(text)?;
    let one = sges(1, 8);
    let write = SendRequest::write(1, &one, rig.remote);
    refused(&fresh, write, PostErrorKind::State(QpState::RESET))?;
    let recv = RecvRequest::new(1, &one);
    // SAFETY: the provider reaches no memory.
    let post = |list: &mut [RecvRequest<'_>]| unsafe { fresh.post_recv_list(list) };
    refused_receive(post, recv, PostErrorKind::State(QpState::RESET))?;
    to_itself(&fresh).map_err(text)?;
    taken_as_it_is(&fresh, write)?;
    fresh.reset().map_err(text)?;
    refused(&fresh, write, PostErrorKind::State(QpState::RESET))?;
    // In the error state it is for the device to flush it.
    to_itself(&fresh).map_err(text)?;
    fresh.set_error().map_err(text)?;
    taken_as_it_is(&fresh, write)
}

fn receives(rig: &Rig) -> Result<(), String> {
    let text = |e: verbs::Error| e.to_string();
    let qp = &rig.pair.a;
    let max = qp.capabilities().max_recv_sge;
    let many = sges(max as usize + 1, 8);
    let too_many = PostErrorKind::TooManySges {
        given: max + 1,
        max,
    };
    // SAFETY: the provider reaches no memory.
    let post = |list: &mut [RecvRequest<'_>]| unsafe { qp.post_recv_list(list) };
    refused_receive(post, RecvRequest::new(1, &many), too_many)?;

    let srq = SharedReceiveQueue::new(&rig.pair.pd, 4, 1).map_err(text)?;
    let max = srq.max_sge();
    let many = sges(max as usize + 1, 8);
    let too_many = PostErrorKind::TooManySges {
        given: max + 1,
        max,
    };
    // SAFETY: as above.
    let post = |list: &mut [RecvRequest<'_>]| unsafe { srq.post_recv_list(list) };
    refused_receive(post, RecvRequest::new(1, &many), too_many)?;

    let shared = QueuePair::builder(&rig.pair.pd, QpType::RC, &rig.spare_cq, &rig.spare_cq)
        .srq(&srq)
        .build()
        .map_err(text)?;
    to_itself(&shared).map_err(text)?;
    // SAFETY: as above.
    let post = |list: &mut [RecvRequest<'_>]| unsafe { shared.post_recv_list(list) };
    refused_receive(
        post,
        RecvRequest::new(1, &[]),
        PostErrorKind::SharedReceives,
    )
}

/// In a forked child nothing reaches the parent's queues, neither requests nor polls.
pub(crate) fn a_forked_child_is_refused(rig: &Rig) -> Result<(), String> {
    // SAFETY: this program has one thread here, and the child leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = i32::from(in_child(rig).is_err());
        // SAFETY: it ends the child without running anything else.
        unsafe { libc::_exit(code) };
    }
    if child < 0 {
        return Err(format!("fork: {}", std::io::Error::last_os_error()));
    }
    let mut status = 0;
    // SAFETY: the place is valid, and the child is ours.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    if waited == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        return Ok(());
    }
    Err("something was posted or polled in a forked child".to_owned())
}

fn in_child(rig: &Rig) -> Result<(), String> {
    let one = [Sge::new(0x1000, 8, LocalKey(1))];
    let qp = &rig.pair.a;
    refused(
        qp,
        SendRequest::write(1, &one, rig.remote),
        PostErrorKind::Forked,
    )?;
    // SAFETY: the provider reaches no memory.
    let post = |list: &mut [RecvRequest<'_>]| unsafe { qp.post_recv_list(list) };
    refused_receive(post, RecvRequest::new(1, &one), PostErrorKind::Forked)?;
    // SAFETY: as above.
    let post = |list: &mut [RecvRequest<'_>]| unsafe { rig.srq.post_recv_list(list) };
    refused_receive(post, RecvRequest::new(1, &one), PostErrorKind::Forked)?;
    match rig.pair.a_cq.poll(&mut [std::mem::MaybeUninit::uninit()]) {
        Err(verbs::PollError::Forked) => Ok(()),
        _ => Err("a poll in a forked child".to_owned()),
    }
}
