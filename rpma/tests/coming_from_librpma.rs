//! The page "coming from librpma" is whole: every C function has its row, its alias and a test that
//! shows something.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use rpma::ConnectionEvent;

const PAGE: &str = include_str!("../docs/coming_from_librpma.md");

/// The functions of librpma 1.0 to 1.3, and at the end those that only earlier releases had.
const FUNCTIONS: &str = "
    rpma_utils_get_ibv_context rpma_utils_ibv_context_is_odp_capable rpma_utils_conn_event_2str
    rpma_err_2str rpma_peer_new rpma_peer_delete rpma_peer_cfg_new rpma_peer_cfg_delete
    rpma_peer_cfg_set_direct_write_to_pmem rpma_peer_cfg_get_direct_write_to_pmem
    rpma_peer_cfg_get_descriptor rpma_peer_cfg_get_descriptor_size rpma_peer_cfg_from_descriptor
    rpma_mr_reg rpma_mr_dereg rpma_mr_get_descriptor rpma_mr_get_descriptor_size rpma_mr_get_ptr
    rpma_mr_get_size rpma_mr_advise rpma_mr_remote_from_descriptor rpma_mr_remote_get_size
    rpma_mr_remote_get_flush_type rpma_mr_remote_delete rpma_conn_cfg_new rpma_conn_cfg_delete
    rpma_conn_cfg_set_timeout rpma_conn_cfg_get_timeout rpma_conn_cfg_set_cq_size
    rpma_conn_cfg_get_cq_size rpma_conn_cfg_set_rcq_size rpma_conn_cfg_get_rcq_size
    rpma_conn_cfg_set_sq_size rpma_conn_cfg_get_sq_size rpma_conn_cfg_set_rq_size
    rpma_conn_cfg_get_rq_size rpma_conn_cfg_set_compl_channel rpma_conn_cfg_get_compl_channel
    rpma_conn_cfg_set_srq rpma_conn_cfg_get_srq rpma_conn_req_new rpma_conn_req_delete
    rpma_conn_req_recv rpma_conn_req_get_private_data rpma_conn_req_connect rpma_conn_next_event
    rpma_conn_get_event_fd rpma_conn_get_private_data rpma_conn_apply_remote_peer_cfg
    rpma_conn_disconnect rpma_conn_delete rpma_conn_get_qp_num rpma_conn_get_cq rpma_conn_get_rcq
    rpma_conn_wait rpma_conn_get_compl_fd rpma_read rpma_write rpma_write_with_imm
    rpma_atomic_write rpma_flush rpma_send rpma_send_with_imm rpma_recv rpma_cq_get_fd rpma_cq_wait
    rpma_cq_get_wc rpma_srq_cfg_new rpma_srq_cfg_delete rpma_srq_cfg_set_rq_size
    rpma_srq_cfg_get_rq_size rpma_srq_cfg_set_rcq_size rpma_srq_cfg_get_rcq_size rpma_srq_new
    rpma_srq_delete rpma_srq_recv rpma_srq_get_rcq rpma_ep_listen rpma_ep_get_fd
    rpma_ep_next_conn_req rpma_ep_shutdown rpma_log_set_function rpma_log_set_threshold
    rpma_log_get_threshold
    rpma_conn_completion_get rpma_conn_completion_wait rpma_conn_get_completion_fd
    rpma_cq_get_completion rpma_write_atomic";

struct Row {
    /// The name in C.
    function: &'static str,
    /// What does its work here.
    here: &'static str,
    /// The name of the test.
    test: &'static str,
}

impl Row {
    fn of(line: &'static str) -> Option<Self> {
        let cells = line.strip_prefix("| `")?.strip_suffix("` |")?;
        let (function, rest) = cells.split_once("` | ")?;
        let (here, test) = rest.rsplit_once(" | `")?;
        Some(Self {
            function,
            here,
            test,
        })
    }

    /// The last words of the paths in the middle: a test must have one of them.
    fn words(&self) -> Vec<&'static str> {
        let pieces = self.here.split(['(', ')', '`', '[', ']', ' ', ',']);
        let paths = pieces.filter(|piece| piece.contains("::"));
        paths.filter_map(|path| path.rsplit("::").next()).collect()
    }
}

fn rows() -> Vec<Row> {
    let (table, _) = halves();
    table.lines().filter_map(Row::of).collect()
}

