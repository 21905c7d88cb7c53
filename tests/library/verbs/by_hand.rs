//! Queue pairs connected without rdma_cm.

use harness::{Failed, device};
use rpma::cm::verbs::{
    AccessFlags, Address, AddressHandle, CompletionQueue, Context, GidChoice, InitAttributes,
    PathMtu, ProtectionDomain, QpType, QueuePair, QueuePairBuilder, RecvRequest, RtrAttributes,
    RtsAttributes, SendFlags, SendRequest, WorkCompletion,
};

use super::objects::open;
use crate::raw::{Buffer, poll};

/// The Q_Key that all datagram ends here have.
pub(crate) const QKEY: u32 = 0x1111;
/// The first packets' number.
const PSN: u32 = 0xff_ff00;

/// One end: a queue pair with its completion queues and memory.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) buffer: Buffer,
    pub(crate) pd: ProtectionDomain,
}

impl End {
    /// A queue pair in INIT; `change` may ask for more than the defaults.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        qp_type: QpType,
        change: impl FnOnce(QueuePairBuilder<'_>) -> QueuePairBuilder<'_>,
    ) -> Result<Self, Failed> {
        let mut access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        if qp_type == QpType::RC {
            access |= AccessFlags::REMOTE_ATOMIC;
        }
        Self::with_access(pd, qp_type, access, change)
    }

    /// As [`new`](Self::new), with what the peer may do.
    pub(crate) fn with_access(
        pd: &ProtectionDomain,
        qp_type: QpType,
        access: AccessFlags,
        change: impl FnOnce(QueuePairBuilder<'_>) -> QueuePairBuilder<'_>,
    ) -> Result<Self, Failed> {
        let context = pd.context();
        let send_cq = CompletionQueue::builder(context, 64).build()?;
        let recv_cq = CompletionQueue::builder(context, 64).build()?;
        let builder = QueuePair::builder(pd, qp_type, &send_cq, &recv_cq).max_inline_data(64);
        let qp = change(builder).build()?;
        let mut init = InitAttributes::new(device().port);
        init.access = access;
        init.qkey = QKEY;
        qp.to_init(&init)?;
        Ok(Self {
            qp,
            send_cq,
            recv_cq,
            buffer: Buffer::new(pd, 8192)?,
            pd: pd.clone(),
        })
    }

    /// Ready to send: towards `peer` for a connected type.
    pub(crate) fn connect(&self, peer: &Self) -> Result<(), Failed> {
        self.connect_with(peer, |_, _| {})
    }

    /// As [`connect`](Self::connect), with other attributes than the defaults.
    pub(crate) fn connect_with(
        &self,
        peer: &Self,
        change: impl FnOnce(&mut RtrAttributes, &mut RtsAttributes),
    ) -> Result<(), Failed> {
        connect(&self.qp, peer.qp.number(), change)
    }

    /// As [`connect_with`](Self::connect_with), over a given path.
    pub(crate) fn connect_over(
        &self,
        peer: &Self,
        path: Address,
        change: impl FnOnce(&mut RtrAttributes, &mut RtsAttributes),
    ) -> Result<(), Failed> {
        connect_over(&self.qp, peer.qp.number(), path, change)
    }

    /// Posts a receive into the second half of the buffer.
    pub(crate) fn recv(&self, wr_id: u64) -> Result<(), Failed> {
        let sges = [self.buffer.sge(4096, 4096)];
        // SAFETY: the buffer is registered memory to which no reference is formed.
        Ok(unsafe { self.qp.post_recv(&mut RecvRequest::new(wr_id, &sges)) }?)
    }

    /// Posts a request, signaled.
    pub(crate) fn post(&self, request: SendRequest<'_>) -> Result<(), Failed> {
        let mut request = request.with_flags(SendFlags::SIGNALED);
        // SAFETY: every request here names buffers of the ends, to which no reference is formed.
        Ok(unsafe { self.qp.post_send(&mut request) }?)
    }

    /// The next completion of a request for the send queue, which must be a success.
    pub(crate) fn sent(&self, wr_id: u64) -> Result<WorkCompletion, Failed> {
        expect(&self.send_cq, wr_id)
    }

    /// The next completion of a receive, which must be a success.
    pub(crate) fn received(&self, wr_id: u64) -> Result<WorkCompletion, Failed> {
        expect(&self.recv_cq, wr_id)
    }
}

/// Brings a queue pair in INIT to RTS: towards queue pair `peer` for a connected type.
pub(crate) fn connect(
    qp: &QueuePair,
    peer: u32,
    change: impl FnOnce(&mut RtrAttributes, &mut RtsAttributes),
) -> Result<(), Failed> {
    connect_over(qp, peer, loopback(qp.context())?, change)
}

fn connect_over(
    qp: &QueuePair,
    peer: u32,
    path: Address,
    change: impl FnOnce(&mut RtrAttributes, &mut RtsAttributes),
) -> Result<(), Failed> {
    let mut rts = RtsAttributes::new(PSN);
    if qp.qp_type() == QpType::UD {
        qp.to_rtr_datagram()?;
    } else {
        let context = qp.context();
        let mtu = context.active_port(path.port)?.active_mtu();
        let mtu = mtu.and_then(PathMtu::at_most).ok_or("the port's MTU")?;
        let mut rtr = RtrAttributes::new(path, mtu, peer, PSN);
        change(&mut rtr, &mut rts);
        qp.to_rtr(&rtr)?;
    }
    Ok(qp.to_rts(&rts)?)
}

fn expect(cq: &CompletionQueue, wr_id: u64) -> Result<WorkCompletion, Failed> {
    let completion = poll(cq)?;
    if let Err(error) = completion.result() {
        return Err(format!("request {} failed: {error}", completion.wr_id()).into());
    }
    if completion.wr_id() != wr_id {
        return Err(format!("completion of {}, not of {wr_id}", completion.wr_id()).into());
    }
    Ok(completion)
}

/// The address that the tests use, as the port's table has it.
pub(crate) fn gid(context: &Context) -> Result<GidChoice, Failed> {
    Ok(context.choose_gid(device().port, Some(device().ip))?)
}

/// The way from the device to itself.
pub(crate) fn loopback(context: &Context) -> Result<Address, Failed> {
    let choice = gid(context)?;
    Ok(Address::roce(
        device().port,
        choice.sgid_index()?,
        choice.entry.gid,
    ))
}

/// Two connected ends of a type, each in a protection domain of its own.
pub(crate) fn pair(qp_type: QpType) -> Result<(End, End), Failed> {
    pair_with(qp_type, |_, _| {})
}

/// As [`pair`], with other attributes than the defaults for both.
pub(crate) fn pair_with(
    qp_type: QpType,
    change: impl Fn(&mut RtrAttributes, &mut RtsAttributes),
) -> Result<(End, End), Failed> {
    let context = open()?;
    let one = End::new(&ProtectionDomain::new(&context)?, qp_type, |qp| qp)?;
    let two = End::new(&ProtectionDomain::new(&context)?, qp_type, |qp| qp)?;
    one.connect_with(&two, &change)?;
    two.connect_with(&one, &change)?;
    Ok((one, two))
}

/// A handle for the device's own address.
pub(crate) fn handle(pd: &ProtectionDomain) -> Result<AddressHandle, Failed> {
    Ok(AddressHandle::new(pd, &loopback(pd.context())?)?)
}
