//! A virtual machine with a real RDMA device (SoftRoCE), for machines that have none.
//!
//! The guest boots the distribution's kernel over the host's own root file system, so what is built here runs there. It
//! stays up between commands; [`exec`] makes a command in it look like one on the host.

mod accel;
pub(crate) mod agent;
#[cfg(test)]
mod agent_test;
mod apt;
mod boot;
mod client;
mod config;
mod download;
mod guest;
mod initrd;
mod kernel;
mod libraries;
mod modules;
pub(crate) mod pmem;
mod protocol;
mod qemu;
mod resolve;
pub(crate) mod siw;
mod state;
mod system;
#[cfg(test)]
pub(crate) mod testing;
mod tidy;
mod vmlinux;

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) use boot::copy_of_this_program;
pub(crate) use config::{Config, DEVICE_ADDRESS};
pub(crate) use guest::link_address;

use crate::error::{Context, Error, Result};
use crate::report;
use crate::signals::Held;
use state::Running;

/// Makes sure that the VM is up.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn start(config: &Config) -> Result<()> {
    let (running, also) = match &config.pmem {
        Some(file) => (
            pmem::start(config, file)?,
            format!(", persistent memory {}", pmem::DEVICE),
        ),
        None => (boot::ensure(config)?, String::new()),
    };
    report::say(format!(
        "the VM '{}' is up: {}, device rxe0 at {DEVICE_ADDRESS}{also}",
        config.name, running.description
    ));
    Ok(())
}

/// Fetches what a start of the VM needs, unless it is there.
///
/// # Errors
/// When something cannot be had: what, and what to do about it.
pub(crate) fn fetch(config: &Config) -> Result<()> {
    boot::obtain(config).map(drop)
}

/// The folders of the headers and of the libraries of a guest that has others than the host, fetched if they are not there.
///
/// # Errors
/// When they cannot be had: why, and what to do about it.
pub(crate) fn headers_and_libraries(config: &Config) -> Result<(PathBuf, PathBuf)> {
    let libraries = boot::obtain_libraries(config)?.ok_or_else(|| {
        Error::new(format!(
            "the guest {} has the host's libraries: there is nothing to fetch",
            config.system.vm_name()
        ))
    })?;
    let usr = libraries.tree.join("usr");
    Ok((usr.join("include"), usr.join("lib/x86_64-linux-gnu")))
}

/// Stops the VM.
///
/// # Errors
/// When it does not end.
pub(crate) fn stop(config: &Config) -> Result<()> {
    let was_up = boot::stop(config)?;
    report::say(if was_up {
        "the VM is stopped"
    } else {
        "there was no VM to stop"
    });
    Ok(())
}

/// Ends the VM at once, as a power cut would: nothing in it, nor QEMU, can write anything any more.
///
/// # Errors
/// When there is none, or its QEMU does not end.
pub(crate) fn power_cut(config: &Config) -> Result<()> {
    boot::power_cut(config)
}

/// Whether the VM is up.
pub(crate) fn is_up(config: &Config) -> bool {
    Running::find(config).is_some()
}

/// Says whether the VM is up: exit code 0 if it is and answers, 1 otherwise.
///
/// # Errors
/// None of its own; the signature is that of the other subcommands.
pub(crate) fn status(config: &Config) -> Result<ExitCode> {
    let Some(running) = Running::find(config) else {
        println!(
            "VM '{}': not running (`cargo xtask vm start` starts it)",
            config.name
        );
        return Ok(ExitCode::FAILURE);
    };
    let answers = client::answers(running.port, &running.token, Duration::from_secs(10));
    println!(
        "VM '{}': {} ({}; pid {}, port {}, console {})",
        config.name,
        if answers {
            "up"
        } else {
            "running, but its agent does not answer"
        },
        running.description,
        running.pid,
        running.port,
        boot::console(&config.folder).display()
    );
    for share in &config.shares {
        println!("shared: {}", share.display());
    }
    Ok(if answers {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs a command in the VM, starting it first if it is not up.
///
/// # Errors
/// With exit code 125 when the VM is at fault rather than the command.
pub(crate) fn exec(config: &Config, command: &[OsString]) -> Result<ExitCode> {
    let running = match Running::find(config) {
        Some(running) => running,
        None => boot::ensure(config).map_err(|error| error.with_exit_code(client::LOST))?,
    };
    client::exec(&running, command)
}

/// Runs a command in a VM of its own that is stopped afterwards, also when a signal ends this program.
///
/// # Errors
/// As [`exec`].
pub(crate) fn run_once(config: Config, command: &[OsString]) -> Result<ExitCode> {
    let config = config.renamed(&format!("run-{}", std::process::id()));
    let _held = Held::new();
    let over = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let (config, over) = (&config, &over);
        scope.spawn(move || {
            while !over.load(Ordering::SeqCst) {
                if Held::received() {
                    // The command ends with its VM. Should this fail, the stop below says why.
                    let _ = boot::stop(config);
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let result = boot::ensure(config)
            .map_err(|error| error.with_exit_code(client::LOST))
            .and_then(|running| client::exec(&running, command));
        over.store(true, Ordering::SeqCst);
        result
    });
    boot::stop(&config)?;
    // Its console is of use only when something went wrong with the VM itself.
    if result.is_ok() {
        let _ = fs::remove_dir_all(&config.folder);
    }
    result
}

/// Shows what the VM's console has said, and with `follow` what it says until it ends.
///
/// # Errors
/// When the VM was never started.
pub(crate) fn console(config: &Config, follow: bool) -> Result<()> {
    let path = boot::console(&config.folder);
    let mut file = fs::File::open(&path).map_err(|error| {
        Error::new(format!(
            "no console of VM '{}' yet ({}: {error})",
            config.name,
            path.display()
        ))
    })?;
    loop {
        let mut new = Vec::new();
        let failed = || format!("cannot read {}", path.display());
        let before = file.stream_position().context(failed)?;
        file.read_to_end(&mut new).context(failed)?;
        std::io::stdout()
            .write_all(&new)
            .context(|| "cannot write the console's text".to_owned())?;
        let grew = file.stream_position().context(failed)? > before;
        if !follow || (!grew && !is_up(config)) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(200));
    }
}
