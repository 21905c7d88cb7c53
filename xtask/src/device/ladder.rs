//! The decision where the RDMA device comes from, as a function of what was found on this machine.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::sysfs::Port;
use crate::error::{Error, Result};

/// Where the user wants the device from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Whatever comes first.
    Auto,
    /// This machine, not a VM.
    Host,
    /// The VM.
    Vm,
}

impl Wish {
    /// Reads the value of `RDMA_RUST_DEVICE`.
    ///
    /// # Errors
    /// For a value that is none.
    pub(crate) fn parse(value: Option<&str>) -> Result<Self> {
        match value {
            None | Some("" | "auto") => Ok(Self::Auto),
            Some("host") => Ok(Self::Host),
            Some("vm") => Ok(Self::Vm),
            Some(other) => Err(Error::new(format!(
                "RDMA_RUST_DEVICE is '{other}', but must be auto, host or vm"
            ))),
        }
    }
}

/// What was found on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The ports that the kernel shows.
    pub(crate) ports: Vec<Port>,
    /// Why what is to run may not run on this machine, if so.
    pub(crate) rights: std::result::Result<(), String>,
    /// Why the device nodes cannot be used, if so.
    pub(crate) nodes: std::result::Result<(), String>,
    /// Why no SoftRoCE device can be made, if so.
    pub(crate) creation: std::result::Result<(), String>,
    /// Why no VM can be started, if so.
    pub(crate) vm: std::result::Result<(), String>,
}

/// The rungs, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    /// A device that is already there, with the address to use.
    Existing(IpAddr),
    /// A SoftRoCE device to be made here.
    Create,
    /// The VM.
    Vm,
}

