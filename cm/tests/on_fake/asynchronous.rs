//! Waits in a runtime of one thread: nothing else stands still meanwhile, and a future that is dropped
//! takes nothing with it.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cm::verbs::sys::fake::control;
use cm::{
    Async, ConnectOptions, Connection, ConnectionEvent, DatagramResolving, Listener, Resolving,
};
use tokio::time::{interval, sleep, timeout};

use super::common::{accept, accepted, connect, listen, roce, soon};

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // A test of waits must not wait for ever itself.
    let limited = async { timeout(Duration::from_secs(20), future).await };
    runtime.block_on(limited).expect("in time")
}

fn waited(value: Listener) -> Async<Listener> {
    Async::new(value).expect("registered")
}

/// Polls a future once and drops it.
fn dropped_after_a_poll<F: Future>(future: F) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    matches!(future.as_mut().poll(&mut context), Poll::Pending)
}

#[test]
fn a_ticker_keeps_its_beat_while_a_request_is_waited_for() {
    let fake = control::session();
    run(async {
        let mut listener = waited(listen(roce()).expect("a listener"));
        let to = listener.get_ref().local_addr();
        let (beats, done) = (Cell::new(0), Cell::new(false));
        let ticker = async {
            let mut beat = interval(Duration::from_millis(10));
            while !done.get() {
                beat.tick().await;
                beats.set(beats.get() + 1);
            }
        };
        let server = async {
            let request = listener.next_request().await.expect("the request");
            done.set(true);
            request
        };
        let client = async {
            sleep(Duration::from_millis(300)).await;
            connect(to, b"").expect("a request")
        };
        let ((), request, client) = {
            let (mut ticker, mut server, mut client) = (pin!(ticker), pin!(server), pin!(client));
            let (mut got, mut asked) = (None, None);
            std::future::poll_fn(move |cx| {
                if got.is_none()
                    && let Poll::Ready(request) = server.as_mut().poll(cx)
                {
                    got = Some(request);
                }
                if asked.is_none()
                    && let Poll::Ready(client) = client.as_mut().poll(cx)
                {
                    asked = Some(client);
                }
                match ticker.as_mut().poll(cx) {
                    Poll::Ready(()) if asked.is_some() => {
                        let both = (got.take().expect("a request"), asked.take().expect("asked"));
                        Poll::Ready(((), both.0, both.1))
                    }
                    _ => Poll::Pending,
                }
            })
            .await
        };
        // 30 in 300 ms; a thread that is held up has one.
        assert!(beats.get() >= 10, "{} beats", beats.get());
        let server = accept(request, b"").expect("accepted");
        let mut client = Async::new(client).expect("registered");
        client.wait_established().await.expect("established");
        drop((client, server, listener));
    });
    fake.finish();
}

#[test]
fn a_future_that_is_dropped_loses_no_request_and_no_event() {
    let fake = control::session();
    run(async {
        let mut listener = waited(listen(roce()).expect("a listener"));
        let to = listener.get_ref().local_addr();
        assert!(dropped_after_a_poll(listener.next_request()));
        let nobody = timeout(Duration::from_millis(20), listener.next_request()).await;
        assert!(nobody.is_err(), "nobody asked");
        let client = connect(to, b"one").expect("a request");
        let request = listener.next_request().await.expect("the request");
        assert!(request.private_data().starts_with(b"one"));
        let mut server = Async::new(accept(request, b"").expect("accepted")).expect("registered");
        let mut client = Async::new(client).expect("registered");
        for _ in 0..3 {
            // The server's event is sent by the client's, which is not taken yet.
            let early = timeout(Duration::from_millis(5), server.wait_established()).await;
            assert!(early.is_err(), "established by nobody");
        }
        let answer = client.wait_established().await.expect("established");
        assert_eq!(answer.len(), 196);
        server.wait_established().await.expect("established");
        client.get_ref().disconnect().expect("disconnected");
        let event = server.next_event().await.expect("an event");
        assert_eq!(event, ConnectionEvent::Disconnected);
        drop((client, server, listener));
    });
    fake.finish();
}

#[test]
fn an_attempt_survives_its_dropped_futures() {
    let fake = control::session();
    run(async {
        let listener = listen(roce()).expect("a listener");
        let to = listener.local_addr();
        let resolving = Resolving::start(to, &ConnectOptions::default(), soon());
        let mut resolving = Async::new(resolving.expect("started")).expect("registered");
        // The runtime has not looked at the descriptor yet, so each of these waits.
        for _ in 0..3 {
            assert!(dropped_after_a_poll(resolving.wait()));
        }
        drop(resolving.wait().await.expect("resolved"));
        assert!(resolving.into_inner().is_none(), "spent");
        let options = ConnectOptions::default();
        let resolving = DatagramResolving::start(to, &options, soon()).expect("started");
        let mut resolving = Async::new(resolving).expect("registered");
        let resolved = resolving.wait().await.expect("resolved");
        let mut asking = Async::new(resolved.ask(b"").expect("asked")).expect("registered");
        // Nobody takes datagrams there.
        asking.wait().await.expect_err("no listener");
        drop(listener);
    });
    fake.finish();
}

#[test]
fn a_value_outlives_its_registration() {
    let fake = control::session();
    run(async {
        let (client, server) = accepted(roce()).expect("accepted");
        let client = Async::new(client).expect("registered");
        let client: Connection = client.into_inner().expect("not spent");
        client.wait_established(soon()).expect("established");
        let mut again = Async::new(client).expect("registered again");
        server.wait_established(soon()).expect("established");
        server.disconnect().expect("disconnected");
        let event = again.next_event().await.expect("an event");
        assert_eq!(event, ConnectionEvent::Disconnected);
    });
    fake.finish();
}
