//! Ids for datagrams: what is forgotten stays, and nothing else does; nothing waits for it, nor for
//! another thread that drops at the same time.

use std::sync::Arc;

use cm::verbs::sys::fake::control;
use cm::verbs::{CompletionQueue, Context, ProtectionDomain, QpType, QueuePair};
use cm::{
    ConnectOptions, Connector, DatagramListener, DatagramLookup, DatagramRequest, DatagramResolved,
    DatagramResolving, Error, Group, IdOptions, JoinKind, ListenOptions, Multicast,
};

use super::common::{Handles, drop_by_threads, forget_each, roce, soon};

/// Everything there is, while an address is asked for and while a group is joined.
#[expect(dead_code, reason = "dropped")]
enum Handle {
    Listener(DatagramListener),
    Request(DatagramRequest),
    Lookup(DatagramLookup),
    Resolved(DatagramResolved),
    Resolving(DatagramResolving),
    Connector(Connector),
    Multicast(Multicast),
    Group(Group),
    QueuePair(Arc<QueuePair>),
}

const HANDLES: usize = 11;

fn handles() -> Handles<Handle, HANDLES> {
    let options = ConnectOptions::default();
    let listener = DatagramListener::bind(roce(), &ListenOptions::default())?;
    let to = listener.local_addr();
    let resolve = || DatagramResolving::start(to, &options, soon());
    let asking = resolve()?.wait()?.ask(b"")?;
    let request = listener.next_request(soon())?;
    let untaken = resolve()?.wait()?.ask(b"")?;
    let connector = Connector::new(&IdOptions::default())?;
    connector.bind(roce())?;
    let multicast = Multicast::bind(roce(), &IdOptions::default())?;
    let qp = Arc::new(ud(multicast.context())?);
    multicast.init_qp(&qp)?;
    let joining = multicast.join([239, 1, 2, 1].into(), &qp, JoinKind::FullMember)?;
    let joined = multicast.join([239, 1, 2, 2].into(), &qp, JoinKind::SendOnly)?;
    joined.wait_joined(soon())?;
    Ok([
        Handle::Listener(listener),
        Handle::Request(request),
        Handle::Lookup(asking),
        Handle::Lookup(untaken),
        Handle::Resolved(resolve()?.wait()?),
        Handle::Resolving(resolve()?),
        Handle::Connector(connector),
        Handle::Multicast(multicast),
        Handle::Group(joining),
        Handle::Group(joined),
        Handle::QueuePair(qp),
    ]
    .map(Some))
}

fn ud(context: &Context) -> Result<QueuePair, Error> {
    let pd = ProtectionDomain::new(context)?;
    let cq = CompletionQueue::builder(context, 64).build()?;
    Ok(QueuePair::builder(&pd, QpType::UD, &cq, &cq).build()?)
}

#[test]
fn leaks_datagram_handles_that_are_forgotten_and_the_rest_goes_at_once() {
    let fake = control::session();
    forget_each(handles);
    fake.discard();
}

#[test]
fn datagram_handles_may_go_from_several_threads_at_once() {
    let fake = control::session();
    drop_by_threads(&fake, handles);
    fake.finish();
}
