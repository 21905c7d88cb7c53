//! Operations beyond plain sends, writes and reads.

use harness::{Need, Outcome, Pair, Targets, Test, completed, ensure, ensure_eq, rounds, test};
use rpma::{ConnectionConfig, Error, FlushType, Opcode, RemoteSpan, Signal};

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device];
    vec![
        test(
            "immediate_data_arrives_as_the_same_number",
            needs,
            immediates,
        ),
        test("operations_without_bytes_complete", needs, empty),
        test(
            "spans_are_gathered_scattered_and_bytes_copied",
            needs,
            spans,
        ),
        test("a_batch_is_carried_out_in_order", needs, batches),
        test(
            "an_atomic_write_is_seen_whole_by_a_reader",
            needs,
            atomic_write,
        ),
        test(
            "atomics_give_back_what_was_there_and_lose_no_addition",
            needs,
            atomics,
        ),
    ]
}

fn immediates() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 64)?;
    let (to, from) = (targets.of_server.as_span(), targets.client.as_span());
    pair.server.recv(targets.server.as_span(), 1)?;
    pair.client
        .send_with_imm(from, 0x0102_0304, Signal::Always, 2)?;
    ensure_eq!(
        completed(pair.client.cq())?.opcode(),
        Some(Opcode::SEND),
        "sent"
    );
    let received = completed(pair.server.cq())?;
    ensure_eq!(received.opcode(), Some(Opcode::RECV), "received");
    ensure_eq!(received.imm(), Some(0x0102_0304), "number");
    for (imm, to, from) in [(0xfffe_fdfc, to, from), (0, to, from)] {
        pair.server.recv(&[], 3)?;
        pair.client
            .write_with_imm(to, from, imm, Signal::Always, 4)?;
        completed(pair.client.cq())?;
        let received = completed(pair.server.cq())?;
        ensure_eq!(
            received.opcode(),
            Some(Opcode::RECV_RDMA_WITH_IMM),
            "written"
        );
        ensure_eq!(received.imm(), Some(imm), "number");
    }
    pair.server.recv(&[], 5)?;
    let nowhere = RemoteSpan::empty();
    pair.client
        .write_with_imm(nowhere, b"", 7, Signal::Always, 6)?;
    completed(pair.client.cq())?;
    ensure_eq!(
        completed(pair.server.cq())?.imm(),
        Some(7),
        "the number alone"
    );
    Ok(())
}

fn empty() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 64)?;
    let client = &pair.client;
    for at in [0, 64] {
        let (to, from) = (
            targets.of_server.span(at..at)?,
            targets.client.span(at..at)?,
        );
        client.write(to, from, Signal::Always, 1)?;
        completed(client.cq())?;
        client.read(from, to, Signal::Always, 2)?;
        completed(client.cq())?;
        pair.server.recv(&[], 3)?;
        client.send(from, Signal::Always, 4)?;
        completed(client.cq())?;
        let received = completed(pair.server.cq())?;
        let len = received.result().map_err(|e| e.to_string())?.byte_len();
        ensure_eq!(len, 0, "bytes of an empty message");
    }
    client.write(RemoteSpan::empty(), b"", Signal::Always, 5)?;
    completed(client.cq())?;
    client.read(&[], RemoteSpan::empty(), Signal::Always, 6)?;
    ensure_eq!(completed(client.cq())?.op_context(), 6, "number");
    Ok(())
}

fn spans() -> Outcome {
    let mut config = ConnectionConfig::default();
    config.set_max_inline(64).set_max_spans(4)?;
    let pair = Pair::with(&config)?;
    let targets = Targets::new(&pair, 20_000)?;
    let client = &pair.client;
    targets.client.store(0, b"..one..two..three")?;
    let part = |start, end| targets.client.span(start..end);
    let to = targets.of_server.span(10_000..10_011)?;
    client.write(
        to,
        &[part(12, 17)?, part(2, 5)?, part(7, 10)?],
        Signal::Always,
        1,
    )?;
    completed(client.cq())?;
    let mut found = [0; 11];
    targets.server.load(10_000, &mut found)?;
    ensure_eq!(&found, b"threeonetwo", "gathered");
    client.read(
        &[part(9000, 9001)?, part(5000, 5010)?],
        to,
        Signal::Always,
        2,
    )?;
    completed(client.cq())?;
    targets.client.load(9000, &mut found[..1])?;
    targets.client.load(5000, &mut found[1..])?;
    ensure_eq!(&found, b"threeonetwo", "scattered");
    let own = |start, end| targets.server.span(start..end);
    pair.server.recv(&[own(0, 2)?, own(100, 120)?], 3)?;
    let mut bytes = b"these were copied".to_vec();
    client.send(bytes.as_slice(), Signal::Always, 4)?;
    bytes.fill(b'x');
    completed(client.cq())?;
    completed(pair.server.cq())?;
    let mut found = [0; 17];
    targets.server.load(0, &mut found[..2])?;
    targets.server.load(100, &mut found[2..])?;
    ensure_eq!(&found, b"these were copied", "copied and scattered");
    Ok(())
}

