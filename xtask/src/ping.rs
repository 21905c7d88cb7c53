//! `cargo xtask ping`: server and client of rpma-ping as two processes over a real device.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::device::{self, Place};
use crate::error::{Context, Error, Result};
use crate::packages::{self, Set};
use crate::process::{self, Guarded};
use crate::report::{self, Step};
use crate::workspace;

/// What the client does unless told otherwise.
const DEFAULT_OPTIONS: [&str; 6] = ["-c", "10", "-s", "4096", "--op", "all"];

/// How long the server may take to end after the client has.
const SERVER_GRACE: Duration = Duration::from_secs(10);
const SERVER_GRACE_AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Sets up, builds, pings; the exit code is the client's, or 1 when only the server failed.
///
/// # Errors
/// When set-up or build fail, or the deadline passes.
pub(crate) fn run(options: &[OsString], deadline: Duration) -> Result<ExitCode> {
    packages::ensure(
        &[
            &[Set::Build],
            device::packages_needed(device::Rights::User)?,
        ]
        .concat(),
    )?;
    let program = build()?;
    let place = device::up(device::Rights::User)?;
    let address = place.address();
    let deadline = Instant::now() + deadline;

    let options: Vec<OsString> = if options.is_empty() {
        DEFAULT_OPTIONS.iter().map(OsString::from).collect()
    } else {
        options.to_vec()
    };
    let mut server_words: Vec<OsString> = ["server", &address, "--once"].map(Into::into).into();
    server_words.extend(port_words(&options));
    let mut client_words = vec![OsString::from(&address)];
    client_words.extend(options);

    // A document for a program: then nothing else may stand on standard output.
    let json = client_words.iter().any(|word| word == "--json");
    let (server_shown, client_shown) = if json {
        (Shown::OnStderr, Shown::AsItIs)
    } else {
        (Shown::Named, Shown::Named)
    };

    let mut server = start(&place, &program, "server", &server_words, server_shown)?;
    let mut client = start(&place, &program, "client", &client_words, client_shown)?;

    let client_code = client.end(deadline)?;
    let grace = if client_code == 0 {
        SERVER_GRACE
    } else {
        SERVER_GRACE_AFTER_FAILURE
    };
    let server_code = server.end(Instant::now() + grace);
    report::say(format!("client: exit code {client_code}"));
    let server_code = match server_code {
        Ok(code) => code,
        // A client that failed explains a server that goes on waiting.
        Err(_) if client_code != 0 => return Ok(ExitCode::from(client_code)),
        Err(error) => return Err(error),
    };
    report::say(format!("server: exit code {server_code}"));
    Ok(ExitCode::from(match (client_code, server_code) {
        (0, 0) => 0,
        (0, _) => 1,
        (client, _) => client,
    }))
}

/// Builds rpma-ping and returns where cargo put it.
fn build() -> Result<PathBuf> {
    let step = Step::start("Building rpma-ping");
    let mut command = Command::new(cargo());
    command
        .current_dir(workspace::root())
        .env("CARGO_TARGET_DIR", workspace::target_dir())
        .args([
            "build",
            "--quiet",
            "--package",
            "rpma-tools",
            "--bin",
            "rpma-ping",
        ])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit());
    let output = command.output().context(|| "cannot run cargo".to_owned())?;
    if !output.status.success() {
        return Err(Error::new(format!(
            "rpma-ping does not build ({}); cargo's messages are above",
            process::describe(output.status)
        )));
    }
    let program = executable(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
        Error::new("cargo built no program named rpma-ping; is it still in rpma-tools?")
    })?;
    step.done("built");
    Ok(program)
}

/// The path of rpma-ping in cargo's messages, one JSON document a line.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| {
            message.pointer("/target/name").and_then(Value::as_str) == Some("rpma-ping")
        })
        .find_map(|message| Some(PathBuf::from(message.get("executable")?.as_str()?)))
}

/// The cargo that started this program, or the one in the path.
pub(crate) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// One end, with its output passed on line by line under its name.
struct End {
    name: &'static str,
    child: Guarded,
    readers: Vec<thread::JoinHandle<()>>,
}

