//! Memory regions: memory that the device may reach, and the keys to it.

mod rereg;
mod special;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rdma_core_sys as sys;

pub use self::rereg::{RegionChange, ReregisterError, ReregisterFailure, UnusableRegion};

use self::special::explain;
use crate::error::{CloseError, Error, ErrorKind, from_pointer, from_return};
use crate::flags::{AccessFlags, open_enum};
use crate::owned::{Destroy, Owned};
use crate::pd::ProtectionDomain;

// SAFETY: ibv_dereg_mr returning 0 ends local and remote access; a failure leaves the region as it was.
unsafe impl Destroy for sys::ibv_mr {
    const VERB: &'static str = "ibv_dereg_mr";

    unsafe fn destroy(object: *mut Self) -> i32 {
        // SAFETY: forwarded to the caller.
        unsafe { sys::ibv_dereg_mr(object) }
    }
}

/// The key by which this side's own requests name a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LocalKey(pub u32);

/// The key by which a peer's requests name a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

open_enum! {
    /// What pages are to be brought in for.
    #[doc(alias = "ibv_advise_mr_advice")]
    Advice(u32) {
        /// Reading.
        PREFETCH = sys::IBV_ADVISE_MR_ADVICE_PREFETCH.0, "prefetch";
        /// Writing.
        PREFETCH_WRITE = sys::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE.0, "prefetch for writing";
        /// Reading, pages that are present only.
        PREFETCH_NO_FAULT = sys::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0, "prefetch of present pages";
    }
}

/// The registration of a range of memory. It does not own the memory.
///
/// # Example
///
/// ```no_run
/// use verbs::{AccessFlags, Error, MemoryRegion, ProtectionDomain};
///
/// # fn example(pd: &ProtectionDomain) -> Result<(), Error> {
/// let memory = Box::leak(vec![0_u8; 4096].into_boxed_slice());
/// let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
/// // SAFETY: leaked memory stays, and nothing refers to it any more.
/// let region = unsafe { MemoryRegion::register(pd, memory.as_mut_ptr(), memory.len(), access)? };
/// println!("peers read at {:#x} with {:?}", region.iova(), region.rkey());
/// # Ok(())
/// # }
/// ```
#[doc(alias = "ibv_mr")]
pub struct MemoryRegion {
    owned: Owned<sys::ibv_mr, ProtectionDomain>,
    iova: u64,
}

