//! Reading and writing memory as a device does: while others may be at it.

use core::sync::atomic::{AtomicU8, Ordering};
use std::prelude::rust_2024::*;

fn byte(addr: u64, offset: usize) -> *mut u8 {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "an address of this process"
    )]
    core::ptr::with_exposed_provenance_mut::<u8>(addr as usize).wrapping_add(offset)
}

/// Copies bytes out, each as a relaxed atomic.
///
/// # Safety
/// - The range is mapped, and exposed where it was registered.
pub(super) unsafe fn read(addr: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    for offset in 0..len {
        // SAFETY: the range is mapped, and no byte needs more than its own alignment.
        let byte = unsafe { AtomicU8::from_ptr(byte(addr, offset)) };
        out.push(byte.load(Ordering::Relaxed));
    }
    out
}

/// Copies bytes in, each as a relaxed atomic.
///
/// # Safety
/// - As for [`read`], and the range is writable.
pub(super) unsafe fn write(addr: u64, bytes: &[u8]) {
    for (offset, value) in bytes.iter().enumerate() {
        // SAFETY: the range is mapped and writable, and no byte needs more than its own alignment.
        let byte = unsafe { AtomicU8::from_ptr(byte(addr, offset)) };
        byte.store(*value, Ordering::Relaxed);
    }
}

/// Copies the bytes of an inline request, which nobody changes during the call.
///
/// # Safety
/// - The range is readable during the call.
pub(super) unsafe fn copy(addr: u64, len: usize) -> Vec<u8> {
    let mut out = std::vec![0; len];
    if len > 0 {
        // SAFETY: both ranges have that many bytes, and the new one overlaps nothing.
        unsafe { byte(addr, 0).copy_to_nonoverlapping(out.as_mut_ptr(), len) };
    }
    out
}
