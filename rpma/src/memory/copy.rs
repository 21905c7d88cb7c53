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

/// Copies from `src` into `dst`, as long as this process changes none of it.
///
/// # Safety
/// - `src` is mapped and readable for `dst.len()` bytes, no `&mut` to those exists, and this process
///   does not write them meanwhile.
#[inline]
pub(super) unsafe fn load_unchanged(src: *const u8, dst: &mut [u8]) {
    // SAFETY: the caller vouches for `src`, and for nobody but the slice reaching `dst`.
    unsafe { src.copy_to_nonoverlapping(dst.as_mut_ptr(), dst.len()) };
}

/// Puts 8 bytes to `dst`, in memory order, after all that was stored before.
///
/// Where the machine has such an instruction it is a single access, which no reader sees half of.
///
/// # Safety
/// - `dst` is mapped and writable for 8 bytes, a multiple of 8, and no Rust reference to those
///   exists.
#[inline]
pub(super) unsafe fn store_u64(dst: *mut u8, value: u64) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller vouches for `dst`. Stores of this architecture are never reordered with
    // earlier ones.
    unsafe {
        std::arch::asm!(
            "mov qword ptr [{dst}], {value}",
            dst = in(reg) dst,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: the caller vouches for `dst`. The instruction is a release.
    unsafe {
        std::arch::asm!(
            "stlr {value}, [{dst}]",
            dst = in(reg) dst,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        // SAFETY: forwarded to the caller.
        unsafe { store(dst, &value.to_ne_bytes()) };
    }
}

/// Takes 8 bytes from `src`, in memory order, before all that is loaded afterwards; a single access
/// where [`store_u64`] is one.
///
/// # Safety
/// - `src` is mapped and readable for 8 bytes, a multiple of 8, which a pointer with write permission
///   names, and no `&mut` to those exists.
#[inline]
pub(super) unsafe fn load_u64(src: *mut u8) -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let value: u64;
        // SAFETY: the caller vouches for `src`. Loads of this architecture are never reordered with
        // later ones.
        unsafe {
            std::arch::asm!(
                "mov {value}, qword ptr [{src}]",
                src = in(reg) src,
                value = out(reg) value,
                options(nostack, preserves_flags),
            );
        }
        value
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        let value: u64;
        // SAFETY: the caller vouches for `src`. The instruction is an acquire.
        unsafe {
            std::arch::asm!(
                "ldar {value}, [{src}]",
                src = in(reg) src,
                value = out(reg) value,
                options(nostack, preserves_flags),
            );
        }
        value
    }
    #[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
    {
        let mut bytes = [0; 8];
        // SAFETY: forwarded to the caller.
        unsafe { load(src, &mut bytes) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        u64::from_ne_bytes(bytes)
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

    /// Of one writer and one reader in one process, on 8-byte places and across them: under Miri the
    /// proof that no access races in the model's sense, elsewhere that no half value is seen.
    #[test]
    fn eight_bytes_are_stored_and_loaded_at_once() {
        #[derive(Clone, Copy)]
        struct Shared(*mut u8);
        // SAFETY: the pointer is only used for accesses that may run at the same time.
        unsafe impl Send for Shared {}

        let mut memory = [0_u64; 3];
        let shared = Shared(memory.as_mut_ptr().cast());
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let shared = shared;
                for round in 0..rounds {
                    // SAFETY: inside of the array.
                    let at = unsafe { shared.0.add(8) };
                    // SAFETY: a place of 8 bytes in the array, which outlives the scope.
                    unsafe { store_u64(at, u64::from_ne_bytes([(round % 251) as u8; 8])) };
                }
            });
            for round in 0..rounds {
                // SAFETY: inside of the array.
                let at = unsafe { shared.0.add(8) };
                // SAFETY: a place of 8 bytes in the array, which outlives the scope.
                let bytes = unsafe { load_u64(at) }.to_ne_bytes();
                if cfg!(all(
                    any(target_arch = "x86_64", target_arch = "aarch64"),
                    not(miri)
                )) {
                    assert_eq!(bytes, [bytes[0]; 8], "half of a value");
                }
                // SAFETY: inside of the array.
                let across = unsafe { shared.0.add(usize::from(round % 2 == 0) * 3) };
                let mut other = [0; 11];
                // SAFETY: 3 + 11 bytes from the start, in the array.
                unsafe { load(across, &mut other) };
            }
        });
        // The first place and the last are as they were.
        assert_eq!((memory[0], memory[2]), (0, 0));
        // SAFETY: the array's own first place.
        unsafe { store_u64(memory.as_mut_ptr().cast(), 0x0102_0304_0506_0708) };
        assert_eq!(memory[0], 0x0102_0304_0506_0708);
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
