//! Running other programs: finding them, capturing what they say, ending them with all that they started.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Context, Error, Result};

/// Folders of system tools that an ordinary user's `PATH` may lack.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// How long output may still come after a command's end.
const LEFTOVERS: Duration = Duration::from_secs(10);

/// Finds a program in `PATH` and in the folders of system tools.
pub(crate) fn find_tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// A command of a program found by [`find_tool`]; if there is none, starting it fails with its name in the error.
pub(crate) fn tool(name: &str) -> Command {
    Command::new(find_tool(name).unwrap_or_else(|| PathBuf::from(name)))
}

/// Runs a command that is quick by nature and returns its standard output.
///
/// # Errors
/// When it cannot be started, does not exit with 0, or not within two minutes: its command line and the last line it
/// wrote to standard error.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    capture_within(command, Duration::from_secs(120))
}

/// Runs a command to its end, but no longer than `limit`, and returns its standard output.
///
/// # Errors
/// As [`capture`]; past the limit it is killed with all that it started.
pub(crate) fn capture_within(command: &mut Command, limit: Duration) -> Result<String> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command
        .spawn()
        .context(|| format!("cannot run {}", line_of(command)))?;
    let mut child = Guarded(child);
    let stdout = child.0.stdout.take().map(read_all);
    let stderr = child.0.stderr.take().map(read_all);
    let Some(status) = wait_until(&mut child.0, Instant::now() + limit)? else {
        return Err(Error::new(format!(
            "{} did not end within {} s and was killed",
            line_of(command),
            limit.as_secs()
        )));
    };
    let text = |reader: Option<Receiver<Vec<u8>>>| {
        // A process that it left behind may keep the pipe open: what came so far is enough then.
        let bytes = reader.and_then(|reader| reader.recv_timeout(LEFTOVERS).ok());
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    if status.success() {
        return Ok(stdout);
    }
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    Err(Error::new(format!(
        "{} failed ({}){}",
        line_of(command),
        describe(status),
        last.map(|line| format!(": {}", line.trim()))
            .unwrap_or_default()
    )))
}

/// Reads a pipe to its end, in a thread of its own, so that a full pipe blocks nobody.
fn read_all(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is what there is.
        let _ = from.read_to_end(&mut bytes);
        // Nobody waits any more when the command was given up.
        let _ = send.send(bytes);
    });
    receive
}

/// Whether a command exits with 0; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    capture(command).is_ok()
}

/// A command as one would type it, for messages.
pub(crate) fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

/// How a process ended, in words.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

/// The exit code of a process, as a shell counts it: 128 and the signal's number when a signal ended it.
pub(crate) fn exit_code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| signal + 128))
        .unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}

/// Waits for a child, but not past the deadline; `None` if it still runs then.
///
/// # Errors
/// When waiting itself fails.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>> {
    // Most commands end at once, some take minutes: look often at first.
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child
            .try_wait()
            .context(|| "cannot wait for a child process".to_owned())?
        {
            return Ok(Some(status));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        thread::sleep(left.min(pause));
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// A child that does not outlive its guard: dropped while it runs, it is killed with all its descendants.
pub(crate) struct Guarded(pub(crate) Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            kill_tree(self.0.id());
            // Killed by SIGKILL, so this ends at once; it only takes the zombie away.
            let _ = self.0.wait();
        }
    }
}

/// Kills a process and its descendants. (No process groups: then Ctrl-C would no longer reach the children.)
pub(crate) fn kill_tree(root: u32) {
    let parents = parents_of_all_processes();
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        let children = parents
            .iter()
            .filter(|(_, of)| *of == parent)
            .map(|(pid, _)| *pid);
        doomed.extend(children);
        next += 1;
    }
    for pid in doomed {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn parents_of_all_processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, parent_in_stat(&stat)?))
        })
        .collect()
}

/// The parent's id in a line of `/proc/PID/stat`: the second field after the name, which may hold blanks and brackets.
fn parent_in_stat(stat: &str) -> Option<u32> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_is_named_with_its_exit_code_and_last_word() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo the reason >&2; exit 3"]);
        let error = capture(&mut command).unwrap_err().to_string();
        assert!(error.contains("exit code 3"), "{error}");
        assert!(error.ends_with(": the reason"), "{error}");
    }

    #[test]
    fn a_command_past_its_limit_is_killed_and_named() {
        let started = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60; true"]);
        let error = capture_within(&mut command, Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("was killed"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_large_output_is_captured_whole() {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "head -c 1000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero >&2",
        ]);
        assert_eq!(capture(&mut command).unwrap().len(), 1_000_000);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = capture(&mut tool("no-such-program"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("cannot run no-such-program"), "{error}");
    }

    #[test]
    fn exit_codes_are_counted_as_a_shell_does() {
        assert_eq!(exit_code(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
    }

    #[test]
    fn the_parent_is_found_after_a_name_with_blanks_and_brackets() {
        assert_eq!(parent_in_stat("12 (a ) (b) S 34 12 12"), Some(34));
        assert_eq!(parent_in_stat("12 (sh) S 1 1"), Some(1));
        assert_eq!(parent_in_stat("nonsense"), None);
    }

    #[test]
    fn a_dropped_child_takes_its_children_with_it() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        drop(Guarded(child));
        let grandchild = PathBuf::from(format!("/proc/{}/stat", line.trim()));
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // Gone, or a zombie that its new parent has not collected yet.
            match fs::read_to_string(&grandchild) {
                Err(_) => break,
                Ok(stat) if stat.contains(") Z ") => break,
                Ok(stat) => assert!(Instant::now() < deadline, "still running: {stat}"),
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let mut child = Guarded(Command::new("sleep").arg("60").spawn().unwrap());
        let started = Instant::now();
        let deadline = started + Duration::from_millis(50);
        assert!(wait_until(&mut child.0, deadline).unwrap().is_none());
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
