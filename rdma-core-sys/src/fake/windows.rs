//! Memory windows.

use core::ffi::c_int;
use std::prelude::rust_2024::*;

use super::qp::Wqe;
use super::table::CBox;
use super::world::World;
use super::{by_return, data, enter, null, violation};
use crate::bindings::{
    ibv_access_flags, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_mw_type, ibv_pd, ibv_qp,
    ibv_wc_status, ibv_wr_opcode,
};
use crate::inline::ibv_inc_rkey;

#[derive(Debug)]
pub(super) struct Mw {
    pub(super) c: CBox<ibv_mw>,
    pub(super) pd: usize,
    pub(super) kind: ibv_mw_type,
    /// The key that the device knows it by: the C field may be ahead of it.
    rkey: u32,
    pub(super) bound: Option<Bound>,
}

/// What a window gives access to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    pub(super) mr: usize,
    addr: u64,
    len: u64,
    access: u32,
    /// The queue pair that a window of type 2 belongs to: type 2B.
    pub(super) qp: Option<usize>,
}

/// What a bind asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bind {
    mw: usize,
    mr: usize,
    pub(super) rkey: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) access: u32,
}

impl Bind {
    /// # Panics
    /// Never; a pointer that SoftRoCE would follow to nowhere ends the process.
    pub(super) fn new(call: &str, mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Self {
        if mw.is_null() || info.mr.is_null() {
            violation(&std::format!(
                "{call} without a window or a region: SoftRoCE's library follows the pointer"
            ));
        }
        Self {
            mw: mw.addr(),
            mr: info.mr.addr(),
            rkey,
            addr: info.addr,
            len: info.length,
            access: info.mw_access_flags,
        }
    }
}

impl World {
    /// Carries a bind out.
    pub(super) fn bind_window(&mut self, qp: usize, bind: &Bind) -> ibv_wc_status {
        match self.try_bind(qp, bind) {
            Some(()) => ibv_wc_status::IBV_WC_SUCCESS,
            None => ibv_wc_status::IBV_WC_MW_BIND_ERR,
        }
    }

    fn try_bind(&mut self, qp: usize, bind: &Bind) -> Option<()> {
        use ibv_access_flags as A;

        let qp_pd = self.qps.find(qp)?.pd;
        let mw = self.mws.find(bind.mw)?;
        let (pd, old) = (mw.pd, mw.rkey);
        let second = mw.kind == ibv_mw_type::IBV_MW_TYPE_2;
        let is_bound = mw.bound.is_some();
        let foreign = self.protection(qp_pd) != self.protection(pd);
        if second && (is_bound || bind.len == 0) || foreign {
            return None;
        }
        if bind.len > 0 {
            let mr = self.region(bind.mr, pd)?;
            let changes = A::IBV_ACCESS_REMOTE_WRITE | A::IBV_ACCESS_REMOTE_ATOMIC;
            if bind.access & changes.0 != 0 {
                mr.range(bind.addr, bind.len, A::IBV_ACCESS_LOCAL_WRITE.0)?;
            }
            mr.range(bind.addr, bind.len, A::IBV_ACCESS_MW_BIND.0)?;
        }
        let rkey = old & !0xff | bind.rkey & 0xff;
        let mw = self.mws.find(bind.mw)?;
        mw.rkey = rkey;
        // An empty window of type 1 is one that is not bound.
        mw.bound = (bind.len > 0).then_some(Bound {
            mr: bind.mr,
            addr: bind.addr,
            len: bind.len,
            access: bind.access,
            qp: second.then_some(qp),
        });
        self.window_keys.remove(&old);
        self.window_keys.insert(rkey, bind.mw);
        Some(())
    }

    /// Takes the access back that a key gives to the peer of a queue pair; `false` when there is none to take back so.
    pub(super) fn invalidate(&mut self, qp: usize, key: u32) -> bool {
        let Some(mw) = self.window_keys.get(&key) else {
            return false;
        };
        let mw = self.mws.at("an invalidation", *mw);
        if mw.bound.is_none_or(|bound| bound.qp != Some(qp)) {
            return false;
        }
        mw.bound = None;
        true
    }

    /// The region behind a window's key, if the key is of a window; and then if the window allows the access.
    pub(super) fn through_window(
        &mut self,
        qp: usize,
        key: u32,
        addr: u64,
        len: u64,
        access: u32,
    ) -> Option<Option<usize>> {
        let pd = self.qps.find(qp)?.pd;
        let mw = self.mws.at("a window's key", *self.window_keys.get(&key)?);
        let allows = |bound: &Bound| {
            let inside = addr
                .checked_sub(bound.addr)
                .and_then(|offset| offset.checked_add(len))
                .is_some_and(|end| end <= bound.len);
            inside && bound.access & access == access && bound.qp.is_none_or(|of| of == qp)
        };
        let (bound, of) = (mw.bound.filter(allows), mw.pd);
        let same = self.protection(of) == self.protection(pd);
        let bound = bound.filter(|_| same);
        Some(bound.map(|bound| bound.mr))
    }

    /// Whether a window of type 2 is bound to a queue pair.
    pub(super) fn has_windows(&self, qp: usize) -> bool {
        self.mws
            .iter()
            .any(|(_, mw)| mw.bound.is_some_and(|bound| bound.qp == Some(qp)))
    }
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    let call = "ibv_alloc_mw";
    let mut world = match enter(call) {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    let context = world.pds.of(call, pd).context;
    if kind != ibv_mw_type::IBV_MW_TYPE_1 && kind != ibv_mw_type::IBV_MW_TYPE_2 {
        return null(libc::EINVAL);
    }
    let handle = world.number();
    let rkey = handle << 8 | 0x33;
    let c = CBox::new(ibv_mw {
        context: world.devices.context(context),
        pd,
        rkey,
        handle,
        type_: kind,
    });
    let pointer = c.as_ptr();
    world.pds.of(call, pd).users += 1;
    let mw = Mw {
        c,
        pd: pd.addr(),
        kind,
        rkey,
        bound: None,
    };
    world.mws.insert(pointer.addr(), mw);
    pointer
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    let call = "ibv_dealloc_mw";
    by_return(enter(call).map(|mut world| {
        world.mws.of(call, mw);
        let address = mw.addr();
        world.window_keys.retain(|_, window| *window != address);
        if let Some(mw) = world.mws.remove(address) {
            world.pds.at(call, mw.pd).users -= 1;
            mw.c.retire();
        }
    }))
}

/// The bind of a window of type 1: a request that the library posts. The program's key changes at once.
pub(super) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    mw_bind: *mut ibv_mw_bind,
) -> c_int {
    let call = "ibv_bind_mw";
    by_return(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a filled struct.
        let asked = unsafe { mw_bind.read() };
        world.mws.of(call, mw);
        // SAFETY: the window is in the table, so it is live.
        let rkey = ibv_inc_rkey(unsafe { (*mw).rkey });
        let bind = Bind::new(call, mw, rkey, &asked.bind_info);
        let state = world.qps.of(call, qp);
        if state.send.is_full() {
            return Err(libc::ENOMEM);
        }
        let wqe = Wqe {
            wr_id: asked.wr_id,
            opcode: ibv_wr_opcode::IBV_WR_BIND_MW.0,
            flags: asked.send_flags,
            bind: Some(bind),
            ..Wqe::default()
        };
        world.put(qp.addr(), wqe);
        data::ring(&mut world, qp.addr())?;
        // SAFETY: the window is live, and binds of one window come one after another.
        unsafe { (*mw).rkey = rkey };
        Ok(())
    }))
}
