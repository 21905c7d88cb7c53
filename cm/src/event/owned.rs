//! An event with everything that it carries, independent of librdmacm.

use std::ffi::c_void;
use std::slice;

use verbs::{Address, sys};

use super::EventKind;
use crate::port_space::PortSpace;

/// An event, copied out of librdmacm's.
///
/// What comes with it is typed by its kind and by the port space of its id: C has one union for all,
/// and leaves what an event does not carry undefined.
#[doc(alias = "rdma_cm_event")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    kind: EventKind,
    status: i32,
    payload: Payload,
}

/// What comes with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Payload {
    /// Nothing.
    None,
    /// Of a handshake for a connected queue pair.
    Connection(ConnectionData),
    /// Of an exchange of datagram addresses.
    Datagram(DatagramData),
    /// Of a multicast group.
    Multicast(MulticastData),
    /// A number that the program sent to itself.
    Arg(u64),
}

/// What a message of a handshake says.
#[doc(alias = "rdma_conn_param")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionData {
    /// The peer's private data; on InfiniBand and RoCE padded with zeros to the message's size.
    /// `None` where the message brought none.
    pub private_data: Option<Vec<u8>>,
    /// Reads and atomics that the peer wants in flight towards us.
    pub responder_resources: u8,
    /// Reads and atomics that the peer lets us have in flight.
    pub initiator_depth: u8,
    /// How often the peer sends again to a receiver that is not ready.
    pub rnr_retry: u8,
    /// The number of the peer's queue pair; 0 where the message does not say it.
    pub qp_number: u32,
}

/// What a message of an exchange of datagram addresses says.
#[doc(alias = "rdma_ud_param")]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DatagramData {
    /// The peer's private data, padded with zeros to the message's size.
    pub private_data: Option<Vec<u8>>,
    /// Where datagrams for the peer go; only in the answer that establishes.
    pub remote: Option<RemoteQueuePair>,
}

/// Where datagrams go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteQueuePair {
    /// The path to the port, for an address handle.
    pub address: Address,
    /// The number of the queue pair; 0xffffff for a multicast group.
    pub qp_number: u32,
    /// The key that the receiver asks for.
    pub qkey: u32,
}

/// What an event of a multicast group says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MulticastData {
    /// The number that the join was given as its context.
    pub token: usize,
    /// Where datagrams for the group go; only when it was joined.
    pub remote: Option<RemoteQueuePair>,
}

/// librdmacm's event for a number that the program sent to itself (since 60).
const USER: EventKind = EventKind::from_raw(18);

impl Event {
    /// Copies an event of librdmacm's, which is neither changed nor acknowledged.
    ///
    /// # Safety
    /// - `raw` was got from librdmacm and is not acknowledged, or is built like one: what its kind
    ///   and the port space of its id carry is filled in, and pointers are valid or NULL.
    pub unsafe fn from_raw(raw: *const sys::rdma_cm_event) -> Self {
        // SAFETY: the caller vouches for the event.
        let kind = EventKind::from_raw(unsafe { (*raw).event }.0);
        // SAFETY: as above.
        let status = unsafe { (*raw).status };
        // SAFETY: as above.
        let id = unsafe { (*raw).id };
        // SAFETY: an event's id is live until it is acknowledged; its port space never changes.
        let space = PortSpace::from_raw(unsafe { (*id).ps }.0);
        // SAFETY: forwarded to the caller.
        let payload = unsafe { Payload::read(raw, kind, status, space) };
        Self {
            kind,
            status,
            payload,
        }
    }

    /// What happened.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// 0, a negative errno, or a positive code of the transport.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// The status as a positive errno, where it is one.
    pub(crate) fn errno(&self) -> i32 {
        self.status.saturating_abs()
    }

    /// What comes with it.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// What a message of a connection's handshake said.
    pub fn connection(&self) -> Option<&ConnectionData> {
        match &self.payload {
            Payload::Connection(data) => Some(data),
            _ => None,
        }
    }

    /// What a message of an exchange of datagram addresses said.
    pub fn datagram(&self) -> Option<&DatagramData> {
        match &self.payload {
            Payload::Datagram(data) => Some(data),
            _ => None,
        }
    }

    /// Which multicast group it is about.
    pub fn multicast(&self) -> Option<&MulticastData> {
        match &self.payload {
            Payload::Multicast(data) => Some(data),
            _ => None,
        }
    }

    /// The number that the program sent to itself.
    pub fn arg(&self) -> Option<u64> {
        match self.payload {
            Payload::Arg(arg) => Some(arg),
            _ => None,
        }
    }

