//! UC queue pairs: connected, and nobody answers.

use verbs::sys::fake::control;
use verbs::{PostErrorKind, QpType, RemoteAddr, RemoteKey, SendRequest, WcStatus, WrOpcode};

use super::common::{outcomes, target};
use super::ends::ends;

#[test]
fn what_a_peer_takes_arrives_and_what_it_does_not_take_is_lost() {
    let fake = control::session();
    let (one, two) = ends(QpType::UC).expect("ends");
    let eight = [one.sge(8)];
    let sent = |request: SendRequest<'_>| {
        one.post(request).expect("posted");
        assert_eq!(outcomes(&one.cq), [(1, 0)]);
    };
    sent(SendRequest::send(1, &eight)); // No receive.
    two.recv(5, 7).expect("a receive");
    sent(SendRequest::send(1, &eight)); // One byte too long.
    let nowhere = RemoteAddr {
        addr: 64,
        rkey: RemoteKey(1),
    };
    sent(SendRequest::write(1, &eight, nowhere));
    sent(SendRequest::write_with_imm(1, &eight, nowhere, 3));
    assert_eq!(outcomes(&two.cq), [], "the receive was not taken");
    sent(SendRequest::write(1, &eight, target(&two.region)));
    sent(SendRequest::write_with_imm(
        1,
        &eight,
        target(&two.region),
        3,
    ));
    assert_eq!(outcomes(&two.cq), [(5, 0)]);
    drop(two);
    sent(SendRequest::send(1, &eight)); // Nobody there.
    drop(one);
    fake.finish();
}

#[test]
fn what_needs_an_answer_is_refused_before_the_provider() {
    let fake = control::session();
    let (one, two) = ends(QpType::UC).expect("ends");
    let eight = [one.sge(8)];
    let there = target(&two.region);
    for (mut request, opcode) in [
        (SendRequest::read(1, &eight, there), WrOpcode::RDMA_READ),
        (
            SendRequest::fetch_and_add(1, &eight, there, 1),
            WrOpcode::ATOMIC_FETCH_AND_ADD,
        ),
        (
            SendRequest::send_with_invalidate(1, &eight, there.rkey),
            WrOpcode::SEND_WITH_INV,
        ),
    ] {
        // SAFETY: the request is refused.
        let error = unsafe { one.qp.post_send(&mut request) }.expect_err("refused");
        assert_eq!(error.kind, PostErrorKind::Unsupported(opcode));
    }
    assert_eq!(fake.count("ibv_post_send"), 0);
    drop((one, two));
    fake.finish();
}

#[test]
fn an_error_of_its_own_ends_the_queue_pair() {
    let fake = control::session();
    let (one, two) = ends(QpType::UC).expect("ends");
    let foreign = [two.sge(8)];
    one.post(SendRequest::send(1, &foreign)).expect("posted");
    one.post(SendRequest::send(2, &[])).expect("posted");
    let (fails, flushed) = (WcStatus::LOC_PROT_ERR, WcStatus::WR_FLUSH_ERR);
    assert_eq!(outcomes(&one.cq), [(1, fails.raw()), (2, flushed.raw())]);
    drop((one, two));
    fake.finish();
}
