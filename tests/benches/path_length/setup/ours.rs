//! With the types of `cm`.

use harness::{Failed, WAIT, device};
use rpma::cm::verbs::{QpType, QueuePair};
use rpma::cm::{
    ConnParams, ConnectOptions, Connection, ConnectionEvent, Deadline, Dispatcher, EventSource,
    ListenOptions, Listener, OwnChannel, Resolving, Routed,
};

use super::super::measure::{Candidate, Clock};
use super::{SET_UP, Shared, TEARDOWN};

impl Shared {
    fn qp(&self) -> Result<QueuePair, Failed> {
        Ok(QueuePair::builder(&self.pd, QpType::RC, &self.cq, &self.cq)
            .max_send_wr(1)
            .max_recv_wr(1)
            .build()?)
    }
}

/// Both ends through one dispatcher.
pub(crate) struct Dispatched<'a> {
    shared: &'a Shared,
    listener: Listener<Routed>,
    dispatcher: Dispatcher,
}

impl<'a> Dispatched<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Result<Self, Failed> {
        let dispatcher = Dispatcher::new()?;
        Ok(Self {
            shared,
            listener: dispatcher.listen(device().addr(0), &ListenOptions::default())?,
            dispatcher,
        })
    }

    /// A connection that stays.
    pub(crate) fn connect(
        &self,
        clock: &mut Clock,
    ) -> Result<(Connection<Routed>, Connection<Routed>), Failed> {
        let deadline = Deadline::after(WAIT);
        let options = ConnectOptions::default();
        let to = self.listener.local_addr();
        let resolving = self.dispatcher.resolve(to, &options, deadline)?;
        set_up(self.shared, resolving, &self.listener, deadline, clock)
    }
}

impl Candidate for Dispatched<'_> {
    fn name(&self) -> &'static str {
        "dispatched"
    }

    fn once(&mut self, clock: &mut Clock) -> Result<(), Failed> {
        let (client, server) = self.connect(clock)?;
        tear_down(client, server, clock)
    }
}

/// One more connection beside those that a dispatcher has.
pub(crate) struct Beside<'a> {
    pub(crate) name: &'static str,
    pub(crate) others: &'a Dispatched<'a>,
}

impl Candidate for Beside<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn once(&mut self, clock: &mut Clock) -> Result<(), Failed> {
        let (client, server) = self.others.connect(clock)?;
        tear_down(client, server, clock)
    }
}

/// Each id with a channel of its own.
pub(crate) struct OwnChannels<'a> {
    shared: &'a Shared,
    listener: Listener,
}

impl<'a> OwnChannels<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Result<Self, Failed> {
        Ok(Self {
            shared,
            listener: Listener::bind(device().addr(0), &ListenOptions::default())?,
        })
    }
}

impl Candidate for OwnChannels<'_> {
    fn name(&self) -> &'static str {
        "own channels"
    }

    fn once(&mut self, clock: &mut Clock) -> Result<(), Failed> {
        let deadline = Deadline::after(WAIT);
        let to = self.listener.local_addr();
        let resolving: Resolving<OwnChannel> =
            Resolving::start(to, &ConnectOptions::default(), deadline)?;
        let (client, server) = set_up(self.shared, resolving, &self.listener, deadline, clock)?;
        tear_down(client, server, clock)
    }
}

fn set_up<S: EventSource>(
    shared: &Shared,
    resolving: Resolving<S>,
    listener: &Listener<S>,
    deadline: Deadline,
    clock: &mut Clock,
) -> Result<(Connection<S>, Connection<S>), Failed> {
    clock.step(SET_UP, "id, address asked for");
    let resolved = resolving.wait()?;
    clock.step(SET_UP, "address and route");
    let qp = shared.qp()?;
    resolved.init_qp(&qp)?;
    clock.step(SET_UP, "the client's queue pair");
    let client = resolved.connect(qp, &ConnParams::default(), &[])?;
    clock.step(SET_UP, "connect");
    let request = listener.next_request(deadline)?;
    clock.step(SET_UP, "the request");
    let qp = shared.qp()?;
    request.init_qp(&qp)?;
    clock.step(SET_UP, "the server's queue pair");
    let server = request.accept(qp, &ConnParams::default(), &[])?;
    clock.step(SET_UP, "accept");
    client.wait_established(deadline)?;
    clock.step(SET_UP, "the client is connected");
    server.wait_established(deadline)?;
    clock.step(SET_UP, "the server is connected");
    Ok((client, server))
}

fn tear_down<S: EventSource>(
    client: Connection<S>,
    server: Connection<S>,
    clock: &mut Clock,
) -> Result<(), Failed> {
    let deadline = Deadline::after(WAIT);
    client.disconnect()?;
    clock.step(TEARDOWN, "disconnect");
    expect_the_end(&server, deadline)?;
    clock.step(TEARDOWN, "the server hears of it");
    expect_the_end(&client, deadline)?;
    clock.step(TEARDOWN, "the client hears of it");
    drop(client);
    clock.step(TEARDOWN, "the client goes");
    drop(server);
    clock.step(TEARDOWN, "the server goes");
    Ok(())
}

fn expect_the_end<S: EventSource>(
    connection: &Connection<S>,
    deadline: Deadline,
) -> Result<(), Failed> {
    let event = connection.next_event(deadline)?;
    harness::ensure_eq!(event, ConnectionEvent::Disconnected, "the end");
    Ok(())
}
