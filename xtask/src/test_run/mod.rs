//! `cargo xtask test`: the pure tests on the host, on it as well those of the fake device, the others where the real
//! device is, all counted.

mod count;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::device;
use crate::error::{Context, Error, Result};
use crate::packages::{self, Set};
use crate::ping::cargo;
use crate::process::{self, Guarded};
use crate::report;
use crate::workspace;
use count::{Count, Minimum};

/// What the command line asked for.
#[derive(Debug)]
pub(crate) struct Options {
    /// The long tests too.
    pub(crate) full: bool,
    /// Only tests whose name contains this.
    pub(crate) filter: Option<String>,
    /// How long each step may take.
    pub(crate) deadline: Duration,
}

/// How one step went.
struct Outcome {
    count: Count,
    /// What is wrong, if anything.
    failure: Option<String>,
}

/// Runs all steps and prints `N passed, N failed` as the last line.
///
/// # Errors
/// When the set-up fails. Failing tests are exit code 1.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let started = Instant::now();
    let device_needs = device::packages_needed(device::Rights::Root)?;
    packages::ensure(&[&[Set::Build, Set::Peers], device_needs].concat())?;
    let place = device::up(device::Rights::Root)?;
    let minimum_file = workspace::root().join("xtask/minimum-tests.txt");
    let minimum = std::fs::read_to_string(&minimum_file)
        .context(|| "cannot read".to_owned())
        .and_then(|text| Minimum::parse(&text))
        .map_err(|error| Error::new(format!("{}: {error}", minimum_file.display())))?;

    let mut host = cargo_test(options);
    host.splice(
        2..2,
        ["--workspace", "--exclude", "tests"].map(str::to_owned),
    );
    let host = step("host", &host, &[], &[], options.deadline)?;

    let fake = step(
        "fake",
        &fake_test(options),
        &[],
        &fake_variables(),
        options.deadline,
    )?;

    let through = runner_setting(&place.runner(device::Rights::Root)?)?;
    let mut variables = vec![
        ("RPMA_REQUIRE_ALL".to_owned(), "1".to_owned()),
        ("RPMA_TEST_ADDRESS".to_owned(), place.address()),
    ];
    if options.full {
        variables.push(("RPMA_TEST_FULL".to_owned(), "1".to_owned()));
    }
    let mut device = cargo_test(options);
    device.splice(2..2, ["--package", "tests"].map(str::to_owned));
    let device = step("device", &device, &through, &variables, options.deadline)?;

    let mut failures: Vec<String> = Vec::new();
    for (name, outcome, minimum) in [
        ("host", &host, minimum.host),
        ("fake", &fake, minimum.fake),
        ("device", &device, minimum.device),
    ] {
        failures.extend(outcome.failure.clone());
        // With a filter nobody knows how many there must be.
        if options.filter.is_none() {
            failures.extend(count::shortfall(name, outcome.count, minimum));
        }
        // On the fake device those are tests that abort: others run them, in a process of their own.
        if outcome.count.ignored > 0 && name != "fake" {
            report::say(format!(
                "{name}: {} tests were not run (ignored)",
                outcome.count.ignored
            ));
        }
    }
    if options.filter.is_none() && !options.full && failures.is_empty() {
        let [host, fake, device] = [&host, &fake, &device].map(|outcome| outcome.count.run());
        if host > minimum.host || fake > minimum.fake || device > minimum.device {
            report::say(format!(
                "more tests ran than xtask/minimum-tests.txt asks for; raise it to host={host} fake={fake} device={device}"
            ));
        }
    }
    let total = host.count.plus(fake.count).plus(device.count);
    if options.filter.is_some() && total.run() == 0 {
        failures.push("no test's name contains the filter".to_owned());
    }
    for failure in &failures {
        report::say(failure);
    }
    report::say(format!(
        "host {} tests, fake device {} tests, device {} tests, in {}",
        host.count.run(),
        fake.count.run(),
        device.count.run(),
        report::seconds(started.elapsed())
    ));
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn cargo_test(options: &Options) -> Vec<String> {
    let mut words = vec!["test".to_owned(), "--no-fail-fast".to_owned()];
    words.extend(options.filter.clone());
    words
}

