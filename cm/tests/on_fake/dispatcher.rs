//! Many ids on one channel: whose events are whose, who waits for whom, and what is left.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use cm::verbs::sys::fake::control::{self, Session, Target};
use cm::{
    ConnParams, ConnectOptions, Connection, ConnectionEvent, Deadline, Dispatcher, Error,
    ListenOptions, Listener, Request, Resolved, Routed,
};

use super::common::{iwarp, listen, queue_pair, roce, soon};

fn resolve(dispatcher: &Dispatcher, to: SocketAddr) -> Result<Resolved<Routed>, Error> {
    let options = ConnectOptions::default();
    dispatcher.resolve(to, &options, soon())?.wait()
}

fn connect(dispatcher: &Dispatcher, to: SocketAddr) -> Result<Connection<Routed>, Error> {
    let resolved = resolve(dispatcher, to)?;
    let qp = queue_pair(resolved.context())?;
    resolved.init_qp(&qp)?;
    resolved.connect(qp, &ConnParams::default(), b"request")
}

fn accept<S: cm::EventSource>(request: Request<S>) -> Result<Connection<S>, Error> {
    let qp = queue_pair(request.context())?;
    request.init_qp(&qp)?;
    request.accept(qp, &ConnParams::default(), b"answer")
}

fn bind(dispatcher: &Dispatcher, addr: SocketAddr) -> Result<Listener<Routed>, Error> {
    dispatcher.listen(addr, &ListenOptions::default())
}

/// Waits until the dispatcher's thread has done something.
fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = soon();
    while !done() {
        assert!(!deadline.has_passed(), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until nothing is left; the thread may be the last to let go.
fn nothing_left(fake: &Session) {
    until("nothing left", || fake.left_over().is_empty());
}

#[test]
fn both_sides_of_a_connection_go_through_one_channel_and_no_id_moves() {
    let fake = control::session();
    for addr in [roce(), iwarp()] {
        let before = fake.count("rdma_create_event_channel");
        let dispatcher = Dispatcher::new().expect("a dispatcher");
        let listener = bind(&dispatcher, addr).expect("a listener");
        let client = connect(&dispatcher, listener.local_addr()).expect("a request");
        let request = listener.next_request(soon()).expect("the request");
        assert!(request.private_data().starts_with(b"request"));
        let server = accept(request).expect("accepted");
        let answer = client.wait_established(soon()).expect("established");
        assert!(answer.starts_with(b"answer"));
        server.wait_established(soon()).expect("established");
        client.disconnect().expect("disconnected");
        let event = server.next_event(soon()).expect("an event");
        assert_eq!(event, ConnectionEvent::Disconnected);
        assert_eq!(fake.count("rdma_create_event_channel"), before + 1);
        assert_eq!(fake.count("rdma_migrate_id"), 0);
        drop((client, server, listener, dispatcher));
        assert_eq!(fake.left_over(), Vec::<String>::new());
    }
    fake.finish();
}

#[test]
fn a_client_with_a_channel_of_its_own_meets_a_server_without() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let listener = bind(&dispatcher, roce()).expect("a listener");
    let client = super::common::connect(listener.local_addr(), b"").expect("a request");
    let server = accept(listener.next_request(soon()).expect("a request")).expect("accepted");
    client.wait_established(soon()).expect("established");
    server.wait_established(soon()).expect("established");
    drop((client, server));
    let own = listen(roce()).expect("a listener");
    let client = connect(&dispatcher, own.local_addr()).expect("a request");
    let server = accept(own.next_request(soon()).expect("a request")).expect("accepted");
    client.wait_established(soon()).expect("established");
    server.wait_established(soon()).expect("established");
    drop((dispatcher, listener, own, client, server));
    fake.finish();
}

#[test]
fn each_gets_its_own_events_and_all_of_them() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let listener = bind(&dispatcher, roce()).expect("a listener");
    let count = if control::hurried() { 3 } else { 40 };
    let pairs: Vec<_> = (0..count)
        .map(|_| {
            let client = connect(&dispatcher, listener.local_addr()).expect("a request");
            let request = listener.next_request(soon()).expect("the request");
            assert_eq!(Some(request.peer_addr()), client.local_addr());
            (client, accept(request).expect("accepted"))
        })
        .collect();
    // From the last to the first: who is not waited for holds up nobody.
    for (client, server) in pairs.iter().rev() {
        client.wait_established(soon()).expect("established");
        server.wait_established(soon()).expect("established");
    }
    for (n, (client, server)) in pairs.iter().enumerate() {
        if n % 2 == 0 {
            client.disconnect().expect("disconnected");
            let event = server.next_event(soon()).expect("an event");
            assert_eq!(event, ConnectionEvent::Disconnected);
        }
    }
    for (client, server) in pairs.iter().skip(1).step_by(2) {
        assert_eq!(client.try_next_event().expect("no error"), None);
        assert_eq!(server.try_next_event().expect("no error"), None);
    }
    drop((pairs, listener, dispatcher));
    fake.finish();
}

