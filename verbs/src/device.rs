//! The devices of this machine.

use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::slice;

use rdma_core_sys as sys;

use crate::context::Context;
use crate::error::{Error, ErrorKind, from_pointer};
use crate::flags::open_enum;

open_enum! {
    /// What protocol a device speaks below the verbs.
    #[doc(alias = "ibv_transport_type")]
    TransportType(i32) {
        /// InfiniBand and RoCE.
        INFINIBAND = sys::ibv_transport_type::IBV_TRANSPORT_IB.0, "InfiniBand or RoCE";
        /// iWARP.
        IWARP = sys::ibv_transport_type::IBV_TRANSPORT_IWARP.0, "iWARP";
    }
}

open_enum! {
    /// What a device is in its network.
    #[doc(alias = "ibv_node_type")]
    NodeType(i32) {
        /// Not known to the library.
        UNKNOWN = sys::ibv_node_type::IBV_NODE_UNKNOWN.0, "unknown";
        /// An adapter of InfiniBand or RoCE.
        CA = sys::ibv_node_type::IBV_NODE_CA.0, "InfiniBand channel adapter";
        /// An InfiniBand switch.
        SWITCH = sys::ibv_node_type::IBV_NODE_SWITCH.0, "InfiniBand switch";
        /// An InfiniBand router.
        ROUTER = sys::ibv_node_type::IBV_NODE_ROUTER.0, "InfiniBand router";
        /// An adapter of iWARP.
        RNIC = sys::ibv_node_type::IBV_NODE_RNIC.0, "iWARP NIC";
        /// An adapter of usNIC.
        USNIC = sys::ibv_node_type::IBV_NODE_USNIC.0, "usNIC";
        /// An adapter of usNIC over UDP.
        USNIC_UDP = sys::ibv_node_type::IBV_NODE_USNIC_UDP.0, "usNIC UDP";
        /// A device of another kind, such as EFA.
        UNSPECIFIED = sys::ibv_node_type::IBV_NODE_UNSPECIFIED.0, "unspecified";
    }
}

/// The RDMA devices present when the list was taken.
#[doc(alias = "ibv_get_device_list")]
#[doc(alias = "ibv_free_device_list")]
pub struct DeviceList {
    list: NonNull<*mut sys::ibv_device>,
    length: usize,
}

// SAFETY: the list is memory of ours that no thread changes; its entries are reference-counted in C.
unsafe impl Send for DeviceList {}
// SAFETY: `&DeviceList` only reads the list.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// Takes the list. A machine with no RDMA device gives an empty one.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] when the kernel has no RDMA support loaded.
    pub fn new() -> Result<Self, Error> {
        let mut length = 0;
        // SAFETY: `length` is a valid place for the count.
        let list = unsafe { sys::ibv_get_device_list(&mut length) };
        let list = from_pointer("ibv_get_device_list", list).map_err(|error| {
            if error.errno() == Some(libc::ENOSYS) {
                error.with_kind(ErrorKind::NoDevice)
            } else {
                error
            }
        })?;
        Ok(Self {
            list,
            length: usize::try_from(length).unwrap_or(0),
        })
    }

    /// The devices in the library's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Device<'_>> {
        // SAFETY: the library gave `length` pointers, which live until the list is freed on drop.
        let devices = unsafe { slice::from_raw_parts(self.list.as_ptr(), self.length) };
        devices.iter().map(|&raw| Device {
            raw,
            list: PhantomData,
        })
    }

    /// The number of devices.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The device of that name.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`] names the devices there are.
    pub fn by_name(&self, name: &str) -> Result<Device<'_>, Error> {
        self.iter().find(|d| d.name() == name).ok_or_else(|| {
            let names: Vec<_> = self.iter().map(|d| d.name().to_owned()).collect();
            no_device(&format!(
                "no RDMA device is named {name:?}; there are: {}",
                if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                }
            ))
        })
    }

    /// The first device.
    ///
    /// # Errors
    /// [`ErrorKind::NoDevice`], with how to add a software device.
    pub fn first(&self) -> Result<Device<'_>, Error> {
        self.iter()
            .next()
            .ok_or_else(|| no_device("this machine has no RDMA device"))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list and is freed only here; `Device<'_>`
        // borrows it, and contexts hold their own reference in C.
        unsafe { sys::ibv_free_device_list(self.list.as_ptr()) };
    }
}

impl fmt::Debug for DeviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The error for a machine without the device asked for, with how to get one.
pub(crate) fn no_device(detail: &str) -> Error {
    Error::refused("ibv_get_device_list", ErrorKind::NoDevice, detail).with_hint(
        "add a software device: modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0",
    )
}

/// One device of a [`DeviceList`].
#[doc(alias = "ibv_device")]
#[derive(Clone, Copy)]
pub struct Device<'a> {
    raw: *mut sys::ibv_device,
    list: PhantomData<&'a DeviceList>,
}

impl Device<'_> {
    /// The kernel's name, such as `mlx5_0` or `rxe0`.
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        // SAFETY: the device lives as long as the list borrowed by `self`.
        unsafe { device_name(self.raw) }
    }

    /// The node GUID, first byte first as it is written.
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> u64 {
        // SAFETY: the device lives as long as the list borrowed by `self`.
        u64::from_be(unsafe { sys::ibv_get_device_guid(self.raw) })
    }

    /// What it is in its network: an adapter, as a rule.
    pub fn node_type(&self) -> NodeType {
        // SAFETY: the device lives as long as the list borrowed by `self`; the field is plain data.
        NodeType::from_raw(unsafe { (*self.raw).node_type }.0)
    }

    /// InfiniBand/RoCE or iWARP.
    pub fn transport(&self) -> TransportType {
        // SAFETY: the device lives as long as the list borrowed by `self`; the field is plain data.
        TransportType::from_raw(unsafe { (*self.raw).transport_type }.0)
    }

    /// Opens the device.
    ///
    /// # Errors
    /// The errno of the open, for example EACCES when the files in `/dev/infiniband` are not
    /// readable and writable.
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context, Error> {
        Context::open(self.raw, self.name())
    }
}

impl fmt::Debug for Device<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("transport", &self.transport())
            .finish()
    }
}

/// The name of `device`.
///
/// # Safety
/// `device` is live for `'a`.
pub(crate) unsafe fn device_name<'a>(device: *mut sys::ibv_device) -> &'a str {
    // SAFETY: the caller keeps the device alive.
    let name = unsafe { sys::ibv_get_device_name(device) };
    if name.is_null() {
        return "?";
    }
    // SAFETY: the library returns a NUL-terminated field of the device.
    unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?")
}
