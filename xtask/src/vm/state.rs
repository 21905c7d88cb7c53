//! What is remembered of a VM between calls: process, port, token, and what it was started with.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Config;
use crate::error::{Context, Error, Result};
use crate::report;

/// How long another xtask may hold a lock: a download of a kernel on a slow network.
const LOCK_DEADLINE: Duration = Duration::from_secs(1200);

/// A VM that is up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// QEMU's process.
    pub(crate) pid: u32,
    /// Where its agent is reached on the host's loopback interface.
    pub(crate) port: u16,
    /// What the agent wants to hear.
    pub(crate) token: String,
    /// A fingerprint of everything that it was started with.
    pub(crate) made_of: u64,
    /// One line about it: accelerator and kernel.
    pub(crate) description: String,
}

impl Running {
    /// The VM of this configuration, if its QEMU lives.
    pub(crate) fn find(config: &Config) -> Option<Self> {
        let text = fs::read(state_file(&config.folder)).ok()?;
        let running = Self::from_json(&text)?;
        is_our_qemu(running.pid, &config.folder).then_some(running)
    }

    /// Remembers it.
    pub(crate) fn save(&self, folder: &Path) -> Result<()> {
        let file = state_file(folder);
        write_private(&file, self.to_json().to_string().as_bytes())
    }

    fn to_json(&self) -> Value {
        json!({
            "pid": self.pid,
            "port": self.port,
            "token": self.token,
            "made_of": self.made_of,
            "description": self.description,
        })
    }

    fn from_json(text: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let number = |name: &str| value.get(name)?.as_u64();
        let text = |name: &str| value.get(name)?.as_str().map(str::to_owned);
        Some(Self {
            pid: number("pid")?.try_into().ok()?,
            port: number("port")?.try_into().ok()?,
            token: text("token")?,
            made_of: number("made_of")?,
            description: text("description")?,
        })
    }
}

fn state_file(folder: &Path) -> PathBuf {
    folder.join("state.json")
}

/// Forgets the VM, whether there was one or not.
pub(crate) fn forget(folder: &Path) {
    let _ = fs::remove_file(state_file(folder));
}

/// Whether `pid` is the QEMU that runs in `folder`: a process id alone may be somebody else's by now.
pub(crate) fn is_our_qemu(pid: u32, folder: &Path) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    line.contains("qemu") && line.contains(&super::guest::as_argument(folder))
}

/// Ends that QEMU and waits until it is gone.
///
/// # Errors
/// When it is still there after several seconds.
pub(crate) fn end_qemu(pid: u32, folder: &Path) -> Result<()> {
    end_by(Signal::TERM, pid, folder)
}

/// As [`end_qemu`], but it is given no time to do anything.
///
/// # Errors
/// When it is still there after several seconds.
pub(crate) fn kill_qemu(pid: u32, folder: &Path) -> Result<()> {
    end_by(Signal::KILL, pid, folder)
}

fn end_by(first: Signal, pid: u32, folder: &Path) -> Result<()> {
    let Some(target) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(());
    };
    let started = Instant::now();
    let mut signal = first;
    while is_our_qemu(pid, folder) {
        if started.elapsed() > Duration::from_secs(3) {
            signal = Signal::KILL;
        }
        if started.elapsed() > Duration::from_secs(10) {
            return Err(Error::new(format!(
                "the VM's QEMU (pid {pid}) does not end, even by SIGKILL"
            )));
        }
        // Gone between check and signal is what is wanted.
        let _ = kill_process(target, signal);
        std::thread::sleep(Duration::from_millis(30));
    }
    Ok(())
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(file: &Path, content: &[u8]) -> Result<()> {
    let mut open = OpenOptions::new();
    let opened = open
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(file);
    opened
        .and_then(|mut opened| opened.write_all(content))
        .context(|| format!("cannot write {}", file.display()))
}

/// 128 random bits as text.
///
/// # Errors
/// When the system's source of randomness cannot be read.
pub(crate) fn new_token() -> Result<String> {
    let mut bytes = [0_u8; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| std::io::Read::read_exact(&mut source, &mut bytes))
        .context(|| "cannot read /dev/urandom".to_owned())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Keeps other xtasks out while it lives.
#[derive(Debug)]
pub(crate) struct Lock(
    #[expect(dead_code, reason = "closing the file is what releases the lock")] File,
);

impl Lock {
    /// Takes the lock file `file`, waiting for whoever holds it.
    ///
    /// # Errors
    /// When the file cannot be made, or the other does not let go in time.
    pub(crate) fn take(file: &Path) -> Result<Self> {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
        }
        let mut open = OpenOptions::new();
        let opened = open
            .write(true)
            .create(true)
            .truncate(false)
            .open(file)
            .context(|| format!("cannot open {}", file.display()))?;
        let started = Instant::now();
        let mut told = false;
        while rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive).is_err() {
            if !told && started.elapsed() > Duration::from_secs(1) {
                report::say(format!(
                    "waiting for another xtask that holds {}",
                    file.display()
                ));
                told = true;
            }
            if started.elapsed() > LOCK_DEADLINE {
                return Err(Error::new(format!(
                    "another process has held {} for {} minutes; end it and try again",
                    file.display(),
                    LOCK_DEADLINE.as_secs() / 60
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self(opened))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Scratch;
    use super::*;

    fn running() -> Running {
        Running {
            pid: 12,
            port: 20_000,
            token: new_token().unwrap(),
            made_of: u64::MAX,
            description: "TCG, kernel 6.1".to_owned(),
        }
    }

    #[test]
    fn the_state_comes_back_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let scratch = Scratch::new("state");
        let folder = scratch.path("");
        running().save(&folder).unwrap();
        let file = state_file(&folder);
        assert_eq!(
            fs::metadata(&file).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let read = Running::from_json(&fs::read(file).unwrap()).unwrap();
        assert_eq!((read.pid, read.port, read.made_of), (12, 20_000, u64::MAX));
    }

    #[test]
    fn a_broken_state_file_means_no_vm() {
        for text in [
            "",
            "{}",
            "[1]",
            "{\"pid\":-1}",
            "{\"pid\":1,\"port\":70000,\"token\":\"\",\"made_of\":1,\"description\":\"\"}",
        ] {
            assert_eq!(Running::from_json(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_recycled_process_id_is_not_taken_for_the_vm() {
        assert!(!is_our_qemu(std::process::id(), Path::new("/")));
    }

    #[test]
    fn tokens_differ() {
        assert_eq!(new_token().unwrap().len(), 32);
        assert_ne!(new_token().unwrap(), new_token().unwrap());
    }

    #[test]
    fn a_lock_is_free_again_when_its_holder_is_gone() {
        let scratch = Scratch::new("lock");
        let file = scratch.path("lock");
        drop(Lock::take(&file).unwrap());
        let held = Lock::take(&file).unwrap();
        let other = File::open(&file).unwrap();
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap_err();
        drop(held);
        rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    }
}
