//! Ports and local addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener};

use std::process::Command;

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, device, ensure, ensure_eq, test};
use rpma::cm::{
    AddressHints, ConnParams, ConnectOptions, Connector, DatagramListener, Deadline, Error,
    IdOptions, ListenOptions, Listener, Multicast, Resolving, address_info, device_of_local,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::raw::{Queues, begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "ports_that_overlap_are_refused_and_other_port_spaces_are_apart",
            &[Need::Device],
            overlapping_ports,
        ),
        test(
            "an_address_of_its_own_names_a_device_and_a_wildcard_none",
            &[Need::Device],
            addresses_and_devices,
        ),
        test(
            "a_client_connects_from_the_address_and_port_it_chose",
            &[Need::Device],
            chosen_source,
        ),
        test(
            "a_source_port_is_known_before_the_peer_is_looked_for",
            &[Need::Device],
            early_source,
        ),
        test(
            "a_link_local_address_needs_its_scope_and_keeps_it",
            &[Need::Device],
            link_local,
        ),
        test(
            "a_wildcard_listener_knows_the_scope_of_a_link_local_peer",
            &[Need::Device],
            link_local_wildcard,
        ),
        test(
            "a_low_port_needs_its_privilege",
            &[Need::Device, Need::Root],
            low_port,
        ),
        test(
            "without_ipv6_a_listener_at_every_address_serves_ipv4",
            &[Need::Device, Need::Root, Need::Tool("ip")],
            without_ipv6,
        ),
        test("names_are_looked_up_for_both_sides", &[Need::Device], names),
    ]
}

fn soon() -> Deadline {
    Deadline::after(WAIT)
}

fn bind(addr: SocketAddr) -> Result<Listener, Error> {
    Listener::bind(addr, &ListenOptions::default())
}

fn errno<T: std::fmt::Debug>(result: Result<T, Error>) -> Result<i32, Failed> {
    match result {
        Err(Error::Call(error)) => Ok(error.errno().unwrap_or(0)),
        other => Err(format!("{other:?}").into()),
    }
}

