//! What a connection refuses before the device sees it, which would end the connection.

use harness::{
    Failed, Need, Outcome, Pair, Targets, Test, completed, ensure, ensure_eq, pattern, test,
};
use rpma::{
    Connection, Device, Error, ErrorKind, FlushType, LocalRegion, Peer, RemoteRegion, Signal, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_range_outside_its_region_is_refused",
            &[Need::Device],
            outside,
        ),
        test(
            "a_region_of_another_peer_is_refused",
            &[Need::Device],
            another_peer,
        ),
        test(
            "a_usage_that_forbids_the_operation_is_refused",
            &[Need::Device],
            wrong_usage,
        ),
        test(
            "ends_of_different_length_are_refused",
            &[Need::Device],
            different_lengths,
        ),
        test(
            "a_message_too_long_for_the_device_is_refused",
            &[Need::Device],
            too_long,
        ),
    ]
}

fn refused<T>(what: &str, result: Result<T, Error>) -> Result<Error, Failed> {
    match result {
        Ok(_) => Err(format!("{what} was taken").into()),
        Err(error) => {
            ensure_eq!(
                error.code(),
                -100_004,
                "librpma's number of {what}, {error}"
            );
            Ok(error)
        }
    }
}

/// The connection carries data, and nothing of what was refused comes out of it.
fn still_works(pair: &Pair, targets: &Targets) -> Outcome {
    targets.client.store(0, &pattern::bytes(77, 64))?;
    let (to, from) = (targets.of_server.span(..64)?, targets.client.span(..64)?);
    pair.client.write(to, from, Signal::Always, 7777)?;
    ensure_eq!(
        completed(pair.client.cq())?.op_context(),
        7777,
        "the first completion"
    );
    let mut found = [0; 64];
    targets.server.load(0, &mut found)?;
    Ok(pattern::check(&found, 77)?)
}

fn outside() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 4096)?;
    for range in [0..4097, 4096..4097, 4097..4097, 4000..u64::MAX] {
        refused("a local range", targets.client.span(range.clone()))?;
        let error = refused("a remote range", targets.of_server.span(range.clone()))?;
        ensure!(
            matches!(error, Error::OutOfBounds { size: 4096, .. }),
            "{range:?}: {error}"
        );
    }
    refused("a store past the end", targets.client.store(4090, &[0; 7]))?;
    refused(
        "a load past the end",
        targets.client.load(usize::MAX, &mut [0; 7]),
    )?;
    // The last byte is inside.
    let (to, from) = (
        targets.of_server.span(4095..)?,
        targets.client.span(4095..)?,
    );
    pair.client.write(to, from, Signal::Always, 1)?;
    completed(pair.client.cq())?;
    still_works(&pair, &targets)
}

fn another_peer() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 4096)?;
    let stranger = Peer::new(&Device::local(harness::device().ip)?)?;
    let region = LocalRegion::alloc(&stranger, 4096, Usage::all())?;
    let (span, remote) = (region.as_span(), targets.of_server.as_span());
    let client = &pair.client;
    for (what, result) in [
        ("send", client.send(span, Signal::Always, 1)),
        ("recv", client.recv(span, 2)),
        ("write", client.write(remote, span, Signal::Always, 3)),
        ("read", client.read(span, remote, Signal::Always, 4)),
    ] {
        let error = refused(what, result)?;
        ensure!(matches!(error, Error::WrongPeer), "{what}: {error}");
    }
    still_works(&pair, &targets)
}

/// An operation of a connection with a local and a remote region.
type Operation = fn(&Connection, &LocalRegion, &RemoteRegion) -> Result<(), Error>;

