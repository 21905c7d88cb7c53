//! Names for the unnamed unions and structs of the headers.
//!
//! The generator numbers them in order of appearance; these aliases say what they are.

use crate::bindings;

/// [`ibv_gid::global`](crate::ibv_gid): subnet prefix and interface id, both big endian.
pub type ibv_gid_global = bindings::ibv_gid__bindgen_ty_1;
/// [`ibv_async_event::element`](crate::ibv_async_event): which object the event is about.
pub type ibv_async_event_element = bindings::ibv_async_event__bindgen_ty_1;
/// The unnamed union of [`ibv_wc`](crate::ibv_wc), field `__bindgen_anon_1`: `imm_data` (big endian) or `invalidated_rkey`.
pub type ibv_wc_imm = bindings::ibv_wc__bindgen_ty_1;
/// The first unnamed union of [`ibv_send_wr`](crate::ibv_send_wr), field `__bindgen_anon_1`: `imm_data` (big endian) or
/// `invalidate_rkey`.
pub type ibv_send_wr_imm = bindings::ibv_send_wr__bindgen_ty_1;
/// [`ibv_send_wr::wr`](crate::ibv_send_wr): `rdma`, `atomic` or `ud`.
pub type ibv_send_wr_op = bindings::ibv_send_wr__bindgen_ty_2;
/// `ibv_send_wr::wr.rdma`: the target of a write or read.
pub type ibv_send_wr_rdma = bindings::ibv_send_wr__bindgen_ty_2__bindgen_ty_1;
/// `ibv_send_wr::wr.atomic`: the target and operands of an atomic.
pub type ibv_send_wr_atomic = bindings::ibv_send_wr__bindgen_ty_2__bindgen_ty_2;
/// `ibv_send_wr::wr.ud`: the destination of a datagram.
pub type ibv_send_wr_ud = bindings::ibv_send_wr__bindgen_ty_2__bindgen_ty_3;
/// [`ibv_send_wr::qp_type`](crate::ibv_send_wr): what only some queue pair types take.
pub type ibv_send_wr_qp_type = bindings::ibv_send_wr__bindgen_ty_3;
/// `ibv_send_wr::qp_type.xrc`: the remote shared receive queue.
pub type ibv_send_wr_xrc = bindings::ibv_send_wr__bindgen_ty_3__bindgen_ty_1;
/// The second unnamed union of [`ibv_send_wr`](crate::ibv_send_wr), field `__bindgen_anon_2`: `bind_mw` or `tso`.
pub type ibv_send_wr_tail = bindings::ibv_send_wr__bindgen_ty_4;
/// `bind_mw` of [`ibv_send_wr_tail`]: binding of a type 2 memory window.
pub type ibv_send_wr_bind_mw = bindings::ibv_send_wr__bindgen_ty_4__bindgen_ty_1;
/// `tso` of [`ibv_send_wr_tail`]: header and segment size of a segmented send.
pub type ibv_send_wr_tso = bindings::ibv_send_wr__bindgen_ty_4__bindgen_ty_2;
/// [`ibv_ops_wr::tm`](crate::ibv_ops_wr): a tag matching operation.
pub type ibv_ops_wr_tm = bindings::ibv_ops_wr__bindgen_ty_1;
/// `ibv_ops_wr::tm.add`: the tag to add and its receive buffer.
pub type ibv_ops_wr_tm_add = bindings::ibv_ops_wr__bindgen_ty_1__bindgen_ty_1;
/// [`ibv_odp_caps::per_transport_caps`](crate::ibv_odp_caps): on-demand paging by transport.
pub type ibv_odp_per_transport_caps = bindings::ibv_odp_caps__bindgen_ty_1;
/// The unnamed union of [`ibv_flow_spec`](crate::ibv_flow_spec), field `__bindgen_anon_1`.
pub type ibv_flow_spec_kind = bindings::ibv_flow_spec__bindgen_ty_1;
/// `hdr` of [`ibv_flow_spec_kind`]: what all kinds begin with.
pub type ibv_flow_spec_hdr = bindings::ibv_flow_spec__bindgen_ty_1__bindgen_ty_1;
/// The first unnamed union of [`rdma_addr`](crate::rdma_addr), field `__bindgen_anon_1`: the local address.
pub type rdma_addr_src = bindings::rdma_addr__bindgen_ty_1;
/// The second unnamed union of [`rdma_addr`](crate::rdma_addr), field `__bindgen_anon_2`: the peer's address.
pub type rdma_addr_dst = bindings::rdma_addr__bindgen_ty_2;
/// [`rdma_addr::addr`](crate::rdma_addr): transport address.
pub type rdma_addr_transport = bindings::rdma_addr__bindgen_ty_3;
/// [`rdma_cm_event::param`](crate::rdma_cm_event): `conn` for connected services, `ud` for datagram ones.
pub type rdma_cm_event_param = bindings::rdma_cm_event__bindgen_ty_1;
/// The first unnamed union of [`ib_uverbs_flow_action_esp_encap`](crate::ib_uverbs_flow_action_esp_encap), field
/// `__bindgen_anon_1`: the value to wrap in.
pub type ib_uverbs_flow_action_esp_encap_val =
    bindings::ib_uverbs_flow_action_esp_encap__bindgen_ty_1;
/// The second unnamed union of [`ib_uverbs_flow_action_esp_encap`](crate::ib_uverbs_flow_action_esp_encap), field
/// `__bindgen_anon_2`: the next one, or NULL.
pub type ib_uverbs_flow_action_esp_encap_next =
    bindings::ib_uverbs_flow_action_esp_encap__bindgen_ty_2;
