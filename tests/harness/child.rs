//! Other processes of a test: started, waited for and ended with deadlines.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;

use crate::Outcome;
use crate::pair::WAIT;

/// The processes running now, for the watchdog.
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

pub(crate) fn running() -> Vec<u32> {
    RUNNING.lock().map(|pids| pids.clone()).unwrap_or_default()
}

/// How long output may still come after a process has ended.
const DRAIN: Duration = Duration::from_secs(2);

/// A child process whose output is collected line by line. Dropping it kills it, and so does the
/// end of the thread that started it.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    output: Arc<Output>,
}

#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    stdout: Vec<String>,
    stderr: Vec<String>,
    /// Whether a stream ended in the middle of a line.
    cut: bool,
    /// How many of the two streams have ended.
    ended: u8,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that has ended, with all that it wrote.
#[derive(Debug, Clone)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// Whether both streams, where anything was written to them, ended in a newline. (The texts
    /// above are without the last one.)
    pub whole_lines: bool,
}

impl Finished {
    /// The exit code, or minus the number of the signal that ended it.
    pub fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| -self.status.signal().unwrap_or(0))
    }

    /// The same process if it ended with code 0.
    ///
    /// # Errors
    /// A text with its code and everything it wrote.
    pub fn success(self) -> Result<Self, Failed> {
        if self.status.success() {
            return Ok(self);
        }
        Err(format!(
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.status, self.stdout, self.stderr
        )
        .into())
    }
}

