//! Persistent memory in the VM: a virtual NVDIMM whose content is a file of the host, as a device of device DAX.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use super::state::Running;
use super::{Config, boot, client};
use crate::error::{Error, Result};

/// The device in the guest.
pub(crate) const DEVICE: &str = "/dev/dax0.0";

/// What the NVDIMM keeps of the file for its labels, in bytes.
pub(super) const LABEL_SIZE: u64 = 2 << 20;

/// Bytes of the file. QEMU takes what is left beside the labels in multiples of 16 MiB.
pub(super) const FILE_SIZE: u64 = (64 << 20) + LABEL_SIZE;

/// Starts the VM of `config`; with a file that is new, its memory is made a device.
///
/// # Errors
/// When the VM does not start, or the guest has no such device.
pub(super) fn start(config: &Config, file: &Path) -> Result<Running> {
    let fresh = !file.exists();
    let running = boot::ensure(config)?;
    // The mode lies in the memory itself: what is there from an earlier time is never made anew.
    let make = if fresh {
        "ndctl create-namespace -f -e namespace0.0 -m devdax -M mem -a 4096 >/dev/null || exit 1;"
    } else {
        ""
    };
    let script = format!(
        "{make} i=0; while [ $i -lt 100 ]; do [ -c {DEVICE} ] && exit 0; sleep 0.1; i=$((i + 1)); done; ndctl list -Ni; exit 1"
    );
    let words = ["sh", "-c", &script].map(OsString::from);
    if client::exec(&running, &words)? == ExitCode::SUCCESS {
        return Ok(running);
    }
    Err(Error::new(format!(
        "the VM has no {DEVICE}: what it says stands above; stop it and remove {} to begin anew",
        file.display()
    )))
}
