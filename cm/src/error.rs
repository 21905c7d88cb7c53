//! What can go wrong on the way to a connection.

use std::net::SocketAddr;

use verbs::ErrnoText;

use crate::address::lacks_scope;
use crate::event::{EventKind, RejectReason};

/// A step of connection management that failed.
///
/// `Display` gives one sentence without a line break; [`hint`](Self::hint) adds advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call of librdmacm or libibverbs failed.
    #[error(transparent)]
    Call(#[from] verbs::Error),
    /// The connection manager's device file cannot be used.
    #[error("cannot open {path}: {}", ErrnoText(*.errno))]
    NoConnectionManager {
        /// The file.
        path: &'static str,
        /// The positive errno.
        errno: i32,
    },
    /// No RDMA device leads to the address. (A neighbour that does not answer is looked for until the deadline:
    /// [`TimedOut`](Self::TimedOut).)
    #[error("cannot resolve {peer} on an RDMA device: {}", ErrnoText(*.errno))]
    AddressNotResolved {
        /// The address asked for.
        peer: SocketAddr,
        /// The positive errno.
        errno: i32,
    },
    /// There is a device, but no route through it.
    #[error("no route to {peer} over RDMA: {}", ErrnoText(*.errno))]
    RouteNotResolved {
        /// The address asked for.
        peer: SocketAddr,
        /// The positive errno.
        errno: i32,
    },
    /// A name could not be looked up.
    #[error("cannot look up {name}: {}", crate::names::reason(*.code))]
    NameNotResolved {
        /// Node and service asked for.
        name: String,
        /// The resolver's code, as `getaddrinfo` has it (`EAI_NONAME` and its like).
        code: i32,
    },
    /// No RDMA device has the local address.
    #[error("{} is not an address of an RDMA device of this machine", .addr.ip())]
    NoSuchAddress {
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The peer's machine answers, but nobody listens on the port.
    #[error("no listener at {peer}")]
    NoListener {
        /// The address asked for.
        peer: SocketAddr,
    },
    /// The peer refused.
    #[error(
        "{peer} rejected the connection: event {}, status {}",
        EventKind::REJECTED,
        reason.text()
    )]
    Rejected {
        /// The address asked for.
        peer: SocketAddr,
        /// Why.
        reason: RejectReason,
        /// The bytes that came with the refusal: up to 148 on InfiniBand and RoCE, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The peer's machine does not answer.
    #[error(
        "{peer} is unreachable: it does not answer (event {}, status {status})",
        EventKind::UNREACHABLE
    )]
    Unreachable {
        /// The address asked for.
        peer: SocketAddr,
        /// The status of the event: a negative errno, or a positive code of the transport.
        status: i32,
    },
    /// Who asked for the connection has given up, or is gone, before the request was accepted.
    #[error("{peer} has given up before its request was accepted: {call}")]
    GaveUp {
        /// Who asked.
        peer: SocketAddr,
        /// The call that says so.
        call: verbs::Error,
    },
    /// The handshake failed after it had begun.
    #[error(
        "the connection with {peer} failed during set-up (event {}, status {status})",
        EventKind::CONNECT_ERROR
    )]
    ConnectFailed {
        /// The address of the other side.
        peer: SocketAddr,
        /// The status of the event: a negative errno, or a positive code of the transport.
        status: i32,
    },
    /// The connection ended.
    #[error("the connection with {peer} is closed")]
    Disconnected {
        /// The address of the other side.
        peer: SocketAddr,
    },
    /// The RDMA device was removed.
    #[error("the RDMA device of the connection with {peer} was removed")]
    DeviceRemoved {
        /// The address of the other side, or the own one of a listener.
        peer: SocketAddr,
    },
    /// The deadline passed first.
    #[error("timed out {what}")]
    TimedOut {
        /// What was waited for, as the end of the sentence.
        what: String,
    },
    /// More private data than the message has room for.
    #[error("{given} bytes of private data do not fit into a {message}, which takes {max}")]
    PrivateDataTooLong {
        /// Which message.
        message: &'static str,
        /// How many bytes were given.
        given: usize,
        /// How many it takes.
        max: usize,
    },
}

impl Error {
    /// The same, told in our words when it is the answer that the kernel gives to every call on an id whose device goes away.
    pub(crate) fn or_removed(self, peer: SocketAddr) -> Self {
        match self {
            Self::Call(call) if call.errno() == Some(libc::ENXIO) => Self::DeviceRemoved { peer },
            other => other,
        }
    }

