//! A run of cargo to its end or a deadline, with the summaries in its output counted.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::count::Count;
use crate::error::{Context, Result};
use crate::process::{self, Guarded};
use crate::report;
use crate::workspace;

/// One run of cargo: its output goes through, its summaries are counted.
pub(super) struct Run<'a> {
    /// The step's name.
    pub(super) name: &'a str,
    /// cargo itself, with what it needs in its environment.
    pub(super) cargo: Command,
    /// Its words.
    pub(super) words: Vec<String>,
    /// Further words, for cargo itself, that nobody has to see.
    pub(super) settings: &'a [String],
    /// The environment of cargo and of the tests.
    pub(super) variables: Vec<(String, String)>,
    /// How long all of it may take.
    pub(super) deadline: Duration,
}

/// Carries a run out.
///
/// # Errors
/// When cargo cannot be started. That it fails is part of the outcome.
pub(super) fn step(run: Run<'_>) -> Result<Outcome> {
    let name = run.name;
    report::say(format!("{name} tests: cargo {}", run.words.join(" ")));
    let started = Instant::now();
    let mut command = run.cargo;
    // Behind `--` stands what is for the tests.
    let for_cargo = run
        .words
        .iter()
        .position(|word| word == "--")
        .unwrap_or(run.words.len());
    command
        .args(&run.words[..for_cargo])
        .args(run.settings)
        .args(&run.words[for_cargo..])
        .current_dir(workspace::root())
        .env("CARGO_TARGET_DIR", workspace::target_dir())
        .envs(run.variables)
        .stdin(Stdio::null());
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let (count, failure) =
        run_counted(&mut command, started + run.deadline, &mut std::io::stdout())?;
    let failure = failure.map(|how| format!("{name} tests: {how}"));
    report::say(format!(
        "{name} tests: {} passed, {} failed ({})",
        count.passed,
        count.failed,
        report::seconds(started.elapsed())
    ));
    Ok(Outcome {
        count,
        failure,
        missing: None,
    })
}

/// Runs a command to its end or the deadline, passing its standard output on and counting the summaries in it.
fn run_counted(
    command: &mut Command,
    deadline: Instant,
    to: &mut impl Write,
) -> Result<(Count, Option<String>)> {
    command.stdout(Stdio::piped());
    let program = Path::new(command.get_program()).to_owned();
    let child = command
        .spawn()
        .context(|| format!("cannot run {}", program.display()))?;
    let mut child = Guarded(child);
    let (send, lines) = mpsc::channel();
    if let Some(stdout) = child.0.stdout.take() {
        thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let mut line = Vec::new();
            while stdout
                .read_until(b'\n', &mut line)
                .is_ok_and(|read| read > 0)
            {
                if send.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
    } else {
        drop(send);
    }
    let mut count = Count::default();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                // A reader that is gone does not make the tests fail.
                let _ = to.write_all(&line);
                count.add_line(&String::from_utf8_lossy(&line));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                process::kill_tree(child.0.id());
                return Ok((
                    count,
                    Some("not over at the deadline, killed; --deadline gives more time".to_owned()),
                ));
            }
        }
    }
    let failure = match process::wait_until(&mut child.0, deadline)? {
        Some(status) if status.success() => None,
        Some(status) => Some(format!("cargo ended with {}", process::describe(status))),
        None => Some("cargo did not end after its output did, killed".to_owned()),
    };
    Ok((count, failure))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn summaries_in_a_commands_output_are_counted_and_its_failure_is_told() {
        let script =
            "echo 'test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured'; exit 101";
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut shown = Vec::new();
        let (count, failure) = run_counted(&mut shell(script), deadline, &mut shown).unwrap();
        assert!(shown.starts_with(b"test result"), "passed on");
        assert_eq!((count.passed, count.failed), (2, 1));
        assert!(failure.unwrap().contains("exit code 101"));
    }

    #[test]
    fn a_run_past_its_deadline_is_killed_and_fails() {
        let started = Instant::now();
        let deadline = started + Duration::from_millis(100);
        let (_, failure) =
            run_counted(&mut shell("sleep 60 & sleep 60"), deadline, &mut Vec::new()).unwrap();
        assert!(failure.unwrap().contains("deadline"));
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}
