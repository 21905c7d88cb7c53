//! Nothing that the libraries export or the headers define is missing.
#![cfg(not(any(miri, rdma_fake)))]

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use common::signatures::signatures;

/// The headers whose contents are bound.
const HEADERS: &[&str] = &[
    "infiniband/verbs.h",
    "infiniband/verbs_api.h",
    "infiniband/sa.h",
    "infiniband/tm_types.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
    "rdma/rsocket.h",
];

/// Exported functions that are left out, with the reason.
const NOT_BOUND: &[(&str, &str)] = &[
    (
        "ibv_copy_ah_attr_from_kern",
        "for providers, in no public header",
    ),
    (
        "ibv_copy_path_rec_from_kern",
        "for providers, in no public header",
    ),
    (
        "ibv_copy_path_rec_to_kern",
        "for providers, in no public header",
    ),
    (
        "ibv_copy_qp_attr_from_kern",
        "for providers, in no public header",
    ),
    ("ibv_dofork_range", "for providers, in no public header"),
    ("ibv_dontfork_range", "for providers, in no public header"),
    ("ibv_get_sysfs_path", "for providers, in no public header"),
    ("ibv_read_sysfs_file", "for providers, in no public header"),
    ("ibv_register_driver", "for providers, in no public header"),
];

/// Exported functions whose Rust form is the macro of the same name.
const BEHIND_MACRO: &[&str] = &["ibv_query_port", "ibv_reg_mr", "ibv_reg_mr_iova"];

/// Macros that are left out, with the reason.
const NOT_WRITTEN: &[(&str, &str)] = &[
    (
        "vext_field_avail",
        "within `verbs_get_ctx_op`, which nothing else needs",
    ),
    (
        "verbs_get_ctx_op",
        "a macro of the crate's own, behind every function that C has it for",
    ),
    (
        "RDMA_UAPI_PTR",
        "makes the members of an unnamed union, named in src/unions.rs",
    ),
    ("__attribute_const", "of the compiler"),
];

/// The directory of the libraries: those of another release, when the variable says so, or the installed ones.
fn library_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("RDMA_CORE_SYS_TEST_LIBRARIES") {
        return dir.into();
    }
    let output = Command::new("pkg-config")
        .args(["--variable=libdir", "libibverbs"])
        .output()
        .expect("pkg-config is installed");
    String::from_utf8(output.stdout)
        .expect("a path")
        .trim()
        .into()
}

/// The functions that a library exports to programs.
fn exported(library: &str) -> BTreeSet<String> {
    let path = library_dir().join(library);
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(&path)
        .output()
        .expect("nm is installed with the C compiler");
    assert!(
        output.status.success(),
        "nm {}: {}",
        path.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    // `0000000000012345 T ibv_create_qp@@IBVERBS_1.1`; one `@` stands before a version kept for old programs.
    let text = String::from_utf8(output.stdout).expect("nm prints text");
    let words = text.lines().filter_map(|line| line.split(' ').nth(2));
    let found: BTreeSet<String> = words
        .filter_map(|word| word.split_once("@@"))
        .filter(|(_, version)| !version.contains("PRIVATE"))
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.starts_with("IBVERBS_") && !name.starts_with("RDMACM_"))
        .collect();
    assert!(
        found.len() > 50,
        "{} exports only {found:?}",
        path.display()
    );
    found
}

/// The functions that this crate has of those that the libraries export.
fn bound() -> BTreeSet<String> {
    let mut names: BTreeSet<String> = common::declarations().functions.into_iter().collect();
    for (path, prefix) in [
        ("src/later/functions.rs", "fn "),
        ("src/later/repoll.rs", "fn "),
        ("src/rsocket.rs", "pub fn "),
    ] {
        names.extend(
            signatures(path, prefix)
                .into_iter()
                .map(|function| function.name),
        );
    }
    names.extend(BEHIND_MACRO.iter().map(|&name| name.to_owned()));
    names
}

#[test]
fn every_function_that_the_libraries_export_is_bound() {
    let bound = bound();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let missing: Vec<String> = exported(library)
            .difference(&bound)
            .filter(|name| !NOT_BOUND.iter().any(|(left_out, _)| left_out == name))
            .cloned()
            .collect();
        assert!(
            missing.is_empty(),
            "{library} exports, and nothing binds: {missing:?}"
        );
    }
}

