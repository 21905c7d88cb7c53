//! An open device: the root of every chain of handles.

use std::any::Any;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_core_sys as sys;

use crate::async_event::AsyncEvents;
use crate::attributes::{DeviceAttributes, ExtendedAttributes};
use crate::device::{TransportType, device_name};
use crate::error::{Error, ErrorKind, from_pointer, from_return, last_errno};
use crate::port::{Gid, PortAttributes, PortState};
use crate::process::Origin;

/// An open device. Cloning gives another handle to the same one.
///
/// Every object made from it holds it open.
#[doc(alias = "ibv_context")]
#[doc(alias = "ibv_close_device")]
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::ibv_context>,
    origin: Origin,
    name: String,
    transport: TransportType,
    limits: DeviceAttributes,
    owner: Owner,
}

/// Who closes the device.
enum Owner {
    /// We opened it.
    Us,
    /// Somebody else did; dropping this says that we are done.
    #[expect(dead_code, reason = "held only to be dropped")]
    Other(Arc<dyn Any + Send + Sync>),
}

// SAFETY: a context may be used from any thread (ibv_open_device(3)), and the owner is Send + Sync.
unsafe impl Send for Inner {}
// SAFETY: the calls that take a context lock in C; the other fields never change.
unsafe impl Sync for Inner {}

impl Context {
    pub(crate) fn open(device: *mut sys::ibv_device, name: &str) -> Result<Self, Error> {
        check_environment()?;
        let origin = Origin::current("ibv_open_device")?;
        // SAFETY: the caller's device list keeps `device` alive.
        let raw = unsafe { sys::ibv_open_device(device) };
        let raw = from_pointer("ibv_open_device", raw)
            .map_err(|error| error.with_detail(format!("device {name}")))?;
        // SAFETY: `raw` was just opened; from here on `Context` closes it.
        unsafe { Self::build(raw, origin, Owner::Us) }
    }

