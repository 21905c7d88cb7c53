//! What a flush promises.

use std::os::unix::fs::FileExt;

use harness::{
    Failed, Need, Outcome, Pair, Test, WAIT, completed, ensure, ensure_eq, pattern, phase, rounds,
    test,
};
use rpma::{
    AtomicWriteMethod, ConnectionConfig, FlushMethod, FlushType, LocalRegion, Opcode, PeerConfig,
    RemoteRegion, Signal, Usage,
};
use rustix::fs::{MemfdFlags, memfd_create};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "what_was_flushed_is_there_when_the_message_behind_it_comes",
            &[Need::Device],
            in_order,
        ),
        test(
            "native_flushes_and_atomic_writes_do_what_reads_and_writes_do",
            &[Need::Device, Need::Native],
            native_or_not,
        ),
    ]
}

const LEN: usize = 4096;

/// Memory of a file, in which another process would look for the bytes.
fn in_order() -> Outcome {
    let pair = Pair::new()?;
    let file = std::fs::File::from(memfd_create("flushed", MemfdFlags::CLOEXEC)?);
    file.set_len(LEN as u64)?;
    let memory = LocalRegion::map_file(&pair.server_peer, &file, .., Usage::all())?;
    let note = LocalRegion::alloc(&pair.server_peer, 8, Usage::RECV)?;
    let source = LocalRegion::alloc(&pair.client_peer, LEN, Usage::all())?;
    let (client, server) = (&pair.client, &pair.server);
    let mut config = PeerConfig::default();
    config.set_direct_write_to_pmem(true);
    client.apply_remote_peer_config(&config);
    let to = RemoteRegion::from_descriptor(&memory.descriptor())?;
    let mut found = vec![0; LEN];
    for round in 0..rounds(30, 10_000) as u64 {
        phase(format!("round {round}"));
        source.store(0, &pattern::bytes(round, LEN))?;
        server.recv(note.as_span(), round)?;
        let flush_type = if round % 2 == 0 {
            FlushType::Visibility
        } else {
            FlushType::Persistent
        };
        let number = round.to_le_bytes();
        client.write(to.as_span(), source.as_span(), Signal::OnError, 1)?;
        client.flush(to.as_span(), flush_type, Signal::Always, 2 * round)?;
        client.send(&number, Signal::Always, 2 * round + 1)?;
        let received = completed(server.cq())?;
        ensure_eq!(received.op_context(), round, "the message");
        file.read_exact_at(&mut found, 0)?;
        pattern::check(&found, round).map_err(|text| format!("round {round}: {text}"))?;
        note.load(0, &mut found[..8])?;
        ensure_eq!(found[..8], number, "the message of round {round}");
        // One completion of the flush, one of the message, in their order.
        let flushed = completed(client.cq())?;
        ensure_eq!(flushed.op_context(), 2 * round, "the flush");
        ensure_eq!(flushed.opcode(), Some(Opcode::RDMA_READ), "its opcode");
        ensure_eq!(
            completed(client.cq())?.op_context(),
            2 * round + 1,
            "behind the flush"
        );
        ensure!(
            client.cq().poll_one()?.is_none(),
            "round {round}: a third completion"
        );
    }
    Ok(())
}

/// The result is the same, whichever way; which one it is can be asked, and seen.
fn native_or_not() -> Outcome {
    for native in [true, false] {
        let mut config = ConnectionConfig::default();
        config.set_native_operations(native);
        let pair = Pair::with(&config)?;
        let client = &pair.client;
        let (flushes, writes) = if native {
            (FlushMethod::Native, AtomicWriteMethod::Native)
        } else {
            (FlushMethod::Read, AtomicWriteMethod::Write)
        };
        ensure_eq!(
            client.flush_method(FlushType::Visibility),
            flushes,
            "native {native}"
        );
        ensure_eq!(client.atomic_write_method(), writes, "native {native}");
        // Two questions: the type is one of the device for each.
        let persistent = client.flush_method(FlushType::Persistent);
        ensure!(
            native || persistent == FlushMethod::Read,
            "persistent: {persistent:?}"
        );
        both_work(&pair, native).map_err(|failed| {
            format!("native {native}: {}", failed.message().unwrap_or_default())
        })?;
    }
    Ok(())
}

fn both_work(pair: &Pair, native: bool) -> Result<(), Failed> {
    let memory = LocalRegion::alloc(&pair.server_peer, LEN, Usage::all())?;
    let source = LocalRegion::alloc(&pair.client_peer, LEN, Usage::all())?;
    let to = RemoteRegion::from_descriptor(&memory.descriptor())?;
    let client = &pair.client;
    let (flushed, written) = if native {
        (Opcode::FLUSH, Opcode::ATOMIC_WRITE)
    } else {
        (Opcode::RDMA_READ, Opcode::RDMA_WRITE)
    };
    for round in 0..20 {
        source.store(0, &pattern::bytes(round, LEN))?;
        client.write(to.as_span(), source.as_span(), Signal::OnError, 1)?;
        client.flush(to.span(8..)?, FlushType::Visibility, Signal::Always, 2)?;
        let completion = client.cq().next(WAIT)?;
        ensure_eq!(completion.op_context(), 2, "the flush");
        completion.result()?;
        ensure_eq!(completion.opcode(), Some(flushed), "of a flush");
        let mut found = vec![0; LEN];
        memory.load(0, &mut found)?;
        pattern::check(&found, round)?;

        let word = (round + 1).to_ne_bytes();
        client.atomic_write(to.span(16..24)?, word, Signal::Always, 3)?;
        let completion = completed(client.cq())?;
        ensure_eq!(completion.opcode(), Some(written), "of an atomic write");
        ensure_eq!(memory.load_u64(16)?, round + 1, "the word");
    }
    Ok(())
}
