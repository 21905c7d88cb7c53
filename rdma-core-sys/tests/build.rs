//! The crate builds where it should, and where it cannot the first line of the error says what to do.
//!
//! Each test runs cargo on `tests/link.rs` or on the crate, in a target directory of its own that is kept between runs.
#![cfg(not(any(miri, rdma_fake)))]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the first line must name, so that one line is enough to go on.
const IN_FIRST_LINE: &[&str] = &[
    "libibverbs",
    "librdmacm",
    "rdma-core 44",
    "libibverbs-dev librdmacm-dev",
    "Debian, Ubuntu",
    "rdma-core-devel",
    "Fedora",
];

/// Cargo on this crate, without what the surrounding run has set, and without network.
fn cargo(target_dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_cargo = text.starts_with("CARGO_") && text != "CARGO_HOME";
        let of_ours = text.starts_with("RDMA_CORE_") || text.starts_with("PKG_CONFIG");
        if of_cargo || of_ours || ["RUSTFLAGS", "RUSTDOCFLAGS", "DOCS_RS"].contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command
        .args(arguments)
        .args(["--quiet", "--offline", "-p", "rdma-core-sys"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", target_dir)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_TERM_COLOR", "never");
    command
}

fn target_dir(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("build")
        .join(name)
}

fn run(mut command: Command) -> Output {
    command
        .output()
        .unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"))
}

#[track_caller]
fn succeeds(command: Command) {
    let what = format!("{command:?}");
    let output = run(command);
    assert!(
        output.status.success(),
        "{what}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The lines of a refused build, from the first error on.
#[track_caller]
fn errors(command: Command) -> Vec<String> {
    let what = format!("{command:?}");
    let output = run(command);
    assert!(!output.status.success(), "{what} succeeded");
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<String> = text
        .lines()
        .skip_while(|line| !line.starts_with("error"))
        .map(str::to_owned)
        .collect();
    let first = lines
        .first()
        .unwrap_or_else(|| panic!("{what} said only:\n{text}"));
    for name in IN_FIRST_LINE {
        assert!(
            first.contains(name),
            "{name} is not in the first line:\n{text}"
        );
    }
    for variable in ["RDMA_CORE_LIB_DIR", "PKG_CONFIG_PATH", "RDMA_CORE_NO_LINK"] {
        assert!(
            lines.iter().any(|line| line.contains(variable)),
            "{variable} is not named:\n{text}"
        );
    }
    lines
}

#[test]
fn builds_without_libclang_in_a_deeply_nested_target_directory() {
    let base = target_dir("deep");
    let length = base.as_os_str().len();
    let deep = base.join("d".repeat(200_usize.saturating_sub(length).max(1)));
    assert!(deep.as_os_str().len() >= 200, "{}", deep.display());
    let mut command = cargo(&deep, &["test", "--test", "link"]);
    command
        .env("LIBCLANG_PATH", "/nonexistent")
        .env("LLVM_CONFIG_PATH", "/nonexistent");
    succeeds(command);
}

#[test]
fn links_with_every_linker_that_is_here_when_unneeded_libraries_are_dropped() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found: Vec<&str> = ["bfd", "gold", "lld", "mold"]
        .into_iter()
        .filter(|name| {
            std::env::split_paths(&path).any(|dir| dir.join(format!("ld.{name}")).exists())
        })
        .collect();
    assert!(
        !found.is_empty(),
        "no linker called ld.bfd, ld.gold, ld.lld or ld.mold is in PATH"
    );
    for name in found {
        let mut command = cargo(&target_dir("linkers"), &["test", "--test", "link"]);
        command.env(
            "RUSTFLAGS",
            format!("-Clink-arg=-fuse-ld={name} -Clink-arg=-Wl,--as-needed"),
        );
        succeeds(command);
    }
}

#[test]
fn links_with_optimisation_across_crates() {
    let mut command = cargo(&target_dir("lto"), &["test", "--release", "--test", "link"]);
    command
        .env("CARGO_PROFILE_RELEASE_LTO", "fat")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    succeeds(command);
}

#[test]
fn the_socket_emulation_links_with_its_feature() {
    let mut command = cargo(
        &target_dir("linkers"),
        &[
            "test",
            "--features",
            "rsocket",
            "--test",
            "sockets",
            "--test",
            "later",
        ],
    );
    command.env("RUSTFLAGS", "");
    succeeds(command);
}

#[track_caller]
fn says(lines: &[String], reason: &str) {
    assert!(
        lines.iter().any(|line| line.contains(reason)),
        "not said: {reason}\n{}",
        lines.join("\n")
    );
}

/// All that need the build script only: one after the other, for they share a directory.
#[test]
fn says_what_is_missing_and_what_to_set() {
    let dir = target_dir("missing");
    let check = || cargo(&dir, &["check", "--lib"]);

    let mut nothing_installed = check();
    nothing_installed.env("PKG_CONFIG_LIBDIR", "/nonexistent");
    says(
        &errors(nothing_installed),
        "pkg-config finds no file libibverbs.pc",
    );

    let mut no_pkg_config = check();
    no_pkg_config.env("PKG_CONFIG", "/nonexistent/pkg-config");
    says(&errors(no_pkg_config), "pkg-config cannot be run");

    let mut told_not_to_ask = check();
    told_not_to_ask.env("RDMA_CORE_NO_PKG_CONFIG", "1");
    says(&errors(told_not_to_ask), "RDMA_CORE_NO_PKG_CONFIG is set");

    let mut wrong_directory = check();
    wrong_directory.env("RDMA_CORE_LIB_DIR", "/nonexistent");
    says(
        &errors(wrong_directory),
        "/nonexistent/libibverbs.so does not exist",
    );

    let packages = dir.join("packages");
    std::fs::create_dir_all(&packages).expect("the target directory is writable");
    for (name, version) in [("libibverbs", "1.14.43.0"), ("librdmacm", "1.3.43.0")] {
        let text = format!(
            "Name: {name}\nDescription: an old release\nVersion: {version}\nLibs: -l{}\n",
            &name[3..]
        );
        std::fs::write(packages.join(format!("{name}.pc")), text)
            .expect("the directory is writable");
    }
    let mut too_old = check();
    too_old.env("PKG_CONFIG_LIBDIR", &packages);
    says(
        &errors(too_old),
        "the libibverbs that pkg-config finds is version 1.14.43.0; needed is 1.14.44",
    );
}

#[test]
fn a_static_program_is_refused_with_the_reason() {
    let mut command = cargo(
        &target_dir("missing"),
        &["check", "--lib", "--target", &host_triple()],
    );
    command.env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
    let output = run(command);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    let first = text.lines().find(|line| line.starts_with("error"));
    let first = first.unwrap_or_else(|| panic!("no error:\n{text}"));
    for word in ["dlopen", "no RDMA device", "-crt-static"] {
        assert!(
            first.contains(word),
            "{word} is not in the first line:\n{text}"
        );
    }
}

/// What this compiler builds for unless told otherwise. With `--target`, flags are not for build scripts.
fn host_triple() -> String {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("-vV");
    let output = run(command);
    let text = String::from_utf8(output.stdout).expect("cargo prints text");
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    line.expect("cargo names its host").to_owned()
}

#[test]
fn variables_take_the_place_of_pkg_config() {
    let dir = target_dir("variables");

    let mut nothing_to_link = cargo(&dir, &["check", "--lib"]);
    nothing_to_link
        .env("RDMA_CORE_NO_LINK", "1")
        .env("PKG_CONFIG", "/nonexistent/pkg-config");
    succeeds(nothing_to_link);

    let mut documentation = cargo(&dir, &["check", "--lib"]);
    documentation
        .env("DOCS_RS", "1")
        .env("PKG_CONFIG", "/nonexistent/pkg-config");
    succeeds(documentation);

    // The directory that pkg-config names is where the libraries are.
    let output = Command::new("pkg-config")
        .args(["--variable=libdir", "libibverbs"])
        .output()
        .expect("pkg-config is installed");
    let lib_dir = String::from_utf8(output.stdout).expect("a path");
    let mut told_where = cargo(&dir, &["test", "--test", "link"]);
    told_where
        .env("RDMA_CORE_LIB_DIR", lib_dir.trim())
        .env("PKG_CONFIG", "/nonexistent/pkg-config");
    succeeds(told_where);
}
