//! Every call made to fail, with several errnos.

use std::mem::MaybeUninit;

use verbs::sys::fake::control::{self, Session};
use verbs::{Error, RecvRequest, SendFlags, SendRequest};

use super::common::{Memory, Pair, everything, sge, soon, target};

/// Everything once: objects made, a message received, all closed; the first error ends it.
fn everything_once() -> Result<(), Error> {
    let pair = Pair::new()?;
    pair.context.query_port(1)?;
    pair.context.gids(1)?;
    let memory = Memory::new(16);
    let region = memory.register(&pair.pd, everything())?;
    let piece = [sge(&region, 8)];
    // SAFETY: the region is closed before its memory goes, which nobody borrows.
    unsafe { pair.b.post_recv(&mut RecvRequest::new(1, &piece)) }?;
    let mut list = [
        SendRequest::write(2, &piece, target(&region)),
        SendRequest::send(3, &piece).with_flags(SendFlags::SIGNALED),
    ];
    // SAFETY: as above.
    unsafe { pair.a.post_send_list(&mut list) }?;
    let mut out = [MaybeUninit::uninit(); 4];
    pair.b_cq.wait(&mut out, soon())?;
    pair.b_cq.arm()?;
    drop(region);
    Ok(())
}

/// Destroys leak what they cannot destroy: a test of its own.
fn is_destroy(call: &str) -> bool {
    [
        "ibv_destroy",
        "ibv_dealloc",
        "ibv_dereg",
        "ibv_close",
        "ibv_free",
        "ibv_ack",
    ]
    .iter()
    .any(|prefix| call.starts_with(prefix))
}

/// The calls of a run without faults: each name with how often it comes.
fn calls(fake: &Session, run: fn() -> Result<(), Error>) -> Vec<(&'static str, usize)> {
    let before = fake.calls().len();
    run().expect("nothing fails");
    let mut names = fake.calls().split_off(before);
    names.sort_unstable();
    let mut counted: Vec<(&'static str, usize)> = Vec::new();
    for name in names {
        match counted.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => counted.push((name, 1)),
        }
    }
    counted
}

/// The name that an error has for a C symbol behind an inline function.
fn verb_of(call: &str) -> &str {
    match call {
        "ibv_reg_mr_iova2" => "ibv_reg_mr",
        "ibv_post_send" | "ibv_post_recv" | "ibv_post_srq_recv" => {
            "ibv_post_send, ibv_post_recv or ibv_post_srq_recv"
        }
        other => other,
    }
}

/// Lets each call of `run` fail that is no destroy, with several errnos: the error names the call and its errno, and nothing is
/// left. How many calls were made to fail, and what they are called.
pub(crate) fn fail_each_call(fake: &Session, run: fn() -> Result<(), Error>) -> Vec<&'static str> {
    let errnos = [libc::EIO, libc::EINVAL, libc::EMFILE, libc::EPERM];
    // In a hurry, one of them.
    let errnos = if control::hurried() {
        &errnos[..1]
    } else {
        &errnos[..]
    };
    let mut tried = Vec::new();
    for (call, count) in calls(fake, run) {
        if is_destroy(call) {
            continue;
        }
        let count = if control::hurried() {
            count.min(1)
        } else {
            count
        };
        for after in 0..count {
            for &errno in errnos {
                fake.fail(call, after, errno);
                let result = run();
                assert!(fake.faults_happened(), "{call} {after}");
                assert_eq!(
                    fake.left_over(),
                    Vec::<String>::new(),
                    "{call} {after} {errno}"
                );
                tried.push(call);
                match result {
                    // An entry that went away while the table was read.
                    Ok(()) => assert_eq!((call, errno), ("ibv_query_gid", libc::EINVAL)),
                    Err(error) if call == "ibv_poll_cq" => {
                        assert!(error.to_string().contains(&format!("-{errno}")), "{error}");
                    }
                    Err(error) => {
                        assert_eq!(error.verb(), verb_of(call), "{error}");
                        assert_eq!(error.errno(), Some(errno), "{error}");
                        let text = error.to_string();
                        assert!(text.contains(&format!("errno {errno}")), "{text}");
                        assert!(!text.contains('\n'), "{text}");
                    }
                }
            }
        }
    }
    tried
}

/// Lets each destroy of `run` fail: nobody is told, and the run goes on.
pub(crate) fn fail_each_destroy(fake: &Session, run: fn() -> Result<(), Error>) {
    for (call, count) in calls(fake, run) {
        if !is_destroy(call) || call.starts_with("ibv_free") || call.starts_with("ibv_ack") {
            continue;
        }
        for after in 0..count {
            fake.fail(call, after, libc::EIO);
            run().expect("a drop tells nobody");
            assert!(fake.faults_happened(), "{call} {after}");
        }
    }
}

#[test]
fn a_failing_call_leaves_nothing_behind_and_names_itself_and_its_errno() {
    let fake = control::session();
    let tried = fail_each_call(&fake, everything_once);
    let least = if control::hurried() { 15 } else { 72 };
    assert!(tried.len() >= least, "{tried:?}");
    fake.finish();
}

#[test]
fn leaks_are_all_that_a_failing_destroy_does() {
    let fake = control::session();
    fail_each_destroy(&fake, everything_once);
    fake.discard();
}

#[test]
fn a_destroy_that_is_busy_for_a_moment_is_tried_again() {
    let fake = control::session();
    for call in [
        "ibv_destroy_qp",
        "ibv_destroy_cq",
        "ibv_dereg_mr",
        "ibv_dealloc_pd",
    ] {
        fake.fail(call, 0, libc::EBUSY);
        fake.fail(call, 0, libc::EBUSY);
        everything_once().expect("nothing is told");
        assert!(fake.faults_happened());
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{call}");
    }
    fake.finish();
}
