//! The C inlines, compiled from the installed headers into a shared object.

use std::ffi::{CString, c_void};
use std::fmt::Write as _;
use std::sync::LazyLock;

use crate::{common, exported};

/// C for the exported functions that the inlines call: each passes on to what the test has set.
///
/// They are defined after the inlines, whose calls the linker binds to them; the macros over two of them end here.
const EXPORTED: &str = r#"
static struct ibv_mr *macro_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access)
{
	return ibv_reg_mr(pd, addr, length, access);
}

static struct ibv_mr *macro_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return ibv_reg_mr_iova(pd, addr, length, iova, access);
}

static struct ibv_mr *constant_reg_mr(struct ibv_pd *pd, void *addr, size_t length)
{
	return ibv_reg_mr(pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
}

static int macro_query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
	return ibv_query_port(context, port, attr);
}

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define PASS_ON(ret, name, params, args)                \
	static ret (*to_##name) params;                 \
	ret name params;                                \
	ret name params { return to_##name args; }

PASS_ON(struct ibv_qp *, ibv_create_qp, (struct ibv_pd *pd, struct ibv_qp_init_attr *attr), (pd, attr))
PASS_ON(struct ibv_srq *, ibv_create_srq, (struct ibv_pd *pd, struct ibv_srq_init_attr *attr), (pd, attr))
PASS_ON(int, _ibv_query_gid_ex, (struct ibv_context *c, uint32_t p, uint32_t i, struct ibv_gid_entry *e, uint32_t f, size_t s), (c, p, i, e, f, s))
PASS_ON(ssize_t, _ibv_query_gid_table, (struct ibv_context *c, struct ibv_gid_entry *e, size_t m, uint32_t f, size_t s), (c, e, m, f, s))
PASS_ON(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *pd, void *addr, size_t length, int access), (pd, addr, length, access))
PASS_ON(struct ibv_mr *, ibv_reg_mr_iova, (struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access), (pd, addr, length, iova, access))
PASS_ON(struct ibv_mr *, ibv_reg_mr_iova2, (struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access), (pd, addr, length, iova, access))
PASS_ON(int, ibv_dereg_mr, (struct ibv_mr *mr), (mr))
PASS_ON(void, ibv_ack_cq_events, (struct ibv_cq *cq, unsigned int n), (cq, n))
PASS_ON(int, ibv_query_port, (struct ibv_context *c, uint8_t p, struct _compat_ibv_port_attr *a), (c, p, a))
PASS_ON(int, ibv_query_device, (struct ibv_context *c, struct ibv_device_attr *a), (c, a))
PASS_ON(int, ibv_get_cq_event, (struct ibv_comp_channel *ch, struct ibv_cq **cq, void **ctx), (ch, cq, ctx))
"#;

/// Inline functions of the headers that the tests compare with.
const INLINES: &[&str] = &[
    "ibv_advise_mr",
    "ibv_alloc_dm",
    "ibv_alloc_mw",
    "ibv_alloc_null_mr",
    "ibv_alloc_parent_domain",
    "ibv_alloc_td",
    "ibv_attach_counters_point_flow",
    "ibv_bind_mw",
    "ibv_close_xrcd",
    "ibv_cq_ex_to_cq",
    "ibv_create_counters",
    "ibv_create_cq_ex",
    "ibv_create_flow",
    "ibv_create_flow_action_esp",
    "ibv_create_qp_ex",
    "ibv_create_rwq_ind_table",
    "ibv_create_srq_ex",
    "ibv_create_wq",
    "ibv_dealloc_mw",
    "ibv_dealloc_td",
    "ibv_destroy_counters",
    "ibv_destroy_flow",
    "ibv_destroy_flow_action",
    "ibv_destroy_rwq_ind_table",
    "ibv_destroy_wq",
    "ibv_end_poll",
    "ibv_flow_label_to_udp_sport",
    "ibv_free_dm",
    "ibv_get_srq_num",
    "ibv_inc_rkey",
    "ibv_is_qpt_supported",
    "ibv_memcpy_from_dm",
    "ibv_memcpy_to_dm",
    "ibv_modify_cq",
    "ibv_modify_flow_action_esp",
    "ibv_modify_qp_rate_limit",
    "ibv_modify_wq",
    "ibv_next_poll",
    "ibv_open_qp",
    "ibv_open_xrcd",
    "ibv_poll_cq",
    "ibv_post_recv",
    "ibv_post_send",
    "ibv_post_srq_ops",
    "ibv_post_srq_recv",
    "ibv_post_wq_recv",
    "ibv_query_device_ex",
    "ibv_query_gid_ex",
    "ibv_query_gid_table",
    "ibv_query_rt_values_ex",
    "ibv_read_counters",
    "ibv_reg_dm_mr",
    "ibv_req_notify_cq",
    "ibv_start_poll",
    "ibv_wc_read_byte_len",
    "ibv_wc_read_completion_ts",
    "ibv_wc_read_completion_wallclock_ns",
    "ibv_wc_read_cvlan",
    "ibv_wc_read_dlid_path_bits",
    "ibv_wc_read_flow_tag",
    "ibv_wc_read_imm_data",
    "ibv_wc_read_invalidated_rkey",
    "ibv_wc_read_opcode",
    "ibv_wc_read_qp_num",
    "ibv_wc_read_sl",
    "ibv_wc_read_slid",
    "ibv_wc_read_src_qp",
    "ibv_wc_read_tm_info",
    "ibv_wc_read_vendor_err",
    "ibv_wc_read_wc_flags",
    "ibv_wr_abort",
    "ibv_wr_atomic_cmp_swp",
    "ibv_wr_atomic_fetch_add",
    "ibv_wr_atomic_write",
    "ibv_wr_bind_mw",
    "ibv_wr_complete",
    "ibv_wr_local_inv",
    "ibv_wr_rdma_read",
    "ibv_wr_rdma_write",
    "ibv_wr_rdma_write_imm",
    "ibv_wr_send",
    "ibv_wr_send_imm",
    "ibv_wr_send_inv",
    "ibv_wr_send_tso",
    "ibv_wr_set_inline_data",
    "ibv_wr_set_inline_data_list",
    "ibv_wr_set_sge",
    "ibv_wr_set_sge_list",
    "ibv_wr_set_ud_addr",
    "ibv_wr_set_xrc_srqn",
    "ibv_wr_start",
    "rdma_dereg_mr",
    "rdma_get_local_addr",
    "rdma_get_peer_addr",
    "rdma_get_recv_comp",
    "rdma_get_send_comp",
    "rdma_post_read",
    "rdma_post_readv",
    "rdma_post_recv",
    "rdma_post_recvv",
    "rdma_post_send",
    "rdma_post_sendv",
    "rdma_post_ud_send",
    "rdma_post_write",
    "rdma_post_writev",
    "rdma_reg_msgs",
    "rdma_reg_read",
    "rdma_reg_write",
    "rdma_seterrno",
    "verbs_get_ctx",
];

/// Wrappers of the macros, by the macros' names.
const MACROS: &[(&str, &str)] = &[
    ("ibv_query_port", "macro_query_port"),
    ("ibv_reg_mr", "macro_reg_mr"),
    ("ibv_reg_mr_iova", "macro_reg_mr_iova"),
    ("constant ibv_reg_mr", "constant_reg_mr"),
];

/// The loaded object.
struct Shim {
    handle: usize,
    has_flush: bool,
}

static SHIM: LazyLock<Shim> = LazyLock::new(load);

fn load() -> Shim {
    let has_flush = common::has_word(&common::preprocessed("parity-headers"), "ibv_wr_flush");
    let mut source = format!("{}{EXPORTED}", common::INCLUDES);
    source.push_str("void *const inline_functions[] = {\n");
    for name in INLINES.iter().chain(has_flush.then_some(&"ibv_wr_flush")) {
        let _ = writeln!(source, "\t(void *){name},");
    }
    for (_, function) in MACROS {
        let _ = writeln!(source, "\t(void *){function},");
    }
    source.push_str("\t(void *)0\n};\n");
    source.push_str("void set_exported(const char *name, void *address);\nvoid set_exported(const char *name, void *address)\n{\n");
    for (name, _) in exported::all() {
        let _ = writeln!(
            source,
            "\tif (!strcmp(name, \"{name}\"))\n\t\tto_{name} = address;"
        );
    }
    source.push_str("}\n");

    let dir = common::scratch("parity");
    let file = dir.join("inlines.c");
    let object = dir.join("inlines.so");
    std::fs::write(&file, source).expect("the scratch directory is writable");
    common::cc(&[
        "-std=gnu11",
        "-shared",
        "-fPIC",
        "-O0",
        // Calls of the stand-ins within the object stay within it, whatever the program defines.
        "-Wl,-Bsymbolic",
        "-o",
        object.to_str().expect("the path is text"),
        file.to_str().expect("the path is text"),
    ]);

    let path = CString::new(object.to_str().expect("the path is text"))
        .expect("the path has no zero byte");
    // SAFETY: the path is a string; the object was just built and has no initialisers.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{} cannot be loaded", object.display());
    let shim = Shim {
        handle: handle.expose_provenance(),
        has_flush,
    };
    let set = shim.symbol("set_exported");
    // SAFETY: the source above defines it with this type.
    let set = unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const i8, *const c_void)>(set)
    };
    for (name, address) in exported::all() {
        let name = CString::new(name).expect("a name has no zero byte");
        // SAFETY: the string is valid for the call; the address is that of a function of the type the name has.
        unsafe {
            set(
                name.as_ptr().cast(),
                std::ptr::with_exposed_provenance(address),
            )
        };
    }
    shim
}

