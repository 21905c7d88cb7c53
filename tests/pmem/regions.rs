//! Each way to make writes persistent on device DAX.

use harness::{Need, Outcome, Test, WAIT, completed, ensure, ensure_eq, pattern, test};
use rpma::{
    ErrorKind, FlushMethod, FlushType, LocalRegion, PersistMethod, RemoteRegion, Signal, Usage,
};

use crate::{device, direct_write, gpspm, pair_with, target};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "on_pmem_a_region_of_device_dax_is_persisted_by_cache_lines",
            &[Need::Device],
            by_cache_lines,
        ),
        test(
            "on_pmem_a_persistent_flush_by_read_needs_the_peers_word_and_completes",
            &[Need::Device],
            by_flush,
        ),
        test(
            "on_pmem_native_persistent_flush_is_granted_to_device_dax_alone",
            &[Need::Device, Need::Native],
            native,
        ),
        test(
            "on_pmem_the_server_persists_what_its_client_asks_for",
            &[Need::Device],
            by_server,
        ),
    ]
}

const LEN: usize = 100_000;

/// What another mapping of the device has.
fn found_on_device(offset: usize) -> Result<Vec<u8>, harness::Failed> {
    let (peer, _) = harness::listen()?;
    let region = LocalRegion::map_file(&peer, &device()?, ..crate::USED, Usage::READ_SRC)?;
    let mut found = vec![0; LEN];
    region.load(offset, &mut found)?;
    Ok(found)
}

fn by_cache_lines() -> Outcome {
    let (peer, _) = harness::listen()?;
    let region = target(&peer)?;
    let method = region.persist_method().ok_or("not persistent")?;
    ensure!(method != PersistMethod::Msync, "{method}");
    region.store(5000, &pattern::bytes(1, LEN))?;
    region.persist(5000..5000 + LEN as u64)?;
    pattern::check(&found_on_device(5000)?, 1)?;
    let past = region.persist(crate::USED..=crate::USED).err();
    ensure!(past.is_some(), "persisted past the end");
    Ok(())
}

/// Writes and flushes, by the method that the connection has.
fn flushed(expected: FlushMethod, seed: u64) -> Outcome {
    let pair = pair_with(expected)?;
    let region = target(&pair.server_peer)?;
    if expected == FlushMethod::Native {
        let granted = region.native_flush_types();
        ensure_eq!(granted, Usage::FLUSH, "what the device grants");
    }
    let remote = RemoteRegion::from_descriptor(&region.descriptor())?;
    let source = LocalRegion::alloc(&pair.client_peer, LEN, Usage::WRITE_SRC)?;
    source.store(0, &pattern::bytes(seed, LEN))?;
    let to = remote.span(8192..8192 + LEN as u64)?;
    pair.client
        .write(to, source.as_span(), Signal::OnError, 1)?;
    let flush = || {
        pair.client
            .flush(to, FlushType::Persistent, Signal::Always, 2)
    };
    let error = flush().err().ok_or("flushed without the peer's word")?;
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    pair.client.apply_remote_peer_config(&direct_write());
    let method = pair.client.flush_method(FlushType::Persistent);
    ensure_eq!(method, expected, "method");
    flush()?;
    ensure_eq!(completed(pair.client.cq())?.op_context(), 2, "flush");
    pattern::check(&found_on_device(8192)?, seed)?;
    Ok(())
}

fn by_flush() -> Outcome {
    flushed(FlushMethod::Read, 2)
}

fn native() -> Outcome {
    flushed(FlushMethod::Native, 3)?;
    // Ordinary memory does not survive, and the device knows it: the flush is not done there as if it did.
    let pair = pair_with(FlushMethod::Native)?;
    let region = LocalRegion::alloc(&pair.server_peer, LEN, Usage::WRITE_DST | Usage::FLUSH)?;
    let granted = region.native_flush_types();
    ensure_eq!(granted, Usage::FLUSH_VISIBILITY, "what the device grants");
    let remote = RemoteRegion::from_descriptor(&region.descriptor())?;
    pair.client.apply_remote_peer_config(&direct_write());
    let to = remote.span(..64)?;
    match pair
        .client
        .flush(to, FlushType::Persistent, Signal::Always, 1)
    {
        Err(error) => ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
        Ok(()) => {
            let completion = pair.client.cq().next(WAIT)?;
            ensure!(
                completion.result().is_err(),
                "DRAM was flushed as persistent"
            );
        }
    }
    Ok(())
}

fn by_server() -> Outcome {
    gpspm(|client, remote, peer| {
        let source = LocalRegion::alloc(peer, LEN, Usage::WRITE_SRC)?;
        for n in 0..3 {
            source.store(0, &pattern::bytes(10 + n, LEN))?;
            let range = 1_000_000 * n..1_000_000 * n + LEN as u64;
            let to = remote.span(range.clone())?;
            client
                .connection()
                .write(to, source.as_span(), Signal::OnError, n)?;
            client.persist(range, WAIT)?;
        }
        Ok(())
    })?;
    for n in 0..3 {
        let offset = 1_000_000 * n;
        pattern::check(&found_on_device(offset)?, 10 + n as u64)?;
    }
    Ok(())
}
