//! Regions changed in place, and regions of nothing.

use core::ffi::{c_int, c_void};
use core::ptr;
use std::prelude::rust_2024::*;

use super::super::objects::Mr;
use super::super::{enter, null};
use crate::bindings::*;

pub(super) fn offer(table: &mut verbs_context) {
    table.alloc_null_mr = Some(alloc_null_mr);
}

unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    let call = "ibv_alloc_null_mr";
    let mut world = match enter(call) {
        Ok(world) => world,
        Err(errno) => return null(errno),
    };
    let context = world.pds.of(call, pd).context;
    world.optional.note(call, String::new());
    // No byte of it can be reached here, since its length for the fake is 0.
    Mr::insert(
        &mut world,
        context,
        pd,
        (ptr::null_mut(), usize::MAX),
        Mr::NOTHING,
    )
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    use ibv_rereg_mr_err_code as Code;
    use ibv_rereg_mr_flags as Flag;

    let call = "ibv_rereg_mr";
    let answer = |code: Code, errno: c_int| {
        crate::inline::set_errno(errno);
        code.0
    };
    let mut world = match enter(call) {
        Ok(world) => world,
        Err(errno) => return answer(Code::IBV_REREG_MR_ERR_CMD, errno),
    };
    let old = world.mrs.of(call, mr).pd;
    let context = world.pds.at(call, old).context;
    world.optional.note(
        call,
        std::format!(
            "flags={flags} pd={} addr={:#x} length={length} access={access:#x}",
            !pd.is_null(),
            addr.addr()
        ),
    );
    if !world.offers(context) {
        // As the library makes of a provider without the operation.
        return answer(Code::IBV_REREG_MR_ERR_CMD, libc::EOPNOTSUPP);
    }
    let (code, errno) = world.optional.rereg.take().unwrap_or((0, 0));
    match Code(code) {
        Code::IBV_REREG_MR_ERR_INPUT | Code::IBV_REREG_MR_ERR_DONT_FORK_NEW => {
            return answer(Code(code), errno);
        }
        Code(0) | Code::IBV_REREG_MR_ERR_DO_FORK_OLD => {}
        unusable => {
            let address = mr.addr();
            world.lkeys.retain(|_, region| *region != address);
            world.rkeys.retain(|_, region| *region != address);
            return answer(unusable, errno);
        }
    }
    let has = |flag: Flag| flags.cast_unsigned() & flag.0 != 0;
    if has(Flag::IBV_REREG_MR_CHANGE_PD) {
        world.pds.of(call, pd).users += 1;
        world.pds.at(call, old).users -= 1;
    }
    let region = world.mrs.of(call, mr);
    if has(Flag::IBV_REREG_MR_CHANGE_PD) {
        region.pd = pd.addr();
        // SAFETY: the region is in the table, so it is live.
        unsafe { (*mr).pd = pd };
    }
    if has(Flag::IBV_REREG_MR_CHANGE_TRANSLATION) {
        region.set_memory(addr, length);
        // SAFETY: the region is in the table, so it is live.
        unsafe { (*mr).addr = addr };
        // SAFETY: as above.
        unsafe { (*mr).length = length };
    }
    if has(Flag::IBV_REREG_MR_CHANGE_ACCESS) {
        region.set_access(access.cast_unsigned());
    }
    answer(Code(code), errno)
}
