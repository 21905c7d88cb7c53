//! Extended completion queues: what is called, what is told, and what is refused.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use verbs::sys::fake::control::{self, Session};
use verbs::{
    CompletionChannel, CompletionFields, CompletionQueue, Context, Deadline, DeviceList, ErrorKind,
    ExtendedCompletion, ExtendedCompletionQueue, PollError, ProtectionDomain, QpType, QueuePair,
    RecvRequest, SendFlags, SendRequest, WcOpcode, WcStatus,
};

use super::common::{soon, to_init, to_rtr, to_rts};

/// The device that stands for SoftRoCE, and the one that stands for hardware.
const DEVICES: [&str; 2] = ["fake0", "fake1"];

/// Two connected queue pairs whose completions all go to one extended queue.
struct Extended {
    a: QueuePair,
    b: QueuePair,
    cq: ExtendedCompletionQueue,
    context: Context,
}

fn open(device: &str) -> Context {
    let devices = DeviceList::new().expect("devices");
    let device = devices.by_name(device).expect("the device");
    device.open().expect("open")
}

impl Extended {
    fn new(device: &str, fields: CompletionFields) -> Self {
        let context = open(device);
        let pd = ProtectionDomain::new(&context).expect("a domain");
        let channel = CompletionChannel::new(&context).expect("a channel");
        let cq = CompletionQueue::builder(&context, 64)
            .own_channel(&channel)
            .build_extended(fields)
            .expect("a queue");
        let qp = || {
            QueuePair::builder(&pd, QpType::RC, cq.queue(), cq.queue())
                .build()
                .expect("a queue pair")
        };
        let (a, b) = (qp(), qp());
        for (qp, peer) in [(&a, &b), (&b, &a)] {
            to_init(qp).expect("INIT");
            to_rtr(qp, peer).expect("RTR");
            to_rts(qp, 7).expect("RTS");
        }
        Self { a, b, cq, context }
    }

    /// Sends empty messages, whose receives complete before them: two completions each.
    fn send(&self, count: u64) {
        for id in 0..count {
            // SAFETY: the request names no memory.
            unsafe { self.b.post_recv(&mut RecvRequest::new(100 + id, &[])) }.expect("a receive");
            let mut request = SendRequest::send(id, &[]).with_flags(SendFlags::SIGNALED);
            // SAFETY: the request names no memory.
            unsafe { self.a.post_send(&mut request) }.expect("a send");
        }
    }

    fn poll(&self, most: usize) -> Vec<ExtendedCompletion> {
        let mut out = vec![MaybeUninit::uninit(); most];
        self.cq.poll(&mut out).expect("a poll").to_vec()
    }
}

fn ids(completions: &[ExtendedCompletion]) -> Vec<u64> {
    completions.iter().map(ExtendedCompletion::wr_id).collect()
}

/// The calls of extended polling since `from`.
fn polling(fake: &Session, from: usize) -> Vec<&'static str> {
    let of = |name: &&&str| name.contains("poll") || name.starts_with("ibv_wc_read");
    fake.calls()[from..].iter().filter(of).copied().collect()
}

