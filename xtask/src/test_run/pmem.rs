//! The step `pmem`: tests on persistent memory in VMs of their own, and of what is there after their power was cut.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::counted::{Run, step};
use super::steps::{plain, through_vm, variable};
use super::{Options, Outcome};
use crate::error::{Context, Error, Result};
use crate::process::Guarded;
use crate::vm::{self, Config};
use crate::workspace;

/// In the names of the tests.
const NAME: &str = "on_pmem_";

const TESTS: &str = "--package tests --test pmem";

/// Each guest, and how records are made persistent there before the power is cut. With `early` they are reported too early, so
/// that the test is seen to notice it.
const GUESTS: [(Option<&str>, &[&str]); 2] = [
    (None, &["read", "gpspm", "early"]),
    (Some("debian13"), &["native"]),
];

/// From the first word of the writer to the power cut.
const WRITER_DEADLINE: Duration = Duration::from_secs(120);

/// Whether the tests on persistent memory are to run with the filter.
pub(super) fn wanted(options: &Options) -> bool {
    let filter = options.filter.as_deref();
    options.full && filter.is_none_or(|filter| filter.starts_with(NAME))
}

/// The tests in every guest.
pub(super) fn pmem(options: &Options) -> Result<Outcome> {
    let mut all = Outcome::default();
    for (guest, ways) in GUESTS {
        let name = guest.map_or("pmem".to_owned(), |guest| format!("pmem-{guest}"));
        let config = Config::from_environment(Some(name), guest.map(str::to_owned))?;
        let file = config.folder.join("nvdimm");
        let config = config.with_pmem(&file);
        if let Err(error) = vm::fetch(&config) {
            return Ok(Outcome::missing(error));
        }
        // One that is left over uses the file.
        vm::stop(&config)?;
        let _ = fs::remove_file(&file);
        let outcome = in_guest(options, &config, ways);
        vm::stop(&config)?;
        let _ = fs::remove_file(&file);
        let outcome = outcome
            .unwrap_or_else(|error| Outcome::failed(format!("pmem in '{}': {error}", config.name)));
        all.count = all.count.plus(outcome.count);
        all.failure = all.failure.or(outcome.failure);
    }
    Ok(all)
}

/// Those without a power cut, then a power cut for each way.
fn in_guest(options: &Options, config: &Config, ways: &[&str]) -> Result<Outcome> {
    vm::start(config)?;
    let runner = through_vm(config, &[])?;
    let native = if ways.contains(&"native") {
        ""
    } else {
        "elsewhere"
    };
    let mut all = run(options, &runner, ("RPMA_TEST_NATIVE", native))?;
    let unfiltered = Options {
        full: options.full,
        filter: None,
        deadline: options.deadline,
    };
    for (round, way) in (1..).zip(ways) {
        let what = format!("{way}:{round}");
        let reported = until_power_cut(&unfiltered, config, &runner, &what, 3 + 2 * round)?;
        vm::start(config)?;
        let found = format!("{what}:{reported}");
        let outcome = run(&unfiltered, &runner, ("RPMA_TEST_POWER_WAS_CUT", &found))?;
        all.count = all.count.plus(outcome.count);
        all.failure = all.failure.or(outcome.failure);
    }
    Ok(all)
}

fn run(options: &Options, runner: &[String], more: (&str, &str)) -> Result<Outcome> {
    step(Run {
        name: "pmem",
        calls: vec![plain(TESTS, options)],
        settings: runner,
        variables: vec![
            variable("RPMA_REQUIRE_ALL", "1"),
            variable("RPMA_TEST_FULL", "1"),
            variable("RPMA_TEST_ADDRESS", vm::DEVICE_ADDRESS),
            variable("RPMA_TEST_PMEM", vm::pmem::DEVICE),
            variable(more.0, more.1),
        ],
        deadline: options.deadline,
    })
}

/// Lets the writer of records run until it has reported `target` of them, cuts the power at that moment, and gives the number of
/// the last one that was reported.
fn until_power_cut(
    options: &Options,
    config: &Config,
    runner: &[String],
    what: &str,
    target: u64,
) -> Result<u64> {
    // Its end is that of its machine, which it complains about.
    let said = config.folder.join("writer.log");
    let log = File::create(&said).context(|| format!("cannot make {}", said.display()))?;
    let mut writer = Guarded(writer(options, runner, what, log)?);
    let stdout = writer.0.stdout.take();
    let (send, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in stdout
            .into_iter()
            .flat_map(|out| BufReader::new(out).lines())
        {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + WRITER_DEADLINE;
    let (mut reported, mut cut) = (0, false);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let line = match lines.recv_timeout(left) {
            Ok(line) => line,
            // The writer's end: what it said is all here.
            Err(mpsc::RecvTimeoutError::Disconnected) if cut => return Ok(reported),
            Err(_) => {
                return Err(Error::new(format!(
                    "the writer of records ({what}) reported {reported} within {} s and then nothing more, {target} were \
                     awaited; what it says is in {}",
                    WRITER_DEADLINE.as_secs(),
                    said.display()
                )));
            }
        };
        let number = line.strip_prefix("persistent ").map(str::parse);
        let Some(Ok(number)) = number else { continue };
        reported = number;
        if reported >= target && !cut {
            vm::power_cut(config)?;
            cut = true;
        }
    }
}

fn writer(options: &Options, runner: &[String], what: &str, log: File) -> Result<Child> {
    let (mut command, words) = plain(TESTS, options);
    command
        .args(words)
        .args(runner)
        .current_dir(workspace::root())
        .env("CARGO_TARGET_DIR", workspace::target_dir())
        .env("RPMA_TEST_ROLE", "writer")
        .env("RPMA_TEST_ROLE_ARGUMENT", what)
        .env("RPMA_TEST_ADDRESS", vm::DEVICE_ADDRESS)
        .env("RPMA_TEST_PMEM", vm::pmem::DEVICE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context(|| format!("cannot run {}", Command::get_program(&command).display()))
}
