//! What client and agent say to each other: one connection per command, frames of kind, length and payload.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The first field of every request; change it whenever the protocol changes.
const VERSION: &str = "rdma-rust-vm/1";

/// No frame is longer: a larger length is a broken stream, not a reason to allocate.
pub(crate) const MAX_PAYLOAD: usize = 8 << 20;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request: what to run.
    Request,
    /// Bytes for the command's standard input; none for its end.
    Stdin,
    /// Bytes of its standard output.
    Stdout,
    /// Bytes of its standard error.
    Stderr,
    /// Its exit code, four bytes, little-endian.
    Exit,
    /// The agent's reason for not running it, as text.
    Refused,
}

impl Kind {
    const ALL: [(Self, u8); 6] = [
        (Self::Request, b'R'),
        (Self::Stdin, b'0'),
        (Self::Stdout, b'1'),
        (Self::Stderr, b'2'),
        (Self::Exit, b'X'),
        (Self::Refused, b'E'),
    ];

    fn byte(self) -> u8 {
        Self::ALL
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or(0, |(_, byte)| *byte)
    }

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, of)| *of == byte)
            .map(|(kind, _)| *kind)
    }
}

/// Writes one frame in one call, so that frames of several threads do not mix under a lock.
pub(crate) fn write_frame(to: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len())
        .ok()
        .filter(|_| payload.len() <= MAX_PAYLOAD)
        .ok_or_else(|| {
            invalid(format!(
                "a frame of {} bytes is too long (at most {MAX_PAYLOAD})",
                payload.len()
            ))
        })?;
    let mut frame = Vec::with_capacity(5 + payload.len());
    frame.push(kind.byte());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(payload);
    to.write_all(&frame)
}

/// Reads one frame.
///
/// # Errors
/// `UnexpectedEof` when the stream ends, `InvalidData` for a kind or length that cannot be.
pub(crate) fn read_frame(from: &mut impl Read) -> io::Result<(Kind, Vec<u8>)> {
    let mut kind = [0_u8; 1];
    let mut length = [0_u8; 4];
    from.read_exact(&mut kind)?;
    from.read_exact(&mut length)?;
    let kind = Kind::from_byte(kind[0])
        .ok_or_else(|| invalid(format!("unknown kind of frame {:#04x}", kind[0])))?;
    let length = usize::try_from(u32::from_le_bytes(length))
        .ok()
        .filter(|length| *length <= MAX_PAYLOAD)
        .ok_or_else(|| invalid(format!("a frame's length is above {MAX_PAYLOAD}")))?;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    Ok((kind, payload))
}

/// The exit code in an [`Kind::Exit`] frame.
pub(crate) fn exit_code(payload: &[u8]) -> io::Result<i32> {
    <[u8; 4]>::try_from(payload)
        .map(i32::from_le_bytes)
        .map_err(|_| {
            invalid(format!(
                "an exit code of {} bytes instead of 4",
                payload.len()
            ))
        })
}

/// What to run, and as if from where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Proof that the client may use this VM: other users of the host reach its port as well.
    pub(crate) token: String,
    /// The working folder.
    pub(crate) folder: OsString,
    /// The whole environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The program and its arguments; at least one.
    pub(crate) command: Vec<OsString>,
}

impl Request {
    /// The payload of a [`Kind::Request`] frame: NUL-terminated fields, as no field can hold a NUL.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        let mut field = |bytes: &[u8]| {
            payload.extend_from_slice(bytes);
            payload.push(0);
        };
        field(VERSION.as_bytes());
        field(self.token.as_bytes());
        field(self.folder.as_bytes());
        field(self.environment.len().to_string().as_bytes());
        for (name, value) in &self.environment {
            field(name.as_bytes());
            field(value.as_bytes());
        }
        for word in &self.command {
            field(word.as_bytes());
        }
        payload
    }

    /// Reads what [`Request::encode`] wrote.
    ///
    /// # Errors
    /// `InvalidData`, saying what is wrong, for anything else.
    pub(crate) fn decode(payload: &[u8]) -> io::Result<Self> {
        let body = payload
            .strip_suffix(&[0])
            .ok_or_else(|| invalid("a request that does not end with a NUL".to_owned()))?;
        let mut fields = body.split(|byte| *byte == 0);
        let mut next = |what: &str| {
            fields
                .next()
                .ok_or_else(|| invalid(format!("a request without its {what}")))
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        let version = next("version")?;
        if version != VERSION.as_bytes() {
            return Err(invalid(format!(
                "a client of version '{}' where the agent is '{VERSION}'; stop the VM (cargo xtask vm stop) and start it again",
                text(version)
            )));
        }
        let token = text(next("token")?);
        let folder = owned(next("folder")?);
        let count = text(next("number of variables")?);
        let count: usize = count
            .parse()
            .map_err(|_| invalid(format!("a request with '{count}' variables")))?;
        let mut environment = Vec::new();
        for _ in 0..count {
            environment.push((owned(next("variable")?), owned(next("value")?)));
        }
        let command: Vec<OsString> = fields.map(owned).collect();
        if command.first().is_none_or(|program| program.is_empty()) {
            return Err(invalid("a request without a command".to_owned()));
        }
        if environment.iter().any(|(name, _)| !is_variable_name(name)) {
            return Err(invalid(
                "a request with a variable that has no name".to_owned(),
            ));
        }
        Ok(Self {
            token,
            folder,
            environment,
            command,
        })
    }
}

