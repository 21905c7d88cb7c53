//! The client comes before the server, or there is none.

use std::thread;
use std::time::{Duration, Instant};

use harness::{Child, Need, Outcome, SECOND, Test, device, ensure, ensure_eq};
use serde_json::Value;

use crate::program::{
    LIMIT, Server, bare_cost, explained, free_port, in_time, refused, rpma_ping, silent, test,
    timed,
};

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "without_a_listener_a_client_waits_as_long_as_it_was_told_and_says_so",
            &device,
            no_listener,
        ),
        test(
            "without_a_listener_and_without_waiting_a_client_ends_at_once",
            &device,
            no_waiting,
        ),
        test(
            "a_client_that_comes_first_waits_and_its_times_are_without_the_wait",
            &device,
            client_first,
        ),
        test(
            "an_address_that_no_machine_has_is_given_up_at_the_deadline",
            &device,
            nobody_there,
        ),
    ]
}

fn no_listener() -> Outcome {
    let ip = device().ip.to_string();
    let port = free_port()?.to_string();
    in_time(|| {
        let bare = bare_cost()?;
        let (finished, took) = timed(rpma_ping().args([&ip, "-p", &port, "-W", "2"]))?;
        let sentence = format!(
            "no listener at {} after waiting 2 s",
            device().addr(port.parse()?)
        );
        explained(
            &finished,
            1,
            &[&sentence, "  hint: start rpma-ping server there"],
        )?;
        ensure!(took >= 2 * SECOND, "given up after {took:?}");
        Ok((took, 2 * SECOND + SECOND / 2 + bare))
    })
}

fn no_waiting() -> Outcome {
    let ip = device().ip.to_string();
    let port = free_port()?;
    in_time(|| {
        let (help, bare) = timed(rpma_ping().arg("--help"))?;
        silent(&help, 0)?;
        let (finished, took) = timed(rpma_ping().args([&ip, "-p", &port.to_string(), "-W", "0"]))?;
        let sentence = format!("rpma-ping: no listener at {}\n", device().addr(port));
        refused(&finished, 1, &[&sentence])?;
        Ok((took, SECOND / 2 + bare))
    })
}

fn client_first() -> Outcome {
    let ip = device().ip.to_string();
    let port = free_port()?.to_string();
    let started = Instant::now();
    let client = Child::start(
        rpma_ping().args([&ip, "-p", &port, "-W", "30", "-c", "3", "-i", "0", "--json"]),
    )?;
    thread::sleep(3 * SECOND);
    let server = Server::from(rpma_ping().args(["server", &ip, "-p", &port, "--once"]))?;
    let client = client.finish(LIMIT)?;
    let whole = started.elapsed();
    silent(&client, 0)?;
    silent(&server.finish()?, 0)?;
    let document: Value = serde_json::from_str(&client.stdout)?;
    let of = |pointer: &str| {
        let number = document.pointer(pointer).and_then(Value::as_u64);
        number
            .map(Duration::from_nanos)
            .ok_or_else(|| format!("no {pointer}: {}", client.stdout))
    };
    let (elapsed, longest) = (of("/client/elapsed_ns")?, of("/client/times/round/max_ns")?);
    ensure_eq!(
        document["client"]["rounds"]["received"],
        3,
        "rounds: {}",
        client.stdout
    );
    ensure!(
        longest <= elapsed && elapsed <= whole - 3 * SECOND,
        "the waiting is in the times: round {longest:?}, rounds {elapsed:?} of {whole:?}"
    );
    Ok(())
}

/// An address of the device's network that nobody answers for.
fn nobody_there() -> Outcome {
    let std::net::IpAddr::V4(own) = device().ip else {
        return Err("the test needs an IPv4 address of the device".into());
    };
    let [a, b, c, d] = own.octets();
    let other = std::net::Ipv4Addr::new(a, b, c, if d == 222 { 221 } else { 222 });
    in_time(|| {
        let (finished, took) = timed(rpma_ping().args([&other.to_string(), "-W", "2", "-c", "1"]))?;
        // A neighbour that does not answer is noticed by the system, or by the deadline first.
        explained(&finished, 1, &[&other.to_string()])?;
        Ok((took, 2 * SECOND + SECOND / 2 + bare_cost()?))
    })
}
