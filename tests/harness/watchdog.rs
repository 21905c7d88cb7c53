//! Ends the process when a test hangs, saying where.

use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{child, suite};

/// What the test does at the moment, as it says itself.
static PHASE: Mutex<String> = Mutex::new(String::new());

/// Names the step that begins now; a watchdog that fires prints the last one.
pub fn phase(text: impl Into<String>) {
    *PHASE.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
}

/// Watches one test until it is dropped.
#[derive(Debug)]
pub(crate) struct Watchdog(Option<Sender<()>>);

impl Watchdog {
    pub(crate) fn start(name: &str, limit: Duration) -> Self {
        phase("");
        let (stop, stopped) = mpsc::channel();
        let name = name.to_owned();
        thread::spawn(move || {
            if stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                report(&name, limit);
                println!("\n{}", suite::summary_of_a_hang());
                // SAFETY: _exit ends the process at once; a hung test would not let `exit` run the
                // handlers of C libraries to their end.
                unsafe { libc::_exit(101) };
            }
        });
        Self(Some(stop))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Hanging up wakes the thread.
        drop(self.0.take());
    }
}

fn report(name: &str, limit: Duration) {
    let phase = PHASE.lock().map(|phase| phase.clone()).unwrap_or_default();
    eprintln!("\ntest {name} ... hung for {limit:?}; last phase: {phase:?}");
    let mut processes = vec![std::process::id()];
    processes.extend(child::running());
    for pid in processes {
        print_kernel_side(pid);
        print_stacks(pid);
    }
}

/// Where each thread waits in the kernel.
fn print_kernel_side(pid: u32) {
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |file: &str| {
            std::fs::read_to_string(entry.path().join(file))
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        eprintln!(
            "process {pid} thread {:?} ({}): waits in {}",
            entry.file_name(),
            read("comm"),
            read("wchan")
        );
        for line in read("stack").lines() {
            eprintln!("    {line}");
        }
    }
}

/// All threads' stacks, where gdb is installed.
fn print_stacks(pid: u32) {
    let spawned = Command::new("gdb")
        .args([
            "-batch",
            "-nx",
            "-p",
            &pid.to_string(),
            "-ex",
            "thread apply all backtrace 24",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut gdb) = spawned else {
        eprintln!("(no gdb: no stacks)");
        return;
    };
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        match gdb.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(100)),
            _ => return,
        }
    }
    let _ = gdb.kill();
    let _ = gdb.wait();
}
