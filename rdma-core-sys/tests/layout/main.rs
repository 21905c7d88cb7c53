//! Every struct and union has the size, alignment and field offsets that it has in the installed headers.
#![cfg(not(miri))]

#[path = "../common/mod.rs"]
mod common;
mod records;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// One struct or union as Rust lays it out.
struct Record {
    name: &'static str,
    /// What C calls the type.
    c_type: &'static str,
    size: usize,
    align: usize,
    fields: Vec<Field>,
}

/// One field, or one field of an unnamed member.
struct Field {
    path: String,
    /// What C calls it; members of an unnamed member have no prefix there.
    c_path: String,
    offset: usize,
    size: usize,
}

/// Structs that later releases made longer at the end. The library is told our size, or is asked for nothing beyond it.
const GROWS_AT_END: &[&str] = &[
    "ibv_port_attr",
    "ibv_qp_ex",
    "ibv_cq_ex",
    "ibv_device_attr_ex",
];
/// The struct that grows at the front: offsets count from its end.
const GROWS_AT_FRONT: &str = "verbs_context";

/// Structs of which the headers show only the name.
const OPAQUE: &[&str] = &["_compat_ibv_port_attr", "verbs_ex_private"];

/// Types of unnamed members, which C gives no name to ask by: their fields are compared as fields of the outer struct.
const UNNAMED: &[(&str, &str, &str)] = &[
    (
        "ib_uverbs_flow_action_esp_encap",
        "__bindgen_anon_1",
        "ib_uverbs_flow_action_esp_encap__bindgen_ty_1",
    ),
    (
        "ib_uverbs_flow_action_esp_encap",
        "__bindgen_anon_2",
        "ib_uverbs_flow_action_esp_encap__bindgen_ty_2",
    ),
    ("ibv_wc", "__bindgen_anon_1", "ibv_wc__bindgen_ty_1"),
    (
        "ibv_send_wr",
        "__bindgen_anon_1",
        "ibv_send_wr__bindgen_ty_1",
    ),
    (
        "ibv_send_wr",
        "__bindgen_anon_2",
        "ibv_send_wr__bindgen_ty_4",
    ),
    (
        "ibv_flow_spec",
        "__bindgen_anon_1",
        "ibv_flow_spec__bindgen_ty_1",
    ),
    ("rdma_addr", "__bindgen_anon_1", "rdma_addr__bindgen_ty_1"),
    ("rdma_addr", "__bindgen_anon_2", "rdma_addr__bindgen_ty_2"),
];

/// Sizes and offsets in C: of each record its size and alignment, of each field its offset and size.
fn layout_in_c(name: &str, records: &[Record]) -> BTreeMap<String, (usize, usize)> {
    let mut program = format!(
        "#include <stdio.h>\n#include <stddef.h>\n{}int main(void)\n{{\n",
        common::INCLUDES
    );
    for record in records {
        let (name, c_type) = (record.name, record.c_type);
        let _ = writeln!(
            program,
            "\tprintf(\"{name} %zu %zu\\n\", sizeof({c_type}), _Alignof({c_type}));"
        );
        for field in &record.fields {
            let (path, c_path) = (&field.path, &field.c_path);
            let _ = writeln!(
                program,
                "\tprintf(\"{name}.{path} %zu %zu\\n\", offsetof({c_type}, {c_path}), sizeof((({c_type} *)0)->{c_path}));"
            );
        }
    }
    program.push_str("\treturn 0;\n}\n");
    common::run_c(name, &program)
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse().expect("the program prints numbers");
            (words[0].to_owned(), (number(1), number(2)))
        })
        .collect()
}

