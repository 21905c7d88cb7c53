//! Memory of this side, registered with the device.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;

use cm::verbs::{AccessFlags, LocalKey};

use super::Usage;
use super::descriptor::{self, Descriptor};
use super::pinned::Pinned;
use super::span::{Span, resolve};
use crate::error::Error;
use crate::peer::Peer;

/// Memory registered with a peer's device.
///
/// It is made of
/// - pages of its own: [`alloc`](Self::alloc), [`alloc_huge`](Self::alloc_huge);
/// - a file, or persistent memory: [`map_file`](Self::map_file),
///   [`map_file_read_only`](Self::map_file_read_only);
/// - memory of the program, or of another device: [`from_raw_parts`](Self::from_raw_parts),
///   [`from_dmabuf`](Self::from_dmabuf).
///
/// The device, and through it the other side, may change the memory at any time. So it is never
/// lent as a slice: [`store`](Self::store) and [`load`](Self::load) copy in and out. While a
/// transfer is under way a load may see old and new bytes mixed.
///
/// Dropping it ends the registration, and then unmaps the memory. Requests that are still queued
/// then fail; nothing of them reaches memory that was given back.
///
/// A region may be longer than 4 GiB; a single operation takes a part of it, and refuses one that is
/// longer than the device's longest message.
#[doc(alias = "rpma_mr_local")]
pub struct LocalRegion {
    pinned: Pinned,
    usage: Usage,
    peer: Peer,
    // What spans are made of, at hand: they are made for each operation.
    addr: u64,
    len: u64,
    lkey: LocalKey,
    domain: usize,
}

impl LocalRegion {
    /// Bytes of a descriptor.
    #[doc(alias = "rpma_mr_get_descriptor_size")]
    pub const DESCRIPTOR_SIZE: usize = descriptor::SIZE;

    pub(super) fn new(peer: &Peer, pinned: Pinned, usage: Usage) -> Self {
        let registration = pinned.registration();
        Self {
            addr: registration.iova(),
            len: pinned.mapping().len() as u64,
            lkey: registration.lkey(),
            domain: peer.domain_identity(),
            pinned,
            usage,
            peer: peer.clone(),
        }
    }

    pub(super) fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    /// Number of bytes.
    #[doc(alias = "rpma_mr_get_size")]
    pub fn len(&self) -> usize {
        self.pinned.mapping().len()
    }

    /// Never true: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it was registered for.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// The address of its first byte; null for a DMA buffer, which is not mapped. The memory behind
    /// it may change at any time: use it for addresses, or under the rules of volatile memory.
    #[doc(alias = "rpma_mr_get_ptr")]
    pub fn as_ptr(&self) -> *mut u8 {
        self.pinned.as_ptr()
    }

    /// The peer it is registered with.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Whether the device brings its pages in when it needs them, since they may not be pinned: so it
    /// is for files of DAX file systems.
    #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
    #[doc(alias = "ODP")]
    pub fn is_on_demand(&self) -> bool {
        self.pinned.access().contains(AccessFlags::ON_DEMAND)
    }

    /// Whether it is a copy of its file, which others' changes of that do not reach: see
    /// [`map_file_read_only`](Self::map_file_read_only).
    pub fn is_snapshot(&self) -> bool {
        self.pinned.mapping().is_snapshot()
    }

    /// The kinds of flush, of those in its usage, that the device lets a peer's device do by itself.
    /// Flushes by reading work in any case.
    #[doc(alias = "IBV_ACCESS_FLUSH_GLOBAL")]
    #[doc(alias = "IBV_ACCESS_FLUSH_PERSISTENT")]
    pub fn native_flush_types(&self) -> Usage {
        let access = self.pinned.access();
        let mut types = Usage::empty();
        types.set(
            Usage::FLUSH_VISIBILITY,
            access.contains(AccessFlags::FLUSH_GLOBAL),
        );
        types.set(
            Usage::FLUSH_PERSISTENT,
            access.contains(AccessFlags::FLUSH_PERSISTENT),
        );
        types
    }

    /// Whether a peer's atomics (fetch and add, compare and swap) may reach it: with usage
    /// [`READ_SRC`](Usage::READ_SRC) and [`WRITE_DST`](Usage::WRITE_DST), on devices that have them.
    #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
    pub fn allows_atomics(&self) -> bool {
        self.pinned.access().contains(AccessFlags::REMOTE_ATOMIC)
    }

    /// The part `range`, in bytes from the start, to post with.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`].
    #[inline]
    pub fn span(&self, range: impl RangeBounds<u64>) -> Result<Span<'_>, Error> {
        let (offset, len) = resolve(range, self.len, "local region")?;
        let whole = self.as_span();
        Ok(Span {
            addr: whole.addr + offset,
            len,
            ..whole
        })
    }

    /// All of it, to post with.
    #[inline]
    pub fn as_span(&self) -> Span<'_> {
        Span {
            addr: self.addr,
            len: self.len,
            lkey: self.lkey,
            usage: self.usage,
            domain: self.domain,
            region: PhantomData,
        }
    }

    /// What the other side needs to reach the region: see
    /// [`RemoteRegion::from_descriptor`](super::RemoteRegion::from_descriptor) for the bytes.
    ///
    /// Whoever has them can use the region as far as its usage goes; they are not encrypted.
    #[doc(alias = "rpma_mr_get_descriptor")]
    pub fn descriptor(&self) -> [u8; Self::DESCRIPTOR_SIZE] {
        let registration = self.pinned.registration();
        Descriptor {
            addr: registration.iova(),
            len: self.len() as u64,
            rkey: registration.rkey().0,
            usage: self.usage,
        }
        .encode()
    }

    /// Ends the registration and unmaps the memory now.
    ///
    /// A region of a file is best closed after the connections: on some devices (siw) a transfer that
    /// is under way may reach its memory a little later, which is then the file's.
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
            .field("len", &self.len())
            .field("usage", &self.usage)
            .finish_non_exhaustive()
    }
}
