//! Flush and atomic write as operations of the device.

use harness::{
    Need, Outcome, Pair, Targets, Test, WAIT, completed, device, ensure, ensure_eq, listen,
    pattern, rounds, test,
};
use rpma::{
    AtomicWriteMethod, Connection, ConnectionConfig, ConnectionRequest, Device, FlushMethod,
    FlushType, LocalRegion, Opcode, Peer, PrivateData, RemoteRegion, Signal, Status, Usage,
};

pub(crate) fn tests() -> Vec<Test> {
    let needs = &[Need::Device, Need::Native];
    vec![
        test(
            "native_flush_makes_writes_visible_before_the_next_message",
            needs,
            order,
        ),
        test(
            "native_operations_of_one_side_do_not_bind_the_other",
            needs,
            mixed,
        ),
        test(
            "native_flush_of_a_region_that_is_not_for_it_fails_by_name",
            needs,
            not_registered,
        ),
    ]
}

fn native() -> ConnectionConfig {
    let mut config = ConnectionConfig::default();
    config.set_native_operations(true);
    config
}

/// A record, flushed, and then the word that says so.
fn record(end: &Connection, remote: &RemoteRegion, owner: &LocalRegion, native: bool) -> Outcome {
    let to = remote.span(64..72)?;
    let word = remote.span(8..16)?;
    end.write(to, b"recorded", Signal::OnError, 1)?;
    end.flush(to, FlushType::Visibility, Signal::Always, 2)?;
    end.atomic_write(word, *b"is there", Signal::Always, 3)?;
    let (methods, expected) = if native {
        let methods = (FlushMethod::Native, AtomicWriteMethod::Native);
        (methods, [Opcode::FLUSH, Opcode::ATOMIC_WRITE])
    } else {
        let methods = (FlushMethod::Read, AtomicWriteMethod::Write);
        (methods, [Opcode::RDMA_READ, Opcode::RDMA_WRITE])
    };
    for flush_type in [FlushType::Visibility, FlushType::Persistent] {
        ensure_eq!(end.flush_method(flush_type), methods.0, "{flush_type:?}");
    }
    ensure_eq!(end.atomic_write_method(), methods.1, "atomic write");
    for (context, opcode) in [2, 3].into_iter().zip(expected) {
        let done = completed(end.cq())?;
        ensure_eq!(
            (done.op_context(), done.opcode()),
            (context, Some(opcode)),
            "done"
        );
    }
    let mut found = [0; 8];
    owner.load(64, &mut found)?;
    ensure_eq!(&found, b"recorded", "record");
    owner.load(8, &mut found)?;
    ensure_eq!(&found, b"is there", "word");
    Ok(())
}

/// Rounds of a pattern that is written, flushed, and then told of.
fn order() -> Outcome {
    const LEN: usize = 4096;
    let pair = Pair::with(&native())?;
    let targets = Targets::new(&pair, LEN)?;
    let to = targets.of_server.as_span();
    let mut found = vec![0; LEN];
    for round in 0..rounds(20, 10_000) {
        targets
            .client
            .store(0, &pattern::bytes(round as u64, LEN))?;
        let context = round as u64 * 2;
        pair.server.recv(&[], context)?;
        pair.client
            .write(to, targets.client.as_span(), Signal::OnError, context)?;
        pair.client
            .flush(to, FlushType::Visibility, Signal::Always, context)?;
        let flushed = completed(pair.client.cq())?;
        ensure_eq!(
            (flushed.op_context(), flushed.opcode()),
            (context, Some(Opcode::FLUSH)),
            "flush"
        );
        pair.client
            .send_with_imm(b"", u32::try_from(round)?, Signal::Always, context + 1)?;
        let told = completed(pair.server.cq())?;
        ensure_eq!(told.imm(), Some(u32::try_from(round)?), "round told");
        targets.server.load(0, &mut found)?;
        pattern::check(&found, round as u64)?;
        ensure_eq!(
            completed(pair.client.cq())?.op_context(),
            context + 1,
            "send"
        );
        ensure!(
            pair.client.cq().poll_one()?.is_none(),
            "a flush completes once"
        );
    }
    Ok(())
}

fn mixed() -> Outcome {
    for client_natively in [true, false] {
        let (server_peer, endpoint) = listen()?;
        let client_peer = Peer::new(&Device::local(device().ip)?)?;
        let (of_client, of_server) = if client_natively {
            (native(), ConnectionConfig::default())
        } else {
            (ConnectionConfig::default(), native())
        };
        let request = ConnectionRequest::new(&client_peer, endpoint.local_addr(), &of_client)?;
        let client = request.connect(PrivateData::none())?;
        let request = endpoint.next_connection_request(&of_server, WAIT)?;
        let server = request.connect(PrivateData::none())?;
        client.wait_established(WAIT)?;
        server.wait_established(WAIT)?;
        let pair = Pair {
            client,
            server,
            client_peer,
            server_peer,
        };
        let targets = Targets::new(&pair, 4096)?;
        record(
            &pair.client,
            &targets.of_server,
            &targets.server,
            client_natively,
        )?;
        record(
            &pair.server,
            &targets.of_client,
            &targets.client,
            !client_natively,
        )?;
    }
    Ok(())
}

fn not_registered() -> Outcome {
    let pair = Pair::with(&native())?;
    // As a peer that only knows flushes by reading registers it.
    let region = LocalRegion::alloc(&pair.server_peer, 64, Usage::READ_SRC)?;
    let mut descriptor = region.descriptor();
    descriptor[20] = Usage::FLUSH_VISIBILITY.bits();
    let remote = RemoteRegion::from_descriptor(&descriptor)?;
    pair.client
        .flush(remote.as_span(), FlushType::Visibility, Signal::OnError, 9)?;
    let done = pair.client.cq().next(WAIT)?;
    ensure_eq!(done.op_context(), 9, "number");
    let error = done.result().err().ok_or("flushed what is not for it")?;
    ensure_eq!(error.status, Status::REM_ACCESS_ERR, "status");
    Ok(())
}
