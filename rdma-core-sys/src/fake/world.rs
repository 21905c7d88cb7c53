//! Everything there is, under one lock.

use core::ffi::c_int;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::prelude::rust_2024::*;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::ah::Ah;
use super::async_events::Event;
use super::control::{PostedRecv, PostedSend};
use super::cq::{Channel, Cq};
use super::device::Devices;
use super::ext_control;
use super::objects::{Mr, Pd};
use super::optional::Optional;
use super::qp::Qp;
use super::srq::Srq;
use super::table::Table;
use super::windows::Mw;
use super::{cm, violation};

static WORLD: Mutex<World> = Mutex::new(World::new());
/// Told about every acknowledgement and event.
static CHANGED: Condvar = Condvar::new();

/// Takes the world. A test that failed with it in hand leaves it as it is.
pub(super) fn lock() -> MutexGuard<'static, World> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes those who wait in [`wait_until`] or for an event.
pub(super) fn changed() {
    CHANGED.notify_all();
}

/// Sleeps until something changed, at most for a while.
pub(super) fn sleep(
    world: MutexGuard<'static, World>,
    at_most: Duration,
) -> MutexGuard<'static, World> {
    CHANGED
        .wait_timeout(world, at_most)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

/// Waits for a condition that another thread brings about. C has no end to this wait; here it has.
pub(super) fn wait_until(
    mut world: MutexGuard<'static, World>,
    call: &str,
    why: &str,
    mut done: impl FnMut(&mut World) -> bool,
) -> MutexGuard<'static, World> {
    let end = Instant::now() + world.patience;
    while !done(&mut world) {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            violation(&std::format!("{call} would block for ever: {why}"));
        }
        world = sleep(world, left);
    }
    world
}

/// A call that is to fail.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) call: &'static str,
    /// How many calls go well before it.
    pub(super) after: usize,
    pub(super) errno: c_int,
    /// Whether it fails from then on.
    pub(super) for_ever: bool,
}

/// What a test asked the device to do to coming requests.
#[derive(Debug, Default)]
pub(super) struct Knobs {
    /// Statuses that the next send requests end with instead of being carried out.
    pub(super) statuses: VecDeque<u32>,
    /// Opcodes that the next completions show instead of their own.
    pub(super) opcodes: VecDeque<u32>,
    /// The next post puts its requests into the queue, and fails without saying so.
    pub(super) lose_doorbell: bool,
    /// The next confirmation of a connection does not arrive.
    pub(super) lose_confirmation: bool,
    /// Requests stay in their queues.
    pub(super) held: bool,
    /// Completions go with their queue pair.
    pub(super) purges: bool,
    /// Receives posted in ERR are flushed when the state is set again.
    pub(super) late_receives: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) calls: Vec<&'static str>,
    pub(super) faults: Vec<Fault>,
    pub(super) knobs: Knobs,
    /// How long a wait may take that another thread could end.
    pub(super) patience: Duration,
    pub(super) sends: Vec<PostedSend>,
    pub(super) recvs: Vec<PostedRecv>,
    /// Completions that a full queue lost.
    pub(super) overruns: usize,
    /// The devices were taken out of the machine.
    pub(super) removed: bool,
    /// No port carries traffic.
    pub(super) port_down: bool,
    pub(super) devices: Devices,
    pub(super) pds: Table<Pd>,
    pub(super) mrs: Table<Mr>,
    pub(super) channels: Table<Channel>,
    pub(super) cqs: Table<Cq>,
    pub(super) qps: Table<Qp>,
    pub(super) srqs: Table<Srq>,
    pub(super) mws: Table<Mw>,
    pub(super) ahs: Table<Ah>,
    /// Addresses of queue pairs by number.
    pub(super) numbers: BTreeMap<u32, usize>,
    /// Addresses of regions by key for their owner, and by key for others.
    pub(super) lkeys: BTreeMap<u32, usize>,
    pub(super) rkeys: BTreeMap<u32, usize>,
    /// Addresses of windows by the key that the device knows them by.
    pub(super) window_keys: BTreeMap<u32, usize>,
    /// Asynchronous events that were got and are not acknowledged.
    pub(super) events_got: Vec<Event>,
    pub(super) cm: cm::Manager,
    pub(super) ext: ext_control::State,
    pub(super) optional: Optional,
    next: u32,
}