fn wildcard(port: u16) -> SocketAddr {
    let ip = match device().ip {
        IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    SocketAddr::new(ip, port)
}

/// Between a wildcard and one address the kernel has an answer of its own.
fn overlaps(addr: SocketAddr) -> Outcome {
    let error = bind(addr).err().ok_or("bound twice")?;
    ensure!(
        error.hint().is_some_and(|hint| hint.contains("overlaps")),
        "no advice with {error}"
    );
    ensure_eq!(
        errno::<()>(Err(error))?,
        libc::EADDRNOTAVAIL,
        "binding {addr}"
    );
    Ok(())
}

fn overlapping_ports() -> Outcome {
    let first = listener()?;
    let addr = first.local_addr();
    ensure!(addr.port() != 0, "port 0 was not replaced");
    ensure_eq!(
        errno(bind(addr))?,
        libc::EADDRINUSE,
        "the same address again"
    );
    overlaps(wildcard(addr.port()))?;
    // Sockets and datagram ids have ports of their own.
    let _socket = TcpListener::bind(addr)?;
    let _datagrams = DatagramListener::bind(addr, &ListenOptions::default())?;
    drop(first);
    let all = bind(wildcard(addr.port()))?;
    overlaps(addr)?;
    drop(all);
    bind(addr)?;
    Ok(())
}

fn addresses_and_devices() -> Outcome {
    let found = device_of_local(device().addr(0))?;
    ensure_eq!(found.name(), device().name, "the device");
    for ip in [
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
    ] {
        let error = device_of_local(SocketAddr::new(ip, 0)).err();
        ensure!(
            matches!(error, Some(Error::NoSuchAddress { .. })),
            "{ip}: {error:?}"
        );
    }
    // By kernel a device or none, and never a crash.
    match device_of_local(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))) {
        Ok(_) | Err(Error::NoSuchAddress { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let error = Multicast::bind(wildcard(0), &IdOptions::default()).err();
    ensure!(
        matches!(error, Some(Error::NoSuchAddress { .. })),
        "{error:?}"
    );
    Ok(())
}

fn chosen_source() -> Outcome {
    let listener = listener()?;
    // A port that was just free.
    let source = bind(device().addr(0))?.local_addr();
    let mut options = ConnectOptions::default();
    options.source = Some(source);
    let resolved = Resolving::start(listener.local_addr(), &options, soon())?.wait()?;
    ensure_eq!(resolved.local_addr(), Some(source), "the local address");
    let (_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, &ConnParams::default(), &[])?;
    let request = listener.next_request(soon())?;
    ensure_eq!(request.peer_addr(), source, "what the server sees");
    ensure_eq!(
        request.local_addr(),
        Some(listener.local_addr()),
        "where it came to"
    );
    drop((request, client));
    let taken = bind(source)?;
    let error = Resolving::start(listener.local_addr(), &options, soon()).err();
    ensure!(
        error.is_some(),
        "connected from a port of {:?}",
        taken.local_addr()
    );
    Ok(())
}

fn early_source() -> Outcome {
    let listener = listener()?;
    let connector = Connector::new(&IdOptions::default())?;
    let source = connector.bind(device().addr(0))?;
    ensure_eq!(source.ip(), device().ip, "the local address");
    ensure!(source.port() != 0, "port 0 was not replaced");
    let again = errno(connector.bind(device().addr(0)).map(drop))?;
    ensure_eq!(again, libc::EINVAL, "a second address");
    let resolving = connector.resolve(listener.local_addr(), soon())?;
    ensure!(!resolving.has_address(), "nobody has taken an event");
    let resolved = resolving.wait()?;
    ensure_eq!(resolved.local_addr(), Some(source), "the local address");
    let (_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, &ConnParams::default(), &[])?;
    let request = listener.next_request(soon())?;
    ensure_eq!(request.peer_addr(), source, "what the server sees");
    drop((request, client));
    // Given up at once, bound or not.
    let connector = Connector::new(&IdOptions::default())?;
    connector.bind(source)?;
    drop((connector, Connector::new(&IdOptions::default())?));
    bind(source)?;
    Ok(())
}

/// The device's link-local address with its scope, if it has one.
fn link_local_address() -> Result<Option<SocketAddrV6>, Failed> {
    let table = std::fs::read_to_string("/proc/net/if_inet6")?;
    for line in table.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [address, index, _, _, _, name] = fields[..] else {
            continue;
        };
        let ip = Ipv6Addr::from(u128::from_str_radix(address, 16)?);
        if name == device().interface && ip.is_unicast_link_local() {
            let scope = u32::from_str_radix(index, 16)?;
            return Ok(Some(SocketAddrV6::new(ip, 0, 0, scope)));
        }
    }
    Ok(None)
}

fn link_local() -> Outcome {
    let Some(local) = link_local_address()? else {
        return Err("the interface has no link-local address".into());
    };
    let listener = bind(SocketAddr::V6(local))?;
    let to = listener.local_addr();
    let SocketAddr::V6(v6) = to else {
        return Err(format!("{to} is no IPv6 address").into());
    };
    ensure_eq!(v6.scope_id(), local.scope_id(), "the listener's scope");
    let (client, _queues) = begin(to, &[])?;
    let request = listener.next_request(soon())?;
    let SocketAddr::V6(peer) = request.peer_addr() else {
        return Err("the peer has no IPv6 address".into());
    };
    ensure_eq!(peer.ip(), local.ip(), "the peer");
    ensure_eq!(peer.scope_id(), local.scope_id(), "the peer's scope");
    ensure_eq!(
        peer.to_string().parse().ok(),
        Some(peer),
        "printed and read again"
    );
    drop((request, client));
    // The kernel would take whichever interface its routes name first.
    let start = std::time::Instant::now();
    let without = SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0).into();
    let mut options = ConnectOptions::default();
    let error = Resolving::start(without, &options, soon())
        .err()
        .ok_or("a link-local address without its interface was looked for")?;
    ensure!(
        error.hint().is_some_and(|hint| hint.contains("%interface")),
        "no advice with {error}"
    );
    ensure!(start.elapsed() < SECOND, "took {:?}", start.elapsed());
    let error = bind(without).err().ok_or("bound without an interface")?;
    ensure!(
        error.hint().is_some_and(|hint| hint.contains("%interface")),
        "no advice with {error}"
    );
    // The source may say it.
    options.source = Some(local.into());
    let resolved = Resolving::start(without, &options, soon())?.wait()?;
    ensure_eq!(resolved.peer_addr(), to, "the address with its scope");
    Ok(())
}

