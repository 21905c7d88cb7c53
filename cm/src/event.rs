//! Events of the connection manager: each is acknowledged exactly once.

use std::ptr::NonNull;

use verbs::{open_enum, sys};

use crate::channel::EventChannel;
use crate::error::Error;
use crate::id::Id;
use crate::listen::IncomingId;

open_enum! {
    /// What happened.
    #[doc(alias = "rdma_cm_event_type")]
    EventKind(u32) {
        /// The address is resolved.
        ADDR_RESOLVED = 0, "address resolved";
        /// The address could not be resolved.
        ADDR_ERROR = 1, "address error";
        /// The route is resolved.
        ROUTE_RESOLVED = 2, "route resolved";
        /// The route could not be resolved.
        ROUTE_ERROR = 3, "route error";
        /// Somebody wants to connect.
        CONNECT_REQUEST = 4, "connect request";
        /// The peer accepted; the queue pair is ours to set up.
        CONNECT_RESPONSE = 5, "connect response";
        /// The handshake failed.
        CONNECT_ERROR = 6, "connect error";
        /// The peer does not answer.
        UNREACHABLE = 7, "unreachable";
        /// The peer refused.
        REJECTED = 8, "rejected";
        /// The connection stands.
        ESTABLISHED = 9, "established";
        /// The peer, or this side, ended the connection.
        DISCONNECTED = 10, "disconnected";
        /// The device goes away.
        DEVICE_REMOVAL = 11, "device removal";
        /// A multicast group was joined.
        MULTICAST_JOIN = 12, "multicast join";
        /// A multicast group was lost, or could not be joined.
        MULTICAST_ERROR = 13, "multicast error";
        /// The address moved to other hardware.
        ADDR_CHANGE = 14, "address change";
        /// The queue pair's number may be used again.
        TIMEWAIT_EXIT = 15, "time-wait exit";
    }
}

open_enum! {
    /// Why a peer refused, as its connection manager says.
    RejectReason(i32) {
        /// Nobody listens on the port.
        NO_LISTENER = 8, "nobody listens on the port";
        /// The peer still holds an older connection of the same queue pair.
        STALE = 10, "stale connection";
        /// The application refused.
        CONSUMER = 28, "rejected by the application";
    }
}

impl RejectReason {
    /// Whether nobody listens on the port. On iWARP, where connections begin as TCP, the reason is a
    /// negative errno.
    pub fn is_no_listener(self) -> bool {
        self == Self::NO_LISTENER || self.raw() == -libc::ECONNREFUSED
    }
}

/// An event that was got and is not acknowledged yet; dropping it does.
///
/// Fields are dropped in this order: the acknowledgement comes before the ids are let go of, since
/// destroying an id waits for it.
#[derive(Debug)]
pub(crate) struct Event {
    raw: Unacknowledged,
    incoming: Option<IncomingId>,
    id: Id,
}

#[derive(Debug)]
struct Unacknowledged(NonNull<sys::rdma_cm_event>);

// SAFETY: acknowledging is allowed from any thread, and the event's memory belongs to this guard.
unsafe impl Send for Unacknowledged {}

impl Drop for Unacknowledged {
    fn drop(&mut self) {
        // SAFETY: the event was got and is acknowledged only here.
        let _ = unsafe { sys::rdma_ack_cm_event(self.0.as_ptr()) };
    }
}

impl Event {
    /// Finds the id of an event; `None` when that id is just being destroyed, and the event done
    /// with.
    ///
    /// # Safety
    /// - `raw` was just got from `channel` and is not acknowledged.
    /// - No other thread gets an event from `channel` meanwhile.
    pub(crate) unsafe fn attribute(
        raw: NonNull<sys::rdma_cm_event>,
        channel: &EventChannel,
    ) -> Result<Option<Self>, Error> {
        let raw = Unacknowledged(raw);
        // SAFETY: the event is ours until it is acknowledged.
        let own = unsafe { (*raw.0.as_ptr()).id };
        // SAFETY: as above.
        let listener = unsafe { (*raw.0.as_ptr()).listen_id };
        let (Some(own), listener) = (NonNull::new(own), NonNull::new(listener)) else {
            return Ok(None);
        };
        let kind = raw.kind();
        // A request is accounted to the listener; its new id is nobody's yet and would leak.
        let (accounted, incoming) = match listener {
            Some(listener) if kind == EventKind::CONNECT_REQUEST => {
                // SAFETY: the id came with this very event, on this channel; the caller rules out
                // that another event is being got.
                let id = unsafe { Id::adopt(own, channel) };
                (listener, Some(IncomingId::new(id)))
            }
            _ => (own, None),
        };
        // SAFETY: every id on our channels was adopted, and the event is not acknowledged.
        let Some(id) = (unsafe { Id::find(accounted) }) else {
            drop(raw);
            return Ok(None);
        };
        Ok(Some(Self { raw, incoming, id }))
    }

