//! What C would do silently with the extended interfaces ends the process with a sentence.
#![cfg(not(miri))]

use std::process::Command;
use std::ptr;

use verbs::sys::fake::control;
use verbs::{
    CompletionFields, CompletionQueue, DeviceList, Error, ExtendedCompletionQueue,
    ExtendedQueuePair, ProtectionDomain, QpType, QueuePair, SendOps, sys,
};

fn objects() -> Result<(ExtendedQueuePair, ExtendedCompletionQueue), Error> {
    let context = DeviceList::new()?.by_name("fake0")?.open()?;
    let pd = ProtectionDomain::new(&context)?;
    let fields = CompletionFields::empty();
    let cq = CompletionQueue::builder(&context, 64).build_extended(fields)?;
    let qp = QueuePair::builder(&pd, QpType::RC, cq.queue(), cq.queue())
        .max_send_sge(2)
        .max_inline_data(8)
        .build_extended(SendOps::SEND)?;
    Ok((qp, cq))
}

type Misuse = unsafe fn(*mut sys::ibv_qp_ex, *mut sys::ibv_cq_ex);

/// What a program does wrong, and what it is told.
const MISUSES: &[(Misuse, &str)] = &[
    (
        |qp, _| {
            // SAFETY: not as C needs it, which the fake device says instead of going on.
            unsafe { sys::ibv_wr_start(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_wr_set_sge(qp, 0, 0, 0) };
        },
        "ibv_wr_set_sge with no request before it",
    ),
    (
        |qp, _| {
            // SAFETY: as above.
            unsafe { sys::ibv_wr_send(qp) };
        },
        "ibv_wr_send with no batch of requests begun",
    ),
    (
        |qp, _| {
            // SAFETY: as above.
            unsafe { sys::ibv_wr_complete(qp) };
        },
        "ibv_wr_complete with no batch of requests begun",
    ),
    (
        |qp, _| {
            // SAFETY: as above.
            unsafe { sys::ibv_wr_abort(qp) };
        },
        "ibv_wr_abort with no batch of requests begun",
    ),
    (
        |qp, _| {
            // SAFETY: as above.
            unsafe { sys::ibv_wr_start(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_wr_start(qp) };
        },
        "ibv_wr_start would block for ever",
    ),
    (
        |qp, _| {
            let mut bad = ptr::null_mut();
            let mut request = sys::ibv_send_wr::default();
            // SAFETY: as above.
            unsafe { sys::ibv_wr_start(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_post_send(qp.cast(), &mut request, &mut bad) };
        },
        "ibv_post_send would block for ever",
    ),
    (
        |qp, _| {
            let data = [1_u8];
            // SAFETY: as above.
            unsafe { sys::ibv_wr_start(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_wr_send(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_wr_set_inline_data(qp, data.as_ptr().cast_mut().cast(), 1) };
        },
        "inline data without the flag",
    ),
    (
        |qp, _| {
            let list = [1, 2].map(|length| sys::ibv_sge {
                length,
                ..Default::default()
            });
            // SAFETY: as above.
            unsafe { sys::ibv_wr_start(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_wr_send(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_wr_set_sge_list(qp, 2, list.as_ptr()) };
        },
        "pieces of unequal length",
    ),
    (
        |_, cq| {
            // SAFETY: as above.
            unsafe { sys::ibv_end_poll(cq) };
        },
        "ibv_end_poll with no batch of completions begun",
    ),
    (
        |_, cq| {
            // SAFETY: as above.
            unsafe { sys::ibv_next_poll(cq) };
        },
        "ibv_next_poll with no batch of completions begun",
    ),
    (
        |_, cq| {
            // SAFETY: as above.
            unsafe { sys::ibv_wc_read_opcode(cq) };
        },
        "ibv_wc_read_opcode with no completion to read",
    ),
    (
        |_, cq| {
            // SAFETY: as above.
            unsafe { sys::ibv_wc_read_byte_len(cq) };
        },
        "ibv_cq_ex has no read_byte_len",
    ),
    (
        |qp, _| {
            // SAFETY: as above.
            unsafe { sys::ibv_wr_start(qp) };
            // SAFETY: as above.
            unsafe { sys::ibv_wr_rdma_read(qp, 0, 0) };
        },
        "ibv_qp_ex has no wr_rdma_read",
    ),
];

/// Which of them this process is to do, as a child of itself.
const CHILD: &str = "FAKE_MISUSE";

#[test]
fn misuse_of_the_extended_interfaces_is_said_and_ends_the_process() {
    if let Ok(index) = std::env::var(CHILD) {
        let fake = control::session();
        fake.set_patience(std::time::Duration::from_millis(50));
        let (qp, cq) = objects().expect("objects");
        let (misuse, _) = MISUSES[index.parse::<usize>().expect("an index")];
        // SAFETY: both are live; what is wrong is what is tested.
        unsafe { misuse(qp.as_raw(), cq.as_raw()) };
        fake.discard();
        return;
    }
    let this = std::env::current_exe().expect("this program");
    for (index, (_, expected)) in MISUSES.iter().enumerate() {
        let child = Command::new(&this)
            .args(["--exact", "--nocapture"])
            .arg("on_fake::extended_violations::misuse_of_the_extended_interfaces_is_said_and_ends_the_process")
            .env(CHILD, index.to_string())
            .output()
            .expect("a child");
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(!child.status.success(), "{expected}: went on\n{said}");
        assert!(said.contains(expected), "{expected}: said {said}");
    }
}
