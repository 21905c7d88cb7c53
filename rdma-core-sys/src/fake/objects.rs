//! Protection domains and memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::prelude::rust_2024::*;

use super::optional::release;
use super::table::CBox;
use super::world::World;
use super::{by_return, enter, null};
use crate::bindings::{ibv_access_flags, ibv_context, ibv_mr, ibv_pd};

#[derive(Debug)]
pub(super) struct Pd {
    pub(super) c: CBox<ibv_pd>,
    pub(super) context: usize,
    /// Everything that was made in it.
    pub(super) users: usize,
    /// The addresses of protection and thread domain, of a parent domain.
    pub(super) made_of: Option<(usize, usize)>,
}

#[derive(Debug)]
pub(super) struct Mr {
    pub(super) c: CBox<ibv_mr>,
    pub(super) pd: usize,
    reach: Reach,
}

/// What a region lets requests reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    addr: u64,
    iova: u64,
    len: u64,
    access: u32,
}

impl Mr {
    pub(super) const NOTHING: Reach = Reach {
        addr: 0,
        iova: 0,
        len: 0,
        access: 0,
    };

    /// Makes a region of a domain, which C sees with this address and length.
    pub(super) fn insert(
        world: &mut World,
        context: usize,
        pd: *mut ibv_pd,
        (addr, length): (*mut c_void, usize),
        reach: Reach,
    ) -> *mut ibv_mr {
        world.pds.of("a registration", pd).users += 1;
        let handle = world.number();
        // Never equal, so that one taken for the other is found out.
        let (lkey, rkey) = (handle << 8 | 0x11, handle << 8 | 0x22);
        let c = CBox::new(ibv_mr {
            context: world.devices.context(context),
            pd,
            addr,
            length,
            handle,
            lkey,
            rkey,
        });
        let (pointer, address) = (c.as_ptr(), c.address());
        let pd = pd.addr();
        world.mrs.insert(address, Self { c, pd, reach });
        world.lkeys.insert(lkey, address);
        world.rkeys.insert(rkey, address);
        pointer
    }

    pub(super) fn set_memory(&mut self, addr: *mut c_void, length: usize) {
        self.reach.addr = addr.expose_provenance() as u64;
        self.reach.iova = self.reach.addr;
        self.reach.len = length as u64;
    }

    pub(super) fn set_access(&mut self, access: u32) {
        self.reach.access = access;
    }

    /// Where in memory the range is that a request names, if the region allows it.
    pub(super) fn range(&self, addr: u64, len: u64, access: u32) -> Option<u64> {
        let offset = addr.checked_sub(self.reach.iova)?;
        let end = offset.checked_add(len)?;
        let allowed = end <= self.reach.len && self.reach.access & access == access;
        allowed.then(|| self.reach.addr.wrapping_add(offset))
    }
}

impl World {
    /// The domain that protects what is made in `pd`: of a parent domain, the one that it is made of.
    pub(super) fn protection(&mut self, pd: usize) -> usize {
        let parts = self.pds.find(pd).and_then(|pd| pd.made_of);
        parts.map_or(pd, |(plain, _)| plain)
    }

    /// The region at an address, if requests of queue pairs of `pd` may name it.
    pub(super) fn region(&mut self, address: usize, pd: usize) -> Option<&Mr> {
        let of = self.mrs.find(address)?.pd;
        let same = self.protection(of) == self.protection(pd);
        self.mrs.find(address).filter(|_| same).map(|mr| &*mr)
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let mut world = match enter("ibv_alloc_pd") {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    world.devices.check("ibv_alloc_pd", context);
    let handle = world.number();
    let c = CBox::new(ibv_pd { context, handle });
    let pointer = c.as_ptr();
    world.pds.insert(
        c.address(),
        Pd {
            c,
            context: context.addr(),
            users: 0,
            made_of: None,
        },
    );
    pointer
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    by_return(enter("ibv_dealloc_pd").and_then(|mut world| {
        if world.pds.of("ibv_dealloc_pd", pd).users > 0 {
            return Err(libc::EBUSY);
        }
        if let Some(pd) = world.pds.remove(pd.addr()) {
            pd.c.retire();
            if let Some(parts) = pd.made_of {
                release(&mut world, "ibv_dealloc_pd", parts);
            }
        }
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let mut world = match enter("ibv_reg_mr_iova2") {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    let context = world.pds.of("ibv_reg_mr_iova2", pd).context;
    let has = |flags: ibv_access_flags| access & flags.0 != 0;
    let remote_change =
        ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC;
    if length == 0 || (has(remote_change) && !has(ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)) {
        return null(libc::EINVAL);
    }
    // The iWARP device pages nothing on demand.
    if has(ibv_access_flags::IBV_ACCESS_ON_DEMAND) && world.devices.is_iwarp(context) {
        return null(libc::EINVAL);
    }
    let reach = Reach {
        addr: addr.expose_provenance() as u64,
        iova,
        len: length as u64,
        access,
    };
    Mr::insert(&mut world, context, pd, (addr, length), reach)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    by_return(enter("ibv_dereg_mr").and_then(|mut world| {
        let pd = world.mrs.of("ibv_dereg_mr", mr).pd;
        let address = mr.addr();
        let windowed = world
            .mws
            .iter()
            .any(|(_, mw)| mw.bound.is_some_and(|bound| bound.mr == address));
        if windowed {
            // As SoftRoCE says it.
            return Err(libc::EINVAL);
        }
        world.lkeys.retain(|_, region| *region != address);
        world.rkeys.retain(|_, region| *region != address);
        world.pds.at("ibv_dereg_mr", pd).users -= 1;
        if let Some(mr) = world.mrs.remove(address) {
            mr.c.retire();
        }
        Ok(())
    }))
}
