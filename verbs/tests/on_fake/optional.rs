//! Operations that few devices have: what the provider is given, and what is said where it has none.

use verbs::sys::fake::control;
use verbs::sys::{self};
use verbs::{
    AccessFlags, CompletionQueue, Context, CqModerationCaps, DeviceCapFlags, DeviceList, Ece,
    ErrorKind, MemoryRegion, OdpFlags, OdpTransportFlags, ProtectionDomain, QpType, QueuePair,
    RawPacketFlags, RegionChange, ReregisterFailure, ThreadDomain, WrOpcode,
};

use super::common::Memory;

fn open(name: &str) -> Context {
    let list = DeviceList::new().expect("a list");
    let device = list.by_name(name).expect("in the list");
    device.open().expect("opened")
}

/// The device that has the operations, and the one that has none of them.
fn both() -> [Context; 2] {
    ["fake0", "fake1"].map(open)
}

#[test]
fn extended_attributes_are_told_field_by_field() {
    let fake = control::session();
    let [context, other] = both();
    let all = context.query_extended().expect("there");
    assert_eq!(all.plain().as_raw().max_qp_wr, 1 << 14);
    let expected = DeviceCapFlags::FLUSH_GLOBAL
        | DeviceCapFlags::FLUSH_PERSISTENT
        | DeviceCapFlags::ATOMIC_WRITE;
    let plain = context.attributes().capabilities();
    assert_eq!(all.capabilities(), expected | plain);
    let odp = all.on_demand_paging();
    assert_eq!(odp.general, OdpFlags::SUPPORT | OdpFlags::IMPLICIT);
    let (send, recv) = (OdpTransportFlags::SEND, OdpTransportFlags::RECV);
    let rc = send
        | recv
        | OdpTransportFlags::WRITE
        | OdpTransportFlags::READ
        | OdpTransportFlags::ATOMIC;
    assert_eq!((odp.rc, odp.uc, odp.ud), (rc, send, send | recv));
    assert_eq!(odp.xrc, OdpTransportFlags::SRQ_RECV);
    let raw = all.as_raw();
    let clock = (raw.completion_timestamp_mask, raw.hca_core_clock);
    assert!(
        clock.0 > 0 && clock.1 > 0 && clock.0 != clock.1,
        "{clock:?}"
    );
    let told = (all.completion_timestamp_mask(), all.hca_core_clock());
    assert_eq!(told, clock);
    let moderation = CqModerationCaps {
        max_count: 1000,
        max_period: 2000,
    };
    assert_eq!(all.cq_moderation_caps(), moderation);
    assert_eq!(all.tso_caps().max_tso, 1 << 18);
    assert!(QpType::from_raw(8).is_in(all.tso_caps().supported_qp_types));
    let rss = all.rss_caps();
    assert!(QpType::UD.is_in(rss.supported_qp_types));
    assert_eq!(
        (rss.max_indirection_tables, rss.max_indirection_table_size),
        (101, 102)
    );
    assert_eq!((rss.hash_fields, rss.hash_functions), (1 << 31, 1));
    assert_eq!(all.max_receive_work_queues(), 103);
    let pacing = all.packet_pacing_caps();
    assert_eq!((pacing.min_rate, pacing.max_rate), (104, 105));
    assert!(QpType::RC.is_in(pacing.supported_qp_types));
    let raw = RawPacketFlags::CVLAN_STRIPPING | RawPacketFlags::IP_CSUM;
    assert_eq!(all.raw_packet_caps(), raw);
    let tags = all.tag_matching_caps();
    assert_eq!((tags.max_rendezvous_header, tags.max_tags), (106, 107));
    assert_eq!((tags.flags, tags.max_ops, tags.max_sge), (1, 108, 109));
    assert_eq!(all.max_device_memory(), 110);
    let pci = all.pci_atomic_caps();
    assert_eq!((pci.fetch_add, pci.swap, pci.compare_swap), (4, 8, 16));
    assert_eq!(all.port_count(), 1);
    let size = size_of::<sys::ibv_device_attr_ex>();
    assert_eq!(
        fake.arguments("ibv_query_device_ex"),
        [format!("input null=true size={size}")]
    );

    // Without the operation the plain attributes are there, and nothing more.
    fake.fail("ibv_query_device_ex", 0, libc::EOPNOTSUPP);
    let less = other.query_extended().expect("the plain ones");
    assert_eq!(less.completion_timestamp_mask(), 0);
    assert_eq!(less.plain().max_qp_wr(), other.attributes().max_qp_wr());
    assert_eq!(less.capabilities(), other.attributes().capabilities());
    assert_eq!(less.on_demand_paging().general, OdpFlags::empty());
    assert_eq!(less.port_count(), 1);

    fake.fail("ibv_query_device_ex", 0, libc::EIO);
    let error = context.query_extended().expect_err("EIO");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_query_device_ex", Some(libc::EIO))
    );
    drop((context, other));
    fake.finish();
}

