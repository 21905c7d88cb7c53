//! Warnings that the kernel writes while a test runs.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

/// Reads the kernel's log from now on; nothing where that is not allowed.
#[derive(Debug)]
pub(crate) struct KernelLog(Option<File>);

impl KernelLog {
    pub(crate) fn from_now() -> Self {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/kmsg")
            .ok();
        Self(file.and_then(|mut file| file.seek(SeekFrom::End(0)).ok().map(|_| file)))
    }

    /// The first lines since then that tell of a fault in the kernel.
    pub(crate) fn faults(&mut self) -> Vec<String> {
        let Some(file) = &mut self.0 else {
            return Vec::new();
        };
        let mut faults = Vec::new();
        let mut record = [0; 8192];
        loop {
            match file.read(&mut record) {
                Ok(len) if len > 0 => {
                    let text = String::from_utf8_lossy(&record[..len]).into_owned();
                    if is_fault(&text) && faults.len() < 10 {
                        let message = text.split_once(';').map_or(&*text, |(_, message)| message);
                        faults.push(message.lines().next().unwrap_or_default().to_owned());
                    }
                }
                // Older records were overwritten meanwhile: go on with what is left.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                _ => return faults,
            }
        }
    }
}

fn is_fault(text: &str) -> bool {
    // That a program crashed is told by how it ended. (One that is just exiting may crash as well, in a thread that uses what
    // another has taken down.)
    let of_a_program = text.contains("traps: ");
    let words = [
        "WARNING:",
        "BUG:",
        "Oops",
        "general protection fault",
        "refcount_t",
        "hung task",
        "blocked for more than",
    ];
    !of_a_program && words.iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_from_chatter() {
        assert!(is_fault(
            "4,1,2,-;WARNING: CPU: 0 PID: 1 at drivers/infiniband/sw/rxe/rxe_mr.c"
        ));
        assert!(is_fault(
            "4,1,2,-;general protection fault, probably for non-canonical address 0xdead: 0000 [#1]"
        ));
        assert!(!is_fault("6,1,2,-;rdma_rxe: loaded"));
        assert!(!is_fault(
            "6,1,2,-;traps: rping[1521] general protection fault ip:7f30 sp:7f30 error:0 in librdmacm.so.1"
        ));
    }
}
