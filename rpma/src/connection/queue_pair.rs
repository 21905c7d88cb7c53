//! How the queue pair of a connection is made.

use cm::verbs::{self, CompletionQueue, QpType, QueuePair, SharedReceiveQueue};

use super::config::ConnectionConfig;
use crate::peer::Peer;

/// Makes the queue pair that `config` asks for, in state RESET.
pub(super) fn create(
    peer: &Peer,
    send_cq: &CompletionQueue,
    recv_cq: &CompletionQueue,
    srq: Option<&SharedReceiveQueue>,
    config: &ConnectionConfig,
) -> Result<QueuePair, verbs::Error> {
    let builder = QueuePair::builder(peer.domain(), QpType::RC, send_cq, recv_cq)
        .max_send_wr(config.sq_size())
        .max_recv_wr(config.rq_size());
    match srq {
        Some(srq) => builder.srq(srq),
        None => builder,
    }
    .build()
}
