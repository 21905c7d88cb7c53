//! Multicast groups that queue pairs are attached to.

use core::ffi::c_int;
use core::net::IpAddr;

use super::ah::ip_of;
use super::{by_return, enter};
use crate::bindings::{ibv_gid, ibv_qp, ibv_qp_type};

/// A group, by its GID and LID.
pub(super) type Group = ([u8; 16], u16);

/// Whether a GID is a group's: on RoCE v2 that of an IP address, of either version.
pub(super) fn is_group(gid: [u8; 16]) -> bool {
    match ip_of(gid) {
        IpAddr::V4(v4) => v4.is_multicast(),
        IpAddr::V6(v6) => v6.is_multicast(),
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    let call = "ibv_attach_mcast";
    by_return(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a GID, which is 16 bytes.
        let gid = unsafe { gid.cast::<[u8; 16]>().read() };
        let qp = world.qps.of(call, qp);
        if qp.qp_type != ibv_qp_type::IBV_QPT_UD || !is_group(gid) {
            return Err(libc::EINVAL);
        }
        // Attached twice it is attached once.
        if !qp.groups.contains(&(gid, lid)) {
            qp.groups.push((gid, lid));
        }
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    let call = "ibv_detach_mcast";
    by_return(enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a GID, which is 16 bytes.
        let gid = unsafe { gid.cast::<[u8; 16]>().read() };
        let groups = &mut world.qps.of(call, qp).groups;
        let at = groups.iter().position(|&group| group == (gid, lid));
        groups.remove(at.ok_or(libc::EINVAL)?);
        Ok(())
    }))
}
