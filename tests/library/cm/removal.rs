//! A device that is removed under its connections.

use std::net::IpAddr;
use std::process::Command;
use std::time::Instant;

use harness::{
    Child, Need, Outcome, Role, SECOND, Test, WAIT, ensure, ensure_eq, role_argument, test,
};
use rpma::cm::{
    ConnParams, ConnectOptions, ConnectionEvent, ConnectionState, Deadline, ListenOptions,
    Listener, Resolving,
};

use super::dropped_quickly;
use crate::raw::Queues;
use crate::verbs::OwnDevice;

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "a_device_that_is_removed_ends_its_connections_and_can_be_let_go",
        &[Need::Device, Need::Root, Need::SoftRoce, Need::Tool("ip")],
        removed,
    )]
}

pub(crate) const ROLES: &[Role] = &[("connections_of_a_removed_device", connections)];

const NAME: &str = "cmgone";

fn removed() -> Outcome {
    let ip = IpAddr::from([198, 51, 100, 10]);
    let _own = OwnDevice::with_address(NAME, ip, 1500)?;
    let holder = Child::role("connections_of_a_removed_device", &ip.to_string(), &[])?;
    holder.wait_line("connected", WAIT)?;
    // SoftRoCE up to Linux 6.12 waits here until nobody holds the device any more; librdmacm does
    // to the end of its process.
    let device = OwnDevice::device(NAME);
    let remover = Child::start(Command::new("rdma").args(["link", "delete", &device]))?;
    holder.finish(WAIT)?.success()?;
    remover.finish(WAIT)?.success()?;
    Ok(())
}

/// Two ends of a connection on the device, which learn of the removal and are dropped.
fn connections() -> Outcome {
    let ip: IpAddr = role_argument().parse()?;
    let deadline = Deadline::after(WAIT);
    let listener = loop {
        // The address may come a moment after the device.
        match Listener::bind((ip, 0).into(), &ListenOptions::default()) {
            Ok(listener) => break listener,
            Err(error) if deadline.has_passed() => return Err(error.into()),
            Err(_) => std::thread::sleep(SECOND / 100),
        }
    };
    let options = ConnectOptions::default();
    let resolved = Resolving::start(listener.local_addr(), &options, deadline)?.wait()?;
    let (client_queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    let client = resolved.connect(qp, &ConnParams::default(), &[])?;
    let request = listener.next_request(deadline)?;
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    queues.recv(&qp, 1)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    client.wait_established(deadline)?;
    server.wait_established(deadline)?;
    println!("connected");
    // Either may hear of the other's end first, and the kernel waits for each id in turn.
    let (mut ends, mut told) = (vec![(client, client_queues), (server, queues)], 0);
    let start = Instant::now();
    while !ends.is_empty() {
        ensure!(start.elapsed() < WAIT, "{} ends were not told", ends.len());
        let mut left = Vec::new();
        for (end, queues) in ends {
            match end.try_next_event()? {
                Some(ConnectionEvent::DeviceRemoved) => {
                    told += 1;
                    ensure_eq!(end.state(), ConnectionState::Closed, "state");
                    dropped_quickly("an end of the connection", (end, queues))?;
                }
                Some(ConnectionEvent::Disconnected) | None => left.push((end, queues)),
                Some(other) => return Err(format!("{other:?}").into()),
            }
        }
        ends = left;
        std::thread::sleep(SECOND / 200);
    }
    ensure_eq!(told, 2, "ends that were told");
    dropped_quickly("the listener", listener)
}
