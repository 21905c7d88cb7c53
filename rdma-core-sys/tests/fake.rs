//! The fake device stands in for the libraries as a whole: what the bindings name, it defines.

use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// All files of the fake device.
fn sources(dir: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(dir).expect("the directory is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text += &sources(&path);
        } else {
            text += &read(&path);
        }
    }
    text
}

/// The names after `marker` in a text, up to the parenthesis.
fn names<'a>(text: &'a str, marker: &str) -> BTreeSet<&'a str> {
    let after = text.split(marker).skip(1);
    after.filter_map(|rest| rest.split('(').next()).collect()
}

#[test]
fn every_function_of_the_bindings_is_defined_by_the_fake_device() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let bindings = read(&src.join("bindings.rs"));
    let exported: BTreeSet<_> = bindings
        .split("extern \"C\" {")
        .skip(1)
        .filter_map(|block| block.split('}').next())
        .flat_map(|block| names(block, "pub fn "))
        .collect();
    assert!(exported.len() > 100, "{}", exported.len());
    let fake = sources(&src.join("fake"));
    let defined = names(&fake, "fn ");
    let missing: Vec<_> = exported.difference(&defined).collect();
    assert!(missing.is_empty(), "not in src/fake: {missing:?}");
}
