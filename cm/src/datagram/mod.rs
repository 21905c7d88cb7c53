//! Datagrams: asking for and telling the address of a UD queue pair, and multicast groups.

mod listen;
mod lookup;
mod multicast;

pub use self::listen::{DatagramListener, DatagramRequest};
pub use self::lookup::{DatagramLookup, DatagramPeer, DatagramResolved, DatagramResolving};
pub use self::multicast::{Group, GroupState, JoinKind, Multicast, MulticastEvent};

use verbs::{Context, QpState, QpType, QueuePair, RtsAttributes};

use crate::error::Error;
use crate::id::Id;
use crate::port_space::PortSpace;

/// The port space of ids for datagrams.
fn datagrams(space: Option<PortSpace>) -> Result<PortSpace, Error> {
    match space.unwrap_or(PortSpace::UDP) {
        space if space.is_datagram() => Ok(space),
        space => Err(refused(
            "rdma_create_id",
            format!("port space {space} is not for datagrams, which were asked for"),
        )),
    }
}

/// Brings a UD queue pair from RESET to RTS with the key of the id's port space.
fn ready(id: &Id, qp: &QueuePair, context: &Context) -> Result<(), Error> {
    check_type(qp, context, "rdma_init_qp_attr")?;
    id.init_qp(qp)?;
    qp.to_rtr_datagram()?;
    Ok(qp.to_rts(&RtsAttributes::new(0))?)
}

fn check_type(qp: &QueuePair, context: &Context, verb: &'static str) -> Result<(), Error> {
    if qp.qp_type() != QpType::UD {
        let detail = format!("a {} queue pair has no datagrams: take UD", qp.qp_type());
        return Err(refused(verb, detail));
    }
    if qp.context() != context {
        let (ours, theirs) = (qp.context().name(), context.name());
        let detail = format!("the queue pair is of device {ours}, the address of {theirs}");
        return Err(refused(verb, detail));
    }
    Ok(())
}

/// A queue pair must receive before its address is told.
fn check_receives(qp: &QueuePair, context: &Context, verb: &'static str) -> Result<(), Error> {
    check_type(qp, context, verb)?;
    if matches!(qp.state(), QpState::RTR | QpState::RTS) {
        return Ok(());
    }
    let detail = format!(
        "the queue pair is in state {} and receives nothing; call init_qp first",
        qp.state()
    );
    Err(refused(verb, detail))
}

fn refused(verb: &'static str, detail: String) -> Error {
    verbs::Error::refused(verb, verbs::ErrorKind::InvalidArgument, detail).into()
}
