//! Memory of this side, registered with the device.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use super::pinned::Pinned;
use super::span::{Span, resolve};
use super::{DESCRIPTOR_SIZE, Usage, copy};
use crate::error::Error;
use crate::peer::Peer;

/// Memory registered with a peer's device, in pages of its own.
///
/// The device, and through it the other side, may change the memory at any time. So it is never
/// lent as a slice: [`store`](Self::store) and [`load`](Self::load) copy in and out. While a
/// transfer is under way a load may see old and new bytes mixed.
///
/// Dropping it ends the registration, and then unmaps the memory. Requests that are still queued
/// then fail; nothing of them reaches memory that was given back.
#[doc(alias = "rpma_mr_local")]
pub struct LocalRegion {
    pinned: Pinned,
    len: usize,
    usage: Usage,
    peer: Peer,
}

impl LocalRegion {
    /// Bytes of a descriptor.
    pub const DESCRIPTOR_SIZE: usize = DESCRIPTOR_SIZE;

    /// Maps `len` zeroed bytes and registers them with `peer` for `usage`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes or no usage, [`Error::Memory`], or the refused registration:
    /// ENOMEM says that the process may not pin so much.
    #[doc(alias = "rpma_mr_reg")]
    pub fn alloc(peer: &Peer, len: usize, usage: Usage) -> Result<Self, Error> {
        if len == 0 {
            return Err(Error::Invalid(
                "a region needs at least 1 byte, 0 asked".into(),
            ));
        }
        if usage.is_empty() {
            return Err(Error::Invalid("a region needs a usage, none given".into()));
        }
        let access = usage.access(peer.device().context().transport());
        Ok(Self {
            pinned: Pinned::alloc(peer.domain(), len, access)?,
            len,
            usage,
            peer: peer.clone(),
        })
    }

    /// Number of bytes.
    #[doc(alias = "rpma_mr_get_size")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it was registered for.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The address of its first byte. The memory behind it may change at any time: use it for
    /// addresses, or under the rules of volatile memory.
    #[doc(alias = "rpma_mr_get_ptr")]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pinned.as_ptr()
    }

    /// The peer it is registered with.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Copies `bytes` into the region from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], or [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child of the
    /// process that made the region; nothing is copied then.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let at = self.at("store", offset, bytes.len())?;
        // SAFETY: the range was just checked to lie in our mapping, to which no reference exists.
        unsafe { copy::store(at, bytes) };
        Ok(())
    }

    /// Copies bytes from `offset` on out of the region, filling `bytes`.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let at = self.at("load", offset, bytes.len())?;
        // SAFETY: the range was just checked to lie in our mapping, to which no reference exists.
        unsafe { copy::load(at, bytes) };
        Ok(())
    }

    /// Sets every byte to `byte`. Does nothing in a child of the process that made the region.
    pub fn fill(&self, byte: u8) {
        if self.pinned.check_process("fill").is_err() {
            return;
        }
        // SAFETY: the mapping has `len` bytes, and no reference to it exists.
        unsafe { copy::fill(self.as_ptr(), byte, self.len) };
    }

    fn at(&self, operation: &'static str, offset: usize, len: usize) -> Result<*mut u8, Error> {
        self.pinned.check_process(operation)?;
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.as_ptr().wrapping_add(offset)),
            _ => Err(Error::OutOfBounds {
                what: "local region",
                offset: offset as u64,
                len: len as u64,
                size: self.len as u64,
            }),
        }
    }

    /// The part `range`, in bytes from the start, to post with.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    pub fn span(&self, range: impl RangeBounds<u64>) -> Result<Span<'_>, Error> {
        let (offset, len) = resolve(range, self.len as u64, "local region")?;
        let whole = self.as_span();
        Ok(Span {
            addr: whole.addr + offset,
            len,
            ..whole
        })
    }

    /// All of it, to post with.
    pub fn as_span(&self) -> Span<'_> {
        Span {
            addr: self.as_ptr() as u64,
            len: self.len as u64,
            lkey: self.pinned.registration().lkey(),
            usage: self.usage,
            domain: self.peer.domain_identity(),
            region: PhantomData,
        }
    }

    /// What the other side needs to reach the region: see
    /// [`RemoteRegion::from_descriptor`](super::RemoteRegion::from_descriptor) for the bytes.
    ///
    /// Whoever has them can use the region as far as its usage goes; they are not encrypted.
    #[doc(alias = "rpma_mr_get_descriptor")]
    pub fn descriptor(&self) -> [u8; DESCRIPTOR_SIZE] {
        let mut bytes = [0; DESCRIPTOR_SIZE];
        bytes[..8].copy_from_slice(&(self.as_ptr() as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.len as u64).to_le_bytes());
        bytes[16..20].copy_from_slice(&self.pinned.registration().rkey().0.to_le_bytes());
        bytes[20] = self.usage.bits();
        bytes
    }

    /// Ends the registration and unmaps the memory now.
    ///
    /// # Errors
    /// The refused deregistration; the memory is then leaked, since the device may still use it.
    #[doc(alias = "rpma_mr_dereg")]
    pub fn close(self) -> Result<(), Error> {
        self.pinned.close()
    }
}

impl fmt::Debug for LocalRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalRegion")
            .field("addr", &self.as_ptr())
            .field("len", &self.len)
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}
