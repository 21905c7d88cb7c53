//! Room in a completion queue: how many entries it has, and how many are promised.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::inner::CqInner;
use crate::error::{Error, ErrorKind};

/// The size of a completion queue and what of it is promised, changed together in one word.
///
/// The size in the C struct is written by a resize without a lock, so this is a record of our own.
pub(crate) struct Room {
    /// Entries in the upper half, promised ones in the lower.
    word: AtomicU64,
    allow_overrun: bool,
}

const fn pack(entries: u32, promised: u32) -> u64 {
    ((entries as u64) << 32) | promised as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of the word")]
const fn unpack(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl Room {
    pub(super) fn new(entries: u32, allow_overrun: bool) -> Self {
        Self {
            word: AtomicU64::new(pack(entries, 0)),
            allow_overrun,
        }
    }

    pub(crate) fn entries(&self) -> u32 {
        unpack(self.word.load(Ordering::Acquire)).0
    }

    /// Entries that nobody was promised.
    pub(crate) fn spare(&self) -> u32 {
        let (entries, promised) = unpack(self.word.load(Ordering::Acquire));
        entries.saturating_sub(promised)
    }

    /// Promises `wanted` entries.
    fn reserve(&self, verb: &'static str, wanted: u32) -> Result<(), Error> {
        let fits = |word| {
            let (entries, promised) = unpack(word);
            let sum = promised.checked_add(wanted)?;
            (sum <= entries || self.allow_overrun).then(|| pack(entries, sum))
        };
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .map(|_| ())
            .map_err(|word| {
                let (entries, promised) = unpack(word);
                Error::refused(
                    verb,
                    ErrorKind::Limit,
                    format!(
                        "the completion queue has {entries} entries, {promised} of them promised; \
                         {} are needed for a queue with {wanted} more requests",
                        u64::from(promised) + u64::from(wanted)
                    ),
                )
                .with_hint("make the completion queue larger, or allow overrun explicitly")
            })
    }

    /// Changes the size to `entries`, if what is promised fits.
    pub(super) fn resize(&self, entries: u32) -> Result<(), Error> {
        let fits = |word| {
            let (_, promised) = unpack(word);
            (promised <= entries || self.allow_overrun).then(|| pack(entries, promised))
        };
        self.word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits)
            .map(|_| ())
            .map_err(|word| {
                Error::refused(
                    "ibv_resize_cq",
                    ErrorKind::Limit,
                    format!(
                        "{entries} entries asked, {} are promised to queue pairs",
                        unpack(word).1
                    ),
                )
            })
    }

    fn release(&self, entries: u32) {
        // The promised half was raised by as much before, so this does not borrow from the other.
        self.word.fetch_sub(u64::from(entries), Ordering::AcqRel);
    }
}

/// Entries of a completion queue that are promised to a queue, given back on drop.
pub(crate) struct CqRoom {
    cq: Arc<CqInner>,
    entries: u32,
}

impl CqRoom {
    pub(crate) fn reserve(
        verb: &'static str,
        cq: &Arc<CqInner>,
        entries: u32,
    ) -> Result<Self, Error> {
        cq.room.reserve(verb, entries)?;
        Ok(Self {
            cq: Arc::clone(cq),
            entries,
        })
    }

    /// Promises more, as many as the device has `granted` requests.
    pub(crate) fn grow(&mut self, verb: &'static str, granted: u32) -> Result<(), Error> {
        let Some(more) = granted.checked_sub(self.entries).filter(|&more| more > 0) else {
            return Ok(());
        };
        self.cq.room.reserve(verb, more).map_err(|error| {
            error.with_hint(format!(
                "the device made a queue of {granted} requests where {} were asked: make the \
                 completion queue larger, or allow overrun explicitly",
                self.entries
            ))
        })?;
        self.entries = granted;
        Ok(())
    }
}

impl Drop for CqRoom {
    fn drop(&mut self) {
        self.cq.room.release(self.entries);
    }
}

impl fmt::Debug for CqRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqRoom({} of {:p})", self.entries, self.cq.raw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_promised_than_there_is() {
        let room = Room::new(10, false);
        room.reserve("test", 6).expect("room");
        let error = room.reserve("test", 5).expect_err("only four are left");
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(
            error.to_string().contains("10 entries, 6 of them promised"),
            "{error}"
        );
        room.release(6);
        room.reserve("test", 10).expect("all are free again");
        assert_eq!(room.entries(), 10);
    }

    #[test]
    fn a_queue_does_not_shrink_below_what_is_promised() {
        let room = Room::new(10, false);
        room.reserve("test", 6).expect("room");
        let error = room.resize(5).expect_err("six are promised");
        assert_eq!((error.kind(), room.entries()), (ErrorKind::Limit, 10));
        room.resize(6).expect("just enough");
        room.reserve("test", 1).expect_err("full");
        room.resize(7).expect("larger");
        room.reserve("test", 1).expect("one more");
        assert_eq!(room.entries(), 7);
    }

    #[test]
    fn an_overrun_that_is_allowed_is_counted_all_the_same() {
        let room = Room::new(1, true);
        room.reserve("test", 50).expect("allowed");
        room.reserve("test", u32::MAX)
            .expect_err("the count would overflow");
        room.release(50);
        assert_eq!(room.entries(), 1);
    }
}
