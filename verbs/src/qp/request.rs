//! What is posted: `ibv_send_wr` and `ibv_recv_wr`, field for field.

use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use rdma_core_sys as sys;

use super::opcodes::WrOpcode;
use crate::ah::AddressHandle;
use crate::flags::SendFlags;
use crate::mr::{RemoteAddr, RemoteKey, Sge, SgeList};

/// A request for the send queue: `ibv_send_wr` with the SGE list it borrows.
#[doc(alias = "ibv_send_wr")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct SendRequest<'a> {
    pub(super) raw: sys::ibv_send_wr,
    sges: PhantomData<&'a [Sge]>,
}

/// No immediate data. Some providers look at it for every operation.
const NO_IMM: sys::ibv_send_wr_imm = sys::ibv_send_wr_imm { imm_data: 0 };

/// No target and no address handle. A constant would be copied with the bytes that nobody reads.
#[inline]
fn no_target() -> sys::ibv_send_wr_op {
    target(RemoteAddr {
        addr: 0,
        rkey: RemoteKey(0),
    })
}

#[inline]
fn immediate(imm: u32) -> sys::ibv_send_wr_imm {
    sys::ibv_send_wr_imm {
        imm_data: imm.to_be(),
    }
}

#[inline]
fn key(key: RemoteKey) -> sys::ibv_send_wr_imm {
    sys::ibv_send_wr_imm {
        invalidate_rkey: key.0,
    }
}

#[inline]
fn target(remote: RemoteAddr) -> sys::ibv_send_wr_op {
    sys::ibv_send_wr_op {
        rdma: sys::ibv_send_wr_rdma {
            remote_addr: remote.addr,
            rkey: remote.rkey.0,
        },
    }
}

#[inline]
fn operands(remote: RemoteAddr, compare_add: u64, swap: u64) -> sys::ibv_send_wr_op {
    sys::ibv_send_wr_op {
        atomic: sys::ibv_send_wr_atomic {
            remote_addr: remote.addr,
            compare_add,
            swap,
            rkey: remote.rkey.0,
        },
    }
}

impl<'a> SendRequest<'a> {
    /// `opcode` is one of those with a name, and `op` has at least the first 12 bytes.
    #[inline]
    fn new(
        wr_id: u64,
        opcode: WrOpcode,
        sges: &'a [Sge],
        imm: sys::ibv_send_wr_imm,
        op: sys::ibv_send_wr_op,
    ) -> Self {
        let list = SgeList::new(sges);
        // Neither is looked at unless the operation is a bind, which sets the second, or one that
        // this crate does not make. Zeroing them would cost half of what posting costs.
        // SAFETY: a C union may hold any bytes, also such as were never written.
        let qp_type = unsafe { MaybeUninit::<sys::ibv_send_wr_qp_type>::uninit().assume_init() };
        // SAFETY: as above.
        let tail = unsafe { MaybeUninit::<sys::ibv_send_wr_tail>::uninit().assume_init() };
        Self {
            raw: sys::ibv_send_wr {
                wr_id,
                next: ptr::null_mut(),
                sg_list: list.pointer,
                num_sge: list.count,
                opcode: sys::ibv_wr_opcode(opcode.raw()),
                send_flags: 0,
                __bindgen_anon_1: imm,
                wr: op,
                qp_type,
                __bindgen_anon_2: tail,
            },
            sges: PhantomData,
        }
    }