    /// The same, told in our words when it is the answer that the kernel gives to the steps of accepting a request that is over.
    pub(crate) fn or_given_up(self, peer: SocketAddr) -> Self {
        match self {
            Self::Call(call)
                if call.errno() == Some(libc::EINVAL)
                    && ["rdma_init_qp_attr", "rdma_accept"].contains(&call.verb()) =>
            {
                Self::GaveUp { peer, call }
            }
            other => other,
        }
    }

    /// What to try, where that is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Call(error) => return error.hint().map(str::to_owned),
            Self::NoConnectionManager { path, errno } => match *errno {
                libc::ENOENT | libc::ENXIO | libc::ENODEV => {
                    "load the module rdma_ucm (modprobe rdma_ucm)".to_owned()
                }
                libc::EACCES | libc::EPERM => {
                    format!("give this user read and write permission on {path}")
                }
                libc::EMFILE | libc::ENFILE => {
                    "too many files are open: close some, or raise the limit (ulimit -n)".to_owned()
                }
                _ => return None,
            },
            Self::AddressNotResolved { peer, .. } | Self::RouteNotResolved { peer, .. }
                if lacks_scope(*peer) =>
            {
                scope_advice(*peer)
            }
            Self::AddressNotResolved { peer, .. } | Self::RouteNotResolved { peer, .. } => format!(
                "check that {} is an address of a machine reached through an RDMA interface \
                 (rdma link); a loopback address has none",
                peer.ip()
            ),
            Self::NameNotResolved { .. } => {
                "check the name with `getent hosts`, or give the IP address itself".to_owned()
            }
            Self::NoSuchAddress { addr } if lacks_scope(*addr) => scope_advice(*addr),
            Self::NoSuchAddress { .. } => {
                "the command `rdma link` shows the RDMA devices and their interfaces, `ip addr` \
                 the addresses of those; a loopback address has no device"
                    .to_owned()
            }
            Self::NoListener { .. } => {
                "start the server first, or check the port; RDMA ports are apart from TCP ports"
                    .to_owned()
            }
            Self::GaveUp { .. } => "take the next request".to_owned(),
            Self::Unreachable { .. } => {
                "check the cable, the address and, on RoCE, that UDP port 4791 is not filtered"
                    .to_owned()
            }
            _ => return None,
        })
    }
}

impl Error {
    /// The same failed call with whose connection it was about, behind what is said already.
    pub(crate) fn of_connection(self, whose: impl FnOnce() -> String) -> Self {
        let Self::Call(error) = self else {
            return self;
        };
        let whose = whose();
        let detail = match error.detail() {
            Some(detail) => format!("{detail}; {whose}"),
            None => whose,
        };
        Self::Call(error.with_detail(detail))
    }
}

fn scope_advice(addr: SocketAddr) -> String {
    let ip = addr.ip();
    format!(
        "{ip} is a link-local address: add the interface that leads to it, as in {ip}%interface"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_every_call_answers_on_a_device_that_goes_away_is_told_as_that() {
        let peer: SocketAddr = "192.0.2.1:7".parse().expect("an address");
        let of =
            |errno| Error::from(verbs::Error::from_errno("rdma_connect", errno)).or_removed(peer);
        assert_eq!(of(libc::ENXIO), Error::DeviceRemoved { peer });
        assert!(matches!(of(libc::EINVAL), Error::Call(_)));
    }

    #[test]
    fn a_link_local_address_without_its_scope_is_told_to_have_one() {
        let hint = |peer: &str| {
            let peer = peer.parse().expect("an address");
            let errno = libc::ENODEV;
            Error::AddressNotResolved { peer, errno }
                .hint()
                .expect("advice")
        };
        assert!(hint("[fe80::1]:7").contains("fe80::1%interface"));
        let addr: SocketAddr = "[fe80::1]:7".parse().expect("an address");
        let bound = Error::NoSuchAddress { addr }.hint().expect("advice");
        assert!(bound.contains("fe80::1%interface"), "{bound}");
        for whole in ["[fe80::1%3]:7", "[2001:db8::1]:7", "192.0.2.1:7"] {
            assert!(!hint(whole).contains("%interface"), "{whole}");
        }
    }
}
