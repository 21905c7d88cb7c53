//! Ids with channels of their own: whatever order they go in, and whatever is forgotten, nothing waits
//! and nothing is left but what was forgotten.

use std::thread;
use std::time::{Duration, Instant};

use cm::verbs::sys::fake::control::{self, Target};
use cm::verbs::{CompletionQueue, ProtectionDomain, QpType, QueuePair};
use cm::{
    ConnParams, ConnectOptions, Connection, Deadline, Dispatcher, Error, ListenOptions, Listener,
    Request, Resolved, Resolving, Routed,
};

use super::common::{
    Handles, accept, connect, drop_by_threads, forget_each, listen, resolve, roce, soon,
};

/// Everything there is while connections come about, each with a name.
enum Handle {
    Listener(#[expect(dead_code, reason = "dropped")] Listener),
    Request(#[expect(dead_code, reason = "dropped")] Request),
    Connection(#[expect(dead_code, reason = "dropped")] Connection),
    Resolved(#[expect(dead_code, reason = "dropped")] Resolved),
    Resolving(#[expect(dead_code, reason = "dropped")] Resolving),
}

const HANDLES: usize = 8;

fn handles() -> Handles<Handle, HANDLES> {
    let listener = listen(roce())?;
    let to = listener.local_addr();
    let client = connect(to, b"")?;
    let server = accept(listener.next_request(soon())?, b"")?;
    // Established, with events that nobody took.
    client.wait_established(soon())?;
    let asking = connect(to, b"")?;
    let request = listener.next_request(soon())?;
    let untaken = connect(to, b"")?;
    let resolved = resolve(to)?;
    let resolving = Resolving::start(to, &ConnectOptions::default(), soon())?;
    Ok([
        Handle::Listener(listener),
        Handle::Request(request),
        Handle::Connection(asking),
        Handle::Connection(client),
        Handle::Connection(server),
        Handle::Connection(untaken),
        Handle::Resolved(resolved),
        Handle::Resolving(resolving),
    ]
    .map(Some))
}

/// Those that have to do with one another, at the start; the last two stand alone.
const RELATED: usize = 6;

/// Calls `with` for orders of the first `n` numbers: all, or in a hurry every `step`th.
fn each_order(n: usize, step: usize, mut with: impl FnMut(&[usize])) {
    let all: usize = (1..=n).product();
    for number in (0..all).step_by(if control::hurried() { step } else { 1 }) {
        let (mut number, mut left) = (number, (0..n).collect::<Vec<_>>());
        let mut order = Vec::with_capacity(n);
        while !left.is_empty() {
            let choices = left.len();
            order.push(left.remove(number % choices));
            number /= choices;
        }
        with(&order);
    }
}

#[test]
fn everything_may_go_in_every_order() {
    let fake = control::session();
    let mut round = 0;
    each_order(RELATED, 239, |order| {
        let mut order = order.to_vec();
        for alone in RELATED..HANDLES {
            round += 1;
            order.insert(round % (order.len() + 1), alone);
        }
        let mut handles = handles().expect("all of it");
        let start = Instant::now();
        for &n in &order {
            drop(handles[n].take());
        }
        assert!(start.elapsed() < control::within(1), "{order:?}");
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{order:?}");
    });
    fake.finish();
}

#[test]
fn everything_may_go_from_several_threads_at_once() {
    let fake = control::session();
    drop_by_threads(&fake, handles);
    fake.finish();
}

#[test]
fn leaks_what_is_forgotten_and_the_rest_goes_at_once() {
    let fake = control::session();
    forget_each(handles);
    fake.discard();
}

#[test]
fn leaks_events_of_every_kind_that_are_forgotten_and_holds_up_nothing() {
    let fake = control::session();
    for kind in (0..=20).filter(|kind| !control::hurried() || [1, 8, 10].contains(kind)) {
        let listener = listen(roce()).expect("a listener");
        let client = connect(listener.local_addr(), b"").expect("a request");
        let server = accept(listener.next_request(soon()).expect("it"), b"").expect("accepted");
        for target in [Target::Active, Target::Passive, Target::Listener] {
            fake.inject(target, kind, 0, None);
        }
        for connection in [&client, &server] {
            while let Ok(event) = connection.next_event(Deadline::after(Duration::from_millis(2))) {
                std::mem::forget(event);
            }
        }
        let _ = listener.try_next_request().map(std::mem::forget);
        let start = Instant::now();
        drop((listener, client, server));
        assert!(start.elapsed() < control::within(1), "{kind}");
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{kind}");
    }
    fake.finish();
}

/// A step of a recursion would have 21 bytes of it.
#[test]
fn thousands_of_connections_are_dropped_by_one_call_on_a_small_stack() {
    let fake = control::session();
    let pairs = if control::hurried() { 4 } else { 3_000 };
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let listener = dispatcher
        .listen(roce(), &ListenOptions::default())
        .expect("a listener");
    let mut queues: Option<(ProtectionDomain, CompletionQueue)> = None;
    let mut pair = || -> Result<[Connection<Routed>; 2], Error> {
        let options = ConnectOptions::default();
        let resolved = dispatcher.resolve(listener.local_addr(), &options, soon())?;
        let resolved = resolved.wait()?;
        if queues.is_none() {
            let pd = ProtectionDomain::new(resolved.context())?;
            let cq = CompletionQueue::builder(resolved.context(), 8)
                .allow_overrun(true)
                .build()?;
            queues = Some((pd, cq));
        }
        let (pd, cq) = queues.as_ref().expect("just made");
        let qp = || {
            QueuePair::builder(pd, QpType::RC, cq, cq)
                .max_send_wr(1)
                .max_recv_wr(1)
                .build()
        };
        let qp_of_client = qp()?;
        resolved.init_qp(&qp_of_client)?;
        let client = resolved.connect(qp_of_client, &ConnParams::default(), b"")?;
        let request = listener.next_request(soon())?;
        let qp_of_server = qp()?;
        request.init_qp(&qp_of_server)?;
        let server = request.accept(qp_of_server, &ConnParams::default(), b"")?;
        client.wait_established(soon())?;
        Ok([client, server])
    };
    let all: Vec<_> = (0..pairs).map(|_| pair().expect("a connection")).collect();
    let start = Instant::now();
    let dropping = thread::Builder::new().stack_size(128 * 1024);
    let dropping = dropping.spawn(move || drop(all)).expect("a thread");
    dropping.join().expect("no overflow");
    println!("{} connections dropped in {:?}", 2 * pairs, start.elapsed());
    drop((queues, listener, dispatcher));
    fake.finish();
}
