//! How connections are made.

use std::net::SocketAddr;
use std::time::Duration;

use cm::{ConnParams, ConnectOptions};

use crate::error::Error;

/// Settings of a connection. Each setter names its default and what raising it costs.
#[doc(alias = "rpma_conn_cfg")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionConfig {
    timeout: Duration,
    cq_size: Option<u32>,
    sq_size: u32,
    rq_size: u32,
    pub(crate) params: ConnParams,
    pub(crate) connect: ConnectOptions,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            cq_size: None,
            sq_size: 10,
            rq_size: 10,
            params: ConnParams::default(),
            connect: ConnectOptions::default(),
        }
    }
}

impl ConnectionConfig {
    /// How long resolving address and route may take together; 10 s by default.
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

    /// Entries of the completion queue, at least. By default the sum of both depths; a smaller size
    /// is refused when the connection is made. The queue gets more entries where the device may take
    /// more requests than the depths, so it can never overrun.
    #[doc(alias = "rpma_conn_cfg_set_cq_size")]
    pub fn set_cq_size(&mut self, entries: u32) -> &mut Self {
        self.cq_size = Some(entries);
        self
    }

    /// Entries of the completion queue.
    #[doc(alias = "rpma_conn_cfg_get_cq_size")]
    pub fn cq_size(&self) -> u32 {
        self.cq_size
            .unwrap_or_else(|| self.sq_size.saturating_add(self.rq_size))
    }

    /// Operations in flight, 10 by default. Each costs memory of the device's driver.
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

    /// Receives posted at once, 10 by default. Each costs memory of the device's driver. As with
    /// [`set_sq_size`](Self::set_sq_size), a receive counts until its completion was polled.
    #[doc(alias = "rpma_conn_cfg_set_rq_size")]
    pub fn set_rq_size(&mut self, receives: u32) -> &mut Self {
        self.rq_size = receives;
        self
    }

    /// Receives posted at once.
    #[doc(alias = "rpma_conn_cfg_get_rq_size")]
    pub fn rq_size(&self) -> u32 {
        self.rq_size
    }

    /// How often an unacknowledged operation is sent again, 0 to 7; 6 by default. Together with the
    /// acknowledgement timeout it says when a dead peer is noticed; 7 means never on SoftRoCE.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 7.
    pub fn set_retry_count(&mut self, count: u8) -> Result<&mut Self, Error> {
        self.params.retry_count = at_most("retry count", count, 7)?;
        Ok(self)
    }

    /// How often an operation is sent again to a peer that has no receive posted, 0 to 6, or 7 for
    /// ever; 7 by default, because C peers post their receives late.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 7.
    pub fn set_rnr_retry(&mut self, count: u8) -> Result<&mut Self, Error> {
        self.params.rnr_retry = at_most("receiver-not-ready retry count", count, 7)?;
        Ok(self)
    }

    /// How long an acknowledgement is waited for: 4.096 µs · 2^`exponent`; 16 (268 ms) by default.
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

    /// How long the peer waits before it sends again when no receive was posted here: the
    /// specification's code, 12 (0.64 ms) by default, 0 is 655 ms.
    ///
    /// # Errors
    /// [`Error::Invalid`] above 31.
    pub fn set_min_rnr_timer(&mut self, code: u8) -> Result<&mut Self, Error> {
        self.params.min_rnr_timer = at_most("receiver-not-ready timer", code, 31)?;
        Ok(self)
    }

    /// The local address to connect from, port 0 for any; chosen by the system by default.
    pub fn set_source_address(&mut self, source: Option<SocketAddr>) -> &mut Self {
        self.connect.source = source;
        self
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
mod tests {
    use super::*;

    #[test]
    fn the_completion_queue_holds_everything_by_default() {
        let mut config = ConnectionConfig::default();
        assert_eq!(
            (config.sq_size(), config.rq_size(), config.cq_size()),
            (10, 10, 20)
        );
        config.set_sq_size(100).set_rq_size(u32::MAX);
        assert_eq!(config.cq_size(), u32::MAX);
        config.set_cq_size(7);
        assert_eq!(config.cq_size(), 7);
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let mut config = ConnectionConfig::default();
        let error = config.set_retry_count(8).expect_err("too large");
        assert_eq!(error.to_string(), "retry count 8 is above its limit 7");
        assert!(config.set_ack_timeout(0).is_err());
        assert!(config.set_ack_timeout(32).is_err());
        assert!(config.set_min_rnr_timer(32).is_err());
        assert!(config.set_rnr_retry(7).is_ok());
    }
}
