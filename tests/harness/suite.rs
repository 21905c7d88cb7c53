//! The list of tests, and how it is run.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

use crate::Outcome;
use crate::baseline::Baseline;
use crate::kernel_log::KernelLog;
use crate::need::Need;
use crate::watchdog::Watchdog;

/// Names the role in which a test program runs as a child of itself.
pub(crate) const ROLE: &str = "RPMA_TEST_ROLE";
/// The role's argument.
pub(crate) const ARGUMENT: &str = "RPMA_TEST_ROLE_ARGUMENT";

/// What a test program does as a child of itself: a name, and a function.
pub type Role = (&'static str, fn() -> Outcome);

/// The argument that the parent gave the role.
pub fn role_argument() -> String {
    std::env::var(ARGUMENT).unwrap_or_default()
}

/// Whether the long tests run, too.
pub fn full() -> bool {
    is_set("RPMA_TEST_FULL")
}

/// How often to repeat: `normal` times, or `long` times among the long tests.
pub fn rounds(normal: usize, long: usize) -> usize {
    if full() { long } else { normal }
}

/// In the name of each test of what only newer kernels and libraries have.
const NATIVE: &str = "native_";

/// Which tests of what only newer kernels and libraries have belong to this run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Native {
    /// All tests, these too.
    Too,
    /// No others.
    Only,
    /// None of those that cannot run here: another run holds them, elsewhere.
    Elsewhere,
}

impl Native {
    fn of_environment() -> Result<Self, String> {
        match std::env::var("RPMA_TEST_NATIVE").as_deref() {
            Err(_) | Ok("") => Ok(Self::Too),
            Ok("only") => Ok(Self::Only),
            Ok("elsewhere") => Ok(Self::Elsewhere),
            Ok(other) => Err(format!(
                "RPMA_TEST_NATIVE is '{other}', but must be only, elsewhere or not set"
            )),
        }
    }

    fn takes(self, test: &Test) -> bool {
        match self {
            Self::Too => true,
            Self::Only => test.name.contains(NATIVE),
            Self::Elsewhere => {
                !test.needs.contains(&Need::Native) || Need::Native.missing().is_none()
            }
        }
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| value != "0" && !value.is_empty())
}

/// How many tests have passed and failed so far. One that runs counts as failed, since it may panic
/// or hang.
static PASSED: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicU64 = AtomicU64::new(0);

/// The summary of a run that ends with a test that hangs, in the form of the usual one.
pub(crate) fn summary_of_a_hang() -> String {
    let (passed, failed) = (
        PASSED.load(Ordering::Relaxed),
        FAILED.load(Ordering::Relaxed),
    );
    format!(
        "test result: FAILED. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; \
         the tests behind the one that hung did not run"
    )
}

