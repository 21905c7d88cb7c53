//! Open bit sets: bits that this version does not name are kept, never lost.

use bitflags::bitflags;
use rdma_core_sys as sys;

bitflags! {
    /// What local and remote sides may do with registered memory.
    #[doc(alias = "ibv_access_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write into the memory (receives, read results).
        const LOCAL_WRITE = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
        /// A peer that knows the rkey may write. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        /// A peer that knows the rkey may read.
        const REMOTE_READ = sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        /// A peer that knows the rkey may use atomics. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC.0;
        /// Memory windows may be bound to the region.
        const MW_BIND = sys::ibv_access_flags::IBV_ACCESS_MW_BIND.0;
        /// A peer may flush the memory to where all of this side sees it.
        const FLUSH_GLOBAL = sys::ibv_access_flags::IBV_ACCESS_FLUSH_GLOBAL.0;
        /// A peer may flush the memory to where it is safe from a loss of power: persistent memory
        /// only.
        const FLUSH_PERSISTENT = sys::ibv_access_flags::IBV_ACCESS_FLUSH_PERSISTENT.0;
        /// Remote addresses count from the start of the region.
        const ZERO_BASED = sys::ibv_access_flags::IBV_ACCESS_ZERO_BASED.0;
        /// Pages are brought in when the device needs them, instead of pinned.
        const ON_DEMAND = sys::ibv_access_flags::IBV_ACCESS_ON_DEMAND.0;
        /// The memory is of huge pages (on demand only).
        const HUGETLB = sys::ibv_access_flags::IBV_ACCESS_HUGETLB.0;
        /// The device may reorder its accesses; left out where it does not know this.
        const RELAXED_ORDERING = sys::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
        const _ = !0;
    }
}

bitflags! {
    /// Modifiers of one send request.
    #[doc(alias = "ibv_send_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Start only after all earlier reads and atomics of this queue are done.
        const FENCE = sys::ibv_send_flags::IBV_SEND_FENCE.0;
        /// Give a completion on success, too.
        const SIGNALED = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        /// Wake a peer that waits for solicited completions.
        const SOLICITED = sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
        /// Copy the data while posting; the memory needs no registration.
        const INLINE = sys::ibv_send_flags::IBV_SEND_INLINE.0;
        const _ = !0;
    }
}

bitflags! {
    /// Which fields of a completion are valid.
    #[doc(alias = "ibv_wc_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer hold a GRH (UD).
        const GRH = sys::ibv_wc_flags::IBV_WC_GRH.0;
        /// Immediate data came with the message.
        const WITH_IMM = sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
        /// The message invalidated one of our rkeys.
        const WITH_INV = sys::ibv_wc_flags::IBV_WC_WITH_INV.0;
        const _ = !0;
    }
}

/// Defines a newtype over a C enum: known values have names, unknown ones stay what they are.
///
/// Used by the crates of this workspace only; not part of the public interface.
#[doc(hidden)]
#[macro_export]
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident($repr:ty) { $($(#[$vmeta:meta])* $value:ident = $raw:expr, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name($repr);

        impl $name {
            $($(#[$vmeta])* pub const $value: Self = Self($raw);)*

            /// The value as C has it, known to this version or not.
            pub const fn from_raw(raw: $repr) -> Self {
                Self(raw)
            }

            /// The number as C has it.
            pub const fn raw(self) -> $repr {
                self.0
            }

            /// The name in words, if this version knows the value.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name().unwrap_or("unknown value"))?;
                write!(f, " ({})", self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({}"), self.0)?;
                if let Some(name) = self.name() {
                    write!(f, ", {name}")?;
                }
                f.write_str(")")
            }
        }
    };
}
pub(crate) use crate::open_enum;
