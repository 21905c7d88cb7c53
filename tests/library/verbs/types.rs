//! The types of queue pairs, connected without rdma_cm: RC, UC and UD.

use harness::{Need, Outcome, Test, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    Address, AddressHandle, ErrorKind, InitAttributes, InlineRequest, PostErrorKind,
    ProtectionDomain, QpState, QpType, RemoteAddr, RemoteKey, RtsAttributes, SendFlags,
    SendRequest, WcFlags, WcOpcode, WrOpcode,
};

use super::by_hand::{End, QKEY, handle, pair};
use super::objects::open;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "rc_and_uc_queue_pairs_connect_without_rdma_cm",
            &[Need::Device],
            connected_types_work,
        ),
        test(
            "a_datagram_arrives_behind_its_header_and_is_answered_by_its_completion",
            &[Need::Device],
            datagrams,
        ),
        test(
            "an_inline_datagram_is_copied_before_the_call_returns_and_is_limited_to_what_was_granted",
            &[Need::Device],
            inline_datagrams,
        ),
        test(
            "an_operation_that_the_type_does_not_have_is_refused_before_the_device",
            &[Need::Device],
            refused_operations,
        ),
        test(
            "a_transition_for_another_type_or_state_is_refused_and_changes_nothing",
            &[Need::Device],
            refused_transitions,
        ),
        test(
            "a_query_tells_what_was_set_and_a_state_reached_alone",
            &[Need::Device],
            query,
        ),
        test(
            "an_address_handle_may_be_closed_once_its_sends_have_completed",
            &[Need::Device],
            handle_closed,
        ),
        test(
            "an_address_without_the_global_part_is_refused_on_roce_with_advice",
            &[Need::Device],
            address_without_route,
        ),
    ]
}

fn connected_types_work() -> Outcome {
    for qp_type in [QpType::RC, QpType::UC] {
        let (one, two) = pair(qp_type)?;
        for (from, to) in [(&one, &two), (&two, &one)] {
            to.recv(7)?;
            from.buffer.store(0, b"by hand");
            from.post(SendRequest::send_with_imm(3, &[from.buffer.sge(0, 7)], 42))?;
            from.sent(3)?;
            let completion = to.received(7)?;
            let success = completion.result()?;
            ensure_eq!(success.byte_len(), 7, "bytes");
            ensure_eq!(success.imm(), Some(42), "immediate");
            ensure_eq!(to.buffer.load(4096, 7), b"by hand", "{qp_type}");
        }
    }
    Ok(())
}

fn datagrams() -> Outcome {
    let (one, two) = pair(QpType::UD)?;
    let address = handle(&one.pd)?;
    two.recv(7)?;
    one.buffer.store(0, b"datagram");
    let sges = [one.buffer.sge(0, 8)];
    let number = two.qp.number();
    one.post(SendRequest::datagram_with_imm(
        3, &sges, &address, number, QKEY, 9,
    ))?;
    one.sent(3)?;
    let completion = two.received(7)?;
    let success = completion.result()?;
    ensure_eq!(success.byte_len(), 48, "the header's 40 bytes, and ours");
    ensure_eq!(success.src_qp(), one.qp.number(), "the sender");
    ensure_eq!(success.imm(), Some(9), "immediate");
    ensure!(success.flags().contains(WcFlags::GRH), "no header");
    ensure_eq!(two.buffer.load(4096 + 40, 8), b"datagram", "data");

    // The answer goes where the datagram came from, by nothing but the completion and the header.
    let grh: [u8; 40] = two.buffer.load(4096, 40).try_into().map_err(|_| "length")?;
    let back = AddressHandle::of_sender(&two.pd, device().port, &success, &grh)?;
    one.recv(8)?;
    two.buffer.store(0, b"answer");
    let sges = [two.buffer.sge(0, 6)];
    two.post(SendRequest::datagram(
        4,
        &sges,
        &back,
        success.src_qp(),
        QKEY,
    ))?;
    two.sent(4)?;
    ensure_eq!(one.received(8)?.result()?.byte_len(), 46, "answer");
    ensure_eq!(one.buffer.load(4096 + 40, 6), b"answer", "data");
    let clone = back.clone();
    let failed = back.close().err().ok_or("a handle in use was destroyed")?;
    ensure_eq!(failed.error.kind(), ErrorKind::Busy, "handle");
    drop(failed);
    clone.close()?;
    Ok(())
}

fn inline_datagrams() -> Outcome {
    let (one, two) = pair(QpType::UD)?;
    let address = handle(&one.pd)?;
    let number = two.qp.number();
    let max = one.qp.capabilities().max_inline_data;
    let most = max as usize;
    let mut data = vec![7_u8; most + 1];
    let long = InlineRequest::datagram(1, &data, &address, number, QKEY);
    let error = one.qp.post_inline(&long).err().ok_or("one byte more")?;
    let given = most as u64 + 1;
    ensure_eq!(
        error.kind,
        PostErrorKind::InlineTooLong { given, max },
        "{error}"
    );
    let flags = SendFlags::SIGNALED;
    two.recv(5)?;
    let plain = InlineRequest::datagram(2, &data[..most], &address, number, QKEY);
    one.qp.post_inline(&plain.with_flags(flags))?;
    // The data is no longer needed, whatever the device is doing.
    data.fill(9);
    one.sent(2)?;
    let completion = two.received(5)?;
    let success = completion.result()?;
    ensure_eq!(
        success.byte_len(),
        max + 40,
        "the header's 40 bytes, and ours"
    );
    ensure_eq!(two.buffer.load(4096 + 40, most), vec![7; most], "data");
    two.recv(6)?;
    let with_imm = InlineRequest::datagram_with_imm(3, &data[..5], &address, number, QKEY, 42);
    one.qp.post_inline(&with_imm.with_flags(flags))?;
    one.sent(3)?;
    let completion = two.received(6)?;
    ensure_eq!(completion.result()?.imm(), Some(42), "immediate");
    ensure_eq!(two.buffer.load(4096 + 40, 5), vec![9; 5], "data");
    Ok(())
}

