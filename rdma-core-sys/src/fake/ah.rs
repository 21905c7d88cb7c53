//! Address handles, and the addresses in the header of a datagram.

use core::ffi::c_int;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::prelude::rust_2024::*;

use super::table::CBox;
use super::world::World;
use super::{by_errno, by_return, enter, null, violation};
use crate::bindings::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_qp_state, ibv_wc, ibv_wc_flags,
};

#[derive(Debug)]
pub(super) struct Ah {
    pub(super) c: CBox<ibv_ah>,
    pub(super) pd: usize,
    pub(super) attr: AhAttr,
}

/// What a handle says: the union of the C struct cannot be printed.
#[derive(Debug, Clone, Copy)]
pub(super) struct AhAttr {
    pub(super) dgid: [u8; 16],
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// Length of the header before a datagram's bytes.
pub(super) const GRH: usize = 40;

/// The address that a GID stands for on RoCE v2.
pub(super) fn ip_of(gid: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The header as SoftRoCE puts it before a datagram of `len` bytes: of IPv4 in the last 20 bytes.
pub(super) fn header(source: IpAddr, attr: &AhAttr, len: usize) -> [u8; GRH] {
    let mut header = [0; GRH];
    // UDP, BTH, DETH and ICRC lie between the two.
    let carried = u16::try_from(len + 8 + 12 + 8 + 4).unwrap_or(u16::MAX);
    match (source, ip_of(attr.dgid)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let v4 = &mut header[20..];
            (v4[0], v4[1]) = (0x45, attr.traffic_class);
            v4[2..4].copy_from_slice(&(carried + 20).to_be_bytes());
            (v4[8], v4[9]) = (attr.hop_limit, 17);
            v4[12..16].copy_from_slice(&from.octets());
            v4[16..20].copy_from_slice(&to.octets());
            let sum = checksum(v4);
            v4[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            header[0] = 0x60 | attr.traffic_class >> 4;
            header[1] = attr.traffic_class << 4;
            header[4..6].copy_from_slice(&carried.to_be_bytes());
            (header[6], header[7]) = (17, attr.hop_limit);
            header[8..24].copy_from_slice(&gid_of(source));
            header[24..40].copy_from_slice(&attr.dgid);
        }
    }
    header
}

/// The checksum of an IPv4 header.
fn checksum(header: &[u8]) -> u16 {
    let words = header
        .chunks_exact(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !u16::try_from(folded).unwrap_or(0)
}

/// Sender and receiver of a datagram, by its header.
fn parties(header: &[u8; GRH]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| {
        let octets: [u8; 4] = header[at..at + 4].try_into().ok()?;
        Some(IpAddr::V4(Ipv4Addr::from(octets)))
    };
    let v6 = |at: usize| {
        let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    if header[0] >> 4 == 6 {
        Some((v6(8)?, v6(24)?))
    } else if header[20] >> 4 == 4 {
        Some((v4(32)?, v4(36)?))
    } else {
        None
    }
}

impl World {
    fn new_ah(
        &mut self,
        call: &str,
        pd: *mut ibv_pd,
        attr: &ibv_ah_attr,
    ) -> Result<*mut ibv_ah, c_int> {
        let context = self.pds.of(call, pd).context;
        let known = self.devices.ip_at(context, attr.grh.sgid_index.into());
        if attr.is_global != 1 || attr.port_num != 1 || known.is_none() {
            return Err(libc::EINVAL);
        }
        let handle = self.number();
        let c = CBox::new(ibv_ah {
            context: self.devices.context(context),
            pd,
            handle,
        });
        let pointer = c.as_ptr();
        self.pds.of(call, pd).users += 1;
        let attr = AhAttr {
            // SAFETY: every arm of the union is 16 bytes.
            dgid: unsafe { attr.grh.dgid.raw },
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        };
        let ah = Ah {
            c,
            pd: pd.addr(),
            attr,
        };
        self.ahs.insert(pointer.addr(), ah);
        Ok(pointer)
    }

    /// The way back to the sender of a datagram.
    ///
    /// # Safety
    /// - `wc` is a filled completion; `grh` the header of its datagram, or anything where it has none.
    unsafe fn sender(
        &mut self,
        call: &str,
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
    ) -> Result<ibv_ah_attr, c_int> {
        self.devices.check(call, context);
        // SAFETY: the caller gives a filled completion.
        let wc = unsafe { wc.read() };
        let mut attr = ibv_ah_attr {
            dlid: wc.slid,
            sl: wc.sl,
            src_path_bits: wc.dlid_path_bits,
            port_num,
            ..ibv_ah_attr::default()
        };
        if wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 == 0 {
            return Ok(attr);
        }
        // SAFETY: the caller gives the 40 bytes of the header.
        let header = unsafe { grh.cast::<[u8; GRH]>().read() };
        let (from, to) = parties(&header).ok_or(libc::EINVAL)?;
        let index = self
            .devices
            .index_of(context.addr(), to)
            .ok_or(libc::ENODATA)?;
        attr.is_global = 1;
        attr.grh.dgid = ibv_gid { raw: gid_of(from) };
        attr.grh.sgid_index = index;
        attr.grh.hop_limit = 0xff;
        Ok(attr)
    }
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let call = "ibv_create_ah";
    let made = enter(call).and_then(|mut world| {
        // SAFETY: the caller gives a filled struct.
        let attr = unsafe { attr.read() };
        world.new_ah(call, pd, &attr)
    });
    made.unwrap_or_else(null)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    ah_attr: *mut ibv_ah_attr,
) -> c_int {
    let call = "ibv_init_ah_from_wc";
    by_errno(enter(call).and_then(|mut world| {
        // SAFETY: as the caller of this function promised.
        let attr = unsafe { world.sender(call, context, port_num, wc, grh) }?;
        // SAFETY: the caller gives a place for the struct.
        unsafe { ah_attr.write(attr) };
        Ok(())
    }))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port_num: u8,
) -> *mut ibv_ah {
    let call = "ibv_create_ah_from_wc";
    let made = enter(call).and_then(|mut world| {
        let context = world.pds.of(call, pd).context;
        let context = world.devices.context(context);
        // SAFETY: as the caller of this function promised.
        let attr = unsafe { world.sender(call, context, port_num, wc, grh) }?;
        world.new_ah(call, pd, &attr)
    });
    made.unwrap_or_else(null)
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    let call = "ibv_destroy_ah";
    by_return(enter(call).map(|mut world| {
        world.ahs.of(call, ah);
        let address = ah.addr();
        let named = world.qps.iter().any(|(_, qp)| {
            // What is only to be flushed is not looked up.
            let live = qp.state != ibv_qp_state::IBV_QPS_ERR;
            let mut wqes = qp.sends.iter();
            live && wqes.any(|wqe| wqe.datagram.is_some_and(|to| to.ah == address))
        });
        if named {
            violation("ibv_destroy_ah: a request that is not carried out yet names the handle, and SoftRoCE looks it up then");
        }
        if let Some(ah) = world.ahs.remove(address) {
            world.pds.at(call, ah.pd).users -= 1;
            ah.c.retire();
        }
    }))
}
