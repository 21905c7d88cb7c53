//! Queries: what they leave in the caller's struct must be the same byte for byte.

use std::cell::Cell;
use std::ffi::c_int;
use std::mem::offset_of;

use rdma_core_sys::*;

use crate::exported::FROZEN_PORT_BYTES;
use crate::fixture::{Fixture, Reach};
use crate::record::{Word, observe, record, token};
use crate::shim;

/// Room for a struct of this or a later release, filled with a pattern that a query must not leave behind.
#[repr(C, align(16))]
struct Poisoned([u8; 1024]);

impl Poisoned {
    fn new() -> Self {
        Self([0xaa; 1024])
    }

    fn place<T>(&mut self) -> *mut T {
        assert!(size_of::<T>() < self.0.len());
        self.0.as_mut_ptr().cast()
    }

    fn first(&self, bytes: usize) -> &[u8] {
        &self.0[..bytes]
    }
}

thread_local! {
    static RETURN: Cell<c_int> = const { Cell::new(0) };
    static TOLD_SIZE: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn a_port_query_leaves_nothing_uninitialised_and_is_equal_to_c() {
    unsafe extern "C" fn recorder(
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
        size: usize,
    ) -> c_int {
        record("query_port", &[context.word(), port.word(), attr.word()]);
        TOLD_SIZE.set(size);
        // SAFETY: the caller passes room for the size that it tells.
        unsafe { attr.cast::<u8>().write_bytes(0x33, size) };
        0
    }
    type Query = unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    let f = Fixture::new();
    // SAFETY: the type is that of the header's macro.
    let c = unsafe { shim::inline::<Query>("ibv_query_port") };
    let size = size_of::<ibv_port_attr>();
    for reach in Reach::EACH {
        for filled in [true, false] {
            f.set(reach, offset_of!(verbs_context, query_port));
            // SAFETY: the table is live and known to this thread alone.
            unsafe { (*f.vctx).query_port = if filled { Some(recorder) } else { None } };
            let mut attr = Poisoned::new();
            let place = attr.place();
            // SAFETY: the context is live and there is room for the struct.
            let ours = observe(|| unsafe { rdma_core_sys::ibv_query_port(f.context, 7, place) });
            let our_bytes = attr.first(size).to_vec();
            if reach.has_slot() && filled {
                assert_eq!(TOLD_SIZE.get(), size);
            }
            assert!(
                attr.0[size..].iter().all(|byte| *byte == 0xaa),
                "more than the struct was written"
            );
            attr.0.fill(0xaa);
            let place = attr.place();
            // SAFETY: the context is live and there is room for the struct, of any release.
            let theirs = observe(|| unsafe { c(f.context, 7, place) });
            assert_eq!(
                (ours, our_bytes.as_slice()),
                (theirs, attr.first(size)),
                "{reach:?}, slot filled: {filled}"
            );

            assert!(!our_bytes.contains(&0xaa), "{our_bytes:x?}");
            if !(reach.has_slot() && filled) {
                // The frozen symbol knows neither flags nor port_cap_flags2.
                assert!(
                    our_bytes[FROZEN_PORT_BYTES..].iter().all(|byte| *byte == 0),
                    "{our_bytes:x?}"
                );
            }
        }
    }
}

#[test]
fn an_extended_device_query_falls_back_as_in_c() {
    unsafe extern "C" fn recorder(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        size: usize,
    ) -> c_int {
        record(
            "query_device_ex",
            &[context.word(), input.word(), attr.word()],
        );
        TOLD_SIZE.set(size);
        // SAFETY: the caller passes room for the size that it tells.
        unsafe { attr.cast::<u8>().write_bytes(0x33, size) };
        RETURN.get()
    }
    type Query = unsafe extern "C" fn(
        *mut ibv_context,
        *const ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
    ) -> c_int;
    let f = Fixture::new();
    // SAFETY: the type is that of the header's function.
    let c = unsafe { shim::inline::<Query>("ibv_query_device_ex") };
    let size = size_of::<ibv_device_attr_ex>();
    let nothing = ibv_query_device_ex_input { comp_mask: 0 };
    let something = ibv_query_device_ex_input { comp_mask: 4 };
    // SAFETY: the table is live and known to this thread alone.
    unsafe { (*f.vctx).query_device_ex = Some(recorder) };
    for reach in Reach::EACH {
        f.set(reach, offset_of!(verbs_context, query_device_ex));
        for input in [std::ptr::null(), &raw const nothing, &raw const something] {
            for ret in [0, libc::EOPNOTSUPP, libc::ENOSYS, libc::EIO] {
                RETURN.set(ret);
                let mut attr = Poisoned::new();
                let place = attr.place();
                // SAFETY: the context is live, the input is NULL or live, and there is room for the struct.
                let ours = observe(|| unsafe {
                    rdma_core_sys::ibv_query_device_ex(f.context, input, place)
                });
                let our_bytes = attr.first(size).to_vec();
                if ours
                    .calls
                    .first()
                    .is_some_and(|call| call.name == "query_device_ex")
                {
                    assert_eq!(TOLD_SIZE.get(), size);
                }
                attr.0.fill(0xaa);
                let place = attr.place();
                // SAFETY: as above.
                let theirs = observe(|| unsafe { c(f.context, input, place) });
                assert_eq!(
                    (&ours, our_bytes.as_slice()),
                    (&theirs, attr.first(size)),
                    "{reach:?}, input {input:?}, provider returns {ret}"
                );
                if ours.returned == 0 {
                    assert!(!our_bytes.contains(&0xaa), "{our_bytes:x?}");
                }
            }
        }
    }
}

#[test]
fn gid_queries_tell_the_size_of_an_entry() {
    type Entry = unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32) -> c_int;
    type Table = unsafe extern "C" fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32) -> isize;
    // SAFETY: the type is that of the header's function.
    let entry = unsafe { shim::inline::<Entry>("ibv_query_gid_ex") };
    // SAFETY: as above.
    let table = unsafe { shim::inline::<Table>("ibv_query_gid_table") };

    // SAFETY: the stand-in follows no pointer.
    let ours = observe(|| unsafe { rdma_core_sys::ibv_query_gid_ex(token(1), 2, 3, token(4), 5) });
    // SAFETY: as above.
    let theirs = observe(|| unsafe { entry(token(1), 2, 3, token(4), 5) });
    assert_eq!(ours, theirs);
    assert_eq!(ours.calls.len(), 1);

    // SAFETY: as above.
    let ours = observe(|| unsafe { rdma_core_sys::ibv_query_gid_table(token(1), token(2), 3, 4) });
    // SAFETY: as above.
    let theirs = observe(|| unsafe { table(token(1), token(2), 3, 4) });
    assert_eq!(ours, theirs);
    assert_eq!(ours.calls.len(), 1);
}