fn refused_operations() -> Outcome {
    let remote = RemoteAddr {
        addr: 0,
        rkey: RemoteKey(0),
    };
    let (one, _two) = pair(QpType::UD)?;
    let refused = |mut request: SendRequest<'_>| {
        // SAFETY: the request has no memory.
        unsafe { one.qp.post_send(&mut request) }
    };
    let error = refused(SendRequest::write(1, &[], remote)).err();
    let error = error.ok_or("a UD queue pair wrote")?;
    ensure_eq!(
        error.kind,
        PostErrorKind::Unsupported(WrOpcode::RDMA_WRITE),
        "{error}"
    );
    let error = refused(SendRequest::send(1, &[])).err();
    let error = error.ok_or("a datagram went nowhere")?;
    ensure_eq!(error.kind, PostErrorKind::NoAddress, "{error}");
    // A handle of the same device opened again is of another device for the library.
    let foreign = handle(&ProtectionDomain::new(&open()?)?)?;
    let error = refused(SendRequest::datagram(1, &[], &foreign, 1, QKEY)).err();
    let error = error.ok_or("a foreign handle was taken")?;
    ensure_eq!(error.kind, PostErrorKind::NoAddress, "{error}");

    let (one, two) = pair(QpType::UC)?;
    // SAFETY: the request has no memory.
    let error = unsafe { one.qp.post_send(&mut SendRequest::read(1, &[], remote)) };
    let error = error.err().ok_or("a UC queue pair read")?;
    ensure_eq!(
        error.kind,
        PostErrorKind::Unsupported(WrOpcode::RDMA_READ),
        "{error}"
    );
    // The refusal left the queue pair as it was.
    two.recv(1)?;
    one.post(SendRequest::send(2, &[]))?;
    one.sent(2)?;
    ensure_eq!(
        two.received(1)?.result()?.opcode(),
        WcOpcode::RECV,
        "opcode"
    );
    Ok(())
}

fn refused_transitions() -> Outcome {
    let context = open()?;
    let pd = ProtectionDomain::new(&context)?;
    let datagram = End::new(&pd, QpType::UD, |qp| qp)?;
    let connected = End::new(&pd, QpType::RC, |qp| qp)?;
    let error = connected.qp.to_rtr_datagram().err().ok_or("RC")?;
    ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let error = connected.qp.to_rts(&RtsAttributes::new(0)).err();
    let error = error.ok_or("INIT to RTS")?;
    ensure_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    ensure!(error.to_string().contains("INIT"), "{error}");
    ensure_eq!(connected.qp.state(), QpState::INIT, "state");
    ensure_eq!(
        connected.qp.query()?.0.state(),
        Some(QpState::INIT),
        "state"
    );
    let port = context.attributes().port_count() + 1;
    datagram.qp.reset()?;
    let error = datagram.qp.to_init(&InitAttributes::new(port)).err();
    let error = error.ok_or("a port that does not exist")?;
    ensure_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    ensure_eq!(datagram.qp.state(), QpState::RESET, "state");
    Ok(())
}

fn query() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let (attributes, capabilities) = one.qp.query()?;
    ensure_eq!(attributes.state(), Some(QpState::RTS), "state");
    ensure_eq!(attributes.dest_qp_number(), two.qp.number(), "peer");
    ensure_eq!(attributes.port(), device().port, "port");
    let route = attributes.address().route.ok_or("no global part")?;
    ensure_eq!(route.dgid.ip(), device().ip, "the peer's address");
    ensure!(
        capabilities.max_send_wr >= one.qp.capabilities().max_send_wr,
        "{capabilities:?}"
    );
    // A write that the peer refuses brings both ends to the error state, by themselves.
    let remote = RemoteAddr {
        addr: 64,
        rkey: RemoteKey(0),
    };
    one.post(SendRequest::write(1, &[one.buffer.sge(0, 8)], remote))?;
    let completion = crate::raw::poll(&one.send_cq)?;
    ensure!(completion.result().is_err(), "{completion:?}");
    ensure_eq!(one.qp.state(), QpState::RTS, "nobody has asked yet");
    ensure_eq!(one.qp.query()?.0.state(), Some(QpState::ERR), "state");
    ensure_eq!(one.qp.state(), QpState::ERR, "recorded");
    Ok(())
}

fn handle_closed() -> Outcome {
    let (one, two) = pair(QpType::UD)?;
    let address = handle(&one.pd)?;
    let number = two.qp.number();
    two.recv(7)?;
    one.post(SendRequest::datagram(1, &[], &address, number, QKEY))?;
    one.sent(1)?;
    address.close()?;
    let again = handle(&one.pd)?;
    two.recv(8)?;
    one.post(SendRequest::datagram(2, &[], &again, number, QKEY))?;
    one.sent(2)?;
    two.received(7)?;
    two.received(8)?;
    Ok(())
}

fn address_without_route() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    let error = AddressHandle::new(&pd, &Address::infiniband(device().port, 0)).err();
    let error = error.ok_or("RoCE took an address without the global part")?;
    ensure_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    let hint = error.hint().unwrap_or_default();
    ensure!(hint.contains("Address::roce"), "{hint}");
    Ok(())
}
