//! A C enum of Rust takes any value: one that these bindings do not know stays what it is.

#[cfg(not(miri))]
mod common;

use rdma_core_sys::*;

/// Runs a check on every newtype over a C enum, and lists their names.
macro_rules! newtypes {
    ($($name:ident),*) => {
        /// The names of the newtypes that the test below covers.
        #[cfg(not(miri))]
        const COVERED: &[&str] = &[$(stringify!($name)),*];

        #[test]
        fn every_raw_value_is_a_value() {
            $(for raw in (0..=255).chain([u32::MAX]) {
                let integer: u32 = raw;
                // SAFETY: the newtype is transparent over a 32-bit integer, of which every bit pattern is valid.
                let value = unsafe { std::mem::transmute::<u32, $name>(integer) };
                assert_eq!(value, $name(integer.cast_into()), "{}", stringify!($name));
                assert_eq!(u32::from_ne_bytes(value.0.to_ne_bytes()), integer, "{}", stringify!($name));
                if [0, 200, u32::MAX].contains(&raw) {
                    assert_eq!(format!("{value:?}"), format!("{}({})", stringify!($name), value.0));
                }
            })*
        }
    };
}

/// The same bits as the integer that a newtype is over, which may be signed.
trait CastInto<T> {
    fn cast_into(self) -> T;
}

impl CastInto<u32> for u32 {
    fn cast_into(self) -> u32 {
        self
    }
}

impl CastInto<i32> for u32 {
    fn cast_into(self) -> i32 {
        self.cast_signed()
    }
}

#[rustfmt::skip]
newtypes! {
        ib_uverbs_flow_action_esp_keymat, ib_uverbs_flow_action_esp_replay,
        ib_uverbs_advise_mr_advice, ibv_gid_type, ibv_device_cap_flags, ibv_fork_status,
        ibv_atomic_cap, ibv_dm_mask, ibv_odp_transport_cap_bits, ibv_odp_general_caps,
        ibv_rx_hash_function_flags, ibv_rx_hash_fields, ibv_raw_packet_caps, ibv_tm_cap_flags,
        ibv_pci_atomic_op_size, ibv_mtu, ibv_port_state, ibv_port_cap_flags,
        ibv_port_cap_flags2, ibv_event_type, ibv_wc_status, ibv_wc_opcode,
        ibv_create_cq_wc_flags, ibv_wc_flags, ibv_access_flags, ibv_xrcd_init_attr_mask,
        ibv_rereg_mr_flags, ibv_mw_type, ibv_rate, ibv_srq_attr_mask, ibv_srq_type,
        ibv_srq_init_attr_mask, ibv_wq_type, ibv_wq_init_attr_mask, ibv_wq_flags, ibv_wq_state,
        ibv_wq_attr_mask, ibv_ind_table_init_attr_mask, ibv_qp_type, ibv_qp_init_attr_mask,
        ibv_qp_create_flags, ibv_qp_create_send_ops_flags, ibv_qp_open_attr_mask,
        ibv_qp_attr_mask, ibv_qp_state, ibv_mig_state, ibv_wr_opcode, ibv_send_flags,
        ibv_ops_wr_opcode, ibv_ops_flags, ibv_cq_attr_mask, ibv_flow_flags, ibv_flow_attr_type,
        ibv_flow_spec_type, ibv_flow_action_esp_mask, ibv_cq_init_attr_mask,
        ibv_create_cq_attr_flags, ibv_parent_domain_init_attr_mask, ibv_counter_description,
        ibv_read_counters_flags, ibv_values_mask, rdma_cm_event_type, rdma_port_space,
        rdma_cm_join_mc_attr_mask, rdma_cm_mc_join_flags, ibv_placement_type,
        ibv_selectivity_level, ibv_node_type, ibv_transport_type, ibv_rereg_mr_err_code, ibv_tmh_op,
        ibv_query_qp_data_in_order_flags, ibv_query_qp_data_in_order_caps, ibv_mr_init_attr_mask,
        ibv_dmah_init_attr_mask, ibv_tph_mem_type, ibv_comp_cntr_type, ibv_qp_attach_comp_cntr_op
}

#[cfg(not(miri))]
#[test]
fn no_enum_is_left_out_and_none_is_closed() {
    for path in [
        "src/bindings.rs",
        "src/later/constants.rs",
        "src/later/structs.rs",
    ] {
        assert!(
            !common::source(path).contains("pub enum "),
            "{path}: a closed enum would make an unknown value undefined behaviour"
        );
    }
    let later = common::handwritten_names("src/later/constants.rs", "pub struct ");
    assert!(later.len() >= 9, "{later:?}");
    for name in common::declarations().enums.keys().chain(&later) {
        assert!(COVERED.contains(&name.as_str()), "{name} is not covered");
    }
}
