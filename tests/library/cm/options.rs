//! Options of ids and parameters of connections: where each is seen, on the queue pairs and in what
//! the peer is told.

use std::mem::MaybeUninit;
use std::net::{Ipv6Addr, SocketAddr};
use std::ptr;

use harness::{Failed, Need, Outcome, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{Deadline, ErrorKind, QpState, QueuePair, sys};
use rpma::cm::{
    ConnParams, ConnectOptions, Connection, Error, ListenOptions, Listener, RejectReason, Resolving,
};

use crate::raw::{Queues, RawPair, begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_type_of_service_is_that_of_both_queue_pairs",
            &[Need::Device],
            type_of_service,
        ),
        test(
            "what_a_client_asks_for_is_told_its_peer",
            &[Need::Device],
            told,
        ),
        test(
            "retries_are_those_that_each_side_asks_for",
            &[Need::Device],
            retries,
        ),
        test(
            "an_address_that_may_be_reused_is_taken_twice",
            &[Need::Device],
            reuse,
        ),
        test(
            "an_ipv6_wildcard_takes_ipv4_unless_it_is_told_not_to",
            &[Need::Device],
            v6_only,
        ),
    ]
}

fn soon() -> Deadline {
    Deadline::after(WAIT)
}

/// Both ends, the queues of which are kept with them.
type Ends = [(Connection, Queues); 2];

fn connected(
    listen: &ListenOptions,
    options: &ConnectOptions,
    client_params: &ConnParams,
    server_params: &ConnParams,
) -> Result<Ends, Failed> {
    let listener = Listener::bind(device().addr(0), listen)?;
    let resolved = Resolving::start(listener.local_addr(), options, soon())?.wait()?;
    let (client_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, client_params, &[])?;
    let request = listener.next_request(soon())?;
    // No device here has capabilities beyond the specification.
    request.remote_ece()?;
    let (server_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, server_params, &[])?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    client.remote_ece()?;
    Ok([(client, client_queues), (server, server_queues)])
}

fn queried(qp: &QueuePair) -> Result<sys::ibv_qp_attr, Failed> {
    Ok(*qp.query()?.0.as_raw().0)
}

fn type_of_service() -> Outcome {
    let mut options = ConnectOptions::default();
    // What a listener says is not what its connections do.
    let mut listen = ListenOptions::default();
    listen.id.type_of_service = Some(0x40);
    for tos in [None, Some(0x20), Some(0x68)] {
        options.id.type_of_service = tos;
        let params = ConnParams::default();
        for (end, _queues) in connected(&listen, &options, &params, &params)? {
            let class = queried(end.qp())?.ah_attr.grh.traffic_class;
            ensure_eq!(class, tos.unwrap_or(0), "traffic class of {tos:?}");
        }
    }
    Ok(())
}

fn retries() -> Outcome {
    let values = |qp: &QueuePair| -> Result<_, Failed> {
        let attributes = queried(qp)?;
        Ok((
            attributes.retry_cnt,
            attributes.rnr_retry,
            attributes.timeout,
            attributes.min_rnr_timer,
        ))
    };
    let pair = RawPair::new()?;
    for end in [&pair.client, &pair.server] {
        ensure_eq!(values(end.qp())?, (6, 7, 16, 12), "the defaults");
    }
    let params = |values: (u8, u8, u8, u8)| {
        let mut params = ConnParams::default();
        (params.retry_count, params.rnr_retry) = (values.0, values.1);
        (params.ack_timeout, params.min_rnr_timer) = (values.2, values.3);
        params
    };
    // Each side decides for its own queue pair, whatever the other tells.
    let (asked, answered) = ((3, 2, 17, 13), (5, 4, 18, 14));
    let [client, server] = connected(
        &ListenOptions::default(),
        &ConnectOptions::default(),
        &params(asked),
        &params(answered),
    )?;
    ensure_eq!(values(client.0.qp())?, asked, "the side that asks");
    ensure_eq!(values(server.0.qp())?, answered, "the side that answers");
    Ok(())
}

/// A listener of librdmacm's with nothing of ours above it.
struct Bare {
    channel: *mut sys::rdma_event_channel,
    id: *mut sys::rdma_cm_id,
    addr: SocketAddr,
}

/// What a request says.
#[derive(Debug)]
struct Heard {
    retry_count: u8,
    rnr_retry_count: u8,
    responder_resources: u8,
    initiator_depth: u8,
    /// What the kernel would give the queue pair.
    attributes: sys::ibv_qp_attr,
}

