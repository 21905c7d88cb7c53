//! The server's CPU makes ranges persistent, at the client's request.

use std::cell::RefCell;
use std::ops::Range;
use std::thread;
use std::time::Duration;

use cm::verbs::sys::fake::control;
use rpma::gpspm::{Announcement, Client, Error, FlushRequest, FlushResponse, Served, Server};
use rpma::{
    Connection, ConnectionConfig, ConnectionRequest, Endpoint, LocalRegion, Peer, PeerConfig,
    PrivateData, Signal, Usage,
};

use super::common::{WAIT, addr, completed, peer};

const SIZE: usize = 4096;
/// For what does not come.
const SHORT: Duration = Duration::from_millis(20);

/// A server with its region, and an established connection to it.
struct Both {
    client: Connection,
    client_peer: Peer,
    server: Server,
    region: LocalRegion,
}

impl Both {
    fn with(config: &ConnectionConfig) -> Result<Self, Error> {
        let (client_peer, server_peer) = (peer()?, peer()?);
        let usage = Usage::WRITE_DST | Usage::FLUSH_PERSISTENT;
        let region = LocalRegion::alloc(&server_peer, SIZE, usage)?;
        let endpoint = Endpoint::listen(&server_peer, addr(0))?;
        let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), config)?;
        let client = request.connect(PrivateData::none())?;
        let request = endpoint.next_connection_request(config, WAIT)?;
        let announced = Announcement::of(&region, 64, Some(&PeerConfig::default()))?;
        let server = Server::accept(&server_peer, request, announced, SIZE as u64)?;
        client.wait_established(WAIT)?;
        server.connection().wait_established(WAIT)?;
        Ok(Self {
            client,
            client_peer,
            server,
            region,
        })
    }

    fn new() -> Self {
        Self::with(&ConnectionConfig::default()).expect("a connection")
    }
}

fn nothing(_: Range<u64>) -> Result<(), rpma::Error> {
    Ok(())
}

/// Sends bytes as a client without manners.
fn send_raw(both: &Both, bytes: &[u8]) {
    let len = bytes.len();
    let memory = LocalRegion::alloc(&both.client_peer, len, Usage::SEND).expect("memory");
    memory.store(0, bytes).expect("store");
    let client = &both.client;
    client
        .send(memory.as_span(), Signal::Always, 5)
        .expect("send");
    assert_eq!(completed(client.cq()).op_context(), 5);
}

fn what_was_written_is_there_when_it_is_made_persistent(config: &ConnectionConfig) {
    let fake = control::session();
    let Both {
        client,
        client_peer,
        mut server,
        region,
    } = Both::with(config).expect("a connection");
    let source = LocalRegion::alloc(&client_peer, SIZE, Usage::WRITE_SRC).expect("memory");
    let persisted = thread::scope(|scope| {
        let server = scope.spawn(|| {
            let seen = RefCell::new(Vec::new());
            let persist = |range: Range<u64>| -> Result<(), rpma::Error> {
                let start = usize::try_from(range.start).expect("small");
                let mut first = [0];
                region.load(start, &mut first)?;
                seen.borrow_mut().push((range, first[0]));
                Ok(())
            };
            while let Served::Persisted(_) = server.answer(WAIT, persist).expect("a request") {}
            // Once said, the end stays the end.
            assert_eq!(server.answer(SHORT, nothing).expect("the end"), Served::End);
            seen.into_inner()
        });
        let theirs = Announcement::decode(client.private_data()).expect("an announcement");
        assert_eq!((theirs.data_offset, theirs.region.len()), (64, SIZE as u64));
        let mut client = Client::new(client).expect("memory");
        for round in 0..3_u8 {
            let at = 64 + u64::from(round) * 100;
            source.store(0, &[round + 1; 100]).expect("store");
            let (to, from) = (theirs.region.span(at..at + 100), source.span(..100));
            let (to, from) = (to.expect("inside"), from.expect("inside"));
            let connection = client.connection();
            connection
                .write(to, from, Signal::Always, 7)
                .expect("write");
            client.persist(at..at + 100, WAIT).expect("an answer");
        }
        client.end(WAIT).expect("the end");
        // The completions of the writes are not lost.
        let mut others = client.take_others();
        let left = || client.connection().cq().poll_one().expect("poll");
        others.extend(std::iter::from_fn(left));
        assert_eq!(others.len(), 3);
        assert!(
            others
                .iter()
                .all(|other| other.op_context() == 7 && other.result().is_ok())
        );
        let refused = client.persist(5..5, WAIT).expect_err("an empty range");
        assert!(refused.to_string().contains("bytes 5 to 5"), "{refused}");
        drop(client.into_connection());
        server.join().expect("no panic")
    });
    let expected = [(64..164, 1), (164..264, 2), (264..364, 3)];
    assert_eq!(persisted, expected);
    drop((server, region, source, client_peer));
    fake.finish();
}

#[test]
fn what_was_written_before_the_request_is_there_when_it_is_made_persistent() {
    what_was_written_is_there_when_it_is_made_persistent(&ConnectionConfig::default());
}

