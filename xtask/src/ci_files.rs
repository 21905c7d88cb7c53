//! Checks of the files that drive the checks: the workflows and `.ci/run` name only what exists, and the gate needs all.

use std::fs;

use clap::CommandFactory;
use yaml_rust2::{Yaml, YamlLoader};

use crate::cli::Cli;
use crate::workspace;

const WORKFLOWS: [&str; 2] = ["ci.yml", "nightly.yml"];

fn read(path: &str) -> String {
    let path = workspace::root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn workflow(name: &str) -> Yaml {
    let text = read(&format!(".github/workflows/{name}"));
    let mut documents =
        YamlLoader::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(documents.len(), 1, "{name} is one document");
    documents.remove(0)
}

/// The jobs of a workflow with their names.
fn jobs(workflow: &Yaml) -> Vec<(String, Yaml)> {
    let jobs = workflow["jobs"].as_hash().expect("a workflow has jobs");
    jobs.iter()
        .map(|(name, job)| {
            (
                name.as_str().expect("a job's name is text").to_owned(),
                job.clone(),
            )
        })
        .collect()
}

fn steps(job: &Yaml) -> &[Yaml] {
    job["steps"].as_vec().expect("a job has steps")
}

/// The shell text of every `run` step of a workflow.
fn scripts(workflow: &Yaml) -> Vec<String> {
    let jobs = jobs(workflow);
    let steps = jobs.iter().flat_map(|(_, job)| steps(job));
    steps
        .filter_map(|step| step["run"].as_str().map(str::to_owned))
        .collect()
}

/// Every call of `cargo xtask` in a script that is no subcommand of this program.
fn unknown_calls(script: &str) -> Vec<String> {
    let mut unknown = Vec::new();
    let code = script
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    for call in code.flat_map(|line| line.split("cargo xtask ").skip(1)) {
        let mut command = Cli::command();
        for word in call
            .split_whitespace()
            .take_while(|word| !word.starts_with('-'))
        {
            if !command.has_subcommands() {
                break;
            }
            match command.find_subcommand(word) {
                Some(found) => command = found.clone(),
                None => {
                    unknown.push(format!("cargo xtask {}", call.trim()));
                    break;
                }
            }
        }
    }
    unknown
}

#[test]
fn an_unknown_subcommand_in_a_script_is_found() {
    assert_eq!(
        unknown_calls("cargo xtask vm start && cargo xtask test --full"),
        [""; 0]
    );
    assert_eq!(
        unknown_calls("cargo xtask tset | tee x"),
        ["cargo xtask tset | tee x"]
    );
    assert_eq!(unknown_calls("cargo xtask vm begin").len(), 1);
}

#[test]
fn the_workflows_call_only_subcommands_that_exist() {
    for name in WORKFLOWS {
        let scripts = scripts(&workflow(name));
        assert!(
            scripts.iter().any(|script| script.contains("cargo xtask ")),
            "{name} uses xtask"
        );
        for script in scripts {
            assert_eq!(unknown_calls(&script), [""; 0], "{name}");
        }
    }
}

#[test]
fn the_local_checks_call_only_subcommands_that_exist_and_every_check_there_is() {
    let script = read(".ci/run");
    assert_eq!(unknown_calls(&script), [""; 0]);
    for check in [
        "cargo fmt --all --check",
        "cargo clippy --workspace --all-targets --all-features -- -D warnings",
        "--cfg rdma_fake\" cargo clippy --target-dir target/fake -p rdma-core-sys -p verbs -p cm -p rpma",
        "cargo doc --workspace --no-deps",
        "cargo xtask bindings --check",
        "cargo xtask test",
        "cargo xtask ping",
    ] {
        assert!(script.contains(check), ".ci/run lacks: {check}");
    }
    assert!(
        scripts(&workflow("ci.yml"))
            .iter()
            .any(|script| script.contains("bash .ci/run")),
        "the workflow runs the same steps"
    );
}

#[test]
fn where_checks_count_nothing_may_be_left_out_for_want_of_something() {
    for (name, call) in [
        ("ci.yml", "bash .ci/run"),
        ("nightly.yml", "cargo xtask test --full"),
    ] {
        let jobs = jobs(&workflow(name));
        let mut found = 0;
        for step in jobs.iter().flat_map(|(_, job)| steps(job)) {
            if step["run"].as_str().is_some_and(|run| run.contains(call)) {
                found += 1;
                let require_all = step["env"]["RPMA_REQUIRE_ALL"].as_str();
                assert_eq!(require_all, Some("1"), "{name}: {call}");
            }
        }
        assert_eq!(found, 1, "{name}: {call}");
        let components = "rustup toolchain install nightly --profile minimal --component miri --component rust-src";
        assert!(
            scripts(&workflow(name))
                .iter()
                .any(|script| script.contains(components)),
            "{name} has what Miri and AddressSanitizer need"
        );
    }
}

#[test]
fn a_run_of_the_checks_leaves_no_vm_behind() {
    for stop in [
        "cargo xtask vm stop",
        "cargo xtask vm --guest debian13 stop",
        "cargo xtask vm --guest debian13-backports stop",
    ] {
        assert!(read(".ci/run").contains(stop), ".ci/run lacks: {stop}");
        let scripts = scripts(&workflow("nightly.yml"));
        assert!(
            scripts.iter().any(|script| script.contains(stop)),
            "nightly.yml lacks: {stop}"
        );
    }
}

#[test]
fn the_nightly_run_does_nothing_that_the_tests_do_by_themselves() {
    for script in scripts(&workflow("nightly.yml")) {
        for word in ["cargo miri", "-Zsanitizer", "cargo test"] {
            assert!(!script.contains(word), "{script}");
        }
    }
}

#[test]
fn the_gate_needs_every_other_job_and_looks_at_each_result() {
    let workflow = workflow("ci.yml");
    let jobs = jobs(&workflow);
    let gate = &jobs
        .iter()
        .find(|(name, _)| name == "gate")
        .expect("there is a gate")
        .1;
    let needs: Vec<&str> = gate["needs"]
        .as_vec()
        .expect("a list")
        .iter()
        .filter_map(Yaml::as_str)
        .collect();
    let others: Vec<&str> = jobs
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| *name != "gate")
        .collect();
    assert_eq!(needs, others);
    assert_eq!(
        gate["if"].as_str(),
        Some("always()"),
        "a skipped gate counts as passed"
    );
    let expected = vec!["success"; needs.len()].join(" ");
    let script = steps(gate)[0]["run"]
        .as_str()
        .expect("the gate runs something");
    assert!(script.contains(&format!("\"{expected}\"")), "{script}");
}

