//! What SoftRoCE does not have: each call says so, and leaves everything as it was.

use std::os::fd::AsFd;

use harness::{Failed, Need, Outcome, Test, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    AccessFlags, CompletionQueue, DeviceCapFlags, Ece, Error, ErrorKind, MemoryRegion, OdpFlags,
    ProtectionDomain, QpType, QueuePair, RegionChange, ReregisterFailure, SendRequest,
    ThreadDomain, WrOpcode, XrcDomain, XrcSharing,
};

use super::by_hand::pair;
use super::objects::open;
use crate::raw::Buffer;

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device, Need::SoftRoce];
    vec![
        test(
            "extended_attributes_hold_the_plain_ones_and_what_the_kernel_has",
            needs,
            extended,
        ),
        test("moderation_is_unsupported_on_softroce", needs, moderation),
        test(
            "a_change_of_a_registration_is_unsupported_on_softroce_and_ends_in_a_close",
            needs,
            rereg,
        ),
        test("a_null_region_is_unsupported_on_softroce", needs, null),
        test(
            "paging_on_demand_is_as_the_attributes_say",
            needs,
            on_demand,
        ),
        test(
            "the_whole_address_space_on_demand_is_unsupported_on_softroce",
            needs,
            implicit,
        ),
        test(
            "thread_domains_are_unsupported_on_softroce",
            needs,
            thread_domain,
        ),
        test(
            "parent_domains_are_unsupported_on_softroce",
            needs,
            parent_domain,
        ),
        test(
            "options_of_a_connection_are_unsupported_on_softroce",
            needs,
            ece,
        ),
        test(
            "extended_reliable_connections_are_unsupported_on_softroce",
            needs,
            xrc,
        ),
        test(
            "softroce_does_not_promise_the_order_of_written_data",
            needs,
            in_order,
        ),
    ]
}

/// The error of a call that must not succeed here.
fn unsupported<T>(verb: &str, result: Result<T, Error>) -> Result<Error, Failed> {
    let error = result.err().ok_or(format!("{verb} succeeded"))?;
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    ensure_eq!(error.verb(), verb, "{error}");
    Ok(error)
}

/// The kernel's release, as major and minor number.
fn kernel() -> Result<(u32, u32), Failed> {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let mut numbers = text.split('.').map(str::parse);
    let mut next = || numbers.next().ok_or("a release without numbers");
    Ok((next()??, next()??))
}

fn extended() -> Outcome {
    let context = open()?;
    let all = context.query_extended()?;
    let (plain, known) = (all.plain(), context.attributes());
    ensure_eq!(plain.node_guid(), known.node_guid(), "GUID");
    ensure_eq!(plain.max_qp_wr(), known.max_qp_wr(), "requests");
    ensure_eq!(plain.max_sge(), known.max_sge(), "SGEs");
    ensure_eq!(plain.max_ah(), known.max_ah(), "address handles");
    ensure!(known.max_cq() > 0 && known.max_mr() > 0, "{known:?}");
    ensure_eq!(all.port_count(), u32::from(known.port_count()), "ports");
    let capabilities = all.capabilities();
    ensure!(
        capabilities.contains(known.capabilities()),
        "{capabilities:?}"
    );
    ensure!(
        capabilities.contains(DeviceCapFlags::MEM_WINDOW_TYPE_2B | DeviceCapFlags::SRQ_RESIZE),
        "{capabilities:?}"
    );
    let newer = kernel()? >= (6, 2);
    for flag in [
        DeviceCapFlags::FLUSH_GLOBAL,
        DeviceCapFlags::FLUSH_PERSISTENT,
        DeviceCapFlags::ATOMIC_WRITE,
    ] {
        ensure_eq!(
            capabilities.contains(flag),
            newer,
            "{flag:?} in this kernel"
        );
    }
    ensure_eq!(all.completion_timestamp_mask(), 0, "timestamps");
    ensure_eq!(all.max_device_memory(), 0, "memory of the device");
    ensure_eq!(all.cq_moderation_caps().max_count, 0, "moderation");
    Ok(())
}

fn moderation() -> Outcome {
    let context = open()?;
    let cq = CompletionQueue::builder(&context, 8).build()?;
    unsupported("ibv_modify_cq", cq.moderate(4, 10))?;
    cq.close()?;
    Ok(())
}

