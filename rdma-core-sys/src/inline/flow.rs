//! Flow steering.

use core::ffi::c_int;

use crate::bindings::{
    ibv_context, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr, ibv_qp,
};

extended_ops! {
    /// Attaches a queue pair to a flow of packets.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `qp` is a live queue pair.
    /// - `flow` points to the attributes, followed in memory by as many specifications as they say.
    fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow
        = ibv_create_flow of qp.context else null_unsupported;

    /// Ends a flow.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `flow_id` is a live flow, and not used after this has returned 0.
    fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int
        = ibv_destroy_flow of flow_id.context else unsupported;

    /// Creates an encryption action for flows.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `ctx` is an open context.
    /// - `esp` points to a filled struct whose pointers cover the lengths it says.
    fn ibv_create_flow_action_esp(ctx: *mut ibv_context, esp: *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action
        = create_flow_action_esp of ctx else null_unsupported;

    /// Changes an encryption action.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `action` is a live flow action.
    /// - `esp` points to a filled struct whose pointers cover the lengths it says.
    fn ibv_modify_flow_action_esp(action: *mut ibv_flow_action, esp: *mut ibv_flow_action_esp_attr) -> c_int
        = modify_flow_action_esp of action.context else unsupported;

    /// Destroys a flow action.
    ///
    /// Returns 0 or an errno value (`EBUSY` while a flow uses it).
    ///
    /// # Safety
    /// - `action` is a live flow action, and not used after this has returned 0.
    fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int
        = destroy_flow_action of action.context else unsupported;
}
