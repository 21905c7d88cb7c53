//! The test's side of what extended queues and queue pairs offer, and the device's capabilities.

use std::prelude::rust_2024::*;

use super::control::Session;
use super::world::lock;
use crate::bindings::{ibv_access_flags, ibv_device_cap_flags};

/// A flush that was taken into a send queue, as the provider got it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostedFlush {
    /// The queue pair's number.
    pub qp_num: u32,
    /// The program's number for the request.
    pub wr_id: u64,
    /// The target's address.
    pub remote_addr: u64,
    /// The target's key.
    pub rkey: u32,
    /// How many bytes.
    pub len: usize,
    /// C's bits of the placement.
    pub placement: u8,
    /// C's selectivity level.
    pub level: u8,
}

/// Everything about the extended interfaces that is not in an object.
#[derive(Debug)]
pub(super) struct State {
    pub(super) refused_wc_flags: u64,
    pub(super) missing_wc_flags: u64,
    pub(super) refused_send_ops: u64,
    pub(super) missing_send_ops: u64,
    /// Capabilities beyond the plain word that the RoCE device has.
    pub(super) capabilities: u64,
    /// The number of the RoCE device's vendor.
    pub(super) vendor: u32,
    /// The device's clock.
    pub(super) ticks: u64,
    pub(super) flushes: Vec<PostedFlush>,
}

/// Flushes of both kinds, and atomic write: bits 38 to 40, which the kernel has and the library gives no name.
const NATIVE: u64 = 0b111 << 38;
/// No vendor's: what the RoCE device stands for.
const SOFTROCE: u32 = 0x00ff_ffff;

impl State {
    pub(super) const fn new() -> Self {
        Self {
            refused_wc_flags: 0,
            missing_wc_flags: 0,
            refused_send_ops: 0,
            missing_send_ops: 0,
            capabilities: NATIVE,
            vendor: SOFTROCE,
            ticks: 0,
            flushes: Vec::new(),
        }
    }

    /// The access that the kernel's connection manager lets the peers of a device with flushes have
    /// (kernel 6.2).
    pub(super) const fn flush_access(&self) -> u32 {
        if self.capabilities & (0b11 << 38) == 0 {
            return 0;
        }
        ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0
            | ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0
    }
}

/// What the extended interfaces offer.
impl Session {
    /// Lets the creation of an extended completion queue with any of these bits of `wc_flags` fail with EOPNOTSUPP.
    pub fn refuse_wc_flags(&self, bits: u64) {
        lock().ext.refused_wc_flags = bits;
    }

    /// Accepts these bits of `wc_flags` and leaves their readers NULL all the same.
    pub fn leave_out_readers(&self, bits: u64) {
        lock().ext.missing_wc_flags = bits;
    }

    /// Lets the creation of an extended queue pair with any of these bits of `send_ops_flags` fail with EOPNOTSUPP.
    pub fn refuse_send_ops(&self, bits: u64) {
        lock().ext.refused_send_ops = bits;
    }

    /// Accepts these bits of `send_ops_flags` and leaves the operations NULL all the same.
    pub fn leave_out_send_ops(&self, bits: u64) {
        lock().ext.missing_send_ops = bits;
    }

    /// Sets `device_cap_flags_ex` of the RoCE device; flush and atomic write (bits 38 to 40) are on at first.
    pub fn set_capabilities(&self, bits: u64) {
        lock().ext.capabilities = bits;
    }

    /// Sets `vendor_id` of the RoCE device: SoftRoCE's, which is no vendor's, at first.
    pub fn set_vendor(&self, number: u32) {
        lock().ext.vendor = number;
    }

    /// The flushes that send queues took, in order.
    #[must_use]
    pub fn flushes(&self) -> Vec<PostedFlush> {
        lock().ext.flushes.clone()
    }
}

const _: () = assert!(
    ibv_device_cap_flags::IBV_DEVICE_MANAGED_FLOW_STEERING.0 < 1 << 31,
    "the plain word ends below these bits"
);
