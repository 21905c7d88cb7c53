//! The GID table.

use core::ffi::c_int;

use libc::ssize_t;

use crate::bindings::{
    _ibv_query_gid_ex, _ibv_query_gid_table, IB_ROCE_UDP_ENCAP_VALID_PORT_MIN, ibv_context,
    ibv_gid_entry,
};

/// Reads one entry of a port's GID table.
///
/// Returns 0 or an errno value (`ENODATA` for an empty entry).
///
/// # Safety
/// - `context` is an open context.
/// - `entry` is valid for a write.
#[inline]
pub unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: the context is open and `entry` has room for the size told.
    unsafe { _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, size) }
}

/// Reads all valid GID table entries of all ports.
///
/// Returns how many entries were written, or a negative errno value.
///
/// # Safety
/// - `context` is an open context.
/// - `entries` is valid for writes of `max_entries` entries.
#[inline]
pub unsafe fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
) -> ssize_t {
    let size = size_of::<ibv_gid_entry>();
    // SAFETY: the context is open and `entries` has room for that many of the size told.
    unsafe { _ibv_query_gid_table(context, entries, max_entries, flags, size) }
}

/// The UDP source port that RoCE v2 makes of a flow label.
#[inline]
#[must_use]
pub const fn ibv_flow_label_to_udp_sport(fl: u32) -> u16 {
    let low = fl & 0x0_3fff;
    let high = fl & 0xf_c000;
    let port = (low ^ (high >> 14)) | IB_ROCE_UDP_ENCAP_VALID_PORT_MIN;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "both parts are below 1 << 16"
    )]
    let port = port as u16;
    port
}
