//! What can go wrong, in one type.

use std::io;

use cm::verbs::{self, PostError, PostErrorKind};

use crate::memory::Usage;

/// An error of this crate.
///
/// `Display` gives one sentence without a line break, [`hint`](Self::hint) what to try,
/// [`kind`](Self::kind) what to decide on, and [`code`](Self::code) librpma's number.
#[doc(alias = "rpma_err_2str")]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Connection management failed.
    #[error(transparent)]
    Cm(#[from] cm::Error),
    /// A call of libibverbs failed.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// An operation was not posted.
    #[error(transparent)]
    Post(PostError),
    /// The queue has no free slot: poll completions, then post again.
    #[error("the queue is full: {reason}")]
    QueueFull {
        /// Which rule or answer says so.
        reason: &'static str,
    },
    /// A range does not lie in its region.
    #[error("bytes {offset} to {offset}+{len} are outside the {what}, which has {size} bytes")]
    OutOfBounds {
        /// Which region.
        what: &'static str,
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// The two ends of a transfer differ in length.
    #[error("the destination has {dst} bytes, the source {src}: they must be equal")]
    LengthMismatch {
        /// Bytes of the destination.
        dst: u64,
        /// Bytes of the source.
        src: u64,
    },
    /// An operation moves more than the device can in one message.
    #[error("{len} bytes in one operation, the device moves at most {max}")]
    MessageTooLong {
        /// Bytes asked for.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// A region of one peer was used on a connection of another.
    #[error("the local region was registered with another peer than the connection's")]
    WrongPeer,
    /// A region was registered for other operations.
    #[error("{operation} needs a {side} region with usage {needed:?}, this one has {given:?}")]
    UsageForbids {
        /// The operation.
        operation: &'static str,
        /// `local` or `remote`.
        side: &'static str,
        /// What the region would need, one of these.
        needed: Usage,
        /// What it was registered with.
        given: Usage,
    },
    /// An operation on 8 bytes that are changed as one got other bytes.
    #[error("{operation} works on 8 bytes at a multiple of 8, not on {len} at {addr:#x}")]
    NotOneWord {
        /// The operation.
        operation: &'static str,
        /// The address at the peer.
        addr: u64,
        /// Bytes of the range there.
        len: u64,
    },
    /// An operation has more spans than the connection was made for.
    #[error("{given} spans in one operation, the connection was made for {max}")]
    TooManySpans {
        /// Spans given.
        given: usize,
        /// Spans allowed.
        max: usize,
    },
    /// A batch was cut off.
    #[error("the first {queued} of {of} operations are in the queue, or may be: {error}")]
    PartlyPosted {
        /// How many of the first ones were posted, or, if the error is no full queue, may have been.
        queued: usize,
        /// How many there are.
        of: usize,
        /// Why not all of them.
        error: PostError,
    },
    /// The peer, or the region, does not offer the operation.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// What.
        what: &'static str,
        /// Why.
        why: &'static str,
    },
    /// A wait on one queue whose completion channel reports for others as well.
    #[error("the completion queue shares its channel: wait on the channel or on the connection")]
    SharedChannel,
    /// A wait for several queues that have no channel in common.
    #[error("the queues of the connection share no completion channel: wait on each of them")]
    NotSharedChannel,
    /// A connection served by a dispatcher has no descriptor for its events.
    #[error("the connection's events come by a dispatcher, which has no descriptor for each")]
    NoEventDescriptor,
    /// An argument can never be right.
    #[error("{0}")]
    Invalid(String),
    /// Memory for a region could not be mapped.
    #[error("cannot map {len} bytes of memory: {source}")]
    Memory {
        /// Bytes asked for.
        len: usize,
        /// The system's answer.
        source: io::Error,
    },
    /// Huge pages for a region could not be mapped.
    #[error(
        "cannot map {len} bytes in huge pages of {page} bytes, {}: {source}",
        .free.map_or("which this machine does not have".to_owned(), |free| format!("of which {free} are free"))
    )]
    HugePages {
        /// Bytes asked for.
        len: usize,
        /// Bytes of one page.
        page: usize,
        /// How many are reserved and free; `None` where the machine has none of this length.
        free: Option<u64>,
        /// The system's answer.
        source: io::Error,
    },
    /// A file could not be mapped.
    #[error("cannot map bytes {offset} to {offset}+{len} of the file: {source}")]
    MapFile {
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// A region's memory may not be changed by this side.
    #[error("{operation} would change memory that this side may only read")]
    ReadOnly {
        /// The operation.
        operation: &'static str,
    },
    /// What is in a region could not be made to survive a loss of power.
    #[error("bytes {offset} to {offset}+{len} were not persisted: {source}")]
    Persist {
        /// First byte asked for.
        offset: u64,
        /// Number of bytes asked for.
        len: u64,
        /// The system's answer.
        source: io::Error,
    },
}

