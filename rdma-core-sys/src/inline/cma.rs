//! The inline functions of `rdma/rdma_cma.h`.

use libc::sockaddr;

use crate::bindings::rdma_cm_id;

/// The local address of an id: a pointer into the id, to a `sockaddr` of the family it names.
///
/// # Safety
/// - `id` is a live id; the pointer is valid for as long as it is.
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the id is live, so the place lies within it; nothing is read.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_1).cast() }
}

/// The peer's address of an id: a pointer into the id, to a `sockaddr` of the family it names.
///
/// # Safety
/// - `id` is a live id; the pointer is valid for as long as it is.
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut sockaddr {
    // SAFETY: the id is live, so the place lies within it; nothing is read.
    unsafe { (&raw mut (*id).route.addr.__bindgen_anon_2).cast() }
}