#[test]
fn a_request_that_finds_no_room_is_rejected_at_once_and_counted() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let mut options = ListenOptions::default();
    options.backlog = 2;
    let listener = dispatcher.listen(roce(), &options).expect("a listener");
    let clients: Vec<_> = (0..5)
        .map(|n| {
            let client = connect(&dispatcher, listener.local_addr()).expect("a request");
            // The kernel's own queue holds no more than two either: not faster than the thread.
            until("the request is taken", || {
                fake.count("rdma_ack_cm_event") >= (n + 1) * 3
            });
            client
        })
        .collect();
    for client in &clients[2..] {
        let error = client.wait_established(soon()).expect_err("no room");
        assert!(matches!(error, Error::Rejected { .. }), "{error}");
    }
    assert_eq!(listener.overflowed(), 3);
    for client in &clients[..2] {
        let request = listener
            .next_request(soon())
            .expect("a request that waited");
        let server = accept(request).expect("accepted");
        client.wait_established(soon()).expect("established");
        server.wait_established(soon()).expect("established");
    }
    // There is room again.
    let client = connect(&dispatcher, listener.local_addr()).expect("a request");
    let server = accept(listener.next_request(soon()).expect("a request")).expect("accepted");
    client.wait_established(soon()).expect("established");
    assert_eq!(listener.overflowed(), 3);
    drop((clients, client, server, listener, dispatcher));
    fake.finish();
}

#[test]
fn who_takes_no_events_holds_up_nobody() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let slow = bind(&dispatcher, roce()).expect("a listener");
    let waiting = connect(&dispatcher, slow.local_addr()).expect("a request");
    // Nobody takes what comes for these two.
    let count = if cfg!(miri) { 20 } else { 200 };
    for _ in 0..count {
        fake.inject(Target::Active, 14, 0, None);
    }
    let quick = bind(&dispatcher, roce()).expect("a listener");
    let client = connect(&dispatcher, quick.local_addr()).expect("a request");
    let server = accept(quick.next_request(soon()).expect("a request")).expect("accepted");
    client.wait_established(soon()).expect("established");
    server.wait_established(soon()).expect("established");
    // Nor is any of it lost.
    let other = |event| matches!(event, Ok(ConnectionEvent::Other { .. }));
    assert!((0..count).all(|_| other(waiting.next_event(soon()))));
    drop(accept(slow.next_request(soon()).expect("it waited")).expect("accepted"));
    drop((waiting, slow, client, server, quick, dispatcher));
    fake.finish();
}

#[test]
fn a_wait_ends_at_its_deadline() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let listener = bind(&dispatcher, roce()).expect("a listener");
    let client = connect(&dispatcher, listener.local_addr()).expect("a request");
    let start = Instant::now();
    let a_while = || Deadline::after(Duration::from_millis(30));
    let error = client.wait_established(a_while()).expect_err("no answer");
    assert!(
        error.to_string().contains("timed out connecting"),
        "{error}"
    );
    drop(listener.next_request(a_while()).expect("the request"));
    let error = listener.next_request(a_while()).expect_err("no other");
    assert!(error.to_string().contains("timed out waiting"), "{error}");
    assert!(start.elapsed() < control::within(3));
    drop((client, listener, dispatcher));
    fake.finish();
}

/// What a dispatcher and its like consist of at their busiest.
struct Handles {
    dispatcher: Option<Dispatcher>,
    listener: Option<Listener<Routed>>,
    /// Of a client that waits.
    request: Option<Request<Routed>>,
    asking: Option<Connection<Routed>>,
    /// Established, with events that nobody took.
    client: Option<Connection<Routed>>,
    server: Option<Connection<Routed>>,
    /// Asks for a connection; its request was not taken.
    untaken: Option<Connection<Routed>>,
    resolved: Option<Resolved<Routed>>,
}

