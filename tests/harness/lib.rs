//! What the end-to-end tests share: finding out at start what the machine offers, a watchdog and a
//! leak check around every test, child processes with deadlines, and connected pairs.
//!
//! # Environment
//! - `RPMA_TEST_ADDRESS`: an IP address of the RDMA device to use; found from sysfs when unset.
//! - `RPMA_REQUIRE_ALL=1`: what is missing makes the tests that need it fail instead of being ignored.
//! - `RPMA_TEST_FULL=1`: the long tests too, and more rounds of the others.
//! - `RPMA_TEST_NATIVE=only`: only the tests of what newer kernels and libraries have, by `native_` in their names.
//!   `=elsewhere`: of those, the ones that cannot run here are left out, since another run holds them.
//! - `RPMA_TEST_SECOND_HOST`: the address of a second machine, which runs the role `second_host`; without it the tests between
//!   two hosts are left out. `RPMA_TEST_POWER_CUT`: a file; whoever sees it there ends that machine and removes the file.

mod baseline;
mod c;
mod child;
mod device;
mod kernel_log;
mod link;
mod listening;
mod need;
mod pair;
pub mod pattern;
mod suite;
mod watchdog;

pub use libtest_mimic::Failed;

pub use crate::baseline::Baseline;
pub use crate::c::{c_library, c_program};
pub use crate::child::{Child, Finished, command};
pub use crate::device::{TestDevice, device, hardware_counter, second_host};
pub use crate::link::{End, LINK, Link};
pub use crate::listening::{free_rdma_port, wait_for_rdma_listener};
pub use crate::need::{NATIVE_LIBRPMA, Need};
pub use crate::pair::{Pair, SECOND, Targets, WAIT, completed, listen};
pub use crate::suite::{Role, Test, full, role_argument, rounds, run, test};
pub use crate::watchdog::phase;

/// What a test returns: any error that can be printed fails it.
pub type Outcome = Result<(), Failed>;

/// Fails the test with a formatted sentence unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::Failed::from(format!($($text)+)));
        }
    };
}

/// Fails the test unless both values are equal, showing both.
#[macro_export]
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($text:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            return Err($crate::Failed::from(format!(
                "{}: expected {right:?}, found {left:?}",
                format!($($text)+)
            )));
        }
    }};
}
