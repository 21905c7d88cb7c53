//! Functions that only compute.

use std::ffi::c_int;

use rdma_core_sys::*;

use crate::fixture::{Fixture, Reach};
use crate::shim;

#[test]
fn the_next_key_of_a_window_counts_in_its_low_byte() {
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<unsafe extern "C" fn(u32) -> u32>("ibv_inc_rkey") };
    for high in [0, 0x0000_0100, 0x1234_5600, 0xffff_ff00] {
        for low in 0..=255 {
            let rkey = high | low;
            // SAFETY: the function only computes.
            assert_eq!(ibv_inc_rkey(rkey), unsafe { c(rkey) }, "{rkey:#x}");
        }
    }
    assert_eq!(ibv_inc_rkey(0xffff_ffff), 0xffff_ff00);
}

#[test]
fn every_flow_label_gives_the_port_that_c_gives() {
    // SAFETY: the type is that of the header's function.
    let c =
        unsafe { shim::inline::<unsafe extern "C" fn(u32) -> u16>("ibv_flow_label_to_udp_sport") };
    for label in (0..=IB_GRH_FLOWLABEL_MASK).chain([1 << 20, u32::MAX]) {
        // SAFETY: the function only computes.
        let theirs = unsafe { c(label) };
        assert_eq!(ibv_flow_label_to_udp_sport(label), theirs, "{label:#x}");
    }
}

#[test]
fn a_set_of_queue_pair_types_has_the_types_that_c_says() {
    // SAFETY: the type is that of the header's function.
    let c = unsafe {
        shim::inline::<unsafe extern "C" fn(u32, ibv_qp_type) -> c_int>("ibv_is_qpt_supported")
    };
    for bit in 0..31 {
        for caps in [0, 1 << bit, !(1 << bit), u32::MAX] {
            let kind = ibv_qp_type(bit);
            // SAFETY: the function only computes.
            let theirs = unsafe { c(caps, kind) };
            assert_eq!(ibv_is_qpt_supported(caps, kind), theirs, "{caps:#x} {bit}");
        }
    }
    // The shift of C is undefined here.
    assert_eq!(
        ibv_is_qpt_supported(u32::MAX, ibv_qp_type::IBV_QPT_DRIVER),
        0
    );
}

#[test]
fn the_extended_context_is_found_where_c_finds_it() {
    // SAFETY: the type is that of the header's function.
    let c = unsafe {
        shim::inline::<unsafe extern "C" fn(*mut ibv_context) -> *mut verbs_context>(
            "verbs_get_ctx",
        )
    };
    let f = Fixture::new();
    // SAFETY: the context is live.
    let ours = unsafe { verbs_get_ctx(f.context) };
    assert_eq!(ours, f.vctx);
    // A struct that has grown at its front begins earlier in C.
    // SAFETY: the context is live.
    let theirs = unsafe { c(f.context) };
    assert!(theirs <= ours, "{theirs:?} {ours:?}");
    f.set(Reach::NotExtended, 0);
    // SAFETY: the context is live.
    assert!(unsafe { verbs_get_ctx(f.context) }.is_null());
    // SAFETY: as above.
    assert!(unsafe { c(f.context) }.is_null());
}

#[test]
fn an_extended_queue_is_its_plain_queue() {
    // SAFETY: the type is that of the header's function.
    let c = unsafe {
        shim::inline::<unsafe extern "C" fn(*mut ibv_cq_ex) -> *mut ibv_cq>("ibv_cq_ex_to_cq")
    };
    let f = Fixture::new();
    // SAFETY: the function only computes.
    assert_eq!(ibv_cq_ex_to_cq(f.cq_ex), unsafe { c(f.cq_ex) });
}

#[test]
fn the_addresses_of_an_id_are_where_c_finds_them() {
    type Addr = unsafe extern "C" fn(*mut rdma_cm_id) -> *mut libc::sockaddr;
    // SAFETY: the type is that of the header's function.
    let local = unsafe { shim::inline::<Addr>("rdma_get_local_addr") };
    // SAFETY: as above.
    let peer = unsafe { shim::inline::<Addr>("rdma_get_peer_addr") };
    let f = Fixture::new();
    // SAFETY: the id is live.
    let ours = unsafe { rdma_get_local_addr(f.id) };
    // SAFETY: the id is live.
    assert_eq!(ours, unsafe { local(f.id) });
    // SAFETY: the id is live.
    let ours = unsafe { rdma_get_peer_addr(f.id) };
    // SAFETY: the id is live.
    assert_eq!(ours, unsafe { peer(f.id) });
}
