//! What cannot be done is refused with a sentence, a code and nothing else.

use harness::{Child, Need, Outcome, Test, device, ensure};

use crate::program::{LIMIT, Server, all_of, refused, rpma_ping, run, silent, test};

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "an_address_of_no_rdma_device_is_named_by_either_end",
            &device,
            no_device_there,
        ),
        test("a_size_of_nothing_is_refused", &[], size_0),
        test(
            "a_size_above_the_largest_message_is_refused_with_both_numbers",
            &device,
            size_above_the_limit,
        ),
        test(
            "a_number_is_read_by_one_strict_rule_in_every_option",
            &[],
            numbers,
        ),
        test(
            "a_number_with_a_suffix_or_leading_zeros_works_as_documented",
            &device,
            good_numbers,
        ),
        test("an_address_is_read_as_written_or_refused", &[], addresses),
        test(
            "an_ipv4_mapped_address_is_the_ipv4_address_in_it",
            &device,
            mapped_address,
        ),
        test("a_port_in_use_is_named", &device, port_in_use),
        test(
            "an_interface_that_this_machine_lacks_is_named",
            &device,
            no_interface,
        ),
    ]
}

/// Addresses that are this machine's but no RDMA device's, and one that is nobody's.
fn no_device_there() -> Outcome {
    for address in ["127.0.0.1", "::1", "203.0.113.1"] {
        let server = run(rpma_ping().args(["server", address]))?;
        let sentence = format!("{address} is not an address of an RDMA device of this machine");
        refused(
            &server,
            1,
            &["rpma-ping: cannot listen on ", &sentence, "\n  hint: "],
        )?;
        let loopback = run(rpma_ping().args(["--loopback", address]))?;
        refused(&loopback, 1, &[&sentence])?;
        let client = run(rpma_ping().args([address, "-W", "5", "-c", "1"]))?;
        let sentence = "rpma-ping: cannot find an RDMA device towards ";
        refused(&client, 1, &[sentence, address, "(errno ", "\n  hint: "])?;
    }
    Ok(())
}

fn size_0() -> Outcome {
    for arguments in [&["192.0.2.1", "-s", "0"][..], &["--loopback", "--size=0"]] {
        let finished = run(rpma_ping().args(arguments))?;
        refused(
            &finished,
            2,
            &["'0' for '--size", "allowed is 1 to 67108864"],
        )?;
    }
    Ok(())
}

fn size_above_the_limit() -> Outcome {
    let ip = device().ip.to_string();
    let beyond = run(rpma_ping().args([&ip, "-s", "67108865"]))?;
    refused(
        &beyond,
        2,
        &["'67108865' for '--size", "allowed is 1 to 67108864"],
    )?;
    let largest = rpma::Device::local(device().ip)?.max_message_size()?;
    if largest >= 64 << 20 {
        // The tool's own limit is below this device's: there is no size between the two.
        return Ok(());
    }
    let above = u64::from(largest) + 1;
    let sentence = format!(
        "the size {above} is above the largest message of the device {}, {largest} bytes",
        device().name
    );
    for arguments in [&[&*ip, "-W", "0"][..], &["--loopback", &*ip]] {
        let finished = run(rpma_ping().args(arguments).args(["-s", &above.to_string()]))?;
        refused(&finished, 2, &[&sentence, "\n  hint: "])?;
    }
    Ok(())
}

/// Texts that are no number, and numbers out of range, through the option where each is likeliest.
fn numbers() -> Outcome {
    for (option, value) in [
        ("--size", "-1"),
        ("--size", "4294967296"),
        ("--size", "1e3"),
        ("--size", "0x10"),
        ("--size", " 8"),
        ("--size", "8x"),
        ("--size", ""),
        ("--size", "1000000000000000000000000000000"),
        ("--count", "-1"),
        ("--count", "0"),
        ("--count", "1e3"),
        ("--count", "8x"),
        ("--count", ""),
        ("--count", "18446744073709551616"),
        ("--port", "-1"),
        ("--port", "0"),
        ("--port", "65536"),
        ("--port", "8x"),
        ("--port", "4294967297"),
        ("--interval", "-1"),
        ("--interval", "1e3"),
        ("--interval", "nan"),
        ("--interval", "3600.1"),
        ("--deadline", "-0.5"),
        ("--deadline", "inf"),
        ("--deadline", ""),
    ] {
        harness::phase(format!("{option} {value:?}"));
        // With the value as a word of its own, which may begin with a dash.
        let finished = run(rpma_ping().args(["192.0.2.1", option, value]))?;
        let named = format!("'{value}' for '{option}");
        refused(&finished, 2, &[&named, "allowed is ", "\n  hint: "])?;
    }
    let finished = run(rpma_ping().args(["server", "-p", "65536"]))?;
    refused(
        &finished,
        2,
        &["'65536' for '--port", "allowed is 0 to 65535"],
    )
}

