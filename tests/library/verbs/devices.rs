//! Devices as they are listed, with other sizes of packets, and just added.

use std::net::IpAddr;
use std::time::Duration;

use harness::{
    Child, Failed, Need, Outcome, Role, SECOND, Test, WAIT, completed, device, ensure, ensure_eq,
    pattern, phase, role_argument, rounds, test,
};
use rpma::cm::verbs::{
    AccessFlags, Address, Context, Deadline, DeviceList, ErrorKind, GidReason, PathMtu,
    ProtectionDomain, QpState, QpType, RemoteAddr, SendRequest, TransportType,
};
use rpma::{
    ConnectionConfig, ConnectionRequest, Device, Endpoint, LocalRegion, Peer, PrivateData, Usage,
};

use super::by_hand::End;
use super::objects::open;
use super::ports::OwnDevice;
use crate::raw::Buffer;

pub(crate) fn tests() -> Vec<Test> {
    let own_device = [Need::Device, Need::Root, Need::SoftRoce, Need::Tool("ip")];
    vec![
        test(
            "a_device_in_the_list_is_as_the_kernel_describes_it",
            &[Need::Device],
            listed,
        ),
        test("the_best_gid_of_a_port_connects", &[Need::Device], best_gid),
        test(
            "the_path_mtu_is_no_larger_than_the_port_allows",
            &own_device,
            largest_mtu,
        ),
        test(
            "a_device_just_added_works_as_soon_as_it_has_its_address",
            &own_device,
            just_added,
        )
        .limit(120),
    ]
}

pub(crate) const ROLES: &[Role] = &[("just_added", on_a_new_device)];

fn listed() -> Outcome {
    let list = DeviceList::new()?;
    let name = device().name.as_str();
    let found = list.by_name(name)?;
    ensure_eq!(found.name(), name, "name");
    ensure_eq!(found.transport(), TransportType::INFINIBAND, "transport");
    let path = format!("/sys/class/infiniband/{name}/node_guid");
    let text = std::fs::read_to_string(&path)?;
    let guid = u64::from_str_radix(&text.trim().replace(':', ""), 16)?;
    ensure_eq!(found.guid(), guid, "{path}");
    let names: Vec<_> = list.iter().map(|device| device.name().to_owned()).collect();
    ensure!(names.iter().any(|n| n == name), "{names:?}");
    ensure_eq!(list.len(), names.len(), "devices");
    let error = list.by_name("no such").err().ok_or("a device of no name")?;
    ensure_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    ensure!(error.to_string().contains(name), "{error}");
    // Opened twice it is two devices for the library, each closed on its own and after the list.
    let (one, two) = (found.open()?, found.open()?);
    drop(list);
    ensure!(one != two, "one device handle");
    drop(one);
    ensure_eq!(two.name(), name, "name");
    two.query_port(device().port)?;
    // The table entry by entry is the table in one call.
    let whole = two.gid_table()?;
    for (index, gid) in two.gids(device().port)? {
        let entry = whole
            .iter()
            .find(|entry| entry.index == index && entry.port == u32::from(device().port));
        ensure_eq!(entry.map(|entry| entry.gid), Some(gid), "entry {index}");
    }
    Ok(())
}

fn best_gid() -> Outcome {
    let context = open()?;
    let choice = context.choose_gid(device().port, None)?;
    ensure_eq!(choice.reason, GidReason::Routable, "reason");
    let address = Address::roce(device().port, choice.sgid_index()?, choice.entry.gid);
    let (one, two) = ends(&context)?;
    one.connect_over(&two, address, |_, _| {})?;
    two.connect_over(&one, address, |_, _| {})?;
    two.recv(7)?;
    one.post(SendRequest::send(3, &[]))?;
    one.sent(3)?;
    two.received(7)?;
    Ok(())
}

fn ends(context: &Context) -> Result<(End, End), Failed> {
    let one = End::new(&ProtectionDomain::new(context)?, QpType::RC, |qp| qp)?;
    let two = End::new(&ProtectionDomain::new(context)?, QpType::RC, |qp| qp)?;
    Ok((one, two))
}

/// The names of the devices.
const MTU: &str = "mtu";
const ADDED: &str = "added";

/// Opens a device of the test's own.
fn open_own(name: &str) -> Result<Context, Failed> {
    let list = DeviceList::new()?;
    Ok(list.by_name(&OwnDevice::device(name))?.open()?)
}

