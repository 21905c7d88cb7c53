//! Ctrl-C.

use std::thread;
use std::time::{Duration, Instant};

use harness::{Child, Failed, Need, Outcome, SECOND, Test, ensure, ensure_eq, full};

use crate::program::{
    LIMIT, Server, all_of, explained, free_port, in_time, presentable, rpma_ping, run, silent, test,
};

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "an_interrupted_client_prints_its_summary_and_ends_with_success",
            &device,
            interrupted,
        ),
        test(
            "an_interrupt_between_two_rounds_is_heard_at_once",
            &device,
            between_rounds,
        ),
        test(
            "an_interrupted_round_that_does_not_come_back_is_lost",
            &device,
            lost,
        ),
        test(
            "an_interrupt_while_waiting_for_a_server_ends_the_wait",
            &device,
            while_waiting,
        ),
        test("a_second_interrupt_kills", &device, twice),
        test(
            "an_interrupted_loopback_ends_its_round_and_succeeds",
            &device,
            loopback,
        ),
        test(
            "a_minute_of_rounds_without_a_pause_loses_nothing_and_keeps_its_size",
            &device,
            soak,
        )
        .limit(240)
        .long(),
    ]
}

/// The numbers of rounds sent, received, lost and wrong in a summary.
fn summary(text: &str) -> Result<[u64; 4], Failed> {
    let line = text
        .lines()
        .find(|line| line.starts_with("--- rpma-ping ") && line.ends_with(" (interrupted) ---"))
        .ok_or_else(|| format!("no summary of an interrupted run in:\n{text}"))?;
    let mut counts = [0; 4];
    for (count, word) in counts
        .iter_mut()
        .zip([" sent", " received", " lost", " wrong"])
    {
        let before = line.split_once(word).ok_or("a word is missing")?.0;
        let digits = before.rsplit(' ').next().unwrap_or_default();
        *count = digits.parse()?;
    }
    Ok(counts)
}

fn interrupted() -> Outcome {
    let server = Server::start(&["--once"])?;
    let client = Child::start(rpma_ping().args([&server.target, "-i", "0"]))?;
    client.wait_line("seq=5 ", LIMIT)?;
    client.signal(libc::SIGINT)?;
    let client = client.finish(LIMIT)?;
    silent(&client, 0)?;
    let [sent, received, lost, wrong] = summary(&client.stdout)?;
    ensure!(
        sent >= 6 && received == sent && lost == 0 && wrong == 0,
        "{}",
        all_of(&client)
    );
    ensure!(client.stdout.contains("\nround "), "{}", all_of(&client));
    let server = server.finish()?;
    silent(&server, 0)?;
    ensure!(
        server
            .stdout
            .contains(&format!(": ended, {received} received, 0 lost, 0 wrong")),
        "{}",
        all_of(&server)
    );
    Ok(())
}

fn between_rounds() -> Outcome {
    in_time(|| {
        let server = Server::start(&["--once"])?;
        let client = Child::start(rpma_ping().args([&server.target, "-i", "3600"]))?;
        client.wait_line("seq=0 ", LIMIT)?;
        let since = Instant::now();
        client.signal(libc::SIGTERM)?;
        let client = client.finish(LIMIT)?;
        let took = since.elapsed();
        silent(&client, 0)?;
        ensure_eq!(summary(&client.stdout)?, [1, 1, 0, 0], "rounds");
        silent(&server.finish()?, 0)?;
        Ok((took, SECOND))
    })
}

fn lost() -> Outcome {
    in_time(|| {
        let server = Server::start(&["--once"])?;
        let client = Child::start(rpma_ping().args([&server.target, "-i", "0", "-W", "30"]))?;
        client.wait_line("seq=3 ", LIMIT)?;
        server.child.signal(libc::SIGSTOP)?;
        thread::sleep(SECOND / 5);
        let since = Instant::now();
        client.signal(libc::SIGINT)?;
        let client = client.finish(LIMIT)?;
        let took = since.elapsed();
        presentable(&client)?;
        ensure_eq!(client.code(), 1, "{}", all_of(&client));
        let [sent, received, lost, _] = summary(&client.stdout)?;
        ensure!(lost == 1 && sent == received + 1, "{}", all_of(&client));
        Ok((took, 2 * SECOND))
    })
}