fn good_numbers() -> Outcome {
    let ip = device().ip.to_string();
    for (size, bytes) in [("4k", 4096), ("4K", 4096), ("1KiB", 1024), ("08", 8)] {
        let finished = run(rpma_ping().args(["--loopback", &ip, "-c", "1", "-s", size]))?;
        let line = format!("): {bytes} bytes by ");
        silent(&finished, 0)?;
        ensure!(
            finished.stdout.contains(&line),
            "{size}: {}",
            all_of(&finished)
        );
    }
    // A count beyond 32 bits is a count: the run begins and can be interrupted.
    let server = Server::start(&["--once"])?;
    let client =
        Child::start(rpma_ping().args([&server.target, "-c", "4294967296", "-i", "0.05"]))?;
    server
        .child
        .wait_line(": 4294967296 rounds of 64 bytes", LIMIT)?;
    client.wait_line("seq=0 ", LIMIT)?;
    client.signal(libc::SIGINT)?;
    silent(&client.finish(LIMIT)?, 0)?;
    silent(&server.finish()?, 0)
}

fn addresses() -> Outcome {
    for (address, part) in [
        ("[::1", "brackets do not match"),
        ("::1]", "brackets do not match"),
        ("[::1]7204", "brackets do not match"),
        ("[::1]:65536", "the port \"65536\""),
        ("[::1]:", "the port \"\""),
        ("[192.0.2.1]:7204", "\"192.0.2.1\" is not an IPv6 address"),
        ("192.0.2.256", "\"192.0.2.256\" is not an IPv4 address"),
        ("192.0.2.1:70000", "the port \"70000\""),
        ("::1::2", "\"::1::2\" is not an IPv6 address"),
        ("fe80::1%", "the interface \"\""),
        ("", "the address is empty"),
        ("host name", "\"host name\" is neither"),
    ] {
        harness::phase(format!("address {address:?}"));
        let finished = run(rpma_ping().arg(address))?;
        refused(&finished, 2, &[part])?;
    }
    // What looks like an address with a port but is an address as a whole is used as one.
    let finished = run(rpma_ping().args(["2001:db8::1:7204", "-W", "0", "-c", "1"]))?;
    refused(&finished, 1, &["[2001:db8::1:7204]:7204"])
}

fn mapped_address() -> Outcome {
    let ip = device().ip;
    let server = Server::start(&["--once"])?;
    let port = server.addr()?.port();
    let mapped = format!("[::ffff:{ip}]:{port}");
    let client = run(rpma_ping().args([&mapped, "-c", "1"]))?;
    silent(&client, 0)?;
    ensure!(
        client
            .stdout
            .contains(&format!("rpma-ping {ip}:{port} (device ")),
        "{}",
        all_of(&client)
    );
    silent(&server.finish()?, 0)
}

fn port_in_use() -> Outcome {
    let server = Server::start(&[])?;
    let second = run(rpma_ping().args(["server", &server.target]))?;
    refused(
        &second,
        1,
        &[
            &format!("rpma-ping: cannot listen on {}: ", server.target),
            "(errno 98)",
            "\n  hint: ",
        ],
    )?;
    silent(&server.stop()?, 0)
}

fn no_interface() -> Outcome {
    for words in [
        &["fe80::1%nosuchif0"][..],
        &["server", "[fe80::1%nosuchif0]:0"],
    ] {
        let finished = run(rpma_ping().args(words))?;
        refused(&finished, 1, &["no network interface nosuchif0"])?;
    }
    Ok(())
}