/// The client's words for the port: the server needs the same ones.
fn port_words(options: &[OsString]) -> Vec<OsString> {
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "-p" || text == "--port" {
            return std::iter::once(word).chain(words.next()).cloned().collect();
        }
        if text.starts_with("--port=") || (text.starts_with("-p") && !text.starts_with("--")) {
            return vec![word.clone()];
        }
    }
    Vec::new()
}

/// How an end's standard output is passed on. Its standard error always carries the end's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// Every line under the end's name.
    Named,
    /// On standard error, every line under the end's name.
    OnStderr,
    /// Unchanged.
    AsItIs,
}

fn start(
    place: &Place,
    program: &Path,
    name: &'static str,
    words: &[OsString],
    shown: Shown,
) -> Result<End> {
    let line: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    report::say(format!("{name}: rpma-ping {}", line.join(" ")));
    let mut command = place.command(program)?;
    command.args(words);
    spawn(command, name, shown)
}

fn spawn(mut command: Command, name: &'static str, shown: Shown) -> Result<End> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command
        .spawn()
        .context(|| format!("cannot start the {name}"))?;
    let mut child = Guarded(child);
    let mut readers = Vec::new();
    if let Some(stdout) = child.0.stdout.take() {
        readers.push(match shown {
            Shown::Named => pass_on(stdout, Some(name), std::io::stdout()),
            Shown::OnStderr => pass_on(stdout, Some(name), std::io::stderr()),
            Shown::AsItIs => pass_on(stdout, None, std::io::stdout()),
        });
    }
    if let Some(stderr) = child.0.stderr.take() {
        readers.push(pass_on(stderr, Some(name), std::io::stderr()));
    }
    Ok(End {
        name,
        child,
        readers,
    })
}

fn pass_on(
    from: impl Read + Send + 'static,
    name: Option<&'static str>,
    mut to: impl Write + Send + 'static,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(from)
            .split(b'\n')
            .map_while(std::result::Result::ok)
        {
            let name = name.map(|name| format!("{name} | ")).unwrap_or_default();
            let text = format!("{name}{}\n", String::from_utf8_lossy(&line));
            // Nobody reads any more: the exit code still tells.
            if to.write_all(text.as_bytes()).is_err() {
                return;
            }
        }
    })
}

impl End {
    /// Waits for its end, with all of its output passed on; kills it at the deadline.
    fn end(&mut self, deadline: Instant) -> Result<u8> {
        match process::wait_until(&mut self.child.0, deadline)? {
            Some(status) => {
                for reader in self.readers.drain(..) {
                    // A reader that panicked has said so itself.
                    let _ = reader.join();
                }
                Ok(process::exit_code(status))
            }
            None => {
                process::kill_tree(self.child.0.id());
                Err(Error::new(format!(
                    "the {} did not end before the deadline and was killed; give more time with --deadline",
                    self.name
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_found_among_cargos_messages() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"rpma"},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","target":{"name":"rpma-ping"},"executable":"/t/debug/rpma-ping"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(
            executable(messages),
            Some(PathBuf::from("/t/debug/rpma-ping"))
        );
        assert_eq!(executable(""), None);
    }

    #[test]
    fn the_server_gets_the_clients_port_in_whatever_form_it_has() {
        let words =
            |text: &str| -> Vec<OsString> { text.split_whitespace().map(OsString::from).collect() };
        for (client, server) in [
            ("-c 3 -p 7000 -q", "-p 7000"),
            ("--port 7000", "--port 7000"),
            ("-q --port=7000", "--port=7000"),
            ("-p7000", "-p7000"),
            ("-c 3 --op all", ""),
            ("-p", "-p"),
        ] {
            assert_eq!(port_words(&words(client)), words(server), "{client}");
        }
    }

    #[test]
    fn an_end_that_hangs_is_killed_at_the_deadline_and_named() {
        let mut command = Command::new("sleep");
        command.arg("60");
        let mut end = spawn(command, "client", Shown::Named).unwrap();
        let error = end
            .end(Instant::now() + Duration::from_millis(50))
            .unwrap_err()
            .to_string();
        assert!(error.contains("the client did not end"), "{error}");
    }

    #[test]
    fn an_end_that_fails_gives_its_exit_code() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 2"]);
        let mut end = spawn(command, "server", Shown::Named).unwrap();
        assert_eq!(
            end.end(Instant::now() + Duration::from_secs(20)).unwrap(),
            2
        );
    }
}
