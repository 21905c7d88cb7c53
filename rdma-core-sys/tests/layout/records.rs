//! The structs and unions to compare: all that the bindings declare.

use std::mem::{align_of, offset_of, size_of};

use rdma_core_sys::*;

use crate::{Field, Record};

/// The size of a field, by the type of a pointer to it.
fn size_of_field<T, F>(_: impl Fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

/// What C calls a field: members of an unnamed member stand for themselves, and what is a keyword in Rust only has no underscore.
fn c_path(path: &str) -> String {
    let path = match path.split_once('.') {
        Some((outer, inner)) if outer.starts_with("__bindgen_anon_") => inner,
        _ => path,
    };
    path.trim_end_matches('_').to_owned()
}

/// Records from the C type, the Rust type and the paths of the fields.
macro_rules! records {
    ($($c_type:literal => $name:ident { $($($path:ident).+),* })*) => {
        vec![$(Record {
            name: stringify!($name),
            c_type: $c_type,
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: vec![$({
                let path = [$(stringify!($path)),+].join(".");
                Field {
                    c_path: c_path(&path),
                    path,
                    offset: offset_of!($name, $($path).+),
                    size: size_of_field(|record: *const $name| {
                        // SAFETY: only the type of the result is used; nothing calls this.
                        unsafe { &raw const (*record).$($path).+ }
                    }),
                }
            }),*],
        }),*]
    };
}

/// All records, with all fields.
#[rustfmt::skip]
pub(crate) fn all() -> Vec<Record> {
    records! {
        "struct ib_uverbs_flow_action_esp_encap" => ib_uverbs_flow_action_esp_encap {
            __bindgen_anon_1.val_ptr, __bindgen_anon_1.val_ptr_data_u64, __bindgen_anon_2.next_ptr,
            __bindgen_anon_2.next_ptr_data_u64, len, type_
        }
        "struct ib_uverbs_flow_action_esp_keymat_aes_gcm" => ib_uverbs_flow_action_esp_keymat_aes_gcm {
            iv, iv_algo, salt, icv_len, key_len, aes_key
        }
        "struct ib_uverbs_flow_action_esp_replay_bmp" => ib_uverbs_flow_action_esp_replay_bmp { size }
        "struct ibv_tmh" => ibv_tmh { opcode, reserved, app_ctx, tag }
        "struct ibv_rvh" => ibv_rvh { va, rkey, len }
        "struct ib_uverbs_flow_action_esp" => ib_uverbs_flow_action_esp {
            spi, seq, tfc_pad, flags, hard_limit_pkts
        }
        "union ibv_gid" => ibv_gid { raw, global }
        "__typeof__(((union ibv_gid *)0)->global)" => ibv_gid__bindgen_ty_1 { subnet_prefix, interface_id }
        "struct ibv_gid_entry" => ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        "struct ibv_alloc_dm_attr" => ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        "struct ibv_dm" => ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        "struct ibv_device_attr" => ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
            max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
            max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
        }
        "struct ibv_query_device_ex_input" => ibv_query_device_ex_input { comp_mask }
        "struct ibv_odp_caps" => ibv_odp_caps { general_caps, per_transport_caps }
        "__typeof__(((struct ibv_odp_caps *)0)->per_transport_caps)" => ibv_odp_caps__bindgen_ty_1 {
            rc_odp_caps, uc_odp_caps, ud_odp_caps
        }
        "struct ibv_tso_caps" => ibv_tso_caps { max_tso, supported_qpts }
        "struct ibv_rss_caps" => ibv_rss_caps {
            supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
            rx_hash_fields_mask, rx_hash_function
        }
        "struct ibv_packet_pacing_caps" => ibv_packet_pacing_caps {
            qp_rate_limit_min, qp_rate_limit_max, supported_qpts
        }
        "struct ibv_tm_caps" => ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
        "struct ibv_cq_moderation_caps" => ibv_cq_moderation_caps { max_cq_count, max_cq_period }
        "struct ibv_pci_atomic_caps" => ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
        "struct ibv_device_attr_ex" => ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
            device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
            raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
            phys_port_cnt_ex
        }
        "struct ibv_port_attr" => ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2
        }
        "struct ibv_async_event" => ibv_async_event { element, event_type }
        "__typeof__(((struct ibv_async_event *)0)->element)" => ibv_async_event__bindgen_ty_1 {
            cq, qp, srq, wq, port_num
        }
        "struct ibv_wc" => ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, __bindgen_anon_1.imm_data,
            __bindgen_anon_1.invalidated_rkey, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits
        }
        "struct ibv_mw_bind_info" => ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        "struct ibv_pd" => ibv_pd { context, handle }
        "struct ibv_td_init_attr" => ibv_td_init_attr { comp_mask }
        "struct ibv_td" => ibv_td { context }
        "struct ibv_xrcd_init_attr" => ibv_xrcd_init_attr { comp_mask, fd, oflags }
        "struct ibv_xrcd" => ibv_xrcd { context }
        "struct ibv_mr" => ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        "struct ibv_mw" => ibv_mw { context, pd, rkey, handle, type_ }
        "struct ibv_global_route" => ibv_global_route {
            dgid, flow_label, sgid_index, hop_limit, traffic_class
        }
        "struct ibv_grh" => ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        "struct ibv_ah_attr" => ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        "struct ibv_srq_attr" => ibv_srq_attr { max_wr, max_sge, srq_limit }
        "struct ibv_srq_init_attr" => ibv_srq_init_attr { srq_context, attr }
        "struct ibv_tm_cap" => ibv_tm_cap { max_num_tags, max_ops }
        "struct ibv_srq_init_attr_ex" => ibv_srq_init_attr_ex {
            srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap
        }
        "struct ibv_wq_init_attr" => ibv_wq_init_attr {
            wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags
        }
        "struct ibv_wq_attr" => ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
        "struct ibv_rwq_ind_table" => ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
        "struct ibv_rwq_ind_table_init_attr" => ibv_rwq_ind_table_init_attr {
            log_ind_tbl_size, ind_tbl, comp_mask
        }
        "struct ibv_qp_cap" => ibv_qp_cap {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data
        }
        "struct ibv_qp_init_attr" => ibv_qp_init_attr {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all
        }
        "struct ibv_rx_hash_conf" => ibv_rx_hash_conf {
            rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask
        }
        "struct ibv_qp_init_attr_ex" => ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags
        }
        "struct ibv_qp_open_attr" => ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        "struct ibv_qp_attr" => ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
        }
        "struct ibv_qp_rate_limit_attr" => ibv_qp_rate_limit_attr {
            rate_limit, max_burst_sz, typical_pkt_sz, comp_mask
        }
        "struct ibv_data_buf" => ibv_data_buf { addr, length }
        "struct ibv_sge" => ibv_sge { addr, length, lkey }
        "struct ibv_send_wr" => ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, __bindgen_anon_1.imm_data,
            __bindgen_anon_1.invalidate_rkey, wr, qp_type, __bindgen_anon_2.bind_mw,
            __bindgen_anon_2.tso
        }
        "__typeof__(((struct ibv_send_wr *)0)->wr)" => ibv_send_wr__bindgen_ty_2 { rdma, atomic, ud }
        "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" => ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
            remote_addr, rkey
        }
        "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" => ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr, compare_add, swap, rkey
        }
        "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" => ibv_send_wr__bindgen_ty_2__bindgen_ty_3 {
            ah, remote_qpn, remote_qkey
        }
        "__typeof__(((struct ibv_send_wr *)0)->qp_type)" => ibv_send_wr__bindgen_ty_3 { xrc }
        "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)" => ibv_send_wr__bindgen_ty_3__bindgen_ty_1 {
            remote_srqn
        }
        "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" => ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw, rkey, bind_info
        }
        "__typeof__(((struct ibv_send_wr *)0)->tso)" => ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
            hdr, hdr_sz, mss
        }
        "struct ibv_recv_wr" => ibv_recv_wr { wr_id, next, sg_list, num_sge }
        "struct ibv_ops_wr" => ibv_ops_wr { wr_id, next, opcode, flags, tm }
        "__typeof__(((struct ibv_ops_wr *)0)->tm)" => ibv_ops_wr__bindgen_ty_1 { unexpected_cnt, handle, add }
        "__typeof__(((struct ibv_ops_wr *)0)->tm.add)" => ibv_ops_wr__bindgen_ty_1__bindgen_ty_1 {
            recv_wr_id, sg_list, num_sge, tag, mask
        }
        "struct ibv_mw_bind" => ibv_mw_bind { wr_id, send_flags, bind_info }
        "struct ibv_srq" => ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        "struct ibv_wq" => ibv_wq {
            context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
            events_completed, comp_mask
        }
        "struct ibv_qp" => ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
            cond, events_completed
        }
        "struct ibv_qp_ex" => ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
            wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
            wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
            wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
            wr_atomic_write
        }
        "struct ibv_ece" => ibv_ece { vendor_id, options, comp_mask }
        "struct ibv_comp_channel" => ibv_comp_channel { context, fd, refcnt }
        "struct ibv_cq" => ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed
        }
        "struct ibv_poll_cq_attr" => ibv_poll_cq_attr { comp_mask }
        "struct ibv_wc_tm_info" => ibv_wc_tm_info { tag, priv_ }
        "struct ibv_cq_ex" => ibv_cq_ex {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll,
            read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
            read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan,
            read_flow_tag, read_tm_info, read_completion_wallclock_ns
        }
        "struct ibv_moderate_cq" => ibv_moderate_cq { cq_count, cq_period }
        "struct ibv_modify_cq_attr" => ibv_modify_cq_attr { attr_mask, moderate }
        "struct ibv_ah" => ibv_ah { context, pd, handle }
        "struct ibv_flow_eth_filter" => ibv_flow_eth_filter { dst_mac, src_mac, ether_type, vlan_tag }
        "struct ibv_flow_spec_eth" => ibv_flow_spec_eth { type_, size, val, mask }
        "struct ibv_flow_ipv4_filter" => ibv_flow_ipv4_filter { src_ip, dst_ip }
        "struct ibv_flow_spec_ipv4" => ibv_flow_spec_ipv4 { type_, size, val, mask }
        "struct ibv_flow_ipv4_ext_filter" => ibv_flow_ipv4_ext_filter {
            src_ip, dst_ip, proto, tos, ttl, flags
        }
        "struct ibv_flow_spec_ipv4_ext" => ibv_flow_spec_ipv4_ext { type_, size, val, mask }
        "struct ibv_flow_ipv6_filter" => ibv_flow_ipv6_filter {
            src_ip, dst_ip, flow_label, next_hdr, traffic_class, hop_limit
        }
        "struct ibv_flow_spec_ipv6" => ibv_flow_spec_ipv6 { type_, size, val, mask }
        "struct ibv_flow_esp_filter" => ibv_flow_esp_filter { spi, seq }
        "struct ibv_flow_spec_esp" => ibv_flow_spec_esp { type_, size, val, mask }
        "struct ibv_flow_tcp_udp_filter" => ibv_flow_tcp_udp_filter { dst_port, src_port }
        "struct ibv_flow_spec_tcp_udp" => ibv_flow_spec_tcp_udp { type_, size, val, mask }
        "struct ibv_flow_gre_filter" => ibv_flow_gre_filter { c_ks_res0_ver, protocol, key }
        "struct ibv_flow_spec_gre" => ibv_flow_spec_gre { type_, size, val, mask }
        "struct ibv_flow_mpls_filter" => ibv_flow_mpls_filter { label }
        "struct ibv_flow_spec_mpls" => ibv_flow_spec_mpls { type_, size, val, mask }
        "struct ibv_flow_tunnel_filter" => ibv_flow_tunnel_filter { tunnel_id }
        "struct ibv_flow_spec_tunnel" => ibv_flow_spec_tunnel { type_, size, val, mask }
        "struct ibv_flow_spec_action_tag" => ibv_flow_spec_action_tag { type_, size, tag_id }
        "struct ibv_flow_spec_action_drop" => ibv_flow_spec_action_drop { type_, size }
        "struct ibv_flow_spec_action_handle" => ibv_flow_spec_action_handle { type_, size, action }
        "struct ibv_flow_spec_counter_action" => ibv_flow_spec_counter_action { type_, size, counters }
        "struct ibv_flow_spec" => ibv_flow_spec {
            __bindgen_anon_1.hdr, __bindgen_anon_1.eth, __bindgen_anon_1.ipv4,
            __bindgen_anon_1.tcp_udp, __bindgen_anon_1.ipv4_ext, __bindgen_anon_1.ipv6,
            __bindgen_anon_1.esp, __bindgen_anon_1.tunnel, __bindgen_anon_1.gre,
            __bindgen_anon_1.mpls, __bindgen_anon_1.flow_tag, __bindgen_anon_1.drop,
            __bindgen_anon_1.handle, __bindgen_anon_1.flow_count
        }
        "__typeof__(((struct ibv_flow_spec *)0)->hdr)" => ibv_flow_spec__bindgen_ty_1__bindgen_ty_1 {
            type_, size
        }
        "struct ibv_flow_attr" => ibv_flow_attr {
            comp_mask, type_, size, priority, num_of_specs, port, flags
        }
        "struct ibv_flow" => ibv_flow { comp_mask, context, handle }
        "struct ibv_flow_action" => ibv_flow_action { context }
        "struct ibv_flow_action_esp_attr" => ibv_flow_action_esp_attr {
            esp_attr, keymat_proto, keymat_len, keymat_ptr, replay_proto, replay_len, replay_ptr,
            esp_encap, comp_mask, esn
        }
        "struct _ibv_device_ops" => _ibv_device_ops { _dummy1, _dummy2 }
        "struct ibv_device" => ibv_device {
            _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path
        }
        "struct ibv_context_ops" => ibv_context_ops {
            _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
            _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
            _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
            _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
            _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp,
            _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
            _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event
        }
        "struct ibv_context" => ibv_context {
            device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat
        }
        "struct ibv_cq_init_attr_ex" => ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain
        }
        "struct ibv_parent_domain_init_attr" => ibv_parent_domain_init_attr {
            pd, td, comp_mask, alloc, free, pd_context
        }
        "struct ibv_counters_init_attr" => ibv_counters_init_attr { comp_mask }
        "struct ibv_counters" => ibv_counters { context }
        "struct ibv_counter_attach_attr" => ibv_counter_attach_attr { counter_desc, index, comp_mask }
        "struct ibv_values_ex" => ibv_values_ex { comp_mask, raw_clock }
        "struct verbs_context" => verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
            create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
            destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
            dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table,
            create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex,
            priv_, query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow,
            ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd,
            close_xrcd, _ABI_placeholder3, sz, context
        }
        "struct ibv_sa_path_rec" => ibv_sa_path_rec {
            dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
            numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
            packet_life_time, preference
        }
        "struct ibv_sa_mcmember_rec" => ibv_sa_mcmember_rec {
            mgid, port_gid, qkey, mlid, mtu_selector, mtu, traffic_class, pkey, rate_selector, rate,
            packet_life_time_selector, packet_life_time, sl, flow_label, hop_limit, scope,
            join_state, proxy_join
        }
        "struct ibv_sa_service_rec" => ibv_sa_service_rec {
            id, gid, pkey, lease, key, name, data8, data16, data32, data64
        }
        "struct ibv_path_record" => ibv_path_record {
            service_id, dgid, sgid, dlid, slid, flowlabel_hoplimit, tclass, reversible_numpath,
            pkey, qosclass_sl, mtu, rate, packetlifetime, preference, reserved
        }
        "struct ibv_path_data" => ibv_path_data { flags, reserved, path }
        "struct rdma_ib_addr" => rdma_ib_addr { sgid, dgid, pkey }
        "struct rdma_addr" => rdma_addr {
            __bindgen_anon_1.src_addr, __bindgen_anon_1.src_sin, __bindgen_anon_1.src_sin6,
            __bindgen_anon_1.src_storage, __bindgen_anon_2.dst_addr, __bindgen_anon_2.dst_sin,
            __bindgen_anon_2.dst_sin6, __bindgen_anon_2.dst_storage, addr
        }
        "__typeof__(((struct rdma_addr *)0)->addr)" => rdma_addr__bindgen_ty_3 { ibaddr }
        "struct rdma_route" => rdma_route { addr, path_rec, num_paths }
        "struct rdma_event_channel" => rdma_event_channel { fd }
        "struct rdma_cm_id" => rdma_cm_id {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type
        }
        "struct rdma_conn_param" => rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num
        }
        "struct rdma_ud_param" => rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        "struct rdma_cm_event" => rdma_cm_event { id, listen_id, event, status, param }
        "__typeof__(((struct rdma_cm_event *)0)->param)" => rdma_cm_event__bindgen_ty_1 { conn, ud }
        "struct rdma_addrinfo" => rdma_addrinfo {
            ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
            ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len,
            ai_connect, ai_next
        }
        "struct rdma_cm_join_mc_attr_ex" => rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
    }
}

