//! What a region may be used for.

use bitflags::bitflags;
use cm::verbs::{AccessFlags, TransportType};

bitflags! {
    /// What a region may be used for, as librpma numbers it. Sent to the peer in the descriptor.
    #[doc(alias = "RPMA_MR_USAGE_READ_SRC")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Usage: u8 {
        /// The peer may read from it.
        const READ_SRC = 0x01;
        /// Reads from the peer may arrive in it.
        const READ_DST = 0x02;
        /// Writes to the peer may be taken from it.
        const WRITE_SRC = 0x04;
        /// The peer may write to it.
        const WRITE_DST = 0x08;
        /// The peer may flush its writes to where every reader sees them.
        const FLUSH_VISIBILITY = 0x10;
        /// The peer may flush its writes to where they survive a loss of power.
        const FLUSH_PERSISTENT = 0x20;
        /// Messages may be sent from it.
        const SEND = 0x40;
        /// Messages may be received into it.
        const RECV = 0x80;
    }
}

impl Usage {
    /// Either kind of flush.
    pub const FLUSH: Self = Self::FLUSH_VISIBILITY.union(Self::FLUSH_PERSISTENT);

    /// The access that the device must grant.
    ///
    /// Flushing is done by reading, so it grants remote reads, as C peers of any version expect.
    /// Taking a write from memory needs no right to change it.
    pub(crate) fn access(self, transport: TransportType) -> AccessFlags {
        let mut access = AccessFlags::empty();
        if self.intersects(Self::READ_SRC.union(Self::FLUSH)) {
            access |= AccessFlags::REMOTE_READ;
        }
        if self.intersects(Self::READ_DST.union(Self::RECV)) {
            access |= AccessFlags::LOCAL_WRITE;
        }
        // On iWARP the answer to a read is a remote write.
        if self.contains(Self::READ_DST) && transport == TransportType::IWARP {
            access |= AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
        }
        if self.contains(Self::WRITE_DST) {
            access |= AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE;
        }
        access
    }

    /// The access that is asked for where the device offers it, and done without where the
    /// registration then fails.
    ///
    /// Flushes that the device does by itself, and atomics: they give back the old value, and put a
    /// new one there.
    pub(crate) fn optional_access(self) -> AccessFlags {
        let mut access = AccessFlags::empty();
        if self.contains(Self::FLUSH_VISIBILITY) {
            access |= AccessFlags::FLUSH_GLOBAL;
        }
        if self.contains(Self::FLUSH_PERSISTENT) {
            access |= AccessFlags::FLUSH_PERSISTENT;
        }
        if self.contains(Self::READ_SRC.union(Self::WRITE_DST)) {
            access |= AccessFlags::REMOTE_ATOMIC;
        }
        access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usage_grants_just_what_it_needs() {
        let (local, write, read) = (
            AccessFlags::LOCAL_WRITE,
            AccessFlags::REMOTE_WRITE,
            AccessFlags::REMOTE_READ,
        );
        let none = AccessFlags::empty();
        for (usage, ib, iwarp) in [
            (Usage::READ_SRC, read, read),
            (Usage::READ_DST, local, local | write),
            (Usage::WRITE_SRC, none, none),
            (Usage::WRITE_DST, local | write, local | write),
            (Usage::FLUSH_VISIBILITY, read, read),
            (Usage::FLUSH_PERSISTENT, read, read),
            (Usage::SEND, none, none),
            (Usage::RECV, local, local),
        ] {
            assert_eq!(usage.access(TransportType::INFINIBAND), ib, "{usage:?}");
            assert_eq!(usage.access(TransportType::IWARP), iwarp, "{usage:?}");
        }
    }

    #[test]
    fn what_only_some_devices_grant_is_asked_for_by_its_usage() {
        let both = Usage::READ_SRC | Usage::WRITE_DST;
        for (usage, expected) in [
            (Usage::FLUSH_VISIBILITY, AccessFlags::FLUSH_GLOBAL),
            (Usage::FLUSH_PERSISTENT, AccessFlags::FLUSH_PERSISTENT),
            (both, AccessFlags::REMOTE_ATOMIC),
            (
                both.complement().difference(Usage::FLUSH),
                AccessFlags::empty(),
            ),
            (Usage::READ_SRC, AccessFlags::empty()),
            (Usage::WRITE_DST, AccessFlags::empty()),
        ] {
            assert_eq!(usage.optional_access(), expected, "{usage:?}");
        }
    }

    #[test]
    fn the_bits_are_those_on_the_wire() {
        assert_eq!(Usage::all().bits(), 0xff);
        assert_eq!(
            (Usage::READ_SRC | Usage::WRITE_DST | Usage::FLUSH).bits(),
            0x39
        );
    }
}
