//! Thread domains, and protection domains made of others.

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::super::objects::Pd;
use super::super::table::{CBox, Table};
use super::super::{by_return, enter, null};
use crate::bindings::*;

#[derive(Debug)]
pub(super) struct Thread {
    c: CBox<ibv_td>,
    /// Parent domains.
    users: usize,
}

#[derive(Debug)]
pub(super) struct Domains {
    pub(super) threads: Table<Thread>,
}

impl Domains {
    pub(super) const fn new() -> Self {
        Self {
            threads: Table::new("thread domain"),
        }
    }

    pub(super) fn reset(&mut self) {
        self.threads
            .clear()
            .into_iter()
            .for_each(|thread| thread.c.retire());
    }
}

pub(super) fn offer(table: &mut verbs_context) {
    table.alloc_td = Some(alloc_td);
    table.dealloc_td = Some(dealloc_td);
    table.alloc_parent_domain = Some(alloc_parent_domain);
}

unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init_attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    let call = "ibv_alloc_td";
    let mut world = match enter(call) {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    world.devices.check(call, context);
    // SAFETY: the caller gives a filled struct.
    let comp_mask = unsafe { (*init_attr).comp_mask };
    world
        .optional
        .note(call, std::format!("comp_mask={comp_mask}"));
    let c = CBox::new(ibv_td { context });
    let (pointer, address) = (c.as_ptr(), c.address());
    world
        .optional
        .domains
        .threads
        .insert(address, Thread { c, users: 0 });
    pointer
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    let call = "ibv_dealloc_td";
    by_return(enter(call).and_then(|mut world| {
        let threads = &mut world.optional.domains.threads;
        if threads.of(call, td).users > 0 {
            return Err(libc::EBUSY);
        }
        if let Some(thread) = threads.remove(td.addr()) {
            thread.c.retire();
        }
        Ok(())
    }))
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    let call = "ibv_alloc_parent_domain";
    let mut world = match enter(call) {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    world.devices.check(call, context);
    // SAFETY: the caller gives a filled struct.
    let attr = unsafe { attr.read() };
    world.optional.note(
        call,
        std::format!(
            "td={} comp_mask={} allocator={}",
            !attr.td.is_null(),
            attr.comp_mask,
            attr.alloc.is_some() || attr.free.is_some() || !attr.pd_context.is_null()
        ),
    );
    world.pds.of(call, attr.pd).users += 1;
    if !attr.td.is_null() {
        world.optional.domains.threads.of(call, attr.td).users += 1;
    }
    let handle = world.number();
    let c = CBox::new(ibv_pd { context, handle });
    let (pointer, address) = (c.as_ptr(), c.address());
    let made_of = Some((attr.pd.addr(), attr.td.addr()));
    world.pds.insert(
        address,
        Pd {
            c,
            context: context.addr(),
            users: 0,
            made_of,
        },
    );
    pointer
}

/// What a parent domain was made of is free to go.
pub(in super::super) fn release(
    world: &mut super::super::world::World,
    call: &str,
    (pd, td): (usize, usize),
) {
    world.pds.at(call, pd).users -= 1;
    if td != 0 {
        world.optional.domains.threads.at(call, td).users -= 1;
    }
}
