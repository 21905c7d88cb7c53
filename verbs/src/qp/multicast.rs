//! Multicast groups that a UD queue pair receives from.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_core_sys as sys;

use super::QueuePair;
use crate::error::{Error, from_return};
use crate::port::Gid;
use crate::process::Origin;

impl QueuePair {
    /// Receives datagrams sent to the group `gid` (and, on InfiniBand, `lid`) from now on.
    ///
    /// Attaching is the device's part alone: on InfiniBand the subnet manager has to let the port
    /// join, which rdma_cm does. The drop of the queue pair detaches it.
    ///
    /// # Errors
    /// EINVAL for another type than UD and for an address that is no multicast address.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, gid: Gid, lid: u16) -> Result<(), Error> {
        let verb = "ibv_attach_mcast";
        let qp = self.owned.raw_checked(verb)?;
        let mut joined = self.attached.groups.joined();
        let raw = sys::ibv_gid { raw: gid.0 };
        // SAFETY: the queue pair is live, and the address is read during the call.
        let ret = unsafe { sys::ibv_attach_mcast(qp, &raw, lid) };
        from_return(verb, ret)
            .map_err(|e| e.with_detail(format!("queue pair {} to {gid}", self.number())))?;
        // Attached twice it is still detached once.
        if !joined.contains(&(gid, lid)) {
            joined.push((gid, lid));
        }
        Ok(())
    }

    /// Receives from the group no longer.
    ///
    /// # Errors
    /// EINVAL for a group that it is not attached to.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&self, gid: Gid, lid: u16) -> Result<(), Error> {
        self.owned.raw_checked("ibv_detach_mcast")?;
        let mut joined = self.attached.groups.joined();
        self.attached
            .groups
            .detach(gid, lid)
            .map_err(|e| e.with_detail(format!("queue pair {} from {gid}", self.number())))?;
        joined.retain(|&group| group != (gid, lid));
        Ok(())
    }
}

/// The groups that a queue pair is attached to: a device does not destroy it before they are left.
#[derive(Debug)]
pub(super) struct Groups {
    qp: NonNull<sys::ibv_qp>,
    origin: Origin,
    joined: Mutex<Vec<(Gid, u16)>>,
}

// SAFETY: attaching and detaching are thread-safe in C; the list is behind a lock.
unsafe impl Send for Groups {}
// SAFETY: as above.
unsafe impl Sync for Groups {}

impl Groups {
    /// # Safety
    /// - `qp` is live whenever the result is used; its drop uses nothing.
    pub(super) unsafe fn new(qp: NonNull<sys::ibv_qp>, origin: Origin) -> Self {
        Self {
            qp,
            origin,
            joined: Mutex::default(),
        }
    }

    fn joined(&self) -> MutexGuard<'_, Vec<(Gid, u16)>> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn detach(&self, gid: Gid, lid: u16) -> Result<(), Error> {
        let raw = sys::ibv_gid { raw: gid.0 };
        // SAFETY: the queue pair is live whenever `self` is used, and the address is read in the call.
        let ret = unsafe { sys::ibv_detach_mcast(self.qp.as_ptr(), &raw, lid) };
        from_return("ibv_detach_mcast", ret)
    }

    /// Leaves every group; those that cannot be left are remembered.
    pub(super) fn leave(&mut self) {
        // In a forked child the calls would work on the parent's queue pair.
        if !self.origin.is_current() {
            return;
        }
        let joined = self
            .joined
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut groups = std::mem::take(joined);
        groups.retain(|&(gid, lid)| {
            let left = self.detach(gid, lid);
            if let Err(error) = &left {
                tracing::warn!(%error, %gid, "a multicast group could not be left");
            }
            left.is_err()
        });
        *self.joined() = groups;
    }
}