/// Whether a call goes to the device: not the library's own business, and not what reads and writes memory that is shared with
/// the device.
fn needs_device(call: &str) -> bool {
    const LIBRARY: [&str; 14] = [
        "ibv_get_device_list",
        "ibv_free_device_list",
        "ibv_close_device",
        "ibv_destroy_comp_channel",
        "ibv_get_cq_event",
        "ibv_ack_cq_events",
        "ibv_get_async_event",
        "ibv_ack_async_event",
        "ibv_post_recv",
        "ibv_post_srq_recv",
        "ibv_poll_cq",
        "ibv_start_poll",
        "ibv_next_poll",
        "ibv_end_poll",
    ];
    match call {
        "ibv_wr_complete" => true,
        _ if call.starts_with("ibv_wr_") || call.starts_with("ibv_wc_read_") => false,
        _ => call.starts_with("ibv_") && !LIBRARY.contains(&call),
    }
}

/// How long a wait may take unless a test says otherwise.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

impl World {
    const fn new() -> Self {
        Self {
            calls: Vec::new(),
            faults: Vec::new(),
            knobs: Knobs {
                statuses: VecDeque::new(),
                opcodes: VecDeque::new(),
                lose_doorbell: false,
                lose_confirmation: false,
                held: false,
                purges: false,
                late_receives: false,
            },
            patience: PATIENCE,
            sends: Vec::new(),
            recvs: Vec::new(),
            overruns: 0,
            removed: false,
            port_down: false,
            devices: Devices::new(),
            pds: Table::new("protection domain"),
            mrs: Table::new("memory region"),
            channels: Table::new("completion channel"),
            cqs: Table::new("completion queue"),
            qps: Table::new("queue pair"),
            srqs: Table::new("shared receive queue"),
            mws: Table::new("memory window"),
            ahs: Table::new("address handle"),
            numbers: BTreeMap::new(),
            lkeys: BTreeMap::new(),
            rkeys: BTreeMap::new(),
            window_keys: BTreeMap::new(),
            events_got: Vec::new(),
            cm: cm::Manager::new(),
            ext: ext_control::State::new(),
            optional: Optional::new(),
            next: 0,
        }
    }

    /// Notes a call; the errno when it is to fail.
    pub(super) fn record(&mut self, call: &'static str) -> Result<(), c_int> {
        self.calls.push(call);
        let Some(index) = self.faults.iter().position(|fault| fault.call == call) else {
            let fails = self.removed && needs_device(call);
            return if fails { Err(libc::EIO) } else { Ok(()) };
        };
        let fault = &mut self.faults[index];
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        let errno = fault.errno;
        if !fault.for_ever {
            self.faults.remove(index);
        }
        Err(errno)
    }

    /// A number that was not given out before.
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// What a program has that ended properly: nothing. A line for each thing that is there all the same.
    pub(super) fn left_over(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut count = |what: &str, n: usize| {
            if n > 0 {
                lines.push(std::format!("{n} {what} left"));
            }
        };
        count("contexts", self.devices.open_contexts());
        count("device lists", self.devices.lists());
        count("protection domains", self.pds.len());
        count("memory regions", self.mrs.len());
        count("completion channels", self.channels.len());
        count("completion queues", self.cqs.len());
        count("queue pairs", self.qps.len());
        count("shared receive queues", self.srqs.len());
        count("memory windows", self.mws.len());
        count("address handles", self.ahs.len());
        count(
            "asynchronous events not acknowledged",
            self.events_got.len(),
        );
        count("event channels", self.cm.channels.len());
        count("ids", self.cm.ids.len());
        count("multicast groups", self.cm.never_left);
        count("address lists", self.cm.lookups.len());
        count(
            "connection manager events not acknowledged",
            self.cm.delivered.len(),
        );
        count("completions lost in a full queue", self.overruns);
        for (what, n) in self.optional.left_over() {
            count(what, n);
        }
        lines
    }

    /// Throws everything away that a test made, and what it asked for.
    pub(super) fn reset(&mut self) {
        self.calls.clear();
        self.faults.clear();
        self.knobs = Knobs::default();
        self.patience = PATIENCE;
        self.sends.clear();
        self.recvs.clear();
        self.overruns = 0;
        self.removed = false;
        self.port_down = false;
        self.devices.reset();
        self.pds.clear().into_iter().for_each(|pd| pd.c.retire());
        self.mrs.clear().into_iter().for_each(|mr| mr.c.retire());
        self.channels
            .clear()
            .into_iter()
            .for_each(|channel| channel.c.retire());
        self.cqs.clear().into_iter().for_each(|cq| cq.c.retire());
        self.qps.clear().into_iter().for_each(|qp| qp.c.retire());
        self.srqs.clear().into_iter().for_each(|srq| srq.c.retire());
        self.mws.clear().into_iter().for_each(|mw| mw.c.retire());
        self.ahs.clear().into_iter().for_each(|ah| ah.c.retire());
        self.events_got.clear();
        self.numbers.clear();
        self.lkeys.clear();
        self.rkeys.clear();
        self.window_keys.clear();
        self.cm.reset();
        self.ext = ext_control::State::new();
        self.optional.reset();
    }
}
