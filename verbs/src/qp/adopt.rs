//! What a handle knows of its queue pair from the start, whoever has made it.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use rdma_core_sys as sys;

use super::change::query_raw;
use super::check::Ready;
use super::multicast::Groups;
use super::opcodes::OpcodeSet;
use super::state::{QpState, QpType};
use super::{Attached, Capabilities, Facts, Parents, QueuePair, RecvRoom};
use crate::cq::{CompletionQueue, CqRoom};
use crate::error::{Error, ErrorKind};
use crate::mw::BoundWindows;
use crate::owned::Owned;
use crate::pd::ProtectionDomain;
use crate::slots;
use crate::srq::SharedReceiveQueue;

impl QueuePair {
    /// The handle of a queue pair in RESET.
    pub(super) fn assemble(
        owned: Owned<sys::ibv_qp, Box<Parents>>,
        qp_type: QpType,
        capabilities: Capabilities,
    ) -> Self {
        let Parents { pd, srq, .. } = &**owned.parents();
        let (context, has_srq) = (pd.context(), srq.is_some());
        let opcodes = OpcodeSet::new(context.transport(), qp_type, context.attributes());
        // SAFETY: the queue pair is live; its number never changes.
        let number = unsafe { (*owned.raw()).qp_num };
        // SAFETY: as above.
        let (post_send, post_recv) = unsafe { slots::of_qp(owned.raw()) };
        Self {
            attached: Box::new(Attached {
                windows: BoundWindows::new(number, owned.origin()),
                // SAFETY: `QueuePair` uses what is attached only before it destroys the queue pair.
                groups: unsafe { Groups::new(owned.non_null(), owned.origin()) },
            }),
            owned: ManuallyDrop::new(owned),
            facts: Facts {
                qp_type,
                opcodes,
                capabilities,
                number,
                has_srq: has_srq || qp_type == QpType::XRC_SEND,
                state: AtomicU32::new(QpState::RESET.raw()),
                ready: Ready::default(),
                post_send,
                post_recv,
                modifying: Mutex::new(()),
            },
        }
    }

    /// Takes over a queue pair that other code has made, in the state that the device says.
    ///
    /// # Errors
    /// The queue pair is still the caller's then: [`ErrorKind::Limit`] names the completion queue
    /// that has not room for its requests, [`ErrorKind::InvalidArgument`] an object that is of
    /// another device or a type other than RC, UC, UD and XRC_SEND; the errno of `ibv_query_qp`.
    ///
    /// # Safety
    /// - `raw` is a live queue pair of `pd` that nobody else destroys, modifies, queries or posts to.
    /// - `send_cq`, `recv_cq` and `srq` are what it was made with.
    /// - The memory of requests that are in it, as [`post_send`](Self::post_send) and
    ///   [`post_recv`](Self::post_recv) say. No window of type 2 is bound to it.
    /// - It is attached to no multicast group. All asynchronous events got for it are acknowledged.
    pub unsafe fn from_raw(
        raw: NonNull<sys::ibv_qp>,
        pd: &ProtectionDomain,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
        srq: Option<&SharedReceiveQueue>,
    ) -> Result<Self, Error> {
        let verb = "ibv_query_qp";
        let context = pd.context();
        pd.raw_checked(verb)?;
        let refused = |detail| Err(Error::refused(verb, ErrorKind::InvalidArgument, detail));
        let foreign = srq.is_some_and(|srq| srq.pd().context() != context);
        if foreign || send_cq.context() != context || recv_cq.context() != context {
            return refused("a queue of the queue pair is of another device".to_owned());
        }
        // SAFETY: the queue pair is live; its type never changes.
        let qp_type = QpType::from_raw(unsafe { (*raw.as_ptr()).qp_type }.0);
        if !matches!(
            qp_type,
            QpType::RC | QpType::UC | QpType::UD | QpType::XRC_SEND
        ) {
            return refused(format!(
                "a queue pair of type {qp_type} cannot be posted to here"
            ));
        }
        // SAFETY: the queue pair is live, and nobody else changes it.
        let (attributes, init) = unsafe { query_raw(raw.as_ptr()) }?;
        let capabilities = Capabilities::from_raw(&init.cap);
        let receives = if qp_type == QpType::XRC_SEND {
            0
        } else {
            capabilities.max_recv_wr
        };
        let parents = Parents {
            send_cq: Arc::clone(send_cq.inner()),
            recv_cq: Arc::clone(recv_cq.inner()),
            send_room: CqRoom::reserve(verb, send_cq.inner(), capabilities.max_send_wr)?,
            recv_room: match srq {
                None => RecvRoom::Own(CqRoom::reserve(verb, recv_cq.inner(), receives)?),
                Some(srq) => RecvRoom::Shared(srq.room_in(verb, recv_cq.inner())?),
            },
            srq: srq.cloned(),
            pd: pd.clone(),
        };
        // SAFETY: the caller gives the queue pair over; its parents are all that it refers to.
        let owned = unsafe { Owned::new(raw, context.origin(), Box::new(parents)) };
        let this = Self::assemble(owned, qp_type, capabilities);
        this.facts
            .enter(attributes.state().unwrap_or(QpState::RESET));
        Ok(this)
    }
}
