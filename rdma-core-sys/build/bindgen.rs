//! Makes the bindings from the headers.
//!
//! The output must not depend on the machine: no comments (copied or not depending on the include path), no layout
//! assertions (pthread types differ between architectures; `tests/layout.rs` asks the C compiler instead), and types of
//! the C library come from the `libc` crate.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use ::bindgen::callbacks::{
    DeriveTrait, EnumVariantCustomBehavior, EnumVariantValue, ImplementsTrait, IntKind,
    ParseCallbacks,
};
use ::bindgen::{EnumVariation, Formatter, RustEdition, RustTarget};

/// C library types that the headers use; the bindings take them from `libc`.
const LIBC_TYPES: &[&str] = &[
    "pthread_mutex_t",
    "pthread_cond_t",
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "socklen_t",
    "timespec",
];

/// What those are made of in the C library's headers.
const BLOCKED_TYPES: &str = "__pthread_.*|__atomic_wide_counter.*|in6?_addr.*|in_port_t|sa_family_t|__time_t|__syscall_slong_t|\
     __socklen_t|__off_t|__ssize_t";

/// Functions not to bind under their plain names.
///
/// `ibv_query_port`, `ibv_reg_mr` and `ibv_reg_mr_iova` are kept by the library for old programs and shadowed by macros
/// in the header: their Rust forms are in `src/inline`. `ibv_wr_opcode_str` and `ibv_query_gid_type` belong to the
/// private symbol version, which ties a program to one release; `ibv_static_providers` serves static linking.
const BLOCKED_FUNCTIONS: &str = "ibv_query_port|ibv_reg_mr|ibv_reg_mr_iova|ibv_wr_opcode_str|ibv_query_gid_type|ibv_static_providers";

/// What later releases added, written by hand. Newer headers have it too: it is not to be there twice.
const LATER: [&str; 3] = [
    include_str!("../src/later/constants.rs"),
    include_str!("../src/later/structs.rs"),
    include_str!("../src/later/functions.rs"),
];

/// The names after `keyword` in what is written by hand.
fn later(keyword: &str) -> impl Iterator<Item = &'static str> {
    let words = LATER
        .iter()
        .flat_map(move |text| text.split(keyword).skip(1));
    words.filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
        (end > 0).then(|| &rest[..end])
    })
}

/// Enums whose values are bits to be combined.
const BIT_SETS: &[&str] = &[
    "ibv_access_flags",
    "ibv_cq_attr_mask",
    "ibv_cq_init_attr_mask",
    "ibv_create_cq_attr_flags",
    "ibv_create_cq_wc_flags",
    "ibv_device_cap_flags",
    "ibv_dm_mask",
    "ibv_flow_action_esp_mask",
    "ibv_flow_flags",
    "ibv_ind_table_init_attr_mask",
    "ibv_odp_general_caps",
    "ibv_odp_transport_cap_bits",
    "ibv_ops_flags",
    "ibv_parent_domain_init_attr_mask",
    "ibv_pci_atomic_op_size",
    "ibv_port_cap_flags",
    "ibv_port_cap_flags2",
    "ibv_qp_attr_mask",
    "ibv_qp_create_flags",
    "ibv_qp_create_send_ops_flags",
    "ibv_qp_init_attr_mask",
    "ibv_qp_open_attr_mask",
    "ibv_raw_packet_caps",
    "ibv_read_counters_flags",
    "ibv_rereg_mr_flags",
    "ibv_rx_hash_fields",
    "ibv_rx_hash_function_flags",
    "ibv_send_flags",
    "ibv_srq_attr_mask",
    "ibv_srq_init_attr_mask",
    "ibv_tm_cap_flags",
    "ibv_values_mask",
    "ibv_wc_flags",
    "ibv_wq_attr_mask",
    "ibv_wq_flags",
    "ibv_wq_init_attr_mask",
    "ibv_xrcd_init_attr_mask",
    "rdma_cm_join_mc_attr_mask",
];

#[derive(Debug)]
struct Callbacks;

