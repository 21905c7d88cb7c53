//! Lookups of names and services.

use cm::verbs::sys::fake::control;
use cm::verbs::{ErrorKind, QpType};
use cm::{AddressHints, Error, PortSpace, address_info};

#[test]
fn a_target_or_an_address_to_listen_at_is_found() {
    let fake = control::session();
    let mut hints = AddressHints::default();
    hints.source = Some("192.0.2.1:0".parse().expect("an address"));
    let found = address_info(Some("192.0.2.9"), Some("7204"), &hints).expect("found");
    let [info] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(info.target, "192.0.2.9:7204".parse().ok());
    assert_eq!(info.source, hints.source);
    assert_eq!(
        (info.port_space, info.qp_type),
        (PortSpace::TCP, QpType::RC)
    );

    let mut hints = AddressHints::default();
    (hints.passive, hints.port_space) = (true, Some(PortSpace::UDP));
    let found = address_info(None, Some("7"), &hints).expect("found");
    assert_eq!(
        (found[0].source, found[0].target),
        ("0.0.0.0:7".parse().ok(), None)
    );
    assert_eq!(
        (found[0].port_space, found[0].qp_type),
        (PortSpace::UDP, QpType::UD)
    );

    hints.ipv6 = Some(true);
    let found = address_info(Some("2001:db8::1"), None, &hints).expect("found");
    assert_eq!(found[0].source, "[2001:db8::1]:0".parse().ok());
    fake.finish();
}

#[test]
fn the_resolvers_codes_are_told_from_errnos() {
    let fake = control::session();
    let hints = AddressHints::default();
    for (code, text) in [
        (libc::EAI_NONAME, "no such name"),
        (libc::EAI_AGAIN, "do not answer now"),
        (libc::EAI_FAIL, "refuse to answer"),
        (libc::EAI_NODATA, "no address of this kind"),
        (-99, "code -99"),
    ] {
        fake.fail("rdma_getaddrinfo", 0, code);
        let error = address_info(Some("peer"), Some("7"), &hints).expect_err("made to fail");
        assert!(error.to_string().contains(text), "{error}");
        assert!(error.to_string().contains("peer 7"), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("getent")));
        assert!(matches!(error, Error::NameNotResolved { code: told, .. } if told == code));
    }
    fake.fail("rdma_getaddrinfo", 0, libc::ENOMEM);
    match address_info(Some("peer"), None, &hints) {
        Err(Error::Call(error)) => assert_eq!(error.errno(), Some(libc::ENOMEM)),
        other => panic!("{other:?}"),
    }
    let error = address_info(Some("nobody.example"), None, &hints).expect_err("no name");
    assert!(matches!(error, Error::NameNotResolved { .. }), "{error}");
    fake.finish();
}

#[test]
fn what_is_no_question_is_refused_before_c() {
    let fake = control::session();
    let hints = AddressHints::default();
    for (node, service) in [(None, None), (Some("a\0b"), None), (None, Some("\0"))] {
        match address_info(node, service, &hints) {
            Err(Error::Call(error)) => assert_eq!(error.kind(), ErrorKind::InvalidArgument),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(fake.count("rdma_getaddrinfo"), 0);
    fake.finish();
}