/// Each rung in order: usable, or why not.
#[derive(Debug)]
pub(crate) struct Ladder {
    rungs: [(&'static str, std::result::Result<Rung, String>); 3],
}

impl Ladder {
    /// Judges the facts.
    pub(crate) fn of(facts: &Facts, wish: Wish) -> Self {
        let not_wished = |what: &str| Err(format!("RDMA_RUST_DEVICE asks for {what}"));
        let on_host = |rung: std::result::Result<Rung, String>| match wish {
            Wish::Vm => not_wished("the VM"),
            Wish::Auto => facts.rights.clone().and(rung),
            // Then what lacks a right fails for itself, by name.
            Wish::Host => rung,
        };
        let vm = match wish {
            Wish::Host => not_wished("a device on this machine"),
            Wish::Auto | Wish::Vm => facts.vm.clone().map(|()| Rung::Vm),
        };
        Self {
            rungs: [
                ("an RDMA device of this machine", on_host(existing(facts))),
                (
                    "a SoftRoCE device made on this machine",
                    on_host(facts.creation.clone().map(|()| Rung::Create)),
                ),
                ("a virtual machine with a SoftRoCE device", vm),
            ],
        }
    }

    /// The usable rungs, best first.
    pub(crate) fn usable(&self) -> impl Iterator<Item = Rung> + '_ {
        self.rungs
            .iter()
            .filter_map(|(_, rung)| rung.as_ref().ok().copied())
    }

    /// All rungs in words, one a line.
    pub(crate) fn explain(&self) -> String {
        let best = self.usable().next();
        let mut text = String::new();
        for (index, (name, rung)) in self.rungs.iter().enumerate() {
            let verdict = match rung {
                Ok(Rung::Existing(address)) => format!("usable, at {address}"),
                Ok(_) => "usable".to_owned(),
                Err(reason) => format!("not usable: {reason}"),
            };
            let mark = if best.is_some() && rung.as_ref().ok().copied() == best {
                "->"
            } else {
                "  "
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{mark} {}. {name}: {verdict}", index + 1);
        }
        text
    }
}

fn existing(facts: &Facts) -> std::result::Result<Rung, String> {
    if facts.ports.is_empty() {
        return Err("the kernel shows none under /sys/class/infiniband".to_owned());
    }
    let active: Vec<&Port> = facts.ports.iter().filter(|port| port.is_active()).collect();
    if active.is_empty() {
        let states = facts
            .ports
            .iter()
            .map(|port| format!("{} port {} is '{}'", port.device, port.number, port.state));
        return Err(format!(
            "no port is active ({})",
            states.collect::<Vec<_>>().join(", ")
        ));
    }
    let Some(address) = active.iter().flat_map(|port| port.addresses()).next() else {
        let names = active
            .iter()
            .map(|port| port.device.as_str())
            .collect::<Vec<_>>()
            .join(", ");
        return Err(format!(
            "{names} has an active port, but no GID that is an IP address; give its network interface an address"
        ));
    };
    facts.nodes.clone().map(|()| Rung::Existing(address))
}

#[cfg(test)]
mod tests {
    use super::super::sysfs;
    use super::super::testing::FakeSys;
    use super::*;

    const V4_GID: &str = "0000:0000:0000:0000:0000:ffff:c000:0201";
    const LOCAL_GID: &str = "fe80:0000:0000:0000:0000:0000:0000:0001";

    fn no(reason: &str) -> std::result::Result<(), String> {
        Err(reason.to_owned())
    }

    fn facts(sys: &FakeSys) -> Facts {
        Facts {
            ports: sysfs::ports(sys.root()).unwrap(),
            rights: Ok(()),
            nodes: Ok(()),
            creation: no("not root"),
            vm: Ok(()),
        }
    }

    fn best(facts: &Facts, wish: Wish) -> Option<Rung> {
        Ladder::of(facts, wish).usable().next()
    }

    #[test]
    fn an_active_port_with_an_ip_address_comes_first() {
        let sys = FakeSys::new("ladder-first");
        sys.port("mlx5_0", 1, "1: DOWN", &[V4_GID]);
        sys.port("rxe0", 1, "4: ACTIVE", &[LOCAL_GID, V4_GID]);
        let facts = facts(&sys);
        let address = "192.0.2.1".parse().unwrap();
        assert_eq!(best(&facts, Wish::Auto), Some(Rung::Existing(address)));
        assert_eq!(
            best(&facts, Wish::Vm),
            Some(Rung::Vm),
            "a wish goes before the order"
        );
    }

    #[test]
    fn a_port_that_is_down_or_has_no_address_is_not_usable_and_says_why() {
        let sys = FakeSys::new("ladder-down");
        sys.port("mlx5_0", 1, "1: DOWN", &[V4_GID]);
        let text = Ladder::of(&facts(&sys), Wish::Auto).explain();
        assert!(text.contains("mlx5_0 port 1 is '1: DOWN'"), "{text}");
        sys.port("mlx5_0", 1, "4: ACTIVE", &[LOCAL_GID]);
        let _ = std::fs::remove_file(sys.root().join("class/infiniband/mlx5_0/ports/1/gids/1"));
        let facts = facts(&sys);
        let text = Ladder::of(&facts, Wish::Auto).explain();
        assert!(text.contains("no GID that is an IP address"), "{text}");
        assert_eq!(best(&facts, Wish::Auto), Some(Rung::Vm));
    }

    #[test]
    fn device_nodes_that_cannot_be_opened_make_a_device_unusable() {
        let sys = FakeSys::new("ladder-nodes");
        sys.port("rxe0", 1, "4: ACTIVE", &[V4_GID]);
        let mut facts = facts(&sys);
        facts.nodes = no("/dev/infiniband/rdma_cm cannot be opened");
        assert_eq!(best(&facts, Wish::Auto), Some(Rung::Vm));
        facts.creation = Ok(());
        assert_eq!(best(&facts, Wish::Auto), Some(Rung::Create));
    }

    #[test]
    fn without_the_rights_that_tests_need_they_run_in_the_vm() {
        let sys = FakeSys::new("ladder-rights");
        sys.port("rxe0", 1, "4: ACTIVE", &[V4_GID]);
        let mut facts = facts(&sys);
        facts.rights = no("that needs root");
        assert_eq!(best(&facts, Wish::Auto), Some(Rung::Vm));
        let address = "192.0.2.1".parse().unwrap();
        assert_eq!(best(&facts, Wish::Host), Some(Rung::Existing(address)));
    }

    #[test]
    fn with_no_rung_left_every_reason_is_told() {
        let sys = FakeSys::new("ladder-none");
        let mut facts = facts(&sys);
        facts.vm = no("no QEMU here");
        assert_eq!(best(&facts, Wish::Auto), None);
        let text = Ladder::of(&facts, Wish::Auto).explain();
        for reason in ["shows none", "not root", "no QEMU here"] {
            assert!(text.contains(reason), "{text}");
        }
        assert!(!text.contains("->"), "{text}");
    }

    #[test]
    fn the_chosen_rung_is_marked() {
        let sys = FakeSys::new("ladder-mark");
        let text = Ladder::of(&facts(&sys), Wish::Auto).explain();
        assert!(text.lines().any(|line| line.starts_with("-> 3.")), "{text}");
    }

    #[test]
    fn an_unknown_wish_is_refused_with_the_known_ones() {
        assert_eq!(Wish::parse(None).unwrap(), Wish::Auto);
        assert_eq!(Wish::parse(Some("vm")).unwrap(), Wish::Vm);
        let error = Wish::parse(Some("cloud")).unwrap_err().to_string();
        assert!(error.contains("auto, host or vm"), "{error}");
    }
}