#[test]
fn messages_may_come_to_a_queue_of_their_own_and_queues_share_a_channel() {
    for shared in [false, true] {
        let mut config = ConnectionConfig::default();
        config
            .set_rcq_size(20)
            .set_shared_completion_channel(shared);
        what_was_written_is_there_when_it_is_made_persistent(&config);
    }
}

#[test]
fn a_range_outside_of_the_region_is_refused_and_never_given_to_persist() {
    for (offset, length) in [
        (0, 4097),
        (4096, 1),
        (u64::MAX, 1),
        (1, u64::MAX),
        (1 << 63, 1 << 63),
    ] {
        let fake = control::session();
        let mut both = Both::new();
        let request = FlushRequest {
            offset,
            length,
            op_context: 3,
        };
        send_raw(&both, &request.encode());
        let persist = |_| -> Result<(), rpma::Error> { panic!("a range outside of the region") };
        let refused = both.server.answer(WAIT, persist).expect_err("outside");
        assert!(
            matches!(refused, Error::OutOfBounds { size: 4096, .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("hostile"), "{refused}");
        // Nothing was said to the client, and nothing goes on.
        let again = both.server.answer(SHORT, nothing).expect_err("ended");
        assert!(matches!(again, Error::Ended), "{again}");
        drop(both);
        fake.finish();
    }
}

#[test]
fn bytes_that_are_no_request_are_refused() {
    let whole = FlushRequest {
        offset: 0,
        length: 8,
        op_context: 1,
    };
    let mut wrong_tag = whole.encode();
    wrong_tag[9] = 0x12;
    for bytes in [&whole.encode()[..26], &wrong_tag, &[0; 300]] {
        let fake = control::session();
        let mut both = Both::new();
        send_raw(&both, bytes);
        let refused = both.server.answer(WAIT, nothing).expect_err("no request");
        assert!(matches!(refused, Error::NoSuchMessage { .. }), "{refused}");
        drop(both);
        fake.finish();
    }
}

#[test]
fn what_could_not_be_made_persistent_is_never_answered() {
    let fake = control::session();
    let Both {
        client,
        client_peer,
        mut server,
        region,
    } = Both::new();
    let mut client = Client::new(client).expect("memory");
    let late = client.persist(0..8, SHORT).expect_err("nobody answers yet");
    assert!(late.is_timeout(), "{late}");
    let failing = |_| Err(std::io::Error::other("the disk is gone"));
    let failed = server.answer(WAIT, failing).expect_err("a failure");
    assert!(
        matches!(failed, Error::NotPersistent { length: 8, .. }),
        "{failed}"
    );
    let late = client.persist(0..8, SHORT).expect_err("no answer");
    assert!(late.is_timeout(), "{late}");
    // With the connection goes the hope for one.
    server.connection().disconnect().expect("disconnect");
    client.connection().disconnect().expect("disconnect");
    let ended = client.persist(0..8, WAIT).expect_err("no connection");
    assert!(matches!(ended, Error::Failed { .. }), "{ended}");
    let ended = client.persist(0..8, WAIT).expect_err("no connection");
    assert!(matches!(ended, Error::Ended), "{ended}");
    drop((client, server, region, client_peer));
    fake.finish();
}

#[test]
fn an_answer_that_comes_late_is_taken_first() {
    let fake = control::session();
    let Both {
        client,
        client_peer,
        mut server,
        region,
    } = Both::new();
    let mut client = Client::new(client).expect("memory");
    assert!(client.persist(0..8, SHORT).expect_err("late").is_timeout());
    let first = server.answer(WAIT, nothing).expect("the first request");
    assert!(matches!(first, Served::Persisted(request) if request.length == 8));
    // The second is asked only now, and its answer is not mistaken for the first.
    assert!(client.persist(8..24, SHORT).expect_err("late").is_timeout());
    let second = server.answer(WAIT, nothing).expect("the second request");
    assert!(matches!(second, Served::Persisted(request) if request.length == 16));
    client.end(WAIT).expect("the end");
    assert_eq!(server.answer(WAIT, nothing).expect("the end"), Served::End);
    drop((client, server, region, client_peer));
    fake.finish();
}

#[test]
fn an_answer_to_another_request_ends_the_exchange() {
    let fake = control::session();
    let Both {
        client,
        client_peer,
        server,
        region,
    } = Both::new();
    let mut client = Client::new(client).expect("memory");
    assert!(client.persist(0..8, SHORT).expect_err("late").is_timeout());
    let memory = LocalRegion::alloc(region.peer(), 9, Usage::SEND).expect("memory");
    let op_context = 99;
    memory
        .store(0, &FlushResponse { op_context }.encode())
        .expect("store");
    let connection = server.connection();
    connection
        .send(memory.as_span(), Signal::Always, 6)
        .expect("send");
    let wrong = client.persist(0..8, WAIT).expect_err("another request's");
    assert!(
        matches!(
            wrong,
            Error::WrongNumber {
                found: 99,
                expected: 1
            }
        ),
        "{wrong}"
    );
    let ended = client.persist(0..8, WAIT).expect_err("ended");
    assert!(matches!(ended, Error::Ended), "{ended}");
    drop((client, server, region, client_peer, memory));
    fake.finish();
}
