//! Which packages hold the distribution's current kernel: from the meta package down to the versioned ones.

use std::fs;

use super::apt::Apt;
use super::system::System;
use crate::error::{Context, Error, Result};
use crate::process;

/// Debian's meta package of a kernel.
const DEBIAN_KERNEL: &str = "linux-image-amd64";

/// What a meta package of a kernel leads to, in the distributions' names.
const WANTED: [&str; 5] = [
    "linux-image-",
    "linux-modules-extra-",
    "linux-modules-",
    "linux-base-",
    "linux-binary-",
];

/// The meta package of the kernel of `system`.
///
/// # Errors
/// When it is the kernel of this machine's distribution, and that one's packages are not known.
pub(crate) fn meta_package(system: &System) -> Result<&'static str> {
    if system.is_debian() {
        return Ok(DEBIAN_KERNEL);
    }
    meta_package_of(&os_release()?)
}

/// Whether this machine's distribution is Debian or one made of its packages, and none made of Ubuntu's.
pub(super) fn is_debian_itself() -> bool {
    os_release().is_ok_and(|text| meta_package_of(&text).is_ok_and(|name| name == DEBIAN_KERNEL))
}

fn os_release() -> Result<String> {
    fs::read_to_string("/etc/os-release").context(|| "cannot read /etc/os-release".to_owned())
}

fn meta_package_of(os_release: &str) -> Result<&'static str> {
    let field = |name: &str| {
        let line = os_release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches('"').to_owned()
    };
    let ids = format!("{} {}", field("ID"), field("ID_LIKE"));
    let is = |name: &str| ids.split_whitespace().any(|id| id == name);
    if is("ubuntu") {
        Ok("linux-image-generic")
    } else if is("debian") {
        Ok(DEBIAN_KERNEL)
    } else {
        Err(Error::new(format!(
            "the VM boots a Debian or Ubuntu kernel package, and this system is '{}'; make an RDMA device here instead \
             (as root: modprobe rdma_rxe, then `rdma link add rxe0 type rxe netdev NAME`)",
            field("ID")
        )))
    }
}

/// The packages to unpack for `package`: it and what it depends on, as far as they hold kernel or modules.
///
/// # Errors
/// When apt knows no such package.
pub(crate) fn packages(package: &str, apt: &Apt) -> Result<Vec<String>> {
    packages_with(package, |name| {
        process::capture(apt.command("apt-cache").args([
            "depends",
            "--no-recommends",
            "--no-suggests",
            name,
        ]))
    })
}

fn packages_with(
    package: &str,
    mut depends: impl FnMut(&str) -> Result<String>,
) -> Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    let mut queue = vec![package.to_owned()];
    let mut seen = queue.clone();
    while let Some(name) = queue.pop() {
        if is_versioned(&name) {
            found.push(name.clone());
        }
        for dependency in dependencies(&depends(&name)?) {
            let goes_on = is_versioned(&dependency) || is_meta(&dependency);
            if goes_on && !seen.contains(&dependency) {
                seen.push(dependency.clone());
                queue.push(dependency);
            }
        }
    }
    if found.iter().any(|name| name.starts_with("linux-image-")) {
        found.sort();
        return Ok(found);
    }
    Err(Error::new(format!(
        "the kernel package {package} leads to no versioned linux-image package; run `apt-get update` and try again"
    )))
}

/// The names in the output of `apt-cache depends`: one `Depends: NAME` a line, alternatives marked with `|`, virtual
/// packages in angle brackets with their providers indented below.
fn dependencies(output: &str) -> Vec<String> {
    output
        .lines()
        .filter_map(|line| {
            let line = line.trim().trim_start_matches('|');
            let name = line
                .strip_prefix("Depends:")
                .or_else(|| line.strip_prefix("PreDepends:"))?;
            let name = name.trim();
            (!name.starts_with('<')).then(|| name.to_owned())
        })
        .collect()
}

