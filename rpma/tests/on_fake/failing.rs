//! Every call made to fail, from the first look at the devices to the last completion.

use cm::verbs::sys::fake::control;
use rpma::{Error, FlushType, Signal};

use super::common::{Pair, Regions, WAIT};

/// A connection that moves data and ends; the first error ends it.
fn everything_once() -> Result<(), Error> {
    let pair = Pair::new()?;
    let regions = Regions::new(&pair, 64)?;
    let (to, from) = (regions.of_server.as_span(), regions.client.as_span());
    pair.server.recv(regions.server.as_span(), 1)?;
    pair.client.send(from, Signal::Always, 2)?;
    pair.client.cq().next(WAIT)?;
    pair.server.cq().next(WAIT)?;
    // Drained, so that the wait below is for an event.
    while pair.client.cq().poll_one()?.is_some() {}
    pair.client.write(to, from, Signal::OnError, 3)?;
    pair.client
        .flush(to, FlushType::Visibility, Signal::Always, 4)?;
    pair.client.cq().wait(WAIT)?;
    pair.client.cq().next(WAIT)?;
    pair.client.disconnect()?;
    pair.server.next_event(WAIT)?;
    Ok(())
}

#[test]
fn a_failing_call_leaves_nothing_behind_and_is_named() {
    let fake = control::session();
    everything_once().expect("the devices become known");
    let before = fake.calls().len();
    everything_once().expect("nothing fails");
    let calls = fake.calls().split_off(before);
    let mut names = calls.clone();
    names.sort_unstable();
    names.dedup();
    // Those leak by design, or tell nobody.
    let quiet = ["ibv_de", "rdma_destroy", "rdma_free", "rdma_ack", "ibv_ack"];
    names.retain(|name| !quiet.iter().any(|prefix| name.starts_with(prefix)));
    assert!(names.len() >= 25, "{names:?}");
    for name in names {
        let count = calls.iter().filter(|call| **call == name).count();
        // In a hurry, the steps that have the most to undo.
        let few = ["ibv_create_qp", "rdma_accept", "rdma_establish"];
        let count = match (control::hurried(), few.contains(&name)) {
            (true, false) => 0,
            (true, true) => 1,
            (false, _) => count,
        };
        for after in 0..count {
            fake.fail(name, after, libc::EIO);
            let result = everything_once();
            fake.heal();
            let what = format!("{name} {after}: {result:?}");
            assert_eq!(fake.left_over(), Vec::<String>::new(), "{what}");
            match result {
                Err(error) => {
                    let text = error.to_string();
                    // What the errors call the C functions behind inline functions.
                    let called = match name {
                        "ibv_reg_mr_iova2" => "ibv_reg_mr",
                        "ibv_post_send" | "ibv_post_recv" => "request not posted",
                        name => name,
                    };
                    assert!(text.contains(called), "{what}");
                    assert!(text.contains(&libc::EIO.to_string()), "{what}");
                }
                // In a drop, or in the answer to an end, nobody is there to be told.
                Ok(()) => assert!(
                    ["ibv_modify_qp", "rdma_disconnect"].contains(&name),
                    "{what}"
                ),
            }
        }
    }
    fake.finish();
}
