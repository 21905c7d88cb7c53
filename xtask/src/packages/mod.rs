//! What has to be installed, why, and how it gets installed.

mod needs;

use std::process::Stdio;
use std::time::Duration;

pub(crate) use needs::{Need, Set};

use crate::error::{Context, Error, Result};
use crate::nightly;
use crate::process;
use crate::report::{self, Step};

/// How long one call of apt-get may take, with a slow network and another apt in the way.
const APT_LIMIT: Duration = Duration::from_secs(1200);

/// Makes sure that everything in `sets` is there, installing it where this user may.
///
/// # Errors
/// When something is missing and cannot be installed: the command that installs it.
pub(crate) fn ensure(sets: &[Set]) -> Result<()> {
    let missing = needs::missing(sets);
    if missing.is_empty() {
        return Ok(());
    }
    let how = match decide(&missing, has_apt(), privilege()) {
        Plan::Install(how) => how,
        Plan::Tell(message) => return Err(Error::new(message)),
    };
    report::say("installing what is missing:");
    for need in &missing {
        report::say(format!("  {} - {}", need.package, need.reason));
    }
    install(&missing, how)?;
    let still = needs::missing(sets);
    if still.is_empty() {
        return Ok(());
    }
    Err(Error::new(format!(
        "after the installation of {} there is still no {}; see what `apt-get install` says about it",
        names(&missing),
        still
            .iter()
            .map(|need| need.probe.to_string())
            .collect::<Vec<_>>()
            .join(", ")
    )))
}

/// Installs every set, and the nightly toolchain, without which some tests are ignored.
///
/// # Errors
/// As [`ensure`].
pub(crate) fn install_everything() -> Result<()> {
    ensure(&Set::ALL)?;
    match nightly::ensure() {
        Ok(_) => report::say("everything that build, tests and checks need is installed"),
        Err(error) => report::say(format!(
            "installed is what build, tests and checks need, but the tests will not run under Miri and \
             AddressSanitizer: {error}"
        )),
    }
    Ok(())
}

/// Brings apt's lists of packages up to date.
///
/// # Errors
/// When this user may not, or apt fails.
pub(crate) fn update_lists(why: &str) -> Result<()> {
    let how = match privilege() {
        Some(how) if has_apt() => how,
        _ => {
            return Err(Error::new(format!(
                "apt's lists of packages are missing or old; run `sudo apt-get update` {why}"
            )));
        }
    };
    let step = Step::start(format!("apt-get update, {why}"));
    process::capture_within(&mut apt_get(how, &["-qq", "update"]), APT_LIMIT)?;
    step.done("done");
    Ok(())
}

/// How this process may become root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// It is.
    Root,
    /// By sudo, which asks for no password.
    Sudo,
}

/// How this process may act as root, if at all.
pub(crate) fn privilege() -> Option<Privilege> {
    if rustix::process::geteuid().is_root() {
        return Some(Privilege::Root);
    }
    process::succeeds(
        process::tool("sudo")
            .args(["-n", "true"])
            .stdin(Stdio::null()),
    )
    .then_some(Privilege::Sudo)
}

/// A command run as root.
pub(crate) fn as_root(how: Privilege, program: &str) -> std::process::Command {
    let found = process::find_tool(program).unwrap_or_else(|| program.into());
    match how {
        Privilege::Root => std::process::Command::new(found),
        Privilege::Sudo => {
            let mut command = process::tool("sudo");
            command.arg("-n").arg(found);
            command
        }
    }
}

/// What is to be done about something missing.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Install it, as this one.
    Install(Privilege),
    /// Tell the user.
    Tell(String),
}

fn decide(missing: &[Need], apt: bool, privilege: Option<Privilege>) -> Plan {
    let reasons = || {
        let lines = missing
            .iter()
            .map(|need| format!("  {} - {}", need.package, need.reason));
        lines.collect::<Vec<_>>().join("\n")
    };
    match privilege {
        Some(how) if apt => Plan::Install(how),
        None if apt => Plan::Tell(format!(
            "these packages are missing, and installing them needs root:\n{}\nrun: sudo apt-get update && sudo apt-get \
             install --no-install-recommends {}",
            reasons(),
            names(missing)
        )),
        _ => Plan::Tell(format!(
            "these are missing, and this system has no apt-get to install them with (the names are Debian's; install what \
             your distribution calls them):\n{}",
            reasons()
        )),
    }
}

fn names(needs: &[Need]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for need in needs {
        if !names.contains(&need.package) {
            names.push(need.package);
        }
    }
    names.join(" ")
}

fn has_apt() -> bool {
    process::find_tool("apt-get").is_some()
}

fn install(missing: &[Need], how: Privilege) -> Result<()> {
    let names = names(missing);
    let step = Step::start(format!("apt-get install {names}"));
    let attempt = || {
        let mut words = vec![
            "-qq",
            "-o",
            "DPkg::Lock::Timeout=120",
            "install",
            "--no-install-recommends",
        ];
        words.extend(names.split(' '));
        process::capture_within(apt_get(how, &words).stdin(Stdio::null()), APT_LIMIT)
    };
    // Only if need be: fresh lists cost more time than most installations.
    if attempt().is_err() {
        step.progress(|| "updating the lists of packages".to_owned());
        process::capture_within(&mut apt_get(how, &["-qq", "update"]), APT_LIMIT)
            .context(|| "cannot update apt's lists".to_owned())?;
        attempt().context(|| format!("cannot install {names}"))?;
    }
    step.done("installed");
    Ok(())
}

fn apt_get(how: Privilege, words: &[&str]) -> std::process::Command {
    // Through env, because sudo drops the variable.
    let mut command = as_root(how, "env");
    command
        .args([
            "DEBIAN_FRONTEND=noninteractive",
            "LC_ALL=C",
            "apt-get",
            "-y",
        ])
        .args(words);
    command
}

#[cfg(test)]
mod tests {
    use super::needs::Probe;
    use super::*;

    const MISSING: [Need; 3] = [
        Need {
            package: "kmod",
            reason: "loads modules",
            probe: Probe::Tool("modprobe"),
        },
        Need {
            package: "cpio",
            reason: "packs the initrd",
            probe: Probe::Tool("cpio"),
        },
        Need {
            package: "kmod",
            reason: "lists modules",
            probe: Probe::Tool("depmod"),
        },
    ];

    #[test]
    fn who_may_install_does() {
        for how in [Privilege::Root, Privilege::Sudo] {
            assert_eq!(decide(&MISSING, true, Some(how)), Plan::Install(how));
        }
    }

    #[test]
    fn who_may_not_is_told_the_exact_command_and_the_reasons() {
        let Plan::Tell(text) = decide(&MISSING, true, None) else {
            panic!("must not install");
        };
        assert!(
            text.ends_with("sudo apt-get install --no-install-recommends kmod cpio"),
            "{text}"
        );
        assert!(text.contains("cpio - packs the initrd"), "{text}");
    }

    #[test]
    fn without_apt_the_needs_are_listed_and_no_command_is_given() {
        for privilege in [None, Some(Privilege::Root)] {
            let Plan::Tell(text) = decide(&MISSING, false, privilege) else {
                panic!("must not install");
            };
            assert!(
                text.contains("kmod - loads modules") && !text.contains("sudo"),
                "{text}"
            );
        }
    }
}
