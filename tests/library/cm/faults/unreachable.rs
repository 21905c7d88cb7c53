//! Addresses that no RDMA device leads to.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use harness::{
    End, Failed, LINK, Outcome, Role, SECOND, Test, WAIT, command, ensure, ensure_eq, phase, test,
};
use rpma::cm::{ConnectOptions, Deadline, Error, Resolving};

use super::on_a_wire;
use crate::raw::RawPair;

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "an_address_without_a_way_to_it_is_told_by_its_errno_and_no_drop_waits",
            LINK,
            || on_a_wire("no_way"),
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[("no_way", no_way)];

/// An interface without an RDMA device.
const PLAIN: &str = "rpmaplain";

/// Removes the interface with its addresses and routes.
struct Plain;

impl Drop for Plain {
    fn drop(&mut self) {
        let _ = command("ip", &["link", "del", PLAIN]);
    }
}

fn no_way() -> Outcome {
    command("ip", &["link", "add", PLAIN, "type", "dummy"])?;
    let _plain = Plain;
    command("ip", &["addr", "add", "203.0.113.1/26", "dev", PLAIN])?;
    command("ip", &["link", "set", PLAIN, "up"])?;
    let unreachable = ["unreachable", "203.0.113.64/26"];
    command("ip", &[&["route", "replace"], &unreachable[..]].concat())?;
    let outcome = all_ways();
    command("ip", &[&["route", "del"], &unreachable[..]].concat())?;
    outcome
}

fn all_ways() -> Outcome {
    let from_a = Some(End::A.addr(0));
    let unused = SocketAddr::from(([198, 51, 100, 77], 7204));
    let of_plain = SocketAddr::from(([203, 0, 113, 5], 7204));
    let unreachable = SocketAddr::from(([203, 0, 113, 70], 7204));
    // The address is known, and no device has its interface.
    not_resolved(of_plain, None, libc::ENODEV)?;
    not_resolved(unreachable, None, libc::EHOSTUNREACH)?;
    // Nobody has the address: it is looked for until the deadline.
    let limit = SECOND;
    let start = Instant::now();
    let error = resolve(unused, from_a, limit)?;
    let took = start.elapsed();
    ensure!(matches!(error, Error::TimedOut { .. }), "{error}");
    ensure!(error.to_string().contains("198.51.100.77:7204"), "{error}");
    ensure!((limit..limit + SECOND / 2).contains(&took), "took {took:?}");
    // With its interface an address loses its routes.
    End::A.down()?;
    not_resolved(End::B.addr(7204), from_a, libc::ENETUNREACH)?;
    End::B.down()?;
    not_resolved(unused, None, libc::ENETUNREACH)?;
    // What was refused leaves nothing in the way of what follows. (The wire may stay deaf; the other device does not.)
    drop(RawPair::new()?);
    Ok(())
}

fn not_resolved(peer: SocketAddr, source: Option<SocketAddr>, errno: i32) -> Outcome {
    phase(format!("resolving {peer}"));
    let start = Instant::now();
    let error = resolve(peer, source, WAIT)?;
    ensure_eq!(error, Error::AddressNotResolved { peer, errno }, "{error}");
    ensure!(error.hint().is_some(), "no hint");
    ensure!(start.elapsed() < 3 * SECOND, "took {:?}", start.elapsed());
    Ok(())
}

/// Why it cannot be resolved; what was tried is dropped in time.
fn resolve(peer: SocketAddr, source: Option<SocketAddr>, limit: Duration) -> Result<Error, Failed> {
    let mut options = ConnectOptions::default();
    options.source = source;
    let tried = Resolving::start(peer, &options, Deadline::after(limit)).and_then(Resolving::wait);
    Ok(tried.err().ok_or(format!("{peer} was resolved"))?)
}
