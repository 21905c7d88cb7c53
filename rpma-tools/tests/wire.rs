//! The bytes that the two ends exchange: the same for ever, and hostile until checked.

use proptest::prelude::*;
use rpma_tools::ping::{Defect, MAX_SIZE, Operation, OperationSet};
use rpma_tools::session::{
    CONTROL_LEN, Control, Hello, Refusal, RefusalReason, VERSION, Welcome, WireError,
};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hello() -> Hello {
    Hello {
        operations: OperationSet::ALL,
        size: 0x0001_0000,
        count: 100,
        interval_ms: 1000,
        deadline_ms: 10_000,
    }
}

fn welcome() -> Welcome {
    Welcome {
        target: [0xaa; 21],
        source: [0x55; 21],
    }
}

fn refusal() -> Refusal {
    Refusal {
        reason: RefusalReason::SIZE,
        value: 1 << 30,
        limit: 1 << 23,
    }
}

/// Private data arrives with zeros up to the size of its field.
fn padded(mut bytes: Vec<u8>, to: usize) -> Vec<u8> {
    assert!(bytes.len() <= to);
    bytes.resize(to, 0);
    bytes
}

#[test]
fn a_hello_is_these_bytes() {
    let golden =
        "52504e47 0001 01 00 0024 0f 00 000003e8 00002710 0000000000010000 0000000000000064";
    assert_eq!(hex(&hello().encode(VERSION)), golden.replace(' ', ""));
    assert_eq!(
        Hello::decode(&padded(hello().encode(VERSION), 56), 1 << 23),
        Ok(hello())
    );
}

#[test]
fn a_welcome_is_these_bytes() {
    let golden = format!(
        "52504e47000102000036 15{} 15{}",
        "aa".repeat(21),
        "55".repeat(21)
    );
    assert_eq!(hex(&welcome().encode()), golden.replace(' ', ""));
    assert_eq!(
        Welcome::decode(&padded(welcome().encode(), 196)),
        Ok(welcome())
    );
}

#[test]
fn a_refusal_is_these_bytes_in_every_version() {
    let golden = "52504e47 0001 03 00 001c 0005 0000000040000000 0000000000800000";
    assert_eq!(hex(&refusal().encode()), golden.replace(' ', ""));
    let mut bytes = padded(refusal().encode(), 148);
    for version in [0, 1, 2, 255] {
        bytes[5] = version;
        assert_eq!(Refusal::decode(&bytes), Ok(refusal()));
    }
}

#[test]
fn every_control_frame_is_these_bytes() {
    let defect = Defect::WrongByte {
        offset: 17,
        expected: 0x0a,
        found: 0xf5,
        wrong: 3,
    };
    let length = Defect::WrongLength {
        expected: 64,
        found: 40,
    };
    for (control, golden) in [
        (
            Control::Begin { sequence: 5 },
            "01 00 00 00 00 00 0000000000000005 0000000000000000 0000000000000000",
        ),
        (
            Control::Report {
                sequence: 5,
                operation: Operation::Read,
                defect: None,
            },
            "02 04 00 00 00 00 0000000000000005 0000000000000000 0000000000000000",
        ),
        (
            Control::Verdict {
                sequence: 6,
                operation: Operation::Write,
                defect: Some(defect),
            },
            "03 02 01 0a f5 00 0000000000000006 0000000000000011 0000000000000003",
        ),
        (
            Control::Verdict {
                sequence: 6,
                operation: Operation::Send,
                defect: Some(length),
            },
            "03 01 02 00 00 00 0000000000000006 0000000000000040 0000000000000028",
        ),
        (
            Control::Bye {
                sent: 10,
                received: 9,
                wrong: 1,
            },
            "04 00 00 00 00 00 000000000000000a 0000000000000009 0000000000000001",
        ),
    ] {
        let bytes = control.encode();
        assert_eq!(
            hex(&bytes),
            format!("52504e4700010400 0028 {golden}").replace(' ', "")
        );
        assert_eq!(Control::decode(&bytes), Ok(control));
    }
}

#[test]
fn another_version_is_refused_with_both_versions() {
    let refusal = Hello::decode(&padded(hello().encode(VERSION + 1), 56), MAX_SIZE).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::VERSION);
    assert_eq!(
        (refusal.value, refusal.limit),
        (u64::from(VERSION) + 1, u64::from(VERSION))
    );
    let mut bytes = welcome().encode();
    bytes[5] = 9;
    assert_eq!(Welcome::decode(&bytes), Err(WireError::Version(9)));
}