/// Records of later releases, each with a word that headers have when they have the record in this form.
#[rustfmt::skip]
pub(crate) fn later() -> Vec<(Record, &'static str)> {
    let records: Vec<Record> = records! {
        "struct ibv_dmah" => ibv_dmah { context }
        "struct ibv_dmah_init_attr" => ibv_dmah_init_attr { comp_mask, cpu_id, ph, tph_mem_type }
        "struct ibv_mr_init_attr" => ibv_mr_init_attr {
            length, access, comp_mask, iova, addr, fd, fd_offset, dmah, buf
        }
        "struct ibv_fd_arr" => ibv_fd_arr { arr, count }
        "struct ibv_comp_cntr_caps" => ibv_comp_cntr_caps { max_value, max_counters, supported_qp_attach_ops }
        "struct ibv_comp_cntr" => ibv_comp_cntr { context, handle }
        "struct ibv_comp_cntr_init_attr" => ibv_comp_cntr_init_attr { comp_mask, type_, flags }
        "struct ibv_qp_attach_comp_cntr_attr" => ibv_qp_attach_comp_cntr_attr { comp_mask, op_mask }
        "struct ibv_port_attr" => ibv_port_attr_v49 {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid,
            sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
            flags, port_cap_flags2, active_speed_ex
        }
    };
    let word = |name: &'static str| match name {
        "ibv_port_attr_v49" => "active_speed_ex",
        // Its last field came later than the rest.
        "ibv_mr_init_attr" => "IBV_REG_MR_MASK_BUF",
        _ => name,
    };
    records.into_iter().map(|record| { let word = word(record.name); (record, word) }).collect()
}
