//! Operations that few devices have: `fake0` offers them, `fake1` leaves their slots empty. Each notes what it was given.

mod domains;
mod extensions;
mod query;
mod regions;
mod xrc;

pub(super) use self::domains::release;
pub(super) use self::query::extend;

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::control::Session;
use super::world::{World, lock};
use crate::bindings::{ibv_qp_state, verbs_context};

/// What tests asked of these operations, and what the operations were given.
#[derive(Debug)]
pub(super) struct Optional {
    noted: Vec<(&'static str, String)>,
    /// What the next change of a registration answers, with the errno.
    rereg: Option<(c_int, c_int)>,
    /// Parent domains and thread domains.
    domains: domains::Domains,
    /// Extended reliable connections.
    xrc: xrc::Xrc,
}

impl Optional {
    pub(super) const fn new() -> Self {
        Self {
            noted: Vec::new(),
            rereg: None,
            domains: domains::Domains::new(),
            xrc: xrc::Xrc::new(),
        }
    }

    pub(super) fn note(&mut self, call: &'static str, arguments: String) {
        self.noted.push((call, arguments));
    }

    pub(super) fn left_over(&self) -> Vec<(&'static str, usize)> {
        std::vec![
            ("thread domains", self.domains.threads.len()),
            ("XRC domains", self.xrc.domains()),
        ]
    }

    pub(super) fn reset(&mut self) {
        self.noted.clear();
        self.rereg = None;
        self.domains.reset();
        self.xrc.reset();
    }
}

/// Fills the slots of the device that has them.
pub(super) fn offer(table: &mut verbs_context) {
    extensions::offer(table);
    regions::offer(table);
    domains::offer(table);
    xrc::offer(table);
}

impl Session {
    /// What the calls of an optional operation were given, in order: a line each.
    #[must_use]
    pub fn arguments(&self, call: &str) -> Vec<String> {
        let world = lock();
        let noted = world.optional.noted.iter();
        noted
            .filter(|(name, _)| *name == call)
            .map(|(_, line)| line.clone())
            .collect()
    }

    /// Brings the queue pair of a number to SQE, as hardware does when a request of an unreliable one fails.
    ///
    /// # Panics
    /// When there is no such queue pair.
    pub fn break_sends(&self, number: u32) {
        let mut world = lock();
        let address = world.numbers.get(&number).copied();
        let qp = address.and_then(|address| world.qps.find(address));
        qp.expect("no queue pair has this number").state = ibv_qp_state::IBV_QPS_SQE;
    }

    /// Lets the next `ibv_rereg_mr` answer one of its codes, and do what the code says.
    pub fn next_rereg(&self, code: c_int, errno: c_int) {
        lock().optional.rereg = Some((code, errno));
    }
}

impl World {
    /// Whether the device of a context offers the operations of this module.
    fn offers(&self, context: usize) -> bool {
        !self.devices.is_iwarp(context)
    }
}
