//! A device and its libraries made of Rust, for tests: `RUSTFLAGS='--cfg rdma_fake'`.
//!
//! With that cfg no C library is linked. The exported functions of libibverbs and librdmacm are defined here under their C
//! names, so the bindings, the inline functions and everything above them run unchanged, on a machine without RDMA, under
//! Miri and under AddressSanitizer.
//!
//! What it models: two devices (`fake0`, RoCE; `fake1`, iWARP), protection domains, memory regions and windows with keys and
//! rights, completion queues and channels with real descriptors, queue pairs with the kernel's table of transitions, shared
//! receive queues, address handles and multicast groups, asynchronous events, data moved between queue pairs of the process at
//! the moment of posting, the removal of the devices, and the connection manager with its events. What it does not model
//! answers `EOPNOTSUPP`, as a provider without it does. Where SoftRoCE and hardware differ, it is like SoftRoCE or stricter.
//!
//! What C would do silently or never end, it says: a handle used after it was destroyed, a call that would wait for ever, an
//! acknowledgement too many. Those abort the process with a sentence on stderr, since no error could be returned for them.
//!
//! [`control`] is the side for tests: make calls fail, look at what was called and posted, and check that nothing is left.

mod ah;
mod async_events;
mod cm;
pub mod control;
mod cq;
mod data;
mod device;
mod ext_control;
mod ext_cq;
mod ext_qp;
mod memory;
mod multicast;
mod objects;
mod optional;
mod qp;
mod readiness;
mod srq;
mod table;
mod transitions;
mod unmodelled;
mod windows;
mod world;

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use self::world::{World, lock};

/// Begins a C function: takes the world, records the call, and says whether it is to fail.
fn enter(name: &'static str) -> Result<std::sync::MutexGuard<'static, World>, c_int> {
    let mut world = lock();
    world.record(name)?;
    Ok(world)
}

/// Ends a function that reports by a pointer.
fn null<T>(errno: c_int) -> *mut T {
    crate::inline::set_errno(errno);
    core::ptr::null_mut()
}

/// Ends a function that reports by -1.
fn minus_one(errno: c_int) -> c_int {
    crate::inline::set_errno(errno);
    -1
}

/// Ends a function that reports by -1, one way or the other.
fn by_errno(result: Result<(), c_int>) -> c_int {
    result.map_or_else(minus_one, |()| 0)
}

/// Ends a function that returns the errno.
fn by_return(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// Says what the program did that C would not survive, and ends it.
fn violation(text: &str) -> ! {
    use std::io::Write;
    // Not a panic: it would not get through the C functions' boundary, and its message would be kept by the test harness.
    let _ = std::writeln!(std::io::stderr(), "fake device: {text}");
    std::process::abort()
}
