//! The whole run of one crate: counts, prints the table, and holds the limits as tests.

mod allocations;
mod callgrind;
mod code;
mod operation;
pub(crate) mod provider;
pub(crate) mod raw;

use std::env;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use verbs::sys::fake::control;

use self::callgrind::{Profile, profile};
pub(crate) use self::operation::{Operation, operations};

/// Rounds of the two runs whose difference is counted.
const ROUNDS: [u64; 2] = [1000, 3000];
/// The argument with which the program runs as a child of itself, under callgrind.
const COUNT: &str = "count";
/// The name of a test.
const NO_LOCK: &str = "instructions: post and poll lock nothing and call no system";

/// A test of what is refused.
pub(crate) type Check<R> = fn(&R) -> Result<(), String>;

/// What is counted of a crate, on objects `R`.
pub(crate) struct Suite<R: 'static> {
    /// The crate, as it stands in the names of its loops.
    pub(crate) name: &'static str,
    pub(crate) operations: &'static [Operation<R>],
    pub(crate) make: fn() -> Result<R, String>,
    /// Tests that count nothing.
    pub(crate) checks: &'static [(&'static str, Check<R>)],
}

pub(crate) fn main<R>(suite: &'static Suite<R>) -> ExitCode {
    if env::args().nth(1).as_deref() == Some(COUNT) {
        return count(suite);
    }
    let mut arguments = Arguments::from_args();
    // Cargo says what this is, but there are tests in it only.
    arguments.bench = false;
    let limit = |operation: &Operation<R>| {
        format!("instructions: {} stays within its limit", operation.name)
    };
    let mut names: Vec<_> = suite.operations.iter().map(limit).collect();
    names.push(NO_LOCK.to_owned());
    let wanted = |name: &String| match &arguments.filter {
        Some(filter) => name.contains(filter.as_str()),
        None => true,
    };
    let measured = measure_unless_missing(suite, arguments.list || !names.iter().any(wanted));
    let mut trials: Vec<Trial> = suite
        .operations
        .iter()
        .map(|operation| {
            trial(&limit(operation), &measured, move |runs| {
                runs.within_limit(operation)
            })
        })
        .collect();
    trials.push(trial(NO_LOCK, &measured, |runs| {
        match code::forbidden(&runs.ours)?.as_slice() {
            [] => Ok(()),
            found => Err(found.join("\n").into()),
        }
    }));
    trials.push(Trial::test(
        "instructions: a locked one and a system call are found",
        || code::rules_hold().map_err(Failed::from),
    ));
    trials.push(Trial::test(
        "instructions: post and poll allocate nothing",
        || nothing_is_allocated(suite).map_err(Failed::from),
    ));
    for (name, body) in suite.checks {
        trials.push(Trial::test(*name, move || {
            with_rig(suite, body).map_err(Failed::from)
        }));
    }
    // The fake device is one for the whole process.
    arguments.test_threads = Some(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// What callgrind has counted.
struct Runs {
    few: Profile,
    many: Profile,
    /// The same operations without the loops that they are compared with.
    ours: Profile,
}

impl Runs {
    fn measure<R>(suite: &Suite<R>) -> Result<Self, String> {
        let [few, many] = ROUNDS.map(|rounds| rounds.to_string());
        Ok(Self {
            few: profile("measured_", &[COUNT, &few])?,
            many: profile("measured_", &[COUNT, &many])?,
            ours: profile(&format!("measured_{}_", suite.name), &[COUNT, &few])?,
        })
    }

    /// Instructions of one round of a loop.
    fn per_round(&self, symbol: &str) -> Result<f64, String> {
        let of = |run: &Profile| {
            let count = run.inclusive.get(symbol).copied();
            count.ok_or_else(|| format!("callgrind has not seen {symbol}"))
        };
        let difference = of(&self.many)?.saturating_sub(of(&self.few)?);
        let rounds = ROUNDS[1] - ROUNDS[0];
        let exact = |number: u64| {
            let number = u32::try_from(number).map_err(|_| format!("{number} is too much"))?;
            Ok::<_, String>(f64::from(number))
        };
        Ok(exact(difference)? / exact(rounds)?)
    }

    fn within_limit<R>(&self, operation: &Operation<R>) -> Result<(), Failed> {
        let raw = self.per_round(operation.raw.0)?;
        let ours = self.per_round(operation.ours.0)?;
        if raw < 10.0 || ours < 10.0 {
            return Err(format!("{raw} and {ours} instructions: nothing was done").into());
        }
        // The counts are whole numbers but for what happens every so many rounds.
        if ours > raw + operation.allowed + 0.05 {
            return Err(format!(
                "{ours:.1} instructions, the C interface alone takes {raw:.1}, and {:+.0} are allowed",
                operation.allowed
            )
            .into());
        }
        Ok(())
    }

    fn print<R>(&self, suite: &Suite<R>) -> Result<(), String> {
        println!();
        println!(
            "{:28} {:>8} {:>8} {:>11} {:>6}",
            "instructions", "C calls", suite.name, "difference", "limit"
        );
        for operation in suite.operations {
            let raw = self.per_round(operation.raw.0)?;
            let ours = self.per_round(operation.ours.0)?;
            println!(
                "{:28} {raw:8.1} {ours:8.1} {:+11.1} {:+6.0}",
                operation.name,
                ours - raw,
                operation.allowed
            );
        }
        Ok(())
    }
}

/// What was measured, or why not.
enum Measured {
    Done(Result<Runs, String>),
    Missing(String),
}

fn measure_unless_missing<R>(suite: &Suite<R>, not_wanted: bool) -> Arc<Measured> {
    let missing: Vec<_> = [("valgrind", "valgrind"), ("objdump", "binutils")]
        .into_iter()
        .filter(|(program, _)| !runs(program))
        .map(|(program, package)| format!("the program {program} (package {package})"))
        .collect();
    if !missing.is_empty() {
        let missing = missing.join(" and ");
        let then = if require_all() { "fail" } else { "are ignored" };
        println!("missing: {missing}; the tests that need it {then}");
        return Arc::new(Measured::Missing(missing));
    }
    if not_wanted {
        return Arc::new(Measured::Missing("a run".to_owned()));
    }
    let measured = Runs::measure(suite).and_then(|runs| runs.print(suite).map(|()| runs));
    Arc::new(Measured::Done(measured))
}

fn runs(program: &str) -> bool {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn require_all() -> bool {
    env::var_os("RPMA_REQUIRE_ALL").is_some_and(|value| value != "0" && !value.is_empty())
}

/// A test of what was measured; without the programs that measure it is ignored, or fails where all is required.
fn trial(
    name: &str,
    measured: &Arc<Measured>,
    body: impl FnOnce(&Runs) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let shared = Arc::clone(measured);
    let ignored = matches!(**measured, Measured::Missing(_)) && !require_all();
    let test = move || match &*shared {
        Measured::Done(Ok(runs)) => body(runs),
        Measured::Done(Err(error)) => Err(error.into()),
        Measured::Missing(what) => Err(format!("missing: {what}").into()),
    };
    Trial::test(name, test).with_ignored_flag(ignored)
}

/// Runs every loop; this is what callgrind looks at.
fn count<R>(suite: &Suite<R>) -> ExitCode {
    let rounds = env::args().nth(2).and_then(|text| text.parse().ok());
    let Some(rounds) = rounds else {
        eprintln!("instructions: `{COUNT}` needs a number of rounds");
        return ExitCode::from(2);
    };
    match with_rig(suite, |rig| run_all(suite, rig, rounds)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_all<R>(suite: &Suite<R>, rig: &R, rounds: u64) -> Result<(), String> {
    let failed: u64 = suite
        .operations
        .iter()
        .map(|operation| operation.run(rig, rounds))
        .sum();
    match failed {
        0 => Ok(()),
        count => Err(format!("{count} rounds failed")),
    }
}

fn nothing_is_allocated<R>(suite: &Suite<R>) -> Result<(), String> {
    with_rig(suite, |rig| {
        let before = allocations::so_far();
        drop(std::hint::black_box(Box::new(before)));
        if allocations::so_far() - before < 2 {
            return Err("allocations are not counted".to_owned());
        }
        for operation in suite.operations {
            let before = allocations::so_far();
            let failed = operation.run(rig, ROUNDS[0]);
            let count = allocations::so_far() - before;
            if (failed, count) != (0, 0) {
                let name = operation.name;
                return Err(format!(
                    "{name}: {count} calls of the allocator, {failed} rounds failed"
                ));
            }
        }
        Ok(())
    })
}

fn with_rig<R>(
    suite: &Suite<R>,
    body: impl FnOnce(&R) -> Result<(), String>,
) -> Result<(), String> {
    let fake = control::session();
    let result = (suite.make)().and_then(|rig| body(&rig));
    fake.finish();
    result
}
