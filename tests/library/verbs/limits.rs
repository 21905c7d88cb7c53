//! Sizes: what a device or a queue does not offer is refused by name.

use harness::{Need, Outcome, Test, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    CompletionQueue, Error, ErrorKind, ProtectionDomain, QpType, QueuePair, QueuePairBuilder,
};

use super::objects::open;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_size_above_the_devices_limit_is_refused_by_name",
            &[Need::Device],
            a_size_above_the_limit_is_refused,
        ),
        test(
            "the_largest_sizes_of_the_device_are_granted",
            &[Need::Device],
            the_largest_sizes_are_granted,
        ),
        test(
            "a_completion_queue_that_could_overrun_is_refused",
            &[Need::Device],
            a_queue_that_could_overrun_is_refused,
        ),
    ]
}

fn a_size_above_the_limit_is_refused() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64)
        .allow_overrun(true)
        .build()?;
    let limits = context.attributes();
    let (wr, sge) = (limits.max_qp_wr() + 1, limits.max_sge() + 1);
    type Ask = fn(QueuePairBuilder<'_>, u32) -> QueuePairBuilder<'_>;
    let cases: [(&str, u32, Ask); 5] = [
        ("max_send_wr", wr, |qp, n| qp.max_send_wr(n)),
        ("max_recv_wr", wr, |qp, n| qp.max_recv_wr(n)),
        ("max_send_sge", sge, |qp, n| qp.max_send_sge(n)),
        ("max_recv_sge", sge, |qp, n| qp.max_recv_sge(n)),
        ("max_inline_data", 1 << 20, |qp, n| qp.max_inline_data(n)),
    ];
    for (name, asked, ask) in cases {
        let builder = ask(QueuePair::builder(&pd, QpType::RC, &cq, &cq), asked);
        let error = builder
            .build()
            .err()
            .ok_or(format!("{name} {asked} was granted"))?;
        refused(&error, name, asked)?;
    }
    for entries in [0, limits.max_cqe() + 1, u32::MAX] {
        let error = CompletionQueue::builder(&context, entries)
            .build()
            .err()
            .ok_or(format!("a queue of {entries} entries was granted"))?;
        ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
        ensure!(error.to_string().contains(&entries.to_string()), "{error}");
    }
    // The process is well, and so is the device.
    QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .build()?
        .close()?;
    Ok(())
}

fn refused(error: &Error, name: &str, asked: u32) -> Outcome {
    ensure_eq!(error.kind(), ErrorKind::Limit, "{name}: {error}");
    ensure!(
        matches!(error.errno(), Some(libc::EINVAL | libc::ENOMEM)),
        "{name}: EINVAL or ENOMEM, not {:?}",
        error.errno()
    );
    let text = error.to_string();
    let words = if name == "max_inline_data" {
        "inline"
    } else {
        name
    };
    ensure!(
        text.contains(words) && text.contains(&asked.to_string()),
        "{name} {asked}: {text}"
    );
    let hint = error.hint().unwrap_or_default();
    ensure!(hint.contains(name), "the hint for {name} is {hint:?}");
    Ok(())
}

fn the_largest_sizes_are_granted() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let limits = context.attributes();
    let cq = CompletionQueue::builder(&context, 64)
        .allow_overrun(true)
        .build()?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_wr(limits.max_qp_wr())
        .max_recv_wr(1)
        .build()?;
    ensure!(
        qp.capabilities().max_send_wr >= limits.max_qp_wr(),
        "{:?}",
        qp.capabilities()
    );
    qp.close()?;
    let qp = QueuePair::builder(&pd, QpType::RC, &cq, &cq)
        .max_send_sge(limits.max_sge())
        .max_recv_sge(limits.max_sge())
        .build()?;
    ensure!(
        qp.capabilities().max_recv_sge >= limits.max_sge(),
        "{:?}",
        qp.capabilities()
    );
    qp.close()?;
    Ok(())
}

fn a_queue_that_could_overrun_is_refused() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let cq = CompletionQueue::builder(&context, 64).build()?;
    let half = cq.entries() / 2;
    let sized = |cq, count| {
        QueuePair::builder(&pd, QpType::RC, cq, cq)
            .max_send_wr(count)
            .max_recv_wr(count)
    };
    let first = sized(&cq, half).build()?;
    let error = sized(&cq, half)
        .build()
        .err()
        .ok_or("the queue could overrun")?;
    ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
    ensure!(
        error
            .to_string()
            .contains(&format!("{} entries", cq.entries())),
        "{error}"
    );
    // What a queue pair no longer needs is free for the next, also after a refusal half-way.
    first.close()?;
    sized(&cq, half).build()?.close()?;

    let lossy = CompletionQueue::builder(&context, 64)
        .allow_overrun(true)
        .build()?;
    sized(&lossy, lossy.entries()).build()?.close()?;
    Ok(())
}
