//! The RDMA device that the tests use.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::OnceLock;

use libtest_mimic::Failed;

pub(crate) const CLASS: &str = "/sys/class/infiniband";

/// A device and one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestDevice {
    /// The kernel's name of the device.
    pub name: String,
    /// The port of the device that has the address.
    pub port: u8,
    /// The address.
    pub ip: IpAddr,
    /// The network interface below it, empty where there is none.
    pub interface: String,
}

impl TestDevice {
    /// The address with a port; 0 lets the system choose.
    pub fn addr(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip, port)
    }
}

/// The device in use.
///
/// # Panics
/// Without a device: a test that calls this names [`Need::Device`](crate::Need::Device).
pub fn device() -> &'static TestDevice {
    find().as_ref().expect("the test needs Need::Device")
}

/// The device, or a sentence that says why there is none.
pub(crate) fn find() -> &'static Result<TestDevice, String> {
    static DEVICE: OnceLock<Result<TestDevice, String>> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let all = all();
        match std::env::var("RPMA_TEST_ADDRESS") {
            Ok(text) => {
                let ip: IpAddr = text
                    .parse()
                    .map_err(|_| format!("RPMA_TEST_ADDRESS={text} is no IP address"))?;
                all.into_iter()
                    .find(|device| device.ip == ip)
                    .or_else(|| iwarp(ip))
                    .ok_or_else(|| {
                        format!("no RDMA device has the address {ip} of RPMA_TEST_ADDRESS")
                    })
            }
            Err(_) => all
                .into_iter()
                .min_by_key(|device| (device.ip.is_ipv6(), device.name.clone()))
                .ok_or_else(|| {
                    "no RDMA device with an IP address (see `cargo xtask device`)".to_owned()
                }),
        }
    })
}

/// The address of the second machine.
///
/// # Panics
/// Without one: a test that calls this names [`Need::SecondHost`](crate::Need::SecondHost).
pub fn second_host() -> IpAddr {
    second().expect("the test needs Need::SecondHost")
}

/// The second machine's address, or a sentence that says why there is none.
pub(crate) fn second() -> Result<IpAddr, String> {
    let text = std::env::var("RPMA_TEST_SECOND_HOST")
        .map_err(|_| "a second machine (`cargo xtask test --full` starts one)")?;
    text.parse()
        .map_err(|_| format!("RPMA_TEST_SECOND_HOST={text} is no IP address"))
}

/// An iWARP device for an address that was named: its GID is a hardware address, and does not tell which it has.
fn iwarp(ip: IpAddr) -> Option<TestDevice> {
    let name = entries(Path::new(CLASS)).into_iter().find(|device| {
        let node = read(&Path::new(CLASS).join(device).join("node_type"));
        // As in `4: RNIC`.
        node.starts_with("4:")
    })?;
    Some(TestDevice {
        name,
        port: 1,
        ip,
        interface: String::new(),
    })
}

/// Every device with every address that is not link-local.
fn all() -> Vec<TestDevice> {
    let mut found = Vec::new();
    for device in entries(Path::new(CLASS)) {
        let ports = Path::new(CLASS).join(&device).join("ports");
        for port in entries(&ports) {
            let gids = ports.join(&port).join("gids");
            for index in entries(&gids) {
                let Some(ip) = read(&gids.join(&index)).parse::<Ipv6Addr>().ok() else {
                    continue;
                };
                if ip.is_unspecified() || ip.is_unicast_link_local() {
                    continue;
                }
                let interface = read(&ports.join(&port).join("gid_attrs/ndevs").join(&index));
                found.push(TestDevice {
                    name: device.clone(),
                    port: port.parse().unwrap_or(1),
                    ip: ip.to_canonical(),
                    interface,
                });
            }
        }
    }
    found
}

/// Whether the device `name` has the address among its first: the table has a thousand entries, and reading all takes a second.
pub(crate) fn has_address(name: &str, ip: IpAddr) -> bool {
    let gids = Path::new(CLASS).join(name).join("ports/1/gids");
    (0..8).any(|index| {
        let gid = read(&gids.join(index.to_string())).parse::<Ipv6Addr>();
        gid.is_ok_and(|gid| gid.to_canonical() == ip)
    })
}

/// A hardware counter of the device in use, such as `send_rnr_err`.
///
/// # Errors
/// When the device does not have it.
pub fn hardware_counter(name: &str) -> Result<u64, Failed> {
    let device = device();
    let path = format!(
        "{CLASS}/{}/ports/{}/hw_counters/{name}",
        device.name, device.port
    );
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(text
        .trim()
        .parse()
        .map_err(|error| format!("{path}: {error}"))?)
}

fn entries(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn read(path: &Path) -> String {
    // An empty slot of the table answers EINVAL.
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}
