//! Who knows the C name of something finds it here.
#![cfg(not(any(miri, rdma_fake)))]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// All source files of the crate, without their comments.
fn sources() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the directory is there") {
            let path = entry.expect("the directory is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).expect("the file is readable");
                let code: Vec<&str> = text
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"))
                    .collect();
                found.insert(path, code.join("\n"));
            }
        }
    }
    found
}

/// The name that a text begins with.
fn name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

#[test]
fn every_c_function_that_is_called_is_an_alias_of_what_calls_it() {
    let sources = sources();
    let mut called = BTreeSet::new();
    let mut aliases = BTreeSet::new();
    for text in sources.values() {
        for rest in text.split("sys::").skip(1) {
            let function = name(rest);
            if rest[function.len()..].starts_with('(') && function.contains("ibv_") {
                called.insert(function.trim_start_matches('_').to_owned());
            }
        }
        for rest in text.split("doc(alias = \"").skip(1) {
            aliases.insert(name(rest).to_owned());
        }
    }
    assert!(called.len() > 40, "only {called:?}");
    let missing: Vec<&String> = called.difference(&aliases).collect();
    assert!(
        missing.is_empty(),
        "called, and no item has them as an alias: {missing:?}"
    );
}
