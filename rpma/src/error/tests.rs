//! Each failure says what it is.

use super::*;

#[test]
fn every_kind_has_a_number_of_librpma() {
    let errors = [
        (Error::Invalid("x".into()), -100_004),
        (Error::WrongPeer, -100_004),
        (Error::SharedChannel, -100_008),
        (Error::NotSharedChannel, -100_009),
        (Error::QueueFull { reason: "full" }, -100_007),
        (
            Error::Unsupported {
                what: "a",
                why: "b",
            },
            -100_001,
        ),
        (
            verbs::Error::from_errno("ibv_reg_mr", libc::ENOMEM).into(),
            -100_003,
        ),
        (
            verbs::Error::from_errno("ibv_reg_mr", libc::EFAULT).into(),
            -100_002,
        ),
        (
            cm::Error::TimedOut {
                what: "waiting".into(),
            }
            .into(),
            -100_006,
        ),
    ];
    for (error, code) in errors {
        assert_eq!(error.code(), code, "{error}");
    }
}

#[test]
fn a_post_before_the_connection_stands_says_so() {
    let kind = PostErrorKind::State(verbs::QpState::INIT);
    let error = Error::from(PostError { kind, queued: 0 });
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    assert!(
        error
            .hint()
            .is_some_and(|hint| hint.contains("established"))
    );
}

#[test]
fn too_many_open_files_is_no_missing_device() {
    let path = "/dev/infiniband/rdma_cm";
    for (errno, kind, word) in [
        (libc::ENOENT, ErrorKind::NoDevice, "modprobe"),
        (libc::EACCES, ErrorKind::PermissionDenied, "permission"),
        (libc::EMFILE, ErrorKind::Provider, "ulimit -n"),
    ] {
        let error = Error::from(cm::Error::NoConnectionManager { path, errno });
        assert_eq!(error.kind(), kind);
        assert!(
            error.hint().is_some_and(|hint| hint.contains(word)),
            "{error}"
        );
    }
}

/// One of each variant, with an errno where it has one.
fn of_every_variant(errno: i32) -> Vec<Error> {
    let source = || io::Error::from_raw_os_error(errno);
    let post = |kind| PostError { kind, queued: 0 };
    let (offset, len, size) = (1, 2, 3);
    vec![
        verbs::Error::from_errno("ibv_reg_mr", errno).into(),
        cm::Error::from(verbs::Error::from_errno("rdma_connect", errno)).into(),
        post(PostErrorKind::Provider(errno)).into(),
        Error::PartlyPosted {
            queued: 1,
            of: 2,
            error: post(PostErrorKind::Provider(errno)),
        },
        Error::Memory {
            len: 5,
            source: source(),
        },
        Error::HugePages {
            len: 5,
            page: 4096,
            free: Some(1),
            source: source(),
        },
        Error::MapFile {
            offset,
            len,
            source: source(),
        },
        Error::Persist {
            offset,
            len,
            source: source(),
        },
        // From here on without one.
        post(PostErrorKind::SharedReceives).into(),
        Error::QueueFull { reason: "full" },
        Error::OutOfBounds {
            what: "file",
            offset,
            len,
            size,
        },
        Error::LengthMismatch { dst: 1, src: 2 },
        Error::MessageTooLong { len, max: 1 },
        Error::WrongPeer,
        Error::UsageForbids {
            operation: "send",
            side: "local",
            needed: Usage::SEND,
            given: Usage::RECV,
        },
        Error::NotOneWord {
            operation: "atomic write",
            addr: 1,
            len,
        },
        Error::TooManySpans { given: 2, max: 1 },
        Error::Unsupported {
            what: "a",
            why: "b",
        },
        Error::SharedChannel,
        Error::NotSharedChannel,
        Error::NoEventDescriptor,
        Error::Invalid("x".into()),
        Error::ReadOnly { operation: "store" },
    ]
}

#[test]
fn every_error_has_words_of_its_own_and_its_errno_and_never_success() {
    for errno in (1..=133).chain([4095]) {
        let all = of_every_variant(errno);
        // What succeeds afterwards changes nothing.
        std::fs::metadata("/").expect("there");
        let texts: Vec<_> = all.iter().map(ToString::to_string).collect();
        for (n, (error, text)) in all.iter().zip(&texts).enumerate() {
            let debug = format!("{error:?}");
            for text in [text, &debug] {
                assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
                assert!(!text.contains("Success"), "{text}");
                assert!(!text.to_lowercase().contains("error 0"), "{text}");
            }
            assert!(!texts[..n].contains(text), "twice: {text}");
            assert!((-100_009..=-100_000).contains(&error.code()), "{text}");
            let says = [format!("(errno {errno})"), format!("(os error {errno})")];
            // A full queue has words of its own for what the provider says.
            let has_errno = n < 8;
            assert_eq!(error.errno(), has_errno.then_some(errno), "{text}");
            let said = says.iter().any(|says| text.contains(says));
            assert_eq!(said, has_errno, "{text}");
        }
    }
}

#[test]
fn a_failure_without_an_errno_or_with_a_negated_one_is_no_success_either() {
    let error = Error::from(verbs::Error::from_errno("ibv_create_cq", 0));
    assert_eq!(error.to_string(), "ibv_create_cq failed");
    assert_eq!((error.errno(), error.code()), (None, -100_002));
    let error = Error::from(verbs::Error::from_errno("ibv_create_cq", -22));
    assert!(error.to_string().contains("(errno 22)"), "{error}");
    assert_eq!(error.errno(), Some(22));
    let peer = std::net::SocketAddr::from(([192, 0, 2, 1], 7));
    for (status, errno) in [
        (-110, Some(110)),
        (8, None),
        (0, None),
        (i32::MIN, Some(i32::MAX)),
    ] {
        let error = Error::from(cm::Error::Unreachable { peer, status });
        assert_eq!(error.errno(), errno, "{error}");
    }
}
