//! Users who may not do everything, and machines that lack something.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use harness::{Failed, Need, Outcome, SECOND, Test, device, ensure, test};

use crate::program::{PROGRAM, Server, explained, in_time, refused, run, silent, timed};

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

/// The program where every user can start it: the folder it is built in may be its owner's only.
struct ForAll(PathBuf);

impl ForAll {
    fn new() -> Result<Self, Failed> {
        let folder = std::env::temp_dir().join(format!("rpma-ping-for-all-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let copy = Self(folder);
        fs::copy(PROGRAM, copy.program())?;
        for path in [&copy.0, &copy.program()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
        }
        Ok(copy)
    }

    fn program(&self) -> PathBuf {
        self.0.join("rpma-ping")
    }

    /// The program as the user nobody, without any capability.
    fn command(&self) -> Command {
        self.under(&[])
    }

    /// The same, with a command between the user and the program.
    fn under(&self, wrapper: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--inh-caps=-all",
                "--bounding-set=-all",
                "--",
            ])
            .args(wrapper)
            .arg(self.program());
        command
    }
}

impl Drop for ForAll {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn plain_user() -> Outcome {
    let program = ForAll::new()?;
    let ip = device().ip.to_string();
    let server = Server::from(program.command().args(["server", &ip, "-p", "0", "--once"]))?;
    let client =
        run(program
            .command()
            .args([&server.target, "-c", "5", "-i", "0", "-s", "4k", "-q"]))?;
    silent(&client, 0)?;
    silent(&server.finish()?, 0)?;
    let loopback = run(program
        .command()
        .args(["--loopback", &ip, "-c", "2", "-i", "0"]))?;
    silent(&loopback, 0)
}

fn port_1() -> Outcome {
    let program = ForAll::new()?;
    let ip = device().ip.to_string();
    for arguments in [
        &["server", &ip, "-p", "1"][..],
        &["--loopback", &ip, "-p", "1"],
    ] {
        let finished = run(program.command().args(arguments))?;
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
    let client = run(program.command().args([&ip, "-p", "1", "-W", "0"]))?;
    refused(&client, 1, &["no listener at "])
}

fn locked_memory() -> Outcome {
    let program = ForAll::new()?;
    let ip = device().ip.to_string();
    let limited = ["prlimit", "--memlock=65536:65536", "--"];
    let told = ["64 KiB", "(errno 12)", "\n  hint: "];

    let mut loopback = program.under(&limited);
    loopback.args(["--loopback", &ip, "-c", "1", "-s", "1M"]);
    explained(&run(&mut loopback)?, 1, &told)?;

    // The client meets it, and the server goes on.
    let server = Server::start(&[])?;
    let mut client = program.under(&limited);
    client.args([&server.target, "-c", "1", "-s", "1M"]);
    explained(&run(&mut client)?, 1, &told)?;
    silent(&run(&mut server.client(&["-c", "1", "-s", "1M"]))?, 0)?;
    explained(&server.stop()?, 0, &[])?;

    // The server meets it, and its client is told.
    let mut command = program.under(&limited);
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

/// Shell commands that run in a namespace of their own, with an own folder of device files, before
/// the program.
fn hidden(program: &[&str], prepare: &str) -> Command {
    let script = format!("mount -t tmpfs none /dev/infiniband && {prepare} && exec \"$@\"");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script, "sh"])
        .args(program);
    command
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
    for arguments in [
        &[&*ip, "-W", "10"][..],
        &["server", &ip],
        &["server"],
        &["--loopback"],
    ] {
        harness::phase(format!("{arguments:?}"));
        at_once(
            || hidden(&[PROGRAM], "true"),
            arguments,
            1,
            &["/dev/infiniband/rdma_cm", "(errno 2)", "modprobe rdma_ucm"],
        )?;
    }
    Ok(())
}

fn no_permission() -> Outcome {
    let program = ForAll::new()?;
    let ip = device().ip.to_string();
    // The same devices under the same names, one of which nobody but root may open.
    let copies = "for file in /sys/class/infiniband_verbs/uverbs*; do \
                    mknod /dev/infiniband/$(basename $file) c $(tr : ' ' < $file/dev); \
                  done && \
                  mknod /dev/infiniband/rdma_cm c $(tr : ' ' < /sys/class/misc/rdma_cm/dev) && \
                  chmod 666 /dev/infiniband/*";
    let plain = program.command();
    let plain: Vec<_> = std::iter::once(plain.get_program())
        .chain(plain.get_args())
        .filter_map(|word| word.to_str())
        .collect();
    // All of them open: this shows that only the mode is the matter below.
    let mut open = hidden(&plain, copies);
    silent(&run(open.args(["--loopback", &ip, "-c", "1"]))?, 0)?;
    for file in ["rdma_cm", "uverbs0"] {
        let closed = format!("{copies} && chmod 000 /dev/infiniband/{file}");
        let path = format!("/dev/infiniband/{file}");
        for arguments in [&[&*ip, "-W", "10"][..], &["server", &ip]] {
            harness::phase(format!("{file} closed, {arguments:?}"));
            at_once(
                || hidden(&plain, &closed),
                arguments,
                1,
                &[&path, "(errno 13)", "permission"],
            )?;
        }
    }
    Ok(())
}
