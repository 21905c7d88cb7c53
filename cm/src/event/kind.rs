//! What events say in one word: their kinds, and why a peer refused.

use verbs::open_enum;

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
        /// The application does not take the extended connection capabilities.
        VENDOR_OPTION = 35, "vendor option not supported";
    }
}

impl RejectReason {
    /// Whether nobody listens on the port. On iWARP, where connections begin as TCP, the reason is a
    /// negative errno.
    pub fn is_no_listener(self) -> bool {
        self == Self::NO_LISTENER || self.raw() == -libc::ECONNREFUSED
    }

    /// What it means, in words. On iWARP a negative errno: ECONNRESET is how an application's
    /// rejection arrives on siw.
    pub(crate) fn text(self) -> String {
        match self.raw() {
            errno if errno < 0 => {
                std::io::Error::from_raw_os_error(errno.saturating_neg()).to_string()
            }
            _ => self.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use verbs::sys;

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
    fn a_reason_is_told_in_words_on_every_transport() {
        let consumer = RejectReason::CONSUMER.text();
        assert_eq!(consumer, RejectReason::CONSUMER.to_string());
        let reset = RejectReason::from_raw(-libc::ECONNRESET).text();
        assert!(reset.contains("104"), "{reset}");
        assert!(!RejectReason::from_raw(i32::MIN).text().is_empty());
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
