//! What becomes of a device while it is open: its port goes down and up, and it is removed.

use std::process::Command;
use std::time::Instant;

use harness::{
    Child, Failed, Need, Outcome, Role, SECOND, Test, WAIT, command, ensure, ensure_eq, phase, test,
};
use rpma::cm::verbs::{
    AccessFlags, AsyncEventKind, AsyncEventSource, AsyncEvents, CompletionChannel, CompletionQueue,
    Context, Deadline, DeviceList, InitAttributes, PortState, ProtectionDomain, QpType, QueuePair,
    RecvRequest, SharedReceiveQueue,
};

use super::ports::OwnDevice;
use crate::raw::Buffer;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_port_that_goes_down_and_up_says_so_by_events",
            &[Need::Device, Need::Root, Need::SoftRoce, Need::Tool("ip")],
            || {
                let _own = OwnDevice::new(PORT)?;
                Child::role("port_events", "", &[])?
                    .finish(WAIT)?
                    .success()?;
                Ok(())
            },
        ),
        test(
            "a_device_that_is_being_removed_lets_its_objects_go_at_once_and_is_gone_then",
            &[Need::Device, Need::Root, Need::SoftRoce, Need::Tool("ip")],
            removed,
        ),
    ]
}

pub(crate) const ROLES: &[Role] = &[("port_events", port_events), ("removal", removal)];

/// The names of the devices.
const PORT: &str = "port";
const GONE: &str = "gone";

fn open(name: &str) -> Result<Context, Failed> {
    let list = DeviceList::new()?;
    Ok(list.by_name(&OwnDevice::device(name))?.open()?)
}

/// Waits for an event of the port, passing over those of its addresses.
fn wait_for(events: &AsyncEvents, kind: AsyncEventKind) -> Outcome {
    let deadline = Deadline::after(WAIT);
    loop {
        let event = events.next(deadline)?;
        if event.kind() == kind {
            ensure_eq!(event.source(), AsyncEventSource::Port(1), "source");
            return Ok(());
        }
    }
}

fn port_events() -> Outcome {
    let interface = OwnDevice::interface(PORT);
    let context = open(PORT)?;
    ensure_eq!(context.query_port(1)?.state(), PortState::DOWN, "at first");
    let events = context.async_events()?;
    for round in 0..2 {
        phase(format!("up, round {round}"));
        command("ip", &["link", "set", &interface, "up"])?;
        wait_for(&events, AsyncEventKind::PORT_ACTIVE)?;
        context.active_port(1)?;
        phase(format!("down, round {round}"));
        command("ip", &["link", "set", &interface, "down"])?;
        wait_for(&events, AsyncEventKind::PORT_ERR)?;
        ensure_eq!(context.query_port(1)?.state(), PortState::DOWN, "state");
    }
    Ok(())
}

fn removed() -> Outcome {
    let _own = OwnDevice::new(GONE)?;
    let holder = Child::role("removal", "", &[])?;
    holder.wait_line("holds", WAIT)?;
    // SoftRoCE up to Linux 6.12 waits here, and not even a signal ends it, until nobody holds the
    // device any more.
    let device = OwnDevice::device(GONE);
    let remover = Child::start(Command::new("rdma").args(["link", "delete", &device]))?;
    holder.finish(WAIT)?.success()?;
    remover.finish(WAIT)?.success()?;
    ensure!(
        DeviceList::new()?.by_name(&device).is_err(),
        "the device is still there"
    );
    Ok(())
}

/// Holds objects of a device until its removal has begun, and lets them go.
fn removal() -> Outcome {
    let context = open(GONE)?;
    let events = context.async_events()?;
    let pd = ProtectionDomain::new(&context)?;
    let channel = CompletionChannel::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64)
        .own_channel(&channel)
        .build()?;
    cq.arm()?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq).build()?;
    let mut init = InitAttributes::new(1);
    init.access = AccessFlags::REMOTE_WRITE;
    qp.to_init(&init)?;
    let buffer = Buffer::new(&pd, 4096)?;
    let sges = [buffer.sge(0, 4096)];
    // SAFETY: the buffer is registered memory to which no reference is formed.
    unsafe { qp.post_recv(&mut RecvRequest::new(1, &sges)) }?;
    let srq = SharedReceiveQueue::new(&pd, 4, 1)?;
    println!("holds");
    let deadline = Deadline::after(WAIT);
    let name = OwnDevice::device(GONE);
    while DeviceList::new()?.by_name(&name).is_ok() {
        ensure!(!deadline.has_passed(), "the removal does not begin");
        std::thread::sleep(SECOND / 100);
    }
    phase("letting the objects go");
    // An answer or an error, but nothing that waits.
    let start = Instant::now();
    let answers = (
        qp.query().is_ok(),
        events.try_next().is_ok(),
        channel.try_next_event().is_ok(),
    );
    drop((events, cq, channel, qp, buffer, srq, pd, context));
    let took = start.elapsed();
    ensure!(
        took < 2 * SECOND,
        "the drops took {took:?} after {answers:?}"
    );
    println!("let go in {took:?}");
    Ok(())
}
