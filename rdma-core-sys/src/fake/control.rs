//! The test's side of the fake device.
//!
//! ```ignore
//! let fake = control::session();
//! fake.fail("ibv_create_cq", 0, libc::ENOMEM);
//! // … the code under test, and what it made of that …
//! fake.finish(); // nothing may be left
//! ```

mod device;

use core::ffi::c_int;
use core::net::IpAddr;
use core::time::Duration;
use std::prelude::rust_2024::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use self::device::AsyncTarget;
pub use super::ext_control::PostedFlush;

use super::cm::{Side, Stage};
use super::qp::Wqe;
use super::world::{Fault, World, lock};
use super::{table, violation};
use crate::bindings::{ibv_sge, rdma_cm_event_type};

/// A piece of memory that a posted request named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostedSge {
    /// The address.
    pub addr: u64,
    /// The length in bytes.
    pub length: u32,
    /// The key.
    pub lkey: u32,
}

impl PostedSge {
    pub(super) fn list(sges: &[ibv_sge]) -> Vec<Self> {
        let one = |sge: &ibv_sge| Self {
            addr: sge.addr,
            length: sge.length,
            lkey: sge.lkey,
        };
        sges.iter().map(one).collect()
    }
}

/// A request that was taken into a send queue, as the provider got it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PostedSend {
    /// The queue pair's number.
    pub qp_num: u32,
    /// The program's number for the request.
    pub wr_id: u64,
    /// C's opcode.
    pub opcode: u32,
    /// C's flags.
    pub flags: u32,
    /// The list of memory.
    pub sges: Vec<PostedSge>,
    /// The bytes, of an inline request.
    pub inline: Option<Vec<u8>>,
    /// The immediate data in host order; of requests that have none, what stood in its place.
    pub imm: u32,
    /// The target's address; of requests that have none, what stood in its place.
    pub remote_addr: u64,
    /// The target's key; likewise.
    pub rkey: u32,
    /// What a bind of a memory window asks for.
    pub bind: Option<PostedBind>,
    /// Where a datagram goes: the number of the queue pair, and the Q_Key.
    pub datagram: Option<(u32, u32)>,
}

impl PostedSend {
    pub(super) fn of(qp_num: u32, wqe: &Wqe) -> Self {
        Self {
            qp_num,
            wr_id: wqe.wr_id,
            opcode: wqe.opcode,
            flags: wqe.flags,
            sges: PostedSge::list(&wqe.sges),
            inline: wqe.inline.clone(),
            imm: u32::from_be(wqe.imm),
            remote_addr: wqe.remote_addr,
            rkey: wqe.rkey,
            bind: wqe.bind.map(|bind| PostedBind {
                rkey: bind.rkey,
                addr: bind.addr,
                len: bind.len,
                access: bind.access,
            }),
            datagram: wqe.datagram.map(|to| (to.number, to.qkey)),
        }
    }
}

/// What a bind of a memory window asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostedBind {
    /// The key that the window is to have.
    pub rkey: u32,
    /// Where it begins.
    pub addr: u64,
    /// How long it is, in bytes.
    pub len: u64,
    /// C's access flags.
    pub access: u32,
}

/// A receive that was taken into a queue, as the provider got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostedRecv {
    /// The queue pair's number.
    pub qp_num: u32,
    /// The program's number for the request.
    pub wr_id: u64,
    /// The list of memory.
    pub sges: Vec<PostedSge>,
}

/// Which id an event is put in for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The id that asked for a connection.
    Active,
    /// The id that came with a request.
    Passive,
    /// The id that listens.
    Listener,
    /// An id that does neither yet, as while it resolves an address.
    Unconnected,
}

/// One test's use of the fake device. There is one world for a process, so tests that have a session run one after another.
#[derive(Debug)]
pub struct Session {
    finished: bool,
    _alone: MutexGuard<'static, ()>,
}

/// Whether a test should make do with few rounds: under Miri, which is a thousand times slower.
pub const fn hurried() -> bool {
    cfg!(miri)
}

/// How long something may take that takes no longer than `seconds` on a machine that is not too busy: under Miri, which
/// carries out a thousand times fewer instructions in that time, twenty times as long.
pub const fn within(seconds: u64) -> Duration {
    Duration::from_secs(if cfg!(miri) { seconds * 20 } else { seconds })
}

/// Begins with a fresh world: no object, no fault.
#[must_use]
pub fn session() -> Session {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    lock().reset();
    table::free_retired();
    Session {
        finished: false,
        _alone: alone,
    }
}

