//! The step `hosts`: tests between two VMs that are joined by a cable, one of which loses its power.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::counted::{Run, step};
use super::steps::{plain, through_vm, variable};
use super::{Options, Outcome};
use crate::error::{Context, Result};
use crate::process::Guarded;
use crate::vm::{self, Config};
use crate::workspace;

/// In the names of the tests that need a second host.
const NAME: &str = "two_hosts_";

/// Whether there may be such tests with the filter.
pub(super) fn wanted(options: &Options) -> bool {
    let filter = options.filter.as_deref();
    options.full && filter.is_none_or(|filter| filter.starts_with(NAME))
}

/// The tests between two hosts: in the first VM, with a peer in the second one. When the file is there that the tests are told
/// of, the second VM is ended as by a power cut, and then the file is removed.
pub(super) fn hosts(options: &Options) -> Result<Outcome> {
    let configs = ["host-a", "host-b"].map(|name| -> Result<Config> {
        let config = Config::from_environment(Some(name.to_owned()), None)?;
        fs::create_dir_all(&config.folder)
            .context(|| format!("cannot make {}", config.folder.display()))?;
        Ok(config)
    });
    let [first, second] = configs;
    let (first, second) = (first?, second?);
    let link = first.folder.join("link");
    let [first, second] = [first.joined(&link), second.joined(&link)];
    if let Err(error) = vm::fetch(&first) {
        return Ok(Outcome::missing(error));
    }
    // One that is left over is joined to a VM that is gone.
    vm::stop(&second)?;
    vm::stop(&first)?;
    let outcome = vm::start(&first)
        .and_then(|()| vm::start(&second))
        .map_or_else(
            |error| Ok(Outcome::failed(format!("hosts: {error}"))),
            |()| between(options, &first, &second),
        );
    vm::stop(&second)?;
    vm::stop(&first)?;
    outcome
}

fn between(options: &Options, first: &Config, second: &Config) -> Result<Outcome> {
    let power_cut = workspace::target_dir().join(format!("power-cut-{}", std::process::id()));
    let _ = fs::remove_file(&power_cut);
    let said = second.folder.join("peer.log");
    let peer = peer(options, second, &said)?;
    let over = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                if power_cut.exists() {
                    // Should this fail, the file stays, and the test that waits for its end says so.
                    if vm::stop(second).is_ok() {
                        let _ = fs::remove_file(&power_cut);
                    }
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let outcome = step(Run {
            name: "hosts",
            calls: vec![plain(
                "--package tests --test library",
                &Options {
                    full: true,
                    filter: Some(NAME.to_owned()),
                    deadline: options.deadline,
                },
            )],
            settings: &through_vm(first, &[])?,
            variables: vec![
                variable("RPMA_REQUIRE_ALL", "1"),
                variable("RPMA_TEST_FULL", "1"),
                variable("RPMA_TEST_ADDRESS", &vm::link_address(1)),
                variable("RPMA_TEST_SECOND_HOST", &vm::link_address(2)),
                variable("RPMA_TEST_POWER_CUT", &power_cut.to_string_lossy()),
            ],
            deadline: options.deadline,
        });
        over.store(true, Ordering::SeqCst);
        outcome
    });
    drop(peer);
    let mut outcome = outcome?;
    if outcome.count.run() == 0 && outcome.failure.is_none() {
        outcome.failure = Some("hosts: no test ran between the two hosts".to_owned());
    }
    outcome.failure = outcome
        .failure
        .map(|failure| format!("{failure} (the peer's output is in {})", said.display()));
    Ok(outcome)
}

/// The tests' peer, in the second VM until its end.
fn peer(options: &Options, second: &Config, said: &Path) -> Result<Guarded> {
    let log = File::create(said).context(|| format!("cannot make {}", said.display()))?;
    let both = log
        .try_clone()
        .context(|| format!("cannot use {}", said.display()))?;
    let (mut command, words) = plain(
        "--package tests --test library",
        &Options {
            full: true,
            filter: None,
            deadline: options.deadline,
        },
    );
    let child = command
        .args(words)
        .args(through_vm(second, &[])?)
        .current_dir(workspace::root())
        .env("CARGO_TARGET_DIR", workspace::target_dir())
        .env("RPMA_TEST_ROLE", "second_host")
        .env("RPMA_TEST_ADDRESS", vm::link_address(2))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(both)
        .spawn()
        .context(|| format!("cannot run {}", Command::get_program(&command).display()))?;
    Ok(Guarded(child))
}
