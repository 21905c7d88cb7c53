//! Lookups of names: addresses and numbers only, as nobody is there to be asked.

use core::ffi::{CStr, c_char, c_int};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::prelude::rust_2024::*;

use libc::sockaddr_storage;

use super::super::table::CBox;
use super::super::{enter, minus_one};
use super::address;
use crate::bindings::{RAI_FAMILY, RAI_PASSIVE, rdma_addrinfo};

/// A list of one answer, with what it points to.
#[derive(Debug)]
pub(in super::super) struct Lookup {
    c: CBox<rdma_addrinfo>,
    addresses: Vec<CBox<sockaddr_storage>>,
}

impl Lookup {
    pub(in super::super) fn retire(self) {
        self.c.retire();
        self.addresses.into_iter().for_each(CBox::retire);
    }
}

/// # Safety
/// - `text` is NULL or ends with a zero byte.
unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller vouches for the text.
    Some(
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned(),
    )
}

/// The address that the names mean, or the resolver's code.
fn look_up(
    node: Option<&str>,
    service: Option<&str>,
    hints: &rdma_addrinfo,
) -> Result<SocketAddr, c_int> {
    let flags = hints.ai_flags.cast_unsigned();
    let v6 = flags & RAI_FAMILY != 0 && hints.ai_family == libc::AF_INET6;
    let ip = match node {
        Some(node) => node.parse::<IpAddr>().map_err(|_| libc::EAI_NONAME)?,
        None if v6 => Ipv6Addr::UNSPECIFIED.into(),
        None => Ipv4Addr::UNSPECIFIED.into(),
    };
    if flags & RAI_FAMILY != 0 && ip.is_ipv6() != v6 {
        return Err(libc::EAI_FAMILY);
    }
    let port = service.map_or(Ok(0), str::parse::<u16>);
    Ok(SocketAddr::new(ip, port.map_err(|_| libc::EAI_SERVICE)?))
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    let mut world = match enter("rdma_getaddrinfo") {
        Ok(world) => world,
        // The resolver's codes are negative, and come through unchanged.
        Err(code) if code < 0 => return code,
        Err(errno) => return minus_one(errno),
    };
    // SAFETY: the caller gives a text or NULL.
    let node = unsafe { text(node) };
    // SAFETY: as above.
    let service = unsafe { text(service) };
    let hints = if hints.is_null() {
        rdma_addrinfo::default()
    } else {
        // SAFETY: the caller gives a filled struct or NULL.
        unsafe { hints.read() }
    };
    let found = match look_up(node.as_deref(), service.as_deref(), &hints) {
        Ok(found) => found,
        Err(code) => return code,
    };
    let mut info = rdma_addrinfo {
        ai_flags: hints.ai_flags,
        ai_qp_type: hints.ai_qp_type,
        ai_port_space: hints.ai_port_space,
        ..Default::default()
    };
    let mut addresses = Vec::new();
    let mut own = |addr: SocketAddr| {
        // SAFETY: plain integers and bytes, for which zero is a value.
        let place = CBox::new(unsafe { core::mem::zeroed::<sockaddr_storage>() });
        let pointer = place.as_ptr();
        // SAFETY: the place was just made and holds the largest address.
        unsafe { address::write(pointer, addr) };
        addresses.push(place);
        pointer.cast::<libc::sockaddr>()
    };
    if hints.ai_flags.cast_unsigned() & RAI_PASSIVE != 0 {
        info.ai_src_addr = own(found);
    } else {
        info.ai_dst_addr = own(found);
        if hints.ai_src_len > 0 {
            // SAFETY: the caller gives a whole address.
            let source = unsafe { address::read(hints.ai_src_addr) };
            info.ai_src_addr = source.map_or(core::ptr::null_mut(), own);
        }
    }
    let c = CBox::new(info);
    let pointer = c.as_ptr();
    world
        .cm
        .lookups
        .insert(pointer.addr(), Lookup { c, addresses });
    // SAFETY: the caller gives a place for the pointer.
    unsafe { res.write(pointer) };
    0
}

/// # Safety
/// - As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let call = "rdma_freeaddrinfo";
    if let Ok(mut world) = enter(call) {
        world.cm.lookups.of(call, res);
        if let Some(lookup) = world.cm.lookups.remove(res.addr()) {
            lookup.retire();
        }
    }
}
