//! Bytes of the other side, whatever they are: decoded without a fault, and only if nothing about
//! them is wrong.

use proptest::prelude::*;
use rpma::gpspm::{Announcement, FlushRequest, FlushResponse};

proptest! {
    #[test]
    fn a_request_that_is_decoded_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(request) = FlushRequest::decode(&bytes) {
            prop_assert_eq!(request.encode().to_vec(), bytes);
        }
    }

    #[test]
    fn only_the_tags_and_the_length_decide(
        values in any::<[u64; 3]>(), at in 0..27_usize, flip in 1..=u8::MAX,
    ) {
        let [offset, length, op_context] = values;
        let request = FlushRequest { offset, length, op_context };
        let mut bytes = request.encode();
        prop_assert_eq!(FlushRequest::decode(&bytes).expect("our own"), request);
        bytes[at] ^= flip;
        let decoded = FlushRequest::decode(&bytes);
        prop_assert_eq!(decoded.is_err(), at % 9 == 0);
        prop_assert!(decoded.is_err() || decoded.is_ok_and(|other| other != request));
    }

    #[test]
    fn a_response_that_is_decoded_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..32), number: u64) {
        if let Ok(response) = FlushResponse::decode(&bytes) {
            prop_assert_eq!(response.encode().to_vec(), bytes);
        }
        let own = FlushResponse { op_context: number };
        prop_assert_eq!(FlushResponse::decode(&own.encode()).expect("our own"), own);
    }

    #[test]
    fn a_range_that_is_taken_lies_in_the_region(offset: u64, length: u64, size: u64) {
        let request = FlushRequest { offset, length, op_context: 0 };
        let inside = u128::from(offset) + u128::from(length) <= u128::from(size);
        match request.within(size) {
            Ok(range) => {
                prop_assert!(inside);
                prop_assert!(range.start == offset && range.end <= size && range.end - range.start == length);
            }
            Err(_) => prop_assert!(!inside),
        }
    }

    #[test]
    fn an_announcement_is_decoded_without_a_fault(
        mut bytes in prop::collection::vec(any::<u8>(), 0..64), plausible: bool,
    ) {
        if plausible && bytes.len() > 4 {
            bytes[2] = 21;
            bytes[3] &= 1;
        }
        if let Ok(found) = Announcement::decode(&bytes) {
            prop_assert!(bytes.len() >= Announcement::SIZE);
            prop_assert!(u64::from(found.data_offset) <= found.region.len());
            prop_assert_eq!(found.config.is_some(), bytes[3] == 1);
            prop_assert!(found.region.span(..).is_ok());
        }
    }
}
