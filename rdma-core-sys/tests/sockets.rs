//! The socket emulation links, and answers without a device too; `tests/build.rs` runs this with the feature.
#![cfg(all(feature = "rsocket", not(any(miri, rdma_fake))))]

use std::ffi::{c_int, c_void};

use libc::{fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, ssize_t, timeval};
use rdma_core_sys::*;

/// Takes the address of each function under the type it must have.
macro_rules! addresses {
    ($($name:ident: fn($($arg:ty),*) -> $ret:ty;)*) => {
        [$({
            let function: unsafe extern "C" fn($($arg),*) -> $ret = $name;
            (stringify!($name), function as usize)
        }),*]
    };
}

#[test]
fn every_function_links() {
    let functions = addresses! {
        rsocket: fn(c_int, c_int, c_int) -> c_int;
        rbind: fn(c_int, *const sockaddr, socklen_t) -> c_int;
        rlisten: fn(c_int, c_int) -> c_int;
        raccept: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        rconnect: fn(c_int, *const sockaddr, socklen_t) -> c_int;
        rshutdown: fn(c_int, c_int) -> c_int;
        rclose: fn(c_int) -> c_int;
        rrecv: fn(c_int, *mut c_void, usize, c_int) -> ssize_t;
        rrecvfrom: fn(c_int, *mut c_void, usize, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
        rrecvmsg: fn(c_int, *mut msghdr, c_int) -> ssize_t;
        rsend: fn(c_int, *const c_void, usize, c_int) -> ssize_t;
        rsendto: fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> ssize_t;
        rsendmsg: fn(c_int, *const msghdr, c_int) -> ssize_t;
        rread: fn(c_int, *mut c_void, usize) -> ssize_t;
        rreadv: fn(c_int, *const iovec, c_int) -> ssize_t;
        rwrite: fn(c_int, *const c_void, usize) -> ssize_t;
        rwritev: fn(c_int, *const iovec, c_int) -> ssize_t;
        rpoll: fn(*mut pollfd, nfds_t, c_int) -> c_int;
        rselect: fn(c_int, *mut fd_set, *mut fd_set, *mut fd_set, *mut timeval) -> c_int;
        rgetpeername: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        rgetsockname: fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
        rsetsockopt: fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
        rgetsockopt: fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
        riomap: fn(c_int, *mut c_void, usize, c_int, c_int, off_t) -> off_t;
        riounmap: fn(c_int, *mut c_void, usize) -> c_int;
        riowrite: fn(c_int, *const c_void, usize, off_t, c_int) -> usize;
    };
    for (name, address) in functions {
        assert_ne!(address, 0, "{name}");
    }
    let variadic: unsafe extern "C" fn(c_int, c_int, ...) -> c_int = rfcntl;
    assert_ne!(variadic as usize, 0);
}

#[test]
fn a_kind_of_socket_that_there_is_not_is_refused_with_errno() {
    // SAFETY: numbers that mean nothing are data to this function.
    let socket = unsafe { rsocket(libc::AF_UNIX, libc::SOCK_RAW, 0) };
    assert_eq!(socket, -1);
    let error = std::io::Error::last_os_error();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTSUP));
}
