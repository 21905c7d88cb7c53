//! What the fake does not have: the symbols are there, and answer as a provider without the operation does.

use core::ffi::{c_char, c_int, c_uint};

use super::{minus_one, null};
use crate::bindings::*;

/// Functions that return NULL and set errno.
macro_rules! null_functions {
    ($(fn $name:ident($($arg:ty),*) -> $ret:ty;)*) => {$(
        /// # Safety
        /// - As in C.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $arg),*) -> *mut $ret {
            null(libc::EOPNOTSUPP)
        }
    )*};
}

/// Functions that return an errno.
macro_rules! errno_functions {
    ($(fn $name:ident($($arg:ty),*);)*) => {$(
        /// # Safety
        /// - As in C.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $arg),*) -> c_int {
            libc::EOPNOTSUPP
        }
    )*};
}

/// Functions that return -1 and set errno.
macro_rules! minus_one_functions {
    ($(fn $name:ident($($arg:ty),*);)*) => {$(
        /// # Safety
        /// - As in C.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($(_: $arg),*) -> c_int {
            minus_one(libc::EOPNOTSUPP)
        }
    )*};
}

/// Functions that return nothing and have nothing to work on.
macro_rules! void_functions {
    ($(fn $name:ident($arg:ty);)*) => {$(
        /// # Safety
        /// - As in C.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(_: $arg) {
            super::violation(concat!(stringify!($name), " was given something that the fake device never gives out"))
        }
    )*};
}

null_functions! {
    fn ibv_import_device(c_int) -> ibv_context;
    fn ibv_import_pd(*mut ibv_context, u32) -> ibv_pd;
    fn ibv_import_mr(*mut ibv_pd, u32) -> ibv_mr;
    fn ibv_import_dm(*mut ibv_context, u32) -> ibv_dm;
    fn ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> ibv_mr;
}

errno_functions! {
    fn ibv_resolve_eth_l2_from_gid(*mut ibv_context, *mut ibv_ah_attr, *mut u8, *mut u16);
}

minus_one_functions! {
    fn rdma_create_ep(*mut *mut rdma_cm_id, *mut rdma_addrinfo, *mut ibv_pd, *mut ibv_qp_init_attr);
    fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr);
    fn rdma_create_qp_ex(*mut rdma_cm_id, *mut ibv_qp_init_attr_ex);
    fn rdma_get_request(*mut rdma_cm_id, *mut *mut rdma_cm_id);
    fn rdma_create_srq(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_srq_init_attr);
    fn rdma_create_srq_ex(*mut rdma_cm_id, *mut ibv_srq_init_attr_ex);
}

void_functions! {
    fn ibv_unimport_pd(*mut ibv_pd);
    fn ibv_unimport_mr(*mut ibv_mr);
    fn ibv_unimport_dm(*mut ibv_dm);
    fn rdma_destroy_ep(*mut rdma_cm_id);
    fn rdma_destroy_qp(*mut rdma_cm_id);
    fn rdma_destroy_srq(*mut rdma_cm_id);
}

/// Copying of pinned pages at fork needs no preparation here.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}

/// Names for values, which nothing here depends on: one text for all.
macro_rules! texts {
    ($(fn $name:ident($arg:ty);)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(_: $arg) -> *const c_char {
            c"fake".as_ptr()
        }
    )*};
}

texts! {
    fn ibv_wc_status_str(ibv_wc_status);
    fn ibv_node_type_str(ibv_node_type);
    fn ibv_port_state_str(ibv_port_state);
    fn ibv_event_type_str(ibv_event_type);
    fn rdma_event_str(rdma_cm_event_type);
}

/// Conversions of static rates, of which only "the port's" is known.
macro_rules! rates {
    ($(fn $name:ident($arg:ty) -> $ret:ty = $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(_: $arg) -> $ret {
            $value
        }
    )*};
}

rates! {
    fn ibv_rate_to_mult(ibv_rate) -> c_int = -1;
    fn mult_to_ibv_rate(c_int) -> ibv_rate = ibv_rate::IBV_RATE_MAX;
    fn ibv_rate_to_mbps(ibv_rate) -> c_int = -1;
    fn mbps_to_ibv_rate(c_int) -> ibv_rate = ibv_rate::IBV_RATE_MAX;
}

const _: () = assert!(size_of::<c_uint>() == 4, "enums are 32 bits");