#[test]
fn moderation_passes_count_and_period_on_and_the_slot_checks_them() {
    let fake = control::session();
    let [cq, other] = both().map(|context| CompletionQueue::builder(&context, 4).build());
    let (cq, other) = (cq.expect("made"), other.expect("made"));
    cq.moderate(16, 100).expect("taken");
    cq.moderate(0, 0).expect("taken");
    let error = cq.moderate(1001, 1).expect_err("too many");
    assert_eq!(error.errno(), Some(libc::EINVAL));
    assert!(error.to_string().contains("1001"), "{error}");
    assert_eq!(
        fake.arguments("ibv_modify_cq"),
        [
            "mask=1 count=16 period=100",
            "mask=1 count=0 period=0",
            "mask=1 count=1001 period=1"
        ]
    );
    let error = other.moderate(1, 1).expect_err("no such operation");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    drop((cq, other));
    fake.finish();
}

#[test]
fn a_null_region_is_made_and_deregistered() {
    let fake = control::session();
    let [pd, other] = both().map(|context| ProtectionDomain::new(&context).expect("made"));
    let region = MemoryRegion::null(&pd).expect("made");
    assert_eq!((region.iova(), region.len()), (0, usize::MAX));
    assert_eq!(fake.count("ibv_alloc_null_mr"), 1);
    let busy = pd.close().expect_err("the region needs it");
    region.close().expect("closed");
    busy.handle.close().expect("closed");
    let error = MemoryRegion::null(&other).expect_err("no such operation");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    drop(other);
    fake.finish();
}

#[test]
fn the_whole_address_space_is_registered_on_demand_or_said_to_be_unsupported() {
    let fake = control::session();
    let [pd, other] = both().map(|context| ProtectionDomain::new(&context).expect("made"));
    let local = AccessFlags::LOCAL_WRITE;
    // SAFETY: no request names the region.
    let region = unsafe { MemoryRegion::register_implicit(&pd, local) }.expect("made");
    assert!(region.addr().is_null());
    assert_eq!((region.iova(), region.len()), (0, usize::MAX));
    // SAFETY: as above.
    let error = unsafe { MemoryRegion::register_implicit(&other, local) }.expect_err("none");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.errno(), Some(libc::EINVAL), "what the device said");
    let memory = Memory::new(16);
    let error = memory.register(&other, local | AccessFlags::ON_DEMAND);
    let error = error.expect_err("no paging on demand");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // On a device that has it EINVAL is what it says, and so it is for other mistakes.
    let wrong = AccessFlags::ON_DEMAND | AccessFlags::REMOTE_WRITE;
    let error = memory.register(&pd, wrong).expect_err("no local write");
    assert_eq!(error.kind(), ErrorKind::Provider, "{error}");
    let wrong = AccessFlags::REMOTE_WRITE;
    let error = memory.register(&other, wrong).expect_err("no local write");
    assert_eq!(error.kind(), ErrorKind::Provider, "{error}");
    drop((region, pd, other));
    fake.finish();
}

