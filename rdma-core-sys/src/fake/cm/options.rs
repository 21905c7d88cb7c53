//! Options and ports of an id.

use core::ffi::{c_int, c_void};
use std::prelude::rust_2024::*;

use super::super::{by_errno, enter};
use crate::bindings::{
    __be16, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, rdma_cm_id,
};

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    let call = "rdma_set_option";
    by_errno(enter(call).and_then(|mut world| {
        let state = world.cm.ids.of(call, id);
        if level.cast_unsigned() != RDMA_OPTION_ID {
            return Err(libc::ENOSYS);
        }
        match (optname.cast_unsigned(), optlen) {
            (RDMA_OPTION_ID_TOS | RDMA_OPTION_ID_ACK_TIMEOUT, 1) | (RDMA_OPTION_ID_AFONLY, 4) => {
                Ok(())
            }
            (RDMA_OPTION_ID_REUSEADDR, 4) => {
                // SAFETY: the caller gives as many bytes as told.
                state.reuse = unsafe { optval.cast::<c_int>().read_unaligned() } != 0;
                Ok(())
            }
            (
                RDMA_OPTION_ID_TOS
                | RDMA_OPTION_ID_ACK_TIMEOUT
                | RDMA_OPTION_ID_AFONLY
                | RDMA_OPTION_ID_REUSEADDR,
                _,
            ) => Err(libc::EINVAL),
            _ => Err(libc::ENOSYS),
        }
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16 {
    let mut world = super::super::world::lock();
    let local = world.cm.ids.of("rdma_get_src_port", id).local;
    local.map_or(0, |addr| addr.port().to_be())
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16 {
    let mut world = super::super::world::lock();
    let peer = world.cm.ids.of("rdma_get_dst_port", id).peer;
    peer.map_or(0, |addr| addr.port().to_be())
}
