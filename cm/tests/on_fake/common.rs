//! Both ends of a connection.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use cm::verbs::sys::fake::control;
use cm::verbs::{CompletionQueue, Context, ProtectionDomain, QpType, QueuePair};
use cm::{
    ConnParams, ConnectOptions, Connection, Deadline, Error, ListenOptions, Listener, Request,
    Resolved, Resolving,
};

pub(crate) fn soon() -> Deadline {
    Deadline::after(control::within(5))
}

/// The addresses of the fake devices: RoCE and iWARP.
pub(crate) fn roce() -> SocketAddr {
    SocketAddr::new([192, 0, 2, 1].into(), 0)
}

pub(crate) fn iwarp() -> SocketAddr {
    SocketAddr::new([198, 51, 100, 1].into(), 0)
}

pub(crate) fn listen(addr: SocketAddr) -> Result<Listener, Error> {
    Listener::bind(addr, &ListenOptions::default())
}

pub(crate) fn resolve(addr: SocketAddr) -> Result<Resolved, Error> {
    Resolving::start(addr, &ConnectOptions::default(), soon())?.wait()
}

pub(crate) fn queue_pair(context: &Context) -> Result<QueuePair, Error> {
    let pd = ProtectionDomain::new(context)?;
    let cq = CompletionQueue::builder(context, 8).build()?;
    Ok(QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(4)
        .max_recv_wr(4)
        .build()?)
}

/// A connection that is asked for.
pub(crate) fn connect(addr: SocketAddr, data: &[u8]) -> Result<Connection, Error> {
    let resolved = resolve(addr)?;
    let qp = queue_pair(resolved.context())?;
    resolved.init_qp(&qp)?;
    resolved.connect(qp, &ConnParams::default(), data)
}

pub(crate) fn accept(request: Request, data: &[u8]) -> Result<Connection, Error> {
    let qp = queue_pair(request.context())?;
    request.init_qp(&qp)?;
    request.accept(qp, &ConnParams::default(), data)
}

/// Client and server after the acceptance; nobody has taken an event of theirs yet.
pub(crate) fn accepted(addr: SocketAddr) -> Result<(Connection, Connection), Error> {
    let listener = listen(addr)?;
    let client = connect(listener.local_addr(), b"request")?;
    let server = accept(listener.next_request(soon())?, b"acceptance")?;
    Ok((client, server))
}

/// Client and server of a connection that stands.
pub(crate) fn established(addr: SocketAddr) -> Result<(Connection, Connection), Error> {
    let (client, server) = accepted(addr)?;
    client.wait_established(soon())?;
    server.wait_established(soon())?;
    Ok((client, server))
}

/// All handles there are, to be dropped one by one.
pub(crate) type Handles<H, const N: usize> = Result<[Option<H>; N], Error>;

/// Forgets each handle once, and drops the rest from either end, which waits for nothing.
pub(crate) fn forget_each<H, const N: usize>(handles: impl Fn() -> Handles<H, N>) {
    for forgotten in 0..N {
        for backwards in [false, true] {
            let mut handles = handles().expect("all of it");
            std::mem::forget(handles[forgotten].take());
            let start = Instant::now();
            for n in 0..N {
                let n = if backwards { N - 1 - n } else { n };
                drop(handles[n].take());
            }
            assert!(start.elapsed() < control::within(1), "{forgotten}");
        }
    }
}

/// Drops each handle in a thread of its own, all at once, again and again: nothing is waited for, and nothing is left.
pub(crate) fn drop_by_threads<H: Send, const N: usize>(
    fake: &control::Session,
    handles: impl Fn() -> Handles<H, N>,
) {
    for _ in 0..if control::hurried() { 2 } else { 100 } {
        let handles = handles().expect("all of it");
        let barrier = Barrier::new(N);
        let start = Instant::now();
        thread::scope(|scope| {
            for handle in handles {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    drop(handle);
                });
            }
        });
        assert!(start.elapsed() < control::within(1));
        assert_eq!(fake.left_over(), Vec::<String>::new());
    }
}
