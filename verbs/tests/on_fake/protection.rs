//! Which regions the queue pairs of a domain may name.

use verbs::sys::fake::control;
use verbs::{
    CompletionQueue, ProtectionDomain, QpType, QueuePair, RecvRequest, SendFlags, SendRequest, Sge,
    WcStatus,
};

use super::common::{Memory, everything, open, outcomes, sge, target, to_init, to_rtr, to_rts};

#[test]
fn a_domain_and_its_parent_domains_share_their_regions_and_others_have_no_part_in_them() {
    let fake = control::session();
    let context = open().expect("a context");
    let plain = ProtectionDomain::new(&context).expect("a domain");
    let parent = ProtectionDomain::with_parent(&plain).expect("a parent domain");
    let foreign = ProtectionDomain::new(&context).expect("a domain");
    let memory = Memory::new(16);
    let regions =
        [&plain, &parent, &foreign].map(|pd| memory.register(pd, everything()).expect("a region"));
    let cq = CompletionQueue::builder(&context, 64).build();
    let cq = cq.expect("a queue");
    for pd in [&plain, &parent, &foreign] {
        for (region, of) in regions.iter().zip([&plain, &parent, &foreign]) {
            let qp = QueuePair::builder(pd, QpType::RC, &cq, &cq).build();
            let qp = qp.expect("a queue pair");
            // Connected with itself: the key is checked at both ends.
            to_init(&qp).expect("INIT");
            to_rtr(&qp, &qp).expect("RTR");
            to_rts(&qp, 7).expect("RTS");
            let own = (*pd == foreign) == (*of == foreign);
            let sges = [sge(region, 8)];
            let mut write = SendRequest::write(1, &sges, target(region));
            write = write.with_flags(SendFlags::SIGNALED);
            // SAFETY: the region is live during the call, in which all is carried out.
            unsafe { qp.post_send(&mut write) }.expect("posted");
            let status = if own {
                WcStatus::SUCCESS
            } else {
                WcStatus::LOC_PROT_ERR
            };
            assert_eq!(outcomes(&cq), [(1, status.raw())], "{pd:?} {of:?}");
        }
    }
    // The peer's key, with local memory that is not to blame.
    let qp = QueuePair::builder(&foreign, QpType::RC, &cq, &cq).build();
    let qp = qp.expect("a queue pair");
    to_init(&qp).expect("INIT");
    to_rtr(&qp, &qp).expect("RTR");
    to_rts(&qp, 7).expect("RTS");
    let sges: [Sge; 1] = [sge(&regions[2], 8)];
    let mut write = SendRequest::write(1, &sges, target(&regions[0]));
    // SAFETY: as above.
    unsafe { qp.post_send(&mut write) }.expect("posted");
    assert_eq!(outcomes(&cq), [(1, WcStatus::REM_ACCESS_ERR.raw())]);
    // SAFETY: the request names no memory.
    unsafe { qp.post_recv(&mut RecvRequest::new(2, &[])) }.expect("flushed at once");
    assert_eq!(outcomes(&cq), [(2, WcStatus::WR_FLUSH_ERR.raw())]);
    drop((qp, regions, parent, plain, foreign, cq, context));
    fake.finish();
}
