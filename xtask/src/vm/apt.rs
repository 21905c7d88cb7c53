//! apt, as this system has it set up or, for packages of another suite, with a private state beside it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::system::System;
use crate::error::{Context, Error, Result};
use crate::packages::{self, Set};
use crate::process;
use crate::report::{self, Step};

/// Where Debian's packages come from on a system that is not Debian.
const DEBIAN: &str = "Types: deb\nURIs: http://deb.debian.org/debian\nSuites: SUITE\nComponents: main\nArchitectures: \
                      amd64\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n";

/// Private lists that are older are fetched anew.
const LISTS_LAST: Duration = Duration::from_secs(24 * 3600);

/// A way to ask apt for packages; nothing that it does changes the system's own lists.
#[derive(Debug)]
pub(crate) struct Apt {
    /// The private state, and none for the system's own.
    private: Option<PathBuf>,
    /// The suite, for names of folders.
    suite: Option<String>,
}

impl Apt {
    /// The system's own, or a private one in `cache` for packages of another suite.
    ///
    /// # Errors
    /// When the suite's lists cannot be fetched and were not fetched before.
    pub(crate) fn of(system: &System, cache: &Path) -> Result<Self> {
        let Some(suite) = system.suite() else {
            return Ok(Self {
                private: None,
                suite: None,
            });
        };
        // Two systems may take the same suite from different archives.
        let private = cache.join(format!(
            "apt-{suite}{}",
            if system.is_debian() { "-debian" } else { "" }
        ));
        let apt = Self {
            private: Some(private.clone()),
            suite: Some(suite.to_owned()),
        };
        let stamp = private.join("fetched");
        if is_fresh(&stamp) {
            return Ok(apt);
        }
        if system.is_debian() {
            packages::ensure(&[Set::Debian])?;
        }
        write_sources(system, suite, &private)?;
        let step = Step::start(format!("Fetching the package lists of {suite}"));
        // Without this word apt-get calls it a success when nothing could be fetched.
        let words = ["-qq", "-o", "APT::Update::Error-Mode=any", "update"];
        match process::capture(apt.command("apt-get").args(words)) {
            Ok(_) => {
                fs::write(&stamp, "").context(|| format!("cannot write {}", stamp.display()))?;
                step.done("done");
            }
            Err(error) if stamp.exists() => {
                step.done("failed");
                report::say(format!(
                    "the package lists of {suite} are older than a day, and cannot be fetched anew ({error}): going on \
                     with them"
                ));
            }
            Err(error) => {
                let error = error.to_string();
                // The whole command has a dozen options that tell nobody anything.
                let how = error
                    .rsplit_once(" update ")
                    .map_or(&*error, |(_, how)| how);
                return Err(Error::new(format!(
                    "the package lists of {suite} cannot be fetched: apt-get update {how}; check the network and the room \
                     in {}",
                    private.display()
                )));
            }
        }
        Ok(apt)
    }

    /// `apt-get` or `apt-cache` with this state.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = process::tool(program);
        // The download happens in a folder of this user's, where apt's own user may not write.
        command
            .args(["-o", "APT::Sandbox::User=root"])
            .env("LC_ALL", "C");
        if let Some(private) = &self.private {
            let private = private.display();
            for option in [
                format!("Dir::State::Lists={private}/lists"),
                format!("Dir::Cache={private}/cache"),
                format!("Dir::Etc::SourceParts={private}/sources"),
                "Dir::Etc::SourceList=/dev/null".to_owned(),
                // What is installed or pinned here says nothing about a suite that nothing is installed from.
                "Dir::State::status=/dev/null".to_owned(),
                "Dir::Etc::Preferences=/dev/null".to_owned(),
                format!("Dir::Etc::PreferencesParts={private}/preferences"),
            ] {
                command.args(["-o", &option]);
            }
        }
        command
    }

    /// Whether the lists are the system's own, which only root can bring up to date.
    pub(crate) fn is_system(&self) -> bool {
        self.private.is_none()
    }

    /// What tells kernels of different suites apart.
    pub(crate) fn label(&self) -> &str {
        self.suite.as_deref().unwrap_or("")
    }
}

