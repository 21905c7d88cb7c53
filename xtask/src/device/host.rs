//! A SoftRoCE device made on this machine: modules, a dummy interface with an address, the device on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::sysfs;
use crate::error::{Context, Error, Result};
use crate::packages::{self, Privilege, Set, as_root};
use crate::process;
use crate::report::{self, Step};
use crate::vm::DEVICE_ADDRESS;
use crate::workspace;

/// Names of our own, so that `down` can never hit anything of the user's.
const NETDEV: &str = "rdmatest0";
const LINK: &str = "rdmatest_rxe0";

/// The modules, a dependent before what it depends on, which is the order to remove them in.
const MODULES: [&str; 4] = ["rdma_rxe", "rdma_ucm", "ib_uverbs", "dummy"];

/// What `up` made, and `down` has to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Made {
    /// The interface.
    pub(super) netdev: bool,
    /// The RDMA device.
    pub(super) link: bool,
    /// Modules that were not loaded before.
    pub(super) modules: Vec<String>,
    /// The name of the VM that was started.
    pub(super) vm: Option<String>,
}

impl Made {
    /// What an earlier `up` made.
    pub(super) fn load() -> Result<Self> {
        let file = state_file()?;
        match fs::read(&file) {
            Ok(text) => Ok(Self::from_json(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::new(format!(
                "cannot read {}: {error}",
                file.display()
            ))),
        }
    }

    /// Remembers it for `down`.
    pub(super) fn save(&self) -> Result<()> {
        let file = state_file()?;
        if *self == Self::default() {
            // Nothing to remember; the file may not exist either.
            let _ = fs::remove_file(file);
            return Ok(());
        }
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder).context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&file, self.to_json().to_string())
            .context(|| format!("cannot write {}", file.display()))
    }

    fn to_json(&self) -> Value {
        json!({"netdev": self.netdev, "link": self.link, "modules": self.modules, "vm": self.vm})
    }

    fn from_json(text: &[u8]) -> Self {
        let value: Value = serde_json::from_slice(text).unwrap_or_default();
        let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or(false);
        let modules = value.get("modules").and_then(Value::as_array);
        Self {
            netdev: flag("netdev"),
            link: flag("link"),
            modules: modules
                .into_iter()
                .flatten()
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
            vm: value.get("vm").and_then(Value::as_str).map(str::to_owned),
        }
    }
}

fn state_file() -> Result<PathBuf> {
    // Of the machine, not of a checkout: the device is the machine's.
    Ok(workspace::cache_dir()?.join("device.json"))
}

/// Why no device can be made here, if so.
pub(super) fn obstacle() -> std::result::Result<(), String> {
    if packages::privilege().is_none() {
        return Err("that needs root, or a sudo that asks for no password".to_owned());
    }
    if Path::new("/sys/module/rdma_rxe").exists() {
        return Ok(());
    }
    let known = process::tool("modprobe")
        .args(["--dry-run", "--quiet", "rdma_rxe"])
        .output();
    match known {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => Err(format!(
            "the running kernel has no module rdma_rxe (on Ubuntu: the package linux-modules-extra-{})",
            release()
        )),
        Err(_) => Err("there is no modprobe (package kmod)".to_owned()),
    }
}

fn release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// Makes the device; what was made before a failure is removed again.
///
/// # Errors
/// The step that failed.
pub(super) fn up() -> Result<()> {
    packages::ensure(&[Set::Device])?;
    let how =
        packages::privilege().ok_or_else(|| Error::new("making an RDMA device needs root"))?;
    let step = Step::start(format!(
        "Making a SoftRoCE device ({LINK} on {NETDEV}, {DEVICE_ADDRESS})"
    ));
    let mut made = Made::load()?;
    match make(how, &mut made) {
        Ok(()) => {
            made.save()?;
            step.done("ready");
            Ok(())
        }
        Err(error) => {
            step.done("failed");
            // Best effort: the first failure is the one to tell.
            if let Err(second) = remove(how, &mut made) {
                report::say(format!("while removing what was made: {second}"));
            }
            made.save()?;
            Err(error)
        }
    }
}