    /// The same request with other SGEs.
    #[inline]
    #[must_use]
    pub fn with_sges<'b>(self, sges: &'b [Sge]) -> SendRequest<'b> {
        let mut request = SendRequest {
            raw: self.raw,
            sges: PhantomData,
        };
        request.set_sges(sges);
        request
    }

    /// Gives the request other SGEs, where it lies.
    #[inline]
    pub fn set_sges(&mut self, sges: &'a [Sge]) {
        let list = SgeList::new(sges);
        self.raw.sg_list = list.pointer;
        self.raw.num_sge = list.count;
    }

    /// Sends the bytes of `sges` as one message.
    #[inline]
    pub fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, WrOpcode::SEND, sges, NO_IMM, no_target())
    }

    /// Sends a message with `imm`, given and received in host order.
    #[inline]
    pub fn send_with_imm(wr_id: u64, sges: &'a [Sge], imm: u32) -> Self {
        Self::new(
            wr_id,
            WrOpcode::SEND_WITH_IMM,
            sges,
            immediate(imm),
            no_target(),
        )
    }

    /// Writes the bytes of `sges` to `remote`.
    #[inline]
    pub fn write(wr_id: u64, sges: &'a [Sge], remote: RemoteAddr) -> Self {
        Self::new(wr_id, WrOpcode::RDMA_WRITE, sges, NO_IMM, target(remote))
    }

    /// Writes, and completes a receive of the peer with `imm`.
    #[inline]
    pub fn write_with_imm(wr_id: u64, sges: &'a [Sge], remote: RemoteAddr, imm: u32) -> Self {
        let opcode = WrOpcode::RDMA_WRITE_WITH_IMM;
        Self::new(wr_id, opcode, sges, immediate(imm), target(remote))
    }

    /// Reads from `remote` into `sges`.
    #[inline]
    pub fn read(wr_id: u64, sges: &'a [Sge], remote: RemoteAddr) -> Self {
        Self::new(wr_id, WrOpcode::RDMA_READ, sges, NO_IMM, target(remote))
    }

    /// Sends a message, and invalidates `key` of the peer: a bound memory window's.
    #[inline]
    pub fn send_with_invalidate(wr_id: u64, sges: &'a [Sge], key: RemoteKey) -> Self {
        Self::new(
            wr_id,
            WrOpcode::SEND_WITH_INV,
            sges,
            self::key(key),
            no_target(),
        )
    }

    /// Invalidates `key` of this side: a bound memory window's.
    #[inline]
    pub fn local_invalidate(wr_id: u64, key: RemoteKey) -> Self {
        Self::new(wr_id, WrOpcode::LOCAL_INV, &[], self::key(key), no_target())
    }

    /// Swaps the 8 bytes at `remote` for `swap` if they are `compare`, and puts what they were into
    /// the 8 bytes of `sges`. Numbers are in the byte order of each side's host.
    ///
    /// Atomic among operations of the same device, not with the peer's processors. The address must
    /// be a multiple of 8.
    #[inline]
    pub fn compare_and_swap(
        wr_id: u64,
        sges: &'a [Sge],
        remote: RemoteAddr,
        compare: u64,
        swap: u64,
    ) -> Self {
        let op = operands(remote, compare, swap);
        Self::new(wr_id, WrOpcode::ATOMIC_CMP_AND_SWP, sges, NO_IMM, op)
    }

    /// Adds `add` to the 8 bytes at `remote`, without carry beyond them, and puts what they were
    /// into the 8 bytes of `sges`; otherwise as [`compare_and_swap`](Self::compare_and_swap).
    #[inline]
    pub fn fetch_and_add(wr_id: u64, sges: &'a [Sge], remote: RemoteAddr, add: u64) -> Self {
        let op = operands(remote, add, 0);
        Self::new(wr_id, WrOpcode::ATOMIC_FETCH_AND_ADD, sges, NO_IMM, op)
    }

    /// Binds a window of type 2. The pointers must be live while this is posted.
    pub(super) fn bind_window(
        wr_id: u64,
        mw: *mut sys::ibv_mw,
        rkey: u32,
        bind_info: sys::ibv_mw_bind_info,
    ) -> SendRequest<'static> {
        let mut request = SendRequest::new(wr_id, WrOpcode::BIND_MW, &[], NO_IMM, no_target());
        request.raw.__bindgen_anon_2.bind_mw = sys::ibv_send_wr_bind_mw {
            mw,
            rkey,
            bind_info,
        };
        request
    }

    /// Sends the bytes of `sges` as one datagram (UD) to queue pair `qp_number` behind `address`,
    /// with the Q_Key that it expects.
    ///
    /// A datagram longer than the path's MTU is lost: SoftRoCE drops it and reports success.
    #[inline]
    pub fn datagram(
        wr_id: u64,
        sges: &'a [Sge],
        address: &'a AddressHandle,
        qp_number: u32,
        qkey: u32,
    ) -> Self {
        let op = sys::ibv_send_wr_op {
            ud: sys::ibv_send_wr_ud {
                ah: address.as_raw(),
                remote_qpn: qp_number,
                remote_qkey: qkey,
            },
        };
        Self::new(wr_id, WrOpcode::SEND, sges, NO_IMM, op)
    }

    /// Sends a datagram with `imm`, given and received in host order.
    #[inline]
    pub fn datagram_with_imm(
        wr_id: u64,
        sges: &'a [Sge],
        address: &'a AddressHandle,
        qp_number: u32,
        qkey: u32,
        imm: u32,
    ) -> Self {
        let mut request = Self::datagram(wr_id, sges, address, qp_number, qkey);
        request.raw.__bindgen_anon_1 = immediate(imm);
        request.raw.opcode = sys::ibv_wr_opcode(WrOpcode::SEND_WITH_IMM.raw());
        request
    }

    /// The same request to the shared receive queue of this number at the peer
    /// ([`SharedReceiveQueue::xrc_number`](crate::SharedReceiveQueue::xrc_number)): for sends, and
    /// writes with immediate data, of a queue pair of type
    /// [`XRC_SEND`](crate::QpType::XRC_SEND). Others ignore it.
    #[inline]
    #[must_use]
    #[doc(alias = "remote_srqn")]
    pub fn to_xrc_srq(mut self, number: u32) -> Self {
        self.raw.qp_type.xrc.remote_srqn = number;
        self
    }

    /// The same request with `flags` instead of none.
    #[inline]
    #[must_use]
    pub fn with_flags(mut self, flags: SendFlags) -> Self {
        self.raw.send_flags = flags.bits();
        self
    }

    /// What it does.
    #[inline]
    pub fn opcode(&self) -> WrOpcode {
        WrOpcode::from_raw(self.raw.opcode.0)
    }

    /// Its modifiers.
    #[inline]
    pub fn flags(&self) -> SendFlags {
        SendFlags::from_bits_retain(self.raw.send_flags)
    }

    /// The number of SGEs.
    #[inline]
    pub(super) fn sge_count(&self) -> u32 {
        self.raw.num_sge.cast_unsigned()
    }

    /// The remote address of an atomic.
    #[inline]
    pub(super) fn atomic_address(&self) -> u64 {
        // SAFETY: every operation writes the first 8 bytes at least, and any are a value.
        unsafe { self.raw.wr.atomic.remote_addr }
    }

    /// The address handle of a send, null if it has none.
    #[inline]
    pub(super) fn address(&self) -> *mut sys::ibv_ah {
        // SAFETY: every operation writes the first 8 bytes at least, and any are a value.
        unsafe { self.raw.wr.ud.ah }
    }

    /// The bytes of all SGEs together.
    #[inline]
    pub(super) fn total_len(&self) -> u64 {
        // SAFETY: pointer and count are those of the slice that `'a` keeps borrowed, except that a
        // count over i32::MAX was cut to it.
        let sges = unsafe {
            std::slice::from_raw_parts(self.raw.sg_list.cast::<Sge>(), self.sge_count() as usize)
        };
        sges.iter().map(|sge| u64::from(sge.len())).sum()
    }

    #[inline]
    pub(super) fn link(&mut self, next: *mut sys::ibv_send_wr) {
        self.raw.next = next;
    }
}

