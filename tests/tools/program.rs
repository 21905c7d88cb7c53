//! `rpma-ping` as a process, and what its users may rely on whatever happens.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, io};

use harness::{Child, Failed, Finished, Need, Outcome, Test, device, ensure, ensure_eq};

/// How long any run may take that is not slowed down on purpose.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);

/// A test as the other tests of the tools are: many processes, so it may take longer than others on
/// a machine that is busy elsewhere.
pub(crate) fn test(name: &'static str, needs: &[Need], body: fn() -> Outcome) -> Test {
    harness::test(name, needs, body).limit(150)
}

/// A folder with copies of the programs under test, for as long as this program runs.
///
/// The folder they were built in may be its owner's alone, where a plain user cannot start them, and
/// it may be shared into a virtual machine, where every start would read them over the wire again.
static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The path of the program under test, which every user can start.
pub(crate) fn program() -> PathBuf {
    local(env!("CARGO_BIN_EXE_rpma-ping-under-test"))
}

/// The path of a copy of a program that was built, which every user can start.
pub(crate) fn local(built: &str) -> PathBuf {
    let folder = FOLDER.get_or_init(|| make_folder().map_err(|error| error.to_string()));
    // What cannot be copied is started where it is, and the test that needs more will tell.
    let copied = folder.as_deref().ok();
    let copied = copied.and_then(|folder| copy(built, folder).ok());
    copied.unwrap_or_else(|| built.into())
}

fn make_folder() -> io::Result<PathBuf> {
    let folder = env::temp_dir().join(format!("rpma-tools-under-test-{}", process::id()));
    // Whoever has made this folder before is not to be trusted.
    fs::create_dir(&folder)?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
    Ok(folder)
}

fn copy(built: &str, folder: &Path) -> io::Result<PathBuf> {
    let name = Path::new(built)
        .file_name()
        .ok_or(io::ErrorKind::NotFound)?;
    let name = name.to_string_lossy().replace("-under-test", "");
    let copy = folder.join(name);
    if !copy.exists() {
        fs::copy(built, &copy)?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    }
    Ok(copy)
}

/// Removes the copies, at the end.
pub(crate) fn remove_copies() {
    if let Some(Ok(folder)) = FOLDER.get() {
        // What is left is in a folder that the system empties.
        let _ = fs::remove_dir_all(folder);
    }
}

/// A command that runs the program without any of the hooks that damage its work.
pub(crate) fn rpma_ping() -> Command {
    clean(Command::new(program()))
}

/// A command that runs the program through another one, which gets its path and arguments.
pub(crate) fn through(wrapper: &[&str]) -> Command {
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(program());
    clean(command)
}

/// A command that runs the program as the user nobody, without any capability, through another
/// one if need be.
pub(crate) fn as_plain_user(wrapper: &[&str]) -> Command {
    let user = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
        "--",
    ];
    through(&[&user[..], wrapper].concat())
}

