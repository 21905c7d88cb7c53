//! What only newer kernels and libraries have: flush and atomic write as operations of the device.

use harness::{Need, Outcome, Test, ensure, test};
use rpma::cm::verbs::DeviceCapFlags;

use super::objects::open;

pub(crate) fn tests() -> Vec<Test> {
    vec![test(
        "native_flush_and_atomic_write_are_among_the_capabilities_of_the_device",
        &[Need::Device, Need::Native],
        capabilities,
    )]
}

fn capabilities() -> Outcome {
    let capabilities = open()?.query_extended()?.capabilities();
    let expected = DeviceCapFlags::FLUSH_GLOBAL
        | DeviceCapFlags::FLUSH_PERSISTENT
        | DeviceCapFlags::ATOMIC_WRITE;
    ensure!(
        capabilities.contains(expected),
        "{expected:?} expected, the device has {capabilities:?}"
    );
    Ok(())
}
