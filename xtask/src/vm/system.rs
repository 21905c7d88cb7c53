//! Which system the guest is: the host's, the host's with the kernel of another suite, or a named one whose kernel and
//! RDMA libraries belong together.

use crate::error::{Error, Result};

/// Kernel and RDMA libraries of a guest. All else is the host's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum System {
    /// The kernel of this machine's distribution, and the libraries that are installed here.
    Host,
    /// The same libraries, and the kernel of another suite of this machine's distribution.
    Suite(String),
    /// Debian 13: kernel 6.12 and rdma-core 56.
    Debian13,
    /// The same libraries, and the newest kernel made for Debian 13: 7.3 and later.
    Debian13Backports,
    /// Debian's newest kernel and rdma-core, whichever they are today.
    Sid,
}

/// The named guests, as `--guest` takes them.
const NAMED: [(&str, System); 4] = [
    ("host", System::Host),
    ("debian13", System::Debian13),
    ("debian13-backports", System::Debian13Backports),
    ("sid", System::Sid),
];

impl System {
    /// The one asked for by name or by a suite for the kernel.
    ///
    /// # Errors
    /// When the name is unknown, or both are given and do not agree.
    pub(crate) fn choose(guest: Option<&str>, suite: Option<String>) -> Result<Self> {
        let named = guest.map(Self::by_name).transpose()?;
        match (named.unwrap_or(Self::Host), suite) {
            (system, None) => Ok(system),
            (Self::Host, Some(suite)) => Ok(Self::Suite(suite)),
            (system, Some(suite)) => Err(Error::new(format!(
                "RDMA_RUST_VM_SUITE is '{suite}', but the guest {} has its own kernel; unset one of the two",
                system.vm_name()
            ))),
        }
    }

    fn by_name(name: &str) -> Result<Self> {
        let found = NAMED.iter().find(|(known, _)| *known == name);
        found.map(|(_, system)| system.clone()).ok_or_else(|| {
            let known = NAMED.map(|(known, _)| known).join(", ");
            Error::new(format!("there is no guest '{name}'; known are {known}"))
        })
    }

    /// What its VM is called, unless it is given another name.
    pub(crate) fn vm_name(&self) -> &'static str {
        match self {
            Self::Host | Self::Suite(_) => "default",
            Self::Debian13 => "debian13",
            Self::Debian13Backports => "debian13-backports",
            Self::Sid => "sid",
        }
    }

    /// The suite that its kernel comes from, if not those that this system is set up with.
    pub(crate) fn suite(&self) -> Option<&str> {
        match self {
            Self::Host => None,
            Self::Suite(suite) => Some(suite),
            Self::Debian13 => Some("trixie"),
            Self::Debian13Backports => Some("trixie-backports"),
            Self::Sid => Some("sid"),
        }
    }

    /// Whether its packages are Debian's, whatever this machine's distribution is.
    pub(crate) fn is_debian(&self) -> bool {
        matches!(self, Self::Debian13 | Self::Debian13Backports | Self::Sid)
    }

    /// The system whose libraries it has: backports hold no libraries of their own.
    pub(crate) fn of_libraries(&self) -> &Self {
        match self {
            Self::Debian13Backports => &Self::Debian13,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_chosen_by_name_or_by_a_suite_for_its_kernel() {
        let choose = |guest, suite: Option<&str>| System::choose(guest, suite.map(str::to_owned));
        assert_eq!(choose(None, None).unwrap(), System::Host);
        assert_eq!(choose(Some("debian13"), None).unwrap(), System::Debian13);
        let newer = choose(Some("debian13-backports"), None).unwrap();
        assert_eq!(newer.suite(), Some("trixie-backports"));
        assert_eq!(newer.of_libraries(), &System::Debian13);
        let suite = choose(Some("host"), Some("bookworm-backports")).unwrap();
        assert_eq!(suite.of_libraries(), &suite);
        assert_eq!(suite.suite(), Some("bookworm-backports"));
        assert!(!suite.is_debian(), "a suite of this machine's distribution");
    }

    #[test]
    fn an_unknown_guest_is_refused_with_the_known_ones_and_two_kernels_are_too() {
        let error = System::choose(Some("debian14"), None)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'debian14'")
                && error.ends_with("host, debian13, debian13-backports, sid"),
            "{error}"
        );
        let error = System::choose(Some("debian13"), Some("sid".to_owned()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("RDMA_RUST_VM_SUITE is 'sid'"), "{error}");
    }
}
