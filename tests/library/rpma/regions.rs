//! Regions that go while somebody uses them.

use std::time::{Duration, Instant};

use harness::{
    Need, Outcome, Pair, Targets, Test, WAIT, completed, ensure, ensure_eq, pattern, phase, rounds,
    test,
};
use rpma::{ErrorKind, LocalRegion, RemoteRegion, Signal, Status, Usage};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_write_to_a_region_that_was_dropped_fails_at_the_writer_alone",
            &[Need::Device],
            a_dropped_target,
        ),
        test(
            "a_long_transfer_whose_region_is_dropped_ends_in_bounded_time",
            &[Need::Device],
            dropped_in_the_middle,
        )
        .limit(120),
        test(
            "a_descriptor_that_lies_fails_at_the_writer_alone",
            &[Need::Device],
            a_lying_descriptor,
        ),
        test(
            "regions_leave_nothing_when_dropped_or_refused",
            &[Need::Device],
            dropped_or_refused,
        ),
    ]
}

fn a_dropped_target() -> Outcome {
    let (pair, other) = (Pair::new()?, Pair::new()?);
    let (targets, others) = (Targets::new(&pair, 4096)?, Targets::new(&other, 4096)?);
    let Targets {
        client,
        server,
        of_server,
        ..
    } = targets;
    pair.client
        .write(of_server.as_span(), client.as_span(), Signal::Always, 1)?;
    completed(pair.client.cq())?;

    drop(server);
    pair.client
        .write(of_server.as_span(), client.as_span(), Signal::Always, 2)?;
    let completion = pair.client.cq().next(WAIT)?;
    ensure_eq!(completion.op_context(), 2, "completion");
    let error = completion
        .result()
        .err()
        .ok_or("written to a region that is gone")?;
    ensure_eq!(error.status, Status::REM_ACCESS_ERR, "{error}");
    // That connection is done for: what comes behind is flushed.
    pair.client
        .write(of_server.as_span(), client.as_span(), Signal::Always, 3)?;
    let error = pair
        .client
        .cq()
        .next(WAIT)?
        .result()
        .err()
        .ok_or("written after the end")?;
    ensure!(error.is_flushed(), "{error}");

    // Nobody else notices.
    others.client.store(0, &pattern::bytes(5, 4096))?;
    other.client.write(
        others.of_server.as_span(),
        others.client.as_span(),
        Signal::Always,
        4,
    )?;
    completed(other.client.cq())?;
    let mut found = [0; 4096];
    others.server.load(0, &mut found)?;
    Ok(pattern::check(&found, 5)?)
}

fn dropped_in_the_middle() -> Outcome {
    let mut ended = [0; 2];
    for round in 0..rounds(6, 60) {
        let pair = Pair::new()?;
        let len = (pair.client_peer.max_message_size() as usize).min(8 << 20);
        let source = LocalRegion::alloc(&pair.client_peer, len, Usage::all())?;
        let target = LocalRegion::alloc(&pair.server_peer, len, Usage::all())?;
        let remote = RemoteRegion::from_descriptor(&target.descriptor())?;
        let (read, source_goes) = (round % 2 == 1, round % 3 == 2);
        phase(format!(
            "round {round}: read {read}, source goes {source_goes}"
        ));
        if read {
            pair.client
                .read(source.as_span(), remote.as_span(), Signal::Always, 1)?;
        } else {
            pair.client
                .write(remote.as_span(), source.as_span(), Signal::Always, 1)?;
        }
        // Some way into the transfer, which takes longer than all of these.
        std::thread::sleep(Duration::from_millis(round as u64 % 5));
        let start = Instant::now();
        let (goes, stays) = if source_goes {
            (source, target)
        } else {
            (target, source)
        };
        drop(goes);
        let took = start.elapsed();
        ensure!(took < Duration::from_secs(2), "the drop took {took:?}");
        let completion = pair.client.cq().next(WAIT)?;
        match completion.result() {
            Ok(_) => ended[0] += 1,
            Err(error) => {
                // SoftRoCE's answer to a read that is refused half-way is not always heard, so that
                // the reader tries again until it gives up.
                let expected = [
                    Status::REM_ACCESS_ERR,
                    Status::LOC_PROT_ERR,
                    Status::REM_OP_ERR,
                    Status::LOC_QP_OP_ERR,
                    Status::RETRY_EXC_ERR,
                ];
                // Later kernels (6.8 does, 6.1 does not) report SoftRoCE's own failure to read the
                // source as a request that was flushed.
                let flushed = source_goes && error.status == Status::WR_FLUSH_ERR;
                ensure!(
                    flushed || expected.contains(&error.status),
                    "round {round}: {error}"
                );
                ended[1] += 1;
            }
        }
        drop(stays);
        drop(pair);
    }
    ensure!(
        ended[1] > 0,
        "every transfer was over before its region went: nothing was tested"
    );
    Ok(())
}

fn a_lying_descriptor() -> Outcome {
    type Lie = fn(&mut [u8; 21]);
    let lies: [(&str, Lie); 3] = [
        ("another key", |d| d[16] ^= 0xff),
        ("another address", |d| {
            d[..8].copy_from_slice(&0x1000_u64.to_le_bytes())
        }),
        ("a longer region", |d| {
            d[8..16].copy_from_slice(&8192_u64.to_le_bytes())
        }),
    ];
    for (what, lie) in lies {
        let pair = Pair::new()?;
        let targets = Targets::new(&pair, 4096)?;
        let mut descriptor = targets.server.descriptor();
        lie(&mut descriptor);
        let region = RemoteRegion::from_descriptor(&descriptor)?;
        let to = region.span(region.len() - 64..)?;
        pair.client
            .write(to, targets.client.span(..64)?, Signal::Always, 1)?;
        let error = pair
            .client
            .cq()
            .next(WAIT)?
            .result()
            .err()
            .ok_or(format!("{what}: written"))?;
        ensure_eq!(error.status, Status::REM_ACCESS_ERR, "{what}: {error}");
        let mut found = [0; 4096];
        targets.server.load(0, &mut found)?;
        ensure!(found == [0; 4096], "{what}: something was written");
    }
    Ok(())
}

fn dropped_or_refused() -> Outcome {
    let pair = Pair::new()?;
    for (len, usage) in [
        (0, Usage::all()),
        (1, Usage::empty()),
        (usize::MAX, Usage::all()),
    ] {
        let error = LocalRegion::alloc(&pair.client_peer, len, usage)
            .err()
            .ok_or(format!("{len} bytes for {usage:?} were given"))?;
        ensure!(
            matches!(
                error.kind(),
                ErrorKind::InvalidArgument | ErrorKind::OutOfMemory
            ),
            "{error}"
        );
    }
    let maps = || -> Result<usize, std::io::Error> {
        Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
    };
    let before = maps()?;
    for len in [1, 4095, 4096, 4097, 1 << 20] {
        for round in 0..20 {
            let region = LocalRegion::alloc(&pair.client_peer, len, Usage::all())?;
            ensure_eq!(region.len(), len, "length");
            region.store(len - 1, &[9])?;
            if round % 2 == 0 {
                region.close()?;
            }
        }
    }
    let after = maps()?;
    ensure!(
        after <= before + 4,
        "mappings: {before} before, {after} after"
    );
    Ok(())
}
