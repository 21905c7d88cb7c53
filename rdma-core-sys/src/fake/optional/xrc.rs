//! Extended reliable connections: their domains, shared receive queues and ends. No message is carried between them.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::prelude::rust_2024::*;

use super::super::qp;
use super::super::table::{CBox, Table};
use super::super::world::World;
use super::super::{by_return, enter, null};
use crate::bindings::*;

#[derive(Debug)]
struct Domain {
    c: CBox<ibv_xrcd>,
    /// Shared receive queues, and handles of queue pairs.
    users: usize,
}

#[derive(Debug)]
struct Queue {
    domain: usize,
    cq: usize,
    number: u32,
}

#[derive(Debug)]
pub(super) struct Xrc {
    domains: Table<Domain>,
    /// By the address of the shared receive queue.
    queues: BTreeMap<usize, Queue>,
    /// The domain of each handle of a target, by its address.
    targets: BTreeMap<usize, usize>,
}

impl Xrc {
    pub(super) const fn new() -> Self {
        Self {
            domains: Table::new("XRC domain"),
            queues: BTreeMap::new(),
            targets: BTreeMap::new(),
        }
    }

    pub(super) fn domains(&self) -> usize {
        self.domains.len()
    }

    pub(super) fn reset(&mut self) {
        self.queues.clear();
        self.targets.clear();
        self.domains
            .clear()
            .into_iter()
            .for_each(|domain| domain.c.retire());
    }
}

pub(super) fn offer(table: &mut verbs_context) {
    table.open_xrcd = Some(open_xrcd);
    table.close_xrcd = Some(close_xrcd);
    table.create_srq_ex = Some(create_srq_ex);
    table.get_srq_num = Some(get_srq_num);
    table.open_qp = Some(open_qp);
}

unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    let call = "ibv_open_xrcd";
    let opened = enter(call).map(|mut world| {
        world.devices.check(call, context);
        // SAFETY: the caller gives a filled struct.
        let attr = unsafe { attr.read() };
        let file = if attr.fd < 0 { "none" } else { "some" };
        let arguments = std::format!(
            "comp_mask={} file={file} oflags={:#o}",
            attr.comp_mask,
            attr.oflags
        );
        world.optional.note(call, arguments);
        let c = CBox::new(ibv_xrcd { context });
        let (pointer, address) = (c.as_ptr(), c.address());
        let domains = &mut world.optional.xrc.domains;
        domains.insert(address, Domain { c, users: 0 });
        pointer
    });
    opened.unwrap_or_else(null)
}

unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    let call = "ibv_close_xrcd";
    by_return(enter(call).and_then(|mut world| {
        let domains = &mut world.optional.xrc.domains;
        if domains.of(call, xrcd).users > 0 {
            return Err(libc::EBUSY);
        }
        if let Some(domain) = domains.remove(xrcd.addr()) {
            domain.c.retire();
        }
        Ok(())
    }))
}

unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let call = "ibv_create_srq_ex";
    let made = enter(call).and_then(|mut world| {
        world.devices.check(call, context);
        // SAFETY: the caller gives a filled struct.
        let init = unsafe { attr.read() };
        let arguments = std::format!(
            "comp_mask={} type={} max_wr={} max_sge={}",
            init.comp_mask,
            init.srq_type.0,
            init.attr.max_wr,
            init.attr.max_sge
        );
        world.optional.note(call, arguments);
        if init.srq_type != ibv_srq_type::IBV_SRQT_XRC {
            return Err(libc::EOPNOTSUPP);
        }
        world.optional.xrc.domains.of(call, init.xrcd);
        if world.cqs.of(call, init.cq).context != context.addr() {
            return Err(libc::EINVAL);
        }
        let made = world.new_srq(call, init.pd, init.srq_context, init.attr)?;
        let number = world.number() + 0x8000;
        world.optional.xrc.domains.of(call, init.xrcd).users += 1;
        world.cqs.of(call, init.cq).users += 1;
        let queue = Queue {
            domain: init.xrcd.addr(),
            cq: init.cq.addr(),
            number,
        };
        world.optional.xrc.queues.insert(made.addr(), queue);
        Ok(made)
    });
    made.unwrap_or_else(null)
}

unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    let call = "ibv_get_srq_num";
    by_return(enter(call).and_then(|mut world| {
        world.srqs.of(call, srq);
        let queue = world.optional.xrc.queues.get(&srq.addr());
        let number = queue.ok_or(libc::EINVAL)?.number;
        // SAFETY: the caller gives a place for the number.
        unsafe { srq_num.write(number) };
        Ok(())
    }))
}

impl World {
    /// What a shared receive queue that is gone had of extended reliable connections is free.
    pub(in super::super) fn release_xrc_srq(&mut self, call: &str, address: usize) {
        if let Some(queue) = self.optional.xrc.queues.remove(&address) {
            self.optional.xrc.domains.at(call, queue.domain).users -= 1;
            self.cqs.at(call, queue.cq).users -= 1;
        }
    }

    /// The same of a target's handle.
    pub(in super::super) fn release_xrc_target(&mut self, call: &str, address: usize) {
        if let Some(domain) = self.optional.xrc.targets.remove(&address) {
            self.optional.xrc.domains.at(call, domain).users -= 1;
        }
    }

    /// Makes the receiving end, by what `ibv_create_qp_ex` was given for it.
    pub(in super::super) fn new_xrc_target(
        &mut self,
        call: &'static str,
        context: *mut ibv_context,
        attr: &ibv_qp_init_attr_ex,
    ) -> Result<*mut ibv_qp, c_int> {
        let arguments = std::format!(
            "type={} comp_mask={} pd={} cq={}",
            attr.qp_type.0,
            attr.comp_mask,
            !attr.pd.is_null(),
            !attr.send_cq.is_null() || !attr.recv_cq.is_null()
        );
        self.optional.note(call, arguments);
        if !self.offers(context.addr()) {
            return Err(libc::EOPNOTSUPP);
        }
        if attr.comp_mask != ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0 {
            return Err(libc::EINVAL);
        }
        self.optional.xrc.domains.of(call, attr.xrcd).users += 1;
        let made = qp::create_target(self, context, None);
        let targets = &mut self.optional.xrc.targets;
        targets.insert(made.addr(), attr.xrcd.addr());
        Ok(made)
    }
}

unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    let call = "ibv_open_qp";
    let opened = enter(call).and_then(|mut world| {
        world.devices.check(call, context);
        // SAFETY: the caller gives a filled struct.
        let attr = unsafe { attr.read() };
        let arguments = std::format!(
            "comp_mask={} qp_num={} type={}",
            attr.comp_mask,
            attr.qp_num,
            attr.qp_type.0
        );
        world.optional.note(call, arguments);
        world.optional.xrc.domains.of(call, attr.xrcd);
        let xrc = &world.optional.xrc;
        let known = xrc.targets.iter().any(|(target, domain)| {
            let number = world.qps.get(*target).map(|qp| qp.number);
            number == Some(attr.qp_num) && *domain == attr.xrcd.addr()
        });
        if !known {
            return Err(libc::EINVAL);
        }
        world.optional.xrc.domains.of(call, attr.xrcd).users += 1;
        let opened = qp::create_target(&mut world, context, Some(attr.qp_num));
        let targets = &mut world.optional.xrc.targets;
        targets.insert(opened.addr(), attr.xrcd.addr());
        Ok(opened)
    });
    opened.unwrap_or_else(null)
}