/// The table of functions, and that of defects.
fn halves() -> (&'static str, &'static str) {
    let halves = PAGE.split_once("# What was wrong there");
    halves.expect("both tables")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All Rust sources below these folders of the workspace.
fn sources(folders: &[&str]) -> Vec<String> {
    let mut left: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut sources = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a folder");
            left.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(std::fs::read_to_string(&path).expect("a text"));
        }
    }
    assert!(sources.len() > 3, "{folders:?}");
    sources
}

#[test]
fn every_function_of_librpma_has_one_row() {
    let functions: BTreeSet<_> = FUNCTIONS.split_whitespace().collect();
    assert_eq!(functions.len(), 89);
    let rows = rows();
    let named: BTreeSet<_> = rows.iter().map(|row| row.function).collect();
    assert_eq!(named, functions);
    assert_eq!(rows.len(), named.len(), "a row stands twice");
}

#[test]
fn every_function_of_librpma_is_found_by_its_name() {
    let sources = sources(&["rpma/src"]).concat();
    let without: Vec<_> = rows()
        .into_iter()
        .map(|row| row.function)
        .filter(|function| !sources.contains(&format!("#[doc(alias = \"{function}\")]")))
        .collect();
    assert!(without.is_empty(), "no #[doc(alias)] for {without:?}");
}

/// What makes a test fail: macros, and calls that end it.
const CHECKS: [&str; 9] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "ensure",
    "ensure_eq",
    "panic",
    "prop_assert",
    "prop_assert_eq",
    "expect_err",
];

/// A function, or the function that a device test names.
#[derive(Debug, Default)]
struct Body {
    /// Everything that it may call.
    idents: HashSet<String>,
    is_test: bool,
    ignored: bool,
}

/// The functions and tests of one file.
fn bodies(tokens: TokenStream, found: &mut BTreeMap<String, Body>) {
    let mut attributes: Vec<String> = Vec::new();
    let tokens: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at..] {
            [TokenTree::Punct(sign), TokenTree::Group(attribute), ..]
                if sign.as_char() == '#' && attribute.delimiter() == Delimiter::Bracket =>
            {
                attributes.push(attribute.stream().to_string());
                at += 1;
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "fn" => {
                let body = tokens[at..].iter().find_map(|token| match token {
                    TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => Some(body),
                    _ => None,
                });
                let function = found.entry(name.to_string()).or_default();
                function.is_test |= attributes.iter().any(|attribute| attribute == "test");
                function.ignored |= attributes.iter().any(|text| text.starts_with("ignore"));
                if let Some(body) = body {
                    idents(body.stream(), &mut function.idents);
                }
                attributes.clear();
            }
            // test("the_rule", &[what it needs], function)
            [TokenTree::Ident(word), TokenTree::Group(call), ..] if word == "test" => {
                if let Some(TokenTree::Literal(name)) = call.stream().into_iter().next() {
                    let name = name.to_string().trim_matches('"').to_owned();
                    let test = found.entry(name).or_default();
                    test.is_test = true;
                    idents(call.stream(), &mut test.idents);
                }
            }
            [TokenTree::Group(group), ..] => {
                bodies(group.stream(), found);
                attributes.clear();
            }
            _ => {}
        }
        at += 1;
    }
}

fn idents(tokens: TokenStream, found: &mut HashSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                found.insert(ident.to_string());
            }
            TokenTree::Group(group) => idents(group.stream(), found),
            _ => {}
        }
    }
}

type Functions = BTreeMap<String, Body>;

fn functions(sources: &[String]) -> Vec<Functions> {
    let parsed = |source: &String| {
        let mut found = BTreeMap::new();
        bodies(source.parse().expect("Rust"), &mut found);
        found
    };
    sources.iter().map(parsed).collect()
}

/// Every word of a test, and of what it calls in its file and, if not there, in `helpers`.
fn words<'a>(name: &'a str, file: &'a Functions, helpers: &'a Functions) -> HashSet<&'a str> {
    let (mut left, mut seen) = (vec![name], HashSet::new());
    while let Some(name) = left.pop() {
        if !seen.insert(name) {
            continue;
        }
        if let Some(body) = file.get(name).or_else(|| helpers.get(name)) {
            left.extend(body.idents.iter().map(String::as_str));
        }
    }
    seen
}

