//! Setting a connection up and taking it down, both ends in this thread.

mod ours;
mod raw;
mod reader;

use libtest_mimic::Failed;
use rpma::cm::verbs::{CompletionQueue, ProtectionDomain};

use super::Check;
use super::measure::{self, Candidate, Clock, Costs, at_most};

/// Until both ends know that data can flow.
const SET_UP: &str = "set-up";
/// From the order to disconnect until both ids are gone.
const TEARDOWN: &str = "teardown";

/// How often each candidate repeats in its turn.
const REPEATS: usize = 50;
/// The same where connections are held: it is only compared with itself.
const HELD_REPEATS: usize = 20;

pub(crate) const CHECKS: [Check; 2] = [
    (
        "path length: set-up and teardown cost at most 1.10 times what a C program's calls cost",
        connecting,
    ),
    (
        "path length: with 2000 connections held the next costs at most 1.08 times what it costs with 100",
        holding,
    ),
];

/// What all queue pairs share: it is made once, as a program with many connections does.
struct Shared {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl Shared {
    /// For up to `count` queue pairs.
    fn new(count: u32) -> Result<Self, Failed> {
        let context = rpma::cm::device_of_local(harness::device().addr(0))?;
        Ok(Self {
            pd: ProtectionDomain::new(&context)?,
            cq: CompletionQueue::builder(&context, 8 * count).build()?,
        })
    }
}

fn connecting() -> Result<(), Failed> {
    let shared = Shared::new(16)?;
    let mut candidates: Vec<Box<dyn Candidate + '_>> = vec![
        Box::new(raw::Raw::new(&shared, raw::Channels::One)?),
        Box::new(raw::Raw::new(&shared, raw::Channels::OfEachId)?),
        Box::new(ours::OwnChannels::new(&shared)?),
        Box::new(raw::Raw::new(&shared, raw::Channels::Thread)?),
        Box::new(ours::Dispatched::new(&shared)?),
    ];
    let costs = measure::in_turns(&mut candidates, REPEATS)?;
    measure::print(&costs);
    let [one, _each, own, thread, dispatched] = costs.as_slice() else {
        return Err("a candidate is missing".into());
    };
    // An id with a channel of its own is compared with a program that has one for all: what that costs is ours to answer for. A
    // dispatcher is compared with a program that has a thread for the events as well.
    for part in [SET_UP, TEARDOWN] {
        compare(part, own, one)?;
        compare(part, dispatched, thread)?;
    }
    Ok(())
}

fn holding() -> Result<(), Failed> {
    let shared = Shared::new(4090)?;
    let dispatched = ours::Dispatched::new(&shared)?;
    let mut held = Vec::with_capacity(2000);
    let descriptors = descriptors()?;
    let mut costs = Vec::new();
    for count in [100, 2000] {
        while held.len() < count {
            held.push(dispatched.connect(&mut Clock::start())?);
        }
        let with: Box<dyn Candidate + '_> = Box::new(ours::Beside {
            name: if count == 100 {
                "100 held"
            } else {
                "2000 held"
            },
            others: &dispatched,
        });
        costs.extend(measure::in_turns(&mut [with], HELD_REPEATS)?);
    }
    measure::print(&costs);
    harness::ensure_eq!(
        self::descriptors()?,
        descriptors,
        "descriptors with {} connections",
        held.len()
    );
    let [few, many] = costs.as_slice() else {
        return Err("a measurement is missing".into());
    };
    for part in [SET_UP, TEARDOWN] {
        at_most(part, many.of(part)?, few.of(part)?, 1080)?;
    }
    Ok(())
}

fn descriptors() -> Result<usize, Failed> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

fn compare(part: &'static str, ours: &Costs, base: &Costs) -> Result<(), Failed> {
    at_most(part, ours.of(part)?, base.of(part)?, 1100)
}
