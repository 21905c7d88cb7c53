//! Datagrams by address, and multicast groups.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use harness::{Baseline, Failed, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    AddressHandle, CompletionQueue, Context, ProtectionDomain, QpType, QueuePair, RecvRequest,
    SendFlags, SendRequest, WorkCompletion,
};
use rpma::cm::{
    ConnectOptions, DatagramListener, DatagramResolving, Deadline, Dispatcher, Error, GroupState,
    IdOptions, JoinKind, ListenOptions, Multicast, MulticastEvent, RejectReason, RemoteQueuePair,
};

use super::dropped_quickly;
use crate::raw::{Buffer, poll, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_datagram_goes_to_an_address_that_was_asked_for_and_is_answered",
            &[Need::Device],
            asked_and_answered,
        ),
        test(
            "a_refused_question_for_a_queue_pair_says_why",
            &[Need::Device],
            refused,
        ),
        test(
            "a_multicast_datagram_reaches_every_member_until_it_leaves",
            &[Need::Device],
            multicast,
        ),
        test(
            "a_member_that_only_sends_is_heard_and_hears_nothing",
            &[Need::Device],
            send_only,
        ),
        test(
            "groups_addresses_and_queue_pairs_go_in_any_order",
            &[Need::Device],
            any_order,
        ),
    ]
}

/// A UD queue pair with its own queues and a page of memory: the first half is sent from, the second
/// received into.
pub(super) struct End {
    // Dropped in this order: no work is left for the memory when it goes.
    pub(super) qp: Arc<QueuePair>,
    send_cq: CompletionQueue,
    pub(super) recv_cq: CompletionQueue,
    buffer: Buffer,
    pub(super) pd: ProtectionDomain,
}

/// What stands before a received datagram.
pub(super) const GRH: usize = 40;
const HALF: usize = 2048;

impl End {
    pub(super) fn new(context: &Context) -> Result<Self, Failed> {
        let pd = ProtectionDomain::new(context)?;
        let send_cq = CompletionQueue::builder(context, 8).build()?;
        let recv_cq = CompletionQueue::builder(context, 8).build()?;
        let qp = QueuePair::builder(&pd, QpType::UD, &send_cq, &recv_cq)
            .max_send_wr(4)
            .max_recv_wr(4)
            .build()?;
        Ok(Self {
            qp: Arc::new(qp),
            send_cq,
            recv_cq,
            buffer: Buffer::new(&pd, 2 * HALF)?,
            pd,
        })
    }

    pub(super) fn recv(&self) -> Outcome {
        let sges = [self.buffer.sge(HALF, HALF)];
        // SAFETY: the buffer is registered memory to which no reference is formed.
        Ok(unsafe { self.qp.post_recv(&mut RecvRequest::new(1, &sges)) }?)
    }

    fn send(&self, to: &RemoteQueuePair, data: &[u8]) -> Outcome {
        let handle = AddressHandle::new(&self.pd, &to.address)?;
        self.send_to(&handle, to.qp_number, to.qkey, data)
    }

    fn send_to(&self, to: &AddressHandle, number: u32, qkey: u32, data: &[u8]) -> Outcome {
        self.buffer.store(0, data);
        let sges = [self.buffer.sge(0, data.len())];
        let mut request =
            SendRequest::datagram(2, &sges, to, number, qkey).with_flags(SendFlags::SIGNALED);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        unsafe { self.qp.post_send(&mut request) }?;
        poll(&self.send_cq)?.result()?;
        Ok(())
    }

    /// The same with the number of this queue pair as immediate data.
    pub(super) fn send_with_number(
        &self,
        to: &AddressHandle,
        number: u32,
        qkey: u32,
        data: &[u8],
    ) -> Outcome {
        self.buffer.store(0, data);
        let sges = [self.buffer.sge(0, data.len())];
        let own = self.qp.number();
        let request = SendRequest::datagram_with_imm(2, &sges, to, number, qkey, own);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        unsafe {
            self.qp
                .post_send(&mut request.with_flags(SendFlags::SIGNALED))
        }?;
        poll(&self.send_cq)?.result()?;
        Ok(())
    }

    /// What lies behind the header of the datagram that was received last.
    pub(super) fn received(&self, len: usize) -> Vec<u8> {
        self.buffer.load(HALF + GRH, len)
    }

    /// Waits for `data`, and gives the number of its sender's queue pair.
    fn expect(&self, data: &[u8]) -> Result<u32, Failed> {
        Ok(self.expect_from(data)?.1)
    }