/// What kind of failure an [`Error`] is, for code that has to decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no RDMA device, or its kernel module is not loaded.
    NoDevice,
    /// No RDMA device has, or leads to, the address.
    NoSuchAddress,
    /// The port of the device is not active.
    PortDown,
    /// Another listener has the port.
    AddressInUse,
    /// The system does not permit it to this user.
    PermissionDenied,
    /// Nobody listens at the address.
    NoListener,
    /// The peer refused.
    Rejected,
    /// The peer's machine does not answer.
    Unreachable,
    /// The connection does not stand yet.
    NotConnected,
    /// The connection has ended.
    Disconnected,
    /// The device was removed.
    DeviceRemoved,
    /// The time was up.
    TimedOut,
    /// The queue has no free slot.
    QueueFull,
    /// More bytes than the device moves in one message.
    MessageTooLong,
    /// Memory, or the permission to pin it, ran out.
    OutOfMemory,
    /// An argument can never be right.
    InvalidArgument,
    /// Device or peer do not offer it.
    Unsupported,
    /// This is a forked child of the process that made the object.
    Forked,
    /// The provider or the kernel refused for another reason.
    Provider,
}

impl Error {
    /// What kind of failure this is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Cm(error) => cm_kind(error),
            Self::Verbs(error) => verbs_kind(error),
            Self::Post(error) | Self::PartlyPosted { error, .. } => post_kind(error.kind),
            Self::QueueFull { .. } => ErrorKind::QueueFull,
            Self::MessageTooLong { .. } => ErrorKind::MessageTooLong,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::Memory { .. } | Self::HugePages { .. } => ErrorKind::OutOfMemory,
            Self::MapFile { source, .. } | Self::Persist { source, .. } => system_kind(source),
            Self::ReadOnly { .. }
            | Self::OutOfBounds { .. }
            | Self::LengthMismatch { .. }
            | Self::WrongPeer
            | Self::UsageForbids { .. }
            | Self::NotOneWord { .. }
            | Self::TooManySpans { .. }
            | Self::SharedChannel
            | Self::NotSharedChannel
            | Self::NoEventDescriptor
            | Self::Invalid(_) => ErrorKind::InvalidArgument,
        }
    }

    /// What to try, where that is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Cm(error) => error.hint(),
            Self::Verbs(error) => error.hint().map(str::to_owned),
            Self::Post(error) if matches!(error.kind, PostErrorKind::State(_)) => {
                Some("wait until the connection is established, then post".to_owned())
            }
            Self::Post(error) if matches!(error.kind, PostErrorKind::InlineTooLong { .. }) => Some(
                "raise it with ConnectionConfig::set_max_inline, or take the bytes from a region"
                    .to_owned(),
            ),
            Self::Post(error) if error.kind == PostErrorKind::SharedReceives => {
                Some("post receives to the connection's SharedReceiveQueue".to_owned())
            }
            Self::TooManySpans { .. } => {
                Some("raise it with ConnectionConfig::set_max_spans".to_owned())
            }
            Self::QueueFull { .. } => Some(
                "poll completions of operations with Signal::Always, then post again".to_owned(),
            ),
            Self::HugePages { page, free, .. } => Some(match free {
                Some(_) => format!(
                    "reserve more in /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages",
                    page >> 10
                ),
                None => "use one of the lengths in /sys/kernel/mm/hugepages".to_owned(),
            }),
            Self::MapFile { source, .. } if source.raw_os_error() == Some(libc::EACCES) => {
                Some("open the file for reading and writing, or use map_file_read_only".to_owned())
            }
            Self::MessageTooLong { max, .. } => {
                Some(format!("split it into operations of at most {max} bytes"))
            }
            _ => None,
        }
    }

    /// The (positive) errno of the system, where a call of the C libraries or of the kernel failed with one. librpma keeps none.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Cm(error) => cm_errno(error),
            Self::Verbs(error) => error.errno(),
            Self::Post(error) | Self::PartlyPosted { error, .. } => match error.kind {
                PostErrorKind::Provider(errno) => Some(errno),
                _ => None,
            },
            Self::Memory { source, .. }
            | Self::HugePages { source, .. }
            | Self::MapFile { source, .. }
            | Self::Persist { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// The number that librpma gives for this kind of failure, -100000 to -100009.
    #[doc(alias = "RPMA_E_PROVIDER")]
    pub fn code(&self) -> i32 {
        const NOSUPP: i32 = -100_001;
        const PROVIDER: i32 = -100_002;
        const NOMEM: i32 = -100_003;
        const INVAL: i32 = -100_004;
        const NO_COMPLETION: i32 = -100_005;
        const NO_EVENT: i32 = -100_006;
        const AGAIN: i32 = -100_007;
        const SHARED_CHANNEL: i32 = -100_008;
        const NOT_SHARED_CHNL: i32 = -100_009;
        match self {
            Self::SharedChannel => return SHARED_CHANNEL,
            Self::NotSharedChannel => return NOT_SHARED_CHNL,
            Self::Verbs(error) => match error.kind() {
                // With an errno it is a call that timed out, and no wait for a completion.
                verbs::ErrorKind::TimedOut if error.errno().is_none() => return NO_COMPLETION,
                verbs::ErrorKind::SharedChannel => return SHARED_CHANNEL,
                _ => {}
            },
            _ => {}
        }
        match self.kind() {
            ErrorKind::Unsupported => NOSUPP,
            ErrorKind::OutOfMemory => NOMEM,
            ErrorKind::InvalidArgument | ErrorKind::MessageTooLong => INVAL,
            ErrorKind::TimedOut => NO_EVENT,
            ErrorKind::QueueFull => AGAIN,
            _ => PROVIDER,
        }
    }
}