impl fmt::Debug for SendRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRequest")
            .field("wr_id", &self.raw.wr_id)
            .field("opcode", &self.opcode())
            .field("flags", &self.flags())
            .field("sges", &self.sge_count())
            .finish()
    }
}

/// A receive: `ibv_recv_wr` with the SGE list it borrows.
#[doc(alias = "ibv_recv_wr")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct RecvRequest<'a> {
    pub(super) raw: sys::ibv_recv_wr,
    sges: PhantomData<&'a [Sge]>,
}

impl<'a> RecvRequest<'a> {
    /// Receives one message into `sges`.
    #[inline]
    pub fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        let list = SgeList::new(sges);
        Self {
            raw: sys::ibv_recv_wr {
                wr_id,
                next: ptr::null_mut(),
                sg_list: list.pointer,
                num_sge: list.count,
            },
            sges: PhantomData,
        }
    }

    #[inline]
    pub(super) fn sge_count(&self) -> u32 {
        self.raw.num_sge.cast_unsigned()
    }

    #[inline]
    pub(super) fn link(&mut self, next: *mut sys::ibv_recv_wr) {
        self.raw.next = next;
    }
}

impl fmt::Debug for RecvRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvRequest")
            .field("wr_id", &self.raw.wr_id)
            .field("sges", &self.sge_count())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mr::LocalKey;

    #[test]
    fn requests_are_the_c_structs() {
        assert_eq!(size_of::<SendRequest<'_>>(), 128);
        assert_eq!(size_of::<RecvRequest<'_>>(), 32);
        assert_eq!(size_of::<Sge>(), 16);
    }

    #[test]
    fn a_write_carries_its_target_and_no_immediate_data() {
        let sges = [
            Sge::new(0x1000, 8, LocalKey(3)),
            Sge::new(0x2000, 16, LocalKey(3)),
        ];
        let remote = RemoteAddr {
            addr: 0xdead_0000,
            rkey: RemoteKey(9),
        };
        let request = SendRequest::write(7, &sges, remote).with_flags(SendFlags::SIGNALED);
        assert_eq!(request.opcode(), WrOpcode::RDMA_WRITE);
        assert_eq!(request.total_len(), 24);
        // SAFETY: the rdma arm was written by `write`.
        let rdma = unsafe { request.raw.wr.rdma };
        assert_eq!((rdma.remote_addr, rdma.rkey), (0xdead_0000, 9));
        // SAFETY: every arm of the union is plain integers.
        assert_eq!(unsafe { request.raw.__bindgen_anon_1.imm_data }, 0);
        assert!(request.raw.next.is_null());
    }

    #[test]
    fn immediate_data_is_big_endian_on_the_wire() {
        let request = SendRequest::send_with_imm(1, &[], 0x0102_0304);
        // SAFETY: the immediate arm was written by `send_with_imm`.
        let imm = unsafe { request.raw.__bindgen_anon_1.imm_data };
        assert_eq!(imm.to_ne_bytes(), [1, 2, 3, 4]);
    }
}