    /// The same, and what stood before the data with the completion of the receive.
    pub(super) fn expect_from(&self, data: &[u8]) -> Result<(WorkCompletion, u32), Failed> {
        let completion = poll(&self.recv_cq)?;
        let got = completion.result()?;
        ensure_eq!(usize::try_from(got.byte_len())?, GRH + data.len(), "bytes");
        ensure_eq!(self.buffer.load(HALF + GRH, data.len()), data, "the data");
        let number = got.src_qp();
        Ok((completion, number))
    }

    /// Waits for `data` sent to this queue pair alone, and gives the way back. What was sent to a
    /// group does not name an address of ours, from which the answer could go.
    fn expect_for_us(&self, data: &[u8]) -> Result<(AddressHandle, u32), Failed> {
        let (completion, number) = self.expect_from(data)?;
        Ok((self.way_back(&completion)?, number))
    }

    /// The way back to the sender of the datagram that was received last.
    pub(super) fn way_back(&self, completion: &WorkCompletion) -> Result<AddressHandle, Failed> {
        let header = self.buffer.load(HALF, GRH);
        let grh = header.first_chunk().ok_or("no header")?;
        let got = completion.result()?;
        let sender = AddressHandle::of_sender(&self.pd, device().port, &got, grh)?;
        Ok(sender)
    }
}

pub(super) fn soon() -> Deadline {
    Deadline::after(WAIT)
}

fn listener() -> Result<DatagramListener, Failed> {
    let options = ListenOptions::default();
    Ok(DatagramListener::bind(device().addr(0), &options)?)
}

fn asked_and_answered() -> Outcome {
    let listener = listener()?;
    let mut options = ConnectOptions::default();
    let dispatcher = Dispatcher::new()?;
    for dispatched in [false, true] {
        let tos = dispatched.then_some(0x68);
        options.id.type_of_service = tos;
        // A port that was just free.
        options.source = Some(self::listener()?.local_addr());
        let to = listener.local_addr();
        let (client, asking_data) = (b"who are you", b"datagrams, please");
        // The two ways of asking differ in the type of the source.
        let (end, ask): (End, Box<dyn FnOnce() -> Result<_, Error>>) = if dispatched {
            let resolved = dispatcher.resolve_datagram(to, &options, soon())?.wait()?;
            let end = End::new(resolved.context())?;
            resolved.init_qp(&end.qp)?;
            let asking = resolved.ask(asking_data)?;
            (end, Box::new(move || asking.wait(soon())))
        } else {
            let resolved = DatagramResolving::start(to, &options, soon())?.wait()?;
            let end = End::new(resolved.context())?;
            resolved.init_qp(&end.qp)?;
            let asking = resolved.ask(asking_data)?;
            (end, Box::new(move || asking.wait(soon())))
        };
        let request = listener.next_request(soon())?;
        ensure!(
            request.private_data().starts_with(asking_data),
            "the request's data"
        );
        ensure_eq!(
            Some(request.peer_addr()),
            options.source,
            "from where it was asked"
        );
        ensure_eq!(
            request.private_data().len(),
            180,
            "length of the request's data"
        );
        let server = End::new(request.context())?;
        request.init_qp(&server.qp)?;
        server.recv()?;
        request.accept(&server.qp, b"here")?;
        let peer = ask()?;
        ensure_eq!(peer.remote.qp_number, server.qp.number(), "the number told");
        let key = server.qp.query()?.0.as_raw().0.qkey;
        ensure_eq!(peer.remote.qkey, key, "the key told is the queue pair's");
        let route = peer.remote.address.route.ok_or("no route")?;
        ensure_eq!(route.traffic_class, tos.unwrap_or(0), "the type of service");
        ensure!(
            peer.private_data.starts_with(b"here\0"),
            "the answer's data"
        );
        ensure_eq!(peer.private_data.len(), 136, "length of the answer's data");

        end.recv()?;
        end.send(&peer.remote, client)?;
        let (sender, number) = server.expect_for_us(client)?;
        ensure_eq!(number, end.qp.number(), "the sender's number");
        server.send_to(&sender, number, peer.remote.qkey, b"the server")?;
        end.expect(b"the server")?;
    }
    Ok(())
}

