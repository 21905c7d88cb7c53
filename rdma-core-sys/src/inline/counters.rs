//! Counters.

use core::ffi::c_int;

use crate::bindings::{
    ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow,
};

extended_ops! {
    /// Creates a set of counters.
    ///
    /// Returns NULL and sets errno on failure.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `init_attr` points to a filled struct.
    fn ibv_create_counters(context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr) -> *mut ibv_counters
        = create_counters of context else null_unsupported;

    /// Destroys a set of counters.
    ///
    /// Returns 0 or an errno value (`EBUSY` while a flow uses it).
    ///
    /// # Safety
    /// - `counters` is a live set, and not used after this has returned 0.
    fn ibv_destroy_counters(counters: *mut ibv_counters) -> c_int
        = destroy_counters of counters.context else unsupported;

    /// Adds a counter of a flow to a set.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `counters` is a live set and `flow` a live flow, or NULL where the manual page allows it.
    /// - `attr` points to a filled struct.
    fn ibv_attach_counters_point_flow(counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow) -> c_int
        = attach_counters_point_flow of counters.context else unsupported;

    /// Reads a set of counters.
    ///
    /// Returns 0 or an errno value.
    ///
    /// # Safety
    /// - `counters` is a live set.
    /// - `counters_value` is valid for writes of `ncounters` values.
    fn ibv_read_counters(counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32) -> c_int
        = read_counters of counters.context else unsupported;
}
