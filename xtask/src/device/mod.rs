//! An RDMA device wherever there is Linux: one that is there, one made here, or one in a VM.

mod host;
mod ladder;
pub(crate) mod sysfs;
#[cfg(test)]
mod testing;

use std::env;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::fs::Access;
use rustix::process::{Resource, Rlimit};

use crate::error::{Context, Error, Result};
use crate::packages::{self, Privilege};
use crate::process;
use crate::report;
use crate::vm;
use ladder::{Facts, Ladder, Rung, Wish};

/// Tells what runs on the device which address it has.
const ADDRESS_VARIABLE: &str = "RPMA_TEST_ADDRESS";

/// Where a device is that can be used now.
#[derive(Debug)]
pub(crate) enum Place {
    /// On this machine, at this address.
    Host(IpAddr),
    /// In the VM.
    Vm(Box<vm::Config>),
}

impl Place {
    /// The device's address.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Host(address) => address.to_string(),
            Self::Vm(_) => vm::DEVICE_ADDRESS.to_owned(),
        }
    }

    /// The words that go before a command to run it where the device is.
    ///
    /// They name a copy of this program, because a rebuild replaces this one while it runs.
    ///
    /// # Errors
    /// When the copy cannot be made.
    pub(crate) fn runner(&self) -> Result<Vec<OsString>> {
        let (folder, words) = match self {
            Self::Host(_) => (crate::workspace::cache_dir()?, ["device", "exec", "--"]),
            Self::Vm(config) => (config.folder.clone(), ["vm", "exec", "--"]),
        };
        std::fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
        let program = vm::copy_of_this_program(&folder.join("runner"))?;
        Ok(std::iter::once(program.into_os_string())
            .chain(words.map(OsString::from))
            .collect())
    }

    /// A command that runs `program` where the device is.
    ///
    /// # Errors
    /// As [`Place::runner`].
    pub(crate) fn command(&self, program: &Path) -> Result<Command> {
        let runner = self.runner()?;
        let mut command = Command::new(&runner[0]);
        command
            .args(&runner[1..])
            .arg(program)
            .env(ADDRESS_VARIABLE, self.address());
        Ok(command)
    }
}

