//! A nightly toolchain with Miri and the standard library's source: found where rustup keeps them, or installed through it.
//!
//! It is run by its path, so neither the default toolchain nor an override changes, and no proxy of rustup has to work.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::process;
use crate::report::Step;

/// How long rustup may take to install one.
const INSTALL_LIMIT: Duration = Duration::from_secs(900);

/// What a toolchain needs to have, as rustup names it, and the file that tells.
const COMPONENTS: [(&str, &str); 2] = [
    ("miri", "bin/cargo-miri"),
    ("rust-src", "lib/rustlib/src/rust/library/Cargo.lock"),
];

/// A nightly toolchain that has everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Nightly {
    root: PathBuf,
}

impl Nightly {
    /// A call of its cargo, with its compiler before all others.
    pub(crate) fn cargo(&self) -> Command {
        let bin = self.root.join("bin");
        let mut path = OsString::from(&bin);
        if let Some(others) = env::var_os("PATH") {
            path.push(":");
            path.push(others);
        }
        let mut command = Command::new(bin.join("cargo"));
        command.env("PATH", path);
        // Set by the cargo that runs this program, and meant for that one.
        for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
            command.env_remove(name);
        }
        // A proxy that is called all the same takes the same toolchain.
        if let Some(name) = toolchain_name(&self.root) {
            command.env("RUSTUP_TOOLCHAIN", name);
        }
        command
    }
}

/// The toolchain, installed through rustup if it is not there.
///
/// # Errors
/// When there is none and none can be installed: what is missing, and how it is installed.
pub(crate) fn ensure() -> Result<Nightly> {
    let found = search(&candidates());
    let words = match found {
        Found::Whole(nightly) => return Ok(nightly),
        Found::Lacks { ref root, .. } => match toolchain_name(root) {
            Some(name) => install_words(Some(&name)),
            // Not rustup's to complete, but one may be installed beside it.
            None => install_words(None),
        },
        Found::Nothing => install_words(None),
    };
    if process::find_tool("rustup").is_none() {
        return Err(Error::new(found.advice()));
    }
    let had_default = process::succeeds(process::tool("rustup").arg("default"));
    let step = Step::start(format!("rustup {}", words.join(" ")));
    if let Err(error) = process::capture_within(process::tool("rustup").args(&words), INSTALL_LIMIT)
    {
        step.done("failed");
        return Err(Error::new(format!("{}; {error}", found.advice())));
    }
    step.done("installed");
    if !had_default {
        // rustup makes the first toolchain that it installs the default one.
        process::capture(process::tool("rustup").args(["default", "none"]))?;
    }
    match search(&candidates()) {
        Found::Whole(nightly) => Ok(nightly),
        other => Err(Error::new(other.advice())),
    }
}

/// What a search leads to.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Whole(Nightly),
    /// The one that lacks the least.
    Lacks {
        root: PathBuf,
        components: Vec<&'static str>,
    },
    Nothing,
}

impl Found {
    /// What is missing, and what to do about it.
    fn advice(&self) -> String {
        let command = |name: Option<&str>| format!("rustup {}", install_words(name).join(" "));
        match self {
            Self::Whole(nightly) => format!("{} has everything", nightly.root.display()),
            Self::Lacks { root, components } => {
                let what = components.join(" and ");
                match toolchain_name(root) {
                    Some(name) => format!(
                        "the toolchain {name} has no {what}; run: {}",
                        command(Some(&name))
                    ),
                    None => format!(
                        "the nightly toolchain in {} has no {what}, and rustup does not manage it; install them beside \
                         it, or one through rustup: {}",
                        root.display(),
                        command(None)
                    ),
                }
            }
            Self::Nothing => format!(
                "there is no nightly toolchain with miri and rust-src; run: {}",
                command(None)
            ),
        }
    }
}

/// rustup's words; `toolchain install` leaves the default toolchain as it is and adds what an installed one lacks.
fn install_words(name: Option<&str>) -> Vec<String> {
    let mut words: Vec<String> = match name {
        // Not `toolchain install`, which would move an installed nightly to that of today as well.
        Some(name) => ["component", "add", "--toolchain", name]
            .map(str::to_owned)
            .into(),
        None => "toolchain install nightly --profile minimal --no-self-update"
            .split(' ')
            .map(str::to_owned)
            .collect(),
    };
    for (component, _) in COMPONENTS {
        if name.is_none() {
            words.push("--component".to_owned());
        }
        words.push(component.to_owned());
    }
    words
}

/// The first that has everything, or the one that lacks the least.
fn search(roots: &[PathBuf]) -> Found {
    let mut best = Found::Nothing;
    for root in roots {
        let lacking: Vec<&'static str> = COMPONENTS
            .iter()
            .filter(|(_, file)| !root.join(file).exists())
            .map(|(component, _)| *component)
            .collect();
        if lacking.is_empty() {
            return Found::Whole(Nightly { root: root.clone() });
        }
        let better = match &best {
            Found::Lacks { components, .. } => lacking.len() < components.len(),
            _ => true,
        };
        if better {
            best = Found::Lacks {
                root: root.clone(),
                components: lacking,
            };
        }
    }
    best
}

