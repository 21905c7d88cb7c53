//! Ports, local addresses and options of ids.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener};

use harness::{Failed, Need, Outcome, SECOND, Test, WAIT, device, ensure, ensure_eq, rounds, test};
use rpma::cm::verbs::{ErrorKind, QpAttributes};
use rpma::cm::{
    AddressHints, ConnParams, ConnectOptions, Connector, DatagramListener, Deadline, Error,
    IdOptions, ListenOptions, Listener, Multicast, Resolving, address_info, device_of_local,
};

use crate::raw::{Queues, RawPair, begin, listener};

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
            "options_of_an_id_are_taken_and_the_connection_works",
            &[Need::Device],
            options,
        ),
        test(
            "a_link_local_address_needs_its_scope_and_keeps_it",
            &[Need::Device],
            link_local,
        ),
        test(
            "retries_are_as_asked_on_one_side_and_as_negotiated_on_the_other",
            &[Need::Device],
            retries,
        ),
        test(
            "rejecting_and_accepting_a_client_that_is_gone_leaves_a_listener_that_serves",
            &[Need::Device],
            client_gone,
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
        // A wildcard's port against that of one address.
        Err(Error::NoSuchAddress { .. }) => Ok(libc::EADDRNOTAVAIL),
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

fn overlapping_ports() -> Outcome {
    let first = listener()?;
    let addr = first.local_addr();
    ensure!(addr.port() != 0, "port 0 was not replaced");
    ensure_eq!(
        errno(bind(addr))?,
        libc::EADDRINUSE,
        "the same address again"
    );
    let overlap = errno(bind(wildcard(addr.port())))?;
    ensure!(
        [libc::EADDRNOTAVAIL, libc::EADDRINUSE].contains(&overlap),
        "a wildcard over it: errno {overlap}"
    );
    // Sockets and datagram ids have ports of their own.
    let _socket = TcpListener::bind(addr)?;
    let _datagrams = DatagramListener::bind(addr, &ListenOptions::default())?;
    drop(first);
    let all = bind(wildcard(addr.port()))?;
    let overlap = errno(bind(addr))?;
    ensure!(
        [libc::EADDRNOTAVAIL, libc::EADDRINUSE].contains(&overlap),
        "an address under a wildcard: errno {overlap}"
    );
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

fn options() -> Outcome {
    let mut listen = ListenOptions::default();
    listen.id.reuse_address = true;
    listen.id.type_of_service = Some(0x20);
    let listener = Listener::bind(device().addr(0), &listen)?;
    let mut connect = ConnectOptions::default();
    connect.id.type_of_service = Some(0x20);
    let resolving = Resolving::start(listener.local_addr(), &connect, soon())?;
    match resolving.set_ack_timeout(15) {
        Ok(()) => {}
        Err(Error::Call(error)) if error.kind() == ErrorKind::Unsupported => {}
        Err(error) => return Err(error.into()),
    }
    let resolved = resolving.wait()?;
    let (_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, &ConnParams::default(), &[])?;
    let request = listener.next_request(soon())?;
    // No device here has capabilities beyond the specification.
    request.remote_ece()?;
    let (_server_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    client.remote_ece()?;

    // An IPv6 wildcard, with and without IPv4.
    for v6_only in [true, false] {
        let mut options = ListenOptions::default();
        options.id.v6_only = Some(v6_only);
        let all = Listener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)), &options)?;
        let port = all.local_addr().port();
        if device().ip.is_ipv4() {
            let (client, _queues) = begin(device().addr(port), &[])?;
            if v6_only {
                // The kernel finds the port, and then no listener for the address: which of the two it
                // says is its own affair.
                let error = client.wait_established(soon()).err();
                let refused = matches!(
                    error,
                    Some(Error::NoListener { .. } | Error::Rejected { .. })
                );
                ensure!(refused, "{error:?}");
            } else {
                all.next_request(soon())?.reject(&[])?;
            }
        }
    }
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
    let start = std::time::Instant::now();
    let without = SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0).into();
    let options = ConnectOptions::default();
    // By the kernel's routes it is found all the same, or not; either way at once.
    match Resolving::start(without, &options, soon()).and_then(Resolving::wait) {
        Ok(_) => {}
        Err(error) => ensure!(
            error.hint().is_some_and(|hint| hint.contains("%interface")),
            "no advice with {error}"
        ),
    }
    ensure!(
        start.elapsed() < 3 * SECOND,
        "looked for it for {:?}",
        start.elapsed()
    );
    Ok(())
}

fn retries() -> Outcome {
    let values = |attributes: &QpAttributes| {
        let (raw, _) = attributes.as_raw();
        (raw.retry_cnt, raw.rnr_retry)
    };
    let pair = RawPair::new()?;
    for end in [&pair.client, &pair.server] {
        ensure_eq!(values(&end.qp().query()?.0), (6, 7), "the defaults");
    }
    let listener = listener()?;
    let resolved = crate::raw::resolve(listener.local_addr())?;
    let (_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let mut params = ConnParams::default();
    (params.retry_count, params.rnr_retry) = (3, 2);
    let client = resolved.connect(qp, &params, &[])?;
    let request = listener.next_request(soon())?;
    let (_server_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    ensure_eq!(
        values(&client.qp().query()?.0),
        (3, 2),
        "what was asked for"
    );
    Ok(())
}

fn client_gone() -> Outcome {
    let listener = listener()?;
    for round in 0..rounds(10, 200) {
        let (client, queues) = begin(listener.local_addr(), &[])?;
        let request = listener.next_request(soon())?;
        drop((client, queues));
        if round % 2 == 0 {
            request.reject(b"too late")?;
            continue;
        }
        let (_queues, qp) = Queues::new(request.context())?;
        // Refused at one of the steps, or a connection that ends at once.
        let accepted = request
            .init_qp(&qp)
            .and_then(|()| request.accept(qp, &ConnParams::default(), &[]));
        if let Ok(server) = accepted {
            let result = server.wait_established(Deadline::after(SECOND));
            ensure!(result.is_err(), "established with nobody");
        }
    }
    let (client, _queues) = begin(listener.local_addr(), &[])?;
    let request = listener.next_request(soon())?;
    let (_server_queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
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
