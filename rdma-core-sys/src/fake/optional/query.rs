//! Extended device attributes: every field another number, so that one taken for another is found out.

use crate::bindings::*;

/// Adds what only the device with optional operations has.
pub(in super::super) fn extend(attr: &mut ibv_device_attr_ex) {
    *attr = ibv_device_attr_ex {
        odp_caps: ibv_odp_caps {
            general_caps: 0b11,
            per_transport_caps: ibv_odp_caps__bindgen_ty_1 {
                rc_odp_caps: 0b01_1111,
                uc_odp_caps: 0b00_0001,
                ud_odp_caps: 0b00_0011,
            },
        },
        tso_caps: ibv_tso_caps {
            max_tso: 1 << 18,
            supported_qpts: 1 << 8,
        },
        rss_caps: ibv_rss_caps {
            supported_qpts: 1 << 4,
            max_rwq_indirection_tables: 101,
            max_rwq_indirection_table_size: 102,
            rx_hash_fields_mask: 1 << 31,
            rx_hash_function: 1,
        },
        max_wq_type_rq: 103,
        packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: 104,
            qp_rate_limit_max: 105,
            supported_qpts: 1 << 2,
        },
        raw_packet_caps: 0b101,
        tm_caps: ibv_tm_caps {
            max_rndv_hdr_size: 106,
            max_num_tags: 107,
            flags: 1,
            max_ops: 108,
            max_sge: 109,
        },
        cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: super::extensions::MAX_COUNT,
            max_cq_period: super::extensions::MAX_PERIOD,
        },
        max_dm_size: 110,
        pci_atomic_caps: ibv_pci_atomic_caps {
            fetch_add: 1 << 2,
            swap: 1 << 3,
            compare_swap: 1 << 4,
        },
        xrc_odp_caps: 0b10_0000,
        ..*attr
    };
}
