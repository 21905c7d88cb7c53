//! Life and death of objects.

use harness::{Baseline, Need, Outcome, Test, device, ensure, ensure_eq, phase, rounds, test};
use rpma::cm::verbs::{
    CompletionChannel, CompletionQueue, Context, DeviceList, ErrorKind, ProtectionDomain, QpType,
    QueuePair,
};

use crate::raw::Buffer;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_queue_pair_that_never_connected_leaves_nothing_in_any_drop_order",
            &[Need::Device],
            nothing_is_left_in_any_drop_order,
        )
        .limit(180),
        test(
            "close_refuses_what_is_in_use_and_gives_it_back",
            &[Need::Device],
            close_refuses_what_is_in_use,
        ),
    ]
}

/// Opens the device in use apart from librdmacm, so that its closing is tested as well.
pub(super) fn open() -> Result<Context, harness::Failed> {
    Ok(DeviceList::new()?.by_name(&device().name)?.open()?)
}

/// One handle of each kind, in an array so that any order of drops can be played.
fn handles() -> Result<[Option<Box<dyn std::any::Any>>; 6], harness::Failed> {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let channel = CompletionChannel::new(&context)?;
    let cq = CompletionQueue::builder(&context, 8)
        .own_channel(&channel)
        .build()?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(4)
        .max_recv_wr(4)
        .build()?;
    let buffer = Buffer::new(&pd, 4096)?;
    Ok([
        Some(Box::new(context)),
        Some(Box::new(pd)),
        Some(Box::new(channel)),
        Some(Box::new(cq)),
        Some(Box::new(qp)),
        Some(Box::new(buffer)),
    ])
}

fn nothing_is_left_in_any_drop_order() -> Outcome {
    let baseline = Baseline::take()?;
    let orders = permutations(6);
    ensure_eq!(orders.len(), 720, "orders of six handles");
    // A stride without a factor in common with 720 spreads the shorter run over all of them.
    let (count, stride) = (rounds(120, 720), 7);
    for n in 0..count {
        let order = &orders[n * stride % orders.len()];
        phase(format!("dropping in the order {order:?}"));
        let mut handles = handles()?;
        for &index in order {
            handles[index] = None;
        }
        if n % 40 == 0 {
            baseline
                .check()
                .map_err(|text| format!("order {order:?} {text}"))?;
        }
    }
    Ok(())
}

fn close_refuses_what_is_in_use() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 8).build()?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(4)
        .max_recv_wr(4)
        .build()?;
    let failed = pd.close().err().ok_or("a domain in use was freed")?;
    ensure_eq!(failed.error.kind(), ErrorKind::Busy, "domain");
    let pd = failed.handle;
    let failed = cq.close().err().ok_or("a queue in use was destroyed")?;
    ensure_eq!(failed.error.kind(), ErrorKind::Busy, "queue");
    let cq = failed.handle;
    ensure!(qp.pd() == &pd, "the queue pair lost its domain");
    qp.close()?;
    cq.close()?;
    pd.close()?;
    Ok(())
}

/// All orders of the numbers below `count`.
fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    permutations(count - 1)
        .into_iter()
        .flat_map(|shorter| {
            (0..count).map(move |at| {
                let mut longer = shorter.clone();
                longer.insert(at, count - 1);
                longer
            })
        })
        .collect()
}
