//! Running this program under callgrind, and reading what it counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long one run may take. It takes a second on a machine that is not busy.
const LIMIT: Duration = Duration::from_secs(120);

/// What one run has counted.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    /// The instructions of each function whose name begins with the prefix, with all that it called.
    pub(crate) inclusive: BTreeMap<String, u64>,
    /// The address, in the program's file, of every instruction that was carried out meanwhile.
    pub(crate) executed: BTreeMap<PathBuf, BTreeSet<u64>>,
}

/// Runs this program with `arguments` and counts within the functions whose names begin with `prefix`.
pub(crate) fn profile(prefix: &str, arguments: &[&str]) -> Result<Profile, String> {
    let program = std::env::current_exe().map_err(|e| format!("where am I: {e}"))?;
    let name = format!(
        "callgrind.{}.{prefix}{}",
        std::process::id(),
        arguments.join(".")
    );
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new("valgrind");
    command
        .args([
            "--quiet",
            "--tool=callgrind",
            "--dump-instr=yes",
            "--dump-line=no",
        ])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect={prefix}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args(arguments);
    let text = run(&mut command).and_then(|()| {
        std::fs::read_to_string(&out)
            .map_err(|e| format!("cannot read what callgrind wrote, {}: {e}", out.display()))
    });
    // Kept where there is something to be found out from it.
    let profile = parse(&text?, prefix)?;
    let _ = std::fs::remove_file(&out);
    Ok(profile)
}

/// Runs a command to its end or the limit.
fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .map_err(|e| format!("cannot run {shown}: {e}"))?;
    let end = Instant::now() + LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(format!("{shown} ended with {status}")),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            outcome => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match outcome {
                    Err(error) => format!("cannot wait for {shown}: {error}"),
                    _ => format!("{shown} was not over after {} s, killed", LIMIT.as_secs()),
                });
            }
        }
    }
}

/// Reads callgrind's file: under each function its instructions, and for each call the sum of what was called.
fn parse(text: &str, prefix: &str) -> Result<Profile, String> {
    if !text.lines().any(|line| line == "positions: instr") || !text.contains("events: Ir\n") {
        return Err(
            "callgrind's file counts something else than instructions by address".to_owned(),
        );
    }
    let mut profile = Profile::default();
    let (mut object, mut function) = (PathBuf::new(), String::new());
    let mut is_call = false;
    for line in text.lines() {
        if let Some(path) = line.strip_prefix("ob=") {
            object = path.into();
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = name.to_owned();
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with("0x") {
            let (address, count) =
                cost(line).ok_or_else(|| format!("callgrind's line {line:?}"))?;
            if !is_call {
                profile
                    .executed
                    .entry(object.clone())
                    .or_default()
                    .insert(address);
            }
            is_call = false;
            if function.starts_with(prefix) {
                *profile.inclusive.entry(function.clone()).or_default() += count;
            }
        }
    }
    Ok(profile)
}

/// An address and a count: `0x1093f4 3000`.
fn cost(line: &str) -> Option<(u64, u64)> {
    let (address, count) = line.split_once(' ')?;
    let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
    Some((address, count.parse().ok()?))
}
