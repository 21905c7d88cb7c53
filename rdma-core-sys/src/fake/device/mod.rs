//! Devices and contexts.

mod query;

use core::ffi::{c_char, c_int};
use core::mem::offset_of;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ptr;
use std::collections::BTreeMap;
use std::prelude::rust_2024::*;

use super::async_events::Queue;
use super::table::CBox;
use super::{by_return, enter, null, violation};
use super::{cq, data, ext_cq, ext_qp, optional, windows};
use crate::bindings::{
    __be64, ibv_context, ibv_device, ibv_node_type, ibv_transport_type, verbs_context,
};
use crate::constants::__VERBS_ABI_IS_EXTENDED;

/// What a device is, apart from what programs made of it.
struct Model {
    name: &'static str,
    transport: ibv_transport_type,
    guid: u64,
    gids: &'static [IpAddr],
}

const fn v6(first: u16, last: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(
        first,
        if first == 0x2001 { 0xdb8 } else { 0 },
        0,
        0,
        0,
        0,
        0,
        last,
    ))
}

/// The interface that a link-local address is of.
pub(super) const SCOPE: u32 = 7;

static MODELS: [Model; 2] = [
    Model {
        name: "fake0",
        transport: ibv_transport_type::IBV_TRANSPORT_IB,
        guid: 0x0200_00ff_fe00_0001,
        gids: &[
            v6(0xfe80, 1),
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            v6(0x2001, 1),
        ],
    },
    Model {
        name: "fake1",
        transport: ibv_transport_type::IBV_TRANSPORT_IWARP,
        guid: 0x0200_00ff_fe00_0002,
        gids: &[IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1))],
    },
];

/// Longest message, in bytes.
pub(super) const MAX_MESSAGE: u32 = 8 << 20;
/// Requests of a queue, and entries of a completion queue.
pub(super) const MAX_WR: u32 = 1 << 14;
pub(super) const MAX_CQE: u32 = (1 << 15) - 1;
pub(super) const MAX_SGE: u32 = 32;
pub(super) const MAX_INLINE: u32 = 512;
/// Bytes of the largest datagram.
pub(super) const ACTIVE_MTU: usize = 1024;
/// Reads in flight.
pub(super) const MAX_READS: u8 = 128;

#[derive(Debug)]
struct Context {
    c: CBox<verbs_context>,
    model: usize,
    /// Opened by the connection manager, which never closes it here.
    pinned: bool,
    events: Queue,
}

/// The devices' C side.
#[derive(Debug)]
pub(super) struct Devices {
    devices: Vec<CBox<ibv_device>>,
    contexts: BTreeMap<usize, Context>,
    lists: usize,
}

impl Devices {
    pub(super) const fn new() -> Self {
        Self {
            devices: Vec::new(),
            contexts: BTreeMap::new(),
            lists: 0,
        }
    }

    fn device(&mut self, model: usize) -> *mut ibv_device {
        if self.devices.is_empty() {
            self.devices = MODELS
                .iter()
                .map(|model| CBox::new(c_device(model)))
                .collect();
        }
        self.devices[model].as_ptr()
    }

    fn open(&mut self, model: usize, pinned: bool) -> Result<*mut ibv_context, c_int> {
        let events = Queue::new()?;
        let device = self.device(model);
        let mut table = verbs_context {
            query_port: Some(query::query_port),
            query_device_ex: Some(query::query_device_ex),
            create_cq_ex: Some(ext_cq::create_cq_ex),
            query_rt_values: Some(ext_cq::query_rt_values),
            create_qp_ex: Some(ext_qp::create_qp_ex),
            sz: size_of::<verbs_context>(),
            ..verbs_context::default()
        };
        if MODELS[model].transport == ibv_transport_type::IBV_TRANSPORT_IB {
            optional::offer(&mut table);
        }
        let c = CBox::new(table);
        // Within the whole struct, which `verbs_get_ctx` goes back to.
        let context = c
            .as_ptr()
            .wrapping_byte_add(offset_of!(verbs_context, context))
            .cast::<ibv_context>();
        let mut plain = ibv_context {
            device,
            cmd_fd: -1,
            async_fd: events.fd(),
            num_comp_vectors: 2,
            abi_compat: __VERBS_ABI_IS_EXTENDED,
            ..ibv_context::default()
        };
        plain.ops.poll_cq = Some(cq::poll_cq);
        plain.ops.req_notify_cq = Some(cq::req_notify_cq);
        plain.ops.post_send = Some(data::post_send);
        plain.ops.post_recv = Some(data::post_recv);
        plain.ops.alloc_mw = Some(windows::alloc_mw);
        plain.ops.dealloc_mw = Some(windows::dealloc_mw);
        plain.ops.bind_mw = Some(windows::bind_mw);
        plain.ops.post_srq_recv = Some(data::post_srq_recv);
        // SAFETY: the place lies within the allocation just made.
        unsafe { context.write(plain) };
        let opened = Context {
            c,
            model,
            pinned,
            events,
        };
        self.contexts.insert(context.addr(), opened);
        Ok(context)
    }

