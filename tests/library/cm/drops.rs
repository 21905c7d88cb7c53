//! Handles of the connection manager may go in any order.

use std::any::Any;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use harness::{
    Baseline, Child, Failed, Need, Outcome, Role, SECOND, Test, WAIT, ensure, rounds, test,
};
use rpma::cm::{ConnParams, Deadline};

use super::dropped_quickly;
use crate::raw::{Queues, begin, listener};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "listener_request_and_connections_may_go_in_any_order",
            &[Need::Device],
            any_order,
        )
        .limit(120),
        test(
            "what_is_forgotten_holds_up_no_drop_of_the_rest",
            &[Need::Device],
            // In a process of its own, with which goes what is left.
            || {
                Child::role("forgets_each_handle", "", &[])?
                    .finish(50 * SECOND)?
                    .success()?;
                Ok(())
            },
        )
        .long(),
        test(
            "a_listener_with_untaken_requests_rejects_them_on_drop",
            &[Need::Device],
            untaken_requests,
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[("forgets_each_handle", forgets)];

/// Anything, with a name.
type Handle = (&'static str, Box<dyn Any + Send>);

/// A listener, an established pair with untaken events, a client whose request is undecided, and
/// one whose request was not taken.
fn handles() -> Result<Vec<Handle>, Failed> {
    let deadline = Deadline::after(WAIT);
    let listener = listener()?;
    let (client, client_queues) = begin(listener.local_addr(), &[])?;
    let request = listener.next_request(deadline)?;
    let (queues, qp) = Queues::new(request.context())?;
    request.init_qp(&qp)?;
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    let (undecided, undecided_queues) = begin(listener.local_addr(), &[])?;
    let request = listener.next_request(deadline)?;
    let (untaken, untaken_queues) = begin(listener.local_addr(), &[])?;
    Ok(vec![
        ("the listener", Box::new(listener)),
        ("the client", Box::new((client, client_queues))),
        ("the server", Box::new((server, queues))),
        (
            "the undecided client",
            Box::new((undecided, undecided_queues)),
        ),
        ("the undecided request", Box::new(request)),
        (
            "the client whose request was not taken",
            Box::new((untaken, untaken_queues)),
        ),
    ])
}

fn any_order() -> Outcome {
    let baseline = Baseline::take()?;
    let mut state = 12345_u64;
    for round in 0..rounds(30, 300) {
        let mut handles = handles()?;
        if round % 3 == 2 {
            at_once(handles)?;
            continue;
        }
        while !handles.is_empty() {
            // A linear congruence is random enough to choose who goes next.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let index = usize::try_from(state >> 33)? % handles.len();
            let (name, handle) = handles.swap_remove(index);
            dropped_quickly(name, handle).map_err(|failed| {
                format!("round {round}: {}", failed.message().unwrap_or_default())
            })?;
        }
        if round % 10 == 9 {
            baseline.check()?;
        }
    }
    Ok(())
}

/// Drops each in a thread of its own, all at the same time.
fn at_once(handles: Vec<Handle>) -> Outcome {
    let barrier = Barrier::new(handles.len());
    let start = Instant::now();
    thread::scope(|scope| {
        for (_, handle) in handles {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                drop(handle);
            });
        }
    });
    let took = start.elapsed();
    ensure!(took < 2 * SECOND, "dropping all at once took {took:?}");
    Ok(())
}

fn forgets() -> Outcome {
    for backwards in [false, true] {
        for forgotten in 0..handles()?.len() {
            let mut handles = handles()?;
            let (name, handle) = handles.remove(forgotten);
            std::mem::forget(handle);
            if backwards {
                handles.reverse();
            }
            let start = Instant::now();
            drop(handles);
            let took = start.elapsed();
            ensure!(took < SECOND, "without {name} the drops took {took:?}");
        }
    }
    Ok(())
}

fn untaken_requests() -> Outcome {
    let listener = listener()?;
    let clients: Vec<_> = (0..5)
        .map(|_| begin(listener.local_addr(), &[]))
        .collect::<Result<_, _>>()?;
    // The first request is here, so the listener's channel has events when it goes.
    let first = listener.next_request(Deadline::after(WAIT))?;
    dropped_quickly("the listener", listener)?;
    dropped_quickly("the first request", first)?;
    for (client, _queues) in &clients {
        let error = client
            .wait_established(Deadline::after(WAIT))
            .err()
            .ok_or("connected")?;
        ensure!(
            matches!(
                error,
                rpma::cm::Error::Rejected { .. } | rpma::cm::Error::NoListener { .. }
            ),
            "{error}"
        );
    }
    Ok(())
}