#[test]
fn a_region_is_changed_in_place_as_asked_and_moves_to_its_new_domain() {
    let fake = control::session();
    let [context, _] = both();
    let pd = ProtectionDomain::new(&context).expect("made");
    let new_pd = ProtectionDomain::new(&context).expect("made");
    let (memory, more) = (Memory::new(16), Memory::new(32));
    let region = memory
        .register(&pd, AccessFlags::LOCAL_WRITE)
        .expect("made");
    let start = {
        let probe = more.register(&pd, AccessFlags::empty()).expect("made");
        probe.addr()
    };
    let rights = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    let change = RegionChange::new().access(rights);
    // SAFETY: both memories outlive the region, and nothing borrows them.
    let region = unsafe { region.reregister(&change) }.expect("changed");
    assert_eq!(region.pd(), &pd);
    assert_eq!(region.len(), 16);
    let change = RegionChange::new().memory(start, 32).pd(&new_pd);
    // SAFETY: as above.
    let region = unsafe { region.reregister(&change) }.expect("changed");
    assert_eq!((region.addr(), region.len()), (start, 32));
    assert_eq!(region.iova(), start.addr() as u64);
    assert_eq!(region.pd(), &new_pd);
    let (flag, start) = (rights.bits(), start.addr());
    assert_eq!(
        fake.arguments("ibv_rereg_mr"),
        [
            format!("flags=4 pd=false addr=0x0 length=0 access={flag:#x}"),
            format!("flags=3 pd=true addr={start:#x} length=32 access=0x0"),
        ]
    );
    // The former domain is free, the new one is not.
    pd.close().expect("nothing is in it");
    let failed = new_pd.close().expect_err("the region is in it");
    region.close().expect("closed");
    failed.handle.close().expect("closed");
    drop(context);
    fake.finish();
}

#[test]
fn a_failed_change_tells_what_has_become_of_the_region() {
    let fake = control::session();
    let [context, other] = both();
    let pd = ProtectionDomain::new(&context).expect("made");
    let new_pd = ProtectionDomain::new(&context).expect("made");
    let change = RegionChange::new().pd(&new_pd);
    let memory = Memory::new(16);
    let mut changed = 0;
    for code in [-1, -2, -3, -4, -5, -77, 22] {
        let region = memory.register(&pd, AccessFlags::empty()).expect("made");
        fake.next_rereg(code, libc::ENOMEM);
        // SAFETY: the memory outlives the region, and nothing borrows it.
        let failed = unsafe { region.reregister(&change) }.expect_err("told to fail");
        assert_eq!(failed.error.errno(), Some(libc::ENOMEM), "{code}");
        assert_eq!(failed.error.verb(), "ibv_rereg_mr");
        match (code, failed.region) {
            (-1 | -2, ReregisterFailure::Unchanged(region)) => assert_eq!(region.pd(), &pd),
            (-3, ReregisterFailure::Changed(region)) => {
                changed += 1;
                assert_eq!(region.pd(), &new_pd);
            }
            // Closed, or dropped, which both end the registration.
            (-4, ReregisterFailure::Unusable(region)) => region.close().expect("closed"),
            (-5 | -77 | 22, ReregisterFailure::Unusable(region)) => drop(region),
            (code, region) => panic!("after {code} the region is {region:?}"),
        }
    }
    assert_eq!(changed, 1);
    assert_eq!(fake.count("ibv_dereg_mr"), 7);

    // What can never be right does not get to C.
    let calls = fake.count("ibv_rereg_mr");
    let foreign = ProtectionDomain::new(&other).expect("made");
    let wrong = [RegionChange::new(), RegionChange::new().pd(&foreign)];
    let mut region = memory.register(&pd, AccessFlags::empty()).expect("made");
    for change in wrong {
        // SAFETY: as above.
        let failed = unsafe { region.reregister(&change) }.expect_err("refused");
        assert_eq!(failed.error.kind(), ErrorKind::InvalidArgument);
        let ReregisterFailure::Unchanged(same) = failed.region else {
            panic!("{:?}", failed.region);
        };
        region = same;
    }
    assert_eq!(fake.count("ibv_rereg_mr"), calls);
    drop(region);

    // Without the operation.
    let region = memory
        .register(&foreign, AccessFlags::empty())
        .expect("made");
    let change = RegionChange::new().access(AccessFlags::LOCAL_WRITE);
    // SAFETY: as above.
    let failed = unsafe { region.reregister(&change) }.expect_err("no such operation");
    assert_eq!(failed.error.kind(), ErrorKind::Unsupported, "{failed}");
    drop((failed, pd, new_pd, foreign, context, other));
    fake.finish();
}

