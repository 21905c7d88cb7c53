//! Names of machines and services, as the connection manager looks them up.

use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::ptr;

use verbs::{QpType, sys};

use crate::address::{CAddr, from_c};
use crate::channel::check_connection_manager;
use crate::error::Error;
use crate::port_space::PortSpace;

/// What is wanted of [`address_info`].
#[doc(alias = "rdma_addrinfo")]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressHints {
    /// An address to listen at, instead of one to connect to.
    #[doc(alias = "RAI_PASSIVE")]
    pub passive: bool,
    /// The node is an address and no name: nobody is asked.
    #[doc(alias = "RAI_NUMERICHOST")]
    pub numeric_host: bool,
    /// No routing data is asked for.
    #[doc(alias = "RAI_NOROUTE")]
    pub no_route: bool,
    /// Only IPv4 (`false`) or only IPv6 (`true`) addresses; either if `None`.
    #[doc(alias = "RAI_FAMILY")]
    pub ipv6: Option<bool>,
    /// The port space; that for connections if `None`.
    pub port_space: Option<PortSpace>,
    /// The local address to connect from, which comes back with the result.
    pub source: Option<SocketAddr>,
}

/// An answer of [`address_info`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressInfo {
    /// The local address: where to listen, or from where to connect.
    pub source: Option<SocketAddr>,
    /// The peer's address, unless it was asked for one to listen at.
    pub target: Option<SocketAddr>,
    /// The port space of ids for it.
    pub port_space: PortSpace,
    /// The type of queue pairs for it.
    pub qp_type: QpType,
}

/// Looks up the addresses of `node`, a name or an address, with the port of `service`, a name or a
/// number.
///
/// A name is looked up as the system is configured to, which may ask name servers and has no deadline
/// of its own: do it in a thread of its own, or set [`AddressHints::numeric_host`].
///
/// # Errors
/// [`Error::NameNotResolved`] with the resolver's reason, [`verbs::ErrorKind::InvalidArgument`] when
/// neither is given or one contains a zero byte, [`Error::NoConnectionManager`], or the failed call.
#[doc(alias = "rdma_getaddrinfo")]
pub fn address_info(
    node: Option<&str>,
    service: Option<&str>,
    hints: &AddressHints,
) -> Result<Vec<AddressInfo>, Error> {
    let verb = "rdma_getaddrinfo";
    if node.is_none() && service.is_none() {
        return Err(refused(verb, "neither a node nor a service is named"));
    }
    let c_string = |text: Option<&str>| {
        let c = text.map(CString::new).transpose();
        c.map_err(|_| refused(verb, "a name contains a zero byte"))
    };
    let (c_node, c_service) = (c_string(node)?, c_string(service)?);
    check_connection_manager()?;
    let source = hints.source.map(CAddr::from);
    let raw_hints = hints.to_c(source.as_ref());
    let mut list = ptr::null_mut();
    let pointer = |text: &Option<CString>| text.as_deref().map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the texts end with a zero byte, hints and what they point to are live, and so is the
    // place for the result.
    let ret = unsafe {
        sys::rdma_getaddrinfo(pointer(&c_node), pointer(&c_service), &raw_hints, &mut list)
    };
    match ret {
        0 => {}
        -1 | libc::EAI_SYSTEM => return Err(verbs::Error::last_os(verb).into()),
        code => {
            return Err(Error::NameNotResolved {
                name: [node, service]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" "),
                code,
            });
        }
    }
    let list = List(list);
    Ok(list.read())
}

impl AddressHints {
    /// C's form. It borrows `source`.
    fn to_c(&self, source: Option<&CAddr>) -> sys::rdma_addrinfo {
        let flags = [
            (self.passive, sys::RAI_PASSIVE),
            (self.numeric_host, sys::RAI_NUMERICHOST),
            (self.no_route, sys::RAI_NOROUTE),
            (self.ipv6.is_some(), sys::RAI_FAMILY),
        ];
        let flags = flags
            .into_iter()
            .filter(|(set, _)| *set)
            .fold(0, |all, (_, flag)| all | flag);
        let space = self.port_space.unwrap_or(PortSpace::TCP);
        let qp_type = if space.is_datagram() {
            QpType::UD
        } else {
            QpType::RC
        };
        sys::rdma_addrinfo {
            ai_flags: flags.cast_signed(),
            ai_family: match self.ipv6 {
                Some(true) => libc::AF_INET6,
                Some(false) => libc::AF_INET,
                None => 0,
            },
            ai_qp_type: qp_type.raw().cast_signed(),
            ai_port_space: space.raw().cast_signed(),
            ai_src_len: source.map_or(0, CAddr::len),
            ai_src_addr: source.map_or(ptr::null_mut(), CAddr::as_ptr),
            ..Default::default()
        }
    }
}

/// A list of librdmacm's, freed on drop.
struct List(*mut sys::rdma_addrinfo);

impl List {
    fn read(&self) -> Vec<AddressInfo> {
        let mut infos = Vec::new();
        let mut next = self.0;
        while !next.is_null() {
            // SAFETY: the list is live until the drop, and nobody changes it.
            let info = unsafe { next.read() };
            let address = |addr: *mut libc::sockaddr| {
                if addr.is_null() {
                    return None;
                }
                // SAFETY: C gives a whole address of its family, or none.
                unsafe { from_c(addr) }
            };
            infos.push(AddressInfo {
                source: address(info.ai_src_addr),
                target: address(info.ai_dst_addr),
                port_space: PortSpace::from_raw(info.ai_port_space.cast_unsigned()),
                qp_type: QpType::from_raw(info.ai_qp_type.cast_unsigned()),
            });
            next = info.ai_next;
        }
        infos
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the list came from rdma_getaddrinfo and is freed only here.
            unsafe { sys::rdma_freeaddrinfo(self.0) };
        }
    }
}

/// What a code of the resolver means.
pub(crate) fn reason(code: i32) -> String {
    let text = match code {
        libc::EAI_NONAME => "there is no such name",
        libc::EAI_NODATA => "the name has no address of this kind",
        libc::EAI_AGAIN => "the name servers do not answer now",
        libc::EAI_FAIL => "the name servers refuse to answer",
        libc::EAI_SERVICE => "there is no such service for this port space",
        libc::EAI_FAMILY => "the name has no address of this family",
        libc::EAI_SOCKTYPE => "the port space has no names",
        libc::EAI_MEMORY => "out of memory",
        _ => return format!("code {code} of the resolver"),
    };
    text.to_owned()
}

fn refused(verb: &'static str, detail: &str) -> Error {
    verbs::Error::refused(verb, verbs::ErrorKind::InvalidArgument, detail).into()
}