#[test]
fn only_what_was_asked_for_is_read() {
    let fake = control::session();
    for (fields, readers) in [
        (CompletionFields::empty(), vec![]),
        (
            CompletionFields::QP_NUM | CompletionFields::SL,
            vec!["ibv_wc_read_qp_num", "ibv_wc_read_sl"],
        ),
        (
            CompletionFields::default(),
            vec![
                "ibv_wc_read_byte_len",
                "ibv_wc_read_imm_data",
                "ibv_wc_read_qp_num",
                "ibv_wc_read_src_qp",
                "ibv_wc_read_slid",
                "ibv_wc_read_sl",
                "ibv_wc_read_dlid_path_bits",
            ],
        ),
    ] {
        let pair = Extended::new("fake0", fields);
        assert_eq!(pair.cq.fields(), fields);
        pair.send(1);
        let before = fake.calls().len();
        let [received] = pair.poll(1)[..] else {
            panic!("not one completion");
        };
        let mut expected = vec![
            "ibv_start_poll",
            "ibv_wc_read_opcode",
            "ibv_wc_read_wc_flags",
        ];
        expected.extend(readers);
        expected.push("ibv_end_poll");
        assert_eq!(polling(&fake, before), expected);

        let success = received.result().expect("a success");
        assert_eq!(success.opcode(), WcOpcode::RECV);
        let told = |field| fields.contains(field).then_some(0);
        assert_eq!(
            received.qp_num(),
            told(CompletionFields::QP_NUM).map(|_| pair.b.number())
        );
        assert_eq!(success.byte_len(), told(CompletionFields::BYTE_LEN));
        assert_eq!(success.src_qp(), told(CompletionFields::SRC_QP));
        assert_eq!(success.slid(), told(CompletionFields::SLID));
        assert_eq!(success.sl().map(u32::from), told(CompletionFields::SL));
        let bits = success.dlid_path_bits().map(u32::from);
        assert_eq!(bits, told(CompletionFields::DLID_PATH_BITS));
        assert_eq!((success.cvlan(), success.flow_tag()), (None, None));
        assert_eq!((success.imm(), success.matched_tag()), (None, None));
        assert_eq!((received.timestamp(), received.wallclock()), (None, None));
    }
    fake.finish();
}

#[test]
fn immediate_data_comes_in_host_order_and_only_where_it_was_asked_for() {
    let fake = control::session();
    for (fields, imm) in [
        (CompletionFields::IMM, Some(0x0102_0304)),
        (CompletionFields::empty(), None),
    ] {
        let pair = Extended::new("fake0", fields);
        // SAFETY: the request names no memory.
        unsafe { pair.b.post_recv(&mut RecvRequest::new(1, &[])) }.expect("a receive");
        let mut request = SendRequest::send_with_imm(2, &[], 0x0102_0304);
        // SAFETY: the request names no memory.
        unsafe { pair.a.post_send(&mut request) }.expect("a send");
        let [received] = pair.poll(4)[..] else {
            panic!("not one completion");
        };
        let success = received.result().expect("a success");
        assert_eq!((success.imm(), success.invalidated_rkey()), (imm, None));
    }
    fake.finish();
}

#[test]
fn a_reader_that_the_device_does_not_have_refuses_the_queue() {
    let fake = control::session();
    let context = open("fake0");
    let fields = CompletionFields::BYTE_LEN | CompletionFields::TIMESTAMP;
    let build = || CompletionQueue::builder(&context, 4).build_extended(fields);
    fake.refuse_wc_flags(CompletionFields::TIMESTAMP.bits());
    let error = build().expect_err("refused at creation");
    assert_eq!(
        (error.kind(), error.errno()),
        (ErrorKind::Unsupported, Some(libc::EOPNOTSUPP))
    );
    assert!(error.to_string().contains("TIMESTAMP"), "{error}");
    assert!(
        error.hint().is_some_and(|hint| hint.contains("fewer")),
        "{error}"
    );

    fake.refuse_wc_flags(0);
    fake.leave_out_readers(CompletionFields::TIMESTAMP.bits());
    let error = build().expect_err("accepted, and NULL");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("read_completion_ts"), "{error}");
    assert_eq!(fake.count("ibv_destroy_cq"), 1, "given back");

    fake.leave_out_readers(0);
    build().expect("both readers");
    let unknown = CompletionFields::from_bits_retain(1 << 40);
    let error = CompletionQueue::builder(&context, 4)
        .build_extended(unknown)
        .expect_err("a bit that nobody knows");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    fake.fail("ibv_create_cq_ex", 0, libc::ENOMEM);
    let error = build().expect_err("made to fail");
    assert_eq!(
        (error.verb(), error.errno()),
        ("ibv_create_cq_ex", Some(libc::ENOMEM))
    );
    drop(context);
    fake.finish();
}

