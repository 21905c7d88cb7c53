//! The socket emulation of `rdma/rsocket.h` (feature `rsocket`), raw.
//!
//! The descriptors are librdmacm's own numbers: they go to these functions alone, never to a system call or to a type that
//! closes them. Each function does what the one without the `r` does and reports an error as -1 with errno set; only `rclose` of
//! what is no such descriptor returns the errno itself. A descriptor that the library did not give out is undefined behaviour.

use core::ffi::{c_int, c_uint, c_void};

use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};

/// Level of [`rsetsockopt`] and [`rgetsockopt`] for the options below.
pub const SOL_RDMA: u32 = 0x10000;
/// Option: send work requests, an int, before connecting.
pub const RDMA_SQSIZE: c_uint = 0;
/// Option: receive work requests, an int, before connecting.
pub const RDMA_RQSIZE: c_uint = 1;
/// Option: bytes sent inline, an int, before connecting.
pub const RDMA_INLINE: c_uint = 2;
/// Option: how many regions the peer may map, an int, before connecting.
pub const RDMA_IOMAPSIZE: c_uint = 3;
/// Option: path records for an address without resolution of the route.
pub const RDMA_ROUTE: c_uint = 4;

#[allow(
    missing_docs,
    reason = "each is the function without the r, documented by the C manual page rsocket(7)"
)]
unsafe extern "C" {
    pub fn rsocket(domain: c_int, type_: c_int, protocol: c_int) -> c_int;
    pub fn rbind(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
    pub fn rlisten(socket: c_int, backlog: c_int) -> c_int;
    pub fn raccept(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
    pub fn rconnect(socket: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int;
    pub fn rshutdown(socket: c_int, how: c_int) -> c_int;
    pub fn rclose(socket: c_int) -> c_int;
    pub fn rrecv(socket: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t;
    pub fn rrecvfrom(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        flags: c_int,
        src_addr: *mut sockaddr,
        addrlen: *mut socklen_t,
    ) -> ssize_t;
    pub fn rrecvmsg(socket: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t;
    pub fn rsend(socket: c_int, buf: *const c_void, len: usize, flags: c_int) -> ssize_t;
    pub fn rsendto(
        socket: c_int,
        buf: *const c_void,
        len: usize,
        flags: c_int,
        dest_addr: *const sockaddr,
        addrlen: socklen_t,
    ) -> ssize_t;
    pub fn rsendmsg(socket: c_int, msg: *const msghdr, flags: c_int) -> ssize_t;
    pub fn rread(socket: c_int, buf: *mut c_void, count: usize) -> ssize_t;
    pub fn rreadv(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t;
    pub fn rwrite(socket: c_int, buf: *const c_void, count: usize) -> ssize_t;
    pub fn rwritev(socket: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t;
    pub fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int;
    pub fn rselect(
        nfds: c_int,
        readfds: *mut fd_set,
        writefds: *mut fd_set,
        exceptfds: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int;
    pub fn rgetpeername(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
    pub fn rgetsockname(socket: c_int, addr: *mut sockaddr, addrlen: *mut socklen_t) -> c_int;
    pub fn rsetsockopt(
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *const c_void,
        optlen: socklen_t,
    ) -> c_int;
    pub fn rgetsockopt(
        socket: c_int,
        level: c_int,
        optname: c_int,
        optval: *mut c_void,
        optlen: *mut socklen_t,
    ) -> c_int;
    pub fn rfcntl(socket: c_int, cmd: c_int, ...) -> c_int;
    pub fn riomap(
        socket: c_int,
        buf: *mut c_void,
        len: usize,
        prot: c_int,
        flags: c_int,
        offset: off_t,
    ) -> off_t;
    pub fn riounmap(socket: c_int, buf: *mut c_void, len: usize) -> c_int;
    pub fn riowrite(
        socket: c_int,
        buf: *const c_void,
        count: usize,
        offset: off_t,
        flags: c_int,
    ) -> usize;
}