/// What is wrong with the tests of these names, if anything. One that is there checks something by itself or by what it calls
/// in its file, and has one of the words, where there are some.
fn wrong_tests(
    tests: &[(&str, Vec<&str>)],
    sources: &[String],
    helpers: &Functions,
) -> Vec<String> {
    let (files, none) = (functions(sources), Functions::new());
    let wrong = |(name, needed): &(&str, Vec<&str>)| {
        let is_test = |file: &&Functions| file.get(*name).is_some_and(|body| body.is_test);
        let mut found = files.iter().filter(is_test).peekable();
        if found.peek().is_none() {
            return Some(format!("{name}: no such test"));
        }
        found.find_map(|file| {
            let alone = words(name, file, &none);
            let all = words(name, file, helpers);
            if file[*name].ignored {
                Some(format!("{name} is ignored"))
            } else if !CHECKS.iter().any(|check| alone.contains(check)) {
                Some(format!("{name} checks nothing"))
            } else if !needed.is_empty() && !needed.iter().any(|word| all.contains(word)) {
                Some(format!("{name} has none of {needed:?}"))
            } else {
                None
            }
        })
    };
    tests.iter().filter_map(wrong).collect()
}

#[test]
fn every_function_of_librpma_is_shown_by_a_test_that_runs_checks_something_and_calls_it() {
    let sources = sources(&["rpma/src", "rpma/tests", "tests/library/rpma"]);
    let mut helpers = Functions::new();
    for file in [
        "rpma/tests/on_fake/common.rs",
        "tests/harness/pair.rs",
        "tests/library/rpma/c_peers/mod.rs",
    ] {
        let source = std::fs::read_to_string(root().join(file)).expect("a text");
        bodies(source.parse().expect("Rust"), &mut helpers);
    }
    let tests: Vec<_> = rows().iter().map(|row| (row.test, row.words())).collect();
    let wrong = wrong_tests(&tests, &sources, &helpers);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_defect_of_librpma_has_a_test_that_runs_and_checks_something() {
    let sources = sources(&["rpma/src", "rpma/tests", "tests/library"]);
    let (_, table) = halves();
    let tests: Vec<_> = table
        .lines()
        .filter_map(|line| line.strip_suffix("` |")?.rsplit_once("| `"))
        .map(|(_, test)| (test, Vec::new()))
        .collect();
    // Those that its users filed, and those found by reading it.
    assert!(tests.len() > 40, "{}", tests.len());
    let wrong = wrong_tests(&tests, &sources, &Functions::new());
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn tests_that_are_missing_ignored_empty_or_of_something_else_are_noticed() {
    let source = r#"
        fn tests() -> Vec<Test> {
            vec![
                test("on_a_device", &[Need::Device], on_a_device),
                test("of_nothing", &[Need::Device], || nothing()),
            ]
        }
        fn on_a_device() -> Outcome { helper() }
        fn helper() -> Outcome { ensure!(true, "text"); Ok(()) }
        fn nothing() -> Outcome { Ok(()) }
        mod tests {
            #[test]
            fn good() { assert_eq!(thing.method(), 1); }
            #[test]
            fn by_help() { assert_eq!(helps(), 1); }
            #[test]
            fn other() { assert_eq!(thing.another(), 1); }
            #[test]
            #[ignore = "too slow"]
            fn left_out() { assert!(true); }
            #[test]
            fn empty() {}
            fn no_test() { assert!(true); }
        }
    "#;
    let mut helpers = Functions::new();
    let help = "fn helps() { thing.method() }";
    bodies(help.parse().expect("Rust"), &mut helpers);
    let tests = [
        ("on_a_device", vec![]),
        ("of_nothing", vec![]),
        ("good", vec!["method"]),
        ("by_help", vec!["methods", "method"]),
        ("left_out", vec![]),
        ("empty", vec![]),
        ("other", vec!["method"]),
        ("no_test", vec![]),
        ("missing", vec![]),
    ];
    let expected = [
        "of_nothing checks nothing",
        "left_out is ignored",
        "empty checks nothing",
        "other has none of [\"method\"]",
        "no_test: no such test",
        "missing: no such test",
    ];
    assert_eq!(
        wrong_tests(&tests, &[source.to_owned()], &helpers),
        expected
    );
}

#[test]
fn each_event_has_a_text_of_its_own() {
    use rpma::RejectReason;

    let events = [
        ConnectionEvent::Established,
        ConnectionEvent::Closed,
        ConnectionEvent::Lost { status: -5 },
        ConnectionEvent::Rejected {
            reason: RejectReason::CONSUMER,
            private_data: Vec::new(),
        },
        ConnectionEvent::Unreachable { status: -110 },
    ];
    let texts: BTreeSet<_> = events.iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), events.len(), "{texts:?}");
    for word in [
        "established",
        "closed",
        "lost (status -5)",
        "rejected: ",
        "unreachable (status -110)",
    ] {
        assert!(
            texts.iter().any(|text| text.contains(word)),
            "{word}: {texts:?}"
        );
    }
}
