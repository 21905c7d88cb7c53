//! Descriptors, as librpma reads them.

use std::fmt::Write;
use std::process::Command;

use harness::{Child, Need, Outcome, Test, WAIT, c_program, ensure_eq, test};
use rpma::{PeerConfig, RemoteRegion};

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "librpma_and_we_make_the_same_of_every_descriptor",
        &[Need::Librpma],
        the_same,
    )]
}

/// Address, length, key and usage in the order of the wire.
fn region(addr: u64, len: u64, key: u32, usage: u8) -> Vec<u8> {
    let mut bytes = [addr.to_le_bytes(), len.to_le_bytes()].concat();
    bytes.extend(key.to_le_bytes());
    bytes.push(usage);
    bytes
}

fn the_same() -> Outcome {
    let golden = region(
        0x0102_0304_0506_0708,
        0x1112_1314_1516_1718,
        0xa1a2_a3a4,
        0x1f,
    );
    let mut regions = vec![golden.clone(), golden[..20].to_vec(), golden[..1].to_vec()];
    regions.extend((0..8).map(|bit| region(0x7f00_0000_1000, 4096, 7, 1 << bit)));
    regions.push(region(0x7f00_0000_1000, 4096, 7, 0));
    regions.push([golden, vec![0xff; 9]].concat());
    let configs = [&[0][..], &[1], &[2], &[0x80], &[0xff], &[1, 0]];

    let mut program = Command::new(c_program("rpma/descriptor"));
    let mut expected = Vec::new();
    for bytes in &regions {
        program.args(["region", &hex(bytes)]);
        expected.push(match RemoteRegion::from_descriptor(bytes) {
            Ok(region) => {
                // A number that is 0 is printed without the prefix.
                let types = match region.flush_types().bits() {
                    0 => "0".to_owned(),
                    bits => format!("{bits:#x}"),
                };
                format!("{:#x} {types}", region.len())
            }
            Err(error) => error.code().to_string(),
        });
    }
    for bytes in configs {
        program.args(["config", &hex(bytes)]);
        expected.push(match PeerConfig::from_descriptor(bytes) {
            Ok(config) => {
                let again = hex(&config.descriptor());
                format!("{} {again}", u8::from(config.direct_write_to_pmem()))
            }
            Err(error) => error.code().to_string(),
        });
    }
    let finished = Child::start(&mut program)?.finish(WAIT)?.success()?;
    let found: Vec<&str> = finished.stdout.lines().collect();
    ensure_eq!(found, expected, "what librpma reads");
    ensure_eq!(found[0], "0x1112131415161718 0x10", "the first");
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
