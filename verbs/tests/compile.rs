//! What the types forbid does not compile, and for the reason that is meant.
//!
//! Each file in `tests/must_not_compile` is compiled twice. As it is, the compiler must give exactly the errors that its lines
//! announce (`//~ E0382`), each there, and no other; without those lines it must give none. Messages are not compared: they
//! change from release to release of the compiler.
#![cfg(not(any(miri, rdma_fake)))]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Announces the error of its line.
const MARK: &str = "//~ ";

/// Line and code of an error.
type Place = (u64, String);

#[test]
fn what_the_types_forbid_does_not_compile() {
    let cases = cases();
    assert!(cases.len() >= 10, "only {} files", cases.len());
    let project = project(&cases);
    let errors = errors(&project);
    let mut wrong = Vec::new();
    for (name, text) in &cases {
        let announced = announced(text);
        assert!(!announced.is_empty(), "{name} announces no error");
        let found = errors.get(name).cloned().unwrap_or_default();
        for (line, code) in announced.difference(&found) {
            wrong.push(format!("{name}.rs:{line}: no error {code}"));
        }
        for (line, code) in found.difference(&announced) {
            wrong.push(format!(
                "{name}.rs:{line}: error {code}, which is not announced"
            ));
        }
        for (line, code) in errors.get(&without(name)).into_iter().flatten() {
            wrong.push(format!(
                "{name}.rs without the lines that announce errors, line {line}: error {code}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The name of a case whose announced lines are left out.
fn without(name: &str) -> String {
    format!("{name}_without")
}

/// The files: name and text.
fn cases() -> BTreeMap<String, String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/must_not_compile");
    let mut cases = BTreeMap::new();
    for entry in std::fs::read_dir(&dir).expect("the directory is there") {
        let path = entry.expect("the directory is readable").path();
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("the name is text");
        let text = std::fs::read_to_string(&path).expect("the file is readable");
        cases.insert(name.to_owned(), text);
    }
    cases
}

/// The errors that a file announces, one or several in a line.
fn announced(text: &str) -> BTreeSet<Place> {
    let lines = (1..).zip(text.lines());
    lines
        .filter_map(|(line, code)| Some((line, code.split_once(MARK)?.1)))
        .flat_map(|(line, codes)| {
            codes
                .split_whitespace()
                .map(move |code| (line, code.to_owned()))
        })
        .collect()
}

/// A package with a program for each case, and one for each without its announced lines.
fn project(cases: &BTreeMap<String, String>) -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("must_not_compile");
    let programs = root.join("src/bin");
    // What was built stays; only the programs are made anew.
    match std::fs::remove_dir_all(&programs) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", programs.display()),
        _ => {}
    }
    std::fs::create_dir_all(&programs).expect("the target directory is writable");
    let manifest = format!(
        "[package]\nname = \"must-not-compile\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n\
         verbs = {{ path = {:?} }}\n",
        env!("CARGO_MANIFEST_DIR")
    );
    write(&root.join("Cargo.toml"), &manifest);
    // The same dependencies as in the workspace, which are here already.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
    std::fs::copy(lock, root.join("Cargo.lock")).expect("the workspace has a lock file");
    for (name, text) in cases {
        write(&programs.join(format!("{name}.rs")), text);
        let rest: Vec<&str> = text
            .lines()
            .map(|line| if line.contains(MARK) { "" } else { line })
            .collect();
        write(
            &programs.join(format!("{}.rs", without(name))),
            &rest.join("\n"),
        );
    }
    root
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("cannot write {}: {e}", path.display()));
}

/// What the compiler says of each program.
fn errors(project: &Path) -> BTreeMap<String, BTreeSet<Place>> {
    let mut command = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if (text.starts_with("CARGO_") && text != "CARGO_HOME") || text == "RUSTFLAGS" {
            command.env_remove(&name);
        }
    }
    let output = command
        .args([
            "check",
            "--offline",
            "--quiet",
            "--bins",
            "--keep-going",
            "--message-format=json",
        ])
        .current_dir(project)
        .env("CARGO_TARGET_DIR", project.join("target"))
        .output()
        .expect("cargo runs");
    let mut errors: BTreeMap<String, BTreeSet<Place>> = BTreeMap::new();
    let mut compiled = 0;
    for line in String::from_utf8(output.stdout)
        .expect("cargo prints text")
        .lines()
    {
        let message: serde_json::Value = serde_json::from_str(line).expect("cargo prints JSON");
        let target = message["target"]["name"].as_str().unwrap_or_default();
        if message["reason"] == "compiler-artifact" && target.ends_with("_without") {
            compiled += 1;
        }
        let said = &message["message"];
        if message["reason"] != "compiler-message" || said["level"] != "error" {
            continue;
        }
        let spans = said["spans"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let Some(place) = spans.iter().find(|span| span["is_primary"] == true) else {
            // "aborting due to …": the sum of the others.
            continue;
        };
        let line = place["line_start"].as_u64().expect("a line has a number");
        let code = said["code"]["code"].as_str().unwrap_or("without code");
        errors
            .entry(target.to_owned())
            .or_default()
            .insert((line, code.to_owned()));
    }
    assert!(
        compiled > 0,
        "nothing was compiled:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    errors
}
