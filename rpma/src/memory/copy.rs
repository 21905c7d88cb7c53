//! Copies in and out of memory that a device may be changing at the same time.
//!
//! Rust's memory model has no word for a device, so such memory is never borrowed. The copies mean
//! one relaxed atomic access for each byte: a byte is old or new, and nothing says which order
//! bytes change in. They are written so that no byte outside the range is read or written, and no
//! byte inside is read and written back.

/// Copies `src` to `dst`.
///
/// # Safety
/// - `dst` is mapped and writable for `src.len()` bytes, and no Rust reference to those exists.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(super) unsafe fn store(dst: *mut u8, src: &[u8]) {
    // SAFETY: the caller vouches for `dst`; a slice is readable for its length.
    unsafe { copy(dst, src.as_ptr(), src.len()) };
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
#[inline]
pub(super) unsafe fn store(dst: *mut u8, src: &[u8]) {
    use std::sync::atomic::{AtomicU8, Ordering};

    for (i, &byte) in src.iter().enumerate() {
        // SAFETY: in range, as the caller vouches.
        let to = unsafe { dst.add(i) };
        // SAFETY: mapped and writable, as the caller vouches; alignment 1 always holds.
        unsafe { AtomicU8::from_ptr(to) }.store(byte, Ordering::Relaxed);
    }
}

/// Copies from `src` into `dst`.
///
/// # Safety
/// - `src` is mapped and readable for `dst.len()` bytes, which a pointer with write permission
///   names, and no `&mut` to those exists.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(super) unsafe fn load(src: *mut u8, dst: &mut [u8]) {
    // SAFETY: the caller vouches for `src`; the exclusive slice is writable for its length.
    unsafe { copy(dst.as_mut_ptr(), src, dst.len()) };
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
#[inline]
pub(super) unsafe fn load(src: *mut u8, dst: &mut [u8]) {
    use std::sync::atomic::{AtomicU8, Ordering};

    for (i, byte) in dst.iter_mut().enumerate() {
        // SAFETY: in range, as the caller vouches.
        let from = unsafe { src.add(i) };
        // SAFETY: mapped, as the caller vouches; alignment 1 always holds.
        *byte = unsafe { AtomicU8::from_ptr(from) }.load(Ordering::Relaxed);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller vouches for both ranges; the instruction copies `len` bytes from one to
    // the other and nothing else. The direction flag is clear on entry, as the ABI demands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Sets `len` bytes to `byte`.
///
/// # Safety
/// - `dst` is mapped and writable for `len` bytes, and no Rust reference to those exists.
#[inline]
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    let block = [byte; 4096];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(block.len());
        // SAFETY: `done` is less than `len`, so this stays in the caller's range.
        let at = unsafe { dst.add(done) };
        // SAFETY: `part` bytes from `at` are in the caller's range.
        unsafe { store(at, &block[..part]) };
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_touches_its_range_and_nothing_else() {
        let mut memory = vec![0xee_u8; 64];
        let base = memory.as_mut_ptr();
        for len in [0, 1, 7, 8, 9, 31] {
            let data: Vec<u8> = (1..=31).take(len).collect();
            // SAFETY: 17 + 31 bytes lie in the vector, to which no reference is used meanwhile.
            let at = unsafe { base.add(17) };
            // SAFETY: as above.
            unsafe { store(at, &data) };
            let mut back = vec![0; len];
            // SAFETY: as above.
            unsafe { load(at, &mut back) };
            assert_eq!(back, data);
        }
        assert_eq!((memory[16], memory[48]), (0xee, 0xee));
    }

    #[test]
    fn a_fill_covers_more_than_one_block() {
        let mut memory = vec![0_u8; 10_000];
        // SAFETY: one byte into the vector.
        let at = unsafe { memory.as_mut_ptr().add(1) };
        // SAFETY: the vector has that many bytes after `at`, and one more; no reference is used
        // meanwhile.
        unsafe { fill(at, 0xa5, 9_998) };
        assert_eq!((memory[0], memory[9_999]), (0, 0));
        assert!(memory[1..9_999].iter().all(|&b| b == 0xa5));
    }

    /// Two threads over ranges offset by one: under Miri this is the proof that no access of the
    /// copies races in the model's sense.
    #[test]
    fn two_threads_may_copy_overlapping_ranges() {
        #[derive(Clone, Copy)]
        struct Shared(*mut u8);
        // SAFETY: the pointer is only used for the copies, which may run at the same time.
        unsafe impl Send for Shared {}

        let mut memory = vec![0_u8; 40];
        let shared = Shared(memory.as_mut_ptr());
        let rounds = if cfg!(miri) { 20 } else { 2_000 };
        std::thread::scope(|scope| {
            for offset in [0_usize, 1] {
                scope.spawn(move || {
                    let shared = shared;
                    for round in 0..rounds {
                        let value = u8::try_from(round % 251).unwrap_or(0);
                        // SAFETY: 1 + 32 bytes lie in the vector, which outlives the scope.
                        let at = unsafe { shared.0.add(offset) };
                        // SAFETY: as above; nobody holds a reference to the bytes.
                        unsafe { store(at, &[value; 32]) };
                        let mut back = [0; 32];
                        // SAFETY: as above.
                        unsafe { load(at, &mut back) };
                        assert!(back.iter().all(|&b| b < 251));
                    }
                });
            }
        });
    }
}
