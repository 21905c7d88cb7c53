//! A wire between two software devices of this machine, for faults on it.
//!
//! Linux hands packets between two addresses of its own over the loopback interface, where nothing can be lost. So while a
//! [`Link`] is there, a rule per end comes before the table of local addresses and sends the packets through the wire, a pair
//! of virtual Ethernet interfaces. (Network namespaces would do without, but SoftRoCE works in them only since Linux 7.)

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::Outcome;
use crate::child::{Child, command};
use crate::device::{CLASS, has_address};
use crate::need::Need;
use crate::pair::WAIT;

/// What a test with a [`Link`] needs.
pub const LINK: &[Need] = &[
    Need::Device,
    Need::Root,
    Need::SoftRoce,
    Need::Wire,
    Need::Tool("ip"),
    Need::Tool("tc"),
];

/// One end of the wire: an interface, its address, and a software device on it. Any process may do something to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// One end.
    A,
    /// The other.
    B,
}

impl End {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The name of the interface.
    pub fn interface(self) -> &'static str {
        match self {
            Self::A => "rpmawirea",
            Self::B => "rpmawireb",
        }
    }

    /// The name of the RDMA device.
    pub fn device(self) -> &'static str {
        match self {
            Self::A => "rpmawirearxe",
            Self::B => "rpmawirebrxe",
        }
    }

    /// The address.
    pub fn ip(self) -> IpAddr {
        IpAddr::from(match self {
            Self::A => [198, 51, 100, 1],
            Self::B => [198, 51, 100, 2],
        })
    }

    /// The address with a port; 0 lets the system choose.
    pub fn addr(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(), port)
    }

    fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    /// The routing table that leads to the other end.
    fn table(self) -> &'static str {
        match self {
            Self::A => "7201",
            Self::B => "7202",
        }
    }

    /// Lets what leaves this end be lost, late, doubled or damaged, as `tc`'s netem has it (`loss 20%`), until the next call.
    ///
    /// # Errors
    /// The command that failed.
    pub fn netem(self, how: &str) -> Outcome {
        let fixed = ["qdisc", "replace", "dev", self.interface(), "root", "netem"];
        let words: Vec<&str> = fixed.into_iter().chain(how.split(' ')).collect();
        command("tc", &words)
    }

    /// Ends what [`netem`](Self::netem) began.
    ///
    /// # Errors
    /// The command that failed.
    pub fn no_netem(self) -> Outcome {
        command("tc", &["qdisc", "del", "dev", self.interface(), "root"])
    }

    /// Takes the interface down; the other end loses its carrier.
    ///
    /// # Errors
    /// The command that failed.
    pub fn down(self) -> Outcome {
        command("ip", &["link", "set", self.interface(), "down"])
    }

    /// Brings the interface up again, with its way to the other end.
    ///
    /// # Errors
    /// The command that failed.
    pub fn up(self) -> Outcome {
        batch(&[
            format!("link set {} up", self.interface()),
            // Gone with the carrier, of both ends.
            Self::A.route(),
            Self::B.route(),
        ])
    }

    fn route(self) -> String {
        format!(
            "route replace {}/32 dev {} src {} table {}",
            self.other().ip(),
            self.interface(),
            self.ip(),
            self.table()
        )
    }

    /// Lets this end take another hardware address for that of the other end: nobody's.
    ///
    /// # Errors
    /// The command that failed.
    pub fn lose_neighbour(self) -> Outcome {
        batch(&[format!(
            "neigh replace {} lladdr 02:00:00:00:00:99 dev {} nud permanent",
            self.other().ip(),
            self.interface()
        )])
    }

    /// Ends what [`lose_neighbour`](Self::lose_neighbour) began: the other end is asked for its hardware address again.
    ///
    /// # Errors
    /// The command that failed.
    pub fn find_neighbour(self) -> Outcome {
        batch(&[format!(
            "neigh del {} dev {}",
            self.other().ip(),
            self.interface()
        )])
    }

    /// Begins to delete the device. SoftRoCE up to Linux 6.12 waits until nobody holds it any more; librdmacm does to the end
    /// of its process, so that what holds the device must be another process than this one.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn delete_device(self) -> Result<Child, Failed> {
        Child::start(Command::new("rdma").args(["link", "delete", self.device()]))
    }

    /// Makes the device, and waits until it has its address: without it a connection loses its first packets.
    ///
    /// # Errors
    /// The command that failed, or that the address does not come.
    pub fn add_device(self) -> Outcome {
        let (device, interface) = (self.device(), self.interface());
        command(
            "rdma",
            &["link", "add", device, "type", "rxe", "netdev", interface],
        )?;
        let end = Instant::now() + WAIT;
        while !has_address(device, self.ip()) {
            if Instant::now() > end {
                let ip = self.ip();
                return Err(
                    format!("{device} did not get the address {ip} within {WAIT:?}").into(),
                );
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// A counter of the device, such as `hw_counters/sent_pkts` or `cm_tx_retries/req`.
    ///
    /// # Errors
    /// When the device does not have it.
    pub fn counter(self, name: &str) -> Result<u64, Failed> {
        let path = format!("{CLASS}/{}/ports/1/{name}", self.device());
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let number = text.trim().parse();
        Ok(number.map_err(|error| format!("{path}: {error}"))?)
    }
}

/// The wire with both devices, made afresh for each test (after a cut under traffic a device may stay deaf) and removed when
/// dropped. Whoever opens the devices must have ended by then.
#[derive(Debug)]
pub struct Link(());

impl Link {
    /// Makes it, in about a second.
    ///
    /// # Errors
    /// The command that failed, or that an address does not come.
    pub fn new() -> Result<Self, Failed> {
        remove();
        let this = Self(());
        this.make().map_err(|failed| {
            let why = failed.message().unwrap_or_default();
            format!("the wire between two software devices cannot be made: {why}")
        })?;
        Ok(this)
    }

    /// Makes a wire, and runs the role on it to its end: what opens the devices is a process of its own, since librdmacm keeps
    /// them open to its end, and up to Linux 6.12 they cannot be removed before.
    ///
    /// # Errors
    /// The wire cannot be made, or how the role failed.
    pub fn run(role: &str, argument: &str) -> Outcome {
        let _link = Self::new()?;
        Child::role(role, argument, &[])?
            .finish(5 * WAIT)?
            .success()?;
        Ok(())
    }

    fn make(&self) -> Outcome {
        let [a, b] = End::BOTH;
        batch(&[format!(
            "link add {} type veth peer name {}",
            a.interface(),
            b.interface()
        )])?;
        for end in End::BOTH {
            // Packets from an address of this machine are taken, and each interface answers for its own address only.
            for (setting, value) in [
                ("accept_local", "1"),
                ("rp_filter", "0"),
                ("arp_ignore", "1"),
                ("arp_announce", "2"),
            ] {
                let path = format!("/proc/sys/net/ipv4/conf/{}/{setting}", end.interface());
                fs::write(&path, value).map_err(|error| format!("{path}: {error}"))?;
            }
        }
        let up = End::BOTH.iter().flat_map(|end| {
            let interface = end.interface();
            [
                format!("addr add {}/24 dev {interface}", end.ip()),
                format!("link set {interface} up"),
            ]
        });
        let rules = [
            a.route(),
            b.route(),
            format!("rule add pref 10 iif {} lookup local", a.interface()),
            format!("rule add pref 11 iif {} lookup local", b.interface()),
            leads(20, a, "from", &a.ip().to_string()),
            leads(21, b, "from", &b.ip().to_string()),
            leads(22, a, "oif", a.interface()),
            leads(23, b, "oif", b.interface()),
            format!("rule add {LATER}"),
            format!("rule del {FIRST}"),
        ];
        batch(&up.chain(rules).collect::<Vec<_>>())?;
        End::BOTH.into_iter().try_for_each(End::add_device)
    }
}

/// The rule that looks at the table of local addresses: where it belongs, and behind the rules of the wire.
const FIRST: &str = "pref 0 lookup local";
const LATER: &str = "pref 200 lookup local";

/// The rule by which packets of one end go through the wire.
fn leads(preference: u32, end: End, by: &str, value: &str) -> String {
    let to = end.other().ip();
    let table = end.table();
    format!("rule add pref {preference} {by} {value} to {to} lookup {table}")
}

impl Drop for Link {
    fn drop(&mut self) {
        remove();
    }
}

/// Removes what is there of a wire, also one that an earlier process left.
fn remove() {
    for end in End::BOTH {
        if PathBuf::from(CLASS).join(end.device()).exists()
            && let Ok(remover) = end.delete_device()
            && let Err(failed) = remover.finish(WAIT).and_then(crate::Finished::success)
        {
            let why = failed.message().unwrap_or_default();
            eprintln!("{} cannot be removed: {why}", end.device());
        }
    }
    let local_is_moved = || {
        let rules = Command::new("ip")
            .args(["rule", "show", "pref", "200"])
            .output();
        rules.is_ok_and(|rules| String::from_utf8_lossy(&rules.stdout).contains("lookup local"))
    };
    let interface = End::A.interface();
    let mut lines = Vec::new();
    if PathBuf::from("/sys/class/net").join(interface).exists() {
        // Its routes go with it, and so does the other end.
        lines.push(format!("link del {interface}"));
    }
    if local_is_moved() {
        lines.push(format!("rule add {FIRST}"));
        lines.push(format!("rule del {LATER}"));
        lines.extend(
            [10, 11, 20, 21, 22, 23].map(|preference| format!("rule del pref {preference}")),
        );
    }
    // One that an earlier process left may lack any of it: each line is tried.
    let script = format!(
        "ip -force -batch - <<'END' || true\n{}\nEND",
        lines.join("\n")
    );
    if !lines.is_empty()
        && let Err(failed) = command("sh", &["-c", &script])
    {
        eprintln!("{}", failed.message().unwrap_or_default());
    }
}

/// Runs lines of `ip` in one process: each would take a hundredth of a second in an emulated machine.
fn batch(lines: &[String]) -> Outcome {
    let script = format!("ip -batch - <<'END'\n{}\nEND", lines.join("\n"));
    command("sh", &["-c", &script])
}