#[test]
fn what_does_not_begin_with_the_magic_is_foreign() {
    for bytes in [&[][..], &[0; 56], b"RPN", b"GET / HTTP/1.1\r\n\r\n"] {
        assert_eq!(
            Hello::decode(bytes, MAX_SIZE).unwrap_err().reason,
            RefusalReason::FOREIGN
        );
        assert_eq!(Welcome::decode(bytes), Err(WireError::Foreign));
        assert_eq!(Refusal::decode(bytes), Err(WireError::Foreign));
        assert_eq!(Control::decode(bytes), Err(WireError::Foreign));
    }
}

#[test]
fn a_frame_that_is_cut_short_or_claims_another_length_is_refused() {
    for bytes in [
        hello().encode(VERSION),
        welcome().encode(),
        refusal().encode(),
    ] {
        for len in 10..bytes.len() {
            let cut = &bytes[..len];
            assert!(Hello::decode(cut, MAX_SIZE).is_err());
            assert!(Welcome::decode(cut).is_err());
            assert!(Refusal::decode(cut).is_err());
        }
    }
    let mut longer = padded(hello().encode(VERSION), 56);
    longer[9] += 1;
    assert_eq!(
        Hello::decode(&longer, MAX_SIZE).unwrap_err().reason,
        RefusalReason::MALFORMED
    );
    let mut shorter = hello().encode(VERSION);
    shorter[9] = 0;
    assert_eq!(
        Hello::decode(&shorter, MAX_SIZE).unwrap_err().reason,
        RefusalReason::MALFORMED
    );
}

#[test]
fn a_hello_with_a_value_outside_its_bounds_is_refused_with_value_and_limit() {
    for (place, byte, reason) in [
        (10, 0x00, RefusalReason::OPERATIONS),
        (10, 0x10, RefusalReason::OPERATIONS),
        (10, 0xff, RefusalReason::OPERATIONS),
        (11, 0x01, RefusalReason::MALFORMED),
        (12, 0xff, RefusalReason::TIME),
        (16, 0xff, RefusalReason::TIME),
        (20, 0x01, RefusalReason::SIZE),
    ] {
        let mut bytes = hello().encode(VERSION);
        bytes[place] = byte;
        assert_eq!(
            Hello::decode(&bytes, MAX_SIZE).unwrap_err().reason,
            reason,
            "byte {place}"
        );
    }
    let decode =
        |hello: Hello| Hello::decode(&hello.encode(VERSION), 4096).map_err(|r| (r.value, r.limit));
    assert!(
        decode(Hello {
            size: 4096,
            ..hello()
        })
        .is_ok()
    );
    assert_eq!(
        decode(Hello {
            size: 4097,
            ..hello()
        }),
        Err((4097, 4096))
    );
    assert_eq!(decode(Hello { size: 0, ..hello() }), Err((0, 4096)));
    assert_eq!(
        decode(Hello {
            size: 1,
            deadline_ms: 0,
            ..hello()
        }),
        Err((0, 3_600_000))
    );
}

#[test]
fn a_size_above_the_tools_own_limit_is_refused_whatever_the_device_allows() {
    let hello = Hello {
        size: MAX_SIZE + 1,
        ..hello()
    };
    let refusal = Hello::decode(&hello.encode(VERSION), u64::MAX).unwrap_err();
    assert_eq!(
        (refusal.reason, refusal.limit),
        (RefusalReason::SIZE, MAX_SIZE)
    );
}

#[test]
fn every_refusal_is_one_sentence_with_something_to_try() {
    for reason in 0..=20 {
        let refusal = Refusal {
            reason: RefusalReason(reason),
            value: 12_345,
            limit: 678,
        };
        let text = refusal.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text}");
        assert!(!refusal.hint().is_empty());
        assert_eq!(Refusal::decode(&refusal.encode()), Ok(refusal));
    }
    let unknown = Refusal {
        reason: RefusalReason(999),
        value: 1,
        limit: 2,
    };
    assert!(unknown.to_string().contains("reason 999"));
}

