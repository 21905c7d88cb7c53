//! What a call did, in words that can be compared.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::c_int;

use rdma_core_sys::*;

/// One call of a recording function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: &'static str,
    pub(crate) words: Vec<u64>,
}

/// All that could be seen of one function under test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) calls: Vec<Call>,
    pub(crate) returned: u64,
    pub(crate) errno: c_int,
}

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static SCRIPT: RefCell<VecDeque<c_int>> = const { RefCell::new(VecDeque::new()) };
}

/// Notes a call.
pub(crate) fn record(name: &'static str, words: &[u64]) {
    CALLS.with_borrow_mut(|calls| {
        calls.push(Call {
            name,
            words: words.to_vec(),
        })
    });
}

/// Sets what the recording functions that follow a script return, one after the other.
pub(crate) fn script(returns: &[c_int]) {
    SCRIPT.with_borrow_mut(|script| *script = returns.iter().copied().collect());
}

/// The next value of the script.
pub(crate) fn scripted() -> c_int {
    SCRIPT
        .with_borrow_mut(VecDeque::pop_front)
        .expect("the script is long enough")
}

/// Runs a function and tells what could be seen of it.
pub(crate) fn observe<T: Word>(run: impl FnOnce() -> T) -> Observed {
    CALLS.with_borrow_mut(Vec::clear);
    set_errno(0);
    let returned = run().word();
    Observed {
        calls: CALLS.take(),
        returned,
        errno: errno(),
    }
}

pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_errno(value: c_int) {
    // SAFETY: the call has no precondition.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the C library gives this thread's own variable.
    unsafe { *place = value };
}

/// A pointer that nothing may follow, told from others by its number.
pub(crate) fn token<T>(number: usize) -> *mut T {
    std::ptr::without_provenance_mut(number << 12)
}

/// Arguments and results as numbers, and a value of each type that a recording function returns.
pub(crate) trait Word: Sized {
    fn word(self) -> u64;
    fn sample() -> Self;
}

impl Word for () {
    fn word(self) -> u64 {
        0
    }

    fn sample() -> Self {}
}

impl<T> Word for *mut T {
    fn word(self) -> u64 {
        self.addr() as u64
    }

    fn sample() -> Self {
        token(0x5a5)
    }
}

impl<T> Word for *const T {
    fn word(self) -> u64 {
        self.addr() as u64
    }

    fn sample() -> Self {
        token(0x5a5)
    }
}

macro_rules! integers {
    ($($ty:ty = $sample:expr;)*) => {$(
        impl Word for $ty {
            #[allow(clippy::cast_sign_loss, clippy::cast_lossless, reason = "only told apart, not counted with")]
            fn word(self) -> u64 {
                self as u64
            }

            fn sample() -> Self {
                $sample
            }
        }
    )*};
}

integers! {
    u8 = 0xa5;
    u16 = 0xa55a;
    u32 = 0xdead_beef;
    u64 = 0x0123_4567_89ab_cdef;
    usize = 0x0123_4567;
    isize = -7;
    c_int = 0x5a;
}

macro_rules! newtypes {
    ($($ty:ident),*) => {$(
        impl Word for $ty {
            fn word(self) -> u64 {
                self.0.word()
            }

            fn sample() -> Self {
                $ty(Word::sample())
            }
        }
    )*};
}

newtypes!(ibv_wc_opcode, ibv_mw_type, ib_uverbs_advise_mr_advice);
