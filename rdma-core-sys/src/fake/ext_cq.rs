//! Extended completion queues: creation, polling one completion at a time, and the readers that were asked for.

use core::ffi::{c_int, c_uint};
use core::time::Duration;
use std::prelude::rust_2024::*;
use std::sync::MutexGuard;

use super::world::{World, changed, lock, wait_until};
use super::{cq, enter, null, violation};
use crate::bindings::{
    ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask, ibv_create_cq_attr_flags,
    ibv_create_cq_wc_flags as W, ibv_poll_cq_attr, ibv_values_ex, ibv_values_mask, ibv_wc,
    ibv_wc_opcode, ibv_wc_tm_info,
};

/// Nanoseconds of one tick of the device's clock: it runs at [`CLOCK_KHZ`].
const TICK_NS: u64 = 10;
/// The rate of the device's clock.
pub(super) const CLOCK_KHZ: u64 = 1_000_000 / TICK_NS;
/// The wall clock when the device's clock was 0.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// How far a queue is in polling the extended way.
#[derive(Debug, Default)]
pub(super) struct Polling {
    /// A batch is begun; the queue is locked until it ends.
    begun: bool,
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    wc: ibv_wc,
    /// When it was taken out of the queue, in ticks.
    ticks: u64,
}

/// Waits as C does until nobody has the queue locked by a batch of completions.
pub(super) fn wait_for_end(
    world: MutexGuard<'static, World>,
    call: &str,
    cq: usize,
) -> MutexGuard<'static, World> {
    let why = "a batch of completions was begun and not ended";
    wait_until(world, call, why, |world| {
        !world.cqs.at(call, cq).polling.begun
    })
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let call = "ibv_create_cq_ex";
    let made = enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a filled struct.
        let attr = unsafe { attr.read() };
        let known_mask = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
        let known_flags = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED
            | ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
        if attr.wc_flags & !KNOWN != 0
            || attr.wc_flags & world.ext.refused_wc_flags != 0
            || attr.comp_mask & !known_mask != 0
            || attr.flags & !known_flags.0 != 0
        {
            return Err(libc::EOPNOTSUPP);
        }
        let mut new = ibv_cq_ex {
            context,
            channel: attr.channel,
            cq_context: attr.cq_context,
            cqe: c_int::try_from(attr.cqe).map_err(|_| libc::EINVAL)?,
            start_poll: Some(start_poll),
            next_poll: Some(next_poll),
            end_poll: Some(end_poll),
            read_opcode: Some(read_opcode),
            read_vendor_err: Some(read_vendor_err),
            read_wc_flags: Some(read_wc_flags),
            ..ibv_cq_ex::default()
        };
        set_readers(&mut new, attr.wc_flags & !world.ext.missing_wc_flags);
        let vector = c_int::try_from(attr.comp_vector).map_err(|_| libc::EINVAL)?;
        cq::create(&mut world, call, new, vector)
    });
    made.unwrap_or_else(null)
}

