//! The other end is killed or stopped: who is left ends in time and says what happened.

use std::time::{Duration, Instant};

use harness::{Child, Failed, Finished, Need, Outcome, SECOND, Test, device, ensure};

use crate::program::{LIMIT, Server, all_of, explained, in_time, rpma_ping, run, silent, test};

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "a_client_whose_server_is_killed_ends_within_its_deadline_and_says_so",
            &device,
            server_killed,
        ),
        test(
            "a_client_whose_server_is_killed_as_it_accepts_ends_within_its_deadline",
            &device,
            server_killed_as_it_accepts,
        ),
        test(
            "a_client_whose_server_is_stopped_ends_at_its_deadline_and_names_the_step",
            &device,
            server_stopped,
        ),
        test(
            "a_client_of_a_server_that_never_answers_ends_at_its_deadline_and_names_the_step",
            &device,
            server_stopped_before,
        ),
        test(
            "a_server_whose_client_is_killed_goes_on_to_serve_the_next",
            &device,
            client_killed,
        ),
        test(
            "a_server_gives_a_stopped_client_up_a_second_after_the_clients_own_deadline",
            &device,
            client_stopped,
        ),
        test(
            "a_server_that_is_told_to_end_tells_its_client",
            &device,
            server_told_to_end,
        ),
    ]
}

/// A client that goes on until it is told to end, and is in the middle of it.
fn running_client(server: &Server, arguments: &[&str]) -> Result<Child, Failed> {
    let client = Child::start(rpma_ping().arg(&server.target).args(arguments))?;
    client.wait_line("seq=3 ", LIMIT)?;
    Ok(client)
}

/// Waits for the end of a process and says how long after `since` it came.
fn end_of(child: Child, since: Instant) -> Result<(Finished, Duration), Failed> {
    let finished = child.finish(LIMIT)?;
    Ok((finished, since.elapsed()))
}

/// The end of a process whose `other` end is gone: which of two kinds of news of that comes first
/// is up to the transport.
fn told_of_the_loss(finished: &Finished, code: i32, other: &str) -> Outcome {
    explained(finished, code, &[other, "(round "])?;
    let told = [
        format!("the connection to {other}"),
        format!("an operation with {other}"),
    ];
    ensure!(
        told.iter().any(|told| finished.stderr.contains(told)),
        "neither closed nor failed: {}",
        all_of(finished)
    );
    Ok(())
}

fn server_killed() -> Outcome {
    in_time(|| {
        let server = Server::start(&["--once"])?;
        let client = running_client(&server, &["-i", "0", "-W", "10", "-s", "4096"])?;
        let since = Instant::now();
        server.child.signal(libc::SIGKILL)?;
        let (client, took) = end_of(client, since)?;
        told_of_the_loss(&client, 1, &server.target)?;
        ensure!(
            client.stdout.contains(" sent, ") && client.stdout.contains(" 0 wrong in "),
            "the summary is printed all the same: {}",
            all_of(&client)
        );
        // Nothing has to be waited for: the kernel of a dead process closes its connections.
        Ok((took, 3 * SECOND))
    })
}

fn server_killed_as_it_accepts() -> Outcome {
    in_time(|| {
        let server = Server::start(&["--once"])?;
        let client = Child::start(rpma_ping().args([&server.target, "-W", "3", "-i", "0"]))?;
        server.child.wait_line("rounds until it stops", LIMIT)?;
        let since = Instant::now();
        server.child.signal(libc::SIGKILL)?;
        let (client, took) = end_of(client, since)?;
        // Before the connection stands, after it, in a round or between two: whichever it was, the
        // sentence names the server.
        explained(&client, 1, &[&server.target])?;
        Ok((took, 4 * SECOND))
    })
}

fn server_stopped() -> Outcome {
    in_time(|| {
        let server = Server::start(&["--once"])?;
        let client = running_client(&server, &["-i", "0", "-W", "3"])?;
        let since = Instant::now();
        server.child.signal(libc::SIGSTOP)?;
        let (client, took) = end_of(client, since)?;
        explained(
            &client,
            1,
            &[
                &format!("no answer from {} within 3 s (round ", server.target),
                "waiting for ",
            ],
        )?;
        ensure!(
            client.stdout.contains(" 1 lost, 0 wrong in "),
            "the round under way is lost: {}",
            all_of(&client)
        );
        ensure!(
            took >= Duration::from_millis(2900),
            "given up after {took:?}"
        );
        Ok((took, 4 * SECOND))
    })
}

fn server_stopped_before() -> Outcome {
    in_time(|| {
        let server = Server::start(&["--once"])?;
        server.child.signal(libc::SIGSTOP)?;
        let since = Instant::now();
        let client = Child::start(rpma_ping().args([&server.target, "-W", "3"]))?;
        let (client, took) = end_of(client, since)?;
        explained(
            &client,
            1,
            &[&format!(
                "no answer from {} within 3 s (waiting for the connection to be established)",
                server.target
            )],
        )?;
        ensure!(took >= 3 * SECOND, "given up after {took:?}");
        Ok((took, 4 * SECOND))
    })
}

fn client_killed() -> Outcome {
    let server = Server::start(&[])?;
    let client = running_client(&server, &["-i", "0"])?;
    client.signal(libc::SIGKILL)?;
    let gone = client.finish(LIMIT)?;
    ensure!(gone.code() == -libc::SIGKILL, "{}", all_of(&gone));
    server.child.wait_line(": ended, ", LIMIT)?;
    silent(&run(&mut server.client(&["-c", "3", "-i", "0"]))?, 0)?;
    let server = server.stop()?;
    // What went wrong for one client is told, and is no matter for the server's own end.
    told_of_the_loss(&server, 0, &device().ip.to_string())?;
    ensure!(
        server
            .stdout
            .contains(": 2 clients served, 1 of them with trouble, 0 refused;"),
        "{}",
        all_of(&server)
    );
    Ok(())
}

fn client_stopped() -> Outcome {
    in_time(|| {
        let server = Server::start(&["--once"])?;
        let client = running_client(&server, &["-i", "0", "-W", "3"])?;
        let since = Instant::now();
        client.signal(libc::SIGSTOP)?;
        let target = server.target.clone();
        let (server, took) = end_of(server.child, since)?;
        explained(&server, 1, &["no answer from ", " within 4 s (round "])?;
        ensure!(
            took >= Duration::from_millis(3900),
            "given up after {took:?}"
        );
        client.signal(libc::SIGCONT)?;
        told_of_the_loss(&client.finish(LIMIT)?, 1, &target)?;
        Ok((took, 5 * SECOND))
    })
}

fn server_told_to_end() -> Outcome {
    in_time(|| {
        let ip = device().ip.to_string();
        let server = Server::from(rpma_ping().args(["server", &ip, "-p", "0"]))?;
        let client = running_client(&server, &["-i", "0.02", "-W", "5"])?;
        let since = Instant::now();
        let target = server.target.clone();
        server.child.signal(libc::SIGTERM)?;
        let (server, took) = end_of(server.child, since)?;
        explained(&server, 0, &["interrupted while serving "])?;
        told_of_the_loss(&client.finish(LIMIT)?, 1, &target)?;
        Ok((took, 2 * SECOND))
    })
}
