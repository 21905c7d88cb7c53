//! From a configuration to a VM whose agent answers: with a watchdog, and more than one try.
//!
//! About one emulated microvm boot in several hundred hangs in its first half second; a second try never did.

use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::kernel::Kernel;
use super::libraries::{self, Libraries};
use super::qemu::{self, Boot};
use super::state::{self, Lock, Running};
use super::{Config, accel, client, initrd, kernel, tidy};
use crate::error::{Context, Error, Result};
use crate::packages::{self, Set};
use crate::process;
use crate::report::{self, Step};
use crate::signals::Held;

/// The first line of the guest's own, and the last one of its set-up; `failed` is followed by a reason.
pub(super) const KERNEL_SPEAKS: &str = "@@ init";
const READY: &str = "@@ agent ready";
const FAILED: &str = "@@ failed: ";

/// How long the kernel may take to reach its first process, and how long the whole boot may take. Many times
/// what was measured, for a machine whose cores are all busy.
const SILENCE_DEADLINE: Duration = Duration::from_secs(40);
const BOOT_DEADLINE: Duration = Duration::from_secs(150);

const TRIES: u32 = 3;

/// The running VM of `config`, started if there is none, and started anew if it does not answer or was made of other
/// things than it would be made of now.
///
/// # Errors
/// When what it needs cannot be had, or no try leads to a VM that answers.
pub(crate) fn ensure(config: &Config) -> Result<Running> {
    let _lock = Lock::take(&config.folder.join("lock"))?;
    packages_here()?;
    let made_of = made_of(config);
    if let Some(running) = Running::find(config) {
        if running.made_of != made_of {
            report::say("the VM was started with other settings or packages: starting it anew");
        } else if client::answers(running.port, &running.token, Duration::from_secs(20)) {
            return Ok(running);
        } else {
            report::say("the VM no longer answers: starting it anew");
        }
    }
    stop_locked(config)?;
    let (kernel, libraries) = obtain(config)?;
    start(config, &kernel, libraries.as_ref(), made_of)
}

/// What the VM of `config` is started with, from the cache or downloaded into it.
///
/// # Errors
/// When something of it cannot be had.
pub(super) fn obtain(config: &Config) -> Result<(Kernel, Option<Libraries>)> {
    packages_here()?;
    let _lock = Lock::take(&config.cache.join("lock"))?;
    Ok((kernel::obtain(config)?, libraries::obtain(config)?))
}

/// The libraries and headers of the guest of `config`, from the cache or downloaded into it; none when they are the host's.
///
/// # Errors
/// When they cannot be had.
pub(super) fn obtain_libraries(config: &Config) -> Result<Option<Libraries>> {
    packages_here()?;
    let _lock = Lock::take(&config.cache.join("lock"))?;
    libraries::obtain(config)
}

/// What this machine needs to start any VM.
fn packages_here() -> Result<()> {
    check_architecture()?;
    packages::ensure(&[Set::Vm])
}

/// Stops the VM of `config`; whether there was one.
///
/// # Errors
/// When its QEMU does not end.
pub(crate) fn stop(config: &Config) -> Result<bool> {
    let _lock = Lock::take(&config.folder.join("lock"))?;
    stop_locked(config)
}

fn stop_locked(config: &Config) -> Result<bool> {
    let saved = Running::find(config).map(|running| running.pid);
    // A start that was interrupted leaves a QEMU that is not in the state file yet.
    let started = qemu_pid(&config.folder).filter(|pid| state::is_our_qemu(*pid, &config.folder));
    let was_up = saved.or(started).is_some();
    for pid in saved.into_iter().chain(started) {
        state::end_qemu(pid, &config.folder)?;
    }
    state::forget(&config.folder);
    tidy::large_files(&config.folder);
    Ok(was_up)
}

/// Kills the QEMU of `config`.
///
/// # Errors
/// When there is none, or it does not end.
pub(super) fn power_cut(config: &Config) -> Result<()> {
    let running = Running::find(config).ok_or_else(|| {
        Error::new(format!(
            "the VM '{}' is not up, so its power cannot be cut",
            config.name
        ))
    })?;
    state::kill_qemu(running.pid, &config.folder)?;
    state::forget(&config.folder);
    tidy::large_files(&config.folder);
    Ok(())
}

fn check_architecture() -> Result<()> {
    if cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    Err(Error::new(format!(
        "the VM is only there for x86_64, this machine is {}: missing are its QEMU machine, its kernel package name and \
         an uncompressed kernel image; make an RDMA device here instead (as root: modprobe rdma_rxe, then `rdma link \
         add rxe0 type rxe netdev NAME`)",
        std::env::consts::ARCH
    )))
}