impl MemoryRegion {
    /// Registers `len` bytes from `addr` on.
    ///
    /// # Errors
    /// ENOMEM when the locked-memory limit is reached, EFAULT when the range is not mapped (or not
    /// writable, with write access), EINVAL for length 0 or remote write without local write;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for [`AccessFlags::ON_DEMAND`]
    /// where the device cannot.
    ///
    /// # Safety
    /// - The range stays mapped until the region is closed or dropped, and for ever if that fails
    ///   (which only [`close`](Self::close) tells).
    /// - While registered with any write access, no Rust reference to the range exists; with read
    ///   access only, no `&mut`. The device, and with remote access any peer that knows the key,
    ///   may change or read it at any time. With [`AccessFlags::MW_BIND`] memory windows give a
    ///   peer remote access as well: to read, and with local write to change it.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub unsafe fn register(
        pd: &ProtectionDomain,
        addr: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        let raw_pd = pd.raw_checked("ibv_reg_mr")?;
        // SAFETY: the domain is live; the caller answers for the memory.
        let raw = unsafe { sys::ibv_reg_mr(raw_pd, addr.cast(), len, access.bits()) };
        let raw = from_pointer("ibv_reg_mr", raw)
            .map_err(|e| explain(pd, access, e))
            .map_err(|e| e.with_detail(format!("{len} bytes with access {access:?}")))?;
        // SAFETY: the region was just made and needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), pd.clone()) };
        Ok(Self {
            owned,
            iova: addr.expose_provenance() as u64,
        })
    }

    /// Registers `len` bytes from `addr` on, which requests of either side name from `iova` on.
    ///
    /// # Errors
    /// As [`register`](Self::register); [`ErrorKind::InvalidArgument`] when `iova + len` exceeds 64
    /// bits.
    ///
    /// # Safety
    /// As [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub unsafe fn register_at(
        pd: &ProtectionDomain,
        addr: *mut u8,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        let verb = "ibv_reg_mr_iova2";
        let raw_pd = pd.raw_checked(verb)?;
        check_end(verb, iova, len)?;
        // SAFETY: the domain is live; the caller answers for the memory.
        let raw = unsafe { sys::ibv_reg_mr_iova2(raw_pd, addr.cast(), len, iova, access.bits()) };
        let raw = from_pointer(verb, raw)
            .map_err(|e| explain(pd, access, e))
            .map_err(|e| {
                e.with_detail(format!("{len} bytes at {iova:#x} with access {access:?}"))
            })?;
        // SAFETY: the region was just made and needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), pd.clone()) };
        Ok(Self { owned, iova })
    }

    /// Registers `len` bytes of the DMA buffer `fd` from `offset` on, which requests name from
    /// `iova` on. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where library, kernel or device
    /// cannot; EINVAL unless `offset` and `iova` have the same place in their pages.
    ///
    /// # Safety
    /// As [`register`](Self::register), for every mapping of the buffer.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn register_dmabuf(
        pd: &ProtectionDomain,
        fd: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Self, Error> {
        let verb = "ibv_reg_dmabuf_mr";
        let raw_pd = pd.raw_checked(verb)?;
        check_end(verb, iova, len)?;
        let (fd, access) = (fd.as_raw_fd(), access.bits().cast_signed());
        // SAFETY: the domain is live and the descriptor open; the caller answers for the memory.
        let raw = unsafe { sys::ibv_reg_dmabuf_mr(raw_pd, offset, len, iova, fd, access) };
        let raw = from_pointer(verb, raw)
            .map_err(|e| e.with_detail(format!("{len} bytes at {offset:#x} of descriptor {fd}")))?;
        // SAFETY: the region was just made and needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), pd.clone()) };
        Ok(Self { owned, iova })
    }

    /// Asks for the pages of `sges` to be brought in, of regions registered on demand; `wait` until
    /// that is done, otherwise it is a hint.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where library or device cannot.
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(
        pd: &ProtectionDomain,
        sges: &[Sge],
        advice: Advice,
        wait: bool,
    ) -> Result<(), Error> {
        let verb = "ibv_advise_mr";
        let raw_pd = pd.raw_checked(verb)?;
        let list = SgeList::new(sges);
        let flags = if wait {
            sys::IBV_ADVISE_MR_FLAG_FLUSH
        } else {
            0
        };
        let advice = sys::ib_uverbs_advise_mr_advice(advice.raw());
        let count = list.count.cast_unsigned();
        // SAFETY: the domain is live and the list has that many entries; what they name is looked up
        // by key, and only paged in.
        let ret = unsafe { sys::ibv_advise_mr(raw_pd, advice, flags, list.pointer, count) };
        from_return(verb, ret)
    }

    /// The key for this side's requests.
    #[inline]
    pub fn lkey(&self) -> LocalKey {
        // SAFETY: the region is live; the key is written once, at registration.
        LocalKey(unsafe { (*self.owned.raw()).lkey })
    }

    /// The key for a peer's requests; of no use without a remote access flag.
    pub fn rkey(&self) -> RemoteKey {
        // SAFETY: the region is live; the key is written once, at registration.
        RemoteKey(unsafe { (*self.owned.raw()).rkey })
    }

    /// The address registered.
    pub fn addr(&self) -> *mut u8 {
        // SAFETY: the region is live; the field is written once, at registration.
        unsafe { (*self.owned.raw()).addr }.cast()
    }

    /// The address by which requests of either side name the first byte.
    #[inline]
    pub fn iova(&self) -> u64 {
        self.iova
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        // SAFETY: the region is live; the field is written once, at registration.
        unsafe { (*self.owned.raw()).length }
    }

    /// Never true for a region that a device accepted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The domain it is registered in.
    pub fn pd(&self) -> &ProtectionDomain {
        self.owned.parents()
    }

    /// Ends the registration now. After `Ok` the device no longer reaches the memory, even for
    /// requests that are still queued.
    ///
    /// # Errors
    /// EBUSY or EINVAL while a memory window is bound to the region; the memory must then stay.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn close(self) -> Result<(), CloseError<Self>> {
        let Self { owned, iova } = self;
        owned.close().map_err(|(error, owned)| CloseError {
            error,
            handle: Self { owned, iova },
        })
    }

    /// Takes over a registration that other code has made, whose first byte requests name by `iova`:
    /// its address, unless another was chosen.
    ///
    /// # Safety
    /// - `raw` is a live region of `pd` that nobody else deregisters, and nobody else changes by
    ///   `ibv_rereg_mr`.
    /// - Its memory, as [`register`](Self::register) says. What else it was made of (device memory,
    ///   a buffer of the library) outlives it.
    pub unsafe fn from_raw(raw: NonNull<sys::ibv_mr>, pd: &ProtectionDomain, iova: u64) -> Self {
        // SAFETY: the caller gives the region over; it needs its domain, which is its parent.
        let owned = unsafe { Owned::new(raw, pd.context().origin(), pd.clone()) };
        Self { owned, iova }
    }

    /// The C region, for calls that this crate does not have. It must not be deregistered.
    pub fn as_raw(&self) -> *mut sys::ibv_mr {
        self.owned.raw()
    }
}

