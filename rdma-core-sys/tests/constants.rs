//! Every exported constant has the value that the installed headers give it.
#![cfg(not(miri))]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rdma_core_sys::*;

/// Bits of the kernel's header, in which older ones do not have them.
const OF_THE_KERNEL: &[&str] = &[
    "IB_UVERBS_DEVICE_FLUSH_GLOBAL",
    "IB_UVERBS_DEVICE_FLUSH_PERSISTENT",
    "IB_UVERBS_DEVICE_ATOMIC_WRITE",
];

/// The constants written by hand, by name.
fn handwritten() -> BTreeMap<String, u64> {
    let pointer = |value: *mut std::ffi::c_void| value.addr() as u64;
    let mut values: Vec<(&str, u64)> = vec![
        (
            "IBV_ADVISE_MR_ADVICE_PREFETCH",
            IBV_ADVISE_MR_ADVICE_PREFETCH.0.into(),
        ),
        (
            "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE",
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE.0.into(),
        ),
        (
            "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT",
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0.into(),
        ),
        ("IBV_ADVISE_MR_FLAG_FLUSH", IBV_ADVISE_MR_FLAG_FLUSH.into()),
        ("IBV_QPF_GRH_REQUIRED", IBV_QPF_GRH_REQUIRED.into()),
        (
            "IBV_ACCESS_OPTIONAL_RANGE",
            IBV_ACCESS_OPTIONAL_RANGE.into(),
        ),
        (
            "IBV_ALLOCATOR_USE_DEFAULT",
            pointer(IBV_ALLOCATOR_USE_DEFAULT),
        ),
        ("__VERBS_ABI_IS_EXTENDED", pointer(__VERBS_ABI_IS_EXTENDED)),
        (
            "IB_UVERBS_DEVICE_FLUSH_GLOBAL",
            IB_UVERBS_DEVICE_FLUSH_GLOBAL,
        ),
        (
            "IB_UVERBS_DEVICE_FLUSH_PERSISTENT",
            IB_UVERBS_DEVICE_FLUSH_PERSISTENT,
        ),
        (
            "IB_UVERBS_DEVICE_ATOMIC_WRITE",
            IB_UVERBS_DEVICE_ATOMIC_WRITE,
        ),
        ("IBV_DEVICE_CC_DMA_BOUNCE", IBV_DEVICE_CC_DMA_BOUNCE),
        ("RAI_SA", RAI_SA.into()),
        ("RAI_DNS", RAI_DNS.into()),
    ];
    macro_rules! constants {
        ($($enumeration:ident { $($name:ident),* })*) => {
            $($(values.push((stringify!($name), u64::from($enumeration::$name.0)));)*)*
        };
    }
    constants! {
        ibv_placement_type { IBV_FLUSH_GLOBAL, IBV_FLUSH_PERSISTENT }
        ibv_selectivity_level { IBV_FLUSH_RANGE, IBV_FLUSH_MR }
        ibv_access_flags { IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT }
        ibv_qp_create_send_ops_flags { IBV_QP_EX_WITH_FLUSH }
        ibv_wr_opcode { IBV_WR_FLUSH }
        ibv_wc_opcode { IBV_WC_FLUSH }
        ibv_odp_transport_cap_bits { IBV_ODP_SUPPORT_FLUSH, IBV_ODP_SUPPORT_ATOMIC_WRITE }
        ibv_query_qp_data_in_order_flags { IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS, IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY }
        ibv_query_qp_data_in_order_caps { IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG, IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES }
        ibv_port_cap_flags2 { IBV_PORT_LINK_SPEED_XDR_SUP }
        ibv_event_type { IBV_EVENT_DEVICE_SPEED_CHANGE }
        ibv_mr_init_attr_mask { IBV_REG_MR_MASK_IOVA, IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_BUF }
        ibv_dmah_init_attr_mask { IBV_DMAH_INIT_ATTR_MASK_CPU_ID, IBV_DMAH_INIT_ATTR_MASK_PH, IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE }
        ibv_tph_mem_type { IBV_TPH_MEM_TYPE_VM, IBV_TPH_MEM_TYPE_PM }
        ibv_parent_domain_init_attr_mask { IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC }
        ibv_comp_cntr_type { IBV_COMP_CNTR_TYPE_WRS, IBV_COMP_CNTR_TYPE_BYTES }
        ibv_qp_attach_comp_cntr_op { IBV_QP_ATTACH_COMP_CNTR_OP_SEND, IBV_QP_ATTACH_COMP_CNTR_OP_RECV, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ, IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE, IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE }
        rdma_cm_event_type { RDMA_CM_EVENT_ADDRINFO_RESOLVED, RDMA_CM_EVENT_ADDRINFO_ERROR, RDMA_CM_EVENT_USER, RDMA_CM_EVENT_INTERNAL }
    }
    constants_of_flow_actions(&mut values);
    values
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn constants_of_flow_actions(values: &mut Vec<(&str, u64)>) {
    values.extend([
        (
            "IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM",
            IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM.0.into(),
        ),
        (
            "IBV_FLOW_ACTION_IV_ALGO_SEQ",
            IBV_FLOW_ACTION_IV_ALGO_SEQ.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_REPLAY_NONE",
            IBV_FLOW_ACTION_ESP_REPLAY_NONE.0.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_REPLAY_BMP",
            IBV_FLOW_ACTION_ESP_REPLAY_BMP.0.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO",
            IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD",
            IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL",
            IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT",
            IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT",
            IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT",
            IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT.into(),
        ),
        (
            "IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW",
            IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW.into(),
        ),
    ]);
}

/// The values of `names` in C.
fn values_in_c(names: &[&str]) -> BTreeMap<String, u64> {
    let mut program = format!(
        "#include <stdio.h>\n{}#include <rdma/ib_user_verbs.h>\nint main(void)\n{{\n",
        common::INCLUDES
    );
    for name in names {
        let _ = writeln!(
            program,
            "\tprintf(\"{name} %llu\\n\", (unsigned long long)({name}));"
        );
    }
    program.push_str("\treturn 0;\n}\n");
    common::run_c("constants", &program)
        .lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').expect("the program prints pairs");
            (
                name.to_owned(),
                value.parse().expect("the program prints numbers"),
            )
        })
        .collect()
}