/// A real package of one kernel version (`linux-image-6.1.0-57-amd64`), not the unsigned twin of a signed one.
fn is_versioned(name: &str) -> bool {
    !name.contains("-unsigned")
        && WANTED.iter().any(|prefix| {
            name.strip_prefix(prefix)
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
}

/// A package that only leads to others (`linux-image-generic` below `linux-generic`).
fn is_meta(name: &str) -> bool {
    !name.contains("-unsigned")
        && (name.starts_with("linux-image-") || name.starts_with("linux-modules-extra-"))
        && !name.contains(|c: char| c.is_ascii_digit())
        || name == "linux-image-amd64"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers as `apt-cache depends` would, from a table of (package, output).
    fn resolve(package: &str, table: &[(&str, &str)]) -> Result<Vec<String>> {
        packages_with(package, |name| {
            table
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, output)| (*output).to_owned())
                .ok_or_else(|| Error::new(format!("no package {name}")))
        })
    }

    #[test]
    fn debian_has_one_image_package_with_all_modules() {
        let table = [
            (
                "linux-image-amd64",
                "linux-image-amd64\n  Depends: linux-image-6.1.0-57-amd64\n",
            ),
            (
                "linux-image-6.1.0-57-amd64",
                "linux-image-6.1.0-57-amd64\n  Depends: kmod\n |Depends: linux-initramfs-tool\n  Depends: \
                 <linux-initramfs-tool>\n    dracut\n    initramfs-tools\n  Breaks: initramfs-tools\n  \
                 Depends: linux-image-6.1.0-57-amd64-unsigned\n",
            ),
        ];
        assert_eq!(
            resolve("linux-image-amd64", &table).unwrap(),
            ["linux-image-6.1.0-57-amd64"]
        );
    }

    #[test]
    fn newer_debian_splits_image_base_binary_and_modules() {
        let table = [
            (
                "linux-image-amd64",
                "linux-image-amd64\n  Depends: linux-image-7.3.4+deb13-amd64\n",
            ),
            (
                "linux-image-7.3.4+deb13-amd64",
                "  Depends: linux-base-7.3.4+deb13-amd64\n  Depends: linux-binary-7.3.4+deb13-amd64\n  Depends: \
                 linux-modules-7.3.4+deb13-amd64\n  Depends: linux-base\n",
            ),
            ("linux-base-7.3.4+deb13-amd64", ""),
            ("linux-binary-7.3.4+deb13-amd64", ""),
            ("linux-modules-7.3.4+deb13-amd64", ""),
        ];
        assert_eq!(
            resolve("linux-image-amd64", &table).unwrap(),
            [
                "linux-base-7.3.4+deb13-amd64",
                "linux-binary-7.3.4+deb13-amd64",
                "linux-image-7.3.4+deb13-amd64",
                "linux-modules-7.3.4+deb13-amd64"
            ]
        );
    }

    #[test]
    fn ubuntu_needs_modules_extra_and_takes_no_firmware() {
        let table = [
            (
                "linux-generic",
                "linux-generic\n  Depends: linux-image-generic\n  Depends: linux-headers-generic\n",
            ),
            (
                "linux-image-generic",
                "linux-image-generic\n  Depends: linux-image-6.8.0-31-generic\n  Depends: \
                 linux-modules-extra-6.8.0-31-generic\n  Depends: linux-firmware\n  Depends: intel-microcode\n",
            ),
            (
                "linux-image-6.8.0-31-generic",
                "  Depends: kmod\n  Depends: linux-base\n  Depends: linux-modules-6.8.0-31-generic\n |Conflicts: \
                 linux-image-unsigned-6.8.0-31-generic\n",
            ),
            (
                "linux-modules-extra-6.8.0-31-generic",
                "  Depends: linux-modules-6.8.0-31-generic\n |Depends: crda\n  Depends: wireless-crda\n",
            ),
            (
                "linux-modules-6.8.0-31-generic",
                "linux-modules-6.8.0-31-generic\n",
            ),
        ];
        let expected = [
            "linux-image-6.8.0-31-generic",
            "linux-modules-6.8.0-31-generic",
            "linux-modules-extra-6.8.0-31-generic",
        ];
        assert_eq!(resolve("linux-image-generic", &table).unwrap(), expected);
        assert_eq!(resolve("linux-generic", &table).unwrap(), expected);
    }

    #[test]
    fn a_meta_package_that_leads_nowhere_is_an_error_with_advice() {
        let error = resolve(
            "linux-image-amd64",
            &[("linux-image-amd64", "linux-image-amd64\n")],
        )
        .unwrap_err();
        assert!(error.to_string().contains("apt-get update"), "{error}");
    }

    #[test]
    fn the_meta_package_follows_the_distribution() {
        let of = |text: &str| meta_package_of(text);
        assert_eq!(of("ID=debian\n").unwrap(), "linux-image-amd64");
        assert_eq!(
            of("NAME=\"Ubuntu\"\nID=ubuntu\nID_LIKE=debian\n").unwrap(),
            "linux-image-generic"
        );
        assert_eq!(
            of("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n").unwrap(),
            "linux-image-generic"
        );
        let error = of("ID=fedora\n").unwrap_err().to_string();
        assert!(
            error.contains("'fedora'") && error.contains("rdma link add"),
            "{error}"
        );
    }
}
