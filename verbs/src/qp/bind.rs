//! Binding memory windows, and requests whose data is copied while posting.

use rdma_core_sys as sys;

use super::QueuePair;
use super::opcodes::WrOpcode;
use super::post::{PostError, PostErrorKind};
use super::request::SendRequest;
use super::state::QpState;
use crate::ah::AddressHandle;
use crate::error::{Error, ErrorKind, from_return};
use crate::flags::SendFlags;
use crate::mr::{LocalKey, MemoryRegion, RemoteAddr, RemoteKey, Sge};
use crate::mw::{MemoryWindow, WindowBind, WindowType};

impl QueuePair {
    /// Posts a request that binds `window`, and gives the key for the peer.
    ///
    /// The key may be sent to the peer by a later request of this queue; otherwise wait for the
    /// completion. A window of type 2 must not be bound when this is posted: invalidate it first. A
    /// window whose bind has failed in its completion is to be closed: its key is not known.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a range outside the
    /// region, a region of another domain, a window that was freed, and for the flag INLINE; those of
    /// [`post_send`](Self::post_send) otherwise.
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_inc_rkey")]
    pub fn bind(&self, window: &MemoryWindow, bind: &WindowBind<'_>) -> Result<RemoteKey, Error> {
        let verb = "ibv_bind_mw";
        self.check_post(QpState::RTS)?;
        self.check_opcode(WrOpcode::BIND_MW)?;
        let info = self.prepare_bind(verb, window, bind)?;
        window.bind_with(self.number(), |mw, old| {
            if window.window_type() == WindowType::TYPE_1 {
                self.bind_type_1(mw, bind.wr_id, bind.flags, info)
            } else {
                self.bind_type_2(mw, bind, info, old)
            }
        })
    }

    /// What C is to bind, if it may be bound through this queue pair.
    pub(super) fn prepare_bind(
        &self,
        verb: &'static str,
        window: &MemoryWindow,
        bind: &WindowBind<'_>,
    ) -> Result<sys::ibv_mw_bind_info, Error> {
        not_inline(bind.flags)?;
        let info = bind.to_raw(verb, window)?;
        if window.pd().context() != self.context() {
            return Err(Error::refused(
                verb,
                ErrorKind::InvalidArgument,
                "the memory window is of another device",
            ));
        }
        if window.window_type() != WindowType::TYPE_1 {
            // Before it can be bound, so that it is never bound to a queue pair that is gone.
            self.attached.windows.add(window);
        }
        Ok(info)
    }

    /// Posts a request that takes back what `window`, of type 1, gives the peer, and gives the key
    /// that it has from then on, which allows nothing. The window may be bound again.
    ///
    /// The access has ended once the request has completed. `region` is any live region of the
    /// window's domain, bound to or not: C's way of naming none makes some providers follow a NULL
    /// pointer, and all take an empty part of a region for it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a window of another
    /// type (invalidate its key instead), a region of another domain, or a window that was freed;
    /// those of [`post_send`](Self::post_send) otherwise.
    #[doc(alias = "ibv_bind_mw")]
    pub fn unbind(
        &self,
        window: &MemoryWindow,
        region: &MemoryRegion,
        wr_id: u64,
        flags: SendFlags,
    ) -> Result<RemoteKey, Error> {
        let verb = "ibv_bind_mw";
        self.check_post(QpState::RTS)?;
        self.check_opcode(WrOpcode::BIND_MW)?;
        let refused = |detail: &str| Err(Error::refused(verb, ErrorKind::InvalidArgument, detail));
        if window.window_type() != WindowType::TYPE_1 {
            return refused("only a window of type 1 is unbound by a call").map_err(|e: Error| {
                e.with_hint("post SendRequest::local_invalidate with its key")
            });
        }
        if window.pd().context() != self.context() {
            return refused("the memory window is of another device");
        }
        if region.pd() != window.pd() {
            return refused("the memory region is of another protection domain");
        }
        let info = sys::ibv_mw_bind_info {
            mr: region.as_raw(),
            addr: region.iova(),
            length: 0,
            mw_access_flags: 0,
        };
        window.bind_with(self.number(), |mw, _| {
            self.bind_type_1(mw, wr_id, flags, info)
        })
    }

    fn bind_type_1(
        &self,
        mw: *mut sys::ibv_mw,
        wr_id: u64,
        flags: SendFlags,
        info: sys::ibv_mw_bind_info,
    ) -> Result<RemoteKey, (Error, bool)> {
        not_inline(flags).map_err(|error| (error.into(), false))?;
        let mut raw = sys::ibv_mw_bind {
            wr_id,
            send_flags: flags.bits(),
            bind_info: info,
        };
        // SAFETY: queue pair, window and region are live and of one device. The window's lock is
        // held by the caller. Memory that the region does not give away is not given by a window.
        let ret = unsafe { sys::ibv_bind_mw(self.as_raw(), mw, &mut raw) };
        from_return("ibv_bind_mw", ret).map_err(|error| (error, true))?;
        // SAFETY: the window is live; its lock is held, and only a bind writes the key.
        Ok(RemoteKey(unsafe { (*mw).rkey }))
    }

