//! The last message of the handshake may be lost: the client's first data stands for it.

use std::net::SocketAddr;
use std::ptr::{self, NonNull};

use harness::{
    Failed, Need, Outcome, Test, WAIT, completed, device, ensure, ensure_eq, listen, pattern,
    phase, test,
};
use rpma::cm::verbs::{Deadline, QpAttributes, QpState, QueuePair, sys, wait_readable};
use rpma::{ConnectionConfig, Device, LocalRegion, PrivateData, Signal, Usage};

use crate::raw::{Queues, c_address, poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "data_that_comes_before_the_clients_confirmation_establishes_the_connection",
        &[Need::Device],
        data_before_the_confirmation,
    )]
}

fn data_before_the_confirmation() -> Outcome {
    let (peer, endpoint) = listen()?;
    let target = LocalRegion::alloc(&peer, 4096, Usage::RECV | Usage::SEND)?;
    let client = SilentClient::connect(endpoint.local_addr())?;
    let request = endpoint.next_connection_request(&ConnectionConfig::default(), WAIT)?;
    request.recv(target.span(..100)?, 1)?;
    let server = request.connect(PrivateData::none())?;

    phase("the client's side");
    client.event(sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE)?;
    client.to_state(QpState::RTR)?;
    client.to_state(QpState::RTS)?;
    // Without the confirmation, and without data, there is nothing to establish.
    let early = server.wait_established(std::time::Duration::from_millis(300));
    ensure!(early.is_err(), "established without confirmation or data");

    phase("data instead of the confirmation");
    client.queues.buffer.store(0, &pattern::bytes(3, 100));
    client.queues.send(&client.qp, 2, 100)?;
    poll(&client.queues.send_cq)?.result()?;
    server.wait_established(WAIT)?;
    ensure_eq!(completed(server.cq())?.op_context(), 1, "the receive");
    let mut found = [0; 100];
    target.load(0, &mut found)?;
    pattern::check(&found, 3)?;

    phase("data the other way");
    client.queues.recv(&client.qp, 4)?;
    server.send(target.span(..100)?, Signal::Always, 5)?;
    completed(server.cq())?;
    poll(&client.queues.recv_cq)?.result()?;
    Ok(pattern::check(&client.queues.buffer.load(0, 100), 3)?)
}

/// A client that becomes ready to send when it gets the server's answer, and never confirms it.
struct SilentClient {
    // Dropped before id and channel.
    qp: QueuePair,
    queues: Queues,
    id: Id,
}

/// An id with a channel of its own.
struct Id {
    channel: NonNull<sys::rdma_event_channel>,
    id: NonNull<sys::rdma_cm_id>,
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: every event got was acknowledged, and nothing else destroys the id.
        unsafe { sys::rdma_destroy_id(self.id.as_ptr()) };
        // SAFETY: its only id is gone.
        unsafe { sys::rdma_destroy_event_channel(self.channel.as_ptr()) };
    }
}

fn called(verb: &str, ret: i32) -> Outcome {
    ensure!(ret == 0, "{verb}: {}", std::io::Error::last_os_error());
    Ok(())
}

impl Id {
    fn new() -> Result<Self, Failed> {
        // SAFETY: the call has no precondition.
        let channel = unsafe { sys::rdma_create_event_channel() };
        let channel = NonNull::new(channel).ok_or("rdma_create_event_channel failed")?;
        let mut id = ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is live and `id` a valid place.
        let ret = unsafe { sys::rdma_create_id(channel.as_ptr(), &mut id, ptr::null_mut(), space) };
        called("rdma_create_id", ret)?;
        let id = NonNull::new(id).ok_or("rdma_create_id gave no id")?;
        Ok(Self { channel, id })
    }

    /// Waits for the next event, which must be `kind`, and acknowledges it.
    fn event(&self, kind: sys::rdma_cm_event_type) -> Outcome {
        // SAFETY: the channel is live; its descriptor is set at creation.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let [ready] = wait_readable([fd], Deadline::after(WAIT))?;
        ensure!(ready, "no event {} came", kind.0);
        let mut event = ptr::null_mut();
        // SAFETY: the channel is live and `event` a valid place.
        let ret = unsafe { sys::rdma_get_cm_event(self.channel.as_ptr(), &mut event) };
        called("rdma_get_cm_event", ret)?;
        // SAFETY: the event was got and is not acknowledged yet.
        let sys::rdma_cm_event {
            event: got, status, ..
        } = unsafe { event.read() };
        // SAFETY: acknowledged only here.
        unsafe { sys::rdma_ack_cm_event(event) };
        ensure!(
            got.0 == kind.0,
            "event {} (status {status}) instead of {}",
            got.0,
            kind.0
        );
        Ok(())
    }
}

impl SilentClient {
    /// Sends the connection request.
    fn connect(to: SocketAddr) -> Result<Self, Failed> {
        let id = Id::new()?;
        let mut address = c_address(to);
        let address = (&raw mut address).cast();
        // SAFETY: the id is live and the address whole.
        let ret = unsafe { sys::rdma_resolve_addr(id.id.as_ptr(), ptr::null_mut(), address, 2000) };
        called("rdma_resolve_addr", ret)?;
        id.event(sys::rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED)?;
        // SAFETY: the address is resolved.
        let ret = unsafe { sys::rdma_resolve_route(id.id.as_ptr(), 2000) };
        called("rdma_resolve_route", ret)?;
        id.event(sys::rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED)?;

        // librdmacm has one context a device, and this one is pinned.
        let local = Device::local(device().ip)?;
        // SAFETY: the id is live, and no event is pending that would write the field.
        let context = unsafe { (*id.id.as_ptr()).verbs };
        ensure!(
            context == local.context().as_raw(),
            "another context than the device's"
        );
        let (queues, qp) = Queues::new(local.context())?;
        let client = Self { qp, queues, id };
        client.to_state(QpState::INIT)?;
        let mut param = sys::rdma_conn_param {
            private_data: ptr::null(),
            private_data_len: 0,
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: 0,
            qp_num: client.qp.number(),
        };
        // SAFETY: the id has device and route, and no queue pair of its own.
        let ret = unsafe { sys::rdma_connect(client.id.id.as_ptr(), &mut param) };
        called("rdma_connect", ret)?;
        Ok(client)
    }

    fn event(&self, kind: sys::rdma_cm_event_type) -> Outcome {
        self.id.event(kind)
    }

    fn to_state(&self, state: QpState) -> Outcome {
        let mut wanted = QpAttributes::new();
        wanted.set_state(state);
        let mut raw = *wanted.as_raw().0;
        let mut mask = 0;
        // SAFETY: the id has a device; both places are valid.
        let ret = unsafe { sys::rdma_init_qp_attr(self.id.id.as_ptr(), &mut raw, &mut mask) };
        called("rdma_init_qp_attr", ret)?;
        Ok(self.qp.modify(&QpAttributes::from_raw(raw, mask))?)
    }
}
