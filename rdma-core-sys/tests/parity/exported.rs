//! Recording stand-ins for the functions that the inlines call by name.
//!
//! They replace the libraries' own in this program, and the shared object with the C inlines is told to call them too.

use std::ffi::{c_int, c_uint, c_void};

use rdma_core_sys::*;

use crate::record::{Word, record, scripted};

/// Functions that record and return a sample of their type, with a list of their names and addresses.
macro_rules! stand_ins {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($arg: $ty),*) $(-> $ret)? {
                record(stringify!($name), &[$(Word::word($arg)),*]);
                Word::sample()
            }
        )*

        /// Name and address of each stand-in.
        pub(crate) fn all() -> Vec<(&'static str, usize)> {
            vec![
                $((stringify!($name), $name as *const () as usize),)*
                ("ibv_query_port", ibv_query_port as *const () as usize),
                ("ibv_query_device", ibv_query_device as *const () as usize),
                ("ibv_get_cq_event", ibv_get_cq_event as *const () as usize),
            ]
        }
    };
}

stand_ins! {
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn _ibv_query_gid_ex(context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32, size: usize) -> c_int;
    fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max: usize, flags: u32, size: usize) -> isize;
    fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr;
    fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
}

/// How many bytes of the port's attributes the frozen symbol fills: up to its last field, the link layer.
pub(crate) const FROZEN_PORT_BYTES: usize = std::mem::offset_of!(ibv_port_attr, link_layer) + 1;

#[unsafe(no_mangle)]
extern "C" fn ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut c_void) -> c_int {
    record(
        "ibv_query_port",
        &[context.word(), port.word(), attr.word()],
    );
    // SAFETY: the caller passes a whole struct, of which this is the first part.
    unsafe { attr.cast::<u8>().write_bytes(0x22, FROZEN_PORT_BYTES) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    record("ibv_query_device", &[context.word(), attr.word()]);
    // SAFETY: the caller passes a whole struct.
    unsafe {
        attr.cast::<u8>()
            .write_bytes(0x22, size_of::<ibv_device_attr>())
    };
    0
}

/// Follows the script; on success the event is of the queue that the channel's context pointer names.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    context: *mut *mut c_void,
) -> c_int {
    record("ibv_get_cq_event", &[channel.word()]);
    let ret = scripted();
    if ret == 0 {
        // SAFETY: the tests that come here make a channel whose context field holds the queue.
        let of = unsafe { (*channel).context }.cast::<ibv_cq>();
        // SAFETY: the caller passes a place for the queue.
        unsafe { *cq = of };
        // SAFETY: the queue is live.
        let of = unsafe { (*of).cq_context };
        // SAFETY: the caller passes a place for its context.
        unsafe { *context = of };
    }
    ret
}