    fn bind_type_2(
        &self,
        mw: *mut sys::ibv_mw,
        bind: &WindowBind<'_>,
        info: sys::ibv_mw_bind_info,
        old: RemoteKey,
    ) -> Result<RemoteKey, (Error, bool)> {
        let rkey = sys::ibv_inc_rkey(old.0);
        let mut request =
            SendRequest::bind_window(bind.wr_id, mw, rkey, info).with_flags(bind.flags);
        // SAFETY: the request names a live window and region, and no memory to be read or written
        // for it; the region's own contract covers what a peer does through the window.
        unsafe { self.post_send(&mut request) }
            .map_err(|error| (error.into(), error.queued > 0))?;
        // What the library does itself for type 1: some providers tell the device the present key.
        // SAFETY: the window is live and its lock is held, without which nothing reads the key.
        unsafe { (*mw).rkey = rkey };
        Ok(RemoteKey(rkey))
    }

    /// Posts a request whose data is copied before this returns. Safe, since nothing of ours is
    /// reached later.
    ///
    /// # Errors
    /// [`PostErrorKind`]; the data may have as many bytes as
    /// [`max_inline_data`](crate::Capabilities::max_inline_data) says.
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn post_inline(&self, request: &InlineRequest<'_>) -> Result<(), PostError> {
        let data = request.data;
        let Ok(len) = u32::try_from(data.len()) else {
            return Err(PostError::refused(PostErrorKind::InlineTooLong {
                given: data.len() as u64,
                max: self.capabilities().max_inline_data,
            }));
        };
        let address = data.as_ptr().expose_provenance() as u64;
        let sges = [Sge::new(address, len, LocalKey(0))];
        let mut posted = request.request.with_sges(&sges);
        // SAFETY: the flag INLINE is set and the data is readable during the call.
        unsafe { self.post_send(&mut posted) }
    }
}

/// Refuses the flag INLINE, which means nothing where there is no data.
fn not_inline(flags: SendFlags) -> Result<(), PostError> {
    if !flags.contains(SendFlags::INLINE) {
        return Ok(());
    }
    let kind = PostErrorKind::InlineNotAllowed(WrOpcode::BIND_MW);
    Err(PostError::refused(kind))
}

/// A request whose data is copied while it is posted; see [`QueuePair::post_inline`].
#[derive(Debug, Clone, Copy)]
pub struct InlineRequest<'a> {
    request: SendRequest<'a>,
    data: &'a [u8],
}

impl<'a> InlineRequest<'a> {
    #[inline]
    fn new(request: SendRequest<'a>, data: &'a [u8]) -> Self {
        Self { request, data }.with_flags(SendFlags::empty())
    }

    /// Sends `data` as one message.
    #[inline]
    pub fn send(wr_id: u64, data: &'a [u8]) -> Self {
        Self::new(SendRequest::send(wr_id, &[]), data)
    }

    /// Sends a message with `imm`, given and received in host order.
    #[inline]
    pub fn send_with_imm(wr_id: u64, data: &'a [u8], imm: u32) -> Self {
        Self::new(SendRequest::send_with_imm(wr_id, &[], imm), data)
    }

    /// Writes `data` to `remote`.
    #[inline]
    pub fn write(wr_id: u64, data: &'a [u8], remote: RemoteAddr) -> Self {
        Self::new(SendRequest::write(wr_id, &[], remote), data)
    }

    /// Writes, and completes a receive of the peer with `imm`.
    #[inline]
    pub fn write_with_imm(wr_id: u64, data: &'a [u8], remote: RemoteAddr, imm: u32) -> Self {
        Self::new(SendRequest::write_with_imm(wr_id, &[], remote, imm), data)
    }

    /// Sends `data` as one datagram (UD) to queue pair `qp_number` behind `address`, with the Q_Key
    /// that it expects.
    ///
    /// Keep `address`, or a clone of it, until the request has completed: a device that looks it up
    /// late fails the request, or sends `data` to whom a handle made meanwhile names. A datagram
    /// longer than the path's MTU is lost.
    #[inline]
    pub fn datagram(
        wr_id: u64,
        data: &'a [u8],
        address: &'a AddressHandle,
        qp_number: u32,
        qkey: u32,
    ) -> Self {
        let request = SendRequest::datagram(wr_id, &[], address, qp_number, qkey);
        Self::new(request, data)
    }

    /// Sends a datagram with `imm`, given and received in host order; otherwise as
    /// [`datagram`](Self::datagram).
    #[inline]
    pub fn datagram_with_imm(
        wr_id: u64,
        data: &'a [u8],
        address: &'a AddressHandle,
        qp_number: u32,
        qkey: u32,
        imm: u32,
    ) -> Self {
        let request = SendRequest::datagram_with_imm(wr_id, &[], address, qp_number, qkey, imm);
        Self::new(request, data)
    }

    /// The same request with `flags`, to which INLINE is always added.
    #[inline]
    #[must_use]
    pub fn with_flags(mut self, flags: SendFlags) -> Self {
        self.request = self.request.with_flags(flags | SendFlags::INLINE);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inline_request_is_inline_whatever_flags_it_gets() {
        let plain = InlineRequest::send(1, b"data");
        assert_eq!(plain.request.flags(), SendFlags::INLINE);
        let flagged = plain.with_flags(SendFlags::SIGNALED);
        let both = SendFlags::SIGNALED | SendFlags::INLINE;
        assert_eq!(flagged.request.flags(), both);
        assert_eq!(
            flagged.with_flags(SendFlags::empty()).request.flags(),
            SendFlags::INLINE
        );
    }
}
