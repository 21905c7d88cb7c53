//! Settings, their defaults and their limits.

use super::*;

#[test]
fn the_completion_queue_holds_everything_by_default() {
    let mut config = ConnectionConfig::default();
    assert_eq!(
        (config.sq_size(), config.rq_size(), config.cq_size()),
        (10, 10, 20)
    );
    config.set_sq_size(100).set_rq_size(u32::MAX);
    assert_eq!(config.cq_size(), u32::MAX);
    // Receives complete elsewhere.
    config.set_rcq_size(1);
    assert_eq!(config.cq_size(), 100);
    config.set_cq_size(7);
    assert_eq!(config.cq_size(), 7);
}

#[test]
fn the_defaults_are_those_documented() {
    let config = ConnectionConfig::default();
    let retries = (config.retry_count(), config.rnr_retry());
    assert_eq!(
        retries,
        (ConnectionConfig::RETRY_COUNT, ConnectionConfig::RNR_RETRY)
    );
    let times = (config.ack_timeout(), config.min_rnr_timer());
    let documented = (
        ConnectionConfig::ACK_TIMEOUT,
        ConnectionConfig::MIN_RNR_TIMER,
    );
    assert_eq!(times, documented);
    assert_eq!(config.timeout(), ConnectionConfig::TIMEOUT);
    assert_eq!(config.rcq_size(), 0);
    assert!(!config.shared_completion_channel());
    assert!(config.srq().is_none() && config.cq().is_none() && config.rcq().is_none());
    assert_eq!(
        (config.initiator_depth(), config.responder_resources()),
        (255, 255)
    );
}

#[test]
fn settings_read_back_as_they_were_set() {
    let mut config = ConnectionConfig::default();
    let source = "192.0.2.1:0".parse().expect("an address");
    config
        .set_timeout(Duration::from_millis(1))
        .set_cq_size(6)
        .set_rcq_size(3)
        .set_sq_size(7)
        .set_rq_size(8)
        .set_shared_completion_channel(true)
        .set_completion_vector(2)
        .set_allow_overrun(true)
        .set_initiator_depth(4)
        .set_responder_resources(5)
        .set_source_address(Some(source))
        .set_type_of_service(Some(32));
    assert_eq!(config.timeout(), Duration::from_millis(1));
    assert_eq!((config.cq_size(), config.rcq_size()), (6, 3));
    assert_eq!((config.sq_size(), config.rq_size()), (7, 8));
    assert_eq!(config.completion_vector(), 2);
    assert!(config.shared_completion_channel() && config.allow_overrun());
    assert_eq!(
        (config.initiator_depth(), config.responder_resources()),
        (4, 5)
    );
    assert_eq!(config.source_address(), Some(source));
    assert_eq!(config.type_of_service(), Some(32));
    assert_eq!(config, config.clone());
    assert_ne!(config, ConnectionConfig::default());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let mut config = ConnectionConfig::default();
    let error = config.set_retry_count(8).expect_err("too large");
    assert_eq!(error.to_string(), "retry count 8 is above its limit 7");
    assert!(config.set_ack_timeout(0).is_err());
    assert!(config.set_ack_timeout(32).is_err());
    assert!(config.set_min_rnr_timer(32).is_err());
    assert!(config.set_rnr_retry(7).is_ok());
}
