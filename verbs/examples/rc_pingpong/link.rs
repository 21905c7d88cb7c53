//! The queue pair, its memory, and the game.

use std::alloc::{self, Layout};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use verbs::{
    AccessFlags, Address, CompletionChannel, CompletionQueue, Context, DeviceList, Gid,
    GlobalRoute, InitAttributes, LinkLayer, LocalKey, MemoryRegion, PathMtu, ProtectionDomain,
    QpType, QueuePair, RecvRequest, RtrAttributes, RtsAttributes, SendFlags, SendRequest, Sge,
    WcStatus, WorkCompletion,
};

use crate::exchange::Location;
use crate::{Failure, Options};

/// What a path's MTU may be.
pub(crate) const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

const RECV: u64 = 1;
const SEND: u64 = 2;
/// What messages are made of: this, but for the first byte of each page, which is 0.
const FILL: u8 = 0x7b;
const PAGE: usize = 4096;

/// One end of the connection. Sends and receives use the same memory, so that whoever answers sends back what it got.
pub(crate) struct Link<'a> {
    options: &'a Options,
    qp: QueuePair,
    cq: CompletionQueue,
    buffer: Buffer,
    local: Location,
    gid_index: Option<u8>,
    /// Receives that are posted.
    posted: u32,
}

impl<'a> Link<'a> {
    /// Makes everything up to a queue pair that takes receives.
    pub(crate) fn open(options: &'a Options) -> Result<Self, Failure> {
        let list = DeviceList::new()?;
        let device = match &options.ib_dev {
            Some(name) => list.by_name(name)?,
            None => list.first()?,
        };
        let context = device.open()?;
        let port = context.active_port(options.ib_port)?;
        let most = port.active_mtu().unwrap_or(0);
        if options.mtu > most {
            return Err(Failure(format!(
                "port {} of device {} has an MTU of {most}, less than the {} of -m; ask for {most} at both ends",
                options.ib_port,
                context.name(),
                options.mtu
            )));
        }
        let ethernet = port.link_layer() == LinkLayer::ETHERNET;
        let (gid_index, gid) = choose_gid(&context, options, ethernet)?;
        let pd = ProtectionDomain::new(&context)?;
        let buffer = Buffer::new(&pd, options.size as usize)?;
        buffer.fill(if options.host.is_some() {
            FILL
        } else {
            FILL + 1
        });
        // Room for all receives and the one send, twice: a device may make both queues larger than asked.
        let builder_room = options.rx_depth.saturating_add(1).saturating_mul(2);
        let cq = if options.events {
            let channel = CompletionChannel::new(&context)?;
            CompletionQueue::builder(&context, builder_room)
                .own_channel(&channel)
                .build()?
        } else {
            CompletionQueue::builder(&context, builder_room).build()?
        };
        let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
            .max_send_wr(1)
            .max_recv_wr(options.rx_depth)
            .build()?;
        qp.to_init(&InitAttributes::new(options.ib_port))?;
        let local = Location {
            lid: port.as_raw().lid,
            qpn: qp.number(),
            // Any number will do; one that differs keeps packets of an earlier run from being taken for ours.
            psn: std::process::id().wrapping_mul(0x9e37_79b9) >> 8,
            gid,
        };
        Ok(Self {
            options,
            qp,
            cq,
            buffer,
            local,
            gid_index,
            posted: 0,
        })
    }

    /// Where the peer reaches us.
    pub(crate) fn local(&self) -> Location {
        self.local
    }

    /// Posts receives until there are as many as there may be.
    pub(crate) fn fill_receives(&mut self) -> Result<(), Failure> {
        let sges = [self.buffer.sge()];
        while self.posted < self.options.rx_depth {
            let mut request = RecvRequest::new(RECV, &sges);
            // SAFETY: the memory lives as long as its region, and no reference to it is made.
            let posted = unsafe { self.qp.post_recv(&mut request) };
            posted.map_err(|error| Failure(error.to_string()))?;
            self.posted += 1;
        }
        Ok(())
    }

