//! Connections of queue pairs made by hand, for rules of the layers below `rpma`.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::ptr::NonNull;

use harness::{Failed, WAIT, device};
use rpma::cm::verbs::{
    AccessFlags, CompletionQueue, Context, LocalKey, MemoryRegion, ProtectionDomain, QpType,
    QueuePair, RecvRequest, SendFlags, SendRequest, Sge, WorkCompletion,
};
use rpma::cm::{
    ConnParams, ConnectOptions, Connection, Deadline, ListenOptions, Listener, Resolved, Resolving,
};

/// Memory of one page size or more, registered for local writes.
#[derive(Debug)]
pub(crate) struct Buffer {
    // Dropped before the memory is freed below.
    region: Option<MemoryRegion>,
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is the buffer's alone, and the region may be used from any thread.
unsafe impl Send for Buffer {}

impl Buffer {
    pub(crate) fn new(pd: &ProtectionDomain, len: usize) -> Result<Self, Failed> {
        Self::with_access(pd, len, AccessFlags::LOCAL_WRITE)
    }

    pub(crate) fn with_access(
        pd: &ProtectionDomain,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, Failed> {
        let layout = Layout::from_size_align(len.max(1), 4096)?;
        // SAFETY: the layout has at least one byte.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else {
            handle_alloc_error(layout)
        };
        let mut buffer = Self {
            region: None,
            memory,
            layout,
        };
        // SAFETY: the memory is freed only after the region, and no reference to it is formed.
        let region = unsafe { MemoryRegion::register(pd, memory.as_ptr(), layout.size(), access) }?;
        buffer.region = Some(region);
        Ok(buffer)
    }

    /// The registration, which is there until the drop.
    pub(crate) fn region(&self) -> &MemoryRegion {
        self.region.as_ref().expect("taken on drop only")
    }

    /// Closes the registration alone, or gives the reason.
    pub(crate) fn deregister(&mut self) -> Result<(), rpma::cm::verbs::Error> {
        let Some(region) = self.region.take() else {
            return Ok(());
        };
        region.close().map_err(|failed| {
            self.region = Some(failed.handle);
            failed.error
        })
    }

    pub(crate) fn sge(&self, offset: usize, len: usize) -> Sge {
        assert!(offset + len <= self.layout.size(), "outside the buffer");
        let key = self.region.as_ref().map_or(LocalKey(0), MemoryRegion::lkey);
        Sge::new(
            self.memory.as_ptr() as u64 + offset as u64,
            u32::try_from(len).expect("short"),
            key,
        )
    }

    pub(crate) fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset + bytes.len() <= self.layout.size(),
            "outside the buffer"
        );
        let place = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: inside the allocation, to which no reference exists, and not the caller's bytes;
        // the device reads it only after the call that posts it.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    pub(crate) fn load(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.layout.size(), "outside the buffer");
        let mut bytes = vec![0; len];
        let place = self.memory.as_ptr().wrapping_add(offset);
        // SAFETY: inside the allocation, to which no reference exists, and not the new vector. A
        // device that writes meanwhile would be a fault of the test, and shows in the bytes only.
        unsafe { place.copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(region) = self.region.take()
            && let Err(failed) = region.close()
        {
            // The device may still reach the memory: keep both.
            eprintln!("a buffer is leaked: {}", failed.error);
            std::mem::forget(failed.handle);
            return;
        }
        // SAFETY: allocated with this layout, and freed only here.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

/// The queues and memory of one end.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) pd: ProtectionDomain,
    pub(crate) send_cq: CompletionQueue,
    pub(crate) recv_cq: CompletionQueue,
    pub(crate) buffer: Buffer,
}

/// Sizes that every end of [`RawPair`] has.
pub(crate) const SEND_SGES: u32 = 2;
pub(crate) const INLINE: u32 = 32;

impl Queues {
    /// Queues, memory, and a queue pair in RESET.
    pub(crate) fn new(context: &Context) -> Result<(Self, QueuePair), Failed> {
        let pd = ProtectionDomain::new(context)?;
        let send_cq = CompletionQueue::builder(context, 16).build()?;
        let recv_cq = CompletionQueue::builder(context, 16).build()?;
        let qp = QueuePair::builder(&pd, QpType::RC, &send_cq, &recv_cq)
            .max_send_wr(8)
            .max_recv_wr(8)
            .max_send_sge(SEND_SGES)
            .max_inline_data(INLINE)
            .build()?;
        let buffer = Buffer::new(&pd, 4096)?;
        Ok((
            Self {
                pd,
                send_cq,
                recv_cq,
                buffer,
            },
            qp,
        ))
    }

