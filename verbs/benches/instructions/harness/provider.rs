//! A provider that does next to nothing.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use verbs::{Context, sys};

/// Bytes of one message.
pub(crate) const LENGTH: u32 = 8;

/// How many requests the provider was given.
pub(crate) fn taken() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

/// How many completions the next polls find.
pub(crate) fn ready() -> i32 {
    READY.load(Ordering::Relaxed)
}

/// Lets the next polls find so many completions.
pub(crate) fn set_ready(count: i32) {
    READY.store(count, Ordering::Relaxed);
}

static TAKEN: AtomicU64 = AtomicU64::new(0);
static READY: AtomicI32 = AtomicI32::new(1);

/// Before any queue is made: a queue goes by what it found then.
pub(crate) fn install(context: &Context) {
    let context = context.as_raw();
    // SAFETY: the context is open, and no other thread uses it.
    let ops = unsafe { &mut (*context).ops };
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    ops.post_srq_recv = Some(post_srq_recv);
    ops.poll_cq = Some(poll_cq);
}

/// Not `fetch_add`: the proof that nothing is locked looks at this code, too.
pub(crate) fn count_one() {
    TAKEN.store(TAKEN.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

unsafe extern "C" fn post_send(
    _qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_send_wr,
    _bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    while !wr.is_null() {
        count_one();
        // SAFETY: the list is made of whole requests.
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C" fn post_recv(
    _qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_recv_wr,
    _bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    while !wr.is_null() {
        count_one();
        // SAFETY: the list is made of whole requests.
        wr = unsafe { (*wr).next };
    }
    0
}

unsafe extern "C" fn post_srq_recv(
    _srq: *mut sys::ibv_srq,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: forwarded to the caller; the queue pair is not looked at.
    unsafe { post_recv(std::ptr::null_mut(), wr, bad) }
}

unsafe extern "C" fn poll_cq(_cq: *mut sys::ibv_cq, room: c_int, wc: *mut sys::ibv_wc) -> c_int {
    let count = READY.load(Ordering::Relaxed).min(room);
    for index in 0..count.cast_unsigned() {
        // SAFETY: every bit pattern is a value, and zero is a success.
        let mut completion: sys::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        completion.wr_id = index.into();
        completion.byte_len = LENGTH;
        let place = wc.wrapping_add(index as usize);
        // SAFETY: the caller has room for that many.
        unsafe { place.write(completion) };
    }
    count
}
