//! What devices may have or not: what this one has works, and the rest says that it is not there.

use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;

use harness::{Need, Outcome, Test, device, ensure, ensure_eq, test};
use rpma::cm::verbs::{
    AccessFlags, Address, AddressHandle, Advice, CompletionQueue, ErrorKind, ForkSupport, Gid,
    MemoryRegion, ProtectionDomain, QpType, QueuePair, RemoteAddr, SendRequest, fork_support,
};

use super::by_hand::{End, QKEY, gid, pair};
use super::objects::open;
use crate::raw::{Buffer, try_poll};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        test(
            "a_completion_queue_is_resized_and_keeps_its_content_and_its_promises",
            &[Need::Device],
            resized,
        ),
        test(
            "a_group_is_received_from_until_it_is_left_and_the_drop_leaves_it",
            &[Need::Device],
            multicast,
        ),
        test(
            "a_region_is_named_by_the_address_that_was_chosen_for_it",
            &[Need::Device],
            chosen_address,
        ),
        test(
            "a_dma_buffer_is_unsupported_here_and_a_prefetch_without_paging_on_demand_is_refused",
            &[Need::Device],
            unsupported,
        ),
        test(
            "the_gid_and_partition_key_tables_are_told_entry_by_entry",
            &[Need::Device],
            tables,
        ),
        test(
            "the_kernel_copies_registered_pages_at_a_fork",
            &[Need::Device],
            fork,
        ),
    ]
}

fn resized() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let before = one.send_cq.entries();
    for wr_id in 0..8 {
        two.recv(wr_id)?;
        one.post(SendRequest::send(wr_id, &[]))?;
    }
    for wr_id in 0..8 {
        two.received(wr_id)?;
    }
    one.send_cq.resize(1000)?;
    ensure!(one.send_cq.entries() >= 1000, "{:?}", one.send_cq);
    for wr_id in 0..8 {
        one.sent(wr_id)?;
    }
    // Not below what the queue pair may need.
    let error = one.send_cq.resize(1).err().ok_or("below the promise")?;
    ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
    ensure!(one.send_cq.entries() >= 1000, "{:?}", one.send_cq);
    one.send_cq.resize(before)?;
    ensure!(
        (before..1000).contains(&one.send_cq.entries()),
        "{:?}",
        one.send_cq
    );
    let max = one.pd.context().attributes().max_cqe();
    for entries in [0, max + 1] {
        let error = one.send_cq.resize(entries).err().ok_or("resized")?;
        ensure_eq!(error.kind(), ErrorKind::Limit, "{error}");
        ensure!(error.to_string().contains(&entries.to_string()), "{error}");
    }
    // The room that came with a larger queue can be promised.
    let context = one.pd.context();
    let cq = CompletionQueue::builder(context, 8).build()?;
    let build = || {
        QueuePair::builder(&one.pd, QpType::RC, &cq, &cq)
            .max_send_wr(64)
            .max_recv_wr(64)
            .build()
    };
    ensure!(build().is_err(), "no room for it yet");
    cq.resize(512)?;
    build()?;
    Ok(())
}

fn multicast() -> Outcome {
    let context = open()?;
    // RoCE v2 has the group's IP address as its GID.
    let group: Ipv6Addr = if device().ip.is_ipv4() {
        "::ffff:239.1.2.3".parse()?
    } else {
        "ff0e::1:2:3".parse()?
    };
    // On Ethernet the host has to be in the group as well: a socket joins it.
    let socket = match device().ip {
        IpAddr::V4(ip) => {
            let socket = UdpSocket::bind((ip, 0))?;
            socket.join_multicast_v4(&group.to_ipv4_mapped().ok_or("IPv4")?, &ip)?;
            socket
        }
        IpAddr::V6(ip) => {
            let socket = UdpSocket::bind((ip, 0))?;
            socket.join_multicast_v6(&group, gid(&context)?.entry.interface)?;
            socket
        }
    };
    let group = Gid(group.octets());
    let receiver = End::new(&ProtectionDomain::new(&context)?, QpType::UD, |qp| qp)?;
    let sender = End::new(&ProtectionDomain::new(&context)?, QpType::UD, |qp| qp)?;
    receiver.connect(&sender)?;
    sender.connect(&receiver)?;
    receiver.qp.attach_multicast(group, 0)?;
    let address = Address::roce(device().port, gid(&context)?.sgid_index()?, group);
    let address = AddressHandle::new(&sender.pd, &address)?;
    let send = |wr_id| -> Outcome {
        let sges = [sender.buffer.sge(0, 5)];
        sender.post(SendRequest::datagram(
            wr_id, &sges, &address, 0xff_ffff, QKEY,
        ))?;
        sender.sent(wr_id)?;
        Ok(())
    };
    sender.buffer.store(0, b"group");
    receiver.recv(1)?;
    send(2)?;
    receiver.received(1)?;
    ensure_eq!(receiver.buffer.load(4096 + 40, 5), b"group", "data");

    receiver.recv(3)?;
    receiver.qp.detach_multicast(group, 0)?;
    send(4)?;
    ensure!(
        try_poll(&receiver.recv_cq)?.is_none(),
        "left, and yet received"
    );
    let error = receiver
        .qp
        .detach_multicast(group, 0)
        .err()
        .ok_or("left twice")?;
    ensure!(error.errno().is_some(), "{error}");
    // Attached again, the drop has to leave the group, or the queue pair would stay for good.
    receiver.qp.attach_multicast(group, 0)?;
    let End { qp, .. } = receiver;
    qp.close()?;
    drop(socket);
    Ok(())
}