fn rereg() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    let buffer = Buffer::new(&pd, 4096)?;
    let addr = buffer.region().addr();
    // SAFETY: the buffer lives until the region is closed, and no reference to it is formed.
    let region = unsafe { MemoryRegion::register(&pd, addr, 4096, AccessFlags::LOCAL_WRITE) }?;
    let change = RegionChange::new().access(AccessFlags::empty());
    // SAFETY: as above.
    let failed = unsafe { region.reregister(&change) };
    let failed = failed.err().ok_or("changed")?;
    ensure_eq!(failed.error.kind(), ErrorKind::Unsupported, "{failed}");
    // Whatever C says of the region, it can be closed, and its domain with it.
    match failed.region {
        ReregisterFailure::Unchanged(region) => region.close()?,
        ReregisterFailure::Unusable(region) => region.close()?,
        other => return Err(format!("after {}: {other:?}", failed.error).into()),
    }
    drop(buffer);
    pd.close()?;
    Ok(())
}

fn null() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    unsupported("ibv_alloc_null_mr", MemoryRegion::null(&pd))?;
    pd.close()?;
    Ok(())
}

fn on_demand() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let odp = one.pd.context().query_extended()?.on_demand_paging();
    let buffer = Buffer::new(&one.pd, 4096)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    let addr = buffer.region().addr();
    // SAFETY: the buffer lives until the region is closed, and no reference to it is formed.
    let region = unsafe { MemoryRegion::register(&one.pd, addr, 4096, access) };
    if !odp.general.contains(OdpFlags::SUPPORT) {
        let error = unsupported("ibv_reg_mr", region)?;
        ensure!(error.to_string().contains("4096"), "{error}");
        return Ok(());
    }
    let region = region?;
    buffer.store(0, b"paged");
    let piece = rpma::cm::verbs::Sge::new(region.iova(), 5, region.lkey());
    two.recv(1)?;
    one.post(SendRequest::send(2, &[piece]))?;
    one.sent(2)?;
    two.received(1)?;
    ensure_eq!(two.buffer.load(4096, 5), b"paged", "data");
    region.close()?;
    Ok(())
}

fn implicit() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    // SAFETY: no request names the region, if it comes about at all.
    let region = unsafe { MemoryRegion::register_implicit(&pd, AccessFlags::LOCAL_WRITE) };
    let error = region
        .err()
        .ok_or("the whole address space was registered")?;
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    pd.close()?;
    Ok(())
}

fn thread_domain() -> Outcome {
    unsupported("ibv_alloc_td", ThreadDomain::new(&open()?))?;
    Ok(())
}

fn parent_domain() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    unsupported(
        "ibv_alloc_parent_domain",
        ProtectionDomain::with_parent(&pd),
    )?;
    pd.close()?;
    Ok(())
}

/// A queue pair that is not connected.
fn queue_pair() -> Result<QueuePair, Failed> {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64).build()?;
    Ok(QueuePair::builder(&pd, QpType::RC, &cq, &cq).build()?)
}

fn ece() -> Outcome {
    let qp = queue_pair()?;
    unsupported("ibv_query_ece", qp.query_ece())?;
    let ece = Ece {
        vendor_id: 1,
        options: 1,
    };
    unsupported("ibv_set_ece", qp.set_ece(ece))?;
    qp.close()?;
    Ok(())
}

fn xrc() -> Outcome {
    let context = open()?;
    unsupported("ibv_open_xrcd", XrcDomain::new(&context))?;
    let file = std::fs::File::open("/proc/self/exe")?;
    let shared = XrcDomain::shared(&context, file.as_fd(), XrcSharing::Create);
    unsupported("ibv_open_xrcd", shared)?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64).build()?;
    let qp = QueuePair::builder(&pd, QpType::XRC_SEND, &cq, &cq).build();
    unsupported("ibv_create_qp", qp)?;
    cq.close()?;
    pd.close()?;
    Ok(())
}

fn in_order() -> Outcome {
    ensure!(
        !queue_pair()?.writes_in_order(WrOpcode::RDMA_WRITE)?,
        "order"
    );
    Ok(())
}
