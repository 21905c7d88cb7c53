//! Events as librdmacm hands them out, read by a program that calls it itself.

use std::os::fd::BorrowedFd;
use std::ptr;

use harness::{Need, Outcome, Test, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{Deadline, sys, wait_readable};
use rpma::cm::{Event, EventKind, Payload};

use crate::raw::{c_address, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "events_of_the_device_that_carry_nothing_are_read_as_that_and_a_request_with_its_data",
        &[Need::Device],
        what_events_carry,
    )]
}

/// A channel and an id on it.
struct Raw {
    channel: *mut sys::rdma_event_channel,
    id: *mut sys::rdma_cm_id,
}

impl Raw {
    fn new() -> Result<Self, harness::Failed> {
        // SAFETY: needs nothing.
        let channel = unsafe { sys::rdma_create_event_channel() };
        ensure!(!channel.is_null(), "no channel");
        let mut this = Self {
            channel,
            id: ptr::null_mut(),
        };
        // SAFETY: the channel is live, and the place for the id too.
        let rc = unsafe {
            sys::rdma_create_id(
                channel,
                &raw mut this.id,
                ptr::null_mut(),
                sys::rdma_port_space::RDMA_PS_TCP,
            )
        };
        ensure_eq!(rc, 0, "rdma_create_id");
        Ok(this)
    }

    /// The next event, copied and acknowledged.
    fn event(&self) -> Result<Event, harness::Failed> {
        // SAFETY: the channel is live.
        let fd = unsafe { (*self.channel).fd };
        // SAFETY: open as long as the channel.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let [came] = wait_readable([fd], Deadline::after(harness::WAIT))?;
        ensure!(came, "no event came");
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is live, and the place for the event too.
        let rc = unsafe { sys::rdma_get_cm_event(self.channel, &raw mut raw) };
        ensure_eq!(rc, 0, "rdma_get_cm_event");
        // SAFETY: the event was just got.
        let event = unsafe { Event::from_raw(raw) };
        // SAFETY: as above, and it is acknowledged only here.
        unsafe { sys::rdma_ack_cm_event(raw) };
        Ok(event)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if !self.id.is_null() {
            // SAFETY: live, and all its events are acknowledged.
            unsafe { sys::rdma_destroy_id(self.id) };
        }
        // SAFETY: live, and its id is gone.
        unsafe { sys::rdma_destroy_event_channel(self.channel) };
    }
}

fn what_events_carry() -> Outcome {
    let listener = listener()?;
    let raw = Raw::new()?;
    let mut to = c_address(device().addr(listener.local_addr().port()));
    // SAFETY: the id and the address are live.
    let rc = unsafe { sys::rdma_resolve_addr(raw.id, ptr::null_mut(), (&raw mut to).cast(), 2000) };
    ensure_eq!(rc, 0, "rdma_resolve_addr");
    let event = raw.event()?;
    ensure_eq!(event.kind(), EventKind::ADDR_RESOLVED, "first");
    ensure_eq!(event.payload(), &Payload::None, "{event:?}");
    ensure!(
        event.connection().is_none() && event.datagram().is_none(),
        "{event:?}"
    );
    // SAFETY: the id is live and has a device.
    let rc = unsafe { sys::rdma_resolve_route(raw.id, 2000) };
    ensure_eq!(rc, 0, "rdma_resolve_route");
    let event = raw.event()?;
    ensure_eq!(event.kind(), EventKind::ROUTE_RESOLVED, "second");
    ensure_eq!(event.payload(), &Payload::None, "{event:?}");
    // A refusal comes with its reason and the words of who refused.
    let words = *b"ask";
    // SAFETY: plain integers and pointers, for which zero is a value.
    let mut parameters: sys::rdma_conn_param = unsafe { std::mem::zeroed() };
    parameters.private_data = words.as_ptr().cast();
    parameters.private_data_len = 3;
    parameters.qp_num = 77;
    // SAFETY: the id is resolved, and what the parameters point to lives on.
    let rc = unsafe { sys::rdma_connect(raw.id, &raw mut parameters) };
    ensure_eq!(rc, 0, "rdma_connect");
    let request = listener.next_request(Deadline::after(harness::WAIT))?;
    ensure!(
        request.private_data().starts_with(&words),
        "{:?}",
        request.private_data()
    );
    request.reject(b"no")?;
    let event = raw.event()?;
    ensure_eq!(event.kind(), EventKind::REJECTED, "third");
    ensure_eq!(event.status(), 28, "the reason");
    let data = event.connection().ok_or("a rejection without its data")?;
    let words = data.private_data.as_deref().unwrap_or_default();
    ensure!(words.starts_with(b"no\0"), "{data:?}");
    ensure!(event.datagram().is_none(), "{event:?}");
    Ok(())
}
