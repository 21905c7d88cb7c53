//! As a C program does it: the calls of librdmacm, a queue pair that belongs to the id, and waiting for each event.

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use harness::{Failed, device};
use rpma::cm::verbs::sys;

use super::super::measure::{Candidate, Clock};
use super::reader::{End, Reader, Slot};
use super::{SET_UP, Shared, TEARDOWN};

/// Where events arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channels {
    /// One channel for all ids.
    One,
    /// One for each id, so that each is waited for alone; the listener's new ids move to one of their own.
    OfEachId,
    /// One channel for all ids, read by a thread that hands events on, as rping's `cm_thread` does.
    Thread,
}

/// The listener, and what each round is told.
pub(crate) struct Raw<'a> {
    shared: &'a Shared,
    channels: Channels,
    channel: *mut sys::rdma_event_channel,
    listener: *mut sys::rdma_cm_id,
    address: libc::sockaddr_in,
    reader: Option<Reader>,
}

impl<'a> Raw<'a> {
    pub(crate) fn new(shared: &'a Shared, channels: Channels) -> Result<Self, Failed> {
        let std::net::IpAddr::V4(ip) = device().ip else {
            return Err("the device has no IPv4 address".into());
        };
        let mut address = libc::sockaddr_in {
            sin_family: libc::sa_family_t::try_from(libc::AF_INET)?,
            sin_port: 0,
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(ip.octets()),
            },
            sin_zero: [0; 8],
        };
        let channel = new_channel()?;
        let reader = match channels {
            Channels::Thread => Some(Reader::start(channel)?),
            Channels::One | Channels::OfEachId => None,
        };
        let slot = |end| {
            reader
                .as_ref()
                .map_or(ptr::null(), |reader| reader.slot(end))
        };
        let listener = new_id(channel, slot(End::Server))?;
        // SAFETY: the id is live, the address is whole.
        done("rdma_bind_addr", unsafe {
            sys::rdma_bind_addr(listener, (&raw mut address).cast())
        })?;
        // SAFETY: the id is live and bound.
        done("rdma_listen", unsafe { sys::rdma_listen(listener, 0) })?;
        // SAFETY: the id is live and bound.
        address.sin_port = unsafe { sys::rdma_get_src_port(listener) };
        Ok(Self {
            shared,
            channels,
            channel,
            listener,
            address,
            reader,
        })
    }

    /// Waits for an event of one end.
    fn expect(
        &self,
        end: End,
        channel: *mut sys::rdma_event_channel,
        kind: sys::rdma_cm_event_type,
    ) -> Result<*mut sys::rdma_cm_id, Failed> {
        let (got, id) = match &self.reader {
            Some(reader) => reader.wait(end)?,
            None => {
                let (got, id, _) = next_event(channel)?;
                (got, id)
            }
        };
        if got == kind {
            return Ok(id);
        }
        Err(format!("event {} instead of {}", got.0, kind.0).into())
    }

    /// The channel of a new id.
    fn channel(&self) -> Result<*mut sys::rdma_event_channel, Failed> {
        match self.channels {
            Channels::One | Channels::Thread => Ok(self.channel),
            Channels::OfEachId => new_channel(),
        }
    }

    fn create_qp(&self, id: *mut sys::rdma_cm_id) -> Result<(), Failed> {
        let mut init = sys::ibv_qp_init_attr {
            send_cq: self.shared.cq.as_raw(),
            recv_cq: self.shared.cq.as_raw(),
            qp_type: sys::ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        init.cap.max_send_wr = 1;
        init.cap.max_recv_wr = 1;
        init.cap.max_send_sge = 1;
        init.cap.max_recv_sge = 1;
        // SAFETY: the id is live and has a device, to which domain and queue belong.
        done("rdma_create_qp", unsafe {
            sys::rdma_create_qp(id, self.shared.pd.as_raw(), &mut init)
        })
    }

    /// Ends an id, and its channel if that is its own.
    fn end(&self, id: *mut sys::rdma_cm_id) -> Result<(), Failed> {
        // SAFETY: the id is live.
        let channel = unsafe { (*id).channel };
        // SAFETY: the id is live and has a queue pair.
        unsafe { sys::rdma_destroy_qp(id) };
        // SAFETY: every event of the id is acknowledged.
        done("rdma_destroy_id", unsafe { sys::rdma_destroy_id(id) })?;
        if channel != self.channel {
            // SAFETY: its only id is gone.
            unsafe { sys::rdma_destroy_event_channel(channel) };
        }
        Ok(())
    }
}

impl Drop for Raw<'_> {
    fn drop(&mut self) {
        // SAFETY: every event of the id is acknowledged.
        unsafe { sys::rdma_destroy_id(self.listener) };
        if let Some(reader) = self.reader.take() {
            reader.end(self.channel, self.address);
        }
        // SAFETY: its ids are gone, and nobody reads it.
        unsafe { sys::rdma_destroy_event_channel(self.channel) };
    }
}