    /// Wraps a context that somebody else opened and will close, such as librdmacm.
    ///
    /// `owner` is dropped when the last object made from this context is gone.
    ///
    /// # Errors
    /// The device cannot be queried, or the environment makes destroys unreliable
    /// ([`ErrorKind::Environment`]).
    ///
    /// # Safety
    /// - `raw` is an open context, and stays open as long as `owner` is not dropped.
    pub unsafe fn from_raw(
        raw: NonNull<sys::ibv_context>,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, Error> {
        check_environment()?;
        let origin = Origin::current("ibv_open_device")?;
        // SAFETY: the caller keeps the context open as long as the owner lives.
        unsafe { Self::build(raw, origin, Owner::Other(owner)) }
    }

    /// Takes over a context that other code has opened, to close it when the last object made from
    /// it is gone.
    ///
    /// # Errors
    /// The environment makes destroys unreliable ([`ErrorKind::Environment`]): the context is still
    /// the caller's. The device cannot be queried: the context is closed.
    ///
    /// # Safety
    /// - `raw` is an open context that nobody else closes or uses once this handle and what is
    ///   made from it are gone.
    /// - Objects that other code has made from it are destroyed before that, or handed over by the
    ///   `from_raw` of their types.
    pub unsafe fn from_raw_owned(raw: NonNull<sys::ibv_context>) -> Result<Self, Error> {
        check_environment()?;
        let origin = Origin::current("ibv_open_device")?;
        // SAFETY: the caller gives the open context over.
        unsafe { Self::build(raw, origin, Owner::Us) }
    }

    /// # Safety
    /// `raw` is open, and for `Owner::Us` nobody else closes it.
    unsafe fn build(
        raw: NonNull<sys::ibv_context>,
        origin: Origin,
        owner: Owner,
    ) -> Result<Self, Error> {
        // SAFETY: `raw` is open, so its device pointer is a live, read-only field.
        let device = unsafe { (*raw.as_ptr()).device };
        // SAFETY: an open context keeps its device alive.
        let name = unsafe { device_name(device) }.to_owned();
        // SAFETY: as above; the transport is plain data that never changes.
        let transport = TransportType::from_raw(unsafe { (*device).transport_type }.0);
        // The guard exists before the query, so that a failing query closes what we opened.
        let mut inner = Inner {
            raw,
            origin,
            name,
            transport,
            limits: DeviceAttributes::zeroed(),
            owner,
        };
        inner.limits = query_device(raw)?;
        Ok(Self(Arc::new(inner)))
    }

    /// The kernel's name of the device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// InfiniBand/RoCE or iWARP.
    pub fn transport(&self) -> TransportType {
        self.0.transport
    }

    /// The device's limits, as they were when it was opened.
    #[doc(alias = "ibv_query_device")]
    pub fn attributes(&self) -> &DeviceAttributes {
        &self.0.limits
    }

    /// What the device offers beyond [`attributes`](Self::attributes), asked for now.
    ///
    /// Where provider or kernel do not know the query, the plain attributes are in it and the rest
    /// is 0, as in a device that offers nothing more.
    ///
    /// # Errors
    /// The errno of the call.
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_extended(&self) -> Result<ExtendedAttributes, Error> {
        let verb = "ibv_query_device_ex";
        let raw = self.raw_checked(verb)?;
        let mut attributes = ExtendedAttributes::zeroed();
        // SAFETY: the context is open, no input is a valid input, and the place is of the size of
        // this version's struct, which the call is told.
        let ret = unsafe { sys::ibv_query_device_ex(raw, ptr::null(), attributes.place()) };
        from_return(verb, ret).map_err(|e| e.with_detail(format!("device {}", self.name())))?;
        Ok(attributes)
    }

    /// What port `port` (from 1) is and can do now.
    ///
    /// # Errors
    /// EINVAL for a port that does not exist.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, Error> {
        let raw = self.raw_checked("ibv_query_port")?;
        let mut attributes = MaybeUninit::<sys::ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and the place is of the size of this version's struct,
        // which the call is told.
        let ret = unsafe { sys::ibv_query_port(raw, port, attributes.as_mut_ptr()) };
        from_return("ibv_query_port", ret)
            .map_err(|e| e.with_detail(format!("device {}, port {port}", self.name())))?;
        Ok(PortAttributes {
            // SAFETY: zeroed before the call, and every bit pattern is a valid struct of integers.
            raw: unsafe { attributes.assume_init() },
        })
    }

    /// The attributes of port `port` if traffic can flow.
    ///
    /// # Errors
    /// [`ErrorKind::PortDown`] names device, port and state.
    pub fn active_port(&self, port: u8) -> Result<PortAttributes, Error> {
        let attributes = self.query_port(port)?;
        if attributes.state() == PortState::ACTIVE {
            return Ok(attributes);
        }
        Err(Error::refused(
            "ibv_query_port",
            ErrorKind::PortDown,
            format!(
                "port {port} of device {} is {}, not active",
                self.name(),
                attributes.state()
            ),
        )
        .with_hint("bring the network interface or the link up (ip link set DEV up)"))
    }

    /// The GIDs of port `port`, with their index; empty slots are left out.
    ///
    /// # Errors
    /// EINVAL for a port that does not exist.
    #[doc(alias = "ibv_query_gid")]
    pub fn gids(&self, port: u8) -> Result<Vec<(u32, Gid)>, Error> {
        let entries = self.query_port(port)?.gid_table_len();
        let mut gids = Vec::new();
        for index in 0..entries {
            let mut gid = MaybeUninit::<sys::ibv_gid>::zeroed();
            let c_index = i32::try_from(index).unwrap_or(i32::MAX);
            // SAFETY: the context is open and `gid` is a place for 16 bytes.
            let ret = unsafe { sys::ibv_query_gid(self.as_raw(), port, c_index, gid.as_mut_ptr()) };
            if ret != 0 {
                match last_errno() {
                    // An entry that went away since the table was measured.
                    libc::ENODATA | libc::EINVAL | libc::ENOENT => continue,
                    errno => return Err(Error::from_errno("ibv_query_gid", errno)),
                }
            }
            // SAFETY: zeroed before the call, and any 16 bytes are a valid GID.
            let gid = unsafe { gid.assume_init() };
            // SAFETY: every bit pattern of the union is 16 bytes.
            let gid = Gid(unsafe { gid.raw });
            if !gid.is_zero() {
                gids.push((index, gid));
            }
        }
        Ok(gids)
    }

