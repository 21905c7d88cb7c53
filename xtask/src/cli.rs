//! The command line: one type per subcommand, and where each one goes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::error::{Context, Error, Result};
use crate::{bindings, device, packages, ping, test_run, vm};

/// Environment variables, shown at the end of `--help`.
const ENVIRONMENT: &str = "\
Environment:
  RDMA_RUST_DEVICE            where the device is taken from: auto (default), host, vm
  RDMA_RUST_VM_CACHE          folder of kernels, logs and VM state (default: $XDG_CACHE_HOME/rdma-rust-vm or ~/.cache/rdma-rust-vm)
  RDMA_RUST_VM_NAME           name of the VM, for several beside each other (default: default, or the guest's name)
  RDMA_RUST_VM_GUEST          what the VM runs, as --guest takes it: host (default), debian13, debian13-backports, sid
  RDMA_RUST_VM_ACCEL          auto (default: KVM where a real kernel boots under it), kvm, tcg
  RDMA_RUST_VM_MEM            guest memory as QEMU takes it (default: 2G)
  RDMA_RUST_VM_SMP            guest processors (default: 2)
  RDMA_RUST_VM_MACHINE        QEMU machine (default: microvm,acpi=on)
  RDMA_RUST_VM_KERNEL         kernel package to boot, a real or a meta package (default: the distribution's)
  RDMA_RUST_VM_SUITE          suite to take only the kernel from (bookworm-backports, say); the system's lists stay as they are
  RDMA_RUST_VM_KERNEL_ARGS    words added to the kernel's command line
  RDMA_RUST_VM_QEMU_ARGS      words added to QEMU's command line
  RDMA_RUST_VM_SHARE          further folders shared read-write with the guest, separated by ':'
  RDMA_RUST_VM_IDLE_MINUTES   the VM powers itself off after so long without a command (default: 120, 0: never)
  RPMA_TEST_ADDRESS           set by `test` and `device exec` for what they run: the device's IP address";

/// Brings a device or a test VM up, runs the tests and the ping, regenerates the bindings.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", after_help = ENVIRONMENT)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say which RDMA device can be used here, bring one up, or take it down again
    Device {
        #[command(subcommand)]
        action: DeviceAction,
    },
    /// Start, stop and use the virtual machine that has an RDMA device
    Vm {
        /// Name of the VM (default: RDMA_RUST_VM_NAME or that of the guest, "default" for the host's system)
        #[arg(long, global = true)]
        name: Option<String>,
        /// What the VM runs over the host's root: "host", this distribution's own kernel, or "debian13", kernel 6.12 and
        /// rdma-core 56 of Debian 13, neither of them installed here, or "debian13-backports", those libraries with the newest
        /// kernel made for Debian 13, or "sid", the newest of both that Debian has (default:
        /// RDMA_RUST_VM_GUEST or "host")
        #[arg(long, global = true)]
        guest: Option<String>,
        /// With one processor and a clock that counts instructions, so that times in it are the same in every run; a VM of its
        /// own, named "icount" unless --name says otherwise. It never stands still: stop it
        #[arg(long, global = true)]
        icount: bool,
        /// Join it to another VM started with the same path of a unix socket, which the first one makes: each has a second
        /// device rxe1 then, at 198.18.0.1 in the first and 198.18.0.2 in the other. Needed for `start` only
        #[arg(long, global = true, value_name = "PATH")]
        link: Option<PathBuf>,
        /// Give it 64 MiB of persistent memory as /dev/dax0.0, whose content is this file, made if it is not there and still
        /// there when the VM has ended; a VM of its own, named "pmem" unless --name says otherwise. Needed for `start` only
        #[arg(long, global = true, value_name = "FILE")]
        pmem: Option<PathBuf>,
        #[command(subcommand)]
        action: VmAction,
    },
    /// Ping over a real RDMA device: set up, build, run server and client
    Ping {
        /// Seconds after which the whole ping, without set-up and build, is given up
        #[arg(long, default_value_t = 120, value_name = "SECONDS")]
        deadline: u64,
        /// Options of the rpma-ping client, after `--` (default: -c 10 -s 4096 --op all)
        #[arg(last = true, value_name = "OPTION")]
        options: Vec<OsString>,
    },
    /// Run the tests: the pure ones on the host, those of the bindings against newer headers too, on a fake device as well
    /// under AddressSanitizer and Miri, the others on an RDMA device and in the guest debian13
    Test {
        /// The long tests too
        #[arg(long)]
        full: bool,
        /// Seconds after which one step's test run is given up
        #[arg(long, default_value_t = 1200, value_name = "SECONDS")]
        deadline: u64,
        /// Run only the tests whose name contains this
        filter: Option<String>,
    },
    /// Compare the cost of our layers with that of a C program's calls, on a real device in a VM whose clock counts
    /// instructions
    Bench {
        /// Seconds after which it is given up
        #[arg(long, default_value_t = 1200, value_name = "SECONDS")]
        deadline: u64,
        /// Run only what has this in its name
        filter: Option<String>,
    },
    /// Regenerate the committed bindings of libibverbs and librdmacm
    Bindings {
        /// Change nothing, fail if the committed file differs
        #[arg(long)]
        check: bool,
    },
    /// Install the distribution packages that build, tests and checks need, and a nightly toolchain for Miri
    #[command(hide = true)]
    Setup,
    /// The part that runs inside the VM
    #[command(hide = true)]
    VmAgent {
        /// TCP port to listen on
        port: u16,
    },
}

#[derive(Debug, Subcommand)]
enum DeviceAction {
    /// Say which rung of the ladder is usable, and why the others are not
    Status,
    /// Make sure there is a device: an existing one, a new SoftRoCE one, or the VM's
    Up,
    /// Remove what `up` made, and nothing else
    Down,
    /// Run a command where the device is: here, or in the VM
    Exec {
        /// As root (in the VM it always is)
        #[arg(long)]
        root: bool,
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
}

#[derive(Debug, Subcommand)]
enum VmAction {
    /// Start the VM, unless it is up
    Start,
    /// Stop the VM
    Stop,
    /// Say whether the VM is up, and how
    Status,
    /// Run a command in the VM (started if need be), with its exit code; 125 if the VM is lost
    Exec {
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Run a command in a fresh VM that is stopped afterwards
    Run {
        /// The command and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<OsString>,
    },
    /// Show the VM's console
    Console {
        /// Go on showing what comes, until the VM ends
        #[arg(short, long)]
        follow: bool,
    },
}

impl Cli {
    /// Carries the command out.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let done = |()| ExitCode::SUCCESS;
        match self.command {
            Command::Device { action } => match action {
                DeviceAction::Status => device::status(),
                DeviceAction::Up => device::up(device::Rights::User).map(|_| ExitCode::SUCCESS),
                DeviceAction::Down => device::down().map(done),
                DeviceAction::Exec { root, command } => device::exec(
                    &command,
                    if root {
                        device::Rights::Root
                    } else {
                        device::Rights::User
                    },
                ),
            },
            Command::Vm {
                name,
                guest,
                icount,
                link,
                pmem,
                action,
            } => {
                let name = name.or_else(|| pmem.is_some().then(|| "pmem".to_owned()));
                let config = if icount {
                    let name = name.unwrap_or_else(|| "icount".to_owned());
                    vm::Config::from_environment(Some(name), guest)?.counting_instructions()
                } else {
                    vm::Config::from_environment(name, guest)?
                };
                let config = match link {
                    // QEMU has a working folder of its own.
                    Some(link) => config.joined(
                        &std::path::absolute(link)
                            .context(|| "the path of --link cannot be made absolute".to_owned())?,
                    ),
                    None => config,
                };
                let config = match pmem {
                    Some(file) => config.with_pmem(
                        &std::path::absolute(file)
                            .context(|| "the path of --pmem cannot be made absolute".to_owned())?,
                    ),
                    None => config,
                };
                match action {
                    VmAction::Start => vm::start(&config).map(|_| ExitCode::SUCCESS),
                    VmAction::Stop => vm::stop(&config).map(done),
                    VmAction::Status => vm::status(&config),
                    VmAction::Exec { command } => vm::exec(&config, &command),
                    VmAction::Run { command } => vm::run_once(config, &command),
                    VmAction::Console { follow } => vm::console(&config, follow).map(done),
                }
            }
            Command::Ping { deadline, options } => {
                ping::run(&options, Duration::from_secs(deadline))
            }
            Command::Test {
                full,
                deadline,
                filter,
            } => test_run::run(&test_run::Options {
                full,
                filter,
                deadline: Duration::from_secs(deadline),
            }),
            Command::Bench { deadline, filter } => {
                test_run::bench(filter, Duration::from_secs(deadline))
            }
            Command::Bindings { check } => bindings::run(check)
                .map(done)
                .map_err(|error| Error::new(error.to_string())),
            Command::Setup => packages::install_everything().map(done),
            Command::VmAgent { port } => vm::agent::main(port).map(done),
        }
    }
}