#[test]
fn every_workflow_only_reads_and_every_job_has_a_time_limit() {
    for name in WORKFLOWS {
        let workflow = workflow(name);
        let permissions = workflow["permissions"]
            .as_hash()
            .expect("permissions are stated");
        assert_eq!(permissions.len(), 1, "{name}");
        assert_eq!(
            workflow["permissions"]["contents"].as_str(),
            Some("read"),
            "{name}"
        );
        for (job_name, job) in jobs(&workflow) {
            assert!(
                job["timeout-minutes"].as_i64().is_some(),
                "{name}: {job_name} has no time limit"
            );
            assert!(
                job["permissions"].is_badvalue(),
                "{name}: {job_name} widens its permissions"
            );
            for step in steps(&job) {
                let one = !step["run"].is_badvalue() ^ !step["uses"].is_badvalue();
                assert!(
                    one,
                    "{name}: a step of {job_name} must either run or use something"
                );
            }
        }
    }
}

#[test]
fn the_oldest_toolchain_is_read_from_the_root_manifest_in_the_form_it_has_there() {
    let manifest = read("Cargo.toml");
    let stated = manifest
        .lines()
        .filter(|line| line.starts_with("rust-version = \""))
        .count();
    assert_eq!(stated, 1, "ci.yml takes the line by its beginning");
    let scripts = scripts(&workflow("ci.yml"));
    assert!(
        scripts
            .iter()
            .any(|script| script.contains("s/^rust-version = "))
    );
    assert!(
        scripts
            .iter()
            .any(|script| script.contains("cargo check --workspace --locked"))
    );
}
