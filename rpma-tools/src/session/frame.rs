//! The header of every frame, and a reader that cannot run over the end.

/// The version of the session that this build speaks.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"RPNG";
const HEADER: usize = 10;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Hello,
    Welcome,
    Refusal,
    Control,
}

impl Kind {
    const fn code(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Welcome => 2,
            Self::Refusal => 3,
            Self::Control => 4,
        }
    }
}

/// Why bytes of a peer are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// They do not begin with the magic: the other end is no rpma-ping.
    #[error("the other end does not speak rpma-ping's protocol")]
    Foreign,
    /// They are of another version.
    #[error("the other end speaks version {0} of the protocol and this one version {VERSION}")]
    Version(u16),
    /// They are of another kind than is due now.
    #[error("a frame of kind {0} came where another kind was due")]
    Kind(u8),
    /// The length in the header does not fit the kind or the bytes that came.
    #[error("a frame says it is {0} bytes long, which does not fit")]
    Length(u16),
    /// A field has a value that it must not have.
    #[error("the field {0} has a value that it must not have")]
    Field(&'static str),
}

/// Begins a frame.
pub(super) fn start(version: u16, kind: Kind) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    frame.extend(MAGIC);
    frame.extend(version.to_be_bytes());
    frame.extend([kind.code(), 0, 0, 0]);
    frame
}

/// Ends a frame: writes its length into its header.
pub(super) fn finish(mut frame: Vec<u8>) -> Vec<u8> {
    // A frame is one of four fixed layouts, the longest far below 64 KiB.
    let length = u16::try_from(frame.len()).unwrap_or(u16::MAX);
    frame[8..HEADER].copy_from_slice(&length.to_be_bytes());
    frame
}

/// Checks a header and gives a reader of the body. What follows the frame (the zero padding of
/// private data) is not looked at. `fixed_version` is off for the one kind that never changes.
pub(super) fn open(bytes: &[u8], kind: Kind, fixed_version: bool) -> Result<Reader<'_>, WireError> {
    let mut reader = Reader(bytes);
    if reader.take::<4>().ok() != Some(MAGIC) {
        return Err(WireError::Foreign);
    }
    let version = reader.u16().map_err(|_| WireError::Foreign)?;
    if fixed_version && version != VERSION {
        return Err(WireError::Version(version));
    }
    let code = reader.u8()?;
    if code != kind.code() {
        return Err(WireError::Kind(code));
    }
    reader.zeros::<1>("reserved")?;
    let length = reader.u16()?;
    let body = usize::from(length)
        .checked_sub(HEADER)
        .and_then(|len| reader.0.get(..len));
    body.map(Reader).ok_or(WireError::Length(length))
}

/// Takes fields off the front of a frame.
#[derive(Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(WireError::Length(0))?;
        self.0 = rest;
        Ok(*field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.take().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.take().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.take().map(u64::from_be_bytes)
    }

    pub(super) fn zeros<const N: usize>(&mut self, name: &'static str) -> Result<(), WireError> {
        if self.take::<N>()? == [0; N] {
            Ok(())
        } else {
            Err(WireError::Field(name))
        }
    }

    /// Ends the reading; bytes that are left are an error.
    pub(super) fn end(self) -> Result<(), WireError> {
        if self.0.is_empty() {
            Ok(())
        } else {
            let total = HEADER + self.0.len();
            Err(WireError::Length(u16::try_from(total).unwrap_or(u16::MAX)))
        }
    }
}