fn refused() -> Outcome {
    let listener = listener()?;
    let ask = |to: SocketAddr| -> Result<_, Failed> {
        let options = ConnectOptions::default();
        let resolved = DatagramResolving::start(to, &options, soon())?.wait()?;
        Ok(resolved.ask(b"")?)
    };
    let asking = ask(listener.local_addr())?;
    listener.next_request(soon())?.reject(b"busy")?;
    match asking.wait(soon()) {
        Err(Error::Rejected {
            reason,
            private_data,
            ..
        }) => {
            ensure_eq!(reason, RejectReason::CONSUMER, "the reason");
            ensure!(private_data.starts_with(b"busy"), "data {private_data:?}");
        }
        other => return Err(format!("{other:?}").into()),
    }
    let asking = ask(listener.local_addr())?;
    drop(listener.next_request(soon())?);
    let error = asking.wait(soon()).err();
    ensure!(matches!(error, Some(Error::Rejected { .. })), "{error:?}");
    let nowhere = listener.local_addr();
    drop(listener);
    let error = ask(nowhere)?.wait(soon()).err();
    ensure!(matches!(error, Some(Error::NoListener { .. })), "{error:?}");
    Ok(())
}

fn group() -> IpAddr {
    match device().ip {
        IpAddr::V4(_) => IpAddr::from([239, 77, 1, 1]),
        IpAddr::V6(_) => IpAddr::from([0xff0e, 0, 0, 0, 0, 0, 77, 1]),
    }
}

fn member() -> Result<(Multicast, End), Failed> {
    let multicast = Multicast::bind(device().addr(0), &IdOptions::default())?;
    let end = End::new(multicast.context())?;
    multicast.init_qp(&end.qp)?;
    Ok((multicast, end))
}

/// Nothing arrives for a while.
pub(super) fn ensure_silence(end: &End) -> Outcome {
    let a_while = Deadline::after(Duration::from_millis(300));
    while !a_while.has_passed() {
        ensure!(try_poll(&end.recv_cq)?.is_none(), "a datagram came");
        std::thread::yield_now();
    }
    Ok(())
}

fn multicast() -> Outcome {
    let members = [member()?, member()?, member()?];
    let mut groups = Vec::new();
    for (multicast, end) in &members {
        groups.push(multicast.join(group(), &end.qp, JoinKind::FullMember)?);
    }
    let mut to = None;
    for joined in &groups {
        to = Some(joined.wait_joined(soon())?);
    }
    let to = to.ok_or("no group")?;
    ensure_eq!(to.qp_number, 0xff_ffff, "the number of a group");
    for (_, end) in &members {
        end.recv()?;
    }
    members[0].1.send(&to, b"to all")?;
    // The sender's own queue pair is no exception among those that are attached elsewhere.
    for (_, end) in &members[1..] {
        let number = end.expect(b"to all")?;
        ensure_eq!(number, members[0].1.qp.number(), "the sender's number");
    }
    groups.remove(2).leave()?;
    for (_, end) in &members[1..] {
        end.recv()?;
    }
    members[0].1.send(&to, b"again")?;
    members[1].1.expect(b"again")?;
    ensure_silence(&members[2].1)
}

fn send_only() -> Outcome {
    let ((multicast, end), (sender, sending_end)) = (member()?, member()?);
    let joined = multicast.join(group(), &end.qp, JoinKind::FullMember)?;
    joined.wait_joined(soon())?;
    let only = sender.join(group(), &sending_end.qp, JoinKind::SendOnly)?;
    match sender.next_event(soon())? {
        MulticastEvent::Joined { group: of, remote } => {
            ensure_eq!(of, group(), "the group");
            ensure_eq!(only.state(), GroupState::Joined(remote), "its state");
        }
        other => return Err(format!("{other:?}").into()),
    }
    let to = only.wait_joined(soon())?;
    end.recv()?;
    sending_end.recv()?;
    sending_end.send(&to, b"heard")?;
    end.expect(b"heard")?;
    end.send(&to, b"not heard")?;
    ensure_silence(&sending_end)
}

fn any_order() -> Outcome {
    let baseline = Baseline::take()?;
    for order in 0..6 {
        for waited in [true, false] {
            let (multicast, end) = member()?;
            let joined = multicast.join(group(), &end.qp, JoinKind::FullMember)?;
            if waited {
                joined.wait_joined(soon())?;
            }
            let mut handles: Vec<(&str, Box<dyn std::any::Any>)> = vec![
                ("the address", Box::new(multicast)),
                ("the queue pair", Box::new(end)),
                ("the group", Box::new(joined)),
            ];
            for at in [order % 3, order / 3, 0] {
                let (name, handle) = handles.remove(at);
                dropped_quickly(name, handle)?;
            }
        }
    }
    Ok(baseline.check()?)
}