fn make(how: Privilege, made: &mut Made) -> Result<()> {
    for module in MODULES.iter().rev() {
        if !is_loaded(module) {
            run(how, &format!("modprobe {module}"))?;
            // A module that is built in never shows as loaded, and cannot be removed.
            if is_loaded(module) {
                made.modules.push((*module).to_owned());
            }
        }
    }
    if !Path::new("/sys/class/net").join(NETDEV).exists() {
        run(how, &format!("ip link add {NETDEV} type dummy"))?;
        made.netdev = true;
    }
    // "replace", so that what an interrupted run left is no obstacle.
    run(
        how,
        &format!("ip addr replace {DEVICE_ADDRESS}/24 dev {NETDEV}"),
    )?;
    run(
        how,
        &format!("ip addr replace 2001:db8::1/64 dev {NETDEV} nodad"),
    )?;
    run(how, &format!("ip link set {NETDEV} up"))?;
    if !Path::new("/sys/class/infiniband").join(LINK).exists() {
        run(
            how,
            &format!("rdma link add {LINK} type rxe netdev {NETDEV}"),
        )?;
        made.link = true;
    }
    wait_for_address()
}

/// Until the address is in the device's GID table: an earlier connection loses packets, and seconds with them.
fn wait_for_address() -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let ports = sysfs::ports(Path::new("/sys"))
            .context(|| "cannot read /sys/class/infiniband".to_owned())?;
        let ours = ports.iter().find(|port| port.device == LINK);
        let has_address = |port: &sysfs::Port| {
            port.addresses()
                .iter()
                .any(|own| own.to_string() == DEVICE_ADDRESS)
        };
        if ours.is_some_and(|port| port.is_active() && has_address(port)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::new(format!(
                "the device {LINK} did not become active with {DEVICE_ADDRESS} within 10 s"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Removes what is recorded as made.
///
/// # Errors
/// The first step that failed; what it concerned stays recorded.
pub(super) fn down(made: &mut Made) -> Result<()> {
    if !made.netdev && !made.link && made.modules.is_empty() {
        return Ok(());
    }
    let how = packages::privilege().ok_or_else(|| {
        Error::new("removing the device that `device up` made needs root; run `sudo -v` first")
    })?;
    let step = Step::start("Removing the SoftRoCE device");
    let result = remove(how, made);
    made.save()?;
    result?;
    step.done("removed");
    Ok(())
}

fn remove(how: Privilege, made: &mut Made) -> Result<()> {
    if made.link {
        if Path::new("/sys/class/infiniband").join(LINK).exists() {
            run(how, &format!("rdma link del {LINK}"))?;
        }
        made.link = false;
    }
    if made.netdev {
        if Path::new("/sys/class/net").join(NETDEV).exists() {
            run(how, &format!("ip link del {NETDEV}"))?;
        }
        made.netdev = false;
    }
    for module in MODULES {
        if made.modules.iter().any(|name| name == module) {
            if is_loaded(module) {
                // In use by something else by now: then it is that one's to remove.
                if let Err(error) = run(how, &format!("modprobe -r {module}")) {
                    report::say(format!("the module {module} stays loaded: {error}"));
                }
            }
            made.modules.retain(|name| name != module);
        }
    }
    Ok(())
}

fn is_loaded(module: &str) -> bool {
    Path::new("/sys/module").join(module).exists()
}

fn run(how: Privilege, line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let program = words.next().unwrap_or_default();
    process::capture(as_root(how, program).args(words)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_is_remembered_exactly() {
        let made = Made {
            netdev: true,
            link: false,
            modules: vec!["rdma_rxe".to_owned(), "dummy".to_owned()],
            vm: Some("default".to_owned()),
        };
        assert_eq!(Made::from_json(made.to_json().to_string().as_bytes()), made);
    }

    #[test]
    fn a_broken_record_removes_nothing() {
        for text in ["", "[]", "{\"link\":1,\"modules\":\"dummy\"}"] {
            assert_eq!(Made::from_json(text.as_bytes()), Made::default(), "{text}");
        }
    }
}