/// Takes the oldest completion for the batch; `ENOENT` when there is none.
fn advance(world: &mut World, call: &str, cq: *mut ibv_cq_ex) -> Result<(), c_int> {
    let entry = world.take_completion(call, cq.addr()).ok_or(libc::ENOENT)?;
    world.ext.ticks += 1;
    let ticks = world.ext.ticks;
    // SAFETY: the queue is in the table, so it is live, and locked by the batch.
    unsafe { (*cq).wr_id = entry.wc.wr_id };
    // SAFETY: as above.
    unsafe { (*cq).status = entry.wc.status };
    world.cqs.of(call, cq).polling.current = Some(Current {
        wc: entry.wc,
        ticks,
    });
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let call = "ibv_start_poll";
    let mut world = lock();
    if let Err(errno) = world.record(call) {
        return errno;
    }
    // SAFETY: the caller gives a filled struct.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    let mut world = wait_for_end(world, call, cq.addr());
    match advance(&mut world, call, cq) {
        Ok(()) => {
            world.cqs.of(call, cq).polling.begun = true;
            0
        }
        Err(errno) => errno,
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let call = "ibv_next_poll";
    let mut world = lock();
    if let Err(errno) = world.record(call) {
        return errno;
    }
    let state = world.cqs.of(call, cq);
    if !state.polling.begun {
        violation("ibv_next_poll with no batch of completions begun");
    }
    state.polling.current = None;
    let context = state.context;
    if !world.devices.is_iwarp(context) {
        // The RoCE device stands for SoftRoCE.
        violation(
            "ibv_next_poll on SoftRoCE: older ones lose a completion at the end of such a batch",
        );
    }
    advance(&mut world, call, cq).err().unwrap_or(0)
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    let call = "ibv_end_poll";
    // What cannot fail is only recorded.
    if let Ok(mut world) = enter(call) {
        let state = world.cqs.of(call, cq);
        if !state.polling.begun {
            violation("ibv_end_poll with no batch of completions begun");
        }
        state.polling = Polling::default();
        changed();
    }
}

/// What a reader says of the current completion.
fn read<T>(call: &'static str, cq: *mut ibv_cq_ex, of: impl FnOnce(&Current) -> T) -> T {
    let mut world = lock();
    // A reader cannot fail.
    let _ = world.record(call);
    match &world.cqs.of(call, cq).polling.current {
        Some(current) => of(current),
        None => violation(&std::format!("{call} with no completion to read")),
    }
}

/// Readers: each is there when the queue was asked for its bit.
macro_rules! readers {
    ($($name:ident, $call:literal, $bit:expr => $ret:ty = |$current:ident| $value:expr;)*) => {
        /// All bits that the fake knows.
        const KNOWN: u64 = 0 $(| $bit.0 as u64)*;

        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ret {
            read($call, cq, |$current| $value)
        })*

        fn set_readers(cq: &mut ibv_cq_ex, bits: u64) {
            $(if bits & $bit.0 as u64 != 0 {
                cq.$name = Some($name);
            })*
            if bits & u64::from(W::IBV_WC_EX_WITH_TM_INFO.0) != 0 {
                cq.read_tm_info = Some(read_tm_info);
            }
        }
    };
}

readers! {
    read_byte_len, "ibv_wc_read_byte_len", W::IBV_WC_EX_WITH_BYTE_LEN => u32 = |c| c.wc.byte_len;
    read_imm_data, "ibv_wc_read_imm_data", W::IBV_WC_EX_WITH_IMM => u32
        // SAFETY: the union is four bytes under either name.
        = |c| unsafe { c.wc.__bindgen_anon_1.imm_data };
    read_qp_num, "ibv_wc_read_qp_num", W::IBV_WC_EX_WITH_QP_NUM => u32 = |c| c.wc.qp_num;
    read_src_qp, "ibv_wc_read_src_qp", W::IBV_WC_EX_WITH_SRC_QP => u32 = |c| c.wc.src_qp;
    read_slid, "ibv_wc_read_slid", W::IBV_WC_EX_WITH_SLID => u32 = |c| c.wc.slid.into();
    read_sl, "ibv_wc_read_sl", W::IBV_WC_EX_WITH_SL => u8 = |c| c.wc.sl;
    read_dlid_path_bits, "ibv_wc_read_dlid_path_bits", W::IBV_WC_EX_WITH_DLID_PATH_BITS => u8
        = |c| c.wc.dlid_path_bits;
    read_completion_ts, "ibv_wc_read_completion_ts", W::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP => u64
        = |c| c.ticks;
    read_completion_wallclock_ns, "ibv_wc_read_completion_wallclock_ns",
        W::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK => u64
        = |c| EPOCH.as_secs() * 1_000_000_000 + c.ticks * TICK_NS;
    read_cvlan, "ibv_wc_read_cvlan", W::IBV_WC_EX_WITH_CVLAN => u16 = |_c| 0;
    read_flow_tag, "ibv_wc_read_flow_tag", W::IBV_WC_EX_WITH_FLOW_TAG => u32 = |_c| 0;
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    read("ibv_wc_read_opcode", cq, |current| current.wc.opcode)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    read("ibv_wc_read_vendor_err", cq, |current| {
        current.wc.vendor_err
    })
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    read("ibv_wc_read_wc_flags", cq, |current| current.wc.wc_flags)
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, _info: *mut ibv_wc_tm_info) {
    violation("the fake device has no tag matching to read about");
}

pub(super) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    let call = "ibv_query_rt_values_ex";
    super::by_return(enter(call).and_then(|mut world| {
        world.devices.check(call, context);
        // SAFETY: the caller says what it wants.
        let wanted = unsafe { (*values).comp_mask };
        if wanted & !ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0 != 0 {
            return Err(libc::EINVAL);
        }
        world.ext.ticks += 1;
        let raw_clock = libc::timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(world.ext.ticks).unwrap_or(i64::MAX),
        };
        // SAFETY: the caller gives a struct to be filled.
        unsafe { (*values).raw_clock = raw_clock };
        Ok(())
    }))
}
