//! The registering and posting functions of `rdma/rdma_verbs.h`: verbs on the objects that an id owns.
//!
//! They return 0, or -1 with errno set. Work requests are zeroed before they are filled, where the C functions leave the fields
//! that the operation does not need uninitialised.

use core::ffi::{c_int, c_void};
use core::ptr;

use libc::EINVAL;

use crate::bindings::{
    RDMA_UDP_QKEY, ibv_access_flags, ibv_ah, ibv_dereg_mr, ibv_mr, ibv_recv_wr, ibv_send_wr,
    ibv_sge, ibv_wr_opcode, rdma_cm_id,
};
use crate::inline::{ibv_post_recv, ibv_post_send, ibv_post_srq_recv, ibv_reg_mr, set_errno};

/// Turns an errno value into -1 with errno set; 0 stays 0.
#[inline]
pub fn rdma_seterrno(ret: c_int) -> c_int {
    if ret == 0 {
        return 0;
    }
    set_errno(ret);
    -1
}

/// Registers memory for messages, with local write access.
///
/// Returns NULL and sets errno on failure.
///
/// # Safety
/// - `id` is a live id with a protection domain.
/// - As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn rdma_reg_msgs(id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    // SAFETY: the caller's promises are passed on.
    unsafe { register(id, addr, length, access) }
}

/// Registers memory that the peer may read.
///
/// Returns NULL and sets errno on failure.
///
/// # Safety
/// - `id` is a live id with a protection domain.
/// - As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn rdma_reg_read(id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    let access =
        ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    // SAFETY: the caller's promises are passed on.
    unsafe { register(id, addr, length, access) }
}

/// Registers memory that the peer may write.
///
/// Returns NULL and sets errno on failure.
///
/// # Safety
/// - `id` is a live id with a protection domain.
/// - As for [`ibv_reg_mr`].
#[inline]
pub unsafe fn rdma_reg_write(id: *mut rdma_cm_id, addr: *mut c_void, length: usize) -> *mut ibv_mr {
    let access =
        ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
    // SAFETY: the caller's promises are passed on.
    unsafe { register(id, addr, length, access) }
}

/// # Safety
/// - `id` is a live id with a protection domain.
/// - As for [`ibv_reg_mr`].
unsafe fn register(
    id: *mut rdma_cm_id,
    addr: *mut c_void,
    length: usize,
    access: ibv_access_flags,
) -> *mut ibv_mr {
    // SAFETY: the id is live.
    let pd = unsafe { (*id).pd };
    // SAFETY: the protection domain of a live id is live, and the caller answers for the memory.
    unsafe { ibv_reg_mr(pd, addr, length, access.0) }
}

/// Deregisters memory.
///
/// # Safety
/// - `mr` is a live region, and not used after this has returned 0. On failure the memory must stay valid.
#[inline]
pub unsafe fn rdma_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the region is live.
    rdma_seterrno(unsafe { ibv_dereg_mr(mr) })
}

/// Posts a receive into several buffers, to the id's shared receive queue if it has one.
///
/// # Safety
/// - `id` is a live id with a queue pair.
/// - `sgl` points to `nsge` entries; the memory that they name stays valid, and is not accessed otherwise, until completion.
#[inline]
pub unsafe fn rdma_post_recvv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
) -> c_int {
    let mut wr = ibv_recv_wr {
        wr_id: context.expose_provenance() as u64,
        next: ptr::null_mut(),
        sg_list: sgl,
        num_sge: nsge,
    };
    let mut bad = ptr::null_mut();
    // SAFETY: the id is live.
    let srq = unsafe { (*id).srq };
    let ret = if srq.is_null() {
        // SAFETY: the id is live.
        let qp = unsafe { (*id).qp };
        // SAFETY: the id has a queue pair, and the caller answers for the buffers.
        unsafe { ibv_post_recv(qp, &raw mut wr, &raw mut bad) }
    } else {
        // SAFETY: the shared receive queue of a live id is live, and the caller answers for the buffers.
        unsafe { ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad) }
    };
    rdma_seterrno(ret)
}

/// # Safety
/// - `id` is a live id with a queue pair.
/// - The request is filled, and the memory that it names stays valid until completion.
unsafe fn post(id: *mut rdma_cm_id, mut wr: ibv_send_wr) -> c_int {
    let mut bad = ptr::null_mut();
    // SAFETY: the id is live.
    let qp = unsafe { (*id).qp };
    // SAFETY: the id has a queue pair, and the caller answers for the request.
    rdma_seterrno(unsafe { ibv_post_send(qp, &raw mut wr, &raw mut bad) })
}

/// A single request with the fields that all operations have.
fn request(
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    opcode: ibv_wr_opcode,
    flags: c_int,
) -> ibv_send_wr {
    ibv_send_wr {
        wr_id: context.expose_provenance() as u64,
        sg_list: sgl,
        num_sge: nsge,
        opcode,
        send_flags: flags.cast_unsigned(),
        ..ibv_send_wr::default()
    }
}

/// Posts a send from several buffers.
///
/// # Safety
/// - `id` is a live id with a queue pair.
/// - `sgl` points to `nsge` entries; the memory that they name stays valid until completion.
#[inline]
pub unsafe fn rdma_post_sendv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
) -> c_int {
    let wr = request(context, sgl, nsge, ibv_wr_opcode::IBV_WR_SEND, flags);
    // SAFETY: the caller's promises are passed on.
    unsafe { post(id, wr) }
}