impl Shim {
    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("a name has no zero byte");
        let handle = std::ptr::with_exposed_provenance_mut(self.handle);
        // SAFETY: the handle is that of the loaded object, which is never unloaded.
        let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?} is not in the object");
        address
    }

    fn position(&self, name: &str) -> usize {
        INLINES
            .iter()
            .copied()
            .chain(self.has_flush.then_some("ibv_wr_flush"))
            .chain(MACROS.iter().map(|(name, _)| *name))
            .position(|known| known == name)
            .unwrap_or_else(|| panic!("{name} is not in the list of C functions"))
    }
}

/// Whether the installed headers have the flush.
pub(crate) fn has_flush() -> bool {
    SHIM.has_flush
}

/// The C function of that name, as a function pointer of type `F`.
///
/// # Safety
/// - `F` is a function pointer type with the C function's signature.
pub(crate) unsafe fn inline<F: Copy>(name: &str) -> F {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    let table = SHIM.symbol("inline_functions").cast::<*mut c_void>();
    // SAFETY: the table has an entry for each name of the list, in its order.
    let entry = unsafe { table.add(SHIM.position(name)) };
    // SAFETY: as above.
    let address = unsafe { entry.read() };
    // SAFETY: a function pointer of the caller's type, which is as large as any.
    unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) }
}
