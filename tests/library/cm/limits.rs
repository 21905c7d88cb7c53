//! Deadlines: a wait for somebody who does not answer ends when it should.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::{
    Child, Need, Outcome, Role, SECOND, Test, WAIT, device, ensure, role_argument, test,
};
use rpma::cm::{ConnParams, ConnectOptions, Deadline, Error, Resolving};

use super::dropped_quickly;
use crate::raw::{Queues, RawPair, begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "connecting_to_a_machine_that_never_answers_ends_at_the_deadline",
            &[Need::Device, Need::Root, Need::Tool("ip")],
            a_machine_that_never_answers,
        ),
        test(
            "an_attempt_that_another_thread_ends_returns_at_once_and_the_next_one_connects",
            &[Need::Device, Need::Root, Need::Tool("ip")],
            ended_by_another_thread,
        ),
        test(
            "an_acceptance_whose_client_vanished_ends_at_the_deadline",
            &[Need::Device],
            a_client_that_vanished,
        ),
        test(
            "waiting_for_a_request_ends_at_the_deadline",
            &[Need::Device],
            no_request,
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[("half_a_client", half_a_client)];

/// How much later than its deadline a wait may end on a busy machine.
const SLACK: Duration = Duration::from_millis(500);

/// A neighbour of the device's network with a hardware address that nobody has.
struct BlackHole(IpAddr);

impl BlackHole {
    fn new() -> Result<Self, harness::Failed> {
        let ip = match device().ip {
            IpAddr::V4(ip) => {
                let [a, b, c, d] = ip.octets();
                IpAddr::from([a, b, c, if d == 77 { 78 } else { 77 }])
            }
            IpAddr::V6(ip) => {
                let mut bytes = ip.octets();
                bytes[15] = if bytes[15] == 77 { 78 } else { 77 };
                IpAddr::from(bytes)
            }
        };
        let hole = Self(ip);
        hole.neighbour(
            &["replace"],
            &["lladdr", "02:00:00:00:00:99", "nud", "permanent"],
        )?;
        Ok(hole)
    }

    fn neighbour(&self, before: &[&str], after: &[&str]) -> Outcome {
        let mut ip = Command::new("ip");
        ip.arg("neigh")
            .args(before)
            .arg(self.0.to_string())
            .args(["dev", &device().interface]);
        Child::start(ip.args(after))?.finish(WAIT)?.success()?;
        Ok(())
    }
}

impl Drop for BlackHole {
    fn drop(&mut self) {
        let _ = self.neighbour(&["del"], &[]);
    }
}

fn a_machine_that_never_answers() -> Outcome {
    let hole = BlackHole::new()?;
    let to = SocketAddr::new(hole.0, 7204);
    for limit in [Duration::from_millis(300), SECOND, 3 * SECOND] {
        let start = Instant::now();
        let deadline = Deadline::after(limit);
        let resolved = Resolving::start(to, &ConnectOptions::default(), deadline)?.wait()?;
        let (queues, qp) = Queues::new(resolved.context())?;
        resolved.init_qp(&qp)?;
        let connection = resolved.connect(qp, &ConnParams::default(), &[])?;
        let error = connection
            .wait_established(deadline)
            .err()
            .ok_or("connected to nobody")?;
        let took = start.elapsed();
        ensure!(matches!(error, Error::TimedOut { .. }), "{error}");
        ensure!(error.to_string().contains(&to.to_string()), "{error}");
        ensure!(
            took >= limit && took < limit + SLACK,
            "{limit:?} took {took:?}"
        );
        dropped_quickly("the connection", connection)?;
        dropped_quickly("the queues", queues)?;
    }
    Ok(())
}

fn ended_by_another_thread() -> Outcome {
    let hole = BlackHole::new()?;
    let to = SocketAddr::new(hole.0, 7204);
    let deadline = Deadline::after(WAIT);
    let resolved = Resolving::start(to, &ConnectOptions::default(), deadline)?.wait()?;
    let (queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let connection = resolved.connect(qp, &ConnParams::default(), &[])?;
    let moment = Duration::from_millis(300);
    let start = Instant::now();
    let waited = thread::scope(|scope| {
        let waiter = scope.spawn(|| connection.wait_established(deadline));
        thread::sleep(moment);
        let ended = connection.disconnect();
        (ended, waiter.join())
    });
    let took = start.elapsed();
    waited.0?;
    let error = waited.1.map_err(|_| "the waiting thread panicked")?.err();
    ensure!(
        matches!(error, Some(Error::Disconnected { peer }) if peer == to),
        "{error:?}"
    );
    ensure!(took < moment + SLACK, "took {took:?}");
    dropped_quickly("the connection", connection)?;
    dropped_quickly("the queues", queues)?;
    // What is given up before, in another thread, is dropped there.
    let resolving = Resolving::start(to, &ConnectOptions::default(), deadline)?;
    thread::spawn(move || drop(resolving))
        .join()
        .map_err(|_| "the thread panicked")?;
    drop(RawPair::new()?);
    Ok(())
}

/// Asks for a connection and never takes the answer.
fn half_a_client() -> Outcome {
    let to: SocketAddr = role_argument().parse()?;
    let (_connection, _queues) = begin(to, &[])?;
    println!("asked");
    std::thread::sleep(Duration::from_secs(100));
    Ok(())
}

fn a_client_that_vanished() -> Outcome {
    let listener = listener()?;
    let client = Child::role("half_a_client", &listener.local_addr().to_string(), &[])?;
    client.wait_line("asked", WAIT)?;
    let request = listener.next_request(Deadline::after(WAIT))?;
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    // Stopped, it neither answers nor is cleaned up by its kernel.
    client.signal(libc::SIGSTOP)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    let limit = SECOND;
    let start = Instant::now();
    let error = server
        .wait_established(Deadline::after(limit))
        .err()
        .ok_or("established")?;
    let took = start.elapsed();
    ensure!(matches!(error, Error::TimedOut { .. }), "{error}");
    ensure!(
        took >= limit && took < limit + SLACK,
        "{limit:?} took {took:?}"
    );

    // Killed, its kernel says so; then the wait ends before its deadline.
    client.signal(libc::SIGKILL)?;
    let error = server
        .wait_established(Deadline::after(WAIT))
        .err()
        .ok_or("established")?;
    ensure!(
        !matches!(error, Error::TimedOut { .. } | Error::Call(_)),
        "a killed client was only noticed by the deadline: {error}"
    );
    dropped_quickly("the connection", server)?;
    dropped_quickly("the queues", queues)
}

fn no_request() -> Outcome {
    let listener = listener()?;
    for limit in [Duration::ZERO, Duration::from_millis(300)] {
        let start = Instant::now();
        let error = listener
            .next_request(Deadline::after(limit))
            .err()
            .ok_or("a request")?;
        let took = start.elapsed();
        ensure!(matches!(error, Error::TimedOut { .. }), "{error}");
        ensure!(
            error
                .to_string()
                .contains(&listener.local_addr().to_string()),
            "{error}"
        );
        ensure!(
            took >= limit && took < limit + SLACK,
            "{limit:?} took {took:?}"
        );
    }
    Ok(())
}
