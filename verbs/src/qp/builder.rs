//! How to make a queue pair, and what was granted.

use std::ptr;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::extended::{self, ExtendedQueuePair};
use super::extended_ops::SendOps;
use super::state::QpType;
use super::{Parents, QueuePair, RecvRoom};
use crate::cq::{CompletionQueue, CqRoom};
use crate::error::{Error, ErrorKind, from_pointer};
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::srq::SharedReceiveQueue;

/// Sizes of a queue pair, asked for or granted.
///
/// SoftRoCE takes more requests than it grants (up to the next power of two, less one). Room in the
/// completion queue is counted by what is granted: who posts more than that needs a larger one.
#[doc(alias = "ibv_qp_cap")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// Outstanding requests of the send queue.
    pub max_send_wr: u32,
    /// Outstanding receives.
    pub max_recv_wr: u32,
    /// SGEs of one send request.
    pub max_send_sge: u32,
    /// SGEs of one receive.
    pub max_recv_sge: u32,
    /// Bytes that an inline request may carry.
    pub max_inline_data: u32,
}

impl Capabilities {
    pub(super) fn from_raw(cap: &sys::ibv_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }
}

/// How to make a [`QueuePair`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct QueuePairBuilder<'a> {
    pd: &'a ProtectionDomain,
    qp_type: QpType,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    wanted: Capabilities,
    signal_all: bool,
    srq: Option<SharedReceiveQueue>,
}

