//! Extended connection capabilities, carried from one side to the other.

use core::ffi::{c_int, c_void};
use std::prelude::rust_2024::*;

use super::super::{by_errno, enter};
use super::connection::{Side, Stage};
use crate::bindings::{ibv_ece, rdma_cm_id};

/// The reject reason of [`rdma_reject_ece`].
const VENDOR_OPTION: c_int = 35;

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let call = "rdma_set_local_ece";
    by_errno(enter(call).map(|mut world| {
        // SAFETY: the caller gives a filled struct.
        world.cm.ids.of(call, id).ece = unsafe { ece.read() };
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    let call = "rdma_get_remote_ece";
    by_errno(enter(call).map(|mut world| {
        let told = match world.connection_of(call, id) {
            Ok((_, Side::Passive, connection)) => connection.request.ece,
            Ok((_, Side::Active, connection)) if connection.stage != Stage::Requested => {
                connection.answer.ece
            }
            _ => ibv_ece::default(),
        };
        // SAFETY: the caller gives a place for the struct.
        unsafe { ece.write(told) };
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    // SAFETY: forwarded to the caller.
    unsafe {
        super::handshake::reject(
            "rdma_reject_ece",
            id,
            private_data,
            private_data_len,
            VENDOR_OPTION,
        )
    }
}