/// Refuses addresses that go on from 0 past the last one, which kernels take.
fn check_end(verb: &'static str, iova: u64, len: usize) -> Result<(), Error> {
    if iova.checked_add(len as u64).is_some() {
        return Ok(());
    }
    Err(Error::refused(
        verb,
        ErrorKind::InvalidArgument,
        format!("{len} bytes at {iova:#x} do not end within 64 bits"),
    ))
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion")
            .field("addr", &self.addr())
            .field("len", &self.len())
            .field("lkey", &self.lkey())
            .field("rkey", &self.rkey())
            .finish()
    }
}

/// One piece of local memory of a request: `ibv_sge`, field for field.
#[doc(alias = "ibv_sge")]
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Sge(sys::ibv_sge);

impl Sge {
    /// `len` bytes at the address `addr`, named by `key`.
    pub const fn new(addr: u64, len: u32, key: LocalKey) -> Self {
        Self(sys::ibv_sge {
            addr,
            length: len,
            lkey: key.0,
        })
    }

    /// The C struct.
    #[inline]
    pub(crate) const fn as_raw(&self) -> &sys::ibv_sge {
        &self.0
    }

    /// The length in bytes.
    pub const fn len(&self) -> u32 {
        self.0.length
    }

    /// Whether it names no byte.
    pub const fn is_empty(&self) -> bool {
        self.0.length == 0
    }
}

impl fmt::Debug for Sge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sge")
            .field("addr", &format_args!("{:#x}", self.0.addr))
            .field("len", &self.0.length)
            .field("lkey", &self.0.lkey)
            .finish()
    }
}

/// A place in a peer's memory: its address there, and its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// The address in the peer's address space.
    pub addr: u64,
    /// The peer's key.
    pub rkey: RemoteKey,
}

/// A list of SGEs borrowed by a request, as C takes it.
#[derive(Clone, Copy)]
pub(crate) struct SgeList<'a> {
    pub(crate) pointer: *mut sys::ibv_sge,
    pub(crate) count: i32,
    list: PhantomData<&'a [Sge]>,
}

impl<'a> SgeList<'a> {
    #[inline]
    pub(crate) fn new(sges: &'a [Sge]) -> Self {
        Self {
            // C takes `*mut` and only reads.
            pointer: sges.as_ptr().cast::<sys::ibv_sge>().cast_mut(),
            // A count past i32 exceeds every device's limit, and is refused by it when posting.
            count: i32::try_from(sges.len()).unwrap_or(i32::MAX),
            list: PhantomData,
        }
    }
}