#[test]
fn a_parent_domain_keeps_what_it_is_made_of_and_goes_first() {
    let fake = control::session();
    let [context, other] = both();
    let pd = ProtectionDomain::new(&context).expect("made");
    let thread = ThreadDomain::new(&context).expect("made");
    let plain = ProtectionDomain::with_parent(&pd).expect("made");
    assert_eq!(plain.parent(), Some(&pd));
    // SAFETY: everything here happens in this thread.
    let parent = unsafe { ProtectionDomain::with_thread_domain(&pd, &thread) }.expect("made");
    assert_eq!((parent.parent(), pd.parent()), (Some(&pd), None));
    assert_eq!(parent.context(), &context);
    assert_eq!(fake.arguments("ibv_alloc_td"), ["comp_mask=0"]);
    assert_eq!(
        fake.arguments("ibv_alloc_parent_domain"),
        [
            "td=false comp_mask=0 allocator=false",
            "td=true comp_mask=0 allocator=false"
        ]
    );
    // Objects are made in it as in any other.
    let cq = CompletionQueue::builder(&context, 8).build().expect("made");
    let qp = QueuePair::builder(&parent, QpType::RC, &cq, &cq)
        .max_send_wr(1)
        .max_recv_wr(1)
        .build()
        .expect("made");
    let failed = thread.close().expect_err("the parent domain needs it");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    // Whatever the order of drops, C sees the parent domain go first.
    drop((failed.handle, pd, plain, context));
    drop(parent);
    assert_eq!(fake.count("ibv_dealloc_td"), 0);
    drop((qp, cq));
    let calls = fake.calls();
    let tail: Vec<_> = calls
        .iter()
        .filter(|call| call.starts_with("ibv_dealloc"))
        .collect();
    assert_eq!(tail.len(), 4, "{tail:?}");
    assert_eq!(*tail[1], "ibv_dealloc_pd", "the parent domain");

    let error = ThreadDomain::new(&other).expect_err("no such operation");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let pd = ProtectionDomain::new(&other).expect("made");
    let error = ProtectionDomain::with_parent(&pd).expect_err("no such operation");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    drop((pd, other));
    fake.finish();
}

#[test]
fn a_parent_domain_is_of_one_device() {
    let fake = control::session();
    let (one, two) = (open("fake0"), open("fake0"));
    let pd = ProtectionDomain::new(&one).expect("made");
    let thread = ThreadDomain::new(&two).expect("made");
    // SAFETY: everything here happens in this thread.
    let error = unsafe { ProtectionDomain::with_thread_domain(&pd, &thread) };
    let error = error.expect_err("another handle of the device");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(fake.count("ibv_alloc_parent_domain"), 0);
    drop((pd, thread, one, two));
    fake.finish();
}

#[test]
fn options_of_a_connection_are_offered_and_taken_up() {
    let fake = control::session();
    let [one, other] = both().map(|context| {
        let pd = ProtectionDomain::new(&context).expect("made");
        let cq = CompletionQueue::builder(&context, 64)
            .build()
            .expect("made");
        QueuePair::builder(&pd, QpType::RC, &cq, &cq)
            .build()
            .expect("made")
    });
    let offer = one.query_ece().expect("there");
    assert_eq!((offer.vendor_id, offer.options), (0x15b3, one.number()));
    let peer = Ece {
        vendor_id: 0x15b3,
        options: 0x1234,
    };
    let both_have = one.set_ece(peer).expect("taken");
    assert_eq!(both_have.options, 0x34);
    assert_eq!(
        fake.arguments("ibv_set_ece"),
        ["vendor_id=0x15b3 options=0x1234 comp_mask=0"]
    );
    for error in [other.query_ece().err(), other.set_ece(peer).err()] {
        let error = error.expect("no such operation");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    assert_eq!(one.writes_in_order(WrOpcode::RDMA_WRITE), Ok(true));
    assert_eq!(one.writes_in_order(WrOpcode::RDMA_READ), Ok(false));
    assert_eq!(
        fake.arguments("ibv_query_qp_data_in_order"),
        ["op=0 flags=0", "op=4 flags=0"]
    );
    drop((one, other));
    fake.finish();
}
