//! The functions that are declared by hand have the signatures of the headers.
#![cfg(not(any(miri, rdma_fake)))]

mod common;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use common::signatures::{Signature, signatures};

/// The functions of releases after 44.
fn later() -> Vec<Signature> {
    let mut functions = signatures("src/later/functions.rs", "fn ");
    functions.extend(signatures("src/later/repoll.rs", "fn "));
    functions
}

/// Declares the functions once more after the headers: two declarations of different types do not compile.
fn declare_again(name: &str, functions: &[Signature]) {
    let mut program = format!("{}#include <rdma/rsocket.h>\n", common::INCLUDES);
    for function in functions {
        let _ = writeln!(program, "{};", function.in_c());
    }
    let file = common::scratch(name).join("again.c");
    std::fs::write(&file, program).expect("the scratch directory is writable");
    common::cc(&[
        "-std=gnu11",
        "-Wall",
        "-Werror",
        "-fsyntax-only",
        file.to_str().expect("the path is text"),
    ]);
}

#[test]
fn functions_of_later_releases_are_declared_as_in_headers_that_have_them() {
    let headers = common::preprocessed("signatures-headers");
    let mut functions = later();
    assert!(functions.len() >= 25, "{}", functions.len());
    functions.retain(|function| common::has_word(&headers, &function.name));
    declare_again("signatures-later", &functions);
}

#[test]
fn sockets_are_declared_as_in_the_installed_header() {
    let functions = signatures("src/rsocket.rs", "pub fn ");
    assert!(functions.len() >= 27, "{}", functions.len());
    declare_again("signatures-sockets", &functions);
}

#[test]
fn options_of_sockets_have_the_values_of_the_installed_header() {
    let text = common::source("src/rsocket.rs");
    let constants: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("pub const "))
        .filter_map(|rest| rest.trim_end_matches(';').split_once(": "))
        .filter_map(|(name, rest)| Some((name, rest.split_once(" = ")?.1)))
        .collect();
    assert_eq!(constants.len(), 6);
    let mut program = "#include <rdma/rsocket.h>\n".to_owned();
    for (name, value) in constants {
        let _ = writeln!(program, "_Static_assert({name} == {value}, \"{name}\");");
    }
    let file = common::scratch("signatures-options").join("options.c");
    std::fs::write(&file, program).expect("the scratch directory is writable");
    common::cc(&[
        "-std=gnu11",
        "-fsyntax-only",
        file.to_str().expect("the path is text"),
    ]);
}

#[test]
fn each_function_is_declared_once() {
    let mut seen = BTreeSet::new();
    let functions = later()
        .into_iter()
        .chain(signatures("src/rsocket.rs", "pub fn "));
    let names = functions
        .map(|function| function.name)
        .chain(common::declarations().functions);
    for name in names {
        assert!(seen.insert(name.clone()), "{name} is declared twice");
    }
}