fn wrong_usage() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 4096)?;
    let cases: [(&str, Usage, Usage, Operation); 4] = [
        ("send", Usage::SEND, Usage::empty(), |c, l, _| {
            c.send(l.as_span(), Signal::Always, 1)
        }),
        ("recv", Usage::RECV, Usage::empty(), |c, l, _| {
            c.recv(l.as_span(), 1)
        }),
        ("write", Usage::WRITE_SRC, Usage::WRITE_DST, |c, l, r| {
            c.write(r.as_span(), l.as_span(), Signal::Always, 1)
        }),
        (
            "read",
            Usage::READ_DST,
            Usage::READ_SRC | Usage::FLUSH,
            |c, l, r| c.read(l.as_span(), r.as_span(), Signal::Always, 1),
        ),
    ];
    for (what, local, remote, operation) in cases {
        let poor = LocalRegion::alloc(&pair.client_peer, 4096, Usage::all() - local)?;
        let error = refused(what, operation(&pair.client, &poor, &targets.of_server))?;
        ensure!(
            matches!(error, Error::UsageForbids { side: "local", .. }),
            "{what}: {error}"
        );
        ensure!(error.to_string().contains(what), "{error}");
        if remote.is_empty() {
            continue;
        }
        let poor = LocalRegion::alloc(&pair.server_peer, 4096, Usage::all() - remote)?;
        let poor = RemoteRegion::from_descriptor(&poor.descriptor())?;
        let error = refused(what, operation(&pair.client, &targets.client, &poor))?;
        ensure!(
            matches!(error, Error::UsageForbids { side: "remote", .. }),
            "{what}: {error}"
        );
    }
    // A flush that the region was not registered for, and one that the peer has not promised.
    let plain = LocalRegion::alloc(&pair.server_peer, 4096, Usage::WRITE_DST | Usage::READ_SRC)?;
    let plain = RemoteRegion::from_descriptor(&plain.descriptor())?;
    for (region, flush) in [
        (&plain, FlushType::Visibility),
        (&targets.of_server, FlushType::Persistent),
    ] {
        let error = pair
            .client
            .flush(region.as_span(), flush, Signal::Always, 1)
            .err()
            .ok_or(format!("{flush:?} was taken"))?;
        ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    still_works(&pair, &targets)
}

fn different_lengths() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 4096)?;
    let (long, short) = (targets.client.as_span(), targets.of_server.span(..100)?);
    let write = pair.client.write(short, long, Signal::Always, 1);
    let error = refused("a write", write)?;
    ensure!(
        matches!(
            error,
            Error::LengthMismatch {
                dst: 100,
                src: 4096
            }
        ),
        "{error}"
    );
    let error = refused("a read", pair.client.read(long, short, Signal::Always, 1))?;
    ensure!(
        matches!(
            error,
            Error::LengthMismatch {
                dst: 4096,
                src: 100
            }
        ),
        "{error}"
    );
    still_works(&pair, &targets)
}

fn too_long() -> Outcome {
    const LARGEST: u32 = 64 << 20;
    let pair = Pair::new()?;
    let max = pair.client_peer.max_message_size();
    let targets = Targets::new(&pair, 4096)?;
    if max > LARGEST {
        // A device of 2 GiB messages: no machine of the tests has regions above that.
        println!("the device takes messages of {max} bytes: nothing longer is tried");
        return still_works(&pair, &targets);
    }
    let len = max as usize + 1;
    let long = LocalRegion::alloc(&pair.client_peer, len, Usage::all())?;
    let far = LocalRegion::alloc(&pair.server_peer, len, Usage::all())?;
    let far = RemoteRegion::from_descriptor(&far.descriptor())?;
    let (span, remote) = (long.as_span(), far.as_span());
    for (what, result) in [
        ("send", pair.client.send(span, Signal::Always, 1)),
        ("write", pair.client.write(remote, span, Signal::Always, 2)),
        ("read", pair.client.read(span, remote, Signal::Always, 3)),
    ] {
        let error = refused(what, result)?;
        ensure_eq!(error.kind(), ErrorKind::MessageTooLong, "{what}: {error}");
        ensure!(error.to_string().contains(&max.to_string()), "{error}");
        ensure!(error.hint().is_some(), "no hint");
    }
    still_works(&pair, &targets)
}