    /// The connection manager's own context of a device, the same one every time.
    pub(super) fn pinned(&mut self, model: usize) -> Result<*mut ibv_context, c_int> {
        let found = self
            .contexts
            .iter()
            .find(|(_, c)| c.pinned && c.model == model)
            .map(|(&at, _)| at);
        match found {
            Some(address) => Ok(self.context(address)),
            None => self.open(model, true),
        }
    }

    /// The pointer to the context at an address.
    pub(super) fn context(&self, address: usize) -> *mut ibv_context {
        self.contexts
            .get(&address)
            .map_or(ptr::null_mut(), |context| {
                context
                    .c
                    .as_ptr()
                    .wrapping_byte_add(offset_of!(verbs_context, context))
                    .cast()
            })
    }

    /// The events of a context.
    pub(super) fn async_queue(&mut self, context: usize) -> Option<&mut Queue> {
        Some(&mut self.contexts.get_mut(&context)?.events)
    }

    /// The events of all contexts.
    pub(super) fn async_queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.contexts
            .values_mut()
            .map(|context| &mut context.events)
    }

    fn model_of(&self, call: &str, context: *mut ibv_context) -> &'static Model {
        match self.contexts.get(&context.addr()) {
            Some(context) => &MODELS[context.model],
            None => violation(&std::format!(
                "{call} was given a context that is closed, or none"
            )),
        }
    }

    /// Ends the program unless the context is open.
    pub(super) fn check(&self, call: &str, context: *mut ibv_context) {
        self.model_of(call, context);
    }

    pub(super) fn is_iwarp(&self, context: usize) -> bool {
        self.contexts.get(&context).is_some_and(|context| {
            MODELS[context.model].transport == ibv_transport_type::IBV_TRANSPORT_IWARP
        })
    }

    /// An entry of the GID table of a context.
    pub(super) fn ip_at(&self, context: usize, index: usize) -> Option<IpAddr> {
        let context = self.contexts.get(&context)?;
        MODELS[context.model].gids.get(index).copied()
    }

    /// The index of an address in the GID table of a context.
    pub(super) fn index_of(&self, context: usize, ip: IpAddr) -> Option<u8> {
        let context = self.contexts.get(&context)?;
        let gids = MODELS[context.model].gids;
        gids.iter().position(|&known| known == ip)?.try_into().ok()
    }

    /// The device that has the address.
    pub(super) fn of_ip(ip: IpAddr) -> Option<usize> {
        MODELS.iter().position(|model| model.gids.contains(&ip))
    }

    /// The first address of a device, of the family of `like` where it has one.
    pub(super) fn ip_of(model: usize, like: IpAddr) -> IpAddr {
        let mut ips = MODELS[model]
            .gids
            .iter()
            .filter(|ip| ip.is_ipv4() == like.is_ipv4());
        *ips.next().unwrap_or(&MODELS[model].gids[0])
    }

    pub(super) fn open_contexts(&self) -> usize {
        self.contexts
            .values()
            .filter(|context| !context.pinned)
            .count()
    }

    pub(super) fn lists(&self) -> usize {
        self.lists
    }

    pub(super) fn reset(&mut self) {
        let (pinned, open) = core::mem::take(&mut self.contexts)
            .into_iter()
            .partition(|(_, c)| c.pinned);
        self.contexts = pinned;
        self.async_queues().for_each(Queue::clear);
        open.into_values().for_each(|context| context.c.retire());
        self.lists = 0;
    }
}