    /// Connects the queue pair to the peer's.
    pub(crate) fn connect(&self, remote: &Location) -> Result<(), Failure> {
        let port = self.options.ib_port;
        let mut address = Address::infiniband(port, remote.lid);
        match (self.gid_index, remote.gid.is_zero()) {
            (Some(index), false) => address.route = Some(GlobalRoute::new(index, remote.gid)),
            (Some(_), true) if remote.lid == 0 => {
                return Err(Failure(
                    "the peer gave no GID, without which it cannot be reached over Ethernet: start it with a GID index (-g)"
                        .to_owned(),
                ));
            }
            _ => {}
        }
        let mtu = PathMtu::at_most(self.options.mtu)
            .ok_or_else(|| Failure(format!("no path has an MTU of {}", self.options.mtu)))?;
        self.qp
            .to_rtr(&RtrAttributes::new(address, mtu, remote.qpn, remote.psn))?;
        Ok(self.qp.to_rts(&RtsAttributes::new(self.local.psn))?)
    }

    /// Sends and receives all messages; the client begins.
    pub(crate) fn play(&mut self, is_client: bool) -> Result<(), Failure> {
        let iters = self.options.iters;
        let (mut sent, mut received) = (0, 0);
        // What is under way in this round: the answer is sent when both are over.
        let mut pending = RECV;
        if is_client {
            self.send()?;
            pending |= SEND;
        }
        while sent < iters || received < iters {
            let mut room = [const { MaybeUninit::uninit() }; 16];
            for completion in self.wait(&mut room, sent, received)? {
                match completion.result() {
                    Ok(_) => {}
                    Err(error) if error.status == WcStatus::RETRY_EXC_ERR => {
                        return Err(Failure(format!(
                            "the peer no longer answers ({error}): {sent} messages sent, {received} received"
                        )));
                    }
                    Err(error) => {
                        return Err(Failure(format!(
                            "{error}: {sent} messages sent, {received} received; do both ends use the same -s and -m?"
                        )));
                    }
                }
                match completion.wr_id() {
                    SEND => sent += 1,
                    _ => {
                        received += 1;
                        self.posted -= 1;
                        self.check_length(completion)?;
                    }
                }
                pending &= !completion.wr_id();
            }
            if pending == 0 || received == iters {
                // Nothing writes into the memory now: what the peer sends next, it sends after our answer.
                self.check(received)?;
            }
            if self.posted <= 1 {
                self.fill_receives()?;
            }
            if pending == 0 && sent < iters {
                self.send()?;
                pending = RECV | SEND;
            }
        }
        Ok(())
    }

    fn wait<'b>(
        &self,
        room: &'b mut [MaybeUninit<WorkCompletion>],
        sent: u32,
        received: u32,
    ) -> Result<&'b [WorkCompletion], Failure> {
        let deadline = self.options.deadline();
        if self.options.events {
            let completions = self.cq.wait(room, deadline).map_err(|error| {
                let failure = Failure::from(error);
                Failure(format!(
                    "{failure}: {sent} messages sent, {received} received"
                ))
            })?;
            return Ok(completions);
        }
        let count = loop {
            let over = deadline.has_passed();
            let count = self.cq.poll(room).map_err(verbs::Error::from)?.len();
            if count > 0 {
                break count;
            }
            if over {
                return Err(Failure(format!(
                    "no completion in time: {sent} messages sent, {received} received; is the peer still there, and does it \
                     use the same -n?"
                )));
            }
            std::hint::spin_loop();
        };
        // SAFETY: the last poll filled so many.
        Ok(unsafe { std::slice::from_raw_parts(room.as_ptr().cast(), count) })
    }

    fn send(&mut self) -> Result<(), Failure> {
        let sges = [self.buffer.sge()];
        let mut request = SendRequest::send(SEND, &sges).with_flags(SendFlags::SIGNALED);
        // SAFETY: as for receives; nothing of this program writes the memory before the completion.
        let posted = unsafe { self.qp.post_send(&mut request) };
        posted.map_err(|error| Failure(error.to_string()))
    }

    fn check_length(&self, completion: &WorkCompletion) -> Result<(), Failure> {
        let got = completion.result().map_or(0, |success| success.byte_len());
        if got == self.options.size {
            return Ok(());
        }
        Err(Failure(format!(
            "a message of {got} bytes came, not of {}: both ends need the same -s",
            self.options.size
        )))
    }

    /// Whether the memory holds what a client sends, and a server returns.
    fn check(&self, message: u32) -> Result<(), Failure> {
        if !self.options.chk {
            return Ok(());
        }
        match self.buffer.difference() {
            None => Ok(()),
            Some((at, expected, found)) => Err(Failure(format!(
                "byte {at} of message {message} is {found:#04x}, not {expected:#04x}: a client sends such bytes with -c only"
            ))),
        }
    }
}

