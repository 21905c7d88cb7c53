//! Messages and lists of every size.

use std::time::Duration;

use harness::{Failed, Need, Outcome, Test, ensure, ensure_eq, pattern, phase, test};
use rpma::cm::verbs::{
    AccessFlags, MemoryRegion, PathMtu, PostErrorKind, ProtectionDomain, QpType, RemoteAddr,
    SendFlags, SendRequest,
};

use super::by_hand::{End, pair, pair_with};
use super::objects::open;
use crate::raw::{Buffer, poll, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "messages_around_the_path_mtu_and_far_above_arrive_whole",
            &[Need::Device],
            around_the_mtu,
        ),
        test(
            "one_request_with_too_many_sges_keeps_its_whole_list_from_being_posted",
            &[Need::Device],
            a_list_with_a_bad_request,
        ),
        test(
            "a_list_longer_than_the_queue_is_taken_up_to_the_number_that_is_told",
            &[Need::Device],
            a_list_longer_than_the_queue,
        ),
        test(
            "a_region_may_ask_for_relaxed_ordering_where_a_device_knows_none",
            &[Need::Device],
            relaxed_ordering,
        ),
        test(
            "a_region_of_more_than_4_gib_keeps_its_length",
            &[Need::Device],
            more_than_4_gib,
        )
        .long(),
    ]
}

const OPEN: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE);

fn around_the_mtu() -> Outcome {
    let most = harness::rounds((128 << 10) + 1, (1 << 20) + 1);
    let port = open()?.active_port(harness::device().port)?;
    let active = port
        .active_mtu()
        .and_then(PathMtu::at_most)
        .ok_or("no MTU")?;
    for mtu in [PathMtu::MTU_256, active] {
        let (one, two) = pair_with(QpType::RC, |rtr, _| rtr.path_mtu = mtu)?;
        let from = Buffer::with_access(&one.pd, most, OPEN)?;
        let to = Buffer::with_access(&two.pd, most, OPEN)?;
        let remote = RemoteAddr {
            addr: to.region().iova(),
            rkey: to.region().rkey(),
        };
        let m = mtu.bytes().ok_or("the MTU in bytes")? as usize;
        for (seed, len) in (1..).zip([1, m - 1, m, m + 1, 65_535, 65_537, most]) {
            phase(format!("{len} bytes with packets of {m}"));
            let bytes = pattern::bytes(seed, len);
            let sges = [from.sge(0, len)];
            // As a message.
            from.store(0, &bytes);
            let receive = [to.sge(0, most)];
            let mut request = rpma::cm::verbs::RecvRequest::new(7, &receive);
            // SAFETY: the buffer is registered memory to which no reference is formed.
            unsafe { two.qp.post_recv(&mut request) }?;
            one.post(SendRequest::send(1, &sges))?;
            one.sent(1)?;
            let received = two.received(7)?;
            ensure_eq!(received.result()?.byte_len() as usize, len, "bytes");
            pattern::check(&to.load(0, len), seed)?;
            // Read back, inverted, and written.
            to.store(0, &bytes.iter().map(|byte| !byte).collect::<Vec<_>>());
            one.post(SendRequest::read(2, &sges, remote))?;
            one.sent(2)?;
            let read: Vec<_> = from.load(0, len).iter().map(|byte| !byte).collect();
            pattern::check(&read, seed)?;
            from.store(0, &bytes);
            one.post(SendRequest::write(3, &sges, remote))?;
            one.sent(3)?;
            pattern::check(&to.load(0, len), seed)?;
        }
    }
    Ok(())
}

fn a_list_with_a_bad_request() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    for wr_id in 0..4 {
        two.recv(wr_id)?;
    }
    let max = one.qp.capabilities().max_send_sge;
    let good = [one.buffer.sge(0, 8)];
    let bad: Vec<_> = (0..=max).map(|_| one.buffer.sge(0, 1)).collect();
    let list = || {
        [0, 1, 2, 3].map(|n| {
            let sges = if n == 2 { &bad[..] } else { &good[..] };
            SendRequest::send(n, sges).with_flags(SendFlags::SIGNALED)
        })
    };
    // SAFETY: the buffer is registered memory to which no reference is formed.
    let error = unsafe { one.qp.post_send_list(&mut list()) }.err();
    let error = error.ok_or("posted")?;
    // A provider would take the first two; the check before it spares the caller a half-posted list.
    let expected = PostErrorKind::TooManySges {
        given: max + 1,
        max,
    };
    ensure_eq!((error.kind, error.queued), (expected, 0), "{error}");
    std::thread::sleep(Duration::from_millis(50));
    ensure!(try_poll(&one.send_cq)?.is_none(), "something was posted");
    ensure!(try_poll(&two.recv_cq)?.is_none(), "something was sent");
    // Without the bad one it goes through.
    let mut rest: Vec<_> = list()
        .into_iter()
        .filter(|request| !format!("{request:?}").contains("wr_id: 2"))
        .collect();
    // SAFETY: as above.
    unsafe { one.qp.post_send_list(&mut rest) }?;
    for n in [0, 1, 3] {
        one.sent(n)?;
    }
    Ok(())
}