/// How long each test took.
static TIMES: Mutex<Vec<(Duration, &'static str)>> = Mutex::new(Vec::new());

/// Names the tests that make the whole slow.
fn print_slowest() {
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    times.sort_unstable_by(|a, b| b.cmp(a));
    let slow = times
        .iter()
        .take(8)
        .filter(|(time, _)| *time > Duration::from_secs(2));
    for (time, name) in slow {
        println!("{:6.1} s {name}", time.as_secs_f64());
    }
}

/// One test.
#[derive(Debug)]
pub struct Test {
    name: &'static str,
    needs: Vec<Need>,
    limit: Duration,
    long: bool,
    leaks_checked: bool,
    body: fn() -> Outcome,
}

/// A test named after the rule it holds.
pub fn test(name: &'static str, needs: &[Need], body: fn() -> Outcome) -> Test {
    Test {
        name,
        needs: needs.to_vec(),
        limit: Duration::from_secs(60),
        long: false,
        leaks_checked: needs.contains(&Need::Device),
        body,
    }
}

impl Test {
    /// Another time limit than 60 s; ten times as much applies to the long tests.
    #[must_use]
    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs only among the long tests.
    #[must_use]
    pub fn long(mut self) -> Self {
        self.long = true;
        self
    }

    /// Leaves objects behind on purpose.
    #[must_use]
    pub fn leaks(mut self) -> Self {
        self.leaks_checked = false;
        self
    }

    /// Whether what only some runs have is there, if it is needed: the second machine, the early cmtime.
    fn is_of_this_run(&self) -> bool {
        [Need::SecondHost, Need::EarlyCmtime]
            .iter()
            .all(|need| !self.needs.contains(need) || need.missing().is_none())
    }

    fn trial(self, require_all: bool) -> Trial {
        let missing: Vec<_> = self
            .needs
            .iter()
            .filter_map(|need| need.missing())
            .collect();
        if missing.is_empty() {
            let name = self.name;
            return Trial::test(name, move || self.run());
        }
        let text = format!("missing: {}", missing.join("; "));
        if require_all {
            Trial::test(self.name, move || Err(Failed::from(text)))
        } else {
            Trial::test(self.name, || Ok(())).with_ignored_flag(true)
        }
    }

    fn run(&self) -> Outcome {
        FAILED.fetch_add(1, Ordering::Relaxed);
        self.watched()?;
        FAILED.fetch_sub(1, Ordering::Relaxed);
        PASSED.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn watched(&self) -> Outcome {
        // Among the long tests, most repeat about ten times as often.
        let limit = if full() { self.limit * 10 } else { self.limit };
        let _watchdog = Watchdog::start(self.name, limit);
        let mut log = KernelLog::from_now();
        let baseline = self.leaks_checked.then(Baseline::take).transpose()?;
        let start = Instant::now();
        let outcome = (self.body)();
        TIMES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((start.elapsed(), self.name));
        outcome?;
        crate::phase("looking for what was left behind");
        if let Some(baseline) = baseline {
            baseline.check()?;
        }
        match log.faults() {
            faults if faults.is_empty() => Ok(()),
            faults => Err(format!("the kernel complained:\n{}", faults.join("\n")).into()),
        }
    }
}

/// Runs the tests that the command line selects, one after the other: they count objects of the
/// whole machine. As a child of itself the program runs one of the `roles` instead.
pub fn run(tests: Vec<Test>, roles: &[Role]) -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        return run_role(&role, roles);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let native = match Native::of_environment() {
        Ok(native) => native,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(102);
        }
    };
    let tests: Vec<Test> = tests
        .into_iter()
        .filter(|test| (full() || !test.long) && native.takes(test) && test.is_of_this_run())
        .collect();
    let require_all = is_set("RPMA_REQUIRE_ALL");
    if !arguments.list {
        prepare(&tests, require_all);
    }
    let trials = tests
        .into_iter()
        .map(|test| test.trial(require_all))
        .collect();
    let conclusion: Conclusion = libtest_mimic::run(&arguments, trials);
    print_slowest();
    conclusion.exit_code()
}

/// Says what is missing, and lets the libraries open what they keep open for good, so that it is
/// not taken for a leak of the first test.
fn prepare(tests: &[Test], require_all: bool) {
    let mut needs: Vec<_> = tests
        .iter()
        .flat_map(|test| test.needs.iter().copied())
        .collect();
    needs.sort_unstable();
    needs.dedup();
    for missing in needs.iter().filter_map(|need| need.missing()) {
        let then = if require_all { "fail" } else { "are ignored" };
        println!("missing: {missing}; the tests that need it {then}");
    }
    if let Ok(device) = crate::device::find() {
        println!("device {} at {}", device.name, device.ip);
        if let Err(error) = rpma::Device::local(device.ip) {
            println!("device {} cannot be used: {error}", device.name);
        }
    }
}

fn run_role(role: &str, roles: &[Role]) -> ExitCode {
    let Some((_, body)) = roles.iter().find(|(name, _)| *name == role) else {
        eprintln!("no role {role}");
        return ExitCode::from(102);
    };
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!(
                "role {role} failed: {}",
                failed.message().unwrap_or("no message")
            );
            ExitCode::FAILURE
        }
    }
}
