//! Handles may be dropped in any order.

use std::any::Any;

use verbs::sys::fake::control;
use verbs::{ErrorKind, RecvRequest};

use super::common::{Memory, Pair, everything};

#[test]
fn handles_may_be_dropped_in_any_order() {
    let fake = control::session();
    let count = 6;
    let orders = permutations(count);
    let orders = if control::hurried() {
        &orders[..5]
    } else {
        &orders[..]
    };
    for order in orders {
        let pair = Pair::new().expect("a pair");
        let memory = Memory::new(8);
        let region = memory.register(&pair.pd, everything()).expect("a region");
        // SAFETY: the request names no memory.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(1, &[])) }.expect("a receive");
        let Pair {
            a,
            b,
            a_cq,
            b_cq,
            pd,
            context,
        } = pair;
        let mut handles: Vec<Option<Box<dyn Any>>> = vec![
            Some(Box::new((a, b))),
            Some(Box::new(a_cq)),
            Some(Box::new(b_cq)),
            Some(Box::new(pd)),
            Some(Box::new(context)),
            Some(Box::new(region)),
        ];
        for &index in order {
            handles[index] = None;
        }
        assert_eq!(fake.left_over(), Vec::<String>::new(), "{order:?}");
    }
    fake.finish();
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(count - 1) {
        for at in 0..count {
            let mut longer = shorter.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}

#[test]
fn closing_what_is_in_use_gives_the_handle_back() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    let Pair {
        a,
        b,
        a_cq,
        b_cq,
        pd,
        context,
    } = pair;
    let failed = a_cq.close().expect_err("a queue pair uses it");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    let a_cq = failed.handle;
    let failed = pd.close().expect_err("queue pairs use it");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    let pd = failed.handle;
    a.close().expect("nothing uses it");
    a_cq.close().expect("nothing uses it any more");
    drop((b, b_cq));
    pd.close().expect("nothing uses it any more");
    drop(context);
    fake.finish();
}

#[test]
fn leaks_a_chain_whose_destroy_fails_and_nothing_else() {
    let fake = control::session();
    let pair = Pair::new().expect("a pair");
    fake.fail_always("ibv_destroy_qp", libc::EIO);
    let Pair {
        a,
        b,
        a_cq,
        b_cq,
        pd,
        context,
    } = pair;
    let failed = a.close().expect_err("made to fail");
    assert_eq!(
        (failed.error.verb(), failed.error.errno()),
        ("ibv_destroy_qp", Some(libc::EIO))
    );
    drop((failed, b, a_cq, b_cq, pd, context));
    let left = fake.left_over();
    let expected = [
        "1 contexts left",
        "1 protection domains left",
        "2 completion channels left",
        "2 completion queues left",
        "2 queue pairs left",
    ];
    assert_eq!(left, expected);
    fake.discard();
}