fn a_list_longer_than_the_queue() -> Outcome {
    // Nobody receives, so that nothing completes while the list is posted.
    let (one, two) = pair(QpType::RC)?;
    let mut list: Vec<_> = (0..64)
        .map(|n| SendRequest::send(n, &[]).with_flags(SendFlags::SIGNALED))
        .collect();
    // SAFETY: the requests have no memory.
    let error = unsafe { one.qp.post_send_list(&mut list) }.err();
    let error = error.ok_or("64 requests were taken")?;
    ensure_eq!(error.kind, PostErrorKind::QueueFull, "{error}");
    let granted = one.qp.capabilities().max_send_wr as usize;
    ensure!((granted..64).contains(&error.queued), "{error:?}");
    for n in 0..error.queued as u64 {
        two.recv(n)?;
        one.sent(n)?;
        two.received(n)?;
    }
    ensure!(try_poll(&one.send_cq)?.is_none(), "more than was told");
    Ok(())
}

fn relaxed_ordering() -> Outcome {
    for qp_type in [QpType::RC, QpType::UD] {
        let (one, two) = pair(qp_type)?;
        let relaxed = OPEN | AccessFlags::RELAXED_ORDERING;
        let (from, to) = (
            Buffer::with_access(&one.pd, 4096, relaxed)?,
            Buffer::with_access(&two.pd, 4096, relaxed)?,
        );
        from.store(0, b"relaxed");
        exchange(&one, &two, &from, &to)?;
        let at = if qp_type == QpType::UD { 40 } else { 0 };
        ensure_eq!(to.load(at, 7), b"relaxed", "{qp_type}");
    }
    Ok(())
}

/// Sends 7 bytes.
fn exchange(one: &End, two: &End, from: &Buffer, to: &Buffer) -> Result<(), Failed> {
    let receive = [to.sge(0, 4096)];
    let mut request = rpma::cm::verbs::RecvRequest::new(7, &receive);
    // SAFETY: the buffer is registered memory to which no reference is formed.
    unsafe { two.qp.post_recv(&mut request) }?;
    let sges = [from.sge(0, 7)];
    let address = super::by_hand::handle(&one.pd)?;
    let number = two.qp.number();
    one.post(if one.qp.qp_type() == QpType::UD {
        SendRequest::datagram(1, &sges, &address, number, super::by_hand::QKEY)
    } else {
        SendRequest::send(1, &sges)
    })?;
    one.sent(1)?;
    poll(&two.recv_cq)?.result()?;
    Ok(())
}

/// Address space of `len` bytes in which the same pages come again and again.
struct Repeated {
    start: *mut libc::c_void,
    len: usize,
}

impl Repeated {
    const PIECE: usize = 64 << 20;

    fn new(pieces: usize) -> Result<Self, Failed> {
        let len = pieces * Self::PIECE;
        let file = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, Self::PIECE as u64)?;
        use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) }?;
        let this = Self { start, len };
        for piece in 0..pieces {
            let place = start.wrapping_byte_add(piece * Self::PIECE);
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: replaces a part of the mapping just made, which nobody uses.
            unsafe { mmap(place, Self::PIECE, rights, flags, &file, 0) }?;
        }
        Ok(this)
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whose region is gone.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}

fn more_than_4_gib() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    let memory = Repeated::new(80)?;
    ensure_eq!(memory.len, 5 << 30, "bytes");
    // SAFETY: the memory stays mapped until the region is gone, and no reference to it is formed.
    let region = unsafe { MemoryRegion::register(&pd, memory.start.cast(), memory.len, OPEN) };
    match region {
        Ok(region) => {
            ensure_eq!(region.len(), 5 << 30, "length");
            region.close()?;
        }
        Err(error) => {
            ensure_eq!(error.errno(), Some(libc::ENOMEM), "{error}");
            ensure!(error.to_string().contains("5368709120"), "{error}");
        }
    }
    Ok(())
}