    /// The peer's private data, taken out; empty where none came.
    pub(crate) fn into_private_data(self) -> Vec<u8> {
        match self.payload {
            Payload::Connection(data) => data.private_data,
            Payload::Datagram(data) => data.private_data,
            _ => None,
        }
        .unwrap_or_default()
    }
}

impl Payload {
    /// # Safety
    /// - As for [`Event::from_raw`]; `kind`, `status` and `space` are the event's.
    unsafe fn read(
        raw: *const sys::rdma_cm_event,
        kind: EventKind,
        status: i32,
        space: PortSpace,
    ) -> Self {
        // SAFETY: the place of a field of a live event; nothing is read.
        let param = unsafe { &raw const (*raw).param };
        let multicast = matches!(kind, EventKind::MULTICAST_JOIN | EventKind::MULTICAST_ERROR);
        let handshake = matches!(
            kind,
            EventKind::CONNECT_REQUEST
                | EventKind::CONNECT_RESPONSE
                | EventKind::ESTABLISHED
                | EventKind::REJECTED
        );
        // A refusal to tell a datagram address has the transport's status, and may bring data.
        let refusal = kind == EventKind::UNREACHABLE && status > 0;
        if kind == USER {
            // SAFETY: the arm of this kind is a 64-bit number, and the union is larger.
            Self::Arg(unsafe { param.cast::<u64>().read() })
        } else if space.is_datagram() && (multicast || handshake || refusal) {
            // SAFETY: the arm that C fills for ids of these port spaces.
            let ud = unsafe { param.cast::<sys::rdma_ud_param>().read() };
            let remote =
                matches!(kind, EventKind::MULTICAST_JOIN | EventKind::ESTABLISHED).then(|| {
                    RemoteQueuePair {
                        address: Address::from_raw(&ud.ah_attr),
                        qp_number: ud.qp_num,
                        qkey: ud.qkey,
                    }
                });
            if multicast {
                // C gives the join's context back in this field: a number here, never a pointer.
                return Self::Multicast(MulticastData {
                    token: ud.private_data.addr(),
                    remote,
                });
            }
            // SAFETY: the caller vouches for the bytes.
            let private_data = unsafe { bytes(ud.private_data, ud.private_data_len) };
            Self::Datagram(DatagramData {
                private_data,
                remote,
            })
        } else if !space.is_datagram() && handshake {
            // SAFETY: the arm that C fills for ids of all other port spaces.
            let conn = unsafe { param.cast::<sys::rdma_conn_param>().read() };
            // SAFETY: the caller vouches for the bytes.
            let private_data = unsafe { bytes(conn.private_data, conn.private_data_len) };
            Self::Connection(ConnectionData {
                private_data,
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                rnr_retry: conn.rnr_retry_count,
                qp_number: conn.qp_num,
            })
        } else {
            Self::None
        }
    }
}

