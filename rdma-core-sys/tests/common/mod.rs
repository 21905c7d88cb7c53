//! What several tests need: the C compiler on the installed headers, and the text of the committed bindings.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod signatures;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The headers that the bindings are made from.
pub(crate) const INCLUDES: &str = "\
#include <infiniband/verbs.h>
#include <infiniband/tm_types.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
";

/// A directory of this test's own, empty.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    match std::fs::remove_dir_all(&dir) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => panic!("cannot empty {}: {e}", dir.display()),
    }
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("cannot make {}: {e}", dir.display()));
    dir
}

/// Where the headers are: those of another release, when the variable says so, or the ones that the build script found.
fn include_dir() -> Option<PathBuf> {
    let other = std::env::var_os("RDMA_CORE_SYS_TEST_HEADERS").map(PathBuf::from);
    other.or(option_env!("RDMA_CORE_SYS_INCLUDE").map(PathBuf::from))
}

/// Runs the C compiler and returns what it printed.
pub(crate) fn cc(args: &[&str]) -> String {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&compiler);
    if let Some(dir) = include_dir() {
        command.arg("-I").arg(dir);
    }
    let output = command.args(args).output().unwrap_or_else(|e| {
        panic!("cannot run the C compiler `{compiler}` (package gcc, or set CC): {e}")
    });
    assert!(
        output.status.success(),
        "`{compiler} {}` failed:\n{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("the compiler prints text")
}

/// Compiles and runs a C program, and returns what it printed.
pub(crate) fn run_c(name: &str, source: &str) -> String {
    let dir = scratch(name);
    let file = dir.join("program.c");
    let program = dir.join("program");
    std::fs::write(&file, source).expect("the scratch directory is writable");
    cc(&[
        "-std=gnu11",
        "-Wall",
        "-o",
        program.to_str().expect("the path is text"),
        file.to_str().expect("the path is text"),
    ]);
    let output = Command::new(&program)
        .output()
        .expect("the program was just built");
    assert!(
        output.status.success(),
        "{} failed: {}",
        program.display(),
        output.status
    );
    String::from_utf8(output.stdout).expect("the program prints text")
}

/// The installed headers after the preprocessor: enumerators, declarations and inline functions as the compiler sees them.
pub(crate) fn preprocessed(name: &str) -> String {
    let file = scratch(name).join("headers.c");
    std::fs::write(&file, INCLUDES).expect("the scratch directory is writable");
    cc(&["-E", "-P", file.to_str().expect("the path is text")])
}

/// The headers' own text with macros and without what they include: what they themselves define, and nothing of the C library.
pub(crate) fn own_lines(name: &str, files: &[&str]) -> String {
    let file = scratch(name).join("headers.c");
    let includes: String = files
        .iter()
        .map(|file| format!("#include <{file}>\n"))
        .collect();
    std::fs::write(&file, includes).expect("the scratch directory is writable");
    let text = cc(&["-E", "-dD", file.to_str().expect("the path is text")]);
    let mut own = String::new();
    let mut is_own = false;
    for line in text.lines() {
        // `# 12 "/usr/include/rdma/rdma_cma.h" 2`: the next line comes from there.
        match line
            .strip_prefix("# ")
            .and_then(|rest| rest.split('"').nth(1))
        {
            Some(from) => is_own = files.iter().any(|file| from.ends_with(&format!("/{file}"))),
            None if is_own => {
                own.push_str(line);
                own.push('\n');
            }
            None => {}
        }
    }
    own
}

/// Whether `text` has `word` as a whole identifier.
pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

/// A source file of this crate.
pub(crate) fn source(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}

/// What the committed bindings declare.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    /// Constants by name, with their values as 64 bits (negative ones sign-extended).
    pub(crate) constants: BTreeMap<String, u64>,
    /// Structs and unions, with their fields in order.
    pub(crate) records: BTreeMap<String, Vec<String>>,
    /// Newtypes over C enums, with whether the integer is signed.
    pub(crate) enums: BTreeMap<String, bool>,
    /// Functions.
    pub(crate) functions: Vec<String>,
}

/// Reads the committed bindings, in the form that the generator's formatter gives them.
pub(crate) fn declarations() -> Declarations {
    let text = source("src/bindings.rs");
    let mut found = Declarations::default();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let code = line.trim();
        if let Some(rest) = code.strip_prefix("pub const ") {
            // A long one goes on over the next lines, up to the semicolon.
            let mut whole = rest.to_owned();
            while !whole.ends_with(';') {
                whole.push_str(lines.next().expect("a constant ends").trim());
            }
            let (name, value) = constant(&whole);
            assert!(
                found.constants.insert(name.clone(), value).is_none(),
                "{name} appears twice"
            );
        } else if let Some(rest) = code.strip_prefix("pub fn ") {
            let name = rest
                .split(['(', '<'])
                .next()
                .expect("a function has a name");
            found.functions.push(name.to_owned());
        } else if let Some(rest) = code
            .strip_prefix("pub struct ")
            .or(code.strip_prefix("pub union "))
        {
            if let Some((name, inner)) = rest.split_once('(') {
                let signed = inner.contains("c_int)");
                assert!(
                    signed || inner.contains("c_uint)"),
                    "{name} is over an unexpected integer: {inner}"
                );
                found.enums.insert(name.to_owned(), signed);
                continue;
            }
            let name = rest.trim_end_matches(['{', ' ']).to_owned();
            let mut fields = Vec::new();
            for line in lines.by_ref() {
                if line == "}" {
                    break;
                }
                // Fields stand at the first level; deeper lines belong to the type of one.
                if let Some(rest) = line.strip_prefix("    pub ") {
                    let (field, _) = rest.split_once(':').expect("a field has a type");
                    fields.push(field.to_owned());
                }
            }
            found.records.insert(name, fields);
        }
    }
    assert!(
        found.constants.len() > 300,
        "only {} constants were found",
        found.constants.len()
    );
    assert!(
        found.records.len() > 100,
        "only {} structs were found",
        found.records.len()
    );
    assert!(
        found.enums.len() > 50,
        "only {} enums were found",
        found.enums.len()
    );
    assert!(
        found.functions.len() > 80,
        "only {} functions were found",
        found.functions.len()
    );
    found
}

/// Splits `NAME: TYPE = VALUE;` or `NAME: TYPE = TYPE(VALUE,);`.
fn constant(text: &str) -> (String, u64) {
    let (name, rest) = text.split_once(':').expect("a constant has a type");
    let (_, value) = rest.rsplit_once('=').expect("a constant has a value");
    let value = value.trim().trim_end_matches(';');
    let digits = match value.split_once('(') {
        Some((_, inner)) => inner.trim_end_matches([')', ',', ' ']),
        None => value,
    };
    let number = digits
        .parse::<i64>()
        .map(i64::cast_unsigned)
        .or_else(|_| digits.parse::<u64>())
        .unwrap_or_else(|e| panic!("{name} has no plain value ({digits}): {e}"));
    (name.trim().to_owned(), number)
}

/// The names after `keyword` at the beginning of a line of a handwritten source file.
pub(crate) fn handwritten_names(path: &str, keyword: &str) -> Vec<String> {
    let text = source(path);
    let rests = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(keyword));
    rests
        .filter_map(|rest| {
            rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .next()
        })
        .filter(|name| !name.is_empty() && !name.starts_with('$'))
        .map(str::to_owned)
        .collect()
}
