//! Rounds in which everything is right.

use std::net::Ipv6Addr;

use harness::{Child, Failed, Need, Outcome, Test, device, ensure, ensure_eq};

use crate::program::{LIMIT, Server, all_of, rpma_ping, run, silent, test};

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "a_hundred_rounds_of_all_operations_arrive_and_both_ends_say_so",
            &device,
            a_hundred_rounds,
        ),
        test("each_operation_works_alone", &device, each_operation),
        test(
            "every_size_works_from_one_byte_to_a_mebibyte",
            &device,
            sizes,
        ),
        test("both_ends_speak_ipv6", &device, ipv6),
        test(
            "a_link_local_address_works_with_its_interface",
            &device,
            link_local,
        ),
        test("loopback_runs_both_ends_in_one_process", &device, loopback),
        test(
            "a_server_without_an_address_takes_a_device_and_says_which",
            &device,
            without_address,
        ),
        test(
            "port_0_is_a_free_port_that_the_server_names",
            &device,
            port_0,
        ),
        test("quiet_leaves_the_lines_of_rounds_out", &device, quiet),
    ]
}

/// Runs a client with `arguments` against a server for one client, and checks both ends' reports
/// of `count` good rounds.
fn good(server: Server, count: u64, arguments: &[&str]) -> Outcome {
    let count_text = count.to_string();
    let mut command = server.client(&["-c", &count_text, "-i", "0"]);
    let client = run(command.args(arguments))?;
    silent(&client, 0)?;
    let summary = format!(
        "--- rpma-ping {}: {count} sent, {count} received, 0 lost, 0 wrong in ",
        server.target
    );
    ensure!(
        client.stdout.contains(&summary),
        "no {summary:?}: {}",
        all_of(&client)
    );
    let target = server.target.clone();
    let server = server.finish()?;
    silent(&server, 0)?;
    let ended = format!(": ended, {count} received, 0 lost, 0 wrong\n");
    // Without an address given it listens on others as well, and names all of them.
    let named = format!("--- rpma-ping server {target}");
    let total = format!(
        ": 1 clients served, 0 of them with trouble, 0 refused; \
         {count} rounds received, 0 lost, 0 wrong ---"
    );
    for part in [&ended, &named, &total] {
        ensure!(
            server.stdout.contains(part),
            "the server does not say {part:?}: {}",
            all_of(&server)
        );
    }
    Ok(())
}

fn a_hundred_rounds() -> Outcome {
    let server = Server::start(&["--once"])?;
    good(server, 100, &["-s", "65536", "--op", "all"])
}

fn each_operation() -> Outcome {
    for operation in ["send", "write", "read", "flush", "read,send"] {
        let server = Server::start(&["--once"])?;
        good(server, 5, &["-s", "4k", "--op", operation])?;
    }
    Ok(())
}

fn sizes() -> Outcome {
    for size in ["1", "7", "64", "4096", "1MiB"] {
        let server = Server::start(&["--once"])?;
        good(server, 3, &["-s", size])?;
    }
    Ok(())
}

/// The addresses of the device's interface, with their scopes.
fn ipv6_addresses() -> Result<Vec<Ipv6Addr>, Failed> {
    let text = std::fs::read_to_string("/proc/net/if_inet6")?;
    let own = |line: &str| {
        let mut fields = line.split_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        (fields.nth(4)? == device().interface).then(|| Ipv6Addr::from_bits(address))
    };
    Ok(text.lines().filter_map(own).collect())
}

fn ipv6() -> Outcome {
    let address = ipv6_addresses()?
        .into_iter()
        .find(|address| !address.is_unicast_link_local())
        .ok_or("the device's interface has no IPv6 address")?;
    let server = Server::from(rpma_ping().args(["server", &format!("[{address}]:0"), "--once"]))?;
    ensure!(
        server.target.starts_with(&format!("[{address}]:")),
        "{} is not in brackets",
        server.target
    );
    let port = server.addr()?.port().to_string();
    // Once with the port in the address, once beside it.
    let client = run(rpma_ping().args([&address.to_string(), "-p", &port, "-c", "1", "-q"]))?;
    silent(&client, 0)?;
    silent(&server.finish()?, 0)?;
    let server = Server::from(rpma_ping().args(["server", &format!("[{address}]:0"), "--once"]))?;
    good(server, 3, &[])
}

fn link_local() -> Outcome {
    let address = ipv6_addresses()?
        .into_iter()
        .find(Ipv6Addr::is_unicast_link_local)
        .ok_or("the device's interface has no link-local address")?;
    let scoped = format!("{address}%{}", device().interface);
    let server = Server::from(rpma_ping().args(["server", &format!("[{scoped}]:0"), "--once"]))?;
    let port = server
        .target
        .rsplit_once(':')
        .ok_or("no port in the target")?
        .1
        .to_owned();
    let client = run(rpma_ping().args([&format!("[{scoped}]:{port}"), "-c", "3", "-i", "0"]))?;
    silent(&client, 0)?;
    silent(&server.finish()?, 0)?;
    // The number of the interface will do, as the program itself prints it.
    let server = Server::from(rpma_ping().args(["server", &format!("[{scoped}]:0"), "--once"]))?;
    good(server, 2, &[])
}

fn loopback() -> Outcome {
    let ip = device().ip.to_string();
    for arguments in [&["--loopback", &ip][..], &["--loopback"]] {
        let finished = run(rpma_ping().args(arguments).args(["-c", "4", "-i", "0"]))?;
        silent(&finished, 0)?;
        ensure!(
            finished
                .stdout
                .contains(": 4 sent, 4 received, 0 lost, 0 wrong in "),
            "{}",
            all_of(&finished)
        );
    }
    Ok(())
}

fn without_address() -> Outcome {
    let server = Server::from(rpma_ping().args(["server", "-p", "0", "--once"]))?;
    let line = server.child.wait_line("listening on ", LIMIT)?;
    let named = format!("(device {})", device().name);
    ensure!(line.contains(&named), "no {named:?} in {line:?}");
    good(server, 1, &[])
}

fn port_0() -> Outcome {
    let (one, other) = (Server::start(&["--once"])?, Server::start(&["--once"])?);
    let (first, second) = (one.addr()?.port(), other.addr()?.port());
    ensure!(
        first != 0 && second != 0 && first != second,
        "ports {first} and {second}"
    );
    silent(&one.stop()?, 0)?;
    good(other, 1, &[])
}

fn quiet() -> Outcome {
    let server = Server::start(&[])?;
    let loud = Child::start(rpma_ping().args([&server.target, "-c", "3", "-i", "0"]))?;
    let loud = loud.finish(LIMIT)?;
    silent(&loud, 0)?;
    for sequence in 0..3 {
        let start = format!("64 bytes: seq={sequence} send=");
        ensure_eq!(
            loud.stdout
                .lines()
                .filter(|line| line.starts_with(&start))
                .count(),
            1,
            "lines with {start:?}: {}",
            all_of(&loud)
        );
    }
    let quiet = run(&mut server.client(&["-c", "3", "-i", "0"]))?;
    silent(&quiet, 0)?;
    ensure!(!quiet.stdout.contains("seq="), "{}", all_of(&quiet));
    silent(&server.stop()?, 0)
}