fn batches() -> Outcome {
    const EACH: u64 = 8;
    let mut config = ConnectionConfig::default();
    config.set_sq_size(32);
    let pair = Pair::with(&config)?;
    let targets = Targets::new(&pair, 4096)?;
    for round in 0..rounds(15, 2000) {
        let byte = u8::try_from(round % 250)? + 1;
        targets.client.fill(byte)?;
        pair.client.batch(|batch| -> Result<(), Error> {
            for n in 0..EACH {
                let range = 64 + n * 500..64 + n * 500 + 499;
                let to = targets.of_server.span(range.clone())?;
                batch.write(to, targets.client.span(range)?, Signal::OnError, n)?;
            }
            let all = targets.of_server.as_span();
            batch.flush(all, FlushType::Visibility, Signal::OnError, 90)?;
            let word = targets.of_server.span(8..16)?;
            batch.atomic_write(word, [byte; 8], Signal::OnError, 91)?;
            batch.read(targets.client.span(8..16)?, word, Signal::Always, 92)
        })?;
        ensure_eq!(
            completed(pair.client.cq())?.op_context(),
            92,
            "the last one"
        );
        let mut found = [0; 8];
        targets.client.load(8, &mut found)?;
        ensure_eq!(found, [byte; 8], "the word, read back");
        let mut found = vec![0; 499];
        for n in 0..usize::try_from(EACH)? {
            targets.server.load(64 + n * 500, &mut found)?;
            ensure!(found.iter().all(|b| *b == byte), "round {round}, write {n}");
        }
    }
    Ok(())
}

fn atomic_write() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 64)?;
    let word = targets.of_server.span(16..24)?;
    let (all, region) = (rounds(300, 100_000), &targets.server);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome {
        let reader = scope.spawn(|| -> Result<u64, String> {
            let mut seen = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let value = region.load_u64(16).map_err(|e| e.to_string())?;
                let (low, high) = (value & 0xffff_ffff, value >> 32);
                if low != high {
                    return Err(format!("half of a word: {value:#x}"));
                }
                seen = seen.max(low);
                std::thread::yield_now();
            }
            Ok(seen)
        });
        let write = || -> Outcome {
            for round in 1..=all as u64 {
                let value = (round | round << 32).to_ne_bytes();
                pair.client
                    .atomic_write(word, value, Signal::Always, round)?;
                let done = completed(pair.client.cq())?;
                ensure_eq!(done.op_context(), round, "number");
            }
            Ok(())
        };
        let written = write();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let seen = reader.join().map_err(|_| "the reader panicked")??;
        written?;
        ensure!(seen > 0, "the reader has seen nothing");
        Ok(())
    })?;
    ensure_eq!(
        targets.server.load_u64(16)?,
        all as u64 | (all as u64) << 32,
        "the last"
    );
    let from = targets.client.span(..8)?;
    targets.client.store(0, b"8 bytes!")?;
    pair.client
        .atomic_write_from(word, from, Signal::Always, 1)?;
    completed(pair.client.cq())?;
    ensure_eq!(
        targets.server.load_u64(16)?,
        u64::from_ne_bytes(*b"8 bytes!"),
        "from a region"
    );
    Ok(())
}

fn atomics() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 64)?;
    let (at, result) = (targets.of_server.span(8..16)?, targets.client.span(..8)?);
    let other = targets.client.span(8..16)?;
    for round in 0..rounds(50, 5000) as u64 {
        pair.client.fetch_add(result, at, 3, Signal::OnError, 1)?;
        pair.client.fetch_add(other, at, 4, Signal::Always, 2)?;
        ensure_eq!(
            completed(pair.client.cq())?.opcode(),
            Some(Opcode::FETCH_ADD),
            "opcode"
        );
        ensure_eq!(targets.client.load_u64(0)?, round * 7, "before the first");
        ensure_eq!(
            targets.client.load_u64(8)?,
            round * 7 + 3,
            "before the second"
        );
    }
    let total = targets.server.load_u64(8)?;
    for (compare, new, left) in [(total + 1, 1, total), (total, 42, 42)] {
        pair.client
            .compare_swap(result, at, compare, new, Signal::Always, 3)?;
        ensure_eq!(
            completed(pair.client.cq())?.opcode(),
            Some(Opcode::COMP_SWAP),
            "opcode"
        );
        ensure_eq!(targets.client.load_u64(0)?, total, "what was there");
        ensure_eq!(targets.server.load_u64(8)?, left, "what is there");
    }
    Ok(())
}