impl Bare {
    fn new() -> Result<Self, Failed> {
        // A port that was just free.
        let addr = listener()?.local_addr();
        let SocketAddr::V4(v4) = addr else {
            return Err("the device in use has an IPv6 address".into());
        };
        // SAFETY: the call has no precondition.
        let channel = unsafe { sys::rdma_create_event_channel() };
        ensure!(!channel.is_null(), "no channel");
        let mut id = ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is live and the place valid.
        let ret = unsafe { sys::rdma_create_id(channel, &mut id, ptr::null_mut(), space) };
        ensure_eq!(ret, 0, "rdma_create_id");
        let mut c = libc::sockaddr_in {
            sin_family: libc::AF_INET.try_into()?,
            sin_port: v4.port().to_be(),
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(v4.ip().octets()),
            },
            sin_zero: [0; 8],
        };
        // SAFETY: the id is live and the address whole.
        let ret = unsafe { sys::rdma_bind_addr(id, (&raw mut c).cast()) };
        ensure_eq!(ret, 0, "rdma_bind_addr");
        // SAFETY: the id is bound.
        let ret = unsafe { sys::rdma_listen(id, 4) };
        ensure_eq!(ret, 0, "rdma_listen");
        Ok(Self { channel, id, addr })
    }

    /// Takes a request, which must be there or come, and refuses it.
    fn hear(&self) -> Result<Heard, Failed> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live and the place valid.
        let ret = unsafe { sys::rdma_get_cm_event(self.channel, &mut event) };
        ensure_eq!(ret, 0, "rdma_get_cm_event");
        // SAFETY: the event was just got.
        let kind = unsafe { (*event).event };
        ensure_eq!(
            kind,
            sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST,
            "the event"
        );
        // SAFETY: as above.
        let param = unsafe { (*event).param };
        // SAFETY: a request of a connection carries this arm.
        let said = unsafe { param.conn };
        // SAFETY: as above; the new id is nobody else's.
        let id = unsafe { (*event).id };
        let mut attributes = MaybeUninit::<sys::ibv_qp_attr>::zeroed();
        let mut mask = 0;
        // SAFETY: the state is a field of the zeroed struct.
        unsafe { (*attributes.as_mut_ptr()).qp_state = sys::ibv_qp_state(QpState::RTS.raw()) };
        // SAFETY: the id is live and has a device; both places are valid.
        let ret = unsafe { sys::rdma_init_qp_attr(id, attributes.as_mut_ptr(), &mut mask) };
        ensure_eq!(ret, 0, "rdma_init_qp_attr");
        // SAFETY: the id came with a request; there is no data.
        unsafe { sys::rdma_reject(id, ptr::null(), 0) };
        // SAFETY: the event was got and not acknowledged.
        unsafe { sys::rdma_ack_cm_event(event) };
        // SAFETY: no event of the id is in hand.
        unsafe { sys::rdma_destroy_id(id) };
        Ok(Heard {
            retry_count: said.retry_count,
            rnr_retry_count: said.rnr_retry_count,
            responder_resources: said.responder_resources,
            initiator_depth: said.initiator_depth,
            // SAFETY: integers and arrays of them, which were zeroed and then filled.
            attributes: unsafe { attributes.assume_init() },
        })
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: no event of the id is in hand.
        unsafe { sys::rdma_destroy_id(self.id) };
        // SAFETY: its only id is gone.
        unsafe { sys::rdma_destroy_event_channel(self.channel) };
    }
}

fn told() -> Outcome {
    let bare = Bare::new()?;
    let mut params = ConnParams::default();
    (params.retry_count, params.rnr_retry) = (3, 2);
    (params.responder_resources, params.initiator_depth) = (5, 4);
    // The peer waits as long as it is told, and a little longer for what comes on top.
    let mut timeouts = Vec::new();
    for ack_timeout in [None, Some(15), Some(21)] {
        let resolving = Resolving::start(bare.addr, &ConnectOptions::default(), soon())?;
        if let Some(code) = ack_timeout {
            match resolving.set_ack_timeout(code) {
                Err(Error::Call(error)) if error.kind() == ErrorKind::Unsupported => return Ok(()),
                other => other?,
            }
        }
        let resolved = resolving.wait()?;
        let (_queues, qp) = Queues::new(resolved.context())?;
        resolved.init_qp(&qp)?;
        let client = resolved.connect(qp, &params, &[])?;
        let heard = bare.hear()?;
        let error = client.wait_established(soon()).err();
        ensure!(matches!(error, Some(Error::Rejected { .. })), "{error:?}");
        ensure_eq!(
            (heard.retry_count, heard.rnr_retry_count),
            (3, 2),
            "retries"
        );
        // The peer's depths are ours the other way round.
        ensure_eq!(
            (heard.responder_resources, heard.initiator_depth),
            (4, 5),
            "depths"
        );
        timeouts.push(heard.attributes.timeout);
    }
    println!("timeouts of the peer: {timeouts:?}");
    ensure!(
        [15, 16].contains(&timeouts[1]) && [21, 22].contains(&timeouts[2]),
        "{timeouts:?} after the default, 15 and 21"
    );
    Ok(())
}

fn reuse() -> Outcome {
    let listener = listener()?;
    let mut options = ConnectOptions::default();
    // A port that was just free.
    options.source =
        Some(Listener::bind(device().addr(0), &ListenOptions::default())?.local_addr());
    let start = |options: &ConnectOptions| Resolving::start(listener.local_addr(), options, soon());
    let first = start(&options)?;
    let error = start(&options).err().ok_or("taken twice")?;
    ensure!(
        matches!(&error, Error::Call(call) if call.errno() == Some(libc::EADDRINUSE)),
        "{error}"
    );
    drop(first);
    options.id.reuse_address = true;
    let both = [start(&options)?, start(&options)?];
    for resolving in both {
        ensure_eq!(
            resolving.wait()?.local_addr(),
            options.source,
            "the local address"
        );
    }
    Ok(())
}

fn v6_only() -> Outcome {
    for v6_only in [true, false] {
        let mut options = ListenOptions::default();
        options.id.v6_only = Some(v6_only);
        let all = Listener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), &options)?;
        let port = all.local_addr().port();
        let (client, _queues) = begin(device().addr(port), &[])?;
        if v6_only && device().ip.is_ipv4() {
            let error = client.wait_established(soon()).err().ok_or("connected")?;
            // The kernel finds the port and then no listener for the address; what it says to that is
            // what it says for an application.
            ensure!(
                matches!(
                    &error,
                    Error::Rejected { reason, private_data, .. }
                        if *reason == RejectReason::CONSUMER && private_data.iter().all(|b| *b == 0)
                ),
                "{error:?}"
            );
            ensure!(all.try_next_request()?.is_none(), "a request all the same");
        } else {
            all.next_request(soon())?.reject(&[])?;
        }
    }
    Ok(())
}