fn c_device(model: &Model) -> ibv_device {
    let mut device = ibv_device {
        node_type: if model.transport == ibv_transport_type::IBV_TRANSPORT_IB {
            ibv_node_type::IBV_NODE_CA
        } else {
            ibv_node_type::IBV_NODE_RNIC
        },
        transport_type: model.transport,
        ..ibv_device::default()
    };
    for (to, from) in device.name.iter_mut().zip(model.name.bytes()) {
        *to = core::ffi::c_char::from_ne_bytes([from]);
    }
    device.dev_name = device.name;
    device
}

/// A list as C returns it: pointers and a NULL behind them.
fn list_of<T>(pointers: Vec<*mut T>) -> *mut *mut T {
    let mut list = pointers;
    list.push(ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

/// # Safety
/// - `list` came from [`list_of`] and is not freed yet.
unsafe fn free_list<T>(list: *mut *mut T) {
    let list = ptr::slice_from_raw_parts_mut(list, MODELS.len() + 1);
    // SAFETY: every list has an entry for each model and the NULL.
    drop(unsafe { Box::from_raw(list) });
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    let mut world = match enter("ibv_get_device_list") {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    world.devices.lists += 1;
    let devices = (0..MODELS.len())
        .map(|model| world.devices.device(model))
        .collect();
    if !num_devices.is_null() {
        // SAFETY: the caller gives a place for the count.
        unsafe { num_devices.write(MODELS.len().try_into().unwrap_or(0)) };
    }
    list_of(devices)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let Ok(mut world) = enter("ibv_free_device_list") else {
        return;
    };
    match world.devices.lists.checked_sub(1) {
        Some(left) => world.devices.lists = left,
        None => violation("ibv_free_device_list was given a list that was freed"),
    }
    // SAFETY: the list came from ibv_get_device_list.
    unsafe { free_list(list) };
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the device is live; nothing is read.
    unsafe { &raw const (*device).name }.cast()
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    let world = super::world::lock();
    let model = world
        .devices
        .devices
        .iter()
        .position(|known| known.as_ptr() == device);
    model.map_or(0, |model| MODELS[model].guid.to_be())
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    let world = super::world::lock();
    let model = world
        .devices
        .devices
        .iter()
        .position(|known| known.as_ptr() == device);
    model.and_then(|model| model.try_into().ok()).unwrap_or(-1)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let mut world = match enter("ibv_open_device") {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    match world
        .devices
        .devices
        .iter()
        .position(|known| known.as_ptr() == device)
    {
        Some(model) => world.devices.open(model, false).unwrap_or_else(null),
        None => violation("ibv_open_device was given no device"),
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    by_return(enter("ibv_close_device").map(|mut world| {
        world.devices.check("ibv_close_device", context);
        let address = context.addr();
        let used = world.pds.iter().any(|(_, pd)| pd.context == address)
            || world.cqs.iter().any(|(_, cq)| cq.context == address)
            || world
                .channels
                .iter()
                .any(|(_, channel)| channel.context == address);
        if used {
            violation("ibv_close_device frees a context whose objects are still there");
        }
        match world.devices.contexts.remove(&address) {
            Some(context) if context.pinned => {
                violation("ibv_close_device was given the connection manager's context")
            }
            Some(context) => context.c.retire(),
            None => {}
        }
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    let mut world = match enter("rdma_get_devices") {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    let contexts: Result<Vec<_>, _> = (0..MODELS.len())
        .map(|model| world.devices.pinned(model))
        .collect();
    let contexts = match contexts {
        Ok(contexts) => contexts,
        Err(errno) => return null(errno),
    };
    if !num_devices.is_null() {
        // SAFETY: the caller gives a place for the count.
        unsafe { num_devices.write(MODELS.len().try_into().unwrap_or(0)) };
    }
    list_of(contexts)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if enter("rdma_free_devices").is_ok() {
        // SAFETY: the list came from rdma_get_devices.
        unsafe { free_list(list) };
    }
}