impl Candidate for Raw<'_> {
    fn name(&self) -> &'static str {
        match self.channels {
            Channels::One => "C, one",
            Channels::OfEachId => "C, each",
            Channels::Thread => "C, thread",
        }
    }

    fn once(&mut self, clock: &mut Clock) -> Result<(), Failed> {
        let client_channel = self.channel()?;
        let slot = self.reader.as_ref().map(|reader| reader.slot(End::Client));
        let client = new_id(client_channel, slot.unwrap_or(ptr::null()))?;
        let to = (&raw mut self.address).cast();
        // SAFETY: the id is live, the address is whole.
        done("rdma_resolve_addr", unsafe {
            sys::rdma_resolve_addr(client, ptr::null_mut(), to, 2000)
        })?;
        clock.step(SET_UP, "id, address asked for");
        let kinds = sys::rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED;
        self.expect(End::Client, client_channel, kinds)?;
        // SAFETY: the id is live and has a device.
        done("rdma_resolve_route", unsafe {
            sys::rdma_resolve_route(client, 2000)
        })?;
        let kinds = sys::rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED;
        self.expect(End::Client, client_channel, kinds)?;
        clock.step(SET_UP, "address and route");
        self.create_qp(client)?;
        clock.step(SET_UP, "the client's queue pair");
        let mut params = sys::rdma_conn_param {
            // RDMA_MAX_RESP_RES and RDMA_MAX_INIT_DEPTH: what the device has, as `ConnParams` by default.
            responder_resources: 255,
            initiator_depth: 255,
            retry_count: 6,
            rnr_retry_count: 7,
            ..Default::default()
        };
        // SAFETY: the id is live and has a queue pair.
        done("rdma_connect", unsafe {
            sys::rdma_connect(client, &mut params)
        })?;
        clock.step(SET_UP, "connect");
        let kind = sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        let server = self.expect(End::Server, self.channel, kind)?;
        clock.step(SET_UP, "the request");
        self.create_qp(server)?;
        clock.step(SET_UP, "the server's queue pair");
        let server_channel = self.channel()?;
        if server_channel != self.channel {
            // SAFETY: id and channel are live, and its event is acknowledged.
            done("rdma_migrate_id", unsafe {
                sys::rdma_migrate_id(server, server_channel)
            })?;
        }
        // SAFETY: the id came with a request and has a queue pair.
        done("rdma_accept", unsafe {
            sys::rdma_accept(server, &mut params)
        })?;
        clock.step(SET_UP, "accept");
        let kind = sys::rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED;
        self.expect(End::Client, client_channel, kind)?;
        clock.step(SET_UP, "the client is connected");
        self.expect(End::Server, server_channel, kind)?;
        clock.step(SET_UP, "the server is connected");

        // SAFETY: the id is live and connected.
        done("rdma_disconnect", unsafe { sys::rdma_disconnect(client) })?;
        clock.step(TEARDOWN, "disconnect");
        let kind = sys::rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED;
        self.expect(End::Server, server_channel, kind)?;
        // SAFETY: the id is live and was connected.
        done("rdma_disconnect", unsafe { sys::rdma_disconnect(server) })?;
        clock.step(TEARDOWN, "the server hears of it");
        self.expect(End::Client, client_channel, kind)?;
        clock.step(TEARDOWN, "the client hears of it");
        self.end(client)?;
        clock.step(TEARDOWN, "the client goes");
        self.end(server)?;
        clock.step(TEARDOWN, "the server goes");
        Ok(())
    }
}

fn new_channel() -> Result<*mut sys::rdma_event_channel, Failed> {
    // SAFETY: the call has no precondition.
    let channel = unsafe { sys::rdma_create_event_channel() };
    NonNull::new(channel)
        .map(NonNull::as_ptr)
        .ok_or_else(|| failed("rdma_create_event_channel"))
}

pub(super) fn new_id(
    channel: *mut sys::rdma_event_channel,
    context: *const Slot,
) -> Result<*mut sys::rdma_cm_id, Failed> {
    let mut id = ptr::null_mut();
    let space = sys::rdma_port_space::RDMA_PS_TCP;
    // SAFETY: the channel is live and `id` a valid place.
    done("rdma_create_id", unsafe {
        sys::rdma_create_id(channel, &mut id, context.cast_mut().cast(), space)
    })?;
    Ok(id)
}

/// The next event's kind, its id and that id's context. It is acknowledged.
pub(super) fn next_event(
    channel: *mut sys::rdma_event_channel,
) -> Result<(sys::rdma_cm_event_type, *mut sys::rdma_cm_id, *mut c_void), Failed> {
    let mut event = ptr::null_mut();
    // SAFETY: the channel is live and `event` a valid place.
    done("rdma_get_cm_event", unsafe {
        sys::rdma_get_cm_event(channel, &mut event)
    })?;
    // SAFETY: the event was got and is not acknowledged.
    let kind = unsafe { (*event).event };
    // SAFETY: as above.
    let id = unsafe { (*event).id };
    // SAFETY: the id of an event that is not acknowledged is live.
    let context = unsafe { (*id).context };
    // SAFETY: as above, and nothing of it is used afterwards.
    done("rdma_ack_cm_event", unsafe {
        sys::rdma_ack_cm_event(event)
    })?;
    Ok((kind, id, context))
}

pub(super) fn done(verb: &str, ret: i32) -> Result<(), Failed> {
    if ret == 0 { Ok(()) } else { Err(failed(verb)) }
}

fn failed(verb: &str) -> Failed {
    format!("{verb}: {}", std::io::Error::last_os_error()).into()
}
