//! The `epoll` of rsocket, of rdma-core 65.

use core::ffi::c_int;

use libc::epoll_event;

later_functions! { LIBRDMACM:
    /// As `epoll_create1`, for sockets of `rsocket` and others.
    ///
    /// Returns a descriptor, or -1 and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - The descriptor is closed with [`rclose`](crate::rclose) alone.
    fn repoll_create(flags: c_int) -> c_int = else minus_one_unsupported;

    /// As `epoll_ctl`.
    ///
    /// Returns 0, or -1 and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `epfd` came from [`repoll_create`].
    /// - `event` points to a filled struct, or may be NULL for a removal.
    fn repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = else minus_one_unsupported;

    /// As `epoll_wait`; `timeout` is in milliseconds, -1 for ever.
    ///
    /// Returns how many events there are, or -1 and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `epfd` came from [`repoll_create`].
    /// - `events` is valid for writes of `maxevents` entries.
    fn repoll_wait(epfd: c_int, events: *mut epoll_event, maxevents: c_int, timeout: c_int) -> c_int
        = else minus_one_unsupported;
}
