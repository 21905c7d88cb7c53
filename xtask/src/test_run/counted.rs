//! A run of cargo to its end or a deadline, with the summaries in its output counted.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::Outcome;
use super::count::Count;
use crate::error::{Context, Error, Result};
use crate::process::{self, Guarded};
use crate::report;
use crate::workspace;

/// One step's run of tests: its output goes through, its summaries are counted.
pub(super) struct Run<'a> {
    /// The step's name.
    pub(super) name: &'a str,
    /// The calls of cargo that it consists of, at the same time: each the program with what it needs in its environment,
    /// and its words.
    pub(super) calls: Vec<(Command, Vec<String>)>,
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
    let started = Instant::now();
    let deadline = started + run.deadline;
    let mut commands = Vec::new();
    for (mut command, words) in run.calls {
        report::say(format!("{name} tests: cargo {}", words.join(" ")));
        // Behind `--` stands what is for the tests.
        let for_cargo = words.iter().position(|word| word == "--");
        let (for_cargo, for_tests) = words.split_at(for_cargo.unwrap_or(words.len()));
        command
            .args(for_cargo)
            .args(run.settings)
            .args(for_tests)
            .current_dir(workspace::root())
            .env("CARGO_TARGET_DIR", workspace::target_dir())
            .envs(run.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if std::io::stdout().is_terminal() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        commands.push(command);
    }
    let mut outcome = Outcome::default();
    for (count, failure) in run_all(&mut commands, deadline, &mut std::io::stdout())? {
        outcome.count = outcome.count.plus(count);
        let failure = failure.map(|how| format!("{name} tests: {how}"));
        outcome.failure = outcome.failure.or(failure);
    }
    report::say(format!(
        "{name} tests: {} passed, {} failed ({})",
        outcome.count.passed,
        outcome.count.failed,
        report::seconds(started.elapsed())
    ));
    Ok(outcome)
}

/// What came of a command: its tests, and what is wrong with it.
type Counted = (Count, Option<String>);

/// Runs the commands at the same time. The first one's output is shown as it comes, that of each other one when it is over.
fn run_all(
    commands: &mut [Command],
    deadline: Instant,
    to: &mut impl Write,
) -> Result<Vec<Counted>> {
    let Some((first, others)) = commands.split_first_mut() else {
        return Ok(Vec::new());
    };
    thread::scope(|scope| {
        let others: Vec<_> = others
            .iter_mut()
            .map(|command| {
                scope.spawn(move || {
                    let mut shown = Vec::new();
                    let counted = run_counted(command, deadline, &mut shown);
                    (counted, shown)
                })
            })
            .collect();
        let mut all = vec![run_counted(first, deadline, to)];
        for other in others {
            let (counted, shown) = other.join().unwrap_or_else(|_| {
                let failure = Error::new("the thread that ran a step's tests panicked");
                (Err(failure), Vec::new())
            });
            // A reader that is gone does not make the tests fail.
            let _ = to.write_all(&shown);
            all.push(counted);
        }
        all.into_iter().collect()
    })
}

/// Runs a command to its end or the deadline, passing its standard output on and counting the summaries in it.
fn run_counted(command: &mut Command, deadline: Instant, to: &mut impl Write) -> Result<Counted> {
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
    fn commands_run_at_the_same_time_and_all_of_them_count() {
        // Each waits for what the other does first.
        let folder = std::env::temp_dir().join(format!("xtask-both-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = |mine: &str, its: &str| {
            let folder = folder.display();
            shell(&format!(
                "touch '{folder}/{mine}'; until [ -e '{folder}/{its}' ]; do sleep 0.01; done; echo 'test result: ok. 2 \
                 passed; 0 failed; 0 ignored; 0 measured'"
            ))
        };
        let mut commands = [script("a", "b"), script("b", "a")];
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut shown = Vec::new();
        let counted = run_all(&mut commands, deadline, &mut shown).unwrap();
        let _ = std::fs::remove_dir_all(&folder);
        for (count, failure) in &counted {
            assert_eq!((count.passed, failure), (2, &None));
        }
        assert_eq!(counted.len(), 2);
        let shown = String::from_utf8(shown).unwrap();
        assert_eq!(shown.matches("test result").count(), 2, "both are shown");
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