fn clean(mut command: Command) -> Command {
    for hook in ["FLIP", "SKIP", "VERSION"] {
        command.env_remove(format!("RPMA_PING_TEST_{hook}"));
    }
    command
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<Finished, Failed> {
    Child::start(command)?.finish(LIMIT)
}

/// Runs a command to its end and says how long that took.
pub(crate) fn timed(command: &mut Command) -> Result<(Finished, Duration), Failed> {
    let start = Instant::now();
    Ok((run(command)?, start.elapsed()))
}

/// Everything a process wrote, for the message of a failed test.
pub(crate) fn all_of(finished: &Finished) -> String {
    format!(
        "code {}\n--- stdout\n{}\n--- stderr\n{}",
        finished.code(),
        finished.stdout,
        finished.stderr
    )
}

/// Checks what holds for every end of the program: whole lines, and nothing of its insides.
pub(crate) fn presentable(finished: &Finished) -> Outcome {
    ensure!(
        finished.whole_lines,
        "no newline at the end: {}",
        all_of(finished)
    );
    for text in [&finished.stdout, &finished.stderr] {
        // The text comes without its last newline.
        ensure!(
            !text.ends_with('\n'),
            "more than one newline at the end: {}",
            all_of(finished)
        );
        for insides in ["panicked", "RUST_BACKTRACE", "Err(", "Some("] {
            ensure!(
                !text.contains(insides),
                "{insides:?} is no word for users: {}",
                all_of(finished)
            );
        }
    }
    Ok(())
}

/// Checks that the program ended with `code` and nothing on standard error.
pub(crate) fn silent(finished: &Finished, code: i32) -> Outcome {
    presentable(finished)?;
    ensure_eq!(finished.code(), code, "{}", all_of(finished));
    ensure!(
        finished.stderr.is_empty(),
        "nothing was to be said: {}",
        all_of(finished)
    );
    Ok(())
}

/// Checks that the program ended with `code` and said why, in sentences with all of `parts`.
pub(crate) fn explained(finished: &Finished, code: i32, parts: &[&str]) -> Outcome {
    presentable(finished)?;
    ensure_eq!(finished.code(), code, "{}", all_of(finished));
    for line in finished.stderr.lines() {
        ensure!(
            line.starts_with("rpma-ping: ") || line.starts_with("  hint: "),
            "{line:?} is neither a sentence nor a hint: {}",
            all_of(finished)
        );
    }
    for part in parts {
        ensure!(
            finished.stderr.contains(part),
            "{part:?} is missing: {}",
            all_of(finished)
        );
    }
    Ok(())
}

/// Checks that a run was refused with one sentence and one hint at most, and a code of 1 or 2.
pub(crate) fn refused(finished: &Finished, code: i32, parts: &[&str]) -> Outcome {
    explained(finished, code, parts)?;
    ensure!(
        finished.stdout.is_empty(),
        "nothing was done: {}",
        all_of(finished)
    );
    let sentences = finished.stderr.matches("rpma-ping: ").count();
    ensure_eq!(
        sentences,
        1,
        "sentences on standard error: {}",
        all_of(finished)
    );
    ensure!(
        finished.stderr.lines().count() <= 2,
        "more than a sentence and a hint: {}",
        all_of(finished)
    );
    Ok(())
}

/// A server that listens.
#[derive(Debug)]
pub(crate) struct Server {
    /// The process.
    pub(crate) child: Child,
    /// Where it listens, as it says itself.
    pub(crate) target: String,
}

impl Server {
    /// A server on the device in use, at a port of the system's choice.
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, Failed> {
        let ip = device().ip.to_string();
        Self::from(rpma_ping().args(["server", &ip, "-p", "0"]).args(arguments))
    }

    /// Starts the server of a whole command and waits until it listens.
    pub(crate) fn from(command: &mut Command) -> Result<Self, Failed> {
        let child = Child::start(command)?;
        let line = child.wait_line("listening on ", LIMIT)?;
        let target = line
            .split_once("listening on ")
            .and_then(|(_, rest)| rest.split_once(" (device "))
            .map(|(target, _)| target.to_owned())
            .ok_or_else(|| format!("no address in {line:?}"))?;
        Ok(Self { child, target })
    }

    /// The address and port, where the address has no scope.
    pub(crate) fn addr(&self) -> Result<SocketAddr, Failed> {
        Ok(self.target.parse()?)
    }

    /// A client of this server, without a line for each round.
    pub(crate) fn client(&self, arguments: &[&str]) -> Command {
        let mut command = rpma_ping();
        command.args([&self.target, "-q"]).args(arguments);
        command
    }

    /// Waits for the end that comes by itself.
    pub(crate) fn finish(self) -> Result<Finished, Failed> {
        self.child.finish(LIMIT)
    }

    /// Asks the server to end and waits for it.
    pub(crate) fn stop(self) -> Result<Finished, Failed> {
        self.child.signal(libc::SIGTERM)?;
        self.finish()
    }
}

/// A port of the device's address on which nobody listens: one that a server had a moment ago.
pub(crate) fn free_port() -> Result<u16, Failed> {
    let server = Server::start(&[])?;
    let port = server.addr()?.port();
    server.stop()?.success()?;
    Ok(port)
}

/// Tries a rule about time up to three times. `run` gives a time and the limit for it; the
/// machine is shared and may be emulated, so a run that is late may be the machine's fault once or
/// twice. What must not be early is checked in every run, by `run` itself.
pub(crate) fn in_time(mut run: impl FnMut() -> Result<(Duration, Duration), Failed>) -> Outcome {
    let mut late = Vec::new();
    for _ in 0..3 {
        let (took, limit) = run()?;
        if took <= limit {
            return Ok(());
        }
        late.push(format!("{took:?} where {limit:?} is the limit"));
    }
    Err(format!("late every time: {}", late.join(", ")).into())
}

/// What starting, finding the device, one try to connect and ending cost here and now, without any
/// waiting: what the limits of waiting are measured on top of.
pub(crate) fn bare_cost() -> Result<Duration, Failed> {
    let ip = device().ip.to_string();
    let (finished, took) = timed(rpma_ping().args([&ip, "-p", "9", "-W", "0"]))?;
    explained(&finished, 1, &["no listener at "])?;
    Ok(took)
}
