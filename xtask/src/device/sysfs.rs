//! RDMA devices as the kernel shows them under `/sys/class/infiniband`.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

/// One port of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    /// The device's name (`rxe0`, `mlx5_0`).
    pub(crate) device: String,
    /// The port's number, from 1.
    pub(crate) number: u32,
    /// Its state in the kernel's words (`4: ACTIVE`).
    pub(crate) state: String,
    /// Its GIDs without the empty ones.
    pub(crate) gids: Vec<Ipv6Addr>,
}

impl Port {
    /// Whether data can pass.
    pub(crate) fn is_active(&self) -> bool {
        self.state.contains("ACTIVE")
    }

    /// The IP addresses that a connection can be made to: IPv4 ones first, then global IPv6 ones.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = self
            .gids
            .iter()
            .filter_map(|gid| address_of(*gid))
            .collect();
        addresses.sort_by_key(IpAddr::is_ipv6);
        addresses.dedup();
        addresses
    }
}

/// The IP address in a GID, if it is one that another process can connect to.
fn address_of(gid: Ipv6Addr) -> Option<IpAddr> {
    if let Some(v4) = gid.to_ipv4_mapped() {
        return (!v4.is_unspecified()).then_some(IpAddr::V4(v4));
    }
    // A link-local one would need an interface as well; an InfiniBand GID with the default prefix looks the same.
    let local = gid.is_unspecified()
        || gid.is_loopback()
        || gid.is_multicast()
        || gid.is_unicast_link_local();
    (!local).then_some(IpAddr::V6(gid))
}

/// Every port of every device below `sys`, ordered by device and number.
///
/// # Errors
/// When `class/infiniband` exists and cannot be read. Without it there is no port, which is no error.
pub(crate) fn ports(sys: &Path) -> io::Result<Vec<Port>> {
    let class = sys.join("class/infiniband");
    let mut ports = Vec::new();
    for device in names_in(&class)? {
        let folder = class.join(&device).join("ports");
        for number in names_in(&folder)?
            .iter()
            .filter_map(|name| name.parse().ok())
        {
            let port = folder.join(u32::to_string(&number));
            let state = fs::read_to_string(port.join("state")).unwrap_or_default();
            let gids = names_in(&port.join("gids"))?
                .into_iter()
                .filter_map(|index| {
                    // The entry may be gone by now: addresses come and go.
                    let text = fs::read_to_string(port.join("gids").join(index)).ok()?;
                    text.trim()
                        .parse()
                        .ok()
                        .filter(|gid: &Ipv6Addr| !gid.is_unspecified())
                });
            ports.push(Port {
                device: device.clone(),
                number,
                state: state.trim().to_owned(),
                gids: gids.collect(),
            });
        }
    }
    ports.sort_by(|a, b| (&a.device, a.number).cmp(&(&b.device, b.number)));
    Ok(ports)
}

/// The names in a folder, in numeric and then alphabetic order; none if there is no such folder.
fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_by_key(|name| (name.parse::<u32>().unwrap_or(u32::MAX), name.clone()));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::super::testing::FakeSys;
    use super::*;

    #[test]
    fn a_machine_without_the_class_has_no_port() {
        let sys = FakeSys::new("none");
        assert_eq!(ports(sys.root()).unwrap(), []);
    }

    #[test]
    fn addresses_come_from_mapped_and_global_gids_only() {
        let sys = FakeSys::new("gids");
        sys.port(
            "rxe0",
            1,
            "4: ACTIVE",
            &[
                "fe80:0000:0000:0000:0c11:22ff:fe33:4455",
                "2001:0db8:0000:0000:0000:0000:0000:0001",
                "0000:0000:0000:0000:0000:ffff:c000:0201",
                "0000:0000:0000:0000:0000:0000:0000:0000",
                "garbage",
            ],
        );
        let ports = ports(sys.root()).unwrap();
        assert_eq!(ports.len(), 1);
        assert!(ports[0].is_active());
        let addresses: Vec<String> = ports[0]
            .addresses()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(addresses, ["192.0.2.1", "2001:db8::1"]);
    }

    #[test]
    fn ports_are_ordered_and_a_port_that_is_down_is_seen_as_such() {
        let sys = FakeSys::new("order");
        sys.port("mlx5_1", 1, "1: DOWN", &[]);
        sys.port("mlx5_0", 2, "4: ACTIVE", &[]);
        sys.port("mlx5_0", 1, "2: INIT", &[]);
        let ports = ports(sys.root()).unwrap();
        let seen: Vec<_> = ports
            .iter()
            .map(|p| (p.device.as_str(), p.number, p.is_active()))
            .collect();
        assert_eq!(
            seen,
            [
                ("mlx5_0", 1, false),
                ("mlx5_0", 2, true),
                ("mlx5_1", 1, false)
            ]
        );
    }
}