impl Child {
    /// Starts `command` with nothing to read.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(command: &mut Command) -> Result<Self, Failed> {
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A group of its own, so that what it starts can be ended with it.
        command.process_group(0);
        let die_with_parent = || {
            // SAFETY: sets a signal for this process; there is no pointer.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            Ok(())
        };
        // SAFETY: between fork and exec only a system call runs, which takes no lock.
        unsafe { command.pre_exec(die_with_parent) };
        let mut process = command
            .spawn()
            .map_err(|error| format!("cannot start {name}: {error}"))?;
        RUNNING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(process.id());
        let output = Arc::new(Output::default());
        if let Some(stream) = process.stdout.take() {
            collect(stream, &output, |lines| &mut lines.stdout);
        }
        if let Some(stream) = process.stderr.take() {
            collect(stream, &output, |lines| &mut lines.stderr);
        }
        Ok(Self {
            name,
            process,
            output,
        })
    }

    /// Starts this very test program in another role (see [`run`](crate::run)), with arguments and
    /// environment.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn role(
        role: &str,
        argument: &str,
        environment: &[(&str, &OsStr)],
    ) -> Result<Self, Failed> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command
            .env(crate::suite::ROLE, role)
            .env(crate::suite::ARGUMENT, argument)
            .envs(environment.iter().copied());
        let mut child = Self::start(&mut command)?;
        child.name = format!("role {role} {argument}");
        Ok(child)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for a line that contains `text` on either stream and returns it.
    ///
    /// # Errors
    /// When the process ends first or the time is up, with all that it wrote.
    pub fn wait_line(&self, text: &str, timeout: Duration) -> Result<String, Failed> {
        let end = Instant::now() + timeout;
        let mut lines = self.output.lock();
        loop {
            let found = lines
                .stdout
                .iter()
                .chain(&lines.stderr)
                .find(|line| line.contains(text));
            if let Some(line) = found {
                return Ok(line.clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            let why = match (lines.ended, left.is_zero()) {
                (2, _) => "ended without",
                (_, true) => "did not in time print",
                _ => {
                    lines = self
                        .output
                        .changed
                        .wait_timeout(lines, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0;
                    continue;
                }
            };
            return Err(format!(
                "{} {why} a line with {text:?}\n--- stdout\n{}\n--- stderr\n{}",
                self.name,
                lines.stdout.join("\n"),
                lines.stderr.join("\n")
            )
            .into());
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn signal(&self, signal: i32) -> Result<(), Failed> {
        let pid = i32::try_from(self.pid())?;
        // SAFETY: the process is our child and not waited for yet, so the number is still its own.
        let ret = unsafe { libc::kill(pid, signal) };
        if ret == 0 {
            Ok(())
        } else {
            Err(format!("kill {}: {}", self.name, std::io::Error::last_os_error()).into())
        }
    }

    /// Kills it and what it has started, as far as that stayed in its group.
    fn kill_group(&mut self) {
        if let Ok(pid) = i32::try_from(self.pid()) {
            // SAFETY: a signal to the group that the child was made the leader of; a group that
            // is gone answers ESRCH. While the child is not waited for its number is not reused,
            // and afterwards the group keeps the number as long as it has a member.
            unsafe { libc::kill(-pid, libc::SIGKILL) };
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When the time is up: it is killed then, and all that it wrote is in the error.
    pub fn finish(mut self, timeout: Duration) -> Result<Finished, Failed> {
        let end = Instant::now() + timeout;
        let (status, in_time) = loop {
            if let Some(status) = self.process.try_wait()? {
                break (status, true);
            }
            if Instant::now() >= end {
                self.kill_group();
                break (self.process.wait()?, false);
            }
            thread::sleep(Duration::from_millis(5));
        };
        // Something that it started may hold its streams open.
        let (lines, _) = self
            .output
            .changed
            .wait_timeout_while(self.output.lock(), DRAIN, |lines| lines.ended < 2)
            .unwrap_or_else(PoisonError::into_inner);
        let finished = Finished {
            status,
            stdout: lines.stdout.join("\n"),
            stderr: lines.stderr.join("\n"),
            whole_lines: !lines.cut,
        };
        if in_time {
            return Ok(finished);
        }
        Err(format!(
            "{} did not end within {timeout:?}\n--- stdout\n{}\n--- stderr\n{}",
            self.name, finished.stdout, finished.stderr
        )
        .into())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill_group();
        let _ = self.process.wait();
        let pid = self.pid();
        RUNNING
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|&other| other != pid);
    }
}

/// Runs a command to its end, which must come within 10 s and be a success.
///
/// # Errors
/// The command and all that it wrote.
pub fn command(program: &str, arguments: &[&str]) -> Outcome {
    let finished = Child::start(Command::new(program).args(arguments))?.finish(WAIT)?;
    finished.success().map(drop).map_err(|failed| {
        format!(
            "{program} {}: {}",
            arguments.join(" "),
            failed.message().unwrap_or_default()
        )
        .into()
    })
}

fn collect(
    stream: impl Read + Send + 'static,
    output: &Arc<Output>,
    which: fn(&mut Lines) -> &mut Vec<String>,
) {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        while stream.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
            let whole = line.pop_if(|last| *last == b'\n').is_some();
            let text = String::from_utf8_lossy(&line).into_owned();
            line.clear();
            let mut lines = output.lock();
            lines.cut |= !whole;
            which(&mut lines).push(text);
            drop(lines);
            output.changed.notify_all();
        }
        output.lock().ended += 1;
        output.changed.notify_all();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Child {
        Child::start(Command::new("sh").args(["-c", script])).expect("a shell")
    }

    #[test]
    fn output_and_exit_code_are_collected() {
        let child = shell("echo ready; echo oops >&2; exit 3");
        child
            .wait_line("ready", Duration::from_secs(30))
            .expect("the line");
        let finished = child.finish(Duration::from_secs(30)).expect("ended");
        assert_eq!(
            (finished.code(), &*finished.stdout, &*finished.stderr),
            (3, "ready", "oops")
        );
        assert!(finished.whole_lines && finished.success().is_err());
    }

    #[test]
    fn a_last_line_without_an_end_is_noticed() {
        let child = shell("printf 'one\\ntwo'");
        let finished = child.finish(Duration::from_secs(5)).expect("ended");
        assert_eq!(
            (&*finished.stdout, finished.whole_lines),
            ("one\ntwo", false)
        );
    }

    #[test]
    fn a_child_that_hangs_is_killed_and_reported() {
        let child = shell("echo here; sleep 100");
        child
            .wait_line("here", Duration::from_secs(30))
            .expect("the line");
        let failed = child
            .finish(Duration::from_millis(300))
            .expect_err("it hangs");
        let text = failed.message().unwrap_or_default();
        assert!(
            text.contains("did not end") && text.contains("here"),
            "{text}"
        );
    }

    #[test]
    fn a_line_that_never_comes_ends_with_the_child() {
        let child = shell("echo other");
        let failed = child
            .wait_line("ready", Duration::from_secs(50))
            .expect_err("never comes");
        assert!(
            failed
                .message()
                .unwrap_or_default()
                .contains("ended without")
        );
    }
}
