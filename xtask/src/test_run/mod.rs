//! `cargo xtask test`: the pure tests on the host, those of the bindings once more against newer headers, on the host as well
//! those of the fake device (plain, under AddressSanitizer and under Miri), the others where the real device is and in a guest
//! with newer kernel and libraries, all counted.

mod count;
mod counted;
mod fuzz;
mod guests;
mod hosts;
mod iwarp;
mod pmem;
mod steps;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::device;
use crate::error::{Context, Error, Result};
use crate::packages::{self, Set};
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
#[derive(Debug, Default)]
struct Outcome {
    count: Count,
    /// What is wrong, if anything.
    failure: Option<String>,
    /// What it would need and does not have here, so that it did not run.
    missing: Option<String>,
}

impl Outcome {
    /// A step that cannot run here.
    fn missing(reason: impl ToString) -> Self {
        Self {
            missing: Some(reason.to_string()),
            count: Count {
                ignored: 1,
                ..Count::default()
            },
            failure: None,
        }
    }

    /// A step that should have run and did not.
    fn failed(reason: impl ToString) -> Self {
        Self {
            failure: Some(reason.to_string()),
            ..Self::default()
        }
    }
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

    // The same tests again, in another way: with a filter only where there are some.
    let again = |first: &Outcome| options.filter.is_none() || first.count.run() > 0;
    let host = steps::host(options)?;
    let with_headers = again(&host);
    let mut outcomes = vec![("host", host)];
    if with_headers {
        outcomes.push(("headers", steps::headers(options)?));
    }
    let fake = steps::fake(options)?;
    let on_fake = again(&fake);
    outcomes.push(("fake", fake));
    if on_fake {
        outcomes.push(("asan", steps::asan(options)?));
        outcomes.push(("miri", steps::miri(options)?));
        if options.full {
            outcomes.push(("tsan", steps::tsan(options)?));
        }
    }
    if fuzz::wanted(options) {
        outcomes.push(("fuzz", fuzz::fuzz(options)?));
    }
    if steps::counts_instructions(options) {
        outcomes.push(("instructions", steps::instructions(options)?));
    }
    if steps::compares_paths(options) {
        outcomes.push(("paths", steps::paths(options)?));
    }
    if iwarp::wanted(options) {
        outcomes.push(("iwarp", iwarp::iwarp(options)?));
    }
    if pmem::wanted(options) {
        outcomes.push(("pmem", pmem::pmem(options)?));
    }
    outcomes.push(("device", steps::device(options, &place)?));
    outcomes.extend(guests::guests(options)?);
    if hosts::wanted(options) {
        outcomes.push(("hosts", hosts::hosts(options)?));
    }
    Ok(conclude(options, &outcomes, &minimum, started))
}

/// Runs only the step `paths`, which otherwise belongs to the long tests.
///
/// # Errors
/// When the set-up fails. A path that is too long is exit code 1.
pub(crate) fn bench(filter: Option<String>, deadline: Duration) -> Result<ExitCode> {
    let started = Instant::now();
    packages::ensure(&[Set::Build])?;
    let options = Options {
        full: true,
        filter,
        deadline,
    };
    let outcomes = [("paths", steps::paths(&options)?)];
    let minimum = Minimum::default();
    Ok(conclude(&options, &outcomes, &minimum, started))
}

/// Says how all went.
fn conclude(
    options: &Options,
    outcomes: &[(&'static str, Outcome)],
    minimum: &Minimum,
    started: Instant,
) -> ExitCode {
    let require_all = std::env::var_os("RPMA_REQUIRE_ALL").is_some_and(|value| value == "1");
    let mut failures: Vec<String> = Vec::new();
    for (name, outcome) in outcomes {
        failures.extend(outcome.failure.clone());
        if let Some(reason) = &outcome.missing {
            let text = format!("{name}: not run, counted as ignored: {reason}");
            if require_all {
                failures.push(format!("{text} (a failure, because RPMA_REQUIRE_ALL is 1)"));
            } else {
                report::say(text);
            }
            continue;
        }
        // With a filter nobody knows how many there must be.
        if options.filter.is_none() {
            failures.extend(count::shortfall(name, outcome.count, minimum.of(name)));
        }
        // On the fake device those are tests that abort: others run them, in a process of their own.
        let ignored = outcome.count.ignored;
        if ignored > 0 && !["fake", "asan", "miri", "tsan"].contains(name) {
            report::say(format!("{name}: {ignored} tests were not run (ignored)"));
        }
    }
    let counts: Vec<(&str, u64)> = outcomes
        .iter()
        .filter(|(_, outcome)| outcome.missing.is_none())
        .map(|(name, outcome)| (*name, outcome.count.run()))
        .collect();
    let more = counts.iter().any(|(name, run)| *run > minimum.of(name));
    if options.filter.is_none() && !options.full && failures.is_empty() && more {
        let texts: Vec<String> = counts
            .iter()
            .map(|(name, run)| format!("{name}={run}"))
            .collect();
        report::say(format!(
            "more tests ran than xtask/minimum-tests.txt asks for; raise it to {}",
            texts.join(" ")
        ));
    }
    let total = outcomes.iter().fold(Count::default(), |sum, (_, outcome)| {
        sum.plus(outcome.count)
    });
    if options.filter.is_some() && total.run() == 0 {
        failures.push("no test's name contains the filter".to_owned());
    }
    for failure in &failures {
        report::say(failure);
    }
    let texts: Vec<String> = counts
        .iter()
        .map(|(name, run)| format!("{name} {run}"))
        .collect();
    report::say(format!(
        "tests run: {}; in {}",
        texts.join(", "),
        report::seconds(started.elapsed())
    ));
    println!("{} passed, {} failed", total.passed, total.failed);
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_cannot_run_here_counts_as_ignored_and_asks_for_no_number_of_tests() {
        let outcome = Outcome::missing("no network");
        assert_eq!(
            (outcome.count.run(), outcome.count.ignored),
            (0, 1),
            "neither passed nor failed"
        );
        assert!(outcome.failure.is_none());
        assert!(Outcome::failed("broken").missing.is_none());
    }
}