impl Handles {
    fn new() -> Result<Self, Error> {
        let dispatcher = Dispatcher::new()?;
        let listener = bind(&dispatcher, roce())?;
        let to = listener.local_addr();
        let client = connect(&dispatcher, to)?;
        let server = accept(listener.next_request(soon())?)?;
        client.wait_established(soon())?;
        let asking = connect(&dispatcher, to)?;
        let request = listener.next_request(soon())?;
        let untaken = connect(&dispatcher, to)?;
        let resolved = resolve(&dispatcher, to)?;
        Ok(Self {
            dispatcher: Some(dispatcher),
            listener: Some(listener),
            request: Some(request),
            asking: Some(asking),
            client: Some(client),
            server: Some(server),
            untaken: Some(untaken),
            resolved: Some(resolved),
        })
    }

    fn drop_nth(&mut self, n: usize) {
        match n {
            0 => drop(self.dispatcher.take()),
            1 => drop(self.listener.take()),
            2 => drop(self.request.take()),
            3 => drop(self.asking.take()),
            4 => drop(self.client.take()),
            5 => drop(self.server.take()),
            6 => drop(self.untaken.take()),
            _ => drop(self.resolved.take()),
        }
    }

    /// All eight, each to be dropped where it is sent.
    fn into_drops(self) -> Vec<Box<dyn FnOnce() + Send>> {
        vec![
            Box::new(move || drop(self.dispatcher)),
            Box::new(move || drop(self.listener)),
            Box::new(move || drop(self.request)),
            Box::new(move || drop(self.asking)),
            Box::new(move || drop(self.client)),
            Box::new(move || drop(self.server)),
            Box::new(move || drop(self.untaken)),
            Box::new(move || drop(self.resolved)),
        ]
    }
}

/// Orders of the first `n` numbers, from all of them by a stride; Miri takes its time, and gets few.
fn orders(n: usize) -> impl Iterator<Item = Vec<usize>> {
    let all: usize = (1..=n).product();
    let step = if control::hurried() { all / 3 } else { 37 };
    (0..all).step_by(step).map(move |mut number| {
        let mut left: Vec<usize> = (0..n).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            let choices = left.len();
            order.push(left.remove(number % choices));
            number /= choices;
        }
        order
    })
}

#[test]
fn everything_may_go_in_any_order() {
    let fake = control::session();
    for order in orders(8) {
        let mut handles = Handles::new().expect("all of it");
        let start = Instant::now();
        for &n in &order {
            handles.drop_nth(n);
        }
        assert!(start.elapsed() < control::within(1), "{order:?}");
        nothing_left(&fake);
    }
    fake.finish();
}

#[test]
fn everything_may_go_from_several_threads_at_once() {
    let fake = control::session();
    for _ in 0..if control::hurried() { 2 } else { 50 } {
        let drops = Handles::new().expect("all of it").into_drops();
        let start = Instant::now();
        let barrier = Barrier::new(drops.len());
        thread::scope(|scope| {
            for one in drops {
                scope.spawn(|| {
                    barrier.wait();
                    one();
                });
            }
        });
        assert!(start.elapsed() < control::within(1));
        nothing_left(&fake);
    }
    fake.finish();
}

