//! Which RDMA devices there are, and which of them an address belongs to.

use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use verbs::{Context, Deadline, sys};

use crate::connect::{ConnectOptions, Resolving};
use crate::error::Error;
use crate::id::Id;
use crate::port_space::PortSpace;
use crate::source::OwnChannel;

/// The contexts of librdmacm that were met so far.
///
/// librdmacm closes the context of a vanished device and frees its own protection domain with the
/// last id of a device. A list from `rdma_get_devices` that is never freed keeps both from
/// happening under our objects; it is taken again only when a new device appears.
static KNOWN: Mutex<Known> = Mutex::new(Known {
    contexts: Vec::new(),
    lists: Vec::new(),
});

struct Known {
    contexts: Vec<Context>,
    /// The lists that pin them, kept where a leak checker sees that they are kept.
    lists: Vec<DeviceList>,
}

/// A list of `rdma_get_devices` that is never freed.
#[expect(dead_code, reason = "kept, not used")]
struct DeviceList(NonNull<*mut sys::ibv_context>);

// SAFETY: the pointer is only kept.
unsafe impl Send for DeviceList {}

/// The handle for a context of librdmacm.
pub(crate) fn context_of(raw: NonNull<sys::ibv_context>) -> Result<Context, Error> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let find = |known: &[Context]| known.iter().find(|c| c.as_raw() == raw.as_ptr()).cloned();
    if let Some(context) = find(&known.contexts) {
        return Ok(context);
    }
    learn(&mut known)?;
    find(&known.contexts).ok_or_else(|| {
        verbs::Error::refused(
            "rdma_get_devices",
            verbs::ErrorKind::NoDevice,
            "the device of the id is not among the RDMA devices",
        )
        .into()
    })
}

/// Every RDMA device that the connection manager can use.
///
/// # Errors
/// [`Error::NoConnectionManager`] when the kernel's part is not loaded, and
/// [`verbs::ErrorKind::NoDevice`] when there is no device.
#[doc(alias = "rdma_get_devices")]
pub fn devices() -> Result<Vec<Context>, Error> {
    crate::channel::check_connection_manager()?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    learn(&mut known)
}

/// Pins all devices, adds the new ones to `known`, and returns those that are there now.
fn learn(known: &mut Known) -> Result<Vec<Context>, Error> {
    let mut count = 0;
    // SAFETY: `count` is a valid place.
    let list = unsafe { sys::rdma_get_devices(&mut count) };
    if list.is_null() {
        let error = verbs::Error::last_os("rdma_get_devices");
        // Anything but "there are none", such as a lack of memory or descriptors, is said as it is.
        if !matches!(
            error.errno(),
            None | Some(libc::ENODEV | libc::ENOSYS | libc::ENOENT)
        ) {
            return Err(error.into());
        }
    }
    let count = usize::try_from(count).unwrap_or(0);
    if list.is_null() || count == 0 {
        if !list.is_null() {
            // SAFETY: an empty list pins nothing and may be freed.
            unsafe { sys::rdma_free_devices(list) };
        }
        return Err(verbs::Error::refused(
            "rdma_get_devices",
            verbs::ErrorKind::NoDevice,
            "this machine has no RDMA device",
        )
        .with_hint(
            "add a software device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
        )
        .into());
    }
    // SAFETY: the library gave `count` pointers.
    let raws = unsafe { std::slice::from_raw_parts(list, count) };
    let mut present = Vec::with_capacity(count);
    let (mut pinned_new, mut failure) = (false, None);
    for raw in raws.iter().filter_map(|raw| NonNull::new(*raw)) {
        let context = match known.contexts.iter().find(|c| c.as_raw() == raw.as_ptr()) {
            Some(context) => context.clone(),
            None => {
                // SAFETY: the list, which is not freed once it names a new device, keeps the
                // context open for the rest of the process.
                match unsafe { Context::from_raw(raw, Arc::new(())) } {
                    Ok(context) => {
                        pinned_new = true;
                        known.contexts.push(context.clone());
                        context
                    }
                    // One device that does not answer must not hide the others.
                    Err(error) => {
                        failure = Some(error);
                        continue;
                    }
                }
            }
        };
        present.push(context);
    }
    match NonNull::new(list) {
        Some(list) if pinned_new => known.lists.push(DeviceList(list)),
        // SAFETY: an earlier list pins the same devices, and nothing refers to this one.
        _ => unsafe { sys::rdma_free_devices(list) },
    }
    match failure {
        Some(error) if present.is_empty() => Err(error.into()),
        _ => Ok(present),
    }
}

/// The address `local` of a device as its one interface has it, with the scope that a link-local one
/// needs; `None` when there is no such interface, or several.
pub(crate) fn interface_address(context: &Context, local: SocketAddr) -> Option<SocketAddr> {
    let entries = context.gid_table().ok()?;
    let mut interfaces: Vec<u32> = entries
        .iter()
        .filter(|entry| entry.interface != 0 && entry.gid.ip() == local.ip())
        .map(|entry| entry.interface)
        .collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    match (local, &interfaces[..]) {
        (SocketAddr::V6(mut v6), [interface]) => {
            v6.set_scope_id(*interface);
            Some(v6.into())
        }
        _ => None,
    }
}

/// The device that has the local address `addr`, whose port does not matter. A link-local address
/// needs its scope.
///
/// # Errors
/// [`Error::NoSuchAddress`] when no RDMA device has it; a wildcard or loopback address never does.
#[doc(alias = "rdma_bind_addr")]
pub fn device_of_local(mut addr: SocketAddr) -> Result<Context, Error> {
    addr.set_port(0);
    let events = OwnChannel::new()?;
    let id = Id::new(PortSpace::TCP, &events.home(), None)?;
    id.bind(addr)?;
    id.context()?.ok_or(Error::NoSuchAddress { addr })
}

/// The device that leads to `peer`.
///
/// # Errors
/// [`Error::AddressNotResolved`] or [`Error::RouteNotResolved`] when none does,
/// [`Error::TimedOut`] once the deadline has passed.
#[doc(alias = "rdma_resolve_addr")]
pub fn device_of_remote(peer: SocketAddr, deadline: Deadline) -> Result<Context, Error> {
    let resolved = Resolving::start(peer, &ConnectOptions::default(), deadline)?.wait()?;
    Ok(resolved.context().clone())
}
