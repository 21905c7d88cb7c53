//! Extended queue pairs: requests that are built piece by piece, and posted with the end of their batch.

use core::ffi::{c_int, c_uint, c_void};
use std::prelude::rust_2024::*;
use std::sync::MutexGuard;

use super::control::PostedFlush;
use super::world::{World, changed, lock, wait_until};
use super::{data, enter, null, qp, violation};
use crate::bindings::{
    ibv_ah, ibv_context, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp,
    ibv_qp_create_send_ops_flags as O, ibv_qp_ex, ibv_qp_init_attr_ex, ibv_qp_init_attr_mask,
    ibv_qp_type, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode,
};
use crate::inline::{WR_FLUSH_OFFSET, ibv_wr_flush_fn};
use crate::unions::{ibv_send_wr_atomic, ibv_send_wr_bind_mw, ibv_send_wr_ud};

/// A queue pair as rdma-core 45 and later allocate it: with room for the flush behind the rest.
#[repr(C)]
#[derive(Debug)]
pub(super) struct QpMemory {
    ex: ibv_qp_ex,
    wr_flush: Option<ibv_wr_flush_fn>,
}

impl QpMemory {
    pub(super) fn new(qp_base: ibv_qp) -> Self {
        Self {
            ex: ibv_qp_ex {
                qp_base,
                ..ibv_qp_ex::default()
            },
            wr_flush: None,
        }
    }
}

/// What a queue pair has of the batch that is being built.
#[derive(Debug, Default)]
pub(super) struct Building {
    /// Made with operations to build with.
    extended: bool,
    batch: Option<Batch>,
}

#[derive(Debug, Default)]
struct Batch {
    requests: Vec<Request>,
    /// The first thing that went wrong, told at the end.
    error: c_int,
}

#[derive(Clone)]
struct Request {
    c: ibv_send_wr,
    sges: Vec<ibv_sge>,
    inline: Option<Vec<u8>>,
    /// Length, placement and level of a flush.
    flush: Option<(usize, u8, u8)>,
}

// SAFETY: pointers in the request are only handed back to who gave them.
unsafe impl Send for Request {}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}

/// Waits as C does until nobody has the send queue locked by a batch.
pub(super) fn wait_for_end(
    world: MutexGuard<'static, World>,
    call: &str,
    qp: usize,
) -> MutexGuard<'static, World> {
    let why = "a batch of requests was begun and neither completed nor aborted";
    wait_until(world, call, why, |world| {
        world.qps.at(call, qp).building.batch.is_none()
    })
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let call = "ibv_create_qp_ex";
    let made = enter(call).and_then(|mut world| {
        world.devices.check(call, context);
        // SAFETY: the caller gives a filled struct, which may be written to.
        let attr = unsafe { &mut *attr };
        if attr.qp_type == ibv_qp_type::IBV_QPT_XRC_RECV {
            return world.new_xrc_target(call, context, attr);
        }
        let known = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let ops = attr.send_ops_flags;
        if attr.comp_mask & !known.0 != 0
            || ops & !KNOWN != 0
            || ops & world.ext.refused_send_ops != 0
        {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask & ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 == 0 {
            return Err(libc::EINVAL);
        }
        let mut init = crate::bindings::ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let made = qp::create(&mut world, call, attr.pd, &mut init)?;
        attr.cap = init.cap;
        if attr.comp_mask & ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0 != 0 {
            world.qps.of(call, made).building.extended = true;
            // SAFETY: the queue pair was just made, and nobody else has it yet.
            let memory = unsafe { &mut *made };
            set_operations(memory, ops & !world.ext.missing_send_ops);
        }
        Ok(made.cast())
    });
    made.unwrap_or_else(null)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let call = "ibv_qp_to_qp_ex";
    match enter(call).map(|mut world| world.qps.of(call, qp).building.extended) {
        Ok(true) => qp.cast(),
        Ok(false) => core::ptr::null_mut(),
        Err(errno) => null(errno),
    }
}

const _: () = assert!(
    core::mem::offset_of!(QpMemory, wr_flush) >= WR_FLUSH_OFFSET,
    "the slot lies in the allocation"
);