/// What the standard library accepts as the name of a variable.
fn is_variable_name(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    !bytes.is_empty() && !bytes[1..].contains(&b'=')
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            token: "secret".to_owned(),
            folder: "/work folder".into(),
            environment: vec![
                ("PATH".into(), "/bin:/usr/bin".into()),
                ("EMPTY".into(), "".into()),
                ("RAW".into(), OsString::from_vec(vec![0xff, b'=', b'\n'])),
            ],
            command: vec!["sh".into(), "-c".into(), "echo \"$1\"\n".into(), "".into()],
        }
    }

    #[test]
    fn a_request_comes_back_as_it_was_sent() {
        assert_eq!(Request::decode(&request().encode()).unwrap(), request());
    }

    #[test]
    fn every_cut_of_a_request_is_an_error_and_no_panic() {
        let whole = request().encode();
        for end in 0..whole.len() {
            // A cut right behind a word of the command is a shorter, valid command.
            if let Ok(short) = Request::decode(&whole[..end]) {
                assert!(!short.command.is_empty() && short.command.len() < request().command.len());
            }
        }
    }

    #[test]
    fn malformed_requests_say_what_is_wrong() {
        for (payload, expected) in [
            (&b""[..], "does not end with a NUL"),
            (b"other/9\0t\0/\x000\0true\0", "vm stop"),
            (b"rdma-rust-vm/1\0t\0/\0many\0true\0", "'many' variables"),
            (
                b"rdma-rust-vm/1\0t\0/\x0099999999\0A\0b\0",
                "without its variable",
            ),
            (b"rdma-rust-vm/1\0t\0/\x000\0", "without a command"),
            (b"rdma-rust-vm/1\0t\0/\x001\0\0value\0true\0", "no name"),
            (b"rdma-rust-vm/1\0t\0/\x001\0A=B\0value\0true\0", "no name"),
        ] {
            let error = Request::decode(payload).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn frames_come_back_in_order_and_the_end_is_an_end() {
        let mut stream = Vec::new();
        write_frame(&mut stream, Kind::Stdout, b"hello").unwrap();
        write_frame(&mut stream, Kind::Exit, &7_i32.to_le_bytes()).unwrap();
        let mut from = stream.as_slice();
        assert_eq!(
            read_frame(&mut from).unwrap(),
            (Kind::Stdout, b"hello".to_vec())
        );
        let (kind, payload) = read_frame(&mut from).unwrap();
        assert_eq!((kind, exit_code(&payload).unwrap()), (Kind::Exit, 7));
        assert_eq!(
            read_frame(&mut from).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(
            read_frame(&mut &stream[..7]).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof,
            "cut inside a frame"
        );
    }

    #[test]
    fn malformed_frames_are_errors_without_a_large_allocation() {
        for bytes in [&b"?\0\0\0\0"[..], b"1\xff\xff\xff\xff", b"\0\0\0\0\0"] {
            let error = read_frame(&mut &bytes[..]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
        let too_long = vec![0; MAX_PAYLOAD + 1];
        write_frame(&mut Vec::new(), Kind::Stdin, &too_long).unwrap_err();
        for bytes in [&b""[..], b"abc", b"abcde"] {
            exit_code(bytes).unwrap_err();
        }
    }
}