    /// Entry `index` of the partition key table of port `port`, in host order.
    ///
    /// # Errors
    /// EINVAL for an index or a port that does not exist.
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16, Error> {
        let verb = "ibv_query_pkey";
        let raw = self.raw_checked(verb)?;
        let mut key = 0;
        // SAFETY: the context is open, and the place is valid.
        let ret = unsafe { sys::ibv_query_pkey(raw, port, index.into(), &mut key) };
        from_return(verb, ret)
            .map_err(|e| e.with_detail(format!("device {}, port {port}, {index}", self.name())))?;
        Ok(u16::from_be(key))
    }

    /// The index of the partition key `key` (host order) in the table of port `port`.
    ///
    /// # Errors
    /// An errno when the key is not in the table.
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkey_index(&self, port: u8, key: u16) -> Result<u16, Error> {
        let verb = "ibv_get_pkey_index";
        let raw = self.raw_checked(verb)?;
        // SAFETY: the context is open.
        let index = unsafe { sys::ibv_get_pkey_index(raw, port, key.to_be()) };
        u16::try_from(index).map_err(|_| {
            Error::last_os(verb)
                .with_detail(format!("device {}, port {port}, key {key:#x}", self.name()))
        })
    }

    /// The device's asynchronous events, for one reader: each event is got by one only.
    ///
    /// Sets the device's event descriptor to non-blocking, also for other code that reads it.
    ///
    /// # Errors
    /// The errno of `fcntl`.
    pub fn async_events(&self) -> Result<AsyncEvents, Error> {
        AsyncEvents::new(self.clone())
    }

    /// The C context, for calls that this crate does not have.
    ///
    /// It is open as long as a clone of this handle lives. It must not be closed.
    pub fn as_raw(&self) -> *mut sys::ibv_context {
        self.0.raw.as_ptr()
    }

    /// The context, for the call `verb`, unless this is a forked child.
    #[inline]
    pub(crate) fn raw_checked(&self, verb: &'static str) -> Result<*mut sys::ibv_context, Error> {
        self.0.origin.check(verb)?;
        Ok(self.as_raw())
    }

    pub(crate) fn origin(&self) -> Origin {
        self.0.origin
    }
}

impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }
}

impl Eq for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.0.name)
            .field("transport", &self.0.transport)
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Owner::Us = self.owner
            && self.origin.is_current()
        {
            // SAFETY: we opened it, every object made from it held a clone and is gone.
            let _always_0 = unsafe { sys::ibv_close_device(self.raw.as_ptr()) };
        }
    }
}

fn query_device(raw: NonNull<sys::ibv_context>) -> Result<DeviceAttributes, Error> {
    let mut attributes = DeviceAttributes::zeroed();
    // SAFETY: the context is open and the place is a whole ibv_device_attr.
    let ret = unsafe { sys::ibv_query_device(raw.as_ptr(), attributes.place()) };
    from_return("ibv_query_device", ret)?;
    Ok(attributes)
}

/// Refuses the one setting under which a successful destroy no longer means "nobody uses it".
fn check_environment() -> Result<(), Error> {
    const NAME: &str = "RDMAV_ALLOW_DISASSOC_DESTROY";
    match std::env::var_os(NAME) {
        None => Ok(()),
        Some(_) => Err(Error::refused(
            "ibv_open_device",
            ErrorKind::Environment,
            format!("the environment variable {NAME} is set, under which destroys do not wait"),
        )
        .with_hint(format!("unset {NAME}"))),
    }
}
