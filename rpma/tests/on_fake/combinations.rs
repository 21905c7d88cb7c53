//! Which queue takes what: each combination of receive queue, shared receive queue and channel.

use std::time::Duration;

use cm::verbs::sys::fake::control;
use rpma::{
    CompletionQueue, Connection, ConnectionConfig, ErrorKind, LocalRegion, PrivateData,
    SharedReceiveQueue, Signal, SrqConfig, Usage,
};

use super::common::{Pair, WAIT, addr, peer};

/// Which queue of the server has the completion of its receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Main,
    Rcq,
    OfSrq,
}

/// One row of the table, as the server is made.
struct Row {
    rcq_size: u32,
    /// The shared receive queue, by the size of its completion queue.
    srq: Option<u32>,
    shared_channel: bool,
    at: At,
}

const ROWS: [Row; 10] = [
    row(0, None, false, At::Main),
    row(0, None, true, At::Main),
    row(10, None, false, At::Rcq),
    row(10, None, true, At::Rcq),
    row(0, Some(20), false, At::OfSrq),
    row(10, Some(20), false, At::OfSrq),
    row(0, Some(0), false, At::Main),
    row(0, Some(0), true, At::Main),
    row(20, Some(0), false, At::Rcq),
    row(20, Some(0), true, At::Rcq),
];

const fn row(rcq_size: u32, srq: Option<u32>, shared_channel: bool, at: At) -> Row {
    Row {
        rcq_size,
        srq,
        shared_channel,
        at,
    }
}

#[test]
fn receives_complete_where_the_combination_of_queues_says() {
    let fake = control::session();
    let rows = if control::hurried() {
        &ROWS[3..4]
    } else {
        &ROWS[..]
    };
    for row in rows {
        let what = format!(
            "rcq_size {}, shared receive queue {:?}, shared channel {}",
            row.rcq_size, row.srq, row.shared_channel
        );
        let (client_peer, server_peer) = (peer().expect("a peer"), peer().expect("a peer"));
        let mut config = ConnectionConfig::default();
        config
            .set_rcq_size(row.rcq_size)
            .set_shared_completion_channel(row.shared_channel);
        let srq = row.srq.map(|rcq_size| {
            let mut sizes = SrqConfig::default();
            sizes.set_rcq_size(rcq_size);
            SharedReceiveQueue::new(&server_peer, &sizes).expect("a shared receive queue")
        });
        config.set_srq(srq.as_ref());
        let plain = ConnectionConfig::default();
        let pair = Pair::between(client_peer, server_peer, &plain, &config).expect(&what);
        let to = LocalRegion::alloc(&pair.server_peer, 8, Usage::RECV).expect("memory");
        let from = LocalRegion::alloc(&pair.client_peer, 8, Usage::SEND).expect("memory");
        match &srq {
            Some(srq) => {
                let refused = pair.server.recv(to.as_span(), 6).expect_err(&what);
                assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{what}");
                srq.recv(to.as_span(), 7).expect(&what);
            }
            None => pair.server.recv(to.as_span(), 7).expect(&what),
        }
        // The main queue has something as well, to be told from receives.
        let own = LocalRegion::alloc(&pair.server_peer, 8, Usage::SEND).expect("memory");
        let answer = LocalRegion::alloc(&pair.client_peer, 8, Usage::RECV).expect("memory");
        pair.client.recv(answer.as_span(), 1).expect(&what);
        let send = |connection: &Connection, from: &LocalRegion, id| {
            connection.send(from.as_span(), Signal::Always, id)
        };
        send(&pair.server, &own, 8).expect(&what);
        send(&pair.client, &from, 9).expect(&what);

        let of_srq = srq.as_ref().and_then(SharedReceiveQueue::rcq);
        let receives = match row.at {
            At::Main => pair.server.cq(),
            At::Rcq => pair.server.rcq().expect(&what),
            At::OfSrq => of_srq.expect(&what),
        };
        assert_eq!(pair.server.rcq().is_some(), row.at == At::Rcq, "{what}");
        let mut got = Vec::new();
        if row.shared_channel {
            for queue in [Some(pair.server.cq()), pair.server.rcq()]
                .into_iter()
                .flatten()
            {
                let refused = queue.wait(WAIT).expect_err(&what);
                assert_eq!(refused.code(), -100_008, "{what}");
                let refused = queue.next(WAIT).expect_err(&what);
                assert_eq!(refused.code(), -100_008, "{what}");
            }
            pair.server.completion_fd().expect(&what);
            while got.len() < 2 {
                let ready = pair.server.wait(WAIT).expect(&what);
                assert_eq!(
                    ready.is_rcq(),
                    Some(ready.queue()) == pair.server.rcq(),
                    "{what}"
                );
                // One a wait: what is left is named again.
                got.extend(taken(ready.queue(), receives));
            }
        } else {
            let refused = pair.server.wait(WAIT).expect_err(&what);
            assert_eq!(refused.code(), -100_009, "{what}");
            assert!(pair.server.completion_fd().is_err(), "{what}");
            for queue in [pair.server.cq(), receives] {
                while got.len() < 2 {
                    if queue.wait(Duration::from_millis(1)).is_err() {
                        break;
                    }
                    got.extend(taken(queue, receives));
                }
            }
        }
        got.sort_unstable();
        let mut expected = vec![(true, 7), (row.at == At::Main, 8)];
        expected.sort_unstable();
        assert_eq!(got, expected, "{what}");
        drop((pair, to, from, own, answer, srq, config));
    }
    fake.finish();
}