fn is_fresh(stamp: &Path) -> bool {
    let modified = fs::metadata(stamp).and_then(|data| data.modified());
    modified.is_ok_and(|at| {
        SystemTime::now()
            .duration_since(at)
            .is_ok_and(|age| age < LISTS_LAST)
    })
}

fn write_sources(system: &System, suite: &str, private: &Path) -> Result<()> {
    let failed = || format!("cannot write into {}", private.display());
    for folder in [
        "lists/partial",
        "cache/archives/partial",
        "preferences",
        "sources",
    ] {
        fs::create_dir_all(private.join(folder)).context(failed)?;
    }
    let (name, text) = if system.is_debian() && !super::resolve::is_debian_itself() {
        ("suite.sources", DEBIAN.replace("SUITE", suite))
    } else {
        own_archive(suite)?
    };
    fs::write(private.join("sources").join(name), text).context(failed)
}

/// The archive that this system is set up with, for another suite: file name and text.
fn own_archive(suite: &str) -> Result<(&'static str, String)> {
    let mut texts = Vec::new();
    for entry in fs::read_dir("/etc/apt/sources.list.d")
        .into_iter()
        .flatten()
        .flatten()
    {
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "sources")
        {
            texts.push(fs::read_to_string(entry.path()).unwrap_or_default());
        }
    }
    texts.sort();
    let list = fs::read_to_string("/etc/apt/sources.list").unwrap_or_default();
    texts
        .iter()
        .find_map(|text| with_suite(text, suite))
        .map(|text| ("suite.sources", text))
        .or_else(|| one_line_with_suite(&list, suite).map(|text| ("suite.list", text)))
        .ok_or_else(|| {
            Error::new(format!(
                "no archive to fetch {suite} from: neither /etc/apt/sources.list nor sources.list.d names one"
            ))
        })
}

/// The first paragraph of a `.sources` file, which is the distribution's main archive, for another suite.
fn with_suite(sources: &str, suite: &str) -> Option<String> {
    let lines: Vec<&str> = sources.lines().collect();
    let paragraph = lines
        .split(|line| line.trim().is_empty())
        .find(|paragraph| paragraph.iter().any(|line| line.starts_with("URIs:")))?;
    let mut text = String::new();
    for line in paragraph.iter().filter(|line| !line.starts_with('#')) {
        if line.starts_with("Suites:") {
            text.push_str(&format!("Suites: {suite}"));
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    Some(text)
}

/// The first `deb` line of a `sources.list`, for another suite.
fn one_line_with_suite(list: &str, suite: &str) -> Option<String> {
    let line = list.lines().find(|line| line.starts_with("deb "))?;
    let mut words: Vec<&str> = line.split_whitespace().collect();
    // Options in brackets may stand before the address, which the suite follows.
    let address = words.iter().position(|word| word.contains("://"))?;
    *words.get_mut(address + 1)? = suite;
    Some(format!("{}\n", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_archive_is_taken_for_another_suite() {
        let sources = "# a comment\n\nTypes: deb\n# old\nURIs: http://archive.example/debian\nSuites: bookworm \
                       bookworm-updates\nComponents: main\n\nTypes: deb\nURIs: \
                       http://security.example\nSuites: bookworm-security\n";
        assert_eq!(
            with_suite(sources, "trixie").unwrap(),
            "Types: deb\nURIs: http://archive.example/debian\nSuites: trixie\nComponents: main\n"
        );
        assert_eq!(with_suite("# nothing\n", "trixie"), None);
    }

    #[test]
    fn the_older_form_of_a_source_works_with_and_without_options() {
        let plain = "# c\ndeb http://archive.example/ubuntu noble main universe\ndeb http://other.example x y\n";
        assert_eq!(
            one_line_with_suite(plain, "plucky").unwrap(),
            "deb http://archive.example/ubuntu plucky main universe\n"
        );
        let signed = "deb [signed-by=/k arch=amd64] http://archive.example/debian stable main\n";
        assert_eq!(
            one_line_with_suite(signed, "sid").unwrap(),
            "deb [signed-by=/k arch=amd64] http://archive.example/debian sid main\n"
        );
        assert_eq!(
            one_line_with_suite("deb-src http://a.example x y", "z"),
            None
        );
    }
}