/// Says which rungs are usable, and why the others are not; exit code 1 if none is.
///
/// # Errors
/// When the environment asks for something unknown.
pub(crate) fn status() -> Result<ExitCode> {
    let ladder = Ladder::of(&facts(), wish()?);
    print!("{}", ladder.explain());
    let config = vm::Config::from_environment(None)?;
    if vm::is_up(&config) {
        println!("The VM '{}' is up.", config.name);
    }
    let usable = ladder.usable().next().is_some();
    Ok(if usable {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Makes sure that there is a device, by the first rung that works, and says which.
///
/// # Errors
/// When no rung works: each one's reason.
pub(crate) fn up() -> Result<Place> {
    let ladder = Ladder::of(&facts(), wish()?);
    let mut failures = Vec::new();
    for rung in ladder.usable() {
        match climb(rung) {
            Ok(place) => return Ok(place),
            Err(error) => {
                report::say(format!("{error}; trying the next way to a device"));
                failures.push(error.to_string());
            }
        }
    }
    if let [only] = failures.as_slice() {
        return Err(Error::new(format!("no RDMA device: {only}")));
    }
    Err(Error::new(format!(
        "no RDMA device can be had here:\n{}{}",
        ladder.explain(),
        failures.join("\n")
    )))
}

fn climb(rung: Rung) -> Result<Place> {
    match rung {
        Rung::Existing(address) => {
            report::say(format!(
                "using the RDMA device of this machine at {address}"
            ));
            Ok(Place::Host(address))
        }
        Rung::Create => {
            host::up()?;
            let address = vm::DEVICE_ADDRESS
                .parse()
                .context(|| "the device's address is no address".to_owned())?;
            nodes()
                .map_err(|reason| Error::new(format!("a SoftRoCE device was made, but {reason}")))
                .map(|()| Place::Host(address))
        }
        Rung::Vm => {
            let config = vm::Config::from_environment(None)?;
            let was_up = vm::is_up(&config);
            vm::start(&config)?;
            if !was_up {
                let mut made = host::Made::load()?;
                made.vm = Some(config.name.clone());
                made.save()?;
            }
            Ok(Place::Vm(Box::new(config)))
        }
    }
}

/// Removes what `up` made.
///
/// # Errors
/// The first thing that cannot be removed.
pub(crate) fn down() -> Result<()> {
    let mut made = host::Made::load()?;
    if made == host::Made::default() {
        report::say("nothing to remove: `device up` made nothing here");
        return Ok(());
    }
    if let Some(name) = made.vm.take() {
        vm::stop(&vm::Config::from_environment(Some(name))?)?;
    }
    host::down(&mut made)?;
    made.save()
}

/// Runs a command where the device is, with the device's address in its environment.
///
/// On this machine it replaces this process, with the memlock limit lifted as far as this user may.
///
/// # Errors
/// When there is no device, or the command cannot be run.
pub(crate) fn exec(command: &[OsString]) -> Result<ExitCode> {
    let ladder = Ladder::of(&facts(), wish()?);
    match ladder.usable().next() {
        Some(Rung::Existing(address)) => {
            lift_memlock_limit();
            let error = Command::new(&command[0])
                .args(&command[1..])
                .env(
                    ADDRESS_VARIABLE,
                    env::var_os(ADDRESS_VARIABLE).unwrap_or_else(|| address.to_string().into()),
                )
                .exec();
            Err(Error::new(format!(
                "cannot run {}: {error}",
                command[0].to_string_lossy()
            ))
            .with_exit_code(127))
        }
        Some(Rung::Vm) => {
            let address = OsString::from(format!("{ADDRESS_VARIABLE}={}", vm::DEVICE_ADDRESS));
            let with_address: Vec<OsString> = [OsString::from("env"), address]
                .into_iter()
                .chain(command.iter().map(OsString::from))
                .collect();
            vm::exec(&vm::Config::from_environment(None)?, &with_address)
        }
        Some(Rung::Create) => Err(Error::new(
            "there is no RDMA device yet; run `cargo xtask device up` first",
        )),
        None => Err(Error::new(format!(
            "no RDMA device can be had here:\n{}",
            ladder.explain()
        ))),
    }
}

/// RDMA pins memory; the usual limit of an ordinary user is too low for the tests. Where it cannot be lifted, the tests
/// that need more say so themselves.
fn lift_memlock_limit() {
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    if rustix::process::setrlimit(Resource::Memlock, unlimited).is_ok() {
        return;
    }
    if packages::privilege() == Some(Privilege::Sudo) {
        let own = std::process::id().to_string();
        let mut prlimit = packages::as_root(Privilege::Sudo, "prlimit");
        let _ = process::capture(prlimit.args(["--memlock=unlimited:unlimited", "--pid", &own]));
    }
}

fn wish() -> Result<Wish> {
    let value = env::var_os("RDMA_RUST_DEVICE");
    Wish::parse(value.as_deref().map(OsStr::to_string_lossy).as_deref())
}

fn facts() -> Facts {
    Facts {
        ports: sysfs::ports(Path::new("/sys")).unwrap_or_default(),
        nodes: nodes(),
        creation: host::obstacle(),
        vm: vm_obstacle(),
    }
}

/// Why the device nodes cannot be used, if so.
fn nodes() -> std::result::Result<(), String> {
    let folder = Path::new("/dev/infiniband");
    let usable = |path: &Path| rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK);
    usable(&folder.join("rdma_cm")).map_err(|error| {
        format!("/dev/infiniband/rdma_cm cannot be opened ({error}); as root: modprobe rdma_ucm")
    })?;
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let any = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("uverbs"))
        .any(|entry| usable(&entry.path()).is_ok());
    any.then_some(()).ok_or_else(|| {
        "no /dev/infiniband/uverbs* can be opened; as root: modprobe ib_uverbs, and look at the permissions".to_owned()
    })
}

/// Why no VM can be started, if that is known without trying.
fn vm_obstacle() -> std::result::Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err(format!(
            "it is only there for x86_64, and this machine is {}",
            env::consts::ARCH
        ));
    }
    if process::find_tool("apt-get").is_none() {
        return Err(
            "its kernel is a Debian or Ubuntu package, and this system has no apt-get".to_owned(),
        );
    }
    Ok(())
}