/// One completion, and whether it was where receives complete.
fn taken(queue: &CompletionQueue, receives: &CompletionQueue) -> Option<(bool, u64)> {
    let completion = queue.poll_one().expect("no failure")?;
    completion.result().expect("a success");
    Some((queue == receives, completion.op_context()))
}

#[test]
fn combinations_that_contradict_themselves_are_refused_by_name() {
    let fake = control::session();
    let peer = peer().expect("a peer");
    let with_rcq = SharedReceiveQueue::new(&peer, &SrqConfig::default()).expect("a queue");
    let mut sizes = SrqConfig::default();
    sizes.set_rcq_size(0);
    let without_rcq = SharedReceiveQueue::new(&peer, &sizes).expect("a queue");
    let other_peer = super::common::peer().expect("a peer");
    let of_other = SharedReceiveQueue::new(&other_peer, &sizes).expect("a queue");
    let given = CompletionQueue::new(&peer, 64).expect("a queue");
    type Change<'a> = &'a dyn Fn(&mut ConnectionConfig);
    let cases: [(&str, Change<'_>); 9] = [
        ("shared channel", &|config| {
            config
                .set_srq(Some(&with_rcq))
                .set_shared_completion_channel(true);
        }),
        ("set_rcq", &|config| {
            config.set_srq(Some(&with_rcq)).set_rcq(Some(&given));
        }),
        ("rq_size", &|config| {
            config.set_srq(Some(&without_rcq)).set_rq_size(5);
        }),
        ("another peer", &|config| {
            config.set_srq(Some(&of_other));
        }),
        ("completion queue and its size", &|config| {
            config.set_cq(Some(&given)).set_cq_size(64);
        }),
        ("receive completion queue and its size", &|config| {
            config.set_rcq(Some(&given)).set_rcq_size(64);
        }),
        ("CompletionChannel", &|config| {
            config
                .set_cq(Some(&given))
                .set_shared_completion_channel(true);
        }),
        (
            "a completion queue of 19 entries can overrun: the depths of its queues need 20",
            &|config| {
                config.set_cq_size(19);
            },
        ),
        (
            "a receive completion queue of 9 entries can overrun: the depths of its queues need 10",
            &|config| {
                config.set_rcq_size(9);
            },
        ),
    ];
    let endpoint = rpma::Endpoint::listen(&peer, addr(0)).expect("a listener");
    let few = if control::hurried() { 1 } else { cases.len() };
    for (text, change) in cases.into_iter().take(few) {
        let mut config = ConnectionConfig::default();
        change(&mut config);
        let error = rpma::ConnectionRequest::new(&peer, endpoint.local_addr(), &config)
            .expect_err("a contradiction");
        assert_eq!(error.code(), -100_004, "{error}");
        assert!(error.to_string().contains(text), "{text}: {error}");
        // Whoever asks is told at once.
        let plain = ConnectionConfig::default();
        let request = rpma::ConnectionRequest::new(&peer, endpoint.local_addr(), &plain);
        let client = request
            .expect("a request")
            .connect(PrivateData::none())
            .expect("begun");
        endpoint
            .next_connection_request(&config, WAIT)
            .expect_err("a contradiction");
        let error = client.wait_established(WAIT).expect_err("rejected");
        assert_eq!(error.kind(), ErrorKind::Rejected, "{error}");
    }
    drop((
        with_rcq,
        without_rcq,
        of_other,
        given,
        endpoint,
        peer,
        other_peer,
    ));
    fake.finish();
}
