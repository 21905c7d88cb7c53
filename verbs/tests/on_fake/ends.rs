//! Ends of a connection of any type, each with memory of its own.

use verbs::{
    AccessFlags, Address, AddressHandle, CompletionQueue, Context, Error, InitAttributes,
    MemoryRegion, PathMtu, ProtectionDomain, QpType, QueuePair, RecvRequest, RtrAttributes,
    RtsAttributes, SendFlags, SendRequest, Sge,
};

use super::common::{Memory, everything, open};

/// The Q_Key of all datagram ends.
pub(crate) const QKEY: u32 = 0x1111;
/// Bytes of an end's memory.
const SIZE: u32 = 2048;

/// A queue pair, its completion queue and its memory.
pub(crate) struct End {
    pub(crate) qp: QueuePair,
    pub(crate) cq: CompletionQueue,
    pub(crate) region: MemoryRegion,
    pub(crate) memory: Memory,
    pub(crate) pd: ProtectionDomain,
}

impl End {
    /// An end in INIT.
    pub(crate) fn new(context: &Context, qp_type: QpType) -> Result<Self, Error> {
        let pd = ProtectionDomain::new(context)?;
        let cq = CompletionQueue::builder(context, 64).build()?;
        let qp = QueuePair::builder(&pd, qp_type, &cq, &cq)
            .max_inline_data(64)
            .build()?;
        let mut init = InitAttributes::new(1);
        init.access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        if qp_type == QpType::RC {
            init.access |= AccessFlags::REMOTE_ATOMIC;
        }
        init.qkey = QKEY;
        qp.to_init(&init)?;
        let memory = Memory::new(SIZE as usize);
        Ok(Self {
            qp,
            cq,
            region: memory.register(&pd, everything() | AccessFlags::MW_BIND)?,
            memory,
            pd,
        })
    }

    /// Ready to send, towards `peer` where the type has one.
    pub(crate) fn connect(&self, peer: &Self) -> Result<(), Error> {
        if self.qp.qp_type() == QpType::UD {
            self.qp.to_rtr_datagram()?;
        } else {
            let mtu = PathMtu::at_most(1024).expect("an MTU");
            let (address, number) = (loopback(self.pd.context())?, peer.qp.number());
            self.qp
                .to_rtr(&RtrAttributes::new(address, mtu, number, 7))?;
        }
        self.qp.to_rts(&RtsAttributes::new(7))
    }

    pub(crate) fn sge(&self, len: u32) -> Sge {
        Sge::new(self.region.addr() as u64, len, self.region.lkey())
    }

    /// A receive into the second half of the memory.
    pub(crate) fn recv(&self, wr_id: u64, len: u32) -> Result<(), Error> {
        let half = u64::from(SIZE / 2);
        let sges = [Sge::new(
            self.region.addr() as u64 + half,
            len,
            self.region.lkey(),
        )];
        // SAFETY: the region is of memory that nobody borrows, and freed after it.
        Ok(unsafe { self.qp.post_recv(&mut RecvRequest::new(wr_id, &sges)) }?)
    }

    /// What was received.
    pub(crate) fn received(&self, len: usize) -> Vec<u8> {
        let half = SIZE as usize / 2;
        self.memory.get()[half..half + len].to_vec()
    }

    /// Posts a request, signaled.
    pub(crate) fn post(&self, request: SendRequest<'_>) -> Result<(), Error> {
        let mut request = request.with_flags(SendFlags::SIGNALED);
        // SAFETY: all requests here name the regions of ends, whose memory nobody borrows.
        Ok(unsafe { self.qp.post_send(&mut request) }?)
    }
}

/// The way from the device to itself.
pub(crate) fn loopback(context: &Context) -> Result<Address, Error> {
    let choice = context.choose_gid(1, Some("192.0.2.1".parse().expect("an address")))?;
    Ok(Address::roce(1, choice.sgid_index()?, choice.entry.gid))
}

/// A handle for the device's own address.
pub(crate) fn handle(pd: &ProtectionDomain) -> Result<AddressHandle, Error> {
    AddressHandle::new(pd, &loopback(pd.context())?)
}

/// Two connected ends.
pub(crate) fn ends(qp_type: QpType) -> Result<(End, End), Error> {
    let context = open()?;
    let (one, two) = (End::new(&context, qp_type)?, End::new(&context, qp_type)?);
    one.connect(&two)?;
    two.connect(&one)?;
    Ok((one, two))
}
