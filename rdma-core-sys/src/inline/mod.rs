//! The inline functions and function-like macros of the headers, one file per subject.

#[macro_use]
mod ctx;
mod cma;
mod counters;
mod cq_ex;
mod device;
mod dm;
mod domain;
mod flow;
mod gid;
mod mr;
mod mw;
mod poll;
mod post;
mod qp;
mod rdma_comp;
mod rdma_verbs;
mod srq;
mod wq;
mod wr;

pub use self::cma::*;
pub use self::counters::*;
pub use self::cq_ex::*;
pub use self::ctx::*;
pub use self::device::*;
pub use self::dm::*;
pub use self::domain::*;
pub use self::flow::*;
pub use self::gid::*;
pub use self::mr::*;
pub use self::mw::*;
pub use self::poll::*;
pub use self::post::*;
pub use self::qp::*;
pub use self::rdma_comp::*;
pub use self::rdma_verbs::*;
pub use self::srq::*;
pub use self::wq::*;
pub use self::wr::*;

use core::ffi::c_int;

/// Sets this thread's errno.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: the call has no precondition.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the C library gives the address of this thread's own variable, which lives as long as the thread.
    unsafe { *place = value };
}

/// What a function that returns a pointer does when the operation is missing: errno is `EOPNOTSUPP` and the result NULL.
pub(crate) fn null_unsupported<T>() -> *mut T {
    set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// What a function that returns an errno value does when the operation is missing.
pub(crate) fn unsupported() -> c_int {
    libc::EOPNOTSUPP
}

/// What a function that returns -1 on failure does when the operation is missing: errno is `EOPNOTSUPP`.
pub(crate) fn minus_one_unsupported() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// What a function that frees does when the library has no such objects, so that there is none to free.
pub(crate) fn nothing() {}

/// Where a slot is NULL and the function has no way to say so: C would jump to address 0 here.
#[cold]
#[inline(never)]
#[track_caller]
fn missing(object: &str, slot: &str) -> ! {
    panic!(
        "{object} has no {slot}: the provider sets only what was asked for at creation, and only when it knows it"
    )
}
