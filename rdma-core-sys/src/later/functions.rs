//! Functions of later releases. Where the library does not have one, it answers as a provider without the operation does.

use core::ffi::{c_char, c_int, c_void};

use crate::bindings::{
    ibv_context, ibv_dm, ibv_mr, ibv_pd, ibv_qp, rdma_addrinfo, rdma_cm_event_type, rdma_cm_id,
};
use crate::later::structs::{
    ibv_buf, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_dmah,
    ibv_dmah_init_attr, ibv_mr_init_attr, ibv_qp_attach_comp_cntr_attr,
};

later_functions! { LIBIBVERBS:
    /// Registers memory as the attributes say (rdma-core 59).
    ///
    /// Returns NULL and sets errno on failure, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `pd` is a live protection domain.
    /// - `mr_init_attr` points to a filled struct; what its fields name is live for as long as the region, and memory is valid
    ///   for what `access` allows.
    fn ibv_reg_mr_ex(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr = else null_unsupported;

    /// Allocates a handle for the way of direct memory access (rdma-core 59).
    ///
    /// Returns NULL and sets errno on failure, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `attr` points to a filled struct.
    fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah = else null_unsupported;

    /// Frees a handle of [`ibv_alloc_dmah`] (rdma-core 59).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `dmah` is a live handle, not used after success.
    fn ibv_dealloc_dmah(dmah: *mut ibv_dmah) -> c_int = else unsupported;

    /// Reads the effective speed of a port, in units of 100 Mb/s (rdma-core 62).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `port_speed` is valid for a write.
    fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int = else unsupported;

    /// Gives out device memory as a DMA buffer (rdma-core 62).
    ///
    /// Returns a descriptor that is the caller's, or -1 and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `dm` is live device memory.
    fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int = else minus_one_unsupported;

    /// Allocates a buffer as the provider finds best, page aligned (rdma-core 64).
    ///
    /// Returns the address, or NULL and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `pd` is a live protection or parent domain.
    /// - `buf` is valid for a write; what it receives goes to [`ibv_free_buf`].
    fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void = else null_unsupported;

    /// Frees a buffer of [`ibv_alloc_buf`] (rdma-core 64). A library without this function never gave one out: then nothing
    /// happens.
    ///
    /// # Safety
    /// - `buf` is a live buffer, not used again, and no region of it is registered.
    fn ibv_free_buf(buf: *mut ibv_buf) = else nothing;

    /// Registers a range of a buffer of [`ibv_alloc_buf`] (rdma-core 64).
    ///
    /// Returns NULL and sets errno on failure, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `pd` is a live protection domain, and `buf` a live buffer for as long as the region.
    /// - `addr` and `length` (bytes) lie within the buffer.
    fn ibv_reg_buf_mr(pd: *mut ibv_pd, buf: *mut ibv_buf, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr
        = else null_unsupported;

    /// Gives out the DMA buffer behind a buffer of [`ibv_alloc_buf`] (rdma-core 65).
    ///
    /// Returns a descriptor that is the caller's, or -1 and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `buf` is a live buffer.
    fn ibv_export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int = else minus_one_unsupported;

    /// What is behind [`ibv_query_comp_cntr_caps`], which adds the size of the struct (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `caps` is valid for a write of `caps_size` bytes.
    fn _ibv_query_comp_cntr_caps(context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, caps_size: usize) -> c_int
        = else unsupported;

    /// Creates a completion counter (rdma-core 65).
    ///
    /// Returns NULL and sets errno on failure, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `context` is an open context.
    /// - `cc_attr` points to a filled struct.
    fn ibv_create_comp_cntr(context: *mut ibv_context, cc_attr: *mut ibv_comp_cntr_init_attr) -> *mut ibv_comp_cntr
        = else null_unsupported;

    /// Destroys a completion counter (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `comp_cntr` is a live counter, not used after success.
    fn ibv_destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int = else unsupported;

    /// Sets the count of successful completions (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `comp_cntr` is a live counter.
    fn ibv_set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int = else unsupported;

    /// Sets the count of failed completions (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `comp_cntr` is a live counter.
    fn ibv_set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int = else unsupported;

    /// Adds to the count of successful completions (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `comp_cntr` is a live counter.
    fn ibv_inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int = else unsupported;

    /// Adds to the count of failed completions (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `comp_cntr` is a live counter.
    fn ibv_inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int = else unsupported;

    /// Reads the count of successful completions (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `comp_cntr` is a live counter.
    /// - `value` is valid for a write.
    fn ibv_read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int = else unsupported;

    /// Reads the count of failed completions (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `comp_cntr` is a live counter.
    /// - `value` is valid for a write.
    fn ibv_read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int = else unsupported;

    /// Makes a counter count completions of a queue pair (rdma-core 65).
    ///
    /// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `qp` is a live queue pair, and `comp_cntr` a live counter for as long as the queue pair.
    /// - `attr` points to a filled struct.
    fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        comp_cntr: *mut ibv_comp_cntr,
        attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int = else unsupported;
}

later_functions! { LIBRDMACM:
    /// Begins to resolve a name (rdma-core 60); the end is an event, after which [`rdma_query_addrinfo`] has the result.
    ///
    /// Returns 0, or -1 and sets errno, to `EOPNOTSUPP` when the library is older; then no event comes.
    ///
    /// # Safety
    /// - `id` is a live id with an event channel.
    /// - `node` and `service` are NULL or C strings, and `hints` is NULL or points to a filled struct.
    fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> c_int = else minus_one_unsupported;

    /// Gives the addresses that [`rdma_resolve_addrinfo`] has found (rdma-core 60), to be freed with `rdma_freeaddrinfo`.
    ///
    /// Returns 0, or -1 and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `id` is a live id.
    /// - `info` is valid for a write.
    fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int = else minus_one_unsupported;

    /// Puts an event of the program's own into the channel of an id (rdma-core 60); its argument comes out by
    /// [`rdma_cm_event_arg`](crate::rdma_cm_event_arg).
    ///
    /// Returns 0, or -1 and sets errno, to `EOPNOTSUPP` when the library is older.
    ///
    /// # Safety
    /// - `id` is a live id with an event channel.
    fn rdma_write_cm_event(id: *mut rdma_cm_id, event: rdma_cm_event_type, status: c_int, arg: u64) -> c_int
        = else minus_one_unsupported;
}

/// Reads what completion counters a device has (rdma-core 65).
///
/// Returns 0 or an errno value, `EOPNOTSUPP` when the library is older.
///
/// # Safety
/// - `context` is an open context.
/// - `caps` is valid for a write.
#[inline]
pub unsafe fn ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
) -> c_int {
    let size = size_of::<ibv_comp_cntr_caps>();
    // SAFETY: the context is open and `caps` has room for the size told.
    unsafe { _ibv_query_comp_cntr_caps(context, caps, size) }
}
