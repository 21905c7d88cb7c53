//! What each event of the connection manager becomes.

use cm::verbs::sys::fake::control::{self, Target};
use cm::{EventKind, RejectReason};
use rpma::{ConnectionEvent, Signal};

use super::common::{Pair, Regions, completed};

/// What an event of this kind, with status -7, is told as once the connection stands.
fn told(kind: u32) -> Option<ConnectionEvent> {
    let status = -7;
    Some(match EventKind::from_raw(kind) {
        // It stands already.
        EventKind::ESTABLISHED => return None,
        EventKind::DISCONNECTED | EventKind::TIMEWAIT_EXIT => ConnectionEvent::Closed,
        EventKind::CONNECT_ERROR => ConnectionEvent::Lost { status },
        EventKind::DEVICE_REMOVAL => ConnectionEvent::DeviceRemoved,
        EventKind::UNREACHABLE => ConnectionEvent::Unreachable { status },
        EventKind::REJECTED => ConnectionEvent::Rejected {
            reason: RejectReason::from_raw(status),
            private_data: b"why".to_vec(),
        },
        kind => ConnectionEvent::Other { kind, status },
    })
}

#[test]
fn each_kind_of_event_is_told_once_with_its_status_also_one_that_nobody_knows() {
    let fake = control::session();
    let request = EventKind::CONNECT_REQUEST;
    // A request is never an event of a connection.
    let kinds = (0..=20).filter(|&kind| EventKind::from_raw(kind) != request);
    let kinds = kinds.chain([u32::MAX]);
    for kind in kinds.filter(|kind| !control::hurried() || [7, 8, 20].contains(kind)) {
        let pair = Pair::new().expect("a connection");
        let data = (EventKind::from_raw(kind) == EventKind::REJECTED).then_some(&b"why"[..]);
        fake.inject(Target::Passive, kind, -7, data);
        let event = pair.server.try_next_event().expect("no failure");
        let expected = told(kind);
        let same = match (&event, &expected) {
            // Padded on the way.
            (
                Some(ConnectionEvent::Rejected {
                    reason,
                    private_data,
                }),
                Some(ConnectionEvent::Rejected {
                    reason: expected, ..
                }),
            ) => reason == expected && private_data.starts_with(b"why"),
            _ => event == expected,
        };
        assert!(same, "kind {kind}: {event:?}, not {expected:?}");
        assert_eq!(pair.server.try_next_event().expect("no failure"), None);
        // Each says in words what it is.
        if let Some(event) = event {
            let text = event.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
        }
        drop(pair);
    }
    fake.finish();
}

#[test]
fn an_unreachable_neighbour_is_no_end_of_a_connection_that_stands() {
    let fake = control::session();
    let pair = Pair::new().expect("a connection");
    fake.inject(Target::Passive, EventKind::UNREACHABLE.raw(), -110, None);
    assert_eq!(
        pair.server.try_next_event().expect("no failure"),
        Some(ConnectionEvent::Unreachable { status: -110 })
    );
    let regions = Regions::new(&pair, 8).expect("regions");
    let (to, from) = (regions.of_client.as_span(), regions.server.as_span());
    pair.server
        .write(to, from, Signal::Always, 1)
        .expect("posted");
    completed(pair.server.cq());
    drop((pair, regions));
    fake.finish();
}
