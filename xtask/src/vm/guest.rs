//! Setting the guest up: the agent's network, and one SoftRoCE device on a dummy interface.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::agent::read_line;
use super::config::DEVICE_ADDRESS;
use crate::device::sysfs;
use crate::error::{Error, Result};
use crate::process;

/// What programs are found in, whatever the client's `PATH` is.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The hardware address of the interface that leads to the host.
pub(super) const AGENT_MAC: &str = "52:54:00:12:34:56";

/// The guest's address on the network that leads to the host.
pub(super) const AGENT_ADDRESS: &str = "10.0.2.15";

/// The second address of the device.
const DEVICE_ADDRESS_V6: &str = "2001:db8::1/64";

/// The hardware address of the interface that leads to another VM, at the end with this number.
pub(super) fn link_mac(number: u8) -> String {
    format!("52:54:00:77:00:{number:02x}")
}

/// The address there (of a range for tests between two machines, which is never routed).
pub(crate) fn link_address(number: u8) -> String {
    format!("198.18.0.{number}")
}

/// Whether this process runs in a VM of ours: only its kernel has such a command line.
pub(super) fn is_guest() -> bool {
    argument("vm.agent").is_some()
}

/// The value of a word `name=value` on the kernel's command line.
fn argument(name: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    argument_in(&line, name)
}

fn argument_in(line: &str, name: &str) -> Option<String> {
    let value = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    Some(value.replace("%20", " ").replace("%25", "%"))
}

/// A path as one word of the kernel's command line; the counterpart of [`argument`] and of `arg` in init.sh.
pub(super) fn as_argument(path: &Path) -> String {
    path.to_string_lossy()
        .replace('%', "%25")
        .replace(' ', "%20")
}

/// How long the guest may be idle.
pub(super) fn idle_limit() -> Option<Duration> {
    let minutes: u64 = argument("vm.idle")?.parse().ok()?;
    (minutes > 0).then(|| Duration::from_secs(minutes * 60))
}

/// Brings network and device up, and returns the token that clients must know.
///
/// # Errors
/// The first step that fails; without any of them the VM is of no use.
pub(super) fn set_up() -> Result<String> {
    let folder = argument("vm.folder")
        .ok_or_else(|| Error::new("no vm.folder on the kernel's command line"))?;
    let token = read_line(&format!("{folder}/token"))?;
    let agent = interface_of(AGENT_MAC)?;
    ip(&format!("addr add {AGENT_ADDRESS}/24 dev {agent}"))?;
    ip(&format!("link set {agent} up"))?;
    ip("link add d0 type dummy")?;
    ip("link set d0 mtu 1500")?;
    ip(&format!("addr add {DEVICE_ADDRESS}/24 dev d0"))?;
    ip(&format!("addr add {DEVICE_ADDRESS_V6} dev d0 nodad"))?;
    ip("link set d0 up")?;
    add_device("rxe0", "d0", DEVICE_ADDRESS)?;
    if let Some(number) = argument("vm.link").and_then(|number| number.parse().ok()) {
        let interface = interface_of(&link_mac(number))?;
        let address = link_address(number);
        ip(&format!("addr add {address}/24 dev {interface}"))?;
        ip(&format!("link set {interface} up"))?;
        add_device("rxe1", &interface, &address)?;
    }
    Ok(token)
}

fn add_device(name: &str, interface: &str, address: &str) -> Result<()> {
    let words = ["link", "add", name, "type", "rxe", "netdev", interface];
    process::capture(process::tool("rdma").args(words))?;
    let deadline = Instant::now() + Duration::from_secs(10);
    // A connection before the address is in the device's table loses its first packets, and seconds with them.
    while !has_address(address) {
        if Instant::now() > deadline {
            return Err(Error::new(format!(
                "{name} did not get the address {address} within 10 s"
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn has_address(address: &str) -> bool {
    let ports = sysfs::ports(Path::new("/sys")).unwrap_or_default();
    ports.iter().any(|port| {
        port.is_active()
            && port
                .addresses()
                .iter()
                .any(|own| own.to_string() == address)
    })
}

fn ip(arguments: &str) -> Result<()> {
    process::capture(process::tool("ip").args(arguments.split(' '))).map(drop)
}

fn interface_of(mac: &str) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        for entry in fs::read_dir("/sys/class/net")
            .into_iter()
            .flatten()
            .flatten()
        {
            let address = fs::read_to_string(entry.path().join("address")).unwrap_or_default();
            if address.trim() == mac {
                return Ok(entry.file_name().to_string_lossy().into_owned());
            }
        }
        if Instant::now() > deadline {
            return Err(Error::new(format!(
                "no network interface with the address {mac}"
            )));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_survives_the_kernels_command_line() {
        for path in [
            "/plain",
            "/with blank",
            "/per%cent",
            "/odd%20name",
            "/a %25 b",
        ] {
            let line = format!(
                "quiet vm.share0={} vm.port=7000\n",
                as_argument(Path::new(path))
            );
            assert_eq!(argument_in(&line, "vm.share0").as_deref(), Some(path));
            assert_eq!(argument_in(&line, "vm.port").as_deref(), Some("7000"));
            assert_eq!(argument_in(&line, "vm.share"), None);
        }
    }
}