/// The batch of a queue pair, for a call that needs one.
fn batch<'a>(world: &'a mut World, call: &str, qp: *mut ibv_qp_ex) -> &'a mut Batch {
    match &mut world.qps.of(call, qp).building.batch {
        Some(batch) => batch,
        None => violation(&std::format!("{call} with no batch of requests begun")),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    let call = "ibv_wr_start";
    let mut world = lock();
    // What cannot fail is only recorded.
    let _ = world.record(call);
    let mut world = wait_for_end(world, call, qp.addr());
    world.qps.of(call, qp).building.batch = Some(Batch::default());
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    let call = "ibv_wr_abort";
    let mut world = lock();
    let _ = world.record(call);
    batch(&mut world, call, qp);
    world.qps.of(call, qp).building.batch = None;
    changed();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    let call = "ibv_wr_complete";
    let mut world = lock();
    let fault = world.record(call).err().unwrap_or(0);
    batch(&mut world, call, qp);
    let address = qp.addr();
    let Some(batch) = world.qps.of(call, qp).building.batch.take() else {
        return libc::EINVAL;
    };
    changed();
    if fault != 0 || batch.error != 0 {
        return if fault != 0 { fault } else { batch.error };
    }
    for request in batch.requests {
        if let Err(errno) = put(&mut world, address, request) {
            return errno;
        }
    }
    data::ring(&mut world, address).err().unwrap_or(0)
}

/// Puts a request that was built into the queue.
fn put(world: &mut World, address: usize, request: Request) -> Result<(), c_int> {
    let mut c = request.c;
    let mut sges = request.sges;
    let native = data::is_native(c.opcode.0);
    if let Some(bytes) = request.inline.as_deref().filter(|_| !native) {
        sges = std::vec![ibv_sge {
            addr: bytes.as_ptr().expose_provenance() as u64,
            length: u32::try_from(bytes.len()).map_err(|_| libc::EINVAL)?,
            lkey: 0,
        }];
        c.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    }
    c.sg_list = sges.as_mut_ptr();
    c.num_sge = c_int::try_from(sges.len()).map_err(|_| libc::EINVAL)?;
    // SAFETY: the list is whole, and the bytes of an inline request live to the end of this function.
    unsafe { world.enqueue(address, &c) }?;
    if native {
        let qp = world.qps.at("ibv_wr_complete", address);
        let qp_num = qp.number;
        if let Some(wqe) = qp.sends.back_mut() {
            wqe.inline = request.inline;
            if let Some((len, placement, level)) = request.flush {
                wqe.operands = [len as u64, u64::from(placement) | u64::from(level) << 8];
                let flush = PostedFlush {
                    qp_num,
                    wr_id: wqe.wr_id,
                    remote_addr: wqe.remote_addr,
                    rkey: wqe.rkey,
                    len,
                    placement,
                    level,
                };
                world.ext.flushes.push(flush);
            }
        }
    }
    Ok(())
}

/// Adds a request with what the fields of the queue pair say, and lets `fill` do the rest.
fn add(
    call: &'static str,
    qp: *mut ibv_qp_ex,
    opcode: ibv_wr_opcode,
    fill: impl FnOnce(&mut Request),
) {
    let mut world = lock();
    let fault = world.record(call).err();
    let mut request = Request {
        c: ibv_send_wr::default(),
        sges: Vec::new(),
        inline: None,
        flush: None,
    };
    // SAFETY: the queue pair is live: the table is asked for it below, and C reads it here as well.
    request.c.wr_id = unsafe { (*qp).wr_id };
    // SAFETY: as above.
    request.c.send_flags = unsafe { (*qp).wr_flags };
    request.c.opcode = opcode;
    fill(&mut request);
    let state = world.qps.of(call, qp);
    let pending = state
        .building
        .batch
        .as_ref()
        .map_or(0, |batch| batch.requests.len() as u64);
    let full = state.send.is_full_with(pending);
    let batch = batch(&mut world, call, qp);
    if batch.error == 0 {
        batch.error = fault.unwrap_or(if full { libc::ENOSPC } else { 0 });
    }
    batch.requests.push(request);
}

