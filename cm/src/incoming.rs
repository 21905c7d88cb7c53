//! The id that comes with a request.

use std::net::SocketAddr;
use std::ptr;

use verbs::{Context, sys};

use crate::address::{lacks_scope, with_scope};
use crate::device::interface_address;
use crate::error::Error;
use crate::id::{Id, check};
use crate::source::Routed;

/// The id that came with a request. Dropped undecided, it rejects the request.
#[expect(unnameable_types, reason = "only a sealed trait speaks of it")]
#[derive(Debug)]
pub struct IncomingId {
    id: Option<Id>,
    /// Where its events go, if a dispatcher gets them.
    events: Option<Routed>,
}

impl IncomingId {
    pub(crate) fn new(id: Id, events: Option<Routed>) -> Self {
        Self {
            id: Some(id),
            events,
        }
    }

    pub(crate) fn id(&self) -> &Id {
        self.id.as_ref().expect("taken only by value")
    }

    pub(crate) fn id_mut(&mut self) -> &mut Id {
        self.id.as_mut().expect("taken only by value")
    }

    /// The local address and the peer's, link-local ones with their scope: the message names none,
    /// so it is that of the listener's address, or of the device's interface that has the address.
    pub(crate) fn addresses(
        &self,
        context: &Context,
        listening: SocketAddr,
    ) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let (local, peer) = self.id().addresses();
        let local = local.map(|local| {
            let local = with_scope(local, [listening]);
            if lacks_scope(local) {
                with_scope(local, interface_address(context, local))
            } else {
                local
            }
        });
        let peer = peer.map(|peer| with_scope(peer, local.into_iter().chain([listening])));
        (local, peer)
    }

    pub(crate) fn take_events(&mut self) -> Option<Routed> {
        self.events.take()
    }

    /// The id, no longer rejected on drop.
    pub(crate) fn into_id(mut self) -> Id {
        self.id.take().expect("taken only by value")
    }

    /// Says no; the id is done with.
    pub(crate) fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.say_no(private_data, "rdma_reject", |id, data, len| {
            // SAFETY: the id is live and came with a request; the data is live.
            unsafe { sys::rdma_reject(id, data, len) }
        })?;
        drop(self.into_id());
        Ok(())
    }

    /// Says no because of the peer's extended connection capabilities.
    pub(crate) fn reject_ece(self, private_data: &[u8]) -> Result<(), Error> {
        self.say_no(private_data, "rdma_reject_ece", |id, data, len| {
            // SAFETY: the id is live and came with a request; the data is live.
            unsafe { sys::rdma_reject_ece(id, data, len) }
        })?;
        drop(self.into_id());
        Ok(())
    }

    fn say_no(
        &self,
        private_data: &[u8],
        verb: &'static str,
        call: impl FnOnce(*mut sys::rdma_cm_id, *const std::ffi::c_void, u8) -> i32,
    ) -> Result<(), Error> {
        let id = self.id();
        id.origin().check(verb)?;
        let data = if private_data.is_empty() {
            ptr::null()
        } else {
            private_data.as_ptr().cast()
        };
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        match check(verb, call(id.raw(), data, len)) {
            // Who asked has given up, so that nobody is left to be told; on iWARP its TCP connection is
            // reset.
            Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ECONNRESET)) => {
                tracing::debug!(%error, "a request that is gone");
                Ok(())
            }
            Err(error) => Err(error.into()),
            Ok(()) => Ok(()),
        }
    }
}

impl Drop for IncomingId {
    fn drop(&mut self) {
        let Some(id) = &self.id else { return };
        if !id.origin().is_current() {
            return;
        }
        let said = self.say_no(&[], "rdma_reject", |id, data, len| {
            // SAFETY: the id is live and came with a request; there is no data.
            unsafe { sys::rdma_reject(id, data, len) }
        });
        if let Err(error) = said {
            // The peer gave up, or the device is gone; destroying the id says no as well.
            tracing::debug!(%error, "undecided request");
        }
    }
}
