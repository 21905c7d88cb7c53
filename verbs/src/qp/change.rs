//! Changing and asking the state of a queue pair.

use std::sync::PoisonError;

use rdma_core_sys as sys;

use super::state::{QpAttributes, QpState, QpType};
use super::transition::{InitAttributes, RtrAttributes, RtsAttributes};
use super::{Capabilities, QueuePair};
use crate::error::{Error, ErrorKind, from_return};

impl QueuePair {
    /// Sets attributes, usually a new state.
    ///
    /// # Errors
    /// EINVAL when the transition does not exist or gets too few or too many attributes: nothing
    /// has changed then. ETIMEDOUT when the peer's address cannot be resolved.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attributes: &QpAttributes) -> Result<(), Error> {
        let verb = "ibv_modify_qp";
        let qp = self.owned.raw_checked(verb)?;
        // Our record of the state takes the order in which the kernel took the calls.
        let _modifying = self
            .facts
            .modifying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue pair is live, and nobody else changes it.
        unsafe { modify_raw(qp, attributes) }.map_err(|error| match attributes.state() {
            Some(to) => error.with_detail(format!(
                "queue pair {} from {} to {to}",
                self.facts.number,
                self.state()
            )),
            None => error,
        })?;
        if let Some(state) = attributes.state() {
            self.facts.enter(state);
        }
        Ok(())
    }

    /// Records a state that the kernel brought the queue pair to by itself, as it does on iWARP.
    ///
    /// # Safety
    /// - The queue pair is in that state: a send posted before RTS may be carried out much later,
    ///   when its memory is no longer what it was.
    pub unsafe fn record_state(&self, state: QpState) {
        self.facts.enter(state);
    }

    /// Ends all work: what is posted completes as flushed, and nothing is accepted from the peer.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn set_error(&self) -> Result<(), Error> {
        self.modify(QpAttributes::new().set_state(QpState::ERR))
    }

    /// To INIT, where receives may be posted.
    ///
    /// # Errors
    /// EINVAL from another state than RESET or INIT, EPERM for a Q_Key that needs privileges.
    pub fn to_init(&self, attributes: &InitAttributes) -> Result<(), Error> {
        self.modify(&attributes.attributes(self.qp_type()))
    }

    /// A connected queue pair (RC, UC) to RTR: it receives from its peer.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a value out of range and for UD, [`ErrorKind::Limit`] for a
    /// path MTU above the port's; EINVAL from another state than INIT, ETIMEDOUT when the peer's
    /// address cannot be resolved.
    pub fn to_rtr(&self, attributes: &RtrAttributes) -> Result<(), Error> {
        if self.qp_type() == QpType::UD {
            return Err(Error::refused(
                "ibv_modify_qp",
                ErrorKind::InvalidArgument,
                "a UD queue pair has no peer",
            )
            .with_hint("use to_rtr_datagram"));
        }
        self.check_path_mtu(attributes)?;
        self.modify(&attributes.attributes(self.qp_type(), self.context().attributes())?)
    }

    /// Refuses packets that the port cannot carry: a device may take the value and lose them.
    fn check_path_mtu(&self, attributes: &RtrAttributes) -> Result<(), Error> {
        let port = attributes.address.port;
        let active = self.context().query_port(port)?.active_mtu();
        let asked = attributes.path_mtu;
        match (asked.bytes(), active) {
            (Some(bytes), Some(most)) if bytes > most => Err(Error::refused(
                "ibv_modify_qp",
                ErrorKind::Limit,
                format!(
                    "path_mtu {asked} exceeds what port {port} of device {} carries, {most} bytes",
                    self.context().name()
                ),
            )
            .with_hint("take the smaller of both ports' active_mtu: PathMtu::at_most")),
            _ => Ok(()),
        }
    }

    /// A UD queue pair to RTR: it receives from anybody who knows its Q_Key.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for RC and UC; EINVAL from another state than INIT.
    pub fn to_rtr_datagram(&self) -> Result<(), Error> {
        if self.qp_type() != QpType::UD {
            return Err(Error::refused(
                "ibv_modify_qp",
                ErrorKind::InvalidArgument,
                format!("a {} queue pair needs to know its peer", self.qp_type()),
            )
            .with_hint("use to_rtr"));
        }
        self.modify(QpAttributes::new().set_state(QpState::RTR))
    }

    /// To RTS: it sends, too.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a value out of range; EINVAL from another state than RTR.
    pub fn to_rts(&self, attributes: &RtsAttributes) -> Result<(), Error> {
        self.modify(&attributes.attributes(self.qp_type(), self.context().attributes())?)
    }

    /// Back to RESET. What is posted is forgotten without a completion: its memory is ours again.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn reset(&self) -> Result<(), Error> {
        self.modify(QpAttributes::new().set_state(QpState::RESET))
    }

    /// What the device says now, including a state that it went to by itself. The state that is
    /// recorded here becomes that one.
    ///
    /// # Errors
    /// The errno of the call.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<(QpAttributes, Capabilities), Error> {
        let verb = "ibv_query_qp";
        let qp = self.owned.raw_checked(verb)?;
        // libibverbs writes its own copy of the state here, without a lock.
        let _modifying = self
            .facts
            .modifying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue pair is live, and nobody else changes it.
        let (attributes, init) = unsafe { query_raw(qp) }
            .map_err(|error| error.with_detail(format!("queue pair {}", self.number())))?;
        if let Some(state) = attributes.state() {
            self.facts.enter(state);
        }
        Ok((attributes, Capabilities::from_raw(&init.cap)))
    }
}

/// Sets attributes of a C queue pair.
///
/// # Safety
/// - `qp` is live, and no other thread modifies or queries it: libibverbs writes its copy of the
///   state.
pub(crate) unsafe fn modify_raw(
    qp: *mut sys::ibv_qp,
    attributes: &QpAttributes,
) -> Result<(), Error> {
    let (raw, mask) = attributes.as_raw();
    let mut raw = *raw;
    // SAFETY: the queue pair is live; the attributes are a copy, and the kernel checks them.
    let ret = unsafe { sys::ibv_modify_qp(qp, &mut raw, mask) };
    from_return("ibv_modify_qp", ret)
}

/// Asks for the attributes of a C queue pair.
///
/// # Safety
/// - As [`modify_raw`].
pub(crate) unsafe fn query_raw(
    qp: *mut sys::ibv_qp,
) -> Result<(QpAttributes, sys::ibv_qp_init_attr), Error> {
    let mut raw = sys::ibv_qp_attr::default();
    let mut init = sys::ibv_qp_init_attr::default();
    let mask = QUERIED.cast_signed();
    // SAFETY: the queue pair is live, and both places are valid.
    let ret = unsafe { sys::ibv_query_qp(qp, &mut raw, mask, &mut init) };
    from_return("ibv_query_qp", ret)?;
    Ok((QpAttributes::from_raw(raw, mask), init))
}

/// All attributes from the state to the peer's number.
const QUERIED: u32 = (sys::ibv_qp_attr_mask::IBV_QP_DEST_QPN.0 << 1) - 1;