/// Changes the request that was added last.
fn set(
    call: &'static str,
    qp: *mut ibv_qp_ex,
    change: impl FnOnce(&mut Request, bool, u32, u32) -> c_int,
) {
    let mut world = lock();
    let fault = world.record(call).err();
    let state = world.qps.of(call, qp);
    let (max_sge, max_inline) = (state.cap().max_send_sge, state.cap().max_inline_data);
    let soft = !state.is_iwarp();
    let batch = batch(&mut world, call, qp);
    let Some(request) = batch.requests.last_mut() else {
        violation(&std::format!(
            "{call} with no request before it: C would edit one that is under way"
        ));
    };
    let error = fault.unwrap_or_else(|| change(request, soft, max_sge, max_inline));
    if batch.error == 0 {
        batch.error = error;
    }
}

macro_rules! operations {
    ($($slot:ident($($arg:ident: $ty:ty),*), $bit:expr, $opcode:ident, $call:literal => |$request:ident| $fill:expr;)*) => {
        const KNOWN: u64 = (O::IBV_QP_EX_WITH_FLUSH.0 $(| $bit.0)*) as u64;

        $(unsafe extern "C" fn $slot(qp: *mut ibv_qp_ex $(, $arg: $ty)*) {
            add($call, qp, ibv_wr_opcode::$opcode, |$request| $fill);
        })*

        fn set_operations(memory: &mut QpMemory, ops: u64) {
            let ex = &mut memory.ex;
            ex.wr_start = Some(wr_start);
            ex.wr_complete = Some(wr_complete);
            ex.wr_abort = Some(wr_abort);
            ex.wr_set_sge = Some(wr_set_sge);
            ex.wr_set_sge_list = Some(wr_set_sge_list);
            ex.wr_set_inline_data = Some(wr_set_inline_data);
            ex.wr_set_inline_data_list = Some(wr_set_inline_data_list);
            ex.wr_set_ud_addr = Some(wr_set_ud_addr);
            $(if ops & $bit.0 as u64 != 0 {
                ex.$slot = Some($slot);
            })*
            if ops & O::IBV_QP_EX_WITH_FLUSH.0 as u64 != 0 {
                let place = core::ptr::from_mut(memory)
                    .wrapping_byte_add(WR_FLUSH_OFFSET)
                    .cast::<Option<ibv_wr_flush_fn>>();
                // SAFETY: the place lies within the struct, as was checked when this was built, and is aligned.
                unsafe { place.write(Some(wr_flush)) };
            }
        }
    };
}

fn rdma(request: &mut Request, rkey: u32, remote_addr: u64) {
    // Field by field: the arm as a whole would bring its padding, in which other arms have operands.
    request.c.wr.rdma.remote_addr = remote_addr;
    request.c.wr.rdma.rkey = rkey;
}

