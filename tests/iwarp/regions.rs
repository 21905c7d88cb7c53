//! Operations between regions over iWARP.

use harness::{
    Need, Outcome, Pair, Targets, Test, WAIT, completed, ensure, ensure_eq, pattern, phase, test,
};
use rpma::{ConnectionEvent, ErrorKind, FlushType, Signal};

pub(crate) fn tests() -> Vec<Test> {
    let device = &[Need::Device];
    vec![
        test(
            "over_iwarp_every_operation_moves_every_byte_both_ways",
            device,
            operations,
        ),
        test(
            "over_iwarp_what_the_transport_lacks_is_unsupported_with_advice_for_regions_too",
            device,
            lacking,
        ),
        test(
            "over_iwarp_either_side_ends_a_connection_of_regions",
            device,
            ends,
        ),
    ]
}

const LEN: usize = 20_000;

/// The side that asked for the connection sends first: a rule of iWARP.
fn first_message(pair: &Pair, targets: &Targets) -> Outcome {
    pair.server.recv(targets.server.as_span(), 1)?;
    pair.client
        .send(targets.client.as_span(), Signal::Always, 2)?;
    ensure_eq!(completed(pair.client.cq())?.op_context(), 2, "send");
    ensure_eq!(completed(pair.server.cq())?.op_context(), 1, "receive");
    Ok(())
}

fn operations() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, LEN)?;
    targets.client.store(0, &pattern::bytes(1, LEN))?;
    first_message(&pair, &targets)?;
    let mut found = vec![0; LEN];
    targets.server.load(0, &mut found)?;
    pattern::check(&found, 1)?;
    let ends = [
        (&pair.client, &targets.client, &targets.of_server),
        (&pair.server, &targets.server, &targets.of_client),
    ];
    for (number, other) in [(0, 1), (1, 0)] {
        let (this, own, remote) = ends[number];
        let (others_end, others, _) = ends[other];
        phase(format!("end {number} sends"));
        own.store(0, &pattern::bytes(2, LEN))?;
        others_end.recv(others.as_span(), 10)?;
        this.send(own.as_span(), Signal::Always, 11)?;
        ensure_eq!(completed(this.cq())?.op_context(), 11, "send");
        ensure_eq!(completed(others_end.cq())?.op_context(), 10, "receive");
        others.load(0, &mut found)?;
        pattern::check(&found, 2)?;

        phase(format!("end {number} writes and flushes"));
        own.store(0, &pattern::bytes(3, LEN))?;
        this.write(remote.as_span(), own.as_span(), Signal::OnError, 20)?;
        this.flush(remote.as_span(), FlushType::Visibility, Signal::Always, 21)?;
        ensure_eq!(completed(this.cq())?.op_context(), 21, "flush");
        others.load(0, &mut found)?;
        pattern::check(&found, 3)?;

        phase(format!("end {number} writes a word"));
        let word = *b"one word";
        this.atomic_write(remote.span(8..16)?, word, Signal::OnError, 30)?;
        this.flush(
            remote.span(8..16)?,
            FlushType::Visibility,
            Signal::Always,
            31,
        )?;
        ensure_eq!(completed(this.cq())?.op_context(), 31, "flush");
        others.load(8, &mut found[..8])?;
        ensure_eq!(found[..8], word, "the word");

        phase(format!("end {number} reads"));
        others.store(0, &pattern::bytes(4, LEN))?;
        this.read(own.as_span(), remote.as_span(), Signal::Always, 40)?;
        ensure_eq!(completed(this.cq())?.op_context(), 40, "read");
        own.load(0, &mut found)?;
        pattern::check(&found, 4)?;
    }
    Ok(())
}

fn lacking() -> Outcome {
    let pair = Pair::new()?;
    let targets = Targets::new(&pair, LEN)?;
    first_message(&pair, &targets)?;
    let (client, remote, always) = (&pair.client, &targets.of_server, Signal::Always);
    let own = targets.client.span(..8)?;
    let there = remote.span(..8)?;
    let errors = [
        client.send_with_imm(own, 7, always, 1),
        client.write_with_imm(there, own, 7, always, 1),
        client.fetch_add(own, there, 1, always, 1),
        client.compare_swap(own, there, 1, 2, always, 1),
    ];
    for (number, posted) in errors.into_iter().enumerate() {
        let error = posted
            .err()
            .ok_or(format!("operation {number} was taken"))?;
        ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        ensure!(text.contains("message of its own"), "no advice: {text}");
    }
    first_message(&pair, &targets)
}

fn ends() -> Outcome {
    for client_ends in [true, false] {
        let pair = Pair::new()?;
        let targets = Targets::new(&pair, LEN)?;
        first_message(&pair, &targets)?;
        let (one, other) = if client_ends {
            (&pair.client, &pair.server)
        } else {
            (&pair.server, &pair.client)
        };
        pair.client.recv(targets.client.as_span(), 5)?;
        pair.server.recv(targets.server.as_span(), 5)?;
        one.disconnect()?;
        for end in [other, one] {
            ensure_eq!(end.next_event(WAIT)?, ConnectionEvent::Closed, "the end");
            let completion = end.cq().next(WAIT)?;
            ensure_eq!(completion.op_context(), 5, "the receive");
            ensure!(completion.result().is_err(), "it succeeded");
        }
    }
    Ok(())
}
