//! How connections are made.

use std::net::SocketAddr;
use std::time::Duration;

use cm::{ConnParams, ConnectOptions};

use super::post::MOST_SPANS;
use crate::cq::CompletionQueue;
use crate::error::Error;
use crate::srq::SharedReceiveQueue;

/// Settings of a connection. Each setter names its default and what raising it costs.
///
/// What contradicts itself is refused when the connection is made, by name.
#[doc(alias = "rpma_conn_cfg")]
#[doc(alias = "rpma_conn_cfg_new")]
#[doc(alias = "rpma_conn_cfg_delete")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionConfig {
    timeout: Duration,
    cq_size: Option<u32>,
    rcq_size: u32,
    sq_size: u32,
    rq_size: Option<u32>,
    shared_channel: bool,
    srq: Option<SharedReceiveQueue>,
    cq: Option<CompletionQueue>,
    rcq: Option<CompletionQueue>,
    max_inline: u32,
    max_spans: u32,
    native_operations: bool,
    vector: u32,
    allow_overrun: bool,
    pub(crate) params: ConnParams,
    pub(crate) connect: ConnectOptions,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            timeout: Self::TIMEOUT,
            cq_size: None,
            rcq_size: 0,
            sq_size: Self::SQ_SIZE,
            rq_size: None,
            shared_channel: false,
            srq: None,
            cq: None,
            rcq: None,
            max_inline: Self::MAX_INLINE,
            max_spans: Self::MAX_SPANS,
            native_operations: false,
            vector: 0,
            allow_overrun: false,
            params: ConnParams::default(),
            connect: ConnectOptions::default(),
        }
    }
}

impl ConnectionConfig {
    /// How long resolving address and route may take together, by default.
    #[doc(alias = "RPMA_DEFAULT_TIMEOUT_MS")]
    pub const TIMEOUT: Duration = Duration::from_secs(10);
    /// Operations in flight, by default.
    pub const SQ_SIZE: u32 = 10;
    /// Receives posted at once, by default.
    pub const RQ_SIZE: u32 = 10;
    /// Bytes that may be inline, by default: those of an atomic write.
    pub const MAX_INLINE: u32 = 8;
    /// Spans that one operation may have, by default.
    pub const MAX_SPANS: u32 = 1;
    /// How often an unacknowledged operation is sent again, by default.
    pub const RETRY_COUNT: u8 = 6;
    /// How often an operation is sent again to a peer without a receive, by default: for ever.
    pub const RNR_RETRY: u8 = 7;
    /// The code of the acknowledgement timeout, by default: 4.096 µs · 2^16, 268 ms.
    pub const ACK_TIMEOUT: u8 = 16;
    /// The code of the receiver-not-ready timer, by default: 0.64 ms.
    pub const MIN_RNR_TIMER: u8 = 12;

