//! Everything that is made is released, in an order in which no release fails.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use harness::{Child, Failed, Need, Outcome, Test, c_library, device, ensure, ensure_eq, full};

use crate::program::{
    LIMIT, Server, all_of, explained, presentable, rpma_ping, run, silent, test, through,
};

pub(crate) fn tests() -> Vec<Test> {
    let shim = [Need::Device, Need::C];
    let mut tests = vec![
        test(
            "every_run_that_goes_well_releases_all_that_it_made",
            &shim,
            good_runs,
        ),
        test(
            "every_run_that_ends_badly_releases_all_that_it_made",
            &shim,
            bad_runs,
        ),
        test(
            "a_step_that_fails_is_named_and_what_was_made_before_it_is_released",
            &shim,
            failing_steps,
        )
        .limit(180),
    ];
    tests.push(
        test(
            "memcheck_finds_no_error_and_nothing_definitely_lost",
            &[Need::Device, Need::Tool("valgrind")],
            memcheck,
        )
        .limit(300)
        .long(),
    );
    tests
}

/// Where a program under test writes what it made and released.
struct Report(PathBuf);

/// The objects of one kind.
struct Count {
    kind: String,
    made: u64,
    released: u64,
    failed: u64,
    errno: i32,
}

impl Report {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpma-release-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Makes a command count, and write here at its end.
    fn of<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let mut preload = OsString::from(c_library("release"));
        if let Some(other) = std::env::var_os("LD_PRELOAD") {
            preload.push(" ");
            preload.push(other);
        }
        command
            .env("LD_PRELOAD", preload)
            .env("RPMA_RELEASE_REPORT", &self.0)
    }

    fn counts(&self) -> Result<Vec<Count>, Failed> {
        let text = fs::read_to_string(&self.0)
            .map_err(|error| format!("no report of a program that ended by itself: {error}"))?;
        text.lines()
            .map(|line| {
                let words: Vec<_> = line.split_whitespace().collect();
                let [kind, made, released, failed, errno] = words[..] else {
                    return Err(Failed::from(format!("{line:?} is no count")));
                };
                Ok(Count {
                    kind: kind.to_owned(),
                    made: made.parse()?,
                    released: released.parse()?,
                    failed: failed.parse()?,
                    errno: errno.parse()?,
                })
            })
            .collect()
    }

    /// Checks that nothing failed and nothing is left, and gives the number of queue pairs made.
    fn check(&self, what: &str) -> Result<u64, Failed> {
        let mut pairs = 0;
        let counts = self.counts()?;
        ensure_eq!(counts.len(), 6, "{what}: kinds of objects");
        for Count {
            kind,
            made,
            released,
            failed,
            errno,
        } in counts
        {
            ensure_eq!(
                failed,
                0,
                "{what}: releases of a {kind} that failed, the last with errno {errno}"
            );
            // librdmacm has a protection domain of its own for each device, for good.
            let kept = if kind == "pd" { device_count() } else { 0 };
            ensure!(
                released <= made && made - released <= kept,
                "{what}: {made} {kind} made, {released} released"
            );
            if kind == "qp" {
                pairs = made;
            }
        }
        Ok(pairs)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        // There is no file when the program was killed or did not start.
        let _ = fs::remove_file(&self.0);
    }
}

fn device_count() -> u64 {
    fs::read_dir("/sys/class/infiniband").map_or(0, |entries| entries.count() as u64)
}

/// A server and a client that count, each with its report.
fn both(server_arguments: &[&str]) -> Result<(Server, Report, Report), Failed> {
    let report = Report::new();
    let ip = device().ip.to_string();
    let mut command = rpma_ping();
    command
        .args(["server", &ip, "-p", "0"])
        .args(server_arguments);
    let server = Server::from(report.of(&mut command))?;
    Ok((server, report, Report::new()))
}

fn good_runs() -> Outcome {
    let report = Report::new();
    let mut loopback = rpma_ping();
    loopback.args(["--loopback", &device().ip.to_string(), "-c", "2", "-i", "0"]);
    silent(&run(report.of(&mut loopback))?, 0)?;
    ensure_eq!(report.check("loopback")?, 2, "queue pairs of a loopback");

    let (server, server_report, client_report) = both(&["--once"])?;
    let mut client = server.client(&["-c", "2", "-i", "0", "-s", "1M", "--json"]);
    silent(&run(client_report.of(&mut client))?, 0)?;
    silent(&server.finish()?, 0)?;
    ensure_eq!(server_report.check("server")?, 1, "queue pairs");
    ensure_eq!(client_report.check("client")?, 1, "queue pairs");

    let (server, server_report, client_report) = both(&[])?;
    for _ in 0..3 {
        let mut client = server.client(&["-c", "2", "-i", "0"]);
        silent(&run(client_report.of(&mut client))?, 0)?;
        client_report.check("one client of several")?;
    }
    silent(&server.stop()?, 0)?;
    ensure_eq!(server_report.check("persistent server")?, 3, "queue pairs");
    Ok(())
}