fn link_local_wildcard() -> Outcome {
    let Some(local) = link_local_address()? else {
        return Err("the interface has no link-local address".into());
    };
    let listener = bind((Ipv6Addr::UNSPECIFIED, 0).into())?;
    let to = SocketAddr::new(IpAddr::V6(*local.ip()), listener.local_addr().port());
    let SocketAddr::V6(mut to) = to else {
        return Err("no IPv6 address".into());
    };
    to.set_scope_id(local.scope_id());
    // The interface as a name and as its number, in the forms in which people write them.
    let hints = AddressHints::default();
    let port = to.port().to_string();
    for zone in [device().interface.clone(), local.scope_id().to_string()] {
        let node = format!("{}%{zone}", to.ip());
        let found = address_info(Some(&node), Some(&port), &hints)?;
        let target = found.first().and_then(|info| info.target);
        ensure_eq!(target, Some(to.into()), "the address of {node}");
    }
    ensure_eq!(to.to_string().parse().ok(), Some(to), "printed and read");
    let (client, _queues) = begin(to.into(), &[])?;
    let request = listener.next_request(soon())?;
    ensure_eq!(Some(request.peer_addr()), client.local_addr(), "the peer");
    ensure_eq!(request.local_addr(), Some(to.into()), "the local address");
    let (_server_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    // Both sides keep the interface, so that either can be called back.
    ensure_eq!(client.peer_addr(), to.into(), "the server");
    ensure_eq!(Some(server.peer_addr()), client.local_addr(), "the client");
    Ok(())
}

/// Without the privilege to take low ports, in a thread of its own.
fn low_port() -> Outcome {
    let unprivileged = std::thread::spawn(|| -> Result<_, Failed> {
        let mut sets = capabilities(None)?;
        sets.effective.remove(CapabilitySet::NET_BIND_SERVICE);
        set_capabilities(None, sets)?;
        Ok(bind(device().addr(80)).map(drop))
    });
    let result = unprivileged.join().map_err(|_| "the thread panicked")??;
    let error = result.err().ok_or("port 80 without the privilege")?;
    ensure!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("CAP_NET_BIND_SERVICE")),
        "no advice with {error}"
    );
    ensure_eq!(errno::<()>(Err(error))?, libc::EACCES, "port 80");
    bind(device().addr(80))?;
    Ok(())
}

const NO_IPV6: &str = "/proc/sys/net/ipv6/conf/all/disable_ipv6";

/// The machine without IPv6, and with the interface's addresses again when this is dropped.
struct WithoutIpv6(Vec<String>);

impl WithoutIpv6 {
    fn new() -> Result<Self, Failed> {
        let interface = device().interface.as_str();
        let shown = Command::new("ip")
            .args([
                "-6", "-o", "addr", "show", "dev", interface, "scope", "global",
            ])
            .output()?;
        let words = String::from_utf8(shown.stdout)?;
        let addresses = words
            .lines()
            .filter_map(|line| line.split_whitespace().nth(3).map(str::to_owned))
            .collect();
        let this = Self(addresses);
        std::fs::write(NO_IPV6, "1")?;
        Ok(this)
    }
}

impl Drop for WithoutIpv6 {
    fn drop(&mut self) {
        let _ = std::fs::write(NO_IPV6, "0");
        for address in &self.0 {
            let _ = Command::new("ip")
                .args(["addr", "replace", address, "dev", &device().interface])
                .status();
        }
        // The device's table follows in its own time.
        let deadline = soon();
        while !deadline.has_passed() && !matches!(link_local_address(), Ok(Some(_))) {
            std::thread::sleep(SECOND / 100);
        }
        for address in &self.0 {
            let ip = address.split('/').next().and_then(|ip| ip.parse().ok());
            let Some(ip) = ip else { continue };
            while !deadline.has_passed() && bind(SocketAddr::new(ip, 0)).is_err() {
                std::thread::sleep(SECOND / 100);
            }
        }
    }
}

fn without_ipv6() -> Outcome {
    let ip = device().ip;
    if ip.is_ipv6() {
        // The device in use would be gone.
        return Ok(());
    }
    let off = WithoutIpv6::new()?;
    ensure!(link_local_address()?.is_none(), "IPv6 is still there");
    for every in [
        IpAddr::from(Ipv4Addr::UNSPECIFIED),
        IpAddr::from(Ipv6Addr::UNSPECIFIED),
    ] {
        let listener = bind(SocketAddr::new(every, 0))?;
        let to = SocketAddr::new(ip, listener.local_addr().port());
        let (client, _queues) = begin(to, &[])?;
        let request = listener.next_request(soon())?;
        ensure_eq!(request.local_addr(), Some(to), "the local address");
        let (_server_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, &ConnParams::default(), &[])?;
        client.wait_established(soon())?;
        server.wait_established(soon())?;
    }
    let addr: SocketAddr = "[2001:db8::1]:0".parse()?;
    let error = bind(addr).err().ok_or("an IPv6 address was bound")?;
    ensure_eq!(error, Error::NoSuchAddress { addr }, "{error}");
    drop(off);
    Ok(())
}

fn names() -> Outcome {
    let node = device().ip.to_string();
    let mut hints = AddressHints::default();
    (hints.passive, hints.numeric_host) = (true, true);
    let found = address_info(Some(&node), Some("7204"), &hints)?;
    let source = found.first().and_then(|info| info.source);
    ensure_eq!(source, Some(device().addr(7204)), "an address to listen at");
    hints.passive = false;
    hints.source = Some(device().addr(0));
    let found = address_info(Some(&node), Some("7204"), &hints)?;
    let info = found.first().ok_or("nothing found")?;
    ensure_eq!(
        info.target,
        Some(device().addr(7204)),
        "an address to connect to"
    );
    ensure_eq!(info.source, hints.source, "the source");
    let error = address_info(Some("no.such.name.invalid"), None, &hints).err();
    ensure!(
        matches!(error, Some(Error::NameNotResolved { .. })),
        "{error:?}"
    );
    Ok(())
}
