//! Each function that a program takes for granted exists, links, and has C's signature.
//!
//! `tests/build.rs` builds this file in several ways too.
#![cfg(not(miri))]

use std::ffi::{c_int, c_uint, c_void};

use rdma_core_sys::*;

/// Takes the address of each function under the type it must have, and returns the addresses.
macro_rules! addresses {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        [$({
            let function: unsafe fn($($arg),*) $(-> $ret)? = $name;
            (stringify!($name), function as usize)
        }),*]
    };
}

/// The same for functions that the libraries export.
macro_rules! exported {
    ($($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        [$({
            let function: unsafe extern "C" fn($($arg),*) $(-> $ret)? = $name;
            (stringify!($name), function as usize)
        }),*]
    };
}

fn none_is_null(functions: &[(&str, usize)]) {
    for (name, address) in functions {
        assert_ne!(*address, 0, "{name}");
    }
}

#[test]
fn verbs_inlines_have_the_c_signatures() {
    none_is_null(&addresses! {
        ibv_post_send: fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
        ibv_post_recv: fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
        ibv_post_srq_recv: fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;
        ibv_poll_cq: fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
        ibv_req_notify_cq: fn(*mut ibv_cq, c_int) -> c_int;
        ibv_create_cq_ex: fn(*mut ibv_context, *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
        ibv_create_qp_ex: fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
        ibv_create_srq_ex: fn(*mut ibv_context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq;
        ibv_query_device_ex: fn(*mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32) -> c_int;
        ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32) -> isize;
        ibv_advise_mr: fn(*mut ibv_pd, ibv_advise_mr_advice, u32, *mut ibv_sge, u32) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_uint) -> *mut ibv_mr;
        ibv_reg_mr_iova: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        ibv_start_poll: fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
        ibv_next_poll: fn(*mut ibv_cq_ex) -> c_int;
        ibv_end_poll: fn(*mut ibv_cq_ex);
        ibv_wr_start: fn(*mut ibv_qp_ex);
        ibv_wr_complete: fn(*mut ibv_qp_ex) -> c_int;
        ibv_wr_abort: fn(*mut ibv_qp_ex);
        ibv_wr_atomic_write: fn(*mut ibv_qp_ex, u32, u64, *const c_void);
        ibv_wr_flush: fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);
    });
}

#[test]
fn rdma_inlines_have_the_c_signatures() {
    none_is_null(&addresses! {
        rdma_get_local_addr: fn(*mut rdma_cm_id) -> *mut libc::sockaddr;
        rdma_get_peer_addr: fn(*mut rdma_cm_id) -> *mut libc::sockaddr;
        rdma_post_recv: fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr) -> c_int;
        rdma_post_send: fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int) -> c_int;
        rdma_post_read: fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, u64, u32) -> c_int;
        rdma_post_write: fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, u64, u32) -> c_int;
        rdma_post_recvv: fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int) -> c_int;
        rdma_post_sendv: fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int) -> c_int;
        rdma_post_readv: fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int, u64, u32) -> c_int;
        rdma_post_writev: fn(*mut rdma_cm_id, *mut c_void, *mut ibv_sge, c_int, c_int, u64, u32) -> c_int;
        rdma_post_ud_send: fn(*mut rdma_cm_id, *mut c_void, *mut c_void, usize, *mut ibv_mr, c_int, *mut ibv_ah, u32) -> c_int;
        rdma_get_send_comp: fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int;
        rdma_get_recv_comp: fn(*mut rdma_cm_id, *mut ibv_wc) -> c_int;
    });
}

#[test]
fn exported_functions_link() {
    none_is_null(&exported! {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_qp_to_qp_ex: fn(*mut ibv_qp) -> *mut ibv_qp_ex;
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_establish: fn(*mut rdma_cm_id) -> c_int;
        rdma_init_qp_attr: fn(*mut rdma_cm_id, *mut ibv_qp_attr, *mut c_int) -> c_int;
    });
}

#[cfg(not(rdma_fake))]
#[test]
fn the_libraries_are_loaded_at_the_start_and_the_drivers_by_them() {
    // Called, or a linker that drops what is not needed would rightly drop the library.
    // SAFETY: a number that no event has is data to this function.
    let text = unsafe { rdma_event_str(rdma_cm_event_type(9999)) };
    assert!(!text.is_null());
    let program = std::env::current_exe().expect("this program has a path");
    let output = std::process::Command::new("readelf")
        .arg("-d")
        .arg(&program)
        .output()
        .expect("readelf is installed with the C compiler");
    let text = String::from_utf8_lossy(&output.stdout);
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        assert!(
            needed.contains(&library),
            "{library} is not needed: {needed:?}"
        );
    }
    assert!(
        !needed.iter().any(|name| name.contains("rdmav")),
        "a driver is: {needed:?}"
    );
}

#[test]
fn the_library_answers() {
    // SAFETY: a number that no status has is data to this function.
    let text = unsafe { ibv_wc_status_str(ibv_wc_status(9999)) };
    assert!(!text.is_null());
    // SAFETY: the function returns a static string.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    assert!(!text.is_empty());
}
