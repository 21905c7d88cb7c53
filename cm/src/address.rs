//! Socket addresses, as C has them and as Rust has them.

use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A socket address in C's form, large enough for every family.
pub(crate) struct CAddr(libc::sockaddr_storage);

impl CAddr {
    /// The pointer that C calls take. C never writes through it.
    pub(crate) fn as_ptr(&self) -> *mut libc::sockaddr {
        (&raw const self.0).cast_mut().cast()
    }

    /// The length of the family's form in bytes.
    pub(crate) fn len(&self) -> libc::socklen_t {
        let len = if self.0.ss_family == AF_INET {
            size_of::<libc::sockaddr_in>()
        } else {
            size_of::<libc::sockaddr_in6>()
        };
        libc::socklen_t::try_from(len).expect("a few bytes")
    }
}

impl From<SocketAddr> for CAddr {
    fn from(addr: SocketAddr) -> Self {
        // SAFETY: sockaddr_storage is plain integers and bytes, for which zero is a value.
        let mut storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        let place = &raw mut storage;
        match addr {
            SocketAddr::V4(v4) => {
                let c = libc::sockaddr_in {
                    sin_family: AF_INET,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is larger than and aligned for every sockaddr.
                unsafe { place.cast::<libc::sockaddr_in>().write(c) };
            }
            SocketAddr::V6(v6) => {
                let c = libc::sockaddr_in6 {
                    sin6_family: AF_INET6,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo().to_be(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: the storage is larger than and aligned for every sockaddr.
                unsafe { place.cast::<libc::sockaddr_in6>().write(c) };
            }
        }
        Self(storage)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "address families fit in 16 bits"
)]
const AF_INET: libc::sa_family_t = libc::AF_INET as libc::sa_family_t;
#[expect(
    clippy::cast_possible_truncation,
    reason = "address families fit in 16 bits"
)]
const AF_INET6: libc::sa_family_t = libc::AF_INET6 as libc::sa_family_t;

/// Reads an address that C wrote; `None` for a family other than IPv4 and IPv6.
///
/// # Safety
/// - `addr` points to at least 16 readable bytes for AF_INET and 28 for AF_INET6, that nothing
///   changes meanwhile.
pub(crate) unsafe fn from_c(addr: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the family stands at the start of every sockaddr.
    let family = unsafe { (*addr).sa_family };
    match family {
        AF_INET => {
            // SAFETY: the caller vouches for 16 bytes of this family.
            let c = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(c.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: the caller vouches for 28 bytes of this family.
            let c = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(c.sin6_addr.s6_addr);
            let port = u16::from_be(c.sin6_port);
            let flow = u32::from_be(c.sin6_flowinfo);
            Some(SocketAddrV6::new(ip, port, flow, c.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// A peer's link-local address with the scope that it was sent without: a message names addresses
/// alone, and the peer is on the interface of ours.
pub(crate) fn with_scope(
    peer: SocketAddr,
    ours: impl IntoIterator<Item = SocketAddr>,
) -> SocketAddr {
    let SocketAddr::V6(mut v6) = peer else {
        return peer;
    };
    if lacks_scope(peer) {
        let mut scopes = ours.into_iter().filter_map(|addr| match addr {
            SocketAddr::V6(v6) if v6.scope_id() != 0 => Some(v6.scope_id()),
            _ => None,
        });
        v6.set_scope_id(scopes.next().unwrap_or(0));
    }
    v6.into()
}

/// Whether an address says nothing without an interface, and names none.
pub(crate) fn lacks_scope(addr: SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_through_c() {
        for text in [
            "192.0.2.1:7204",
            "[2001:db8::1]:1",
            "[fe80::1%3]:65535",
            "0.0.0.0:0",
        ] {
            let addr: SocketAddr = text.parse().expect("address");
            let c = CAddr::from(addr);
            // SAFETY: `c` is a whole sockaddr_storage.
            assert_eq!(unsafe { from_c(c.as_ptr()) }, Some(addr), "{text}");
        }
    }

    #[test]
    fn an_unknown_family_is_no_address() {
        // SAFETY: sockaddr_storage is plain integers and bytes, for which zero is a value.
        let storage: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the storage is larger than any sockaddr.
        assert_eq!(unsafe { from_c((&raw const storage).cast()) }, None);
    }

    #[test]
    fn a_link_local_peer_has_the_scope_of_our_address() {
        let addr = |text: &str| -> SocketAddr { text.parse().expect("an address") };
        let ours = [addr("[fe80::1]:7"), addr("[fe80::1%4]:7")];
        for (peer, expected) in [
            ("[fe80::2]:9", "[fe80::2%4]:9"),
            ("[fe80::2%5]:9", "[fe80::2%5]:9"),
            ("[2001:db8::2]:9", "[2001:db8::2]:9"),
            ("192.0.2.2:9", "192.0.2.2:9"),
        ] {
            assert_eq!(with_scope(addr(peer), ours), addr(expected));
        }
        assert_eq!(with_scope(addr("[fe80::2]:9"), []), addr("[fe80::2]:9"));
    }
}