#[test]
fn every_constant_has_the_value_of_the_installed_headers() {
    let mut ours = common::declarations().constants;
    ours.extend(handwritten());
    let headers = common::own_lines(
        "constants-headers",
        &["infiniband/verbs.h", "rdma/rdma_cma.h"],
    );

    // What the headers are too old for: compared when the tests run on newer ones.
    let later = common::handwritten_names("src/later/constants.rs", "pub const ");
    let missing: Vec<&str> = later
        .iter()
        .map(String::as_str)
        .chain(OF_THE_KERNEL.iter().copied())
        .filter(|name| !common::has_word(&headers, name) && !in_kernel_header(name))
        .collect();
    let asked: Vec<&str> = ours
        .keys()
        .map(String::as_str)
        .filter(|name| !missing.contains(name))
        .collect();
    let theirs = values_in_c(&asked);

    assert_eq!(theirs.len() + missing.len(), ours.len());
    let wrong: Vec<String> = theirs
        .iter()
        .filter(|(name, value)| ours[*name] != **value)
        .map(|(name, value)| format!("{name}: {} here, {value} in C", ours[name]))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Whether the kernel's header, which `verbs.h` does not include, has the name.
fn in_kernel_header(name: &str) -> bool {
    let file = common::scratch("constants-kernel").join("kernel.c");
    std::fs::write(&file, "#include <rdma/ib_user_verbs.h>\n")
        .expect("the scratch directory is writable");
    let text = common::cc(&["-E", "-P", file.to_str().expect("the path is text")]);
    common::has_word(&text, name)
}

#[test]
fn no_handwritten_constant_is_left_out() {
    let listed = handwritten();
    for path in ["src/constants.rs", "src/later/constants.rs"] {
        for name in common::handwritten_names(path, "pub const ") {
            assert!(
                listed.contains_key(&name),
                "{name} of {path} is not compared with C"
            );
        }
    }
}

#[test]
fn every_enum_has_the_size_and_sign_of_its_c_type() {
    let mut enums = common::declarations().enums;
    let headers = common::preprocessed("enums-headers");
    for name in common::handwritten_names("src/later/constants.rs", "pub struct ") {
        if common::has_word(&headers, &name) {
            enums.insert(name, false);
        }
    }
    let mut program = format!(
        "#include <stdio.h>\n{}int main(void)\n{{\n",
        common::INCLUDES
    );
    for name in enums.keys() {
        let _ = writeln!(
            program,
            "\tprintf(\"{name} %zu %d\\n\", sizeof(enum {name}), (enum {name})-1 < (enum {name})1);"
        );
    }
    program.push_str("\treturn 0;\n}\n");
    let text = common::run_c("enums", &program);
    assert_eq!(text.lines().count(), enums.len());
    for line in text.lines() {
        let mut words = line.split(' ');
        let name = words.next().expect("a name");
        assert_eq!(words.next(), Some("4"), "{name}");
        let signed = words.next() == Some("1");
        assert_eq!(signed, enums[name], "{name} is signed in C: {signed}");
    }
}

#[test]
fn link_layers_and_gid_types_exist() {
    assert_eq!(IBV_LINK_LAYER_UNSPECIFIED, 0);
    assert_eq!(IBV_LINK_LAYER_INFINIBAND, 1);
    assert_eq!(IBV_LINK_LAYER_ETHERNET, 2);
    assert_eq!(ibv_gid_type::IBV_GID_TYPE_IB.0, 0);
    assert_eq!(ibv_gid_type::IBV_GID_TYPE_ROCE_V1.0, 1);
    assert_eq!(ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0, 2);
}

#[test]
fn port_spaces_and_address_hints_exist() {
    assert_eq!(rdma_port_space::RDMA_PS_IPOIB.0, 0x0002);
    assert_eq!(rdma_port_space::RDMA_PS_TCP.0, 0x0106);
    assert_eq!(rdma_port_space::RDMA_PS_UDP.0, 0x0111);
    assert_eq!(rdma_port_space::RDMA_PS_IB.0, 0x013f);
    assert_eq!(RAI_PASSIVE, 1);
    assert_eq!(RAI_NUMERICHOST, 2);
    assert_eq!(RAI_NOROUTE, 4);
    assert_eq!(RAI_FAMILY, 8);
}

#[test]
fn access_and_send_flags_combine() {
    let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
    assert_eq!(access.0, 0b1111);
    let send = ibv_send_flags::IBV_SEND_FENCE
        | ibv_send_flags::IBV_SEND_SIGNALED
        | ibv_send_flags::IBV_SEND_SOLICITED
        | ibv_send_flags::IBV_SEND_INLINE;
    assert_eq!(send.0, 0b1111);
}