/// The nightly toolchains of this machine: the compiler in use if it is one, then rustup's.
fn candidates() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = process::capture(Command::new(&compiler).arg("-vV")).unwrap_or_default();
    let is_nightly = version
        .lines()
        .any(|line| line.starts_with("release:") && line.contains("-nightly"));
    if is_nightly {
        let root = process::capture(Command::new(&compiler).args(["--print", "sysroot"]));
        roots.extend(root.ok().map(|root| PathBuf::from(root.trim())));
    }
    roots.extend(rustup_folder().map_or_else(Vec::new, |folder| nightlies_in(&folder)));
    roots
}

fn rustup_folder() -> Option<PathBuf> {
    let set = env::var_os("RUSTUP_HOME").filter(|value| !value.is_empty());
    set.map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".rustup")))
}

/// The nightly toolchains below rustup's folder: the one without a date first, then the latest.
fn nightlies_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("toolchains"));
    let mut names: Vec<String> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("nightly"))
        .collect();
    let is_dated = |name: &str| {
        let rest = name.trim_start_matches("nightly-");
        rest.starts_with(|c: char| c.is_ascii_digit())
    };
    names.sort_by(|a, b| (is_dated(a), b).cmp(&(is_dated(b), a)));
    names
        .into_iter()
        .map(|name| folder.join("toolchains").join(name))
        .collect()
}

/// rustup's name of a toolchain, if it is one of rustup's.
fn toolchain_name(root: &Path) -> Option<String> {
    let folder = root.parent()?;
    let managed = folder.file_name()? == "toolchains" && rustup_folder()? == folder.parent()?;
    managed.then(|| {
        root.file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
    })?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::testing::Scratch;

    fn make(root: &Path, files: &[&str]) {
        fs::create_dir_all(root).unwrap();
        for file in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
    }

    #[test]
    fn a_toolchain_with_everything_goes_before_one_that_lacks_something() {
        let scratch = Scratch::new("nightly");
        let [bare, half, whole] = ["nightly-a", "nightly-2026-01-01-a", "nightly-2026-02-01-a"]
            .map(|name| scratch.path(&format!("toolchains/{name}")));
        make(&bare, &[]);
        make(&half, &[COMPONENTS[0].1]);
        let found = nightlies_in(&scratch.path(""));
        assert_eq!(found, [bare.clone(), half.clone()], "the undated one first");
        assert_eq!(
            search(&found),
            Found::Lacks {
                root: half.clone(),
                components: vec!["rust-src"]
            }
        );
        make(&whole, &COMPONENTS.map(|(_, file)| file));
        let found = nightlies_in(&scratch.path(""));
        assert_eq!(found, [bare, whole.clone(), half], "then the latest");
        assert_eq!(search(&found), Found::Whole(Nightly { root: whole }));
    }

    #[test]
    fn what_is_missing_is_told_with_the_command_that_installs_it() {
        assert_eq!(search(&[]), Found::Nothing);
        let advice = Found::Nothing.advice();
        assert!(
            advice.ends_with(
                "rustup toolchain install nightly --profile minimal --no-self-update --component miri --component \
                 rust-src"
            ),
            "{advice}"
        );
        let lacks = Found::Lacks {
            root: "/usr/lib/rust-nightly".into(),
            components: vec!["miri", "rust-src"],
        };
        let advice = lacks.advice();
        assert!(
            advice.contains("/usr/lib/rust-nightly has no miri and rust-src"),
            "{advice}"
        );
    }

    #[test]
    fn an_installed_nightly_is_completed_and_not_replaced() {
        let root = rustup_folder()
            .unwrap()
            .join("toolchains/nightly-2026-01-01-x");
        let lacks = Found::Lacks {
            root,
            components: vec!["miri"],
        };
        let advice = lacks.advice();
        assert!(
            advice.ends_with("rustup component add --toolchain nightly-2026-01-01-x miri rust-src"),
            "{advice}"
        );
    }

    #[test]
    fn its_cargo_is_called_by_path_with_its_compiler_first() {
        let nightly = Nightly {
            root: "/t/nightly".into(),
        };
        let command = nightly.cargo();
        assert_eq!(command.get_program(), "/t/nightly/bin/cargo");
        let path = command
            .get_envs()
            .find_map(|(name, value)| (name == "PATH").then_some(value?));
        assert!(
            path.unwrap()
                .to_string_lossy()
                .starts_with("/t/nightly/bin")
        );
        assert!(
            command
                .get_envs()
                .any(|(name, value)| name == "CARGO" && value.is_none())
        );
    }
}