/// The local GID to use, by its index.
fn choose_gid(
    context: &Context,
    options: &Options,
    ethernet: bool,
) -> Result<(Option<u8>, Gid), Failure> {
    if let Some(index) = options.gid_idx {
        let entry = context.gid_entry(options.ib_port, index.into());
        let entry = entry.map_err(|error| {
            let failure = Failure::from(error);
            Failure(format!(
                "GID index {index} of -g: {failure}; show_gids lists those there are"
            ))
        })?;
        return Ok((Some(index), entry.gid));
    }
    if !ethernet {
        return Ok((None, Gid([0; 16])));
    }
    let choice = context.choose_gid(options.ib_port, None)?;
    Ok((Some(choice.sgid_index()?), choice.entry.gid))
}

/// Memory for messages with its registration. It is never borrowed: the device reads and writes it at any time.
struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
    /// Taken at the end.
    region: Option<MemoryRegion>,
}

impl Buffer {
    fn new(pd: &ProtectionDomain, len: usize) -> Result<Self, Failure> {
        let layout = Layout::from_size_align(len, PAGE)
            .map_err(|error| Failure(format!("a message of {len} bytes: {error}")))?;
        // SAFETY: the layout is not empty: a message has at least one byte.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start)
            .ok_or_else(|| Failure(format!("no memory for a message of {len} bytes")))?;
        let mut buffer = Self {
            start,
            layout,
            region: None,
        };
        let access = AccessFlags::LOCAL_WRITE;
        // SAFETY: the memory is freed only when the region is closed, and reached through raw pointers only.
        let region = unsafe { MemoryRegion::register(pd, start.as_ptr(), len, access) }?;
        buffer.region = Some(region);
        Ok(buffer)
    }

    /// All of it, as a request names it.
    fn sge(&self) -> Sge {
        let key = self.region.as_ref().map_or(LocalKey(0), MemoryRegion::lkey);
        let len = u32::try_from(self.layout.size()).unwrap_or(u32::MAX);
        Sge::new(self.start.as_ptr().expose_provenance() as u64, len, key)
    }

    /// Called before the device knows of the memory's use.
    fn fill(&self, byte: u8) {
        for at in 0..self.layout.size() {
            let value = if at % PAGE == 0 { 0 } else { byte };
            let place = self.start.as_ptr().wrapping_add(at);
            // SAFETY: within the allocation.
            unsafe { place.write_volatile(value) };
        }
    }

    /// The first byte that is not as a client has sent it: where, what it should be, what it is.
    fn difference(&self) -> Option<(usize, u8, u8)> {
        (0..self.layout.size()).find_map(|at| {
            let place = self.start.as_ptr().wrapping_add(at);
            // SAFETY: within the allocation, whose bytes all have a value.
            let found = unsafe { place.read_volatile() };
            let expected = if at % PAGE == 0 { 0 } else { FILL };
            (found != expected).then_some((at, expected, found))
        })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let region = self.region.take();
        if region.is_none_or(|region| region.close().is_ok()) {
            // SAFETY: allocated with this layout, and the device does not reach it any more.
            unsafe { alloc::dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}
