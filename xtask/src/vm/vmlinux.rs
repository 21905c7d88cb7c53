//! The uncompressed kernel inside a `vmlinuz`.
//!
//! Booting it directly saves the guest the unpacking, which under emulation takes longer than all the rest of the boot.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use crate::error::{Context, Error, Result};
use crate::process;

/// How each compression begins, and what takes it off.
const COMPRESSIONS: [(&[u8], &str); 3] = [
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x1f\x8b\x08", "gzip"),
];

const ELF_MAGIC: &[u8] = b"\x7fELF";

/// Finds the ELF image in the bytes of a `vmlinuz` (or of a `vmlinux`, which it returns as it is).
///
/// # Errors
/// When no compressed stream in it leads to an ELF image.
pub(crate) fn extract(vmlinuz: &Path) -> Result<Vec<u8>> {
    let image =
        fs::read(vmlinuz).context(|| format!("cannot read the kernel {}", vmlinuz.display()))?;
    if image.starts_with(ELF_MAGIC) {
        return Ok(image);
    }
    for (magic, program) in COMPRESSIONS {
        for offset in occurrences(&image, magic) {
            let unpacked = unpack(program, &image[offset..])?;
            if unpacked.starts_with(ELF_MAGIC) {
                return Ok(unpacked);
            }
        }
    }
    Err(Error::new(format!(
        "{} holds no kernel compressed with xz, zstd or gzip; set RDMA_RUST_VM_KERNEL to another kernel package",
        vmlinuz.display()
    )))
}

fn occurrences<'a>(bytes: &'a [u8], magic: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes
        .windows(magic.len())
        .enumerate()
        .filter(move |(_, window)| *window == magic)
        .map(|(offset, _)| offset)
}

/// What `program` makes of the stream at the start of `bytes`. It complains about what follows the stream, and about
/// bytes that only look like one, so its exit code means nothing here.
fn unpack(program: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut child = process::tool(program)
        .arg("-dcq")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context(|| format!("cannot run {program} to unpack the kernel"))?;
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            // It stops reading where it finds the stream's end: a broken pipe is the rule.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(bytes);
            }
        });
        child.wait_with_output()
    });
    let output = output.context(|| format!("cannot read what {program} unpacks"))?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scratch, compress};
    use super::*;

    /// A `vmlinuz` in small: boot code, a false start of a stream, the stream, and bytes behind it.
    fn vmlinuz(program: &str, kernel: &[u8]) -> Vec<u8> {
        let magic = COMPRESSIONS
            .iter()
            .find(|(_, name)| *name == program)
            .unwrap()
            .0;
        let mut image = b"MZ boot code ".to_vec();
        image.extend_from_slice(magic);
        image.extend_from_slice(b" only looks like one ");
        image.extend(compress(program, kernel));
        image.extend_from_slice(b"trailer");
        image
    }

    #[test]
    fn the_kernel_is_found_behind_boot_code_in_every_compression() {
        let scratch = Scratch::new("vmlinux");
        let kernel = [ELF_MAGIC, &b"kernel text ".repeat(5000)].concat();
        for program in ["xz", "zstd", "gzip"] {
            let file = scratch.path(program);
            fs::write(&file, vmlinuz(program, &kernel)).unwrap();
            assert!(extract(&file).unwrap() == kernel, "{program}");
        }
    }

    #[test]
    fn an_uncompressed_kernel_is_taken_as_it_is() {
        let scratch = Scratch::new("vmlinux-plain");
        let file = scratch.path("vmlinux");
        fs::write(&file, [ELF_MAGIC, b"rest"].concat()).unwrap();
        assert_eq!(extract(&file).unwrap(), [ELF_MAGIC, b"rest"].concat());
    }

    #[test]
    fn a_file_without_a_kernel_is_an_error_that_names_it() {
        let scratch = Scratch::new("vmlinux-none");
        let file = scratch.path("vmlinuz-bad");
        fs::write(&file, vmlinuz("xz", b"no ELF inside")).unwrap();
        let error = extract(&file).unwrap_err().to_string();
        assert!(error.contains("vmlinuz-bad"), "{error}");
    }
}