#[test]
fn a_control_frame_that_contradicts_itself_is_refused() {
    let defect = Defect::WrongByte {
        offset: 0,
        expected: 1,
        found: 2,
        wrong: 1,
    };
    let wrong = Control::Verdict {
        sequence: 0,
        operation: Operation::Send,
        defect: Some(defect),
    };
    let right = Control::Report {
        sequence: 0,
        operation: Operation::Send,
        defect: None,
    };
    for (control, place, byte) in [
        (wrong, 10, 0), // no such code
        (wrong, 10, 5), // no such code
        (wrong, 10, 1), // a beginning with a defect
        (wrong, 11, 3), // two operations
        (wrong, 12, 3), // no such status
        (wrong, 13, 2), // expected what was found
        (wrong, 15, 1), // reserved
        (wrong, 39, 0), // a defect of no byte
        (wrong, 12, 0), // bytes without a defect
        (right, 12, 2), // a wrong length that is right
    ] {
        let mut bytes = control.encode();
        assert_ne!(bytes[place], byte);
        bytes[place] = byte;
        assert!(
            Control::decode(&bytes).is_err(),
            "byte {place} = {byte} of {control:?}"
        );
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    prop::sample::select(&Operation::ALL[..])
}

fn defect() -> impl Strategy<Value = Option<Defect>> {
    prop_oneof![
        Just(None),
        (any::<u64>(), any::<u8>(), 1..=u8::MAX, 1..=u64::MAX).prop_map(
            |(offset, expected, flip, wrong)| Some(Defect::WrongByte {
                offset,
                expected,
                found: expected ^ flip,
                wrong
            })
        ),
        (any::<u64>(), 1..=u64::MAX).prop_map(|(expected, flip)| Some(Defect::WrongLength {
            expected,
            found: expected ^ flip
        })),
    ]
}

fn control() -> impl Strategy<Value = Control> {
    prop_oneof![
        any::<u64>().prop_map(|sequence| Control::Begin { sequence }),
        (any::<u64>(), operation(), defect()).prop_map(|(sequence, operation, defect)| {
            Control::Report {
                sequence,
                operation,
                defect,
            }
        }),
        (any::<u64>(), operation(), defect()).prop_map(|(sequence, operation, defect)| {
            Control::Verdict {
                sequence,
                operation,
                defect,
            }
        }),
        (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(sent, received, wrong)| {
            Control::Bye {
                sent,
                received,
                wrong,
            }
        }),
    ]
}

/// Arbitrary bytes, most of them behind a header that lets them in.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let behind_header = (1..=5u8, 0..=80u8, prop::collection::vec(any::<u8>(), 0..80)).prop_map(
        |(kind, length, body)| {
            let mut bytes = b"RPNG\x00\x01".to_vec();
            bytes.extend([kind, 0, 0, length]);
            bytes.extend(body);
            bytes
        },
    );
    prop_oneof![1 => prop::collection::vec(any::<u8>(), 0..256), 4 => behind_header]
}

proptest! {
    #[test]
    fn every_control_frame_comes_back_as_it_was(control in control()) {
        prop_assert_eq!(Control::decode(&control.encode()), Ok(control));
    }

    #[test]
    fn what_is_taken_from_hostile_bytes_is_within_bounds_and_encodes_to_them(bytes in hostile()) {
        if let Ok(hello) = Hello::decode(&bytes, 1 << 20) {
            prop_assert!((1..=1 << 20).contains(&hello.size));
            prop_assert!(hello.interval_ms <= 3_600_000);
            prop_assert!((1..=3_600_000).contains(&hello.deadline_ms));
            prop_assert!(bytes.starts_with(&hello.encode(VERSION)));
        }
        if let Ok(welcome) = Welcome::decode(&bytes) {
            prop_assert!(bytes.starts_with(&welcome.encode()));
        }
        if let Ok(refusal) = Refusal::decode(&bytes) {
            prop_assert!(bytes.starts_with(&refusal.encode()));
        }
        if let Ok(control) = Control::decode(&bytes) {
            prop_assert_eq!(&bytes[..CONTROL_LEN], &control.encode());
        }
    }

    #[test]
    fn a_single_changed_byte_never_reads_as_the_same_frame(
        control in control(), place in 0..CONTROL_LEN, flip in 1..=u8::MAX
    ) {
        let mut bytes = control.encode();
        bytes[place] ^= flip;
        prop_assert_ne!(Control::decode(&bytes), Ok(control));
    }
}
