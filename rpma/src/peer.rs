//! This side: a device, a protection domain, and what all its connections share.

use std::fmt;
use std::sync::Arc;

use cm::Dispatcher;
use cm::verbs::{ProtectionDomain, Sge};

use crate::device::Device;
use crate::error::Error;
use crate::memory::{Pinned, Registrar, Usage};

/// Longest read that a flush does, in bytes.
pub(crate) const FLUSH_READ: u32 = 8;

/// This side of all connections over one device: regions and connections are made with it. Cloning
/// gives another handle.
#[doc(alias = "rpma_peer")]
#[derive(Clone)]
pub struct Peer(Arc<Inner>);

struct Inner {
    /// Where flushes read to: one page for all connections, whose content nobody looks at.
    flush: Pinned,
    domain: ProtectionDomain,
    registrar: Registrar,
    device: Device,
    max_message: u32,
    /// Reads the events of all that is made with this peer, if not each does itself.
    dispatcher: Option<Dispatcher>,
}

impl Peer {
    /// Prepares `device` for connections.
    ///
    /// # Errors
    /// [`ErrorKind::PortDown`](crate::ErrorKind::PortDown), or
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) when not even one page can be pinned.
    #[doc(alias = "rpma_peer_new")]
    pub fn new(device: &Device) -> Result<Self, Error> {
        Self::make(device, None)
    }

    /// As [`new`](Self::new), with connections and endpoints whose events `dispatcher` reads: thousands of
    /// connections then need no event descriptors of their own, and none is moved from one to another when it is accepted.
    ///
    /// A connection has no [`event_fd`](crate::Connection::event_fd) then. Several peers may share a dispatcher.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_dispatcher(device: &Device, dispatcher: &Dispatcher) -> Result<Self, Error> {
        Self::make(device, Some(dispatcher.clone()))
    }

    fn make(device: &Device, dispatcher: Option<Dispatcher>) -> Result<Self, Error> {
        let max_message = device.max_message_size()?;
        let domain = ProtectionDomain::new(device.context())?;
        let registrar = Registrar::of(device.context())?;
        let flush = Pinned::alloc(&domain, &registrar, FLUSH_READ as usize, Usage::READ_DST)?;
        Ok(Self(Arc::new(Inner {
            flush,
            domain,
            registrar,
            device: device.clone(),
            max_message,
            dispatcher,
        })))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// The protection domain of its regions and connections.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.0.domain
    }

    /// How memory is registered with it.
    pub(crate) fn registrar(&self) -> &Registrar {
        &self.0.registrar
    }

    /// The longest message, in bytes, as it was when the peer was made.
    pub fn max_message_size(&self) -> u32 {
        self.0.max_message
    }

    /// What reads the events of its connections and endpoints, if not each does itself.
    pub fn dispatcher(&self) -> Option<&Dispatcher> {
        self.0.dispatcher.as_ref()
    }

    /// What tells this peer's spans from those of others. Never dereferenced.
    #[inline]
    pub(crate) fn domain_identity(&self) -> usize {
        self.0.domain.as_raw() as usize
    }

    /// Where a flush of at least `len` bytes reads to.
    #[inline]
    pub(crate) fn flush_sge(&self, len: u32) -> Sge {
        let registration = self.0.flush.registration();
        Sge::new(self.0.flush.as_ptr() as u64, len, registration.lkey())
    }

    /// Releases the peer now.
    ///
    /// # Errors
    /// [`Error::Invalid`] while regions, connections or other handles use it; it then lives on in
    /// those.
    #[doc(alias = "rpma_peer_delete")]
    pub fn close(self) -> Result<(), Error> {
        let inner = Arc::into_inner(self.0).ok_or_else(|| {
            Error::Invalid("regions, connections or other handles still use the peer".into())
        })?;
        inner.flush.close()?;
        inner.domain.close().map_err(|failed| failed.error.into())
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("device", &self.0.device.name())
            .finish_non_exhaustive()
    }
}