    /// How long resolving address and route may take together; [10 s](Self::TIMEOUT) by default.
    #[doc(alias = "rpma_conn_cfg_set_timeout")]
    pub fn set_timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = timeout;
        self
    }

    /// How long resolving address and route may take together.
    #[doc(alias = "rpma_conn_cfg_get_timeout")]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Entries of the completion queue, at least. By default the sum of the depths of the queues
    /// that complete there: the send queue's, and, without a receive completion queue, the receive
    /// queue's, or that of the shared receive queue. A smaller size is refused when the connection is
    /// made, unless an [overrun is allowed](Self::set_allow_overrun). The queue gets more entries where the
    /// device may take more requests than the depths, so it can never overrun.
    #[doc(alias = "rpma_conn_cfg_set_cq_size")]
    pub fn set_cq_size(&mut self, entries: u32) -> &mut Self {
        self.cq_size = Some(entries);
        self
    }

    /// Entries of the completion queue.
    #[doc(alias = "rpma_conn_cfg_get_cq_size")]
    pub fn cq_size(&self) -> u32 {
        self.cq_size.unwrap_or_else(|| {
            let elsewhere = self.rcq_size > 0 || self.rcq.is_some();
            let receives = match &self.srq {
                _ if elsewhere => 0,
                Some(srq) if srq.rcq().is_some() => 0,
                Some(srq) => srq.rq_size(),
                None => self.rq_size(),
            };
            self.sq_size.saturating_add(receives)
        })
    }

    /// Entries of a completion queue for receives alone; 0, the default, for none: receives complete
    /// in the same queue as everything else. At least as many as there are receives, as with
    /// [`set_cq_size`](Self::set_cq_size).
    ///
    /// Without effect together with a [shared receive queue](Self::set_srq) that has a completion
    /// queue of its own.
    #[doc(alias = "rpma_conn_cfg_set_rcq_size")]
    pub fn set_rcq_size(&mut self, entries: u32) -> &mut Self {
        self.rcq_size = entries;
        self
    }

    /// Entries of a completion queue for receives alone; 0 for none.
    #[doc(alias = "rpma_conn_cfg_get_rcq_size")]
    pub fn rcq_size(&self) -> u32 {
        self.rcq_size
    }

    /// Operations in flight, [10](Self::SQ_SIZE) by default. Each costs memory of the device's
    /// driver.
    ///
    /// An operation is in flight until its completion, or that of a later one, was polled. Keep
    /// count yourself: a device may take more as soon as it has carried one out, and completions
    /// that nobody polls in time are then lost. [`QueueFull`](crate::Error::QueueFull) is no flow
    /// control.
    #[doc(alias = "rpma_conn_cfg_set_sq_size")]
    pub fn set_sq_size(&mut self, requests: u32) -> &mut Self {
        self.sq_size = requests;
        self
    }

    /// Operations in flight.
    #[doc(alias = "rpma_conn_cfg_get_sq_size")]
    pub fn sq_size(&self) -> u32 {
        self.sq_size
    }

    /// Receives posted at once, [10](Self::RQ_SIZE) by default. Each costs memory of the device's
    /// driver. As with [`set_sq_size`](Self::set_sq_size), a receive counts until its completion was
    /// polled. Not together with a [shared receive queue](Self::set_srq), which has a size of its own.
    #[doc(alias = "rpma_conn_cfg_set_rq_size")]
    pub fn set_rq_size(&mut self, receives: u32) -> &mut Self {
        self.rq_size = Some(receives);
        self
    }

    /// Receives posted at once: 0 with a shared receive queue.
    #[doc(alias = "rpma_conn_cfg_get_rq_size")]
    pub fn rq_size(&self) -> u32 {
        let default = if self.srq.is_some() { 0 } else { Self::RQ_SIZE };
        self.rq_size.unwrap_or(default)
    }

    /// Lets both completion queues of the connection report to one channel: wait with
    /// [`Connection::wait`](crate::Connection::wait). Off by default.
    #[doc(alias = "rpma_conn_cfg_set_compl_channel")]
    pub fn set_shared_completion_channel(&mut self, shared: bool) -> &mut Self {
        self.shared_channel = shared;
        self
    }

    /// Whether both completion queues of the connection report to one channel.
    #[doc(alias = "rpma_conn_cfg_get_compl_channel")]
    pub fn shared_completion_channel(&self) -> bool {
        self.shared_channel
    }

    /// Takes receives from `srq`; the connection has no receive queue of its own then. `None`, the
    /// default, takes that back. The connection keeps the queue alive.
    #[doc(alias = "rpma_conn_cfg_set_srq")]
    pub fn set_srq(&mut self, srq: Option<&SharedReceiveQueue>) -> &mut Self {
        self.srq = srq.cloned();
        self
    }

    /// Where receives are taken from, if that is shared.
    #[doc(alias = "rpma_conn_cfg_get_srq")]
    pub fn srq(&self) -> Option<&SharedReceiveQueue> {
        self.srq.as_ref()
    }

    /// Completes in `cq`, which other connections may share, instead of in a queue of its own. `None`, the
    /// default, takes that back.
    ///
    /// It needs room for all that completes there:
    /// making a connection for which too little is left is refused. Devices may round depths up to
    /// the next power of two; poll it empty when a connection has gone, whose last completions take
    /// room that nobody counts any more.
    pub fn set_cq(&mut self, cq: Option<&CompletionQueue>) -> &mut Self {
        self.cq = cq.cloned();
        self
    }

    /// Where operations complete, if that was made before.
    pub fn cq(&self) -> Option<&CompletionQueue> {
        self.cq.as_ref()
    }

    /// Completes receives in `rcq`, which other connections may share, as with
    /// [`set_cq`](Self::set_cq).
    pub fn set_rcq(&mut self, rcq: Option<&CompletionQueue>) -> &mut Self {
        self.rcq = rcq.cloned();
        self
    }

    /// Where receives complete, if that was made before.
    pub fn rcq(&self) -> Option<&CompletionQueue> {
        self.rcq.as_ref()
    }

    /// The device's interrupt vector for the completion queues that the connection makes, 0 by
    /// default. A vector that the device does not have is refused when the connection is made.
    pub fn set_completion_vector(&mut self, vector: u32) -> &mut Self {
        self.vector = vector;
        self
    }

    /// The device's interrupt vector for the completion queues that the connection makes.
    pub fn completion_vector(&self) -> u32 {
        self.vector
    }

    /// Lets completion queues be smaller than what may complete there. One that overruns loses
    /// completions, and on most devices breaks. Off by default.
    pub fn set_allow_overrun(&mut self, allow: bool) -> &mut Self {
        self.allow_overrun = allow;
        self
    }

    /// Whether completion queues may be smaller than what may complete there.
    pub fn allow_overrun(&self) -> bool {
        self.allow_overrun
    }

    /// Bytes that a send or a write may take from memory that is not registered, at least;
    /// [8](Self::MAX_INLINE) by default, and never less. Each operation in flight costs as much
    /// memory of the device's driver. Devices have limits that they do not tell, often below 1000: a
    /// size above is refused when the connection is made.
    pub fn set_max_inline(&mut self, bytes: u32) -> &mut Self {
        self.max_inline = bytes;
        self
    }

    /// Bytes that a send or a write may take from memory that is not registered.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Spans that one operation or receive may have, at least; [1](Self::MAX_SPANS) by default, at most 32. Each
    /// operation in flight costs memory of the device's driver for as many.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0, and above 32.
    pub fn set_max_spans(&mut self, spans: u32) -> Result<&mut Self, Error> {
        if spans == 0 || spans as usize > MOST_SPANS {
            return Err(Error::Invalid(format!(
                "{spans} spans in one operation; give 1 to {MOST_SPANS}"
            )));
        }
        self.max_spans = spans;
        Ok(self)
    }

    /// Spans that one operation or receive may have.
    pub fn max_spans(&self) -> u32 {
        self.max_spans
    }

    /// Whether flushes and atomic writes are the operations that newer devices have for them, where
    /// this side's device has them; otherwise, and on all other devices, they are a read and a
    /// write. False by default.
    ///
    /// Both sides must agree on it, since nothing in a descriptor tells: the peer's device must
    /// know these operations, and its regions must be registered for them. Regions of this crate
    /// are, on such a device (for persistence: in memory that is persistent); those of librpma 1.2
    /// are not, and those of librpma 1.3 on such a device are for nothing else. An operation that
    /// the peer does not know, or does not allow, ends the connection.
    #[doc(alias = "IBV_QP_EX_WITH_FLUSH")]
    #[doc(alias = "IBV_QP_EX_WITH_ATOMIC_WRITE")]
    pub fn set_native_operations(&mut self, native: bool) -> &mut Self {
        self.native_operations = native;
        self
    }

    /// Whether the device's own flush and atomic write are used where they are there.
    pub fn native_operations(&self) -> bool {
        self.native_operations
    }

    /// How often an unacknowledged operation is sent again, 0 to 7; [6](Self::RETRY_COUNT) by
    /// default. Together with the acknowledgement timeout it says when a dead peer is noticed; 7
    /// means never on SoftRoCE.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 7.
    pub fn set_retry_count(&mut self, count: u8) -> Result<&mut Self, Error> {
        self.params.retry_count = at_most("retry count", count, 7)?;
        Ok(self)
    }

    /// How often an unacknowledged operation is sent again.
    pub fn retry_count(&self) -> u8 {
        self.params.retry_count
    }

    /// How often an operation is sent again to a peer that has no receive posted, 0 to 6, or 7 for
    /// ever; [7](Self::RNR_RETRY) by default, because C peers post their receives late.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 7.
    pub fn set_rnr_retry(&mut self, count: u8) -> Result<&mut Self, Error> {
        self.params.rnr_retry = at_most("receiver-not-ready retry count", count, 7)?;
        Ok(self)
    }

    /// How often an operation is sent again to a peer that has no receive posted; 7 is for ever.
    pub fn rnr_retry(&self) -> u8 {
        self.params.rnr_retry
    }

    /// How long an acknowledgement is waited for: 4.096 µs · 2^`exponent`;
    /// [16](Self::ACK_TIMEOUT) (268 ms) by default.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0, which waits for ever, and above 31.
    pub fn set_ack_timeout(&mut self, exponent: u8) -> Result<&mut Self, Error> {
        if exponent == 0 {
            return Err(Error::Invalid(
                "an acknowledgement timeout of 0 waits for ever; give 1 to 31".into(),
            ));
        }
        self.params.ack_timeout = at_most("acknowledgement timeout", exponent, 31)?;
        Ok(self)
    }

    /// The exponent of the time that an acknowledgement is waited for: 4.096 µs · 2^n.
    pub fn ack_timeout(&self) -> u8 {
        self.params.ack_timeout
    }

    /// How long the peer waits before it sends again when no receive was posted here: the
    /// specification's code, [12](Self::MIN_RNR_TIMER) (0.64 ms) by default, 0 is 655 ms.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 31.
    pub fn set_min_rnr_timer(&mut self, code: u8) -> Result<&mut Self, Error> {
        self.params.min_rnr_timer = at_most("receiver-not-ready timer", code, 31)?;
        Ok(self)
    }

    /// The code of the time that the peer waits when no receive was posted here.
    pub fn min_rnr_timer(&self) -> u8 {
        self.params.min_rnr_timer
    }

    /// Reads and atomics that this side wants in flight; 255, the default, means as many as device
    /// and peer allow.
    pub fn set_initiator_depth(&mut self, reads: u8) -> &mut Self {
        self.params.initiator_depth = reads;
        self
    }

    /// Reads and atomics that this side wants in flight.
    pub fn initiator_depth(&self) -> u8 {
        self.params.initiator_depth
    }

    /// Reads and atomics that the peer may have in flight towards this side; 255, the default,
    /// means as many as the device allows. With 0 the peer can neither read nor flush here.
    pub fn set_responder_resources(&mut self, reads: u8) -> &mut Self {
        self.params.responder_resources = reads;
        self
    }

    /// Reads and atomics that the peer may have in flight towards this side.
    pub fn responder_resources(&self) -> u8 {
        self.params.responder_resources
    }

    /// The local address to connect from, port 0 for any; chosen by the system by default. Of the
    /// side that asks for the connection.
    pub fn set_source_address(&mut self, source: Option<SocketAddr>) -> &mut Self {
        self.connect.source = source;
        self
    }

    /// The local address to connect from.
    pub fn source_address(&self) -> Option<SocketAddr> {
        self.connect.source
    }

    /// The IP type of service of the connection's packets; the system's default if `None`. Of the
    /// side that asks for the connection, which the other follows.
    pub fn set_type_of_service(&mut self, tos: Option<u8>) -> &mut Self {
        self.connect.id.type_of_service = tos;
        self
    }

    /// The IP type of service of the connection's packets.
    pub fn type_of_service(&self) -> Option<u8> {
        self.connect.id.type_of_service
    }

    pub(super) fn asks_for_receives(&self) -> bool {
        self.rq_size.is_some()
    }

    pub(super) fn asks_for_cq_size(&self) -> bool {
        self.cq_size.is_some()
    }
}

fn at_most(what: &str, value: u8, max: u8) -> Result<u8, Error> {
    if value <= max {
        Ok(value)
    } else {
        Err(Error::Invalid(format!(
            "{what} {value} is above its limit {max}"
        )))
    }
}

#[cfg(test)]
mod tests;
