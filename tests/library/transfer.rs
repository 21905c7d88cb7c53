//! Data over a connection: every operation, verified byte by byte.

use harness::{Need, Outcome, Pair, Targets, Test, completed, ensure_eq, pattern, test};
use rpma::{FlushType, Signal};

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "every_operation_moves_every_byte",
        &[Need::Device],
        every_operation_moves_every_byte,
    )]
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
