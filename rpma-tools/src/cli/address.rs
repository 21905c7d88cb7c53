//! Where the other end is: an address or a name, with or without a port.
//!
//! A text with more than one colon and no brackets is an IPv6 address as a whole, so
//! `2001:db8::1:7204` has no port in it; `[2001:db8::1]:7204` has.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The machine part of a [`Target`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A literal IPv4 address.
    V4(Ipv4Addr),
    /// A literal IPv6 address.
    V6 {
        /// The address as written; an IPv4-mapped one stays what it is here.
        address: Ipv6Addr,
        /// What stood after `%`: the name or the number of an interface.
        scope: Option<String>,
    },
    /// A name to be looked up.
    Name(String),
}

/// An address or a name, with the port that stood behind it.
///
/// ```
/// use rpma_tools::cli::address::Target;
///
/// let target = Target::parse("[::1]:7204").unwrap();
/// assert_eq!(target.port, Some(7204));
/// assert_eq!(Target::parse("2001:db8::1:7204").unwrap().port, None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The machine.
    pub host: Host,
    /// The port, when one was written.
    pub port: Option<u16>,
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// There is nothing to read.
    #[error("the address is empty")]
    Empty,
    /// One bracket has no partner, or a bracket stands in the wrong place.
    #[error("its brackets do not match; write an IPv6 address with a port as [ADDRESS]:PORT")]
    Brackets,
    /// What stands between the brackets, or has several colons, is no IPv6 address.
    #[error("{0:?} is not an IPv6 address")]
    NotIpv6(String),
    /// A name that could only be meant as an IPv4 address, and is none.
    #[error("{0:?} is not an IPv4 address")]
    NotIpv4(String),
    /// A character that no host name has.
    #[error("{0:?} is neither an IP address nor a host name")]
    NotAName(String),
    /// The port is no number from 0 to 65535.
    #[error("the port {0:?} is not a number from 0 to 65535")]
    Port(String),
    /// The interface after `%` is empty or impossible.
    #[error("the interface {0:?} after the % is not a name or number of one")]
    Scope(String),
}

impl Target {
    /// Reads `ADDR`, `ADDR:PORT`, `[ADDR6]`, `[ADDR6]:PORT`, `NAME` or `NAME:PORT`.
    ///
    /// # Errors
    /// [`AddressError`] names the part that cannot be read.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if let Some(inner) = text.strip_prefix('[') {
            let (inside, after) = inner.split_once(']').ok_or(AddressError::Brackets)?;
            let port = match after.strip_prefix(':') {
                Some(port) => Some(parse_port(port)?),
                None if after.is_empty() => None,
                None => return Err(AddressError::Brackets),
            };
            return Ok(Self {
                host: parse_v6(inside)?,
                port,
            });
        }
        if text.contains(['[', ']']) {
            return Err(AddressError::Brackets);
        }
        match text.split_once(':') {
            None => Ok(Self {
                host: parse_v4_or_name(text)?,
                port: None,
            }),
            Some((_, rest)) if rest.contains(':') => Ok(Self {
                host: parse_v6(text)?,
                port: None,
            }),
            Some((host, port)) => Ok(Self {
                host: parse_v4_or_name(host)?,
                port: Some(parse_port(port)?),
            }),
        }
    }

    /// The literal address, when it is one that needs no look-up of a name or interface. An
    /// IPv4-mapped IPv6 address is given as the IPv4 address that it stands for, since a device
    /// owns only that.
    pub fn literal(&self) -> Option<IpAddr> {
        match &self.host {
            Host::V4(address) => Some(IpAddr::V4(*address)),
            Host::V6 {
                address,
                scope: None,
            } => Some(IpAddr::V6(*address).to_canonical()),
            Host::V6 { scope: Some(_), .. } | Host::Name(_) => None,
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6 {
                address,
                scope: None,
            } => address.fmt(f),
            Self::V6 {
                address,
                scope: Some(scope),
            } => write!(f, "{address}%{scope}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

fn parse_port(text: &str) -> Result<u16, AddressError> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| AddressError::Port(text.to_owned()))
}

fn parse_v6(text: &str) -> Result<Host, AddressError> {
    let (address, scope) = match text.split_once('%') {
        Some((address, scope)) => (address, Some(scope)),
        None => (text, None),
    };
    let address = address
        .parse()
        .map_err(|_| AddressError::NotIpv6(text.to_owned()))?;
    // The kernel takes at most 15 bytes, none of them a slash or a blank.
    let possible = |scope: &str| {
        (1..=15).contains(&scope.len())
            && scope
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"/%:".contains(&byte))
    };
    if let Some(bad) = scope.filter(|scope| !possible(scope)) {
        return Err(AddressError::Scope(bad.to_owned()));
    }
    Ok(Host::V6 {
        address,
        scope: scope.map(str::to_owned),
    })
}