#[test]
fn every_record_is_laid_out_as_in_the_installed_headers() {
    let records = records::all();
    let theirs = layout_in_c("layout", &records);
    let mut wrong = Vec::new();
    for record in &records {
        let (size, align) = theirs[record.name];
        let at_end = GROWS_AT_END.contains(&record.name) && size >= record.size;
        let at_front = record.name == GROWS_AT_FRONT && size >= record.size;
        if (size != record.size && !at_end && !at_front) || align != record.align {
            wrong.push(format!(
                "{}: size {} align {} here, size {size} align {align} in C",
                record.name, record.size, record.align
            ));
        }
        let shift = if at_front { size - record.size } else { 0 };
        for field in &record.fields {
            let (offset, size) = theirs[&format!("{}.{}", record.name, field.path)];
            if (offset, size) != (field.offset + shift, field.size) {
                wrong.push(format!(
                    "{}.{}: offset {} size {} here, offset {offset} size {size} in C",
                    record.name, field.path, field.offset, field.size
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Structs of later releases, with a word that headers have when they have the struct in this form.
fn later() -> Vec<(Record, &'static str)> {
    let headers = common::preprocessed("layout-later-headers");
    let mut records = records::later();
    records.retain(|(_, word)| common::has_word(&headers, word));
    records
}

#[test]
fn every_record_of_a_later_release_is_laid_out_as_in_headers_that_have_it() {
    let records: Vec<Record> = later().into_iter().map(|(record, _)| record).collect();
    let theirs = layout_in_c("layout-later", &records);
    for record in &records {
        let name = record.name;
        assert_eq!(
            (record.size, record.align),
            theirs[name],
            "size and alignment of {name}"
        );
        for field in &record.fields {
            let place = format!("{name}.{}", field.path);
            assert_eq!(
                (field.offset, field.size),
                theirs[&place],
                "offset and size of {place}"
            );
        }
    }
}

#[test]
fn the_flush_is_the_slot_after_the_atomic_write() {
    let headers = common::preprocessed("layout-flush-headers");
    if !common::has_word(&headers, "wr_flush") {
        // Headers of rdma-core 44.
        assert!(!common::has_word(&headers, "ibv_wr_flush"));
        return;
    }
    let program = format!(
        "#include <stdio.h>\n#include <stddef.h>\n{}int main(void)\n{{\n\tprintf(\"%zu\\n\", offsetof(struct ibv_qp_ex, \
         wr_flush));\n\treturn 0;\n}}\n",
        common::INCLUDES
    );
    let theirs = common::run_c("layout-flush", &program);
    let ours = std::mem::offset_of!(rdma_core_sys::ibv_qp_ex, wr_atomic_write) + size_of::<usize>();
    assert_eq!(theirs.trim(), ours.to_string());
}

#[test]
fn no_record_of_a_later_release_is_left_out() {
    let listed: Vec<&str> = records::later()
        .iter()
        .map(|(record, _)| record.name)
        .collect();
    for path in ["src/later/structs.rs", "src/later/port.rs"] {
        for name in common::handwritten_names(path, "pub struct ") {
            // Of a buffer the headers show only the name.
            assert!(
                name == "ibv_buf" || listed.contains(&name.as_str()),
                "{name} of {path} is not compared with C"
            );
        }
    }
}

#[test]
fn no_record_and_no_field_is_left_out() {
    let listed: BTreeMap<&str, BTreeSet<String>> = records::all()
        .into_iter()
        .map(|record| {
            (
                record.name,
                record.fields.into_iter().map(|field| field.path).collect(),
            )
        })
        .collect();
    let declared = common::declarations().records;
    for (name, fields) in &declared {
        if OPAQUE.contains(&name.as_str()) {
            continue;
        }
        let unnamed = UNNAMED.iter().find(|(_, _, inner)| inner == name);
        let (outer, prefix) = match unnamed {
            Some((outer, member, _)) => (*outer, format!("{member}.")),
            None => (name.as_str(), String::new()),
        };
        let of_outer = listed
            .get(outer)
            .unwrap_or_else(|| panic!("{outer} is not compared with C"));
        for field in fields {
            let path = format!("{prefix}{field}");
            let is_unnamed = UNNAMED.iter().any(|(o, m, _)| *o == outer && *m == path);
            assert!(
                is_unnamed || of_outer.contains(&path),
                "{outer}.{path} is not compared with C"
            );
        }
    }
}
