//! A port's attributes with the field that rdma-core 49 added at their end.

use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr;

use crate::bindings::{ibv_context, ibv_mtu, ibv_port_attr, ibv_port_state};
use crate::inline::ibv_query_port;

/// What `ibv_port_attr` is in the headers of rdma-core 49 and later. Only [`ibv_query_port_v49`] fills it: the last field
/// lies beyond the end of the struct that everything else here knows.
#[repr(C)]
#[derive(Debug, Copy, Clone)]
#[allow(
    missing_docs,
    reason = "the fields of `ibv_port_attr`, documented by the C manual pages"
)]
pub struct ibv_port_attr_v49 {
    pub state: ibv_port_state,
    pub max_mtu: ibv_mtu,
    pub active_mtu: ibv_mtu,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// The speed of one lane as a bit, for speeds beyond the 8 bits of `active_speed`; 0 where the library, the kernel or the
    /// device does not tell, and then `active_speed` holds.
    pub active_speed_ex: u32,
}

const _: () = assert!(
    offset_of!(ibv_port_attr_v49, port_cap_flags2) == offset_of!(ibv_port_attr, port_cap_flags2)
        && size_of::<ibv_port_attr_v49>() >= size_of::<ibv_port_attr>(),
    "the older struct is a prefix of the newer"
);

impl Default for ibv_port_attr_v49 {
    fn default() -> Self {
        // SAFETY: integers and newtypes over them are valid with all bits zero.
        unsafe { core::mem::zeroed() }
    }
}

/// Reads the attributes of a port, with those that rdma-core 49 added.
///
/// Returns 0 or an errno value. All of `*port_attr` is written on success; fields that the library or the kernel is too old
/// to know are 0. In C this is `ibv_query_port` with newer headers.
///
/// # Safety
/// - `context` is an open context.
/// - `port_attr` is valid for a write.
#[inline]
pub unsafe fn ibv_query_port_v49(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr_v49,
) -> c_int {
    // An older library clears what it does not know, a newer one writes no more than it is told there is room for.
    // SAFETY: `port_attr` is valid for a write of the struct.
    unsafe { ptr::write_bytes(port_attr, 0, 1) };
    if let Some(query) = verbs_get_ctx_op!(context, query_port) {
        let size = size_of::<ibv_port_attr_v49>();
        // SAFETY: the context is open and `port_attr` has room for the size told.
        return unsafe { query(context, port_num, port_attr.cast(), size) };
    }
    // SAFETY: the context is open and the older struct is a prefix of the newer.
    unsafe { ibv_query_port(context, port_num, port_attr.cast()) }
}