/// # Safety
/// - `data` is NULL or has `len` bytes.
unsafe fn bytes(data: *const c_void, len: u8) -> Option<Vec<u8>> {
    if data.is_null() || len == 0 {
        return None;
    }
    // SAFETY: the caller vouches for the bytes.
    Some(unsafe { slice::from_raw_parts(data.cast::<u8>(), usize::from(len)) }.to_vec())
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    /// An event of `kind` whose union is all 0xAA, but for the fields that `fill` sets.
    fn event_of(kind: u32, status: i32, space: PortSpace, fill: impl FnOnce(*mut c_void)) -> Event {
        let mut id = sys::rdma_cm_id {
            ps: sys::rdma_port_space(space.raw()),
            ..Default::default()
        };
        let mut raw = sys::rdma_cm_event {
            id: &raw mut id,
            event: sys::rdma_cm_event_type(kind),
            status,
            ..Default::default()
        };
        let param = (&raw mut raw.param).cast::<u8>();
        // SAFETY: the whole of a union of integers and pointers, for which every byte is a value.
        unsafe { param.write_bytes(0xAA, size_of_val(&raw.param)) };
        fill(param.cast());
        // SAFETY: the event names a live id; the test fills in what is carried.
        unsafe { Event::from_raw(&raw) }
    }

    /// The kinds that carry something, by port space.
    fn carries(kind: EventKind, space: PortSpace) -> bool {
        let handshake = [4, 5, 8, 9].contains(&kind.raw());
        handshake || (space.is_datagram() && [12, 13].contains(&kind.raw()))
    }

    #[test]
    fn what_an_event_does_not_carry_is_never_read() {
        for space in [
            PortSpace::TCP,
            PortSpace::UDP,
            PortSpace::IPOIB,
            PortSpace::IB,
            PortSpace::from_raw(7),
        ] {
            for raw in (0..16).chain([16, 17, 19, 255, u32::MAX]) {
                if carries(EventKind::from_raw(raw), space) {
                    continue;
                }
                let event = event_of(raw, -110, space, |_| {});
                assert_eq!(*event.payload(), Payload::None, "{raw} in {space}");
                assert_eq!((event.connection(), event.datagram()), (None, None));
                assert_eq!((event.multicast(), event.arg()), (None, None));
                assert_eq!((event.kind().raw(), event.status()), (raw, -110));
            }
        }
    }

    #[test]
    fn a_handshake_is_read_in_the_form_of_the_port_space() {
        let data = [7_u8; 56];
        for raw in [4, 5, 8, 9] {
            let event = event_of(raw, 0, PortSpace::TCP, |param| {
                let conn = sys::rdma_conn_param {
                    private_data: data.as_ptr().cast(),
                    private_data_len: 56,
                    responder_resources: 3,
                    initiator_depth: 4,
                    qp_num: 77,
                    ..Default::default()
                };
                // SAFETY: the union is larger than, and aligned for, each of its arms.
                unsafe { param.cast::<sys::rdma_conn_param>().write(conn) };
            });
            let said = event.connection().expect("connection data");
            assert_eq!(said.private_data.as_deref(), Some(&data[..]));
            assert_eq!((said.responder_resources, said.initiator_depth), (3, 4));
            assert_eq!(said.qp_number, 77);
            assert_eq!((event.datagram(), event.multicast()), (None, None));

            let event = event_of(raw, 0, PortSpace::UDP, |param| {
                let ud = sys::rdma_ud_param {
                    private_data: data.as_ptr().cast(),
                    private_data_len: 9,
                    qp_num: 78,
                    qkey: 79,
                    ..Default::default()
                };
                // SAFETY: as above.
                unsafe { param.cast::<sys::rdma_ud_param>().write(ud) };
            });
            let said = event.datagram().expect("datagram data");
            assert_eq!(said.private_data.as_deref(), Some(&data[..9]));
            let remote = said.remote.map(|r| (r.qp_number, r.qkey));
            assert_eq!(remote, (raw == 9).then_some((78, 79)), "{raw}");
            assert_eq!((event.connection(), event.multicast()), (None, None));
        }
    }

    #[test]
    fn a_joins_context_is_a_number_and_no_private_data() {
        for raw in [12, 13] {
            let event = event_of(raw, 0, PortSpace::UDP, |param| {
                let ud = sys::rdma_ud_param {
                    private_data: std::ptr::without_provenance(5),
                    private_data_len: 0xAA,
                    qp_num: 0xff_ffff,
                    ..Default::default()
                };
                // SAFETY: the union is larger than, and aligned for, each of its arms.
                unsafe { param.cast::<sys::rdma_ud_param>().write(ud) };
            });
            let said = event.multicast().expect("multicast data");
            assert_eq!(said.token, 5);
            assert_eq!(said.remote.is_some(), raw == 12);
            assert_eq!(event.datagram(), None);
            assert!(event.into_private_data().is_empty());
        }
    }

    #[test]
    fn only_a_refusal_to_tell_an_address_brings_data() {
        let data = [1_u8; 136];
        let refused = event_of(7, 1, PortSpace::UDP, |param| {
            let ud = sys::rdma_ud_param {
                private_data: data.as_ptr().cast(),
                private_data_len: 136,
                ..Default::default()
            };
            // SAFETY: the union is larger than, and aligned for, each of its arms.
            unsafe { param.cast::<sys::rdma_ud_param>().write(ud) };
        });
        assert_eq!(refused.into_private_data(), data);
        let silence = event_of(7, -110, PortSpace::UDP, |_| {});
        assert_eq!(*silence.payload(), Payload::None);
    }

    #[test]
    fn a_number_of_the_programs_own_is_one() {
        let event = event_of(18, 0, PortSpace::UDP, |_| {});
        assert_eq!(event.arg(), Some(0xAAAA_AAAA_AAAA_AAAA));
        assert_eq!((event.connection(), event.datagram()), (None, None));
    }

    #[test]
    fn private_data_without_bytes_is_none() {
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { bytes(std::ptr::null(), 9) }, None);
        let nothing = MaybeUninit::<u8>::uninit();
        // SAFETY: no byte is read.
        assert_eq!(unsafe { bytes(nothing.as_ptr().cast(), 0) }, None);
    }
}