/// A fingerprint of all that a VM is made of. The list of installed packages is part of it: the guest's root is the
/// host's as it was, so what was installed since is not reliably seen in there.
fn made_of(config: &Config) -> u64 {
    let packages = fs::metadata("/var/lib/dpkg/status").and_then(|data| data.modified());
    let texts = [
        format!("{:?}", packages.ok()),
        format!("{config:?}"),
        initrd::INIT.to_owned(),
        include_str!("guest.rs").to_owned(),
        include_str!("agent.rs").to_owned(),
        include_str!("protocol.rs").to_owned(),
        super::modules::list_fingerprint().to_string(),
    ];
    crate::workspace::fingerprint(texts.iter().map(|text| text.as_bytes()))
}

fn start(
    config: &Config,
    kernel: &Kernel,
    libraries: Option<&Libraries>,
    made_of: u64,
) -> Result<Running> {
    // Who gives up waiting gets no QEMU that nobody knows of.
    let _held = Held::new();
    let folder = &config.folder;
    let token = state::new_token()?;
    state::write_private(&folder.join("token"), token.as_bytes())?;
    let initrd = folder.join("initrd");
    initrd::write(kernel, &folder.join("initrd.new"), &initrd)?;
    let agent = copy_of_this_program(&folder.join("agent"))?;
    let mut boot = Boot {
        kvm: false,
        kernel,
        initrd: &initrd,
        layer: libraries.map(|libraries| libraries.tree.as_path()),
        agent: &agent,
        port: config.first_port,
        probe: false,
        tsc_khz: qemu::tsc_khz(),
        link_is_there: false,
    };
    boot.kvm = accel::use_kvm(config, &boot)?;
    let system = match libraries {
        Some(libraries) => format!("kernel {}, rdma-core {}", kernel.release, libraries.release),
        None => format!("kernel {}", kernel.release),
    };
    let mut reasons = Vec::new();
    for attempt in 1..=TRIES {
        let accelerator = if boot.kvm { "KVM" } else { "TCG, emulated" };
        let step = Step::start(format!("Starting the VM ({accelerator}, {system})"));
        match try_once(config, &mut boot, &token, &step) {
            Ok(pid) => {
                let running = Running {
                    pid,
                    port: boot.port,
                    token,
                    made_of,
                    description: format!("{accelerator}, {system}"),
                };
                running.save(folder)?;
                step.done("up");
                tidy::old_leftovers(config);
                return Ok(running);
            }
            Err(error) => {
                step.done(&format!("try {attempt} failed: {error}"));
                if let Some(pid) = qemu_pid(folder) {
                    state::end_qemu(pid, folder)?;
                }
                if Held::received() {
                    tidy::large_files(folder);
                    return Err(error);
                }
                // A set-up that says itself why it fails will say so again.
                if console_says(&console(folder), FAILED) {
                    return Err(error);
                }
                boot.kvm = false;
                reasons.push(error.to_string());
            }
        }
    }
    Err(Error::new(format!(
        "the VM did not start in {TRIES} tries ({}); its console is in {}",
        reasons.last().map_or("", String::as_str),
        console(folder).display()
    )))
}

/// One boot; QEMU's process id when the agent answers.
fn try_once(config: &Config, boot: &mut Boot<'_>, token: &str, step: &Step) -> Result<u32> {
    launch(config, boot)?;
    let pid = qemu_pid(&config.folder)
        .ok_or_else(|| Error::new("QEMU wrote no process id, though it said that it started"))?;
    let console = console(&config.folder);
    let started = Instant::now();
    loop {
        if console_says(&console, READY) {
            break;
        }
        if Held::received() {
            return Err(Error::new("interrupted"));
        }
        if let Some(reason) = after(&console, FAILED) {
            return Err(Error::new(format!("the guest's set-up failed: {reason}")));
        }
        if !state::is_our_qemu(pid, &config.folder) {
            return Err(Error::new(format!(
                "QEMU ended during the boot{}",
                last_words(&console)
            )));
        }
        let elapsed = started.elapsed();
        if elapsed > BOOT_DEADLINE
            || (elapsed > SILENCE_DEADLINE && !console_says(&console, KERNEL_SPEAKS))
        {
            return Err(Error::new(format!(
                "the guest was not ready after {}{}",
                report::seconds(elapsed),
                last_words(&console)
            )));
        }
        step.progress(|| "booting".to_owned());
        std::thread::sleep(Duration::from_millis(30));
    }
    if client::answers(boot.port, token, Duration::from_secs(20)) {
        return Ok(pid);
    }
    Err(Error::new(format!(
        "the guest's agent does not answer on port {}",
        boot.port
    )))
}

