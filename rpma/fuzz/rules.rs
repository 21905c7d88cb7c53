//! What holds for any bytes that a peer sends. The fuzz targets look for bytes that break it, and the
//! tests try some of each kind.

use rpma::{PeerConfig, PrivateData, RemoteRegion};

/// A region's descriptor is refused, or means what its bytes say and never more.
pub(crate) fn region_descriptor(bytes: &[u8]) {
    let region = match RemoteRegion::from_descriptor(bytes) {
        Ok(region) => region,
        Err(error) => {
            let number = |from: usize| {
                let le = bytes[from..from + 8].try_into().expect("8 bytes");
                u64::from_le_bytes(le)
            };
            assert!(
                bytes.len() < 21 || bytes[20] == 0 || number(0).checked_add(number(8)).is_none(),
                "{bytes:?}: {error}"
            );
            assert_eq!(error.code(), -100_004);
            return;
        }
    };
    assert_eq!(region.descriptor(), bytes[..21]);
    let len = region.len();
    assert_eq!(region.as_span().len(), len);
    assert!(region.span(len..).expect("the end").is_empty());
    assert_eq!(region.span(len / 2..).expect("a part").len(), len - len / 2);
    if let Some(outside) = len.checked_add(1) {
        assert!(region.span(..outside).is_err());
        assert!(region.span(outside..).is_err());
    }
}

/// A peer configuration is refused only when there is no byte, and its byte is 0 or not.
pub(crate) fn peer_config_descriptor(bytes: &[u8]) {
    match (PeerConfig::from_descriptor(bytes), bytes) {
        (Ok(config), [first, ..]) => {
            assert_eq!(config.direct_write_to_pmem(), *first != 0);
            assert_eq!(config.descriptor(), [u8::from(*first != 0)]);
        }
        (Err(error), []) => assert_eq!(error.code(), -100_004),
        (result, _) => panic!("{bytes:?}: {result:?}"),
    }
}

/// Private data with their length inside are what was sent, whatever the padding.
pub(crate) fn private_data(bytes: &[u8]) {
    match PrivateData::unpack(bytes) {
        Ok(None) => assert!(bytes.first().is_none_or(|&len| len == 0)),
        Ok(Some(data)) => {
            assert_eq!(data.len(), usize::from(bytes[0]));
            if let Ok(again) = PrivateData::with_length(data) {
                assert_eq!(again.as_bytes(), &bytes[..=data.len()]);
            }
        }
        Err(error) => {
            assert!(bytes.len() <= usize::from(bytes[0]), "{bytes:?}: {error}");
            assert_eq!(error.code(), -100_004);
        }
    }
}
