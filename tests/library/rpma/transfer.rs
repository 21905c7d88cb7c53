//! Data over a connection: every operation, verified byte by byte.

use harness::{
    Need, Outcome, Pair, Targets, Test, completed, ensure, ensure_eq, pattern, phase, test,
};
use rpma::{FlushType, RemoteSpan, Signal};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "every_operation_moves_every_byte",
            &[Need::Device],
            every_operation_moves_every_byte,
        ),
        test(
            "either_side_may_send_write_and_read",
            &[Need::Device],
            either_side_may_send_write_and_read,
        ),
        test(
            "operations_without_bytes_complete_at_either_end_of_a_region",
            &[Need::Device],
            without_bytes,
        ),
    ]
}

fn every_operation_moves_every_byte() -> Outcome {
    const LEN: usize = 20_000;
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, LEN)?;
    let mut found = vec![0; LEN];

    targets.client.store(0, &pattern::bytes(1, LEN))?;
    pair.server.recv(targets.server.as_span(), 10)?;
    pair.client
        .send(targets.client.as_span(), Signal::Always, 11)?;
    ensure_eq!(completed(pair.client.cq())?.op_context(), 11, "send");
    let received = completed(pair.server.cq())?;
    ensure_eq!(received.op_context(), 10, "receive");
    let len = received.result().map_err(|e| e.to_string())?.byte_len();
    ensure_eq!(len as usize, LEN, "bytes received");
    targets.server.load(0, &mut found)?;
    pattern::check(&found, 1)?;

    targets.client.store(0, &pattern::bytes(2, LEN))?;
    pair.client.write(
        targets.of_server.as_span(),
        targets.client.as_span(),
        Signal::OnError,
        20,
    )?;
    pair.client.flush(
        targets.of_server.as_span(),
        FlushType::Visibility,
        Signal::Always,
        21,
    )?;
    ensure_eq!(completed(pair.client.cq())?.op_context(), 21, "flush");
    targets.server.load(0, &mut found)?;
    pattern::check(&found, 2)?;

    targets.server.store(0, &pattern::bytes(3, LEN))?;
    pair.client.read(
        targets.client.as_span(),
        targets.of_server.as_span(),
        Signal::Always,
        30,
    )?;
    ensure_eq!(completed(pair.client.cq())?.op_context(), 30, "read");
    targets.client.load(0, &mut found)?;
    pattern::check(&found, 3)?;
    Ok(())
}

fn either_side_may_send_write_and_read() -> Outcome {
    const LEN: usize = 5000;
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, LEN)?;
    let ends = [
        (&pair.client, &targets.client, &targets.of_server),
        (&pair.server, &targets.server, &targets.of_client),
    ];
    let mut found = vec![0; LEN];
    for (from, to) in [(0, 1), (1, 0)] {
        let (this, own, remote) = ends[from];
        let (other, others, _) = ends[to];
        phase(format!("end {from} sends"));
        own.store(0, &pattern::bytes(1, LEN))?;
        other.recv(others.as_span(), 1)?;
        this.send(own.as_span(), Signal::Always, 2)?;
        completed(this.cq())?;
        completed(other.cq())?;
        others.load(0, &mut found)?;
        pattern::check(&found, 1)?;

        phase(format!("end {from} writes"));
        own.store(0, &pattern::bytes(2, LEN))?;
        this.write(remote.as_span(), own.as_span(), Signal::Always, 3)?;
        completed(this.cq())?;
        others.load(0, &mut found)?;
        pattern::check(&found, 2)?;

        phase(format!("end {from} reads"));
        others.store(0, &pattern::bytes(3, LEN))?;
        this.read(own.as_span(), remote.as_span(), Signal::Always, 4)?;
        completed(this.cq())?;
        own.load(0, &mut found)?;
        pattern::check(&found, 3)?;
    }
    Ok(())
}

fn without_bytes() -> Outcome {
    const LEN: u64 = 64;
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, 64)?;
    let (client, server) = (&pair.client, &pair.server);
    let one = |what: &str, id| -> Outcome {
        ensure_eq!(completed(client.cq())?.op_context(), id, "{what}");
        ensure!(client.cq().poll_one()?.is_none(), "{what}: once more");
        Ok(())
    };
    for at in [0, 1, LEN] {
        let to = targets.of_server.span(at..at)?;
        let from = targets.client.span(at..at)?;
        client.write(to, from, Signal::Always, 1)?;
        one("write", 1)?;
        client.read(from, to, Signal::Always, 2)?;
        one("read", 2)?;
    }
    client.write(RemoteSpan::empty(), b"", Signal::Always, 3)?;
    one("a write to no region", 3)?;
    client.read(&[], RemoteSpan::empty(), Signal::Always, 4)?;
    one("a read of no region", 4)?;
    server.recv(&[], 5)?;
    client.send(b"", Signal::Always, 6)?;
    one("a send", 6)?;
    let received = completed(server.cq())?;
    ensure_eq!(received.op_context(), 5, "receive");
    ensure_eq!(received.result()?.byte_len(), 0, "bytes");
    // All of the region.
    client.write(
        targets.of_server.span(0..LEN)?,
        targets.client.span(0..LEN)?,
        Signal::Always,
        7,
    )?;
    one("all", 7)
}