#[test]
fn every_bound_function_of_the_baseline_is_exported() {
    let mut exported: BTreeSet<String> = exported("libibverbs.so.1");
    exported.extend(self::exported("librdmacm.so.1"));
    let missing: Vec<String> = common::declarations()
        .functions
        .into_iter()
        .filter(|name| !exported.contains(name))
        .collect();
    assert!(
        missing.is_empty(),
        "bound, and exported by no library: {missing:?}"
    );
}

/// All that this crate defines, as text.
fn ours() -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut text = String::new();
    for folder in ["", "inline", "later"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("the directory is there") {
            let path = entry.expect("the directory is readable").path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&std::fs::read_to_string(path).expect("the file is readable"));
            }
        }
    }
    text
}

/// The identifiers that this crate defines: what stands after one of the words that define something.
fn defined() -> BTreeSet<String> {
    let text = ours();
    let mut names = BTreeSet::new();
    for keyword in ["const ", "struct ", "union ", "type ", "fn "] {
        for rest in text.split(keyword).skip(1) {
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            names.insert(rest[..end].to_owned());
        }
    }
    names
}

fn none_missing(what: &str, at_least: usize, theirs: &[String]) {
    let ours = defined();
    assert!(
        theirs.len() >= at_least,
        "only {} {what} were found in the headers",
        theirs.len()
    );
    let missing: Vec<&String> = theirs
        .iter()
        .filter(|name| !ours.contains(*name))
        .filter(|name| !NOT_WRITTEN.iter().any(|(left_out, _)| left_out == name))
        .collect();
    assert!(
        missing.is_empty(),
        "{what} of the headers that nothing defines: {missing:?}"
    );
}

#[test]
fn every_macro_of_the_headers_has_a_rust_form() {
    let text = common::own_lines("complete-macros", HEADERS);
    let macros: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("#define "))
        // A macro without a value only says that a header was read.
        .filter_map(|rest| rest.split_once([' ', '(']))
        .filter(|(_, value)| !value.trim().is_empty())
        .map(|(name, _)| name.to_owned())
        .filter(|name| !name.ends_with("_H"))
        .collect();
    none_missing("macros", 40, &macros);
}

#[test]
fn every_enumerator_of_the_headers_has_a_constant() {
    let text = common::own_lines("complete-enumerators", HEADERS);
    let mut names = Vec::new();
    for rest in text.split("enum").skip(1) {
        // `enum name {` or `enum {`: anything else only names one.
        let Some((head, body)) = rest.split_once('{') else {
            continue;
        };
        if !head
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c.is_whitespace())
        {
            continue;
        }
        let body = body.split('}').next().unwrap_or_default();
        let code: String = body.lines().filter(|line| !line.starts_with('#')).collect();
        for enumerator in code.split(',') {
            let name = enumerator.split('=').next().unwrap_or_default().trim();
            if !name.is_empty() {
                names.push(name.to_owned());
            }
        }
    }
    none_missing("enumerators", 350, &names);
}

#[test]
fn every_type_of_the_headers_has_a_rust_form() {
    let text = common::own_lines("complete-types", HEADERS);
    let mut names = Vec::new();
    for line in text.lines() {
        for keyword in ["struct ", "union ", "enum "] {
            let name = line
                .trim()
                .strip_prefix(keyword)
                .and_then(|rest| rest.strip_suffix('{'));
            names.extend(
                name.map(|name| name.trim().to_owned())
                    .filter(|name| !name.is_empty()),
            );
        }
    }
    none_missing("types", 150, &names);
}

#[test]
fn every_unnamed_type_has_a_name_here() {
    let aliases = common::source("src/unions.rs");
    let records = common::declarations().records;
    let unnamed: Vec<&String> = records
        .keys()
        .filter(|name| name.contains("__bindgen_ty_"))
        .collect();
    assert!(
        unnamed.len() > 20,
        "only {} unnamed types were found",
        unnamed.len()
    );
    let missing: Vec<&&String> = unnamed
        .iter()
        .filter(|name| !common::has_word(&aliases, name))
        .collect();
    assert!(
        missing.is_empty(),
        "no alias in src/unions.rs for {missing:?}"
    );
}

#[test]
fn what_is_left_out_is_there_to_be_left_out() {
    let exported: BTreeSet<String> = exported("libibverbs.so.1");
    // The oldest of them went with the release that it was for.
    let gone = ["ibv_register_driver"];
    for (name, reason) in NOT_BOUND {
        assert!(
            exported.contains(*name) || gone.contains(name),
            "{name} ({reason}) is not exported"
        );
    }
}
