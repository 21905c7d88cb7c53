//! Socket addresses in C's form.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::{sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

#[allow(
    clippy::cast_possible_truncation,
    reason = "address families fit in 16 bits"
)]
const AF_INET: sa_family_t = libc::AF_INET as sa_family_t;
#[allow(
    clippy::cast_possible_truncation,
    reason = "address families fit in 16 bits"
)]
const AF_INET6: sa_family_t = libc::AF_INET6 as sa_family_t;

/// # Safety
/// - `addr` points to a whole address of its family.
pub(super) unsafe fn read(addr: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: every address begins with its family.
    match unsafe { (*addr).sa_family } {
        AF_INET => {
            // SAFETY: the address is whole.
            let c = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(c.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(ip, u16::from_be(c.sin_port)).into())
        }
        AF_INET6 => {
            // SAFETY: the address is whole.
            let c = unsafe { addr.cast::<sockaddr_in6>().read_unaligned() };
            let (ip, port) = (
                Ipv6Addr::from(c.sin6_addr.s6_addr),
                u16::from_be(c.sin6_port),
            );
            Some(SocketAddrV6::new(ip, port, 0, c.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// # Safety
/// - `place` is valid for a write of the largest address.
pub(super) unsafe fn write(place: *mut sockaddr_storage, addr: SocketAddr) {
    match addr {
        SocketAddr::V4(v4) => {
            let c = sockaddr_in {
                sin_family: AF_INET,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the place is large enough and aligned for every address.
            unsafe { place.cast::<sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            let c = sockaddr_in6 {
                sin6_family: AF_INET6,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the place is large enough and aligned for every address.
            unsafe { place.cast::<sockaddr_in6>().write(c) };
        }
    }
}