/// Posts a read of remote memory into several buffers.
///
/// # Safety
/// - `id` is a live id with a queue pair.
/// - `sgl` points to `nsge` entries; the memory that they name stays valid, and is not accessed otherwise, until completion.
#[inline]
pub unsafe fn rdma_post_readv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let mut wr = request(context, sgl, nsge, ibv_wr_opcode::IBV_WR_RDMA_READ, flags);
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    // SAFETY: the caller's promises are passed on.
    unsafe { post(id, wr) }
}

/// Posts a write to remote memory from several buffers.
///
/// # Safety
/// - `id` is a live id with a queue pair.
/// - `sgl` points to `nsge` entries; the memory that they name stays valid until completion.
#[inline]
pub unsafe fn rdma_post_writev(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    sgl: *mut ibv_sge,
    nsge: c_int,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    let mut wr = request(context, sgl, nsge, ibv_wr_opcode::IBV_WR_RDMA_WRITE, flags);
    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    // SAFETY: the caller's promises are passed on.
    unsafe { post(id, wr) }
}

/// One entry, with the key of `mr` or 0 where that is NULL. The length is cut to 32 bits, as in C.
///
/// # Safety
/// - `mr` is NULL or a live region.
unsafe fn entry(addr: *mut c_void, length: usize, mr: *mut ibv_mr) -> ibv_sge {
    let lkey = if mr.is_null() {
        0
    } else {
        // SAFETY: not NULL, so it is a live region.
        unsafe { (*mr).lkey }
    };
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the C function cuts the length too"
    )]
    let length = length as u32;
    ibv_sge {
        addr: addr.expose_provenance() as u64,
        length,
        lkey,
    }
}

/// Posts a receive into one buffer.
///
/// Fails with `EINVAL` when the buffer does not lie within the region (in C an assertion).
///
/// # Safety
/// - `id` is a live id with a queue pair, `mr` a live region.
/// - The buffer stays valid, and is not accessed otherwise, until completion.
#[inline]
pub unsafe fn rdma_post_recv(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
) -> c_int {
    // SAFETY: the region is live.
    let region = unsafe { (*mr).addr }.addr();
    // SAFETY: the region is live.
    let region_length = unsafe { (*mr).length };
    let inside = match addr.addr().checked_sub(region) {
        Some(offset) => region_length
            .checked_sub(offset)
            .is_some_and(|rest| length <= rest),
        None => false,
    };
    if !inside {
        return rdma_seterrno(EINVAL);
    }
    // SAFETY: the region is live.
    let mut sge = unsafe { entry(addr, length, mr) };
    // SAFETY: the caller's promises are passed on; the entry is copied before the call returns.
    unsafe { rdma_post_recvv(id, context, &raw mut sge, 1) }
}

/// Posts a send from one buffer; `mr` may be NULL where the flags say inline.
///
/// # Safety
/// - `id` is a live id with a queue pair, `mr` NULL or a live region.
/// - The buffer stays valid until completion.
#[inline]
pub unsafe fn rdma_post_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
) -> c_int {
    // SAFETY: the region is NULL or live.
    let mut sge = unsafe { entry(addr, length, mr) };
    // SAFETY: the caller's promises are passed on; the entry is copied before the call returns.
    unsafe { rdma_post_sendv(id, context, &raw mut sge, 1, flags) }
}

/// Posts a read of remote memory into one buffer.
///
/// # Safety
/// - `id` is a live id with a queue pair, `mr` a live region.
/// - The buffer stays valid, and is not accessed otherwise, until completion.
#[inline]
#[allow(clippy::too_many_arguments, reason = "the signature is C's")]
pub unsafe fn rdma_post_read(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the region is live.
    let mut sge = unsafe { entry(addr, length, mr) };
    // SAFETY: the caller's promises are passed on; the entry is copied before the call returns.
    unsafe { rdma_post_readv(id, context, &raw mut sge, 1, flags, remote_addr, rkey) }
}

/// Posts a write to remote memory from one buffer; `mr` may be NULL where the flags say inline.
///
/// # Safety
/// - `id` is a live id with a queue pair, `mr` NULL or a live region.
/// - The buffer stays valid until completion.
#[inline]
#[allow(clippy::too_many_arguments, reason = "the signature is C's")]
pub unsafe fn rdma_post_write(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    remote_addr: u64,
    rkey: u32,
) -> c_int {
    // SAFETY: the region is NULL or live.
    let mut sge = unsafe { entry(addr, length, mr) };
    // SAFETY: the caller's promises are passed on; the entry is copied before the call returns.
    unsafe { rdma_post_writev(id, context, &raw mut sge, 1, flags, remote_addr, rkey) }
}

/// Posts a datagram, with the fixed key that librdmacm gives datagram queue pairs.
///
/// # Safety
/// - `id` is a live id with a datagram queue pair, `mr` NULL or a live region, `ah` a live address handle until completion.
/// - The buffer stays valid until completion.
#[inline]
#[allow(clippy::too_many_arguments, reason = "the signature is C's")]
pub unsafe fn rdma_post_ud_send(
    id: *mut rdma_cm_id,
    context: *mut c_void,
    addr: *mut c_void,
    length: usize,
    mr: *mut ibv_mr,
    flags: c_int,
    ah: *mut ibv_ah,
    remote_qpn: u32,
) -> c_int {
    // SAFETY: the region is NULL or live.
    let mut sge = unsafe { entry(addr, length, mr) };
    let mut wr = request(context, &raw mut sge, 1, ibv_wr_opcode::IBV_WR_SEND, flags);
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = remote_qpn;
    wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
    // SAFETY: the caller's promises are passed on; the entry is copied before the call returns.
    unsafe { post(id, wr) }
}
