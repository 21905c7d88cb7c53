//! The checks that the counted operations include: each refuses what it is for, and the provider sees nothing of it.

use rpma::{Error, ErrorKind, FlushType, LocalRegion, RemoteRegion, Signal, Span, Usage};

use super::rig::{Rig, SQ_SIZE};
use crate::harness::provider::taken;

/// What is tried, why it must fail, and what came of it.
type Refusal = (&'static str, Result<(), Error>, ErrorKind);

pub(crate) fn each_refuses(rig: &Rig) -> Result<(), String> {
    let before = taken();
    let foreign = rig.server_region.as_span();
    let own = rig.region.span(..8).map_err(|e| e.to_string())?;
    let mut refusals = of_spans(rig, foreign, "another peer's region");
    for usage in [Usage::READ_SRC, Usage::WRITE_DST] {
        let region = LocalRegion::alloc(rig.region.peer(), 8, usage).map_err(|e| e.to_string())?;
        refusals.extend(of_spans(rig, region.as_span(), "a local region's usage"));
    }
    refusals.extend(of_targets(rig, own)?);
    let client = &rig.client;
    let always = Signal::Always;
    let inline = vec![0; client.max_inline() as usize + 1];
    refusals.push((
        "too many bytes inline",
        client.send(inline.as_slice(), always, 1),
        ErrorKind::InvalidArgument,
    ));
    for (what, result, kind) in refusals {
        match result {
            Err(error) if error.kind() == kind => {}
            other => return Err(format!("{what}: expected {kind:?}, found {other:?}")),
        }
    }
    if taken() != before {
        return Err("the provider got a request all the same".to_owned());
    }
    last_slot(rig, own)
}

/// Every operation with a span that none of them may use.
fn of_spans(rig: &Rig, span: Span<'_>, what: &'static str) -> Vec<Refusal> {
    let (client, always) = (&rig.client, Signal::Always);
    // A span as long as the target, where lengths are compared first.
    let results = [
        client.write(rig.of_server.as_span(), span, always, 1),
        client.read(span, rig.of_server.as_span(), always, 1),
        client.send(span, always, 1),
        client.recv(span, 1),
        client.atomic_write_from(rig.target, span, always, 1),
        client.fetch_add(span, rig.target, 1, always, 1),
    ];
    results
        .into_iter()
        .map(|result| (what, result, ErrorKind::InvalidArgument))
        .collect()
}

/// What the remote side must be.
fn of_targets(rig: &Rig, own: Span<'_>) -> Result<Vec<Refusal>, String> {
    let text = |e: Error| e.to_string();
    let (client, always) = (&rig.client, Signal::Always);
    let invalid = ErrorKind::InvalidArgument;
    let longer = rig.of_server.span(..9).map_err(text)?;
    let aside = rig.of_server.span(4..12).map_err(text)?;
    let mut refusals = vec![
        (
            "a longer target",
            client.write(longer, own, always, 1),
            invalid,
        ),
        (
            "a longer source",
            client.read(own, longer, always, 1),
            invalid,
        ),
        (
            "a crooked word",
            client.atomic_write(aside, [0; 8], always, 1),
            invalid,
        ),
        (
            "a long word",
            client.atomic_write(longer, [0; 8], always, 1),
            invalid,
        ),
        (
            "a crooked counter",
            client.fetch_add(own, aside, 1, always, 1),
            invalid,
        ),
        (
            "a flush to persistence without the peer's word",
            client.flush(rig.target, FlushType::Persistent, always, 1),
            ErrorKind::Unsupported,
        ),
    ];
    let mut descriptor = rig.server_region.descriptor();
    descriptor[20] = Usage::SEND.bits();
    let useless = RemoteRegion::from_descriptor(&descriptor).map_err(text)?;
    let useless = useless.span(..8).map_err(text)?;
    refusals.extend([
        ("no target", client.write(useless, own, always, 1), invalid),
        ("no source", client.read(own, useless, always, 1), invalid),
        (
            "no word",
            client.atomic_write(useless, [0; 8], always, 1),
            invalid,
        ),
        (
            "a flush that the region is not for",
            client.flush(useless, FlushType::Visibility, always, 1),
            ErrorKind::Unsupported,
        ),
    ]);
    Ok(refusals)
}

/// Operations without a completion leave the last slot free.
fn last_slot(rig: &Rig, own: Span<'_>) -> Result<(), String> {
    let write = |signal| rig.client.write(rig.target, own, signal, 1);
    write(Signal::Always).map_err(|e| e.to_string())?;
    let mut posted = 0;
    let error = loop {
        match write(Signal::OnError) {
            Ok(()) if posted < SQ_SIZE => posted += 1,
            Ok(()) => return Err("operations without a completion and without an end".to_owned()),
            Err(error) => break error,
        }
    };
    if error.kind() != ErrorKind::QueueFull || posted != SQ_SIZE - 1 {
        return Err(format!("after {posted} operations: {error}"));
    }
    write(Signal::Always).map_err(|e| e.to_string())
}
