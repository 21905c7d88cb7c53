//! How memory is registered: what is asked for, and what is done without where it is refused.

use cm::verbs::{
    self, AccessFlags, AtomicCapability, Context, DeviceCapFlags, MemoryRegion, OdpFlags,
    OdpTransportFlags, TransportType,
};

use super::Usage;

/// The number that SoftRoCE gives as its vendor's, since it pages on demand.
const SOFTROCE: u32 = 0x00ff_ffff;

/// What a device can do with memory, asked once for each peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registrar {
    transport: TransportType,
    /// What it offers of [`Usage::optional_access`].
    offered: AccessFlags,
    on_demand: bool,
}

impl Registrar {
    pub(crate) fn of(context: &Context) -> Result<Self, verbs::Error> {
        let extended = context.query_extended()?;
        let mut offered = AccessFlags::empty();
        for (capability, access) in [
            (DeviceCapFlags::FLUSH_GLOBAL, AccessFlags::FLUSH_GLOBAL),
            (
                DeviceCapFlags::FLUSH_PERSISTENT,
                AccessFlags::FLUSH_PERSISTENT,
            ),
        ] {
            offered.set(access, extended.capabilities().contains(capability));
        }
        offered.set(
            AccessFlags::REMOTE_ATOMIC,
            extended.plain().atomic_capability() != AtomicCapability::NONE,
        );
        let paging = extended.on_demand_paging();
        Ok(Self {
            transport: context.transport(),
            offered,
            // SoftRoCE (Linux 7.3) puts what it copies at the start of the page, whatever place in it is meant: what is read is
            // wrong, and what is written harms memory beside the region.
            on_demand: extended.plain().vendor_id() != SOFTROCE
                && paging.general.contains(OdpFlags::SUPPORT)
                && paging
                    .rc
                    .contains(OdpTransportFlags::WRITE | OdpTransportFlags::READ),
        })
    }

    /// Whether memory that cannot be pinned can be registered all the same.
    pub(crate) fn pages_on_demand(&self) -> bool {
        self.on_demand
    }

    /// What cannot be done without.
    pub(super) fn needed(&self, usage: Usage) -> AccessFlags {
        usage.access(self.transport)
    }

    /// Registers by `attempt`, first with all that the usage may want, and gives what was granted.
    ///
    /// Memory that file systems do not let anybody pin for long is paged on demand, where the device
    /// can.
    pub(super) fn register(
        &self,
        usage: Usage,
        mut attempt: impl FnMut(AccessFlags) -> Result<MemoryRegion, verbs::Error>,
    ) -> Result<(MemoryRegion, AccessFlags), verbs::Error> {
        // In the order in which they are done without: the first is refused for memory that does not
        // survive a loss of power.
        const OPTIONAL: [AccessFlags; 3] = [
            AccessFlags::FLUSH_PERSISTENT,
            AccessFlags::FLUSH_GLOBAL,
            AccessFlags::REMOTE_ATOMIC,
        ];
        let mut access = self.needed(usage) | (usage.optional_access() & self.offered);
        loop {
            let error = match attempt(access) {
                Ok(region) => return Ok((region, access)),
                Err(error) => error,
            };
            let errno = error.errno();
            if !matches!(errno, Some(libc::EINVAL | libc::EOPNOTSUPP)) {
                return Err(error);
            }
            let unpinnable = errno == Some(libc::EOPNOTSUPP);
            if unpinnable && self.on_demand && !access.contains(AccessFlags::ON_DEMAND) {
                access |= AccessFlags::ON_DEMAND;
            } else if let Some(spare) = OPTIONAL.into_iter().find(|&flag| access.contains(flag)) {
                access.remove(spare);
            } else if unpinnable {
                return Err(error.with_hint(if self.on_demand {
                    "neither can the memory be pinned, nor does the device page it on demand"
                } else {
                    "the file system does not let its pages be pinned, and the device does not page \
                     on demand: use device DAX, hugetlbfs or tmpfs"
                }));
            } else {
                return Err(error);
            }
        }
    }
}
