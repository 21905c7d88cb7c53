//! Protection domains and memory regions.

use core::ffi::{c_int, c_uint, c_void};
use std::prelude::rust_2024::*;

use super::table::CBox;
use super::{by_return, enter, null};
use crate::bindings::{ibv_access_flags, ibv_context, ibv_mr, ibv_pd};

#[derive(Debug)]
pub(super) struct Pd {
    pub(super) c: CBox<ibv_pd>,
    pub(super) context: usize,
    /// Regions and queue pairs.
    pub(super) users: usize,
}

#[derive(Debug)]
pub(super) struct Mr {
    pub(super) c: CBox<ibv_mr>,
    pub(super) pd: usize,
    addr: u64,
    iova: u64,
    len: u64,
    access: u32,
}

impl Mr {
    /// Where in memory the range is that a request names, if the region allows it.
    pub(super) fn range(&self, addr: u64, len: u64, access: u32) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        let end = offset.checked_add(len)?;
        let allowed = end <= self.len && self.access & access == access;
        allowed.then(|| self.addr.wrapping_add(offset))
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
    world.pds.of("ibv_reg_mr_iova2", pd).users += 1;
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
    let mr = Mr {
        c,
        pd: pd.addr(),
        addr: addr.expose_provenance() as u64,
        iova,
        len: length as u64,
        access,
    };
    world.mrs.insert(address, mr);
    world.lkeys.insert(lkey, address);
    world.rkeys.insert(rkey, address);
    pointer
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    by_return(enter("ibv_dereg_mr").map(|mut world| {
        let pd = world.mrs.of("ibv_dereg_mr", mr).pd;
        let address = mr.addr();
        world.lkeys.retain(|_, region| *region != address);
        world.rkeys.retain(|_, region| *region != address);
        world.pds.at("ibv_dereg_mr", pd).users -= 1;
        if let Some(mr) = world.mrs.remove(address) {
            mr.c.retire();
        }
    }))
}