/// The tests on the fake device: the same crates, built so that no C library is linked.
fn fake_test(options: &Options) -> Vec<String> {
    let mut words = cargo_test(options);
    let crates = ["verbs", "cm", "rpma"]
        .iter()
        .flat_map(|name| ["--package", name]);
    let targets = ["--lib", "--test", "fake"];
    words.splice(2..2, crates.chain(targets).map(str::to_owned));
    words
}

/// What the tests on the fake device are built with: a target folder of their own, or each run would build all anew.
fn fake_variables() -> Vec<(String, String)> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let folder = workspace::target_dir().join("fake");
    vec![
        ("RUSTFLAGS".to_owned(), format!("{flags} --cfg rdma_fake")),
        ("CARGO_TARGET_DIR".to_owned(), folder.display().to_string()),
    ]
}

/// Cargo's words to run what it builds for this machine through `runner`.
fn runner_setting(runner: &[OsString]) -> Result<Vec<String>> {
    let version = process::capture(Command::new(cargo()).arg("-vV"))?;
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .ok_or_else(|| Error::new("`cargo -vV` does not name its host"))?;
    let words = runner
        .iter()
        .map(|word| {
            word.to_str().ok_or_else(|| {
                Error::new(format!(
                    "cargo cannot run tests through '{}', because its path is not UTF-8; set RDMA_RUST_VM_CACHE and \
                     CARGO_TARGET_DIR to folders whose path is",
                    word.display()
                ))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(vec!["--config".to_owned(), setting_for(host, &words)])
}

/// A list, not the variable `CARGO_TARGET_*_RUNNER`: that one is split at blanks, and a path may have some.
fn setting_for(triple: &str, words: &[&str]) -> String {
    // A JSON text is a TOML text, and a list of them is one too.
    format!("target.{triple}.runner={}", serde_json::json!(words))
}

/// One run of cargo: its output goes through, its summaries are counted. `settings` are words that nobody has to see.
fn step(
    name: &str,
    words: &[String],
    settings: &[String],
    variables: &[(String, String)],
    deadline: Duration,
) -> Result<Outcome> {
    report::say(format!("{name} tests: cargo {}", words.join(" ")));
    let started = Instant::now();
    let mut command = Command::new(cargo());
    command
        .args(words)
        .args(settings)
        .current_dir(workspace::root())
        .env("CARGO_TARGET_DIR", workspace::target_dir())
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null());
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let (count, failure) = run_counted(&mut command, started + deadline, &mut std::io::stdout())?;
    let failure = failure.map(|how| format!("{name} tests: {how}"));
    report::say(format!(
        "{name} tests: {} passed, {} failed ({})",
        count.passed,
        count.failed,
        report::seconds(started.elapsed())
    ));
    Ok(Outcome { count, failure })
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

    #[test]
    fn cargo_gets_the_runner_word_by_word_with_blanks_in_its_path() {
        assert_eq!(
            setting_for(
                "x86_64-unknown-linux-gnu",
                &["/a \"path\" with blanks/runner", "vm", "--"]
            ),
            r#"target.x86_64-unknown-linux-gnu.runner=["/a \"path\" with blanks/runner","vm","--"]"#
        );
    }

    #[test]
    fn cargo_runs_a_program_through_the_runner_that_is_set() {
        let scratch = std::env::temp_dir().join(format!("xtask runner {}", std::process::id()));
        std::fs::create_dir_all(scratch.join("src")).unwrap();
        let manifest = "[package]\nname = \"a\"\nversion = \"0.0.0\"\n[workspace]\n";
        std::fs::write(scratch.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(scratch.join("src/main.rs"), "fn main() {}").unwrap();
        let runner = scratch.join("a runner");
        std::os::unix::fs::symlink("/bin/echo", &runner).unwrap();
        let words = [runner.into_os_string(), "two words".into()];
        let said = process::capture(
            Command::new(cargo())
                .args(["run", "--quiet", "--offline"])
                .args(runner_setting(&words).unwrap())
                .env("CARGO_TARGET_DIR", scratch.join("target"))
                .current_dir(&scratch),
        );
        let _ = std::fs::remove_dir_all(&scratch);
        assert!(said.unwrap().starts_with("two words "));
    }
}
