//! The device is removed, on either side.

use std::time::Instant;

use harness::{
    Child, End, LINK, Link, Outcome, Role, SECOND, Test, WAIT, ensure, ensure_eq, phase,
    role_argument, test,
};
use rpma::{ConnectionConfig, ConnectionEvent, ConnectionRequest, ErrorKind, PrivateData};

use super::{LIMIT, SOON, all_operations, dropped_within, ends, from_a, step};

pub(super) fn tests() -> Vec<Test> {
    vec![
        test(
            "each_operation_whose_device_is_removed_ends_with_the_cause_on_both_sides",
            LINK,
            || {
                End::BOTH
                    .into_iter()
                    .try_for_each(|end| removed("device_of_operations", end))
            },
        )
        .long(),
        test(
            "a_device_removed_before_the_connection_stands_is_told_as_that",
            LINK,
            || {
                End::BOTH
                    .into_iter()
                    .try_for_each(|end| removed("device_of_a_handshake", end))
            },
        )
        .long(),
    ]
}

pub(super) const ROLES: &[Role] = &[
    ("device_of_operations", operations),
    ("device_of_a_handshake", handshake),
];

/// Removes the device of `end` once the role says that all is there; it then ends by itself, and so does the removal.
fn removed(role: &str, end: End) -> Outcome {
    let _link = Link::new()?;
    phase(format!("the device of {end:?}"));
    let holder = Child::role(role, end.device(), &[])?;
    holder.wait_line("is there", 3 * WAIT)?;
    let remover = end.delete_device()?;
    let ended = holder.finish(3 * WAIT)?.success();
    ended.map_err(|failed| format!("{end:?}: {}", failed.message().unwrap_or_default()))?;
    remover.finish(WAIT)?.success()?;
    Ok(())
}

/// What this end is told, and which end it is by the device.
fn told(event: &ConnectionEvent, own: bool) -> Outcome {
    ensure_eq!(
        *event == ConnectionEvent::DeviceRemoved,
        own,
        "told {event}"
    );
    ensure!(own || *event == ConnectionEvent::Closed, "told {event}");
    Ok(())
}

fn operations() -> Outcome {
    let mut all = all_operations()?;
    let removed_at_a = role_argument() == End::A.device();
    println!("is there");
    let mut ended = vec![[false; 2]; all.len()];
    let start = Instant::now();
    phase("operations until the device is removed");
    // The kernel waits for each connection in turn, and asks for them by its own order.
    while ended.iter().flatten().any(|ended| !ended) {
        ensure!(
            start.elapsed() < LIMIT,
            "not all ends were told: {ended:?}, {all:?}"
        );
        for ((active, passive), ended) in all.iter_mut().zip(&mut ended) {
            let ends = [
                (&active.connection, removed_at_a),
                (&passive.connection, !removed_at_a),
            ];
            for ((connection, own), ended) in ends.into_iter().zip(ended) {
                let Some(event) = connection.try_next_event()? else {
                    continue;
                };
                // The other side's end may be told first, as the end of the connection.
                if event == ConnectionEvent::Closed && own {
                    continue;
                }
                told(&event, own)?;
                *ended = true;
            }
        }
        step(&mut all)?;
    }
    println!("all told after {:?}", start.elapsed());
    for (active, passive) in &mut all {
        active.take()?;
        let operation = active.operation;
        let error = active
            .fate
            .ok_or_else(|| format!("{operation:?} is left open"))?;
        println!("{operation:?}: {error}");
        passive.agrees_with(active)?;
        active.is_over()?;
    }
    dropped_within(SOON, "everything", all)
}

fn handshake() -> Outcome {
    let (a, b, endpoint) = ends()?;
    let config = ConnectionConfig::default();
    let connect = || ConnectionRequest::new(&a, endpoint.local_addr(), &from_a());
    let asked = connect()?.connect(PrivateData::none())?;
    let request = endpoint.next_connection_request(&config, WAIT)?;
    let prepared = connect()?;
    println!("is there");
    let start = Instant::now();
    let removed_at_a = role_argument() == End::A.device();
    if removed_at_a {
        let error = asked.wait_established(LIMIT).err();
        let error = error.ok_or("connected without a device")?;
        ensure_eq!(error.kind(), ErrorKind::DeviceRemoved, "{error}");
        let error = prepared.connect(PrivateData::none()).err();
        let error = error.ok_or("asked without a device")?;
        ensure_eq!(error.kind(), ErrorKind::DeviceRemoved, "{error}");
        dropped_within(SOON, "the client", asked)?;
        dropped_within(SOON, "the request", request)?;
    } else {
        let error = endpoint.next_connection_request(&config, LIMIT).err();
        let error = error.ok_or("asked at a device that is gone")?;
        ensure_eq!(error.kind(), ErrorKind::DeviceRemoved, "{error}");
        let error = request.connect(PrivateData::none()).err();
        let error = error.ok_or("accepted without a device")?;
        ensure_eq!(error.kind(), ErrorKind::DeviceRemoved, "{error}");
        dropped_within(SOON, "the endpoint", endpoint)?;
        let error = asked.wait_established(LIMIT).err();
        let error = error.ok_or("connected to a device that is gone")?;
        ensure_eq!(error.kind(), ErrorKind::Rejected, "{error}");
        dropped_within(SOON, "the client", asked)?;
        dropped_within(SOON, "a request of nobody", prepared)?;
    }
    ensure!(
        start.elapsed() < LIMIT + SECOND,
        "took {:?}",
        start.elapsed()
    );
    drop((a, b));
    Ok(())
}
