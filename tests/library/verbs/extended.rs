//! Ends whose queue pair and completion queue are extended ones.

use std::mem::MaybeUninit;

use harness::{Failed, WAIT, device};
use rpma::cm::Deadline;
use rpma::cm::verbs::{
    AccessFlags, CompletionFields, CompletionQueue, ExtendedCompletion, ExtendedCompletionQueue,
    ExtendedQueuePair, InitAttributes, ProtectionDomain, QpType, QueuePair, QueuePairBuilder,
    RecvRequest, RemoteAddr, SendOps,
};

use super::by_hand::{QKEY, connect};
use super::objects::open;
use crate::raw::Buffer;

/// What the classic posts have, too.
pub(crate) fn classic() -> SendOps {
    SendOps::SEND
        | SendOps::SEND_WITH_IMM
        | SendOps::SEND_WITH_INV
        | SendOps::RDMA_WRITE
        | SendOps::RDMA_WRITE_WITH_IMM
        | SendOps::RDMA_READ
        | SendOps::ATOMIC_CMP_AND_SWP
        | SendOps::ATOMIC_FETCH_AND_ADD
        | SendOps::LOCAL_INV
        | SendOps::BIND_MW
}

/// One end: all its completions go to one queue.
#[derive(Debug)]
pub(crate) struct Extended {
    pub(crate) qp: ExtendedQueuePair,
    pub(crate) cq: ExtendedCompletionQueue,
    pub(crate) buffer: Buffer,
    pub(crate) pd: ProtectionDomain,
}

impl Extended {
    /// A queue pair in INIT.
    pub(crate) fn new(
        qp_type: QpType,
        ops: SendOps,
        access: AccessFlags,
        change: impl FnOnce(QueuePairBuilder<'_>) -> QueuePairBuilder<'_>,
    ) -> Result<Self, Failed> {
        let context = open()?;
        let pd = ProtectionDomain::new(&context)?;
        let fields = CompletionFields::default();
        let cq = CompletionQueue::builder(&context, 64).build_extended(fields)?;
        let builder = QueuePair::builder(&pd, qp_type, cq.queue(), cq.queue())
            .max_send_sge(2)
            .max_inline_data(64);
        let qp = change(builder).build_extended(ops)?;
        let mut init = InitAttributes::new(device().port);
        init.access = access;
        init.qkey = QKEY;
        qp.queue_pair().to_init(&init)?;
        Ok(Self {
            qp,
            cq,
            buffer: Buffer::new(&pd, 8192)?,
            pd,
        })
    }

    pub(crate) fn number(&self) -> u32 {
        self.qp.queue_pair().number()
    }

    pub(crate) fn connect(&self, peer: &Self) -> Result<(), Failed> {
        connect(self.qp.queue_pair(), peer.number(), |_, _| {})
    }

    /// Posts a receive into the second half of the buffer.
    pub(crate) fn recv(&self, wr_id: u64) -> Result<(), Failed> {
        let sges = [self.buffer.sge(4096, 4096)];
        let mut request = RecvRequest::new(wr_id, &sges);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        Ok(unsafe { self.qp.queue_pair().post_recv(&mut request) }?)
    }

    /// The next completion, of either kind and with any status.
    pub(crate) fn next(&self) -> Result<ExtendedCompletion, Failed> {
        let deadline = Deadline::after(WAIT);
        let mut out = [MaybeUninit::uninit()];
        loop {
            if let Some(completion) = self.cq.poll(&mut out)?.first() {
                return Ok(*completion);
            }
            if deadline.has_passed() {
                return Err("no completion came".into());
            }
            std::thread::yield_now();
        }
    }

    /// The next completion, which must be a success.
    pub(crate) fn done(&self, wr_id: u64) -> Result<ExtendedCompletion, Failed> {
        let completion = self.next()?;
        if let Err(error) = completion.result() {
            return Err(format!("request {} failed: {error}", completion.wr_id()).into());
        }
        if completion.wr_id() != wr_id {
            return Err(format!("completion of {}, not of {wr_id}", completion.wr_id()).into());
        }
        Ok(completion)
    }
}

/// What the peer may do with memory and queue pair unless a test says otherwise.
pub(crate) const USUAL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Two connected ends (RC).
pub(crate) fn pair(ops: SendOps, access: AccessFlags) -> Result<(Extended, Extended), Failed> {
    pair_of(QpType::RC, ops, access)
}

/// Two ends of a type, ready to send.
pub(crate) fn pair_of(
    qp_type: QpType,
    ops: SendOps,
    access: AccessFlags,
) -> Result<(Extended, Extended), Failed> {
    let one = Extended::new(qp_type, ops, access, |qp| qp)?;
    let two = Extended::new(qp_type, ops, access, |qp| qp)?;
    one.connect(&two)?;
    two.connect(&one)?;
    Ok((one, two))
}

/// A place in a buffer, for the peer.
pub(crate) fn at(buffer: &Buffer, offset: u64) -> RemoteAddr {
    RemoteAddr {
        addr: buffer.region().iova() + offset,
        rkey: buffer.region().rkey(),
    }
}
