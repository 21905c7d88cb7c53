//! Users who may not do everything, and machines that lack something.

use std::process::Command;

use harness::{Need, Outcome, SECOND, Test, device, ensure};

use crate::program::{
    Server, as_plain_user, explained, in_time, refused, rpma_ping, run, silent, test, timed,
};

pub(crate) fn tests() -> Vec<Test> {
    let plain = [Need::Device, Need::Root, Need::Tool("setpriv")];
    let limited = [
        Need::Device,
        Need::Root,
        Need::Tool("setpriv"),
        Need::Tool("prlimit"),
    ];
    let hidden = [
        Need::Device,
        Need::Root,
        Need::Tool("setpriv"),
        Need::Tool("unshare"),
    ];
    vec![
        test("a_plain_user_can_ping_and_serve", &plain, plain_user),
        test(
            "a_port_that_needs_rights_is_refused_with_advice",
            &plain,
            port_1,
        ),
        test(
            "a_limit_of_locked_memory_is_named_in_kib_by_the_end_that_meets_it",
            &limited,
            locked_memory,
        ),
        test(
            "a_machine_without_device_files_is_told_the_file_the_errno_and_the_module_at_once",
            &hidden,
            no_device_files,
        ),
        test(
            "a_device_file_without_permission_is_named_with_the_errno_at_once",
            &hidden,
            no_permission,
        ),
    ]
}

fn plain_user() -> Outcome {
    let ip = device().ip.to_string();
    let server = Server::from(as_plain_user(&[]).args(["server", &ip, "-p", "0", "--once"]))?;
    let client =
        run(as_plain_user(&[]).args([&server.target, "-c", "5", "-i", "0", "-s", "4k", "-q"]))?;
    silent(&client, 0)?;
    silent(&server.finish()?, 0)?;
    let loopback = run(as_plain_user(&[]).args(["--loopback", &ip, "-c", "2", "-i", "0"]))?;
    silent(&loopback, 0)
}

fn port_1() -> Outcome {
    let ip = device().ip.to_string();
    for arguments in [
        &["server", &ip, "-p", "1"][..],
        &["--loopback", &ip, "-p", "1"],
    ] {
        let finished = run(as_plain_user(&[]).args(arguments))?;
        refused(
            &finished,
            1,
            &[
                &format!("rpma-ping: cannot listen on {}: ", device().addr(1)),
                "(errno 13)",
                "\n  hint: ports below 1024 need ",
            ],
        )?;
    }
    // Where nobody may listen, nobody does: for a client that port is as good as any.
    let client = run(as_plain_user(&[]).args([&ip, "-p", "1", "-W", "0"]))?;
    refused(&client, 1, &["no listener at "])
}

fn locked_memory() -> Outcome {
    let ip = device().ip.to_string();
    let limited = ["prlimit", "--memlock=65536:65536", "--"];
    let told = ["64 KiB", "(errno 12)", "\n  hint: "];

    let mut loopback = as_plain_user(&limited);
    loopback.args(["--loopback", &ip, "-c", "1", "-s", "1M"]);
    explained(&run(&mut loopback)?, 1, &told)?;

    // The client meets it, and the server goes on.
    let server = Server::start(&[])?;
    let mut client = as_plain_user(&limited);
    client.args([&server.target, "-c", "1", "-s", "1M"]);
    explained(&run(&mut client)?, 1, &told)?;
    silent(&run(&mut server.client(&["-c", "1", "-s", "1M"]))?, 0)?;
    explained(&server.stop()?, 0, &[])?;

    // The server meets it, and its client is told.
    let mut command = as_plain_user(&limited);
    command.args(["server", &ip, "-p", "0"]);
    let server = Server::from(&mut command)?;
    let client = run(&mut server.client(&["-c", "1", "-s", "1M", "-W", "5"]))?;
    refused(
        &client,
        1,
        &[&format!("the server at {} refused: ", server.target)],
    )?;
    explained(&server.stop()?, 0, &told)
}

/// A command in a namespace of its own, with an own folder of device files, and after shell commands
/// that fill it.
fn hidden(command: &Command, prepare: &str) -> Command {
    let script = format!("mount -t tmpfs none /dev/infiniband && {prepare} && exec \"$@\"");
    let mut hidden = Command::new("unshare");
    hidden
        .args(["--mount", "sh", "-c", &script, "sh"])
        .arg(command.get_program())
        .args(command.get_args());
    hidden
}

/// Runs a command that must fail with `parts` within a second of what `--help` takes it.
fn at_once(
    command: impl Fn() -> Command,
    arguments: &[&str],
    code: i32,
    parts: &[&str],
) -> Outcome {
    in_time(|| {
        let (help, bare) = timed(command().arg("--help"))?;
        silent(&help, 0)?;
        ensure!(help.stdout.contains("Usage: "), "{}", help.stdout);
        let (finished, took) = timed(command().args(arguments))?;
        refused(&finished, code, parts)?;
        Ok((took, SECOND + bare))
    })
}

fn no_device_files() -> Outcome {
    let ip = device().ip.to_string();
    for arguments in [&[&*ip, "-W", "10"][..], &["server"]] {
        harness::phase(format!("{arguments:?}"));
        at_once(
            || hidden(&rpma_ping(), "true"),
            arguments,
            1,
            &["/dev/infiniband/rdma_cm", "(errno 2)", "modprobe rdma_ucm"],
        )?;
    }
    Ok(())
}

fn no_permission() -> Outcome {
    let ip = device().ip.to_string();
    // The same devices under the same names, one of which nobody but root may open.
    let copies = "for file in /sys/class/infiniband_verbs/uverbs*; do \
                    mknod /dev/infiniband/$(basename $file) c $(tr : ' ' < $file/dev); \
                  done && \
                  mknod /dev/infiniband/rdma_cm c $(tr : ' ' < /sys/class/misc/rdma_cm/dev) && \
                  chmod 666 /dev/infiniband/*";
    let plain = as_plain_user(&[]);
    // All of them open: this shows that only the mode is the matter below.
    let mut open = hidden(&plain, copies);
    silent(&run(open.args(["--loopback", &ip, "-c", "1"]))?, 0)?;
    for (file, arguments) in [
        ("rdma_cm", &[&*ip, "-W", "10"][..]),
        ("uverbs*", &["server", &ip]),
    ] {
        let closed = format!("{copies} && chmod 000 /dev/infiniband/{file}");
        let path = format!("/dev/infiniband/{}", file.trim_end_matches('*'));
        harness::phase(format!("{file} closed, {arguments:?}"));
        at_once(
            || hidden(&plain, &closed),
            arguments,
            1,
            &[&path, "(errno 13)", "permission"],
        )?;
    }
    Ok(())
}
