//! Writing the processor's cache lines back to memory.

use std::sync::atomic::{AtomicU8, Ordering};

use super::mapping::page_size;
use super::persist::PersistMethod;

/// The best instruction of this processor that takes a line to memory that survives a loss of power.
pub(super) fn detect() -> Option<PersistMethod> {
    if cfg!(miri) { None } else { machine::detect() }
}

/// Writes back all lines that hold any of `len` bytes from `start` on, and waits until that is done.
///
/// # Safety
/// - The range is mapped.
/// - `method` was detected here.
pub(super) unsafe fn write_back(method: PersistMethod, start: *const u8, len: usize) {
    let line = machine::line_size();
    let first = start.addr() / line * line;
    let mut at = start.wrapping_sub(start.addr() - first);
    let end = start.addr() + len;
    while at.addr() < end {
        // SAFETY: a line of which a byte is mapped is mapped: pages are made of lines.
        unsafe { machine::write_back_line(method, at) };
        at = at.wrapping_add(line);
    }
    machine::wait(method);
}

/// Makes the pages of `len` bytes from `start` on dirty, without a change that anybody could see.
///
/// # Safety
/// - The range is mapped and writable, and no Rust reference to it exists.
pub(super) unsafe fn touch(start: *mut u8, len: usize) {
    let page = page_size();
    let mut done = 0;
    while done < len {
        let at = start.wrapping_add(done);
        // SAFETY: mapped and writable, as the caller vouches; alignment 1 always holds.
        let byte = unsafe { AtomicU8::from_ptr(at) };
        // Not `fetch_or(0)`, which compilers turn into a load. A byte that has just changed was
        // written, by whomever; it is written all the same, since a device's write marks no page.
        let mut old = byte.load(Ordering::Relaxed);
        while let Err(new) = byte.compare_exchange(old, old, Ordering::Relaxed, Ordering::Relaxed) {
            old = new;
        }
        // The next page's first byte.
        done += page - at.addr() % page;
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid_count, CpuidResult};

    use super::PersistMethod;

    pub(super) fn detect() -> Option<PersistMethod> {
        if leaf(0).eax >= 7 {
            let features = leaf(7).ebx;
            if features & 1 << 24 != 0 {
                return Some(PersistMethod::Clwb);
            }
            if features & 1 << 23 != 0 {
                return Some(PersistMethod::ClflushOpt);
            }
        }
        (leaf(1).edx & 1 << 19 != 0).then_some(PersistMethod::Clflush)
    }

    /// What the processor says of itself: a leaf that it does not have holds no harm, only nonsense.
    #[allow(unused_unsafe, reason = "later compilers take the call for safe")]
    fn leaf(number: u32) -> CpuidResult {
        // SAFETY: every processor of this architecture has the instruction.
        unsafe { __cpuid_count(number, 0) }
    }

    pub(super) fn line_size() -> usize {
        let size = leaf(1).ebx >> 8 & 0xff;
        (size as usize * 8).max(16)
    }

    /// # Safety
    /// - `at` is mapped, and the processor has the instruction.
    pub(super) unsafe fn write_back_line(method: PersistMethod, at: *const u8) {
        match method {
            // SAFETY: the caller vouches; nothing is changed that a program can see.
            PersistMethod::Clwb => unsafe {
                asm!("clwb byte ptr [{}]", in(reg) at, options(nostack, preserves_flags));
            },
            // SAFETY: as above.
            PersistMethod::ClflushOpt => unsafe {
                asm!("clflushopt byte ptr [{}]", in(reg) at, options(nostack, preserves_flags));
            },
            // SAFETY: as above.
            _ => unsafe {
                asm!("clflush byte ptr [{}]", in(reg) at, options(nostack, preserves_flags));
            },
        }
    }

    /// Returns when all lines are written back.
    pub(super) fn wait(_: PersistMethod) {
        // SAFETY: the instruction has no operands, and is in every processor of this architecture.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use std::arch::asm;

    use super::PersistMethod;

    pub(super) fn detect() -> Option<PersistMethod> {
        /// The kernel's `HWCAP_DCPOP`.
        const POINT_OF_PERSISTENCE: u64 = 1 << 16;
        // SAFETY: the call has no precondition.
        let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP) };
        (capabilities & POINT_OF_PERSISTENCE != 0).then_some(PersistMethod::DcCvap)
    }

    pub(super) fn line_size() -> usize {
        let types: u64;
        // SAFETY: programs may read the register.
        unsafe {
            asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags))
        };
        // Words of 4 bytes, as a power of two.
        4 << (types >> 16 & 0xf)
    }

    /// # Safety
    /// - `at` is mapped, and the processor has the instruction.
    pub(super) unsafe fn write_back_line(_: PersistMethod, at: *const u8) {
        // SAFETY: the caller vouches; nothing is changed that a program can see. The words are those
        // of `dc cvap`, which assemblers know only with an option.
        unsafe {
            asm!("sys #3, c7, c12, #1, {}", in(reg) at, options(nostack, preserves_flags));
        }
    }

    /// Returns when all lines are written back.
    pub(super) fn wait(_: PersistMethod) {
        // SAFETY: a barrier alone.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

/// No instruction is known that does it: `msync` does, where the file system has it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod machine {
    use super::PersistMethod;

    pub(super) fn detect() -> Option<PersistMethod> {
        None
    }

    pub(super) fn line_size() -> usize {
        64
    }

    /// # Safety
    /// - Never called: no method is detected.
    pub(super) unsafe fn write_back_line(_: PersistMethod, _: *const u8) {}

    pub(super) fn wait(_: PersistMethod) {}
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn writing_back_changes_nothing_and_takes_any_range() {
        let Some(best) = detect() else { return };
        let mut methods = vec![best];
        if cfg!(target_arch = "x86_64") {
            // Every processor of this architecture has it.
            methods.push(PersistMethod::Clflush);
        }
        let mut memory: Vec<u8> = (0..=255).cycle().take(3 * 4096).collect();
        let expected = memory.clone();
        for method in methods {
            for (from, len) in [(0, 0), (0, 1), (63, 2), (64, 64), (1, 8191), (4095, 4097)] {
                // SAFETY: all of it is in the vector, which no reference is used of meanwhile.
                unsafe { write_back(method, memory.as_mut_ptr().wrapping_add(from), len) };
            }
            assert_eq!(memory, expected, "{method}");
        }
    }

    #[test]
    fn touching_changes_nothing_and_stays_inside() {
        let mut memory: Vec<u8> = (0..=255).cycle().take(3 * 4096).collect();
        let expected = memory.clone();
        let start = memory.as_mut_ptr().wrapping_add(5);
        // SAFETY: all of it is in the vector, which no reference is used of meanwhile.
        unsafe { touch(start, 3 * 4096 - 5) };
        assert_eq!(memory, expected);
    }

    #[test]
    fn a_line_is_a_power_of_two_that_divides_a_page() {
        let line = machine::line_size();
        assert!(
            line.is_power_of_two() && (16..=4096).contains(&line),
            "{line}"
        );
    }
}