    /// Posts a receive of the whole buffer.
    pub(crate) fn recv(&self, qp: &QueuePair, wr_id: u64) -> Result<(), Failed> {
        let sges = [self.buffer.sge(0, 4096)];
        // SAFETY: the buffer is registered memory to which no reference is formed.
        Ok(unsafe { qp.post_recv(&mut RecvRequest::new(wr_id, &sges)) }?)
    }

    /// Posts a signaled send of the first `len` bytes.
    pub(crate) fn send(&self, qp: &QueuePair, wr_id: u64, len: usize) -> Result<(), Failed> {
        let sges = [self.buffer.sge(0, len)];
        let mut request = SendRequest::send(wr_id, &sges).with_flags(SendFlags::SIGNALED);
        // SAFETY: the buffer is registered memory to which no reference is formed.
        Ok(unsafe { qp.post_send(&mut request) }?)
    }
}

/// Two ends connected through `cm`, with separate send and receive completion queues.
#[derive(Debug)]
pub(crate) struct RawPair {
    pub(crate) client: Connection,
    pub(crate) client_queues: Queues,
    pub(crate) server: Connection,
    pub(crate) server_queues: Queues,
}

/// A listener on the device in use.
pub(crate) fn listener() -> Result<Listener, Failed> {
    Ok(Listener::bind(device().addr(0), &ListenOptions::default())?)
}

/// A device and route to a listener.
pub(crate) fn resolve(to: std::net::SocketAddr) -> Result<Resolved, Failed> {
    let deadline = Deadline::after(WAIT);
    Ok(Resolving::start(to, &ConnectOptions::default(), deadline)?.wait()?)
}

/// Begins a connection to `to` that sends `private_data`.
pub(crate) fn begin(
    to: std::net::SocketAddr,
    private_data: &[u8],
) -> Result<(Connection, Queues), Failed> {
    let resolved = resolve(to)?;
    let (queues, qp) = Queues::new(resolved.context())?;
    resolved.init_qp(&qp)?;
    Ok((
        resolved.connect(qp, &ConnParams::default(), private_data)?,
        queues,
    ))
}

impl RawPair {
    pub(crate) fn new() -> Result<Self, Failed> {
        let options = ConnectOptions::default();
        Self::at(&listener()?, &options, &ConnParams::default())
    }

    /// A pair whose server is reached through `listener`.
    pub(crate) fn at(
        listener: &Listener,
        options: &ConnectOptions,
        params: &ConnParams,
    ) -> Result<Self, Failed> {
        let deadline = Deadline::after(WAIT);
        let resolved = Resolving::start(listener.local_addr(), options, deadline)?.wait()?;
        let (client_queues, qp) = Queues::new(resolved.context())?;
        resolved.init_qp(&qp)?;
        let client = resolved.connect(qp, params, &[])?;
        let request = listener.next_request(deadline)?;
        let (server_queues, qp) = Queues::new(request.context())?;
        request.init_qp(&qp)?;
        let server = request.accept(qp, params, &[])?;
        client.wait_established(deadline)?;
        server.wait_established(deadline)?;
        Ok(Self {
            client,
            client_queues,
            server,
            server_queues,
        })
    }
}

/// Polls until a completion comes.
pub(crate) fn poll(cq: &CompletionQueue) -> Result<WorkCompletion, Failed> {
    let deadline = Deadline::after(WAIT);
    loop {
        if let Some(completion) = try_poll(cq)? {
            return Ok(completion);
        }
        if deadline.has_passed() {
            return Err("no completion came".into());
        }
        std::thread::yield_now();
    }
}

/// One completion, if there is one.
pub(crate) fn try_poll(cq: &CompletionQueue) -> Result<Option<WorkCompletion>, Failed> {
    let mut out = [MaybeUninit::uninit()];
    Ok(cq.poll(&mut out)?.first().copied())
}

fn family(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).expect("families are small numbers")
}

/// The address in C's form.
pub(crate) fn c_address(addr: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: plain integers and bytes, for which zero is a value.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut storage;
    match addr {
        SocketAddr::V4(v4) => {
            let c = libc::sockaddr_in {
                sin_family: family(libc::AF_INET),
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is larger than and aligned for every sockaddr.
            unsafe { place.cast::<libc::sockaddr_in>().write(c) };
        }
        SocketAddr::V6(v6) => {
            let c = libc::sockaddr_in6 {
                sin6_family: family(libc::AF_INET6),
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the storage is larger than and aligned for every sockaddr.
            unsafe { place.cast::<libc::sockaddr_in6>().write(c) };
        }
    }
    storage
}
