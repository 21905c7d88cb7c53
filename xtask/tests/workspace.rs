//! Rules that hold for the workspace as a whole, read off `cargo metadata`.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The crates from the bottom up; `tests` and `xtask` stand beside them.
const LAYERS: [&str; 5] = ["rdma-core-sys", "verbs", "cm", "rpma", "rpma-tools"];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--manifest-path",
        ])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata: {errors}");
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn each_layer_depends_on_the_one_below_and_on_none_above() {
    let metadata = metadata();
    let mut seen = 0;
    for package in list(&metadata, "packages") {
        let Some(layer) = LAYERS
            .iter()
            .position(|name| *name == text(package, "name"))
        else {
            continue;
        };
        seen += 1;
        let ours: Vec<_> = list(package, "dependencies")
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .map(|dependency| text(dependency, "name"))
            .filter(|name| LAYERS.contains(name))
            .collect();
        let below: Vec<_> = layer
            .checked_sub(1)
            .map(|below| LAYERS[below])
            .into_iter()
            .collect();
        assert_eq!(ours, below, "dependencies of {}", LAYERS[layer]);
    }
    assert_eq!(seen, LAYERS.len());
}

/// Major and minor of a version.
fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().expect("a number"));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[test]
fn no_locked_dependency_needs_a_newer_rust_than_we_state() {
    let metadata = metadata();
    let stated = list(&metadata, "packages")
        .iter()
        .find(|package| text(package, "name") == "rpma")
        .map(|package| version(text(package, "rust_version")))
        .expect("rpma states its rust-version");
    let mut checked = 0;
    for package in list(&metadata, "packages") {
        if let Some(needed) = package["rust_version"].as_str() {
            checked += 1;
            let name = text(package, "name");
            assert!(version(needed) <= stated, "{name} needs Rust {needed}");
        }
    }
    assert!(checked > 10, "only {checked} packages state a rust-version");
}

#[test]
fn no_crate_can_be_published_by_accident() {
    let metadata = metadata();
    for package in list(&metadata, "packages") {
        // Members have no registry as their source.
        if package["source"].is_null() {
            assert_eq!(
                package["publish"],
                Value::Array(Vec::new()),
                "{}",
                text(package, "name")
            );
        }
    }
}
