//! Multicast groups.

use std::net::Ipv6Addr;

use verbs::sys::fake::control;
use verbs::{Address, AddressHandle, Error, ErrorKind, Gid, QpType, SendRequest};

use super::common::{drain, open, outcomes};
use super::ends::{End, QKEY, ends};
use super::failing::{fail_each_call, fail_each_destroy};

fn gid(address: &str) -> Gid {
    Gid(address.parse::<Ipv6Addr>().expect("an address").octets())
}

fn group() -> Gid {
    gid("::ffff:239.1.2.3")
}

/// The number that datagrams to a group go to.
const GROUP_NUMBER: u32 = 0xff_ffff;

#[test]
fn a_datagram_to_a_group_reaches_all_that_are_in_it_and_no_other() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let (three, four) = ends(QpType::UD).expect("ends");
    for (wr_id, end) in [&one, &two, &three, &four].into_iter().enumerate() {
        end.recv(wr_id as u64, 100).expect("a receive");
    }
    for end in [&one, &two, &three] {
        end.qp.attach_multicast(group(), 0).expect("attached");
    }
    two.qp.attach_multicast(group(), 0).expect("twice is once");
    three.qp.detach_multicast(group(), 0).expect("detached");
    let address = AddressHandle::new(&one.pd, &Address::roce(1, 1, group())).expect("a handle");
    let send = || {
        one.post(SendRequest::datagram(9, &[], &address, GROUP_NUMBER, QKEY))
            .expect("a datagram");
    };
    send();
    let of_one: Vec<_> = outcomes(&one.cq);
    assert_eq!(of_one.len(), 2, "sent, and received as well: {of_one:?}");
    let [completion] = drain(&two.cq)[..] else {
        panic!("not one completion");
    };
    let success = completion.result().expect("a success");
    assert_eq!(success.src_qp(), one.qp.number());
    assert_eq!(outcomes(&three.cq), [], "left");
    assert_eq!(outcomes(&four.cq), [], "never in it");
    two.qp.detach_multicast(group(), 0).expect("once is enough");
    let error = two.qp.detach_multicast(group(), 0).expect_err("not in it");
    assert_eq!(error.errno(), Some(libc::EINVAL), "{error}");
    assert!(error.to_string().contains(&two.qp.number().to_string()));
    drop((address, one, two, three, four));
    fake.finish();
}

#[test]
fn what_is_no_group_or_no_datagram_queue_pair_is_refused() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    let error = one.qp.attach_multicast(gid("::ffff:192.0.2.1"), 0);
    let error = error.expect_err("no group");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_attach_mcast", Some(libc::EINVAL))
    );
    let (connected, peer) = ends(QpType::RC).expect("ends");
    let error = connected.qp.attach_multicast(group(), 0);
    assert_eq!(error.expect_err("RC").errno(), Some(libc::EINVAL));
    one.qp
        .attach_multicast(gid("ff0e::1:2:3"), 0)
        .expect("IPv6");
    drop((one, two, connected, peer));
    fake.finish();
}

#[test]
fn a_queue_pair_leaves_its_groups_before_it_goes() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    for end in [&one, &two] {
        end.qp.attach_multicast(group(), 0).expect("attached");
        end.qp.attach_multicast(group(), 7).expect("attached");
    }
    let End {
        qp,
        cq,
        region,
        memory,
        pd,
    } = one;
    qp.close().expect("left first");
    drop((cq, region, memory, pd, two));
    assert_eq!(fake.count("ibv_detach_mcast"), 4);
    assert_eq!(fake.count("ibv_destroy_qp"), 2, "at the first try");
    fake.finish();
}

#[test]
fn leaks_a_queue_pair_that_cannot_leave_its_group() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    one.qp.attach_multicast(group(), 0).expect("attached");
    fake.fail("ibv_detach_mcast", 0, libc::EIO);
    let begun = std::time::Instant::now();
    drop((one, two));
    assert!(
        begun.elapsed() < control::within(2),
        "EBUSY is not waited out for long"
    );
    let left = fake.left_over();
    assert!(left.contains(&"1 queue pairs left".to_owned()), "{left:?}");
    fake.discard();
}

#[test]
fn a_group_that_could_not_be_left_may_be_left_again() {
    let fake = control::session();
    let (one, two) = ends(QpType::UD).expect("ends");
    one.qp.attach_multicast(group(), 0).expect("attached");
    fake.fail("ibv_detach_mcast", 0, libc::EIO);
    let error = one
        .qp
        .detach_multicast(group(), 0)
        .expect_err("made to fail");
    assert_eq!(error.errno(), Some(libc::EIO));
    fake.fail("ibv_detach_mcast", 0, libc::EIO);
    let End {
        qp,
        cq,
        region,
        memory,
        pd,
    } = one;
    let failed = qp.close().expect_err("still in the group");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    drop(failed);
    assert_eq!(fake.count("ibv_detach_mcast"), 3, "the drop leaves it");
    drop((cq, region, memory, pd, two));
    fake.finish();
}

fn everything_once() -> Result<(), Error> {
    let end = End::new(&open()?, QpType::UD)?;
    end.qp.attach_multicast(group(), 0)?;
    end.qp.detach_multicast(group(), 0)
}

#[test]
fn a_failing_call_names_itself_and_its_errno() {
    let fake = control::session();
    // A failing detach is tried by the drop once more.
    let tried = fail_each_call(&fake, everything_once);
    for call in ["ibv_attach_mcast", "ibv_detach_mcast"] {
        assert!(tried.contains(&call), "{call}");
    }
    fake.finish();
}

#[test]
fn leaks_are_all_that_a_failing_destroy_does() {
    let fake = control::session();
    fail_each_destroy(&fake, everything_once);
    fake.discard();
}