impl<'a> QueuePairBuilder<'a> {
    pub(super) fn new(
        pd: &'a ProtectionDomain,
        qp_type: QpType,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> Self {
        Self {
            pd,
            qp_type,
            send_cq,
            recv_cq,
            wanted: Capabilities {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            signal_all: false,
            srq: None,
        }
    }

    /// Outstanding requests of the send queue, 16 by default.
    pub fn max_send_wr(mut self, count: u32) -> Self {
        self.wanted.max_send_wr = count;
        self
    }

    /// Outstanding receives, 16 by default.
    pub fn max_recv_wr(mut self, count: u32) -> Self {
        self.wanted.max_recv_wr = count;
        self
    }

    /// SGEs of one send request, 1 by default.
    pub fn max_send_sge(mut self, count: u32) -> Self {
        self.wanted.max_send_sge = count;
        self
    }

    /// SGEs of one receive, 1 by default.
    pub fn max_recv_sge(mut self, count: u32) -> Self {
        self.wanted.max_recv_sge = count;
        self
    }

    /// Bytes that an inline request may carry, 0 by default.
    pub fn max_inline_data(mut self, bytes: u32) -> Self {
        self.wanted.max_inline_data = bytes;
        self
    }

    /// Gives a completion for every send request, flagged or not. Off by default.
    pub fn signal_all(mut self, all: bool) -> Self {
        self.signal_all = all;
        self
    }

    /// Takes receives from `srq`; the queue pair has no receive queue of its own then.
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Creates the queue pair, in state RESET.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] names the size that exceeds the device's, or the completion queue that
    /// is too small for the queues that the device made; [`ErrorKind::Unsupported`] for a type other
    /// than RC, UC, UD and XRC_SEND; EINVAL or ENOMEM from the provider otherwise.
    #[doc(alias = "ibv_create_qp")]
    pub fn build(self) -> Result<QueuePair, Error> {
        self.build_with("ibv_create_qp", |init| {
            // SAFETY: the extended struct begins with the plain one, and names what
            // `build_with` says, the domain among it.
            unsafe { sys::ibv_create_qp(init.pd, ptr::from_mut(init).cast()) }
        })
    }

    /// Creates the queue pair, in state RESET, for posting `ops` in
    /// [batches](ExtendedQueuePair::post_batch).
    ///
    /// # Errors
    /// Those of [`build`](Self::build); [`ErrorKind::Unsupported`] where the device has no extended
    /// queue pairs, or not all of `ops`: of a native operation whose capability the device does not
    /// have, it names that.
    #[doc(alias = "ibv_create_qp_ex")]
    #[doc(alias = "ibv_qp_to_qp_ex")]
    pub fn build_extended(self, ops: SendOps) -> Result<ExtendedQueuePair, Error> {
        let verb = "ibv_create_qp_ex";
        let context = self.pd.context();
        let raw_context = context.raw_checked(verb)?;
        extended::check_native(context, ops)?;
        if self.qp_type == QpType::XRC_SEND {
            return Err(Error::refused(
                verb,
                ErrorKind::InvalidArgument,
                "batches cannot name the shared receive queue that an XRC_SEND queue pair sends to",
            )
            .with_hint("build a plain queue pair, and name it with SendRequest::to_xrc_srq"));
        }
        let explain = |error: Error| match (error.kind(), error.errno()) {
            (ErrorKind::Unsupported, Some(_)) => error.with_hint(if ops.contains(SendOps::FLUSH) {
                "native flush needs rdma-core 45 or later; otherwise ask for fewer operations"
            } else {
                "ask for fewer operations, or build a plain queue pair, which every device has"
            }),
            _ => error,
        };
        let mask = sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | sys::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let qp = self.build_with(verb, |init| {
            init.comp_mask = mask.0;
            init.send_ops_flags = ops.bits();
            // SAFETY: the context is open, and the struct is filled as its mask says with what
            // `build_with` says.
            unsafe { sys::ibv_create_qp_ex(raw_context, init) }
        });
        // SAFETY: the queue pair was made so just now.
        qp.and_then(|qp| unsafe { ExtendedQueuePair::new(qp, ops) })
            .map_err(explain)
    }

    /// Creates the queue pair by `create`, which gets attributes that name live objects of one open
    /// device, writes the sizes granted into them, and returns the C queue pair or NULL with errno.
    fn build_with(
        mut self,
        verb: &'static str,
        create: impl FnOnce(&mut sys::ibv_qp_init_attr_ex) -> *mut sys::ibv_qp,
    ) -> Result<QueuePair, Error> {
        let context = self.pd.context();
        let raw_pd = self.pd.raw_checked(verb)?;
        for (name, cq) in [("send", self.send_cq), ("receive", self.recv_cq)] {
            if cq.context() != context {
                return Err(Error::refused(
                    verb,
                    ErrorKind::InvalidArgument,
                    format!("the {name} completion queue is of another device"),
                ));
            }
        }
        if self.qp_type == QpType::XRC_SEND {
            if self.srq.is_some() {
                return Err(Error::refused(
                    verb,
                    ErrorKind::InvalidArgument,
                    "an XRC_SEND queue pair receives nothing, and takes no shared receive queue",
                ));
            }
            (self.wanted.max_recv_wr, self.wanted.max_recv_sge) = (0, 0);
        } else if !matches!(self.qp_type, QpType::RC | QpType::UC | QpType::UD) {
            return Err(Error::refused(
                verb,
                ErrorKind::Unsupported,
                format!(
                    "queue pairs of type {}: requests for RC, UC, UD and XRC_SEND only can be made \
                     here",
                    self.qp_type
                ),
            )
            .with_hint("the receiving end of an XRC connection is an XrcTarget"));
        }
        if let Some(srq) = &self.srq {
            if srq.pd().context() != context {
                return Err(Error::refused(
                    verb,
                    ErrorKind::InvalidArgument,
                    "the shared receive queue is of another device",
                ));
            }
            if srq.xrc_domain().is_some() {
                return Err(Error::refused(
                    verb,
                    ErrorKind::InvalidArgument,
                    "the shared receive queue is for extended reliable connections",
                ));
            }
            // There is no receive queue, and some devices insist.
            (self.wanted.max_recv_wr, self.wanted.max_recv_sge) = (0, 0);
        }
        self.check_limits()?;
        let recv_cq = self.recv_cq.inner();
        // The room in the completion queues is given back when `parents` is dropped.
        let mut parents = Parents {
            send_cq: Arc::clone(self.send_cq.inner()),
            recv_cq: Arc::clone(recv_cq),
            send_room: CqRoom::reserve(verb, self.send_cq.inner(), self.wanted.max_send_wr)?,
            recv_room: match &self.srq {
                None => RecvRoom::Own(CqRoom::reserve(verb, recv_cq, self.wanted.max_recv_wr)?),
                Some(srq) => RecvRoom::Shared(srq.room_in(verb, recv_cq)?),
            },
            srq: self.srq.clone(),
            pd: self.pd.clone(),
        };
        let wanted = self.wanted;
        let mut init = sys::ibv_qp_init_attr_ex {
            pd: raw_pd,
            send_cq: self.send_cq.as_raw(),
            recv_cq: if self.qp_type == QpType::XRC_SEND {
                ptr::null_mut()
            } else {
                self.recv_cq.as_raw()
            },
            srq: self
                .srq
                .as_ref()
                .map_or(ptr::null_mut(), SharedReceiveQueue::as_raw),
            cap: sys::ibv_qp_cap {
                max_send_wr: wanted.max_send_wr,
                max_recv_wr: wanted.max_recv_wr,
                max_send_sge: wanted.max_send_sge,
                max_recv_sge: wanted.max_recv_sge,
                max_inline_data: wanted.max_inline_data,
            },
            qp_type: sys::ibv_qp_type(self.qp_type.raw()),
            sq_sig_all: i32::from(self.signal_all),
            ..Default::default()
        };
        let raw = create(&mut init);
        let raw = from_pointer(verb, raw).map_err(|error| self.explain(error))?;
        // A device may make its queues larger than asked, and then takes as many requests.
        let mut fits = parents.send_room.grow(verb, init.cap.max_send_wr);
        if let RecvRoom::Own(room) = &mut parents.recv_room {
            fits = fits.and_then(|()| room.grow(verb, init.cap.max_recv_wr));
        }
        // SAFETY: the queue pair was just made; its parents are all that it refers to.
        let owned = unsafe { Owned::new(raw, context.origin(), Box::new(parents)) };
        fits?;
        let capabilities = Capabilities::from_raw(&init.cap);
        Ok(QueuePair::assemble(owned, self.qp_type, capabilities))
    }

    fn check_limits(&self) -> Result<(), Error> {
        let device = self.pd.context();
        let limits = device.attributes();
        let (wr, sge) = (limits.max_qp_wr(), limits.max_sge());
        for (name, asked, max) in [
            ("max_send_wr", self.wanted.max_send_wr, wr),
            ("max_recv_wr", self.wanted.max_recv_wr, wr),
            ("max_send_sge", self.wanted.max_send_sge, sge),
            ("max_recv_sge", self.wanted.max_recv_sge, sge),
        ] {
            if asked > max {
                return Err(Error::from_errno("ibv_create_qp", libc::EINVAL)
                    .with_kind(ErrorKind::Limit)
                    .with_detail(format!(
                        "{name} {asked} exceeds what device {} allows, {max}",
                        device.name()
                    ))
                    .with_hint(format!("ask for a {name} of at most {max}")));
            }
        }
        Ok(())
    }

    /// The provider said no without saying why: name the sizes, and the one that cannot be queried.
    fn explain(&self, error: Error) -> Error {
        let wanted = &self.wanted;
        let error = error.with_detail(format!(
            "{} with {} send and {} receive requests of {} and {} SGEs, {} bytes inline",
            self.qp_type,
            wanted.max_send_wr,
            wanted.max_recv_wr,
            wanted.max_send_sge,
            wanted.max_recv_sge,
            wanted.max_inline_data
        ));
        if wanted.max_inline_data > 0 && error.errno() == Some(libc::EINVAL) {
            let half = wanted.max_inline_data / 2;
            let hint = format!(
                "the device does not tell its largest inline size: try a max_inline_data of {half}"
            );
            return error.with_kind(ErrorKind::Limit).with_hint(hint);
        }
        error
    }
}
