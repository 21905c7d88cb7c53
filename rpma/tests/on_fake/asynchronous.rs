//! Waits in a tokio runtime: nothing is lost with a future that is dropped, and nothing is slept over.
#![cfg(feature = "tokio")]

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use cm::verbs::sys::fake::control;
use rpma::{
    Async, CompletionChannel, CompletionQueue, Connection, ConnectionConfig, ConnectionEvent,
    ConnectionRequest, Endpoint, Error, PrivateData, Signal,
};
use tokio::time::timeout;

use super::common::{Pair, Regions, addr, peer};

fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // A test of waits must not wait for ever itself.
    let limit = control::within(20);
    runtime
        .block_on(async { timeout(limit, future).await })
        .expect("in time")
}

/// Whether a future that is polled once and dropped was still waiting.
fn dropped_waiting<F: Future>(future: F) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    matches!(future.as_mut().poll(&mut context), Poll::Pending)
}

/// Two tasks at once.
async fn both<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut of_a, mut of_b) = (None, None);
    std::future::poll_fn(move |context| {
        if of_a.is_none()
            && let Poll::Ready(got) = a.as_mut().poll(context)
        {
            of_a = Some(got);
        }
        if of_b.is_none()
            && let Poll::Ready(got) = b.as_mut().poll(context)
        {
            of_b = Some(got);
        }
        match (of_a.take(), of_b.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (of_a, of_b) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

async fn connected(peer: &rpma::Peer) -> (Async<Connection>, Async<Connection>) {
    let config = ConnectionConfig::default();
    let endpoint = Endpoint::listen(peer, addr(0)).expect("a listener");
    let to = endpoint.local_addr();
    let mut endpoint = Async::new(endpoint).expect("registered");
    assert!(dropped_waiting(endpoint.next_connection_request(&config)));
    let server = async {
        let request = endpoint.next_connection_request(&config).await;
        let connection = request.expect("the request").connect(PrivateData::none());
        let mut server = Async::with_events(connection.expect("accepted")).expect("registered");
        assert!(dropped_waiting(server.wait_established()));
        server.wait_established().await.expect("established");
        server
    };
    let client = async {
        let request = ConnectionRequest::new(peer, to, &config).expect("a request");
        let connection = request.connect(PrivateData::none()).expect("begun");
        let mut client = Async::with_events(connection).expect("registered");
        client.wait_established().await.expect("established");
        client
    };
    both(client, server).await
}

#[test]
fn a_connection_is_made_used_and_ended_in_one_thread() {
    let fake = control::session();
    run(async {
        let peer = peer().expect("a peer");
        let (client, mut server) = connected(&peer).await;
        let region = rpma::LocalRegion::alloc(&peer, 64, rpma::Usage::all()).expect("memory");
        let mut completions = Async::new(client.get_ref().cq().clone()).expect("registered");
        assert!(dropped_waiting(completions.next()));
        let span = region.as_span();
        server.get_ref().recv(span, 1).expect("posted");
        client
            .get_ref()
            .send(span, Signal::Always, 2)
            .expect("posted");
        let completion = completions.next().await.expect("a completion");
        assert_eq!(completion.op_context(), 2);
        let short = timeout(Duration::from_millis(5), completions.next()).await;
        assert!(short.is_err(), "one that nobody posted");
        client.get_ref().disconnect().expect("disconnected");
        let event = server.next_event().await.expect("an event");
        assert_eq!(event, ConnectionEvent::Closed);
    });
    fake.finish();
}

#[test]
fn completions_are_neither_lost_nor_slept_over_however_often_a_wait_is_given_up() {
    let fake = control::session();
    run(async {
        let pair = Pair::new().expect("a connection");
        let regions = Regions::new(&pair, 8).expect("regions");
        let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
        let write = |id| pair.client.write(to, from, Signal::Always, id);
        let mut queue = Async::new(pair.client.cq().clone()).expect("registered");
        let mut next = 0;
        for round in 0..if control::hurried() { 2 } else { 50 } {
            for _ in 0..round % 3 {
                assert!(dropped_waiting(queue.next()));
            }
            for id in 0..5 {
                write(next + id).expect("posted");
            }
            // Somebody else takes the first.
            let first = pair.client.cq().poll_one().expect("no failure");
            assert_eq!(first.expect("one").op_context(), next);
            let second = queue.next().await.expect("a completion");
            assert_eq!(second.op_context(), next + 1);
            let mut out = [const { MaybeUninit::uninit() }; 8];
            let rest = queue.poll(&mut out).await.expect("completions");
            let rest: Vec<_> = rest.iter().map(rpma::Completion::op_context).collect();
            assert_eq!(rest, [next + 2, next + 3, next + 4]);
            next += 5;
        }
        let none = queue.poll(&mut []).await.expect_err("no room");
        assert!(matches!(none, Error::Invalid(_)), "{none}");
    });
    fake.finish();
}

#[test]
fn a_channel_is_waited_for_and_names_the_queue() {
    let fake = control::session();
    run(async {
        let server_peer = peer().expect("a peer");
        let channel = CompletionChannel::new(&server_peer).expect("a channel");
        let queue = CompletionQueue::builder(&server_peer, 64).channel(&channel);
        let queue = queue.build().expect("a queue");
        let mut config = ConnectionConfig::default();
        config.set_cq(Some(&queue));
        let plain = ConnectionConfig::default();
        let pair = Pair::between(peer().expect("a peer"), server_peer, &plain, &config);
        let pair = pair.expect("a connection");
        let regions = Regions::new(&pair, 8).expect("regions");
        let mut channel = Async::new(channel).expect("registered");
        let (to, from) = (regions.of_client.as_span(), regions.server.as_span());
        for id in 0..3 {
            assert!(dropped_waiting(channel.wait()));
            pair.server
                .write(to, from, Signal::Always, id)
                .expect("posted");
            let ready = channel.wait().await.expect("something came");
            assert_eq!(ready, queue);
            let completion = ready.poll_one().expect("no failure").expect("one");
            assert_eq!(completion.op_context(), id);
            assert!(ready.poll_one().expect("no failure").is_none());
        }
        // One queue of a shared channel is not waited for alone.
        let mut alone = Async::new(queue).expect("registered");
        let error = alone.next().await.expect_err("shared");
        assert_eq!(error.code(), -100_008, "{error}");
    });
    fake.finish();
}

#[test]
fn data_stands_for_a_lost_confirmation_in_a_runtime_too() {
    let fake = control::session();
    run(async {
        let peer = peer().expect("a peer");
        let endpoint = Endpoint::listen(&peer, addr(0)).expect("a listener");
        let config = ConnectionConfig::default();
        let request = ConnectionRequest::new(&peer, endpoint.local_addr(), &config);
        let client = request.expect("a request").connect(PrivateData::none());
        let client = client.expect("begun");
        let request = endpoint.try_next_connection_request(&config);
        let request = request.expect("no failure").expect("the request");
        let server = request.connect(PrivateData::none()).expect("accepted");
        fake.lose_confirmation();
        let mut client = Async::with_events(client).expect("registered");
        client.wait_established().await.expect("established");
        let mut server = Async::with_events(server).expect("registered");
        let early = timeout(Duration::from_millis(400), server.wait_established()).await;
        assert!(early.is_err(), "established by nothing");
        let region = rpma::LocalRegion::alloc(&peer, 64, rpma::Usage::all()).expect("memory");
        server.get_ref().recv(region.as_span(), 1).expect("posted");
        let sent = client.get_ref().send(region.as_span(), Signal::Always, 2);
        sent.expect("posted");
        server.wait_established().await.expect("by the data");
    });
    fake.finish();
}

#[test]
fn waits_may_move_between_threads() {
    fn send<T: Send>(_: &T) {}
    let fake = control::session();
    run(async {
        let peer = peer().expect("a peer");
        let (mut client, _server) = connected(&peer).await;
        let mut queue = Async::new(client.get_ref().cq().clone()).expect("registered");
        send(&queue.next());
        send(&client.next_event());
        send(&client.wait_established());
    });
    fake.finish();
}