#[test]
fn software_gets_a_batch_for_each_completion_and_hardware_one_for_all() {
    let fake = control::session();
    for device in DEVICES {
        let pair = Extended::new(device, CompletionFields::empty());
        pair.send(3);
        let before = fake.calls().len();
        assert_eq!(ids(&pair.poll(4)), [100, 0, 101, 1], "as many as fit");
        assert_eq!(ids(&pair.poll(4)), [102, 2], "the rest");
        assert_eq!(ids(&pair.poll(4)), [0; 0], "none");
        let calls: Vec<_> = polling(&fake, before)
            .into_iter()
            .filter(|name| name.contains("poll"))
            .collect();
        let (start, next, end) = ("ibv_start_poll", "ibv_next_poll", "ibv_end_poll");
        let expected = if device == "fake0" {
            // No end after a start that found nothing.
            let one = [start, end];
            [&one[..], &one, &one, &one, &one, &one, &[start, start]].concat()
        } else {
            let full = [start, next, next, next, end];
            // A batch that ran out is over, and ended; then the queue is looked at once more.
            [&full[..], &[start, next, next, end], &[start]].concat()
        };
        assert_eq!(calls, expected, "{device}");
    }
    fake.finish();
}

#[test]
fn a_failure_in_the_middle_loses_no_completion() {
    let fake = control::session();
    for device in DEVICES {
        let pair = Extended::new(device, CompletionFields::empty());
        pair.send(2);
        let call = if device == "fake0" {
            "ibv_start_poll"
        } else {
            "ibv_next_poll"
        };
        fake.fail(call, 1, libc::EIO);
        let before = ids(&pair.poll(3));
        assert!(fake.faults_happened());
        let (first, rest) = [100, 0, 101, 1].split_at(before.len());
        assert_eq!(before, first, "what was taken out before");
        fake.fail("ibv_start_poll", 0, libc::EIO);
        let mut out = [MaybeUninit::uninit(); 4];
        let error = pair.cq.poll(&mut out).expect_err("made to fail");
        assert_eq!(error, PollError::Start(libc::EIO));
        let error = verbs::Error::from(error);
        assert_eq!(
            (error.verb(), error.errno()),
            ("ibv_start_poll", Some(libc::EIO))
        );
        assert_eq!(ids(&pair.poll(4)), rest, "{device}");
    }
    fake.finish();
}

#[test]
fn of_a_failed_request_nothing_is_told_that_means_nothing() {
    let fake = control::session();
    for status in [10, 24, u32::MAX] {
        let pair = Extended::new("fake0", CompletionFields::default());
        fake.next_status(status);
        let mut request = SendRequest::send(5, &[]);
        // SAFETY: the request names no memory.
        unsafe { pair.a.post_send(&mut request) }.expect("a send");
        let before = fake.calls().len();
        let [completion] = pair.poll(4)[..] else {
            panic!("not one completion");
        };
        assert_eq!(
            (completion.wr_id(), completion.status()),
            (5, WcStatus::from_raw(status))
        );
        assert_eq!(completion.qp_num(), Some(pair.a.number()));
        let error = completion.result().expect_err("no success");
        assert_eq!(error.status.raw(), status);
        let readers = ["ibv_wc_read_vendor_err", "ibv_wc_read_qp_num"];
        let expected = [
            &["ibv_start_poll"],
            &readers[..],
            &["ibv_end_poll", "ibv_start_poll"],
        ];
        assert_eq!(polling(&fake, before), expected.concat());
        assert!(
            format!("{completion:?}").contains("status"),
            "{completion:?}"
        );
    }
    let pair = Extended::new("fake0", CompletionFields::empty());
    fake.next_opcode(3000);
    pair.send(1);
    let opcode = pair.poll(1)[0].result().expect("a success").opcode();
    assert_eq!(opcode, WcOpcode::from_raw(3000));
    drop(pair);
    fake.finish();
}