fn chosen_address() -> Outcome {
    let (one, two) = pair(QpType::RC)?;
    let memory = Buffer::new(&two.pd, 4096)?;
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let iova = 0x1_0000_0000;
    // SAFETY: the memory is freed after the region, and no reference to it is formed.
    let region =
        unsafe { MemoryRegion::register_at(&two.pd, memory.region().addr(), 4096, iova, access) }?;
    ensure_eq!(region.iova(), iova, "address");
    one.buffer.store(0, b"chosen");
    let remote = RemoteAddr {
        addr: iova + 16,
        rkey: region.rkey(),
    };
    one.post(SendRequest::write(1, &[one.buffer.sge(0, 6)], remote))?;
    one.sent(1)?;
    ensure_eq!(memory.load(16, 6), b"chosen", "data");
    region.close()?;
    Ok(())
}

fn unsupported() -> Outcome {
    let pd = ProtectionDomain::new(&open()?)?;
    let file = std::fs::File::open("/dev/zero")?;
    // SAFETY: a file that is no DMA buffer has no memory to answer for.
    let region = unsafe {
        MemoryRegion::register_dmabuf(&pd, file.as_fd(), 0, 4096, 0, AccessFlags::LOCAL_WRITE)
    };
    let error = region.err().ok_or("a DMA buffer was registered")?;
    ensure_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let buffer = Buffer::new(&pd, 4096)?;
    let sges = [buffer.sge(0, 4096)];
    let error = MemoryRegion::prefetch(&pd, &sges, Advice::PREFETCH, true).err();
    let error = error.ok_or("a prefetch without paging on demand")?;
    ensure!(
        error.kind() == ErrorKind::Unsupported || error.errno() == Some(libc::EINVAL),
        "{error}"
    );
    Ok(())
}

fn tables() -> Outcome {
    let context = open()?;
    let port = device().port;
    let choice = gid(&context)?;
    ensure_eq!(choice.entry.gid.ip(), device().ip, "address");
    let again = context.gid_entry(port, choice.entry.index)?;
    ensure_eq!(again, choice.entry, "the same entry by its index");
    let path = format!("/sys/class/net/{}/ifindex", device().interface);
    let interface: u32 = std::fs::read_to_string(path)?.trim().parse()?;
    ensure_eq!(choice.entry.interface, interface, "interface");
    let len = context.query_port(port)?.gid_table_len();
    let error = context.gid_entry(port, len).err().ok_or("past the table")?;
    ensure_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    let error = context
        .gid_entry(port, len - 1)
        .err()
        .ok_or("an empty entry")?;
    ensure_eq!(error.errno(), Some(libc::ENODATA), "{error}");

    let key = context.pkey(port, 0)?;
    ensure_eq!(key, 0xffff, "the default partition");
    ensure_eq!(context.pkey_index(port, key)?, 0, "its index");
    ensure!(
        context.pkey_index(port, 0x1234).is_err(),
        "a key that is not there"
    );
    Ok(())
}

fn fork() -> Outcome {
    ensure_eq!(fork_support(), ForkSupport::UNNEEDED, "support");
    Ok(())
}