/// The path from a port to itself, by the entry of `ip`, which may come a moment after the device.
fn own_path(context: &Context, ip: IpAddr) -> Result<Address, Failed> {
    let deadline = Deadline::after(2 * SECOND);
    loop {
        match context.choose_gid(1, Some(ip)) {
            Ok(choice) => return Ok(Address::roce(1, choice.sgid_index()?, choice.entry.gid)),
            Err(error) if error.kind() == ErrorKind::NoUsableGid && !deadline.has_passed() => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn largest_mtu() -> Outcome {
    let ip = IpAddr::from([198, 51, 100, 9]);
    // A packet has 80 bytes of headers at most.
    for (of_interface, expected) in [(576, 256), (4200, 4096)] {
        phase(format!("an interface of {of_interface} bytes"));
        let _own = OwnDevice::with_address(MTU, ip, of_interface)?;
        let context = open_own(MTU)?;
        let path = own_path(&context, ip)?;
        let active = context.active_port(1)?.active_mtu();
        ensure_eq!(active, Some(expected), "active MTU");
        let (one, two) = ends(&context)?;
        one.connect_over(&two, path, |_, _| {})?;
        two.connect_over(&one, path, |_, _| {})?;
        let target = Buffer::with_access(
            &two.pd,
            8192,
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE,
        )?;
        let remote = RemoteAddr {
            addr: target.region().iova(),
            rkey: target.region().rkey(),
        };
        one.buffer.store(0, &pattern::bytes(4, 8192));
        for len in [
            expected as usize - 1,
            expected as usize,
            expected as usize + 1,
            8192,
        ] {
            one.post(SendRequest::write(1, &[one.buffer.sge(0, len)], remote))?;
            one.sent(1)?;
            pattern::check(&target.load(0, len), 4)?;
        }
        // SoftRoCE would take a larger one, and lose the packets.
        let (one, two) = ends(&context)?;
        let larger = PathMtu::from_raw(PathMtu::at_most(expected).map_or(0, PathMtu::raw) + 1);
        let Some(bytes) = larger.bytes() else {
            continue;
        };
        let failed = one.connect_over(&two, path, |rtr, _| rtr.path_mtu = larger);
        let failed = failed.err().ok_or(format!("{larger} was taken"))?;
        let text = failed.message().unwrap_or_default();
        for part in [expected, bytes] {
            ensure!(text.contains(&part.to_string()), "{text}");
        }
        ensure_eq!(one.qp.state(), QpState::INIT, "state");
        one.connect_over(&two, path, |_, _| {})?;
    }
    Ok(())
}

fn just_added() -> Outcome {
    let ip = IpAddr::from([198, 51, 100, 9]);
    for round in 0..rounds(1, 50) {
        phase(format!("round {round}"));
        let _own = OwnDevice::with_address(ADDED, ip, 1500)?;
        let name = OwnDevice::device(ADDED);
        // In a process of its own: librdmacm keeps what it has opened until the end.
        Child::role("just_added", &format!("{name} {ip}"), &[])?
            .finish(WAIT)?
            .success()?;
    }
    Ok(())
}

/// Listens and connects on a device by its address, at once.
fn on_a_new_device() -> Outcome {
    let argument = role_argument();
    let (name, ip) = argument.split_once(' ').ok_or("bad argument")?;
    let ip: IpAddr = ip.parse()?;
    let context = DeviceList::new()?.by_name(name)?.open()?;
    own_path(&context, ip)?;
    drop(context);
    let deadline = Deadline::after(2 * SECOND);
    let found = loop {
        match Device::local(ip) {
            Ok(found) => break found,
            Err(error) if deadline.has_passed() => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    // The one that has the address, and not the first.
    ensure_eq!(found.name(), name, "device of {ip}");
    let other = Device::local(device().ip)?;
    ensure_eq!(other.name(), device().name, "device of {}", device().ip);
    let peer = Peer::new(&found)?;
    let endpoint = Endpoint::listen(&peer, (ip, 0).into())?;
    let config = ConnectionConfig::default();
    let client = ConnectionRequest::new(&peer, endpoint.local_addr(), &config)?
        .connect(PrivateData::none())?;
    let request = endpoint.next_connection_request(&config, WAIT)?;
    let memory = LocalRegion::alloc(&peer, 64, Usage::all())?;
    request.recv(memory.as_span(), 1)?;
    let server = request.connect(PrivateData::none())?;
    client.wait_established(WAIT)?;
    server.wait_established(WAIT)?;
    client.send(memory.as_span(), rpma::Signal::Always, 2)?;
    completed(client.cq())?;
    completed(server.cq())?;
    Ok(())
}