    /// The id that the event is about; the listener, for a request.
    pub(crate) fn id(&self) -> &Id {
        &self.id
    }

    pub(crate) fn kind(&self) -> EventKind {
        self.raw.kind()
    }

    /// 0, a negative errno, or a positive code of the transport.
    pub(crate) fn status(&self) -> i32 {
        // SAFETY: the event is ours until it is acknowledged.
        unsafe { (*self.raw.0.as_ptr()).status }
    }

    /// The status as an errno, where it is one.
    pub(crate) fn errno(&self) -> i32 {
        self.status().saturating_abs()
    }

    /// The new id of a request; dropped untaken, the request is rejected.
    pub(crate) fn take_incoming(&mut self) -> Option<IncomingId> {
        self.incoming.take()
    }

    /// The connection parameters of the peer. Only for events of connected (not datagram) ids, which
    /// all of ours are.
    pub(crate) fn conn_param(&self) -> &sys::rdma_conn_param {
        // SAFETY: the event is ours until it is acknowledged, which needs `self`.
        let event = unsafe { &*self.raw.0.as_ptr() };
        // SAFETY: the arm is integers and a pointer that C fills or leaves zero; it is the one that
        // C means for ids of port space TCP.
        unsafe { &event.param.conn }
    }

    /// The peer's private data, copied out; empty where none came.
    pub(crate) fn private_data(&self) -> Vec<u8> {
        let conn = self.conn_param();
        let carries = matches!(
            self.kind(),
            EventKind::CONNECT_REQUEST
                | EventKind::CONNECT_RESPONSE
                | EventKind::ESTABLISHED
                | EventKind::REJECTED
        );
        if !carries || conn.private_data.is_null() {
            return Vec::new();
        }
        // SAFETY: C gives a pointer into the event with that many bytes, alive until it is
        // acknowledged.
        unsafe {
            std::slice::from_raw_parts(
                conn.private_data.cast::<u8>(),
                usize::from(conn.private_data_len),
            )
        }
        .to_vec()
    }
}

impl Unacknowledged {
    fn kind(&self) -> EventKind {
        // SAFETY: the event is ours until it is acknowledged.
        EventKind::from_raw(unsafe { (*self.0.as_ptr()).event }.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_kind_and_reject_reason_is_data() {
        for raw in (0..=255).chain([u32::MAX]) {
            let kind = EventKind::from_raw(raw);
            assert_eq!(kind.raw(), raw);
            assert_eq!(kind.name().is_some(), raw <= 15, "{kind}");
        }
        assert_eq!(
            RejectReason::from_raw(-111).to_string(),
            "unknown value (-111)"
        );
    }

    #[test]
    fn nobody_listening_is_known_on_every_transport() {
        assert!(RejectReason::NO_LISTENER.is_no_listener());
        assert!(RejectReason::from_raw(-libc::ECONNREFUSED).is_no_listener());
        assert!(!RejectReason::from_raw(-libc::ECONNRESET).is_no_listener());
        assert!(!RejectReason::CONSUMER.is_no_listener());
    }

    #[test]
    fn the_kinds_have_the_numbers_of_the_headers() {
        let pairs = [
            (
                EventKind::CONNECT_REQUEST,
                sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST,
            ),
            (
                EventKind::CONNECT_RESPONSE,
                sys::rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE,
            ),
            (
                EventKind::REJECTED,
                sys::rdma_cm_event_type::RDMA_CM_EVENT_REJECTED,
            ),
            (
                EventKind::ESTABLISHED,
                sys::rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED,
            ),
            (
                EventKind::TIMEWAIT_EXIT,
                sys::rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT,
            ),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours.raw(), theirs.0);
        }
    }
}