fn bad_runs() -> Outcome {
    // Nobody listens: each try is a queue pair.
    let report = Report::new();
    let ip = device().ip.to_string();
    let mut client = rpma_ping();
    client.args([&ip, "-p", "9", "-W", "1"]);
    explained(&run(report.of(&mut client))?, 1, &["no listener at "])?;
    ensure!(
        report.check("without a listener")? >= 1,
        "there was a queue pair"
    );

    // Refused by the server.
    let (server, server_report, client_report) = both(&[])?;
    let mut client = server.client(&["-c", "1"]);
    client.env("RPMA_PING_TEST_VERSION", "7");
    explained(&run(client_report.of(&mut client))?, 1, &["refused"])?;
    client_report.check("refused client")?;

    // Interrupted in the middle.
    let mut client = rpma_ping();
    client.args([&server.target, "-i", "0"]);
    let client = Child::start(client_report.of(&mut client))?;
    client.wait_line("seq=2 ", LIMIT)?;
    client.signal(libc::SIGINT)?;
    silent(&client.finish(LIMIT)?, 0)?;
    client_report.check("interrupted client")?;

    // A client that is killed, and a server that is told to end while it serves another.
    let client = Child::start(rpma_ping().args([&server.target, "-i", "0"]))?;
    client.wait_line("seq=2 ", LIMIT)?;
    client.signal(libc::SIGKILL)?;
    client.finish(LIMIT)?;
    let mut client = rpma_ping();
    client.args([&server.target, "-i", "0.01"]);
    let client = Child::start(client_report.of(&mut client))?;
    client.wait_line("seq=2 ", LIMIT)?;
    explained(&server.stop()?, 0, &["interrupted while serving "])?;
    server_report.check("server with bad clients")?;
    ensure_eq!(client.finish(LIMIT)?.code(), 1, "code");
    client_report.check("client of a server that ended")?;

    // Wrong bytes, and a server that is killed.
    let (server, _, client_report) = both(&[])?;
    let mut client = server.client(&["-c", "2", "-i", "0"]);
    client.env("RPMA_PING_TEST_FLIP", "client:write:0@0");
    explained(&run(client_report.of(&mut client))?, 1, &["wrong byte"])?;
    client_report.check("client with a wrong byte")?;
    let mut client = rpma_ping();
    client.args([&server.target, "-i", "0", "-W", "10"]);
    let client = Child::start(client_report.of(&mut client))?;
    client.wait_line("seq=2 ", LIMIT)?;
    server.child.signal(libc::SIGKILL)?;
    ensure_eq!(client.finish(LIMIT)?.code(), 1, "code");
    client_report.check("client of a killed server")?;
    Ok(())
}

/// Every step on the way to a connection fails once, in a process that is both ends.
fn failing_steps() -> Outcome {
    let ip = device().ip.to_string();
    let mut struck = Vec::new();
    for step in [
        "rdma_create_event_channel",
        "rdma_create_id",
        "rdma_bind_addr",
        "rdma_listen",
        "rdma_resolve_addr",
        "rdma_resolve_route",
        "ibv_alloc_pd",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_reg_mr_iova2",
        "rdma_connect",
        "rdma_accept",
        "rdma_establish",
    ] {
        // The verb that the library names. (What registers memory has another symbol.)
        let verb = step.trim_end_matches("_iova2");
        // librdmacm itself makes some of the first calls.
        for nth in if full() { 1..=9 } else { 1..=2 } {
            harness::phase(format!("{step} fails at call {nth}"));
            let report = Report::new();
            let mut command = rpma_ping();
            command
                .args(["--loopback", &ip, "-c", "1", "-i", "0", "-W", "5"])
                .env("RPMA_RELEASE_FAIL", format!("{step}:{nth}"));
            let finished = run(report.of(&mut command))?;
            report.check(&format!("{step}, call {nth}"))?;
            presentable(&finished)?;
            if finished.code() == 0 {
                // librdmacm can do without its first id, and there are not always so many calls.
                continue;
            }
            ensure_eq!(finished.code(), 1, "{step}: {}", all_of(&finished));
            // Whichever end it strikes.
            explained(&finished, 1, &["(errno 12)"])?;
            if finished.stderr.contains(&format!("{verb} failed: "))
                && finished.stderr.contains("(errno 12)")
            {
                struck.push(step);
            }
        }
        ensure!(struck.contains(&step), "{step} never failed by name");
    }
    Ok(())
}

fn memcheck() -> Outcome {
    let options = [
        "valgrind",
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        "--show-leak-kinds=definite",
        "--errors-for-leak-kinds=definite",
    ];
    let ip = device().ip.to_string();
    let mut command = through(&options);
    command.args([
        "--loopback",
        &ip,
        "-c",
        "3",
        "-s",
        "4096",
        "--op",
        "all",
        "-i",
        "0",
        "-W",
        "60",
    ]);
    let finished = Child::start(&mut command)?.finish(6 * LIMIT)?;
    ensure_eq!(finished.code(), 0, "{}", all_of(&finished));
    ensure!(
        finished
            .stdout
            .contains(": 3 sent, 3 received, 0 lost, 0 wrong in "),
        "{}",
        all_of(&finished)
    );
    Ok(())
}
