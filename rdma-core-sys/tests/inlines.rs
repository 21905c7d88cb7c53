//! Nothing that the headers offer is missing, and nothing frozen is reachable.
#![cfg(not(miri))]

mod common;

/// Inline functions behind a macro, whose Rust form has the macro's name.
const BEHIND_MACRO: &[(&str, &str)] = &[
    ("___ibv_query_port", "ibv_query_port"),
    ("__ibv_reg_mr", "ibv_reg_mr"),
    ("__ibv_reg_mr_iova", "ibv_reg_mr_iova"),
];

/// The names of the `static inline` functions of the RDMA headers.
fn inline_functions(headers: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in headers.match_indices("static inline") {
        let declaration = headers[at..]
            .split(['{', ';'])
            .next()
            .expect("a declaration has an end");
        let Some((before, _)) = declaration.split_once('(') else {
            continue;
        };
        let name = before
            .rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .next();
        names.extend(
            name.filter(|name| {
                name.contains("ibv_") || name.contains("rdma_") || name.contains("verbs_")
            })
            .map(str::to_owned),
        );
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn every_inline_function_of_the_headers_has_a_rust_form() {
    let names = inline_functions(&common::preprocessed("inlines"));
    assert!(
        names.len() > 100,
        "only {} inline functions were found in the headers",
        names.len()
    );

    let mut ours = String::new();
    for folder in ["src/inline", "src/later"] {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        for entry in std::fs::read_dir(dir).expect("the directory is there") {
            let path = entry.expect("the directory is readable").path();
            ours.push_str(&std::fs::read_to_string(path).expect("the file is readable"));
        }
    }
    let missing: Vec<&String> = names
        .iter()
        .filter(|name| {
            let rust = BEHIND_MACRO
                .iter()
                .find(|(inline, _)| inline == name)
                .map_or(name.as_str(), |(_, rust)| rust);
            !ours.contains(&format!("fn {rust}("))
        })
        .collect();
    assert!(missing.is_empty(), "no Rust form of {missing:?}");
}

#[test]
fn no_frozen_or_private_symbol_is_bound() {
    let functions = common::declarations().functions;
    for name in [
        "ibv_query_port",
        "ibv_reg_mr",
        "ibv_reg_mr_iova",
        "ibv_wr_opcode_str",
        "ibv_query_gid_type",
        "ibv_static_providers",
        "ibv_register_driver",
        "ibv_dontfork_range",
        "ibv_dofork_range",
    ] {
        assert!(
            !functions.iter().any(|function| function == name),
            "{name} is bound"
        );
    }
}
