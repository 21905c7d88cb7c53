//! Rounds in which something is wrong on purpose: verification must see it, name it and tell both
//! ends.

use harness::{Need, Outcome, Test, ensure};

use crate::program::{Server, all_of, explained, rpma_ping, run, test};

pub(crate) fn tests() -> Vec<Test> {
    let device = [Need::Device];
    vec![
        test(
            "a_byte_flipped_by_the_client_is_named_by_both_ends",
            &device,
            || flips("client"),
        ),
        test(
            "a_byte_flipped_by_the_server_is_named_by_both_ends",
            &device,
            || flips("server"),
        ),
        test(
            "an_operation_that_moves_nothing_leaves_poison_in_every_byte",
            &device,
            skips,
        ),
        test(
            "every_byte_is_verified_up_to_the_last_one",
            &device,
            the_last_byte,
        ),
    ]
}

/// One run with a hook on one side; both ends must end with 1 and say all of `parts`.
fn damaged(hook: &str, value: &str, on_server: bool, size: &str, parts: &[&str]) -> Outcome {
    harness::phase(format!("{hook}={value}"));
    let ip = harness::device().ip.to_string();
    let mut command = rpma_ping();
    command.args(["server", &ip, "-p", "0", "--once"]);
    if on_server {
        command.env(hook, value);
    }
    let server = Server::from(&mut command)?;
    let mut command = server.client(&["-c", "3", "-i", "0", "-s", size]);
    if !on_server {
        command.env(hook, value);
    }
    let client = run(&mut command)?;
    explained(&client, 1, parts)?;
    ensure!(
        client
            .stdout
            .contains(": 3 sent, 3 received, 0 lost, 1 wrong in "),
        "{value}: the round came back and counts as wrong: {}",
        all_of(&client)
    );
    let server = server.finish()?;
    explained(&server, 1, parts)?;
    ensure!(
        server
            .stdout
            .contains(": ended, 3 received, 0 lost, 1 wrong"),
        "{value}: {}",
        all_of(&server)
    );
    Ok(())
}

/// Who sees a byte that `side` flipped: the end that the bytes go to.
fn seen_by(side: &str, operation: &str) -> &'static str {
    match (side, operation) {
        ("client", "read") | ("server", "send" | "read") => "client",
        _ => "server",
    }
}

fn flips(side: &str) -> Outcome {
    for (operation, offset) in [("send", 0), ("write", 17), ("read", 4095), ("flush", 2048)] {
        let place = format!("operation {operation}, sequence 1, offset {offset}: expected 0x");
        let seen = format!("(seen by the {})", seen_by(side, operation));
        damaged(
            "RPMA_PING_TEST_FLIP",
            &format!("{side}:{operation}:{offset}@1"),
            side == "server",
            "4096",
            &[&place, &seen],
        )?;
    }
    Ok(())
}

fn skips() -> Outcome {
    for operation in ["write", "read", "flush"] {
        let place = format!("operation {operation}, sequence 2, offset 0: expected 0x");
        let seen = format!(
            "(seen by the {}, 1000 bytes wrong)",
            seen_by("client", operation)
        );
        damaged(
            "RPMA_PING_TEST_SKIP",
            &format!("{operation}@2"),
            false,
            "1000",
            &[&place, &seen],
        )?;
    }
    Ok(())
}

/// Sizes that are no multiple of a word or of a packet.
fn the_last_byte() -> Outcome {
    for (size, operation) in [(1, "write"), (7, "send"), (65537, "read")] {
        let offset = size - 1;
        let place = format!("operation {operation}, sequence 0, offset {offset}: expected 0x");
        damaged(
            "RPMA_PING_TEST_FLIP",
            &format!("client:{operation}:{offset}@0"),
            false,
            &size.to_string(),
            &[&place],
        )?;
    }
    Ok(())
}
