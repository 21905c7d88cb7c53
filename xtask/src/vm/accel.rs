//! Whether KVM truly works here: a real kernel has to start under it.
//!
//! `/dev/kvm` alone proves nothing. There are machines (nested ones above all) where it opens, runs small programs, and
//! never gets a kernel to its first line.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::config::Accelerator;
use super::qemu::{self, Boot};
use super::{Config, boot};
use crate::error::{Context, Error, Result};
use crate::process::{self, Guarded};
use crate::report::Step;

/// A kernel under a working KVM speaks within one or two seconds.
const PROBE_DEADLINE: Duration = Duration::from_secs(8);

/// Decides for KVM (`true`) or TCG, booting the kernel of `trial` once per machine start and user to find out.
///
/// # Errors
/// When KVM was demanded and does not work: why.
pub(crate) fn use_kvm(config: &Config, trial: &Boot<'_>) -> Result<bool> {
    if config.accelerator == Accelerator::Tcg {
        return Ok(false);
    }
    let verdict = match reason_against() {
        Some(reason) => Err(reason),
        None => cached_probe(config, trial)?,
    };
    match (verdict, config.accelerator) {
        (Ok(()), _) => Ok(true),
        (Err(reason), Accelerator::Kvm) => Err(Error::new(format!(
            "RDMA_RUST_VM_ACCEL asks for KVM, but {reason}; unset it to use emulation"
        ))),
        (Err(_), _) => Ok(false),
    }
}

/// What can be said against KVM without booting anything.
fn reason_against() -> Option<String> {
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    if let Err(error) = rustix::fs::access("/dev/kvm", access) {
        return Some(format!("/dev/kvm cannot be opened ({error})"));
    }
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    (!has_virtualisation(&processor))
        .then(|| "the processor shows no virtualisation (neither vmx nor svm)".to_owned())
}

fn has_virtualisation(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
    flags
        .flat_map(str::split_whitespace)
        .any(|flag| flag == "vmx" || flag == "svm")
}

fn cached_probe(config: &Config, trial: &Boot<'_>) -> Result<std::result::Result<(), String>> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let file = config.cache.join(format!(
        "kvm-{}-{}",
        boot_id.trim(),
        rustix::process::getuid().as_raw()
    ));
    match fs::read_to_string(&file).as_deref().map(str::trim) {
        Ok("works") => return Ok(Ok(())),
        Ok("does not work") => return Ok(Err("no kernel boots under it here".to_owned())),
        _ => {}
    }
    let works = probe(config, trial)?;
    let verdict = if works { "works" } else { "does not work" };
    fs::write(&file, verdict).context(|| format!("cannot write {}", file.display()))?;
    Ok(if works {
        Ok(())
    } else {
        Err("no kernel boots under it here".to_owned())
    })
}

fn probe(config: &Config, trial: &Boot<'_>) -> Result<bool> {
    let step = Step::start("Trying whether KVM boots a kernel here (once)");
    let trial = Boot {
        kvm: true,
        probe: true,
        ..*trial
    };
    let console = config.folder.join("probe.log");
    let child = process::tool("qemu-system-x86_64")
        .args(qemu::arguments(config, &trial)?)
        .arg("-serial")
        .arg(boot::serial_to(&console))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context(|| "cannot run qemu-system-x86_64".to_owned())?;
    let mut child = Guarded(child);
    let deadline = Instant::now() + PROBE_DEADLINE;
    let spoke = loop {
        let ended = process::wait_until(&mut child.0, Instant::now() + Duration::from_millis(50))?
            .is_some();
        let spoke = boot::console_says(&console, boot::KERNEL_SPEAKS);
        if spoke || ended || Instant::now() > deadline {
            break spoke;
        }
    };
    step.done(if spoke {
        "it does"
    } else {
        "it does not; using emulation"
    });
    Ok(spoke)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtualisation_is_read_from_the_flags_only() {
        assert!(has_virtualisation(
            "model name: x\nflags\t\t: fpu vmx sse\n"
        ));
        assert!(has_virtualisation("flags : svm"));
        assert!(!has_virtualisation(
            "model name : vmx svm\nflags : fpu sse vmx_other\n"
        ));
        assert!(!has_virtualisation(""));
    }
}
