//! Devices and ports.

use std::net::IpAddr;
use std::process::Command;

use harness::{
    Child, Need, Outcome, Role, Test, WAIT, c_library, c_program, command, device, ensure,
    ensure_eq, test,
};
use rpma::cm::verbs::{
    Context, DeviceList, ErrorKind, LinkLayer, NodeType, PhysicalState, PortCapFlags, PortState,
    sys,
};
use rpma::{Device, Peer};

use super::objects::open;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_port_query_fills_every_byte_as_in_c",
            &[Need::Device, Need::C],
            a_port_query_fills_every_byte,
        ),
        test(
            "what_later_releases_tell_of_a_port_is_there_or_said_to_be_missing",
            &[Need::Device],
            what_later_releases_tell,
        ),
        test(
            "a_softroce_port_says_what_it_is",
            &[Need::Device, Need::SoftRoce],
            a_softroce_port_says_what_it_is,
        ),
        test(
            "a_port_that_does_not_exist_is_refused",
            &[Need::Device],
            a_missing_port_is_refused,
        ),
        test(
            "a_port_that_is_down_is_named_with_its_device_and_state",
            &[Need::Device, Need::Root, Need::SoftRoce, Need::Tool("ip")],
            a_port_that_is_down_is_named,
        ),
        test(
            "without_a_device_the_error_says_how_to_get_one",
            &[Need::Device, Need::C],
            without_a_device,
        ),
        test(
            "without_the_kernels_rdma_part_the_error_says_what_to_load",
            &[Need::Device, Need::Root],
            without_the_kernels_part,
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[
    ("port_down", port_down),
    ("no_device", no_device),
    ("no_kernel_part", no_kernel_part),
];

fn a_port_query_fills_every_byte() -> Outcome {
    let context = open()?;
    let port = device().port;
    let mut filled = std::mem::MaybeUninit::<sys::ibv_port_attr>::uninit();
    // SAFETY: the place is that large.
    unsafe { filled.as_mut_ptr().write_bytes(0xaa, 1) };
    // SAFETY: the context is open, and the place is a whole struct.
    let ret = unsafe { sys::ibv_query_port(context.as_raw(), port, filled.as_mut_ptr()) };
    ensure_eq!(ret, 0, "ibv_query_port");
    // SAFETY: every byte was written above.
    let filled = unsafe { filled.assume_init() };
    ensure!(filled.flags != 0xaa, "flags were not written");
    ensure!(
        filled.port_cap_flags2 != 0xaaaa,
        "port_cap_flags2 was not written"
    );

    let program = Child::start(
        Command::new(c_program("port_attributes")).args([&device().name, &port.to_string()]),
    )?;
    let c = program.finish(WAIT)?.success()?.stdout;
    // Headers later than those of the bindings have more members, but only behind these.
    let known = c
        .get(..2 * size_of::<sys::ibv_port_attr>())
        .ok_or(format!("C's struct is too short: {c}"))?;
    ensure_eq!(hexadecimal(&filled), known, "the struct that C gets");
    ensure_eq!(
        hexadecimal(context.query_port(port)?.as_raw()),
        known,
        "the struct behind PortAttributes"
    );
    Ok(())
}

/// With the library of this machine, whichever it is: what it does not have is no reason to not start.
fn what_later_releases_tell() -> Outcome {
    let context = open()?;
    let raw = context.as_raw();
    for port in 1..=context.attributes().port_count() {
        let mut filled = std::mem::MaybeUninit::<sys::ibv_port_attr_v49>::uninit();
        // SAFETY: the place is a whole struct.
        unsafe { filled.as_mut_ptr().write_bytes(0xaa, 1) };
        // SAFETY: the context is open, and the place is a whole struct.
        let ret = unsafe { sys::ibv_query_port_v49(raw, port, filled.as_mut_ptr()) };
        ensure_eq!(ret, 0, "ibv_query_port_v49");
        // SAFETY: every byte was written above, and each is a value of integers.
        let newer = unsafe { filled.assume_init() };
        let older = context.query_port(port)?;
        let older = older.as_raw();
        ensure_eq!(newer.state, older.state, "state");
        ensure_eq!(newer.active_speed, older.active_speed, "active_speed");
        ensure_eq!(newer.port_cap_flags2, older.port_cap_flags2, "flags");
        ensure!(
            newer.active_speed_ex != 0xaaaa_aaaa,
            "active_speed_ex was not written"
        );

        let mut speed = 0;
        // SAFETY: the context is open, and the place is valid.
        let ret = unsafe { sys::ibv_query_port_speed(raw, port.into(), &mut speed) };
        ensure!(
            ret == 0 || is_unsupported(ret),
            "ibv_query_port_speed: {ret}"
        );
    }
    let mut caps = sys::ibv_comp_cntr_caps::default();
    // SAFETY: the context is open, and the place is valid.
    let ret = unsafe { sys::ibv_query_comp_cntr_caps(raw, &mut caps) };
    ensure!(
        ret == 0 || is_unsupported(ret),
        "ibv_query_comp_cntr_caps: {ret}"
    );

    let mut wanted = sys::ibv_dmah_init_attr::default();
    // SAFETY: the context is open, and the struct is filled.
    let handle = unsafe { sys::ibv_alloc_dmah(raw, &mut wanted) };
    let errno = std::io::Error::last_os_error().raw_os_error();
    if handle.is_null() {
        ensure!(
            errno.is_some_and(is_unsupported),
            "ibv_alloc_dmah: {errno:?}"
        );
    } else {
        // SAFETY: the handle is live and not used again.
        let ret = unsafe { sys::ibv_dealloc_dmah(handle) };
        ensure_eq!(ret, 0, "ibv_dealloc_dmah");
    }
    Ok(())
}

/// Whether library, kernel or provider said that they do not have it.
fn is_unsupported(errno: i32) -> bool {
    [libc::EOPNOTSUPP, libc::EPROTONOSUPPORT, libc::ENOSYS].contains(&errno)
}

/// The bytes of the struct, which has no padding.
fn hexadecimal(attributes: &sys::ibv_port_attr) -> String {
    let bytes: *const u8 = std::ptr::from_ref(attributes).cast();
    (0..size_of::<sys::ibv_port_attr>())
        .map(|n| {
            let byte = bytes.wrapping_add(n);
            // SAFETY: inside the struct, all of whose bytes were written.
            format!("{:02x}", unsafe { byte.read() })
        })
        .collect()
}

fn a_softroce_port_says_what_it_is() -> Outcome {
    let list = DeviceList::new()?;
    let node = list.by_name(&device().name)?.node_type();
    ensure_eq!(node, NodeType::CA, "node");
    let port = open()?.query_port(device().port)?;
    ensure_eq!(port.link_layer(), LinkLayer::ETHERNET, "link layer");
    ensure_eq!(port.physical_state(), PhysicalState::LINK_UP, "link");
    ensure!(port.active_mtu() <= port.max_mtu(), "{port:?}");
    ensure_eq!(port.lid(), 0, "LID");
    ensure_eq!(port.pkey_table_len(), 1, "partition keys");
    ensure!(port.active_lanes().is_some(), "lanes");
    ensure!(
        port.capabilities().contains(PortCapFlags::CM_SUP),
        "{:?}",
        port.capabilities()
    );
    Ok(())
}

fn a_missing_port_is_refused() -> Outcome {
    let context = open()?;
    for port in [0, context.attributes().port_count() + 1, u8::MAX] {
        let error = context
            .query_port(port)
            .err()
            .ok_or(format!("port {port} exists"))?;
        ensure!(
            error.to_string().contains(&format!("port {port}")),
            "{error}"
        );
        ensure_eq!(error.errno(), Some(libc::EINVAL), "port {port}");
    }
    Ok(())
}

/// A SoftRoCE device of a test's own, on an interface of its own that is down at first; both are
/// removed when dropped. To be opened in another process: this one would keep it open for good.
pub(crate) struct OwnDevice {
    interface: String,
    device: String,
}

const DOWN: &str = "down";

impl OwnDevice {
    /// The name of the device that the test `name` makes.
    pub(crate) fn device(name: &str) -> String {
        format!("rpma{name}rxe")
    }

    /// The name of its interface.
    pub(super) fn interface(name: &str) -> String {
        format!("rpma{name}")
    }

    pub(super) fn new(name: &str) -> Result<Self, harness::Failed> {
        let this = Self {
            interface: Self::interface(name),
            device: Self::device(name),
        };
        command("ip", &["link", "add", &this.interface, "type", "dummy"])?;
        this.add()?;
        Ok(this)
    }

    /// On an interface that is up, with packets of `mtu` bytes, and has the address `ip` before the
    /// device is added.
    pub(crate) fn with_address(name: &str, ip: IpAddr, mtu: u32) -> Result<Self, harness::Failed> {
        let this = Self {
            interface: Self::interface(name),
            device: Self::device(name),
        };
        let interface = this.interface.as_str();
        command("ip", &["link", "add", interface, "type", "dummy"])?;
        command("ip", &["link", "set", interface, "mtu", &mtu.to_string()])?;
        command(
            "ip",
            &["addr", "add", &format!("{ip}/24"), "dev", interface],
        )?;
        command("ip", &["link", "set", interface, "up"])?;
        this.add()?;
        Ok(this)
    }

    fn add(&self) -> Outcome {
        let softroce = ["type", "rxe", "netdev", &self.interface];
        command(
            "rdma",
            &[&["link", "add", self.device.as_str()], &softroce[..]].concat(),
        )
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        let _ = command("rdma", &["link", "delete", &self.device]);
        let _ = command("ip", &["link", "delete", &self.interface]);
    }
}

fn a_port_that_is_down_is_named() -> Outcome {
    let _down = OwnDevice::new(DOWN)?;
    Child::role("port_down", "", &[])?.finish(WAIT)?.success()?;
    Ok(())
}

fn port_down() -> Outcome {
    let name = OwnDevice::device(DOWN);
    let context: Context = DeviceList::new()?.by_name(&name)?.open()?;
    ensure_eq!(context.query_port(1)?.state(), PortState::DOWN, "state");
    let error = context.active_port(1).err().ok_or("the port is active")?;
    ensure_eq!(error.kind(), ErrorKind::PortDown, "{error}");
    let text = error.to_string();
    ensure!(
        text.contains("port 1") && text.contains(&name) && text.contains("down"),
        "{text}"
    );
    ensure!(error.hint().is_some(), "no hint");

    let devices = Device::list()?;
    let device = devices
        .iter()
        .find(|device| device.name() == name)
        .ok_or("not in the list of devices")?;
    let error = Peer::new(device)
        .err()
        .ok_or("a peer on a port that is down")?;
    ensure_eq!(error.kind(), rpma::ErrorKind::PortDown, "{error}");
    ensure!(error.to_string().contains(&name), "{error}");
    Ok(())
}

fn without_a_device() -> Outcome {
    let library = c_library("fault");
    let environment = [
        ("LD_PRELOAD", library.as_os_str()),
        ("RPMA_FAULT_NO_DEVICE", "1".as_ref()),
    ];
    Child::role("no_device", "", &environment)?
        .finish(WAIT)?
        .success()?;
    Ok(())
}

fn no_device() -> Outcome {
    let list = DeviceList::new()?;
    ensure!(list.is_empty(), "there is a device: {list:?}");
    let error = list.first().err().ok_or("there is a first device")?;
    ensure_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    ensure!(
        error.hint().unwrap_or_default().contains("rdma link add"),
        "{:?}",
        error.hint()
    );
    let error = list
        .by_name("none")
        .err()
        .ok_or("there is a device named none")?;
    ensure_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    let error = Device::list().err().ok_or("there are devices")?;
    ensure_eq!(error.kind(), rpma::ErrorKind::NoDevice, "{error}");
    ensure!(
        error.hint().unwrap_or_default().contains("rdma link add"),
        "{:?}",
        error.hint()
    );
    Ok(())
}

fn without_the_kernels_part() -> Outcome {
    Child::role("no_kernel_part", "", &[])?
        .finish(WAIT)?
        .success()?;
    Ok(())
}

/// Hides what the modules ib_uverbs and rdma_ucm offer, from this process alone.
fn no_kernel_part() -> Outcome {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    // SAFETY: the process has one thread, and none of its descriptors is shared.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?;
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    for path in ["/sys/class/infiniband_verbs", "/dev/infiniband"] {
        mount(
            "none",
            path,
            "tmpfs",
            MountFlags::empty(),
            None::<&std::ffi::CStr>,
        )?;
    }
    // The library gives no list or an empty one, depending on its age.
    let error = DeviceList::new()
        .and_then(|list| list.first().map(drop))
        .err()
        .ok_or("there is a device")?;
    ensure_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    ensure!(
        error.hint().unwrap_or_default().contains("modprobe"),
        "{:?}",
        error.hint()
    );
    let error = Device::list().err().ok_or("there are devices")?;
    ensure_eq!(error.kind(), rpma::ErrorKind::NoDevice, "{error}");
    ensure!(
        error.to_string().contains("/dev/infiniband/rdma_cm"),
        "{error}"
    );
    ensure!(
        error.hint().unwrap_or_default().contains("rdma_ucm"),
        "{:?}",
        error.hint()
    );
    Ok(())
}