impl Session {
    /// Lets the `after`-th call of a C function from now on (0: the next) fail once with an errno. `ibv_reg_mr_iova2`,
    /// `ibv_query_port`, `ibv_query_gid_ex` and `ibv_query_gid_table` stand for the inline functions over them.
    pub fn fail(&self, call: &'static str, after: usize, errno: c_int) {
        lock().faults.push(Fault {
            call,
            after,
            errno,
            for_ever: false,
        });
    }

    /// Lets every call of a C function fail from now on.
    pub fn fail_always(&self, call: &'static str, errno: c_int) {
        lock().faults.push(Fault {
            call,
            after: 0,
            errno,
            for_ever: true,
        });
    }

    /// Takes back what [`fail`](Self::fail) and [`fail_always`](Self::fail_always) asked for.
    pub fn heal(&self) {
        lock().faults.clear();
    }

    /// Whether every fault that was asked for has happened.
    #[must_use]
    pub fn faults_happened(&self) -> bool {
        lock().faults.is_empty()
    }

    /// The C functions called so far, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<&'static str> {
        lock().calls.clone()
    }

    /// How often a C function was called.
    #[must_use]
    pub fn count(&self, call: &str) -> usize {
        lock().calls.iter().filter(|name| **name == call).count()
    }

    /// The requests that send queues took, in order.
    #[must_use]
    pub fn sends(&self) -> Vec<PostedSend> {
        lock().sends.clone()
    }

    /// The receives that queues took, in order.
    #[must_use]
    pub fn recvs(&self) -> Vec<PostedRecv> {
        lock().recvs.clone()
    }

    /// Lets the next send request that is not otherwise taken end with this status, known or not.
    pub fn next_status(&self, status: u32) {
        lock().knobs.statuses.push_back(status);
    }

    /// Lets the next completion show this opcode instead of its own.
    pub fn next_opcode(&self, opcode: u32) {
        lock().knobs.opcodes.push_back(opcode);
    }

    /// Lets the next post to a send queue put its requests in, and fail with EINVAL and no bad request, as SoftRoCE does when
    /// the doorbell fails. They are carried out with the next post.
    pub fn lose_doorbell(&self) {
        lock().knobs.lose_doorbell = true;
    }

    /// Loses the next confirmation of a connection: the passive side does not hear that it stands.
    pub fn lose_confirmation(&self) {
        lock().knobs.lose_confirmation = true;
    }

    /// Puts an event in for the id that the target means.
    ///
    /// # Panics
    /// When no id, or more than one, is meant.
    pub fn inject(&self, target: Target, kind: u32, status: c_int, data: Option<&[u8]>) {
        let mut world = lock();
        let meant: Vec<usize> = ids(&world, target);
        let [id] = meant[..] else {
            std::panic!("{} ids are {target:?}, not one", meant.len());
        };
        world.inject(
            id,
            rdma_cm_event_type(kind),
            status,
            data.map(<[u8]>::to_vec),
        );
    }

    /// Lets an id that has joined a multicast group lose it; `token` is what the join was given as its context.
    pub fn lose_group(&self, group: IpAddr, token: usize, status: c_int) {
        lock().lose_group(group, token, status);
    }

    /// How long a call may wait that C would let wait for ever, before the process is ended.
    pub fn set_patience(&self, patience: Duration) {
        lock().patience = patience;
    }

    /// What is there that a program which ended properly would not have left, a line each.
    #[must_use]
    pub fn left_over(&self) -> Vec<String> {
        lock().left_over()
    }

    /// Ends the session where something may be left, as after a failed destroy.
    pub fn discard(mut self) {
        self.finished = true;
    }

    /// Ends the session.
    ///
    /// # Panics
    /// When anything is left: objects, events not acknowledged, completions lost.
    pub fn finish(mut self) {
        self.finished = true;
        let left = self.left_over();
        assert!(
            left.is_empty(),
            "left on the fake device: {}",
            left.join(", ")
        );
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.finished && !std::thread::panicking() {
            violation("a session was ended neither by `finish` nor by `discard`");
        }
    }
}

fn ids(world: &World, target: Target) -> Vec<usize> {
    let of = world
        .cm
        .ids
        .iter()
        .filter(|(_, id)| match (target, id.role()) {
            (Target::Active, Some(Side::Active)) | (Target::Passive, Some(Side::Passive)) => true,
            (Target::Listener, None) => id.is_listener(),
            (Target::Unconnected, None) => !id.is_listener(),
            _ => false,
        });
    of.map(|(&address, _)| address).collect()
}

/// How far a connection is, as the fake's connection manager sees it.
impl Session {
    /// How many connections stand.
    #[must_use]
    pub fn established(&self) -> usize {
        let world = lock();
        world
            .cm
            .connections
            .values()
            .filter(|connection| connection.stage == Stage::Established)
            .count()
    }
}