/// Starts QEMU as a daemon, on the first port that is free.
fn launch(config: &Config, boot: &mut Boot<'_>) -> Result<()> {
    let folder = &config.folder;
    // Boots are told apart by what the console says, so nothing of an earlier one may be left.
    let _ = fs::remove_file(console(folder));
    let _ = fs::remove_file(folder.join("qemu.pid"));
    let is_there = |link: &Path| UnixStream::connect(link).is_ok();
    boot.link_is_there = config.link.as_deref().is_some_and(is_there);
    for _ in 0..50 {
        let mut command = process::tool("qemu-system-x86_64");
        command
            .args(qemu::arguments(config, boot)?)
            .arg("-serial")
            .arg(serial_to(&console(folder)))
            .arg("-pidfile")
            .arg(folder.join("qemu.pid"))
            // Its own session, no standard streams of ours, and it says whether it came up.
            .arg("-daemonize")
            .stdin(Stdio::null())
            // An interrupt from the terminal is for this program, which then ends QEMU.
            .process_group(0);
        close_all_but_standard_streams(&mut command);
        match process::capture_within(&mut command, Duration::from_secs(30)) {
            Ok(_) => return Ok(()),
            Err(error) if !error.to_string().contains("host forwarding rule") => {
                return Err(Error::new(format!("QEMU did not start: {error}")));
            }
            Err(_) => {}
        }
        // Somebody else has this port.
        boot.port = boot.port.wrapping_add(1).max(20_000);
    }
    Err(Error::new(format!(
        "no free port for the VM from {} on; stop what listens there, or use another --name",
        config.first_port
    )))
}

/// QEMU outlives this program: a pipe that somebody left open to us must not stay open in it.
fn close_all_but_standard_streams(command: &mut std::process::Command) {
    let mark = || {
        // SAFETY: close_range with CLOEXEC is one system call that reads and writes no memory of ours; the standard
        // library's own descriptors in the child are close-on-exec already. Kernels before 5.11 refuse it, changing
        // nothing.
        unsafe {
            libc::syscall(
                libc::SYS_close_range,
                3_u32,
                u32::MAX,
                libc::CLOSE_RANGE_CLOEXEC,
            )
        };
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec and does nothing but the system call above: no allocation, no
    // lock.
    unsafe { command.pre_exec(mark) };
}

/// The value of QEMU's `-serial` for a file.
pub(super) fn serial_to(file: &Path) -> String {
    format!("file:{}", file.display())
}

/// Where the guest's console is written to.
pub(super) fn console(folder: &Path) -> PathBuf {
    folder.join("console.log")
}

fn qemu_pid(folder: &Path) -> Option<u32> {
    fs::read_to_string(folder.join("qemu.pid"))
        .ok()?
        .trim()
        .parse()
        .ok()
}

fn console_text(file: &Path) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

/// Whether a line of the console begins with `text`.
pub(super) fn console_says(file: &Path, text: &str) -> bool {
    console_text(file)
        .lines()
        .any(|line| line.starts_with(text))
}

fn after(file: &Path, text: &str) -> Option<String> {
    let console = console_text(file);
    // Only whole lines: the rest of one may still be on its way.
    let whole = &console[..=console.rfind('\n')?];
    whole
        .lines()
        .find_map(|line| line.strip_prefix(text))
        .map(|reason| reason.trim().to_owned())
}

fn last_words(file: &Path) -> String {
    let console = console_text(file);
    let last = console.lines().rev().find(|line| !line.trim().is_empty());
    last.map_or_else(
        || "; its console is empty".to_owned(),
        |line| format!("; its last line: {}", line.trim()),
    )
}

/// A copy that a rebuild of this program does not touch.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn copy_of_this_program(to: &Path) -> Result<PathBuf> {
    let failed = || format!("cannot copy this program to {}", to.display());
    if std::env::current_exe().is_ok_and(|own| own == to) {
        return Ok(to.to_owned());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).context(failed)?;
    }
    let staging = to.with_extension(format!("new-{}", std::process::id()));
    // Not by its name: a rebuild may have put another program there, or none for the moment.
    fs::copy("/proc/self/exe", &staging).context(failed)?;
    fs::rename(&staging, to).context(failed)?;
    Ok(to.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scratch;
    use super::*;

    #[test]
    fn the_console_is_read_by_lines() {
        let scratch = Scratch::new("console");
        let file = scratch.path("console.log");
        assert!(!console_says(&file, READY), "no file, no word");
        fs::write(
            &file,
            "[0.1] @@ agent ready?\n@@ init 0.9\r\n@@ failed: no dev",
        )
        .unwrap();
        assert!(console_says(&file, KERNEL_SPEAKS));
        assert!(
            !console_says(&file, READY),
            "only at the beginning of a line"
        );
        assert_eq!(after(&file, FAILED), None, "the line is not whole yet");
        fs::write(&file, "@@ failed: no device\r\n").unwrap();
        assert_eq!(after(&file, FAILED).as_deref(), Some("no device"));
        assert_eq!(last_words(&file), "; its last line: @@ failed: no device");
    }
}
