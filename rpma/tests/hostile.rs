//! Bytes that a peer may send, and that nobody promised anything of.

#[path = "../fuzz/rules.rs"]
mod rules;

use proptest::prelude::*;

#[test]
fn any_21_bytes_are_a_region_or_refused() {
    // Faster than a strategy: a million descriptors, from a fixed start.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = [0; 24];
    for round in 0..1_000_000_u32 {
        for part in bytes.chunks_exact_mut(8) {
            part.copy_from_slice(&number().to_le_bytes());
        }
        // Half of them with a length that ends inside of the address space.
        if round % 2 == 0 {
            bytes[15] = 0;
        }
        rules::region_descriptor(&bytes[..21]);
    }
}

#[test]
fn any_byte_is_a_peer_configuration() {
    rules::peer_config_descriptor(&[]);
    for byte in 0..=u8::MAX {
        rules::peer_config_descriptor(&[byte]);
        rules::peer_config_descriptor(&[byte, !byte]);
    }
}

proptest! {
    #[test]
    fn bytes_of_any_length_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        rules::region_descriptor(&bytes);
        rules::peer_config_descriptor(&bytes);
        rules::private_data(&bytes);
    }

    #[test]
    fn private_data_arrive_as_they_were_sent(
        data in prop::collection::vec(any::<u8>(), 0..255),
        padding in 0_usize..200,
    ) {
        let mut bytes = rpma::PrivateData::with_length(&data).expect("fits").as_bytes().to_vec();
        bytes.resize(bytes.len() + padding, 0);
        rules::private_data(&bytes);
        let found = rpma::PrivateData::unpack(&bytes).expect("whole");
        prop_assert_eq!(found.unwrap_or_default(), &data[..]);
    }

    /// Of the parts that make a difference: ends of the address space and of the region.
    #[test]
    fn a_region_at_the_end_of_the_address_space_has_no_byte_past_it(
        before_end in 0_u64..1 << 20,
        len in 0_u64..1 << 21,
        usage in any::<u8>(),
    ) {
        let mut bytes = [0; 21];
        bytes[..8].copy_from_slice(&(u64::MAX - before_end).to_le_bytes());
        bytes[8..16].copy_from_slice(&len.to_le_bytes());
        bytes[20] = usage;
        rules::region_descriptor(&bytes);
    }
}