fn parse_v4_or_name(text: &str) -> Result<Host, AddressError> {
    if text.is_empty() {
        return Err(AddressError::Empty);
    }
    if let Ok(address) = text.parse() {
        return Ok(Host::V4(address));
    }
    // A last label of digits only belongs to no name; someone mistyped an address.
    let last = text.trim_end_matches('.').rsplit('.').next().unwrap_or("");
    if !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(AddressError::NotIpv4(text.to_owned()));
    }
    let fits = text.len() <= 253
        && !text.starts_with(['-', '.'])
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if fits {
        Ok(Host::Name(text.to_owned()))
    } else {
        Err(AddressError::NotAName(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(text: &str, scope: Option<&str>) -> Host {
        Host::V6 {
            address: text.parse().unwrap(),
            scope: scope.map(str::to_owned),
        }
    }

    #[test]
    fn every_form_is_read_as_written() {
        let name = |text: &str| Host::Name(text.to_owned());
        for (text, host, port) in [
            ("::1", v6("::1", None), None),
            ("[::1]", v6("::1", None), None),
            ("[::1]:7204", v6("::1", None), Some(7204)),
            ("fe80::1%eth0", v6("fe80::1", Some("eth0")), None),
            (
                "[fe80::1%eth0]:7204",
                v6("fe80::1", Some("eth0")),
                Some(7204),
            ),
            ("fe80::1%2", v6("fe80::1", Some("2")), None),
            ("2001:db8::1:7204", v6("2001:db8::1:7204", None), None),
            ("::ffff:10.0.0.1", v6("::ffff:10.0.0.1", None), None),
            ("192.0.2.1", Host::V4(Ipv4Addr::new(192, 0, 2, 1)), None),
            (
                "192.0.2.1:7204",
                Host::V4(Ipv4Addr::new(192, 0, 2, 1)),
                Some(7204),
            ),
            (
                "192.0.2.1:0",
                Host::V4(Ipv4Addr::new(192, 0, 2, 1)),
                Some(0),
            ),
            ("node-1.example", name("node-1.example"), None),
            ("node-1.example:65535", name("node-1.example"), Some(65535)),
            ("server2", name("server2"), None),
        ] {
            assert_eq!(Target::parse(text), Ok(Target { host, port }), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "[::1",
            "::1]",
            "[::1]7204",
            "[::1]:",
            "[::1]:65536",
            "[::1]:+1",
            "[]",
            "[192.0.2.1]:7204",
            "[::1]]:1",
            "::1::2",
            ":7204",
            "192.0.2.256",
            "192.0.2",
            "192.0.2.1:",
            "192.0.2.1:70000",
            "192.0.2.1:-1",
            "fe80::1%",
            "fe80::1%a/b",
            "fe80::1%sixteen-letters-",
            "host name",
            "host/24",
            "-host",
            "höst",
        ] {
            assert!(Target::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_mapped_address_is_used_as_the_ipv4_address_in_it() {
        let target = Target::parse("::ffff:10.0.0.1").unwrap();
        assert_eq!(target.literal(), Some("10.0.0.1".parse().unwrap()));
        assert_eq!(Target::parse("node").unwrap().literal(), None);
        assert_eq!(Target::parse("fe80::1%eth0").unwrap().literal(), None);
    }
}
