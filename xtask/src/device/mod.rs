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
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::Access;
use rustix::process::{Resource, Rlimit};

use crate::error::{Context, Error, Result};
use crate::packages::{self, Privilege, Set};
use crate::process;
use crate::report;
use crate::vm;
use crate::workspace;
use ladder::{Facts, Ladder, Rung, Wish};

/// Tells what runs on the device which address it has.
const ADDRESS_VARIABLE: &str = "RPMA_TEST_ADDRESS";

/// As whom something runs on the device. In the VM that is always root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    /// As this user.
    User,
    /// As root: the tests cut links, lift limits and make devices.
    Root,
}

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
    pub(crate) fn runner(&self, rights: Rights) -> Result<Vec<OsString>> {
        let (copy, words): (_, &[&str]) = match (self, rights) {
            (Self::Vm(config), _) => (config.folder.join("runner"), &["vm", "exec", "--"]),
            (Self::Host(_), Rights::User) => (host_runner(), &["device", "exec", "--"]),
            (Self::Host(_), Rights::Root) => (host_runner(), &["device", "exec", "--root", "--"]),
        };
        let program = vm::copy_of_this_program(&copy)?;
        Ok(std::iter::once(program.into_os_string())
            .chain(words.iter().map(OsString::from))
            .collect())
    }

    /// A command that runs `program` where the device is, as this user.
    ///
    /// # Errors
    /// As [`Place::runner`].
    pub(crate) fn command(&self, program: &Path) -> Result<Command> {
        let runner = self.runner(Rights::User)?;
        let mut command = Command::new(&runner[0]);
        command
            .args(&runner[1..])
            .arg(program)
            .env(ADDRESS_VARIABLE, self.address())
            // The copy lies elsewhere, and must find the same VM.
            .env("CARGO_TARGET_DIR", workspace::target_dir());
        Ok(command)
    }
}

fn host_runner() -> PathBuf {
    workspace::target_dir().join("xtask-runner")
}

/// Says which rungs are usable, and why the others are not; exit code 1 if none is.
///
/// # Errors
/// When the environment asks for something unknown.
pub(crate) fn status() -> Result<ExitCode> {
    let ladder = Ladder::of(&facts(Rights::User), wish()?);
    print!("{}", ladder.explain());
    let config = vm::Config::from_environment(None, None)?;
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

/// What has to be installed for the rung that [`up`] will try first: so all that is missing can be told at once.
///
/// # Errors
/// When the environment asks for something unknown.
pub(crate) fn packages_needed(rights: Rights) -> Result<&'static [Set]> {
    let first = Ladder::of(&facts(rights), wish()?).usable().next();
    Ok(packages_of(first))
}

fn packages_of(rung: Option<Rung>) -> &'static [Set] {
    match rung {
        Some(Rung::Create) => &[Set::Device],
        Some(Rung::Vm) => &[Set::Vm],
        Some(Rung::Existing(_)) | None => &[],
    }
}

/// Makes sure that there is a device, by the first rung that works, and says which.
///
/// # Errors
/// When no rung works: each one's reason.
pub(crate) fn up(rights: Rights) -> Result<Place> {
    let ladder = Ladder::of(&facts(rights), wish()?);
    let mut failures = Vec::new();
    let mut rungs = ladder.usable().peekable();
    while let Some(rung) = rungs.next() {
        match climb(rung) {
            Ok(place) => return Ok(place),
            Err(error) => {
                if rungs.peek().is_some() {
                    report::say(format!("{error}; trying the next way to a device"));
                }
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
            let config = vm::Config::from_environment(None, None)?;
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
        vm::stop(&vm::Config::from_environment(Some(name), None)?)?;
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
pub(crate) fn exec(command: &[OsString], rights: Rights) -> Result<ExitCode> {
    let ladder = Ladder::of(&facts(rights), wish()?);
    match ladder.usable().next() {
        Some(Rung::Existing(address)) => Err(exec_here(command, rights, address)),
        Some(Rung::Vm) => {
            let address = format!("{ADDRESS_VARIABLE}={}", vm::DEVICE_ADDRESS);
            let mut words = vec![OsString::from("env"), OsString::from(address)];
            words.extend(command.iter().cloned());
            vm::exec(&vm::Config::from_environment(None, None)?, &words)
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

/// Becomes the command; returns only if that fails.
fn exec_here(command: &[OsString], rights: Rights, address: IpAddr) -> Error {
    lift_memlock_limit();
    let set = env::var_os(ADDRESS_VARIABLE);
    let address = set.unwrap_or_else(|| address.to_string().into());
    let mut to_run = match (rights, packages::privilege()) {
        (Rights::Root, Some(Privilege::Sudo)) => {
            let mut sudo = process::tool("sudo");
            // sudo replaces PATH even where it keeps the environment.
            let mut path = OsString::from("PATH=");
            path.push(env::var_os("PATH").unwrap_or_default());
            sudo.args(["-n", "--preserve-env", "env"])
                .arg(path)
                .args(command);
            sudo
        }
        _ => {
            let mut plain = Command::new(&command[0]);
            plain.args(&command[1..]);
            plain
        }
    };
    let error = to_run.env(ADDRESS_VARIABLE, address).exec();
    let program = to_run.get_program().to_string_lossy().into_owned();
    Error::new(format!("cannot run {program}: {error}")).with_exit_code(127)
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

fn facts(rights: Rights) -> Facts {
    let rights = match rights {
        Rights::Root if packages::privilege().is_none() => {
            Err("the tests change networks and limits, which needs root here".to_owned())
        }
        Rights::User | Rights::Root => Ok(()),
    };
    Facts {
        rights,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rung_needs_its_own_packages_and_a_device_that_is_there_none() {
        assert_eq!(packages_of(Some(Rung::Vm)), [Set::Vm]);
        assert_eq!(packages_of(Some(Rung::Create)), [Set::Device]);
        let there = Rung::Existing(IpAddr::from([192, 0, 2, 1]));
        assert_eq!(packages_of(Some(there)), []);
        assert_eq!(packages_of(None), []);
    }
}
