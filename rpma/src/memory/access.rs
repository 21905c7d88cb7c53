//! How this side's processor reaches the bytes of a region.

use super::copy;
use super::local::LocalRegion;
use super::mapping::Rights;
use crate::error::Error;

impl LocalRegion {
    /// Copies `bytes` into the region from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::ReadOnly`] for memory that this side may not change,
    /// [`Error::Invalid`] for memory that is not mapped, or
    /// [`ErrorKind::Forked`](crate::ErrorKind::Forked) in a child of the process that made the
    /// region; nothing is copied then.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        let at = self.writable("store", offset, bytes.len())?;
        // SAFETY: the range was just checked to lie in memory that is writable, and to which no
        // reference exists.
        unsafe { copy::store(at, bytes) };
        Ok(())
    }

    /// Copies bytes from `offset` on out of the region, filling `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], [`Error::Invalid`] or `Forked`, as [`store`](Self::store).
    pub fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        match self.readable("load", offset, bytes.len())? {
            // SAFETY: the range was just checked to lie in memory of which the maker of the region
            // said that nobody changes it.
            (at, Rights::Borrowed) => unsafe { copy::load_unchanged(at, bytes) },
            // SAFETY: the range was just checked to lie in our mapping, to which no reference exists.
            (at, _) => unsafe { copy::load(at, bytes) },
        }
        Ok(())
    }

    /// Sets every byte to `byte`.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn fill(&self, byte: u8) -> Result<(), Error> {
        let at = self.writable("fill", 0, self.len())?;
        // SAFETY: all of the region, which is writable, and to which no reference exists.
        unsafe { copy::fill(at, byte, self.len()) };
        Ok(())
    }

    /// Stores 8 bytes at `offset`, which with the region's address must be a multiple of 8, after all
    /// that this thread has stored before: what a peer sees of them is old or new as a whole (on
    /// x86-64 and aarch64; byte by byte elsewhere).
    ///
    /// They are in this machine's byte order, as those of a peer's atomic write are in the peer's:
    /// agree on one with [`u64::to_le`].
    ///
    /// # Errors
    /// As [`store`](Self::store), and [`Error::Invalid`] for another offset.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        let at = self.writable("store_u64", offset, 8)?;
        aligned("store_u64", offset, at)?;
        // SAFETY: the place was just checked to be a multiple of 8 in memory that is writable, and to
        // which no reference exists.
        unsafe { copy::store_u64(at, value) };
        Ok(())
    }

    /// Loads 8 bytes from `offset`, which with the region's address must be a multiple of 8, before
    /// all that this thread loads afterwards: so what a peer wrote before is there. As
    /// [`store_u64`](Self::store_u64) it gives an old value or a new one, never half of either.
    ///
    /// # Errors
    /// As [`load`](Self::load), and [`Error::Invalid`] for another offset.
    ///
    /// # Example
    ///
    /// Waiting for a peer's atomic write:
    ///
    /// ```no_run
    /// # fn wait(region: &rpma::LocalRegion) -> Result<(), rpma::Error> {
    /// while u64::from_le(region.load_u64(0)?) != 1 {
    ///     std::hint::spin_loop();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn load_u64(&self, offset: usize) -> Result<u64, Error> {
        let (at, rights) = self.readable("load_u64", offset, 8)?;
        aligned("load_u64", offset, at)?;
        if rights == Rights::Borrowed {
            let mut bytes = [0; 8];
            // SAFETY: checked to lie in memory of which the maker of the region said that nobody
            // changes it.
            unsafe { copy::load_unchanged(at, &mut bytes) };
            return Ok(u64::from_ne_bytes(bytes));
        }
        // SAFETY: the place was just checked to be a multiple of 8 in our mapping, to which no
        // reference exists.
        Ok(unsafe { copy::load_u64(at) })
    }

    fn writable(
        &self,
        operation: &'static str,
        offset: usize,
        len: usize,
    ) -> Result<*mut u8, Error> {
        match self.readable(operation, offset, len)? {
            (at, Rights::ReadWrite) => Ok(at),
            _ => Err(Error::ReadOnly { operation }),
        }
    }

    fn readable(
        &self,
        operation: &'static str,
        offset: usize,
        len: usize,
    ) -> Result<(*mut u8, Rights), Error> {
        self.pinned().check_process(operation)?;
        let rights = self.pinned().mapping().rights();
        if rights == Rights::Unmapped {
            return Err(Error::Invalid(format!(
                "{operation}: the region is a DMA buffer, whose bytes are not mapped here"
            )));
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok((self.as_ptr().wrapping_add(offset), rights)),
            _ => Err(Error::OutOfBounds {
                what: "local region",
                offset: offset as u64,
                len: len as u64,
                size: self.len() as u64,
            }),
        }
    }
}

fn aligned(operation: &'static str, offset: usize, at: *mut u8) -> Result<(), Error> {
    if at.addr().is_multiple_of(8) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "{operation} at offset {offset}: the address {at:p} is no multiple of 8"
    )))
}