/// Waits until a process has a handler for SIGINT.
fn takes_interrupts(process: &Child) -> Outcome {
    let start = Instant::now();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
        let caught = status
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:"))
            .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .ok_or("no SigCgt")?;
        // Signal number n is bit n - 1.
        if caught & 1 << (libc::SIGINT - 1) != 0 {
            return Ok(());
        }
        ensure!(start.elapsed() < LIMIT, "no handler for SIGINT: {status}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn while_waiting() -> Outcome {
    let port = free_port()?.to_string();
    let ip = harness::device().ip.to_string();
    in_time(|| {
        let client = Child::start(rpma_ping().args([&ip, "-p", &port, "-W", "60"]))?;
        takes_interrupts(&client)?;
        // It is waiting, or about to: either must end.
        thread::sleep(SECOND / 2);
        let since = Instant::now();
        client.signal(libc::SIGINT)?;
        let client = client.finish(LIMIT)?;
        presentable(&client)?;
        // Nothing came back, so nothing shows that all is well.
        ensure_eq!(client.code(), 1, "{}", all_of(&client));
        ensure_eq!(summary(&client.stdout)?, [0, 0, 0, 0], "rounds");
        Ok((since.elapsed(), 2 * SECOND))
    })
}

/// The first of two signals gives the round under way half a second; the second must come within
/// it, so a machine that is busy elsewhere gets more than one try.
fn twice() -> Outcome {
    let mut codes = Vec::new();
    for _ in 0..5 {
        let server = Server::start(&["--once"])?;
        let client = Child::start(rpma_ping().args([&server.target, "-i", "0", "-W", "30"]))?;
        client.wait_line("seq=3 ", LIMIT)?;
        server.child.signal(libc::SIGSTOP)?;
        thread::sleep(SECOND / 5);
        client.signal(libc::SIGINT)?;
        thread::sleep(Duration::from_millis(100));
        client.signal(libc::SIGINT)?;
        let code = client.finish(LIMIT)?.code();
        if code == -libc::SIGINT {
            return Ok(());
        }
        codes.push(code);
    }
    Err(format!("codes {codes:?}, and never killed by the signal").into())
}

/// The signal reaches both ends at once, and must not make the one give the other up.
fn loopback() -> Outcome {
    let ip = harness::device().ip.to_string();
    for interval in ["0", "0.05"] {
        let mut command = rpma_ping();
        command.args(["--loopback", &ip, "-c", "1000000", "-i", interval]);
        let ping = Child::start(&mut command)?;
        ping.wait_line("seq=5 ", LIMIT)?;
        ping.signal(libc::SIGINT)?;
        let ping = ping.finish(LIMIT)?;
        silent(&ping, 0)?;
        let [sent, received, lost, wrong] = summary(&ping.stdout)?;
        ensure!(
            sent >= 6 && received == sent && lost == 0 && wrong == 0,
            "{}",
            all_of(&ping)
        );
    }
    Ok(())
}

/// The resident memory of a process, in KiB.
fn memory(process: &Child) -> Result<u64, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.ok_or("no VmRSS")?.trim().parse()?)
}

fn soak() -> Outcome {
    ensure!(full(), "a long test");
    let ip = harness::device().ip.to_string();
    let ping = Child::start(rpma_ping().args([
        "--loopback",
        &ip,
        "-c",
        "100000000",
        "-i",
        "0",
        "-q",
        "-s",
        "4k",
    ]))?;
    thread::sleep(10 * SECOND);
    let before = memory(&ping)?;
    thread::sleep(50 * SECOND);
    let after = memory(&ping)?;
    ping.signal(libc::SIGINT)?;
    let ping = ping.finish(LIMIT)?;
    silent(&ping, 0)?;
    let [sent, received, lost, wrong] = summary(&ping.stdout)?;
    ensure!(
        received == sent && lost == 0 && wrong == 0 && received > 100,
        "{}",
        all_of(&ping)
    );
    ensure!(
        after <= before + 1024,
        "memory: {before} KiB after 10 s, {after} KiB after 60 s and {received} rounds"
    );
    // The machine works on.
    let again = run(rpma_ping().args(["--loopback", &ip, "-c", "1"]))?;
    silent(&again, 0)?;
    explained(&again, 0, &[])
}