/// In a process of its own: a dispatcher that something forgotten needs runs on.
#[cfg(not(miri))]
#[test]
fn leaks_what_is_forgotten_and_lets_the_rest_go() {
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args([
            "--ignored",
            "--exact",
            "on_fake::dispatcher::forgets_each_thing",
        ])
        .output()
        .expect("the test starts");
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[ignore = "run by the test above"]
fn forgets_each_thing() {
    let fake = control::session();
    for forgotten in 0..8 {
        let mut handles = Handles::new().expect("all of it");
        match forgotten {
            0 => std::mem::forget(handles.dispatcher.take()),
            1 => std::mem::forget(handles.listener.take()),
            2 => std::mem::forget(handles.request.take()),
            3 => std::mem::forget(handles.asking.take()),
            4 => std::mem::forget(handles.client.take()),
            5 => std::mem::forget(handles.server.take()),
            6 => std::mem::forget(handles.untaken.take()),
            _ => std::mem::forget(handles.resolved.take()),
        }
        let start = Instant::now();
        for n in 0..8 {
            handles.drop_nth(n);
        }
        assert!(start.elapsed() < control::within(1), "{forgotten}");
    }
    fake.discard();
}

#[test]
fn leaks_events_that_are_forgotten_and_holds_up_nothing() {
    let fake = control::session();
    // All that events hand out is the caller's own: of each kind, and whoever gets it.
    for kind in (0..=20).filter(|kind| !control::hurried() || [1, 8, 10].contains(kind)) {
        let dispatcher = Dispatcher::new().expect("a dispatcher");
        let listener = bind(&dispatcher, roce()).expect("a listener");
        let client = connect(&dispatcher, listener.local_addr()).expect("a request");
        let server = accept(listener.next_request(soon()).expect("a request")).expect("accepted");
        for target in [Target::Active, Target::Passive, Target::Listener] {
            fake.inject(target, kind, 0, Some(&[3; 56]));
        }
        let start = Instant::now();
        for connection in [&client, &server] {
            while let Ok(event) = connection.next_event(Deadline::after(Duration::from_millis(5))) {
                std::mem::forget(event);
            }
        }
        std::mem::forget(listener.try_next_request());
        drop((dispatcher, listener, client, server));
        assert!(start.elapsed() < control::within(1), "{kind}");
        nothing_left(&fake);
    }
    fake.finish();
}

#[test]
fn the_last_to_go_in_the_dispatchers_own_thread_ends_it() {
    let fake = control::session();
    for _ in 0..if control::hurried() { 3 } else { 200 } {
        // A request arrives while its listener, the last user, goes: the thread rejects it, and may
        // be the last who holds on to itself.
        let client_side = Dispatcher::new().expect("a dispatcher");
        let dispatcher = Dispatcher::new().expect("a dispatcher");
        let listener = bind(&dispatcher, roce()).expect("a listener");
        drop(dispatcher);
        let resolved = resolve(&client_side, listener.local_addr()).expect("resolved");
        let qp = queue_pair(resolved.context()).expect("a queue pair");
        resolved.init_qp(&qp).expect("INIT");
        let client = resolved
            .connect(qp, &ConnParams::default(), b"")
            .expect("a request");
        drop(listener);
        let error = client.wait_established(soon()).expect_err("rejected");
        assert!(
            matches!(error, Error::Rejected { .. } | Error::NoListener { .. }),
            "{error}"
        );
        drop((client, client_side));
        nothing_left(&fake);
    }
    fake.finish();
}

#[test]
fn each_call_of_a_dispatcher_that_fails_leaves_nothing() {
    let fake = control::session();
    for (call, errno) in [
        ("rdma_create_event_channel", libc::EMFILE),
        ("rdma_create_id", libc::ENOMEM),
        ("rdma_bind_addr", libc::EADDRINUSE),
        ("rdma_listen", libc::EIO),
    ] {
        fake.fail(call, 0, errno);
        let result = Dispatcher::new().and_then(|dispatcher| bind(&dispatcher, roce()));
        let error = result.expect_err("made to fail");
        assert!(error.to_string().contains(call), "{error}");
        nothing_left(&fake);
    }
    fake.finish();
}

#[test]
fn events_that_could_not_be_read_are_read_later_and_the_reason_is_told() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let listener = bind(&dispatcher, roce()).expect("a listener");
    assert_eq!(dispatcher.last_error(), None);
    fake.fail("rdma_get_cm_event", 0, libc::ENOMEM);
    let client = connect(&dispatcher, listener.local_addr()).expect("a request");
    let server = accept(listener.next_request(soon()).expect("a request")).expect("accepted");
    client.wait_established(soon()).expect("established");
    server.wait_established(soon()).expect("established");
    let error = dispatcher.last_error().expect("the reason");
    assert!(error.to_string().contains("rdma_get_cm_event"), "{error}");
    drop((client, server, listener, dispatcher));
    fake.finish();
}

#[test]
fn a_device_that_goes_is_told_to_the_listener_also_when_its_queue_is_full() {
    let fake = control::session();
    let dispatcher = Dispatcher::new().expect("a dispatcher");
    let mut options = ListenOptions::default();
    options.backlog = 1;
    let listener = dispatcher.listen(roce(), &options).expect("a listener");
    let client = connect(&dispatcher, listener.local_addr()).expect("a request");
    fake.inject(Target::Listener, 11, 0, None);
    drop(listener.next_request(soon()).expect("the request"));
    let error = listener
        .next_request(soon())
        .expect_err("the device has gone");
    assert!(matches!(error, Error::DeviceRemoved { .. }), "{error}");
    drop((client, listener, dispatcher));
    fake.finish();
}
