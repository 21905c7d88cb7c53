//! How the queue pair of a connection is made, and what it can do besides the classic operations.

use std::sync::Arc;

use cm::verbs::{
    self, CompletionQueue, Context, DeviceCapFlags, FlushLevel, FlushPlacement, NativeQueuePair,
    PostError, QpType, QueuePair, RemoteAddr, SendFlags, SendOps, SharedReceiveQueue,
};

use super::config::ConnectionConfig;
use super::post::FlushType;
use crate::peer::Peer;

/// A queue pair that was just made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) qp: Arc<QueuePair>,
    /// Where it was asked for, and is there.
    pub(super) native: Option<NativeOperations>,
}

/// Flush and atomic write as operations of the device.
#[derive(Debug)]
pub(super) struct NativeOperations {
    qp: NativeQueuePair,
    has: DeviceCapFlags,
}

/// One of them, to be posted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Native {
    pub(super) op_context: u64,
    pub(super) remote: RemoteAddr,
    pub(super) what: NativeKind,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum NativeKind {
    /// Of that many bytes.
    Flush(u32, FlushType),
    AtomicWrite([u8; 8]),
}

impl NativeOperations {
    /// Whether the device flushes to that end: one end is not the other.
    #[inline]
    pub(super) fn flushes(&self, flush_type: FlushType) -> bool {
        self.has.contains(match flush_type {
            FlushType::Visibility => DeviceCapFlags::FLUSH_GLOBAL,
            FlushType::Persistent => DeviceCapFlags::FLUSH_PERSISTENT,
        })
    }

    #[inline]
    pub(super) fn writes_atomically(&self) -> bool {
        self.has.contains(DeviceCapFlags::ATOMIC_WRITE)
    }

    #[inline]
    pub(super) fn post(&self, native: Native, flags: SendFlags) -> Result<(), PostError> {
        let Native {
            op_context,
            remote,
            what,
        } = native;
        match what {
            NativeKind::Flush(len, flush_type) => {
                let placement = match flush_type {
                    FlushType::Visibility => FlushPlacement::GLOBAL,
                    FlushType::Persistent => FlushPlacement::PERSISTENT,
                };
                let level = FlushLevel::RANGE;
                self.qp
                    .flush(op_context, remote, len, placement, level, flags)
            }
            NativeKind::AtomicWrite(value) => {
                self.qp.atomic_write(op_context, remote, value, flags)
            }
        }
    }
}

/// Makes the queue pair that `config` asks for, in state RESET.
pub(super) fn create(
    peer: &Peer,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
    srq: Option<&SharedReceiveQueue>,
    config: &ConnectionConfig,
) -> Result<Made, verbs::Error> {
    let mut builder = QueuePair::builder(peer.domain(), QpType::RC, send_cq, recv_cq)
        .max_send_wr(config.sq_size())
        .max_recv_wr(config.rq_size())
        .max_send_sge(config.max_spans())
        .max_recv_sge(config.max_spans())
        // An atomic write of 8 bytes is always there.
        .max_inline_data(config.max_inline().max(8));
    if let Some(srq) = srq {
        builder = builder.srq(srq);
    }
    if config.native_operations() {
        match native(peer.device().context(), |ops| {
            builder.clone().build_extended(ops)
        }) {
            Ok(Some(made)) => return Ok(made),
            Ok(None) => {}
            // It does not fit into its completion queues, the plain one neither.
            Err(error) if error.kind() == verbs::ErrorKind::Limit => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "no native flush and atomic write, those of any device are used");
            }
        }
    }
    let qp = Arc::new(builder.build()?);
    Ok(Made { qp, native: None })
}

/// The queue pair with what the device has of flush and atomic write, if it has any of them.
fn native(
    context: &Context,
    build: impl FnOnce(SendOps) -> Result<verbs::ExtendedQueuePair, verbs::Error>,
) -> Result<Option<Made>, verbs::Error> {
    let flushes = DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT;
    let has = context.query_extended()?.capabilities() & (flushes | DeviceCapFlags::ATOMIC_WRITE);
    let mut ops = SendOps::empty();
    ops.set(SendOps::FLUSH, has.intersects(flushes));
    ops.set(
        SendOps::ATOMIC_WRITE,
        has.contains(DeviceCapFlags::ATOMIC_WRITE),
    );
    if ops.is_empty() {
        return Ok(None);
    }
    let qp = build(ops)?.into_native();
    Ok(Some(Made {
        qp: Arc::clone(qp.queue_pair()),
        native: Some(NativeOperations { qp, has }),
    }))
}
