//! Constants that the generator does not see: names that the headers define by a macro over another name, and casts.

use core::ffi::{c_uint, c_void};

use crate::bindings::{
    ib_uverbs_advise_mr_advice, ib_uverbs_flow_action_esp, ib_uverbs_flow_action_esp_encap,
    ib_uverbs_flow_action_esp_keymat, ib_uverbs_flow_action_esp_keymat_aes_gcm,
    ib_uverbs_flow_action_esp_replay, ib_uverbs_flow_action_esp_replay_bmp, ibv_access_flags,
};

/// What kind of prefetch [`ibv_advise_mr`](crate::ibv_advise_mr) asks for.
pub type ibv_advise_mr_advice = ib_uverbs_advise_mr_advice;

/// Prefetch for reading.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
/// Prefetch for writing.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
/// Prefetch only pages that are present.
pub const IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT: ibv_advise_mr_advice =
    ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
/// Flag of [`ibv_advise_mr`](crate::ibv_advise_mr): wait until the advice has been carried out.
pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 = 1;

/// Bit of [`ibv_port_attr::flags`](crate::ibv_port_attr): packets on this port need a global route header.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;

/// How an encryption action of a flow keeps its keys.
pub type ibv_flow_action_esp_keymat = ib_uverbs_flow_action_esp_keymat;
/// Keys and initialisation vector of [`IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM`].
pub type ibv_flow_action_esp_keymat_aes_gcm = ib_uverbs_flow_action_esp_keymat_aes_gcm;
/// How initialisation vectors are chosen: [`IBV_FLOW_ACTION_IV_ALGO_SEQ`].
pub type ibv_flow_action_esp_keymat_aes_gcm_iv_algo = c_uint;
/// The window of [`IBV_FLOW_ACTION_ESP_REPLAY_BMP`].
pub type ibv_flow_action_esp_replay_bmp = ib_uverbs_flow_action_esp_replay_bmp;
/// Bits `IBV_FLOW_ACTION_ESP_FLAGS_*`.
pub type ibv_flow_action_esp_flags = c_uint;
/// How an encryption action of a flow detects replays.
pub type ibv_flow_action_esp_replay = ib_uverbs_flow_action_esp_replay;
/// What an encryption action of a flow wraps packets in.
pub type ibv_flow_action_esp_encap = ib_uverbs_flow_action_esp_encap;
/// An encryption action of a flow.
pub type ibv_flow_action_esp = ib_uverbs_flow_action_esp;

/// Keys for AES-GCM.
pub const IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM: ibv_flow_action_esp_keymat =
    ib_uverbs_flow_action_esp_keymat::IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM;
/// Initialisation vectors count up.
pub const IBV_FLOW_ACTION_IV_ALGO_SEQ: ibv_flow_action_esp_keymat_aes_gcm_iv_algo = 0;
/// Replays are not detected.
pub const IBV_FLOW_ACTION_ESP_REPLAY_NONE: ibv_flow_action_esp_replay =
    ib_uverbs_flow_action_esp_replay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE;
/// Replays are detected with a bitmap.
pub const IBV_FLOW_ACTION_ESP_REPLAY_BMP: ibv_flow_action_esp_replay =
    ib_uverbs_flow_action_esp_replay::IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP;
/// The device encrypts, the driver does the rest (the default).
pub const IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO: ibv_flow_action_esp_flags = 0;
/// The device does everything.
pub const IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD: ibv_flow_action_esp_flags = 1 << 0;
/// Tunnel mode (the default).
pub const IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL: ibv_flow_action_esp_flags = 0;
/// Transport mode.
pub const IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT: ibv_flow_action_esp_flags = 1 << 1;
/// Decrypt (the default).
pub const IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT: ibv_flow_action_esp_flags = 0;
/// Encrypt.
pub const IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT: ibv_flow_action_esp_flags = 1 << 2;
/// Begin a new window of extended sequence numbers.
pub const IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW: ibv_flow_action_esp_flags = 1 << 3;

/// Access bits that a kernel may ignore.
pub const IBV_ACCESS_OPTIONAL_RANGE: c_uint = 0x3ff0_0000;

/// Returned by an allocator of [`ibv_parent_domain_init_attr`](crate::ibv_parent_domain_init_attr) to ask for the default one.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

/// [`ibv_context::abi_compat`](crate::ibv_context) of a context that lies within a [`verbs_context`](crate::verbs_context).
pub const __VERBS_ABI_IS_EXTENDED: *mut c_void = core::ptr::without_provenance_mut(usize::MAX);

const _: () = assert!(
    ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0 & IBV_ACCESS_OPTIONAL_RANGE != 0,
    "the optional range covers the optional bits"
);

/// Bit of [`ibv_device_attr_ex::device_cap_flags_ex`](crate::ibv_device_attr_ex): flushes to global visibility.
pub const IB_UVERBS_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
/// Bit of [`ibv_device_attr_ex::device_cap_flags_ex`](crate::ibv_device_attr_ex): flushes to persistence.
pub const IB_UVERBS_DEVICE_FLUSH_PERSISTENT: u64 = 1 << 39;
/// Bit of [`ibv_device_attr_ex::device_cap_flags_ex`](crate::ibv_device_attr_ex): atomic writes of 8 bytes.
pub const IB_UVERBS_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