fn post_kind(kind: PostErrorKind) -> ErrorKind {
    match kind {
        PostErrorKind::QueueFull => ErrorKind::QueueFull,
        PostErrorKind::Forked => ErrorKind::Forked,
        PostErrorKind::Unsupported(_) => ErrorKind::Unsupported,
        PostErrorKind::Provider(_) => ErrorKind::Provider,
        // Only states before the connection stands are refused.
        PostErrorKind::State(_) => ErrorKind::NotConnected,
        _ => ErrorKind::InvalidArgument,
    }
}

fn system_kind(error: &io::Error) -> ErrorKind {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => ErrorKind::OutOfMemory,
        Some(libc::EACCES | libc::EPERM) => ErrorKind::PermissionDenied,
        Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENODEV) => ErrorKind::Unsupported,
        _ => ErrorKind::Provider,
    }
}

fn cm_kind(error: &cm::Error) -> ErrorKind {
    match error {
        cm::Error::Call(error) => verbs_kind(error),
        cm::Error::NoConnectionManager { errno, .. } => match *errno {
            libc::EACCES | libc::EPERM => ErrorKind::PermissionDenied,
            libc::ENOENT | libc::ENXIO | libc::ENODEV => ErrorKind::NoDevice,
            _ => ErrorKind::Provider,
        },
        cm::Error::AddressNotResolved { .. }
        | cm::Error::RouteNotResolved { .. }
        | cm::Error::NameNotResolved { .. }
        | cm::Error::NoSuchAddress { .. } => ErrorKind::NoSuchAddress,
        cm::Error::NoListener { .. } => ErrorKind::NoListener,
        cm::Error::Rejected { .. } => ErrorKind::Rejected,
        cm::Error::Unreachable { .. } => ErrorKind::Unreachable,
        cm::Error::Disconnected { .. }
        | cm::Error::GaveUp { .. }
        | cm::Error::ConnectFailed { .. } => ErrorKind::Disconnected,
        cm::Error::DeviceRemoved { .. } => ErrorKind::DeviceRemoved,
        cm::Error::TimedOut { .. } => ErrorKind::TimedOut,
        cm::Error::PrivateDataTooLong { .. } => ErrorKind::InvalidArgument,
        _ => ErrorKind::Provider,
    }
}

fn cm_errno(error: &cm::Error) -> Option<i32> {
    match error {
        cm::Error::Call(error) | cm::Error::GaveUp { call: error, .. } => error.errno(),
        cm::Error::NoConnectionManager { errno, .. }
        | cm::Error::AddressNotResolved { errno, .. }
        | cm::Error::RouteNotResolved { errno, .. } => Some(*errno),
        // A positive status is a code of the transport.
        cm::Error::Unreachable { status, .. } | cm::Error::ConnectFailed { status, .. } => {
            (*status < 0).then(|| status.saturating_neg())
        }
        _ => None,
    }
}

fn verbs_kind(error: &verbs::Error) -> ErrorKind {
    match (error.kind(), error.errno()) {
        (verbs::ErrorKind::NoDevice, _) => ErrorKind::NoDevice,
        (verbs::ErrorKind::PortDown, _) => ErrorKind::PortDown,
        (verbs::ErrorKind::Limit, _) => ErrorKind::InvalidArgument,
        (verbs::ErrorKind::InvalidArgument | verbs::ErrorKind::SharedChannel, _) => {
            ErrorKind::InvalidArgument
        }
        (verbs::ErrorKind::QueueFull, _) => ErrorKind::QueueFull,
        (verbs::ErrorKind::Unsupported, _) => ErrorKind::Unsupported,
        (verbs::ErrorKind::Forked, _) => ErrorKind::Forked,
        (verbs::ErrorKind::TimedOut, _) => ErrorKind::TimedOut,
        (_, Some(libc::ENOMEM)) => ErrorKind::OutOfMemory,
        (_, Some(libc::EADDRINUSE | libc::EADDRNOTAVAIL)) => ErrorKind::AddressInUse,
        (_, Some(libc::EACCES | libc::EPERM)) => ErrorKind::PermissionDenied,
        (_, Some(libc::ENODEV)) => ErrorKind::NoDevice,
        _ => ErrorKind::Provider,
    }
}

impl From<PostError> for Error {
    #[inline]
    fn from(error: PostError) -> Self {
        match error.kind {
            PostErrorKind::QueueFull => Self::QueueFull {
                reason: "the device has no free slot",
            },
            _ => Self::Post(error),
        }
    }
}

#[cfg(test)]
mod tests;