#[test]
fn timestamps_rise_and_compare_with_the_devices_clock() {
    let fake = control::session();
    let fields = CompletionFields::TIMESTAMP | CompletionFields::WALLCLOCK;
    let pair = Extended::new("fake0", fields);
    let before = pair.context.raw_clock().expect("a clock");
    pair.send(2);
    let completions = pair.poll(4);
    let after = pair.context.raw_clock().expect("a clock");
    let mut ticks = vec![before];
    ticks.extend(
        completions
            .iter()
            .map(|c| c.timestamp().expect("asked for")),
    );
    ticks.push(after);
    assert!(ticks.is_sorted_by(|a, b| a < b), "{ticks:?}");
    let wall: Vec<_> = completions
        .iter()
        .map(|c| c.wallclock().expect("asked for"))
        .collect();
    assert!(wall[0] > Duration::from_secs(1_600_000_000), "{wall:?}");
    // 100 MHz: a tick is 10 ns.
    assert_eq!(
        pair.context
            .query_extended()
            .expect("attributes")
            .hca_core_clock(),
        100_000
    );
    let passed = Duration::from_nanos(10 * (ticks[4] - ticks[1]));
    assert_eq!(wall[3] - wall[0], passed);

    fake.fail("ibv_query_rt_values_ex", 0, libc::EOPNOTSUPP);
    let error = pair.context.raw_clock().expect_err("made to fail");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("fake0"), "{error}");
    drop(pair);
    fake.finish();
}

#[test]
fn it_is_a_plain_queue_as_well() {
    let fake = control::session();
    let pair = Extended::new("fake0", CompletionFields::empty());
    pair.send(2);
    let mut plain = [MaybeUninit::uninit(); 1];
    let taken = pair.cq.queue().poll(&mut plain).expect("a plain poll")[0].wr_id();
    assert_eq!((taken, ids(&pair.poll(4))), (100, vec![0, 101, 1]));
    let mut out = [MaybeUninit::uninit(); 4];
    let deadline = Deadline::after(Duration::from_millis(20));
    let error = pair.cq.wait(&mut out, deadline).expect_err("nothing comes");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut out = [MaybeUninit::uninit(); 4];
            ids(pair.cq.wait(&mut out, soon()).expect("a completion"))
        });
        pair.send(1);
        let first = waiting.join().expect("no panic");
        assert_eq!(first[0], 100);
    });
    pair.poll(4);
    // Room is promised as in any other queue, and it is in use.
    let pd = ProtectionDomain::new(&pair.context).expect("a domain");
    let error = QueuePair::builder(&pd, QpType::RC, pair.cq.queue(), pair.cq.queue())
        .build()
        .expect_err("all 64 entries are promised");
    assert_eq!(error.kind(), ErrorKind::Limit);
    let Extended { a, b, cq, context } = pair;
    let failed = cq.close().expect_err("in use");
    assert_eq!(failed.error.kind(), ErrorKind::Busy);
    drop((a, b));
    failed.handle.close().expect("not in use");
    drop((pd, context));
    fake.finish();
}

#[test]
fn threads_share_a_queue() {
    let fake = control::session();
    for device in DEVICES {
        let pair = Extended::new(device, CompletionFields::BYTE_LEN);
        let rounds: usize = if control::hurried() { 4 } else { 200 };
        let taken = AtomicUsize::new(0);
        let deadline = soon();
        let mut all: Vec<u64> = std::thread::scope(|scope| {
            let take = || {
                let mut mine = Vec::new();
                while taken.load(Ordering::Relaxed) < 2 * rounds && !deadline.has_passed() {
                    let mut out = [MaybeUninit::uninit(); 3];
                    let got = ids(pair.cq.poll(&mut out).expect("a poll"));
                    taken.fetch_add(got.len(), Ordering::Relaxed);
                    mine.extend(got);
                    std::thread::yield_now();
                }
                mine
            };
            let takers = [scope.spawn(take), scope.spawn(take)];
            for sent in 1..=rounds {
                pair.send(1);
                // Neither queue is ever full.
                while taken.load(Ordering::Relaxed) + 8 < 2 * sent && !deadline.has_passed() {
                    std::thread::yield_now();
                }
            }
            let taken = takers.map(|taker| taker.join().expect("no panic"));
            taken.concat()
        });
        all.sort_unstable();
        let expected = [vec![0; rounds], vec![100; rounds]].concat();
        assert_eq!(all, expected, "{device}");
    }
    fake.finish();
}