operations! {
    wr_rdma_write(rkey: u32, addr: u64), O::IBV_QP_EX_WITH_RDMA_WRITE, IBV_WR_RDMA_WRITE, "ibv_wr_rdma_write"
        => |r| rdma(r, rkey, addr);
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32), O::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        IBV_WR_RDMA_WRITE_WITH_IMM, "ibv_wr_rdma_write_imm"
        => |r| { rdma(r, rkey, addr); r.c.__bindgen_anon_1.imm_data = imm; };
    wr_rdma_read(rkey: u32, addr: u64), O::IBV_QP_EX_WITH_RDMA_READ, IBV_WR_RDMA_READ, "ibv_wr_rdma_read"
        => |r| rdma(r, rkey, addr);
    wr_send(), O::IBV_QP_EX_WITH_SEND, IBV_WR_SEND, "ibv_wr_send" => |_r| ();
    wr_send_imm(imm: u32), O::IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM, "ibv_wr_send_imm"
        => |r| r.c.__bindgen_anon_1.imm_data = imm;
    wr_send_inv(rkey: u32), O::IBV_QP_EX_WITH_SEND_WITH_INV, IBV_WR_SEND_WITH_INV, "ibv_wr_send_inv"
        => |r| r.c.__bindgen_anon_1.invalidate_rkey = rkey;
    wr_local_inv(rkey: u32), O::IBV_QP_EX_WITH_LOCAL_INV, IBV_WR_LOCAL_INV, "ibv_wr_local_inv"
        => |r| r.c.__bindgen_anon_1.invalidate_rkey = rkey;
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare_add: u64, swap: u64),
        O::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP, "ibv_wr_atomic_cmp_swp"
        => |r| r.c.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, compare_add: u64),
        O::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD, "ibv_wr_atomic_fetch_add"
        => |r| r.c.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap: 0, rkey };
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info),
        O::IBV_QP_EX_WITH_BIND_MW, IBV_WR_BIND_MW, "ibv_wr_bind_mw"
        => |r| r.c.__bindgen_anon_2.bind_mw = ibv_send_wr_bind_mw {
            mw,
            rkey,
            // SAFETY: the caller gives a filled struct.
            bind_info: unsafe { info.read() },
        };
    wr_atomic_write(rkey: u32, addr: u64, bytes: *const c_void),
        O::IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE, "ibv_wr_atomic_write"
        => |r| {
            rdma(r, rkey, addr);
            // SAFETY: the caller gives 8 bytes, which need no alignment.
            let value = unsafe { bytes.cast::<[u8; 8]>().read_unaligned() };
            r.inline = Some(value.to_vec());
        };
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    placement: u8,
    level: u8,
) {
    let opcode = ibv_wr_opcode::IBV_WR_FLUSH;
    add("ibv_wr_flush", qp, opcode, |request| {
        rdma(request, rkey, remote_addr);
        request.flush = Some((len, placement, level));
    });
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    set("ibv_wr_set_ud_addr", qp, |request, _, _, _| {
        request.c.wr.ud = ibv_send_wr_ud {
            ah,
            remote_qpn,
            remote_qkey,
        };
        0
    });
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    set("ibv_wr_set_sge", qp, |request, _, _, _| {
        request.sges = std::vec![ibv_sge { addr, length, lkey }];
        if length == 0 {
            request.sges.clear();
        }
        0
    });
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    set("ibv_wr_set_sge_list", qp, |request, soft, max_sge, _| {
        if num_sge > max_sge as usize {
            return libc::ENOMEM;
        }
        // SAFETY: the caller gives that many entries.
        request.sges = unsafe { data::sges_of(list, num_sge) };
        let mut lengths = request.sges.iter().map(|sge| sge.length);
        let first = lengths.next();
        if soft && lengths.any(|length| Some(length) != first) {
            violation(
                "ibv_wr_set_sge_list with pieces of unequal length: older SoftRoCE sends a wrong number of bytes",
            );
        }
        0
    });
}

fn set_inline(request: &mut Request, soft: bool, bytes: Vec<u8>, max: u32) -> c_int {
    if bytes.len() > max as usize {
        return libc::EINVAL;
    }
    if soft && request.c.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 == 0 {
        violation(
            "inline data without the flag IBV_SEND_INLINE: SoftRoCE takes the bytes for addresses",
        );
    }
    request.inline = Some(bytes);
    0
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    set("ibv_wr_set_inline_data", qp, |request, soft, _, max| {
        // SAFETY: the caller gives that many bytes.
        let bytes = unsafe { super::memory::copy(addr.expose_provenance() as u64, length) };
        set_inline(request, soft, bytes, max)
    });
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    set(
        "ibv_wr_set_inline_data_list",
        qp,
        |request, soft, _, max| {
            if soft {
                violation("ibv_wr_set_inline_data_list: older SoftRoCE sends nothing of it");
            }
            let mut bytes = Vec::new();
            for index in 0..count {
                // SAFETY: the caller gives that many entries.
                let piece = unsafe { list.wrapping_add(index).read() };
                let addr = piece.addr.expose_provenance() as u64;
                // SAFETY: each entry names readable bytes.
                bytes.extend(unsafe { super::memory::copy(addr, piece.length) });
            }
            set_inline(request, soft, bytes, max)
        },
    );
}

const _: () = assert!(size_of::<c_uint>() == 4, "flags are 32 bits");