impl ParseCallbacks for Callbacks {
    // `RDMA_IB_IP_PS_MASK` has its top bit set and would become a negative i32.
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        name.starts_with("RDMA_IB_").then_some(IntKind::U64)
    }

    fn enum_variant_behavior(
        &self,
        _enum_name: Option<&str>,
        name: &str,
        _value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        later("pub const ")
            .any(|later| later == name)
            .then_some(EnumVariantCustomBehavior::Hide)
    }

    fn blocklisted_type_implements_trait(
        &self,
        name: &str,
        derive_trait: DeriveTrait,
    ) -> Option<ImplementsTrait> {
        // Without an answer the generator gives up on `union` for everything that holds one of these.
        let name = name.trim_start_matches("struct ");
        match derive_trait {
            DeriveTrait::Copy | DeriveTrait::Debug if LIBC_TYPES.contains(&name) => {
                Some(ImplementsTrait::Yes)
            }
            _ => None,
        }
    }
}

/// The first line of every error.
const NEEDED: &str = "the feature `bindgen` needs libclang and the headers of rdma-core: install `libclang-dev libibverbs-dev librdmacm-dev` \
     (Debian, Ubuntu) or `clang-devel rdma-core-devel` (Fedora, RHEL), set RDMA_CORE_INCLUDE_DIR when the headers are elsewhere, \
     or build without the feature: the committed bindings need neither";

/// Makes the bindings from the headers found in `include_dirs` (besides the system's).
pub(crate) fn generate(include_dirs: &[PathBuf]) -> Result<String, String> {
    let mut builder = ::bindgen::builder()
        .header("wrapper.h")
        .clang_args(
            include_dirs
                .iter()
                .map(|dir| format!("-I{}", dir.display())),
        )
        .allowlist_file(r".*/infiniband/(verbs|verbs_api|sa|tm_types)\.h")
        .allowlist_file(r".*/rdma/(rdma_cma|rdma_verbs)\.h")
        // Of the kernel's header, reached through macros of `verbs_api.h`.
        .allowlist_type("ib_uverbs_flow_action_esp_(keymat_aes_gcm|replay_bmp)")
        .blocklist_function(BLOCKED_FUNCTIONS)
        .blocklist_type(LIBC_TYPES.join("|"))
        .blocklist_type(BLOCKED_TYPES)
        .default_enum_style(EnumVariation::Consts)
        .newtype_enum("(ibv|rdma|ib_uverbs)_.*")
        .prepend_enum_name(false)
        .use_core()
        .generate_comments(false)
        .layout_tests(false)
        .derive_debug(true)
        .derive_default(true)
        .impl_debug(true)
        .rust_target(RustTarget::stable(88, 0).map_err(|e| e.to_string())?)
        .rust_edition(RustEdition::Edition2024)
        .formatter(Formatter::Prettyplease)
        .disable_header_comment()
        .parse_callbacks(Box::new(Callbacks))
        // Other headers, or another include path: make the bindings again.
        .parse_callbacks(Box::new(::bindgen::CargoCallbacks::new()));
    for name in BIT_SETS {
        builder = builder.bitfield_enum(name);
    }
    for name in later("pub struct ") {
        builder = builder.blocklist_type(name);
    }
    for name in later("fn ") {
        builder = builder.blocklist_function(name);
    }
    for name in later("pub const ") {
        builder = builder.blocklist_var(name);
    }
    // The generator panics when it cannot load libclang.
    let bindings = match catch_unwind(AssertUnwindSafe(|| builder.generate())) {
        Ok(Ok(bindings)) => bindings,
        Ok(Err(error)) => return Err(format!("{NEEDED}\n{}", error.to_string().trim())),
        Err(_) => {
            return Err(format!(
                "{NEEDED}\nlibclang cannot be loaded, see below; LIBCLANG_PATH says where to look for it"
            ));
        }
    };

    let mut text = String::from(
        "// Made by bindgen from the headers of rdma-core; change build/bindgen.rs and run `cargo xtask bindings`.\n\n",
    );
    let _ = writeln!(text, "use libc::{{{}}};\n", LIBC_TYPES.join(", "));
    let items = name_anonymous_enums(&bindings.to_string());
    // Only newer headers have structs that name them.
    for name in later("pub struct ").filter(|name| items.contains(&format!("mut {name}"))) {
        let _ = writeln!(text, "use crate::later::{name};");
    }
    text.push_str(&items);
    Ok(text)
}

/// Gives the constants of unnamed enums a plain integer type.
///
/// The generator numbers such enums in order of appearance (`_bindgen_ty_7`), so the names would shift with every release.
fn name_anonymous_enums(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with("pub type _bindgen_ty_") {
            continue;
        }
        match line.split_once(": _bindgen_ty_") {
            Some((before, after)) if line.starts_with("pub const ") => {
                let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
                let _ = writeln!(out, "{before}: ::core::ffi::c_uint{rest}");
            }
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}
