//! The command line: what the user wrote, turned into checked values.
//!
//! Nothing here touches a device. A value that can be judged without one is judged here, and what
//! is wrong with it is said with the option, the value and what is allowed.

pub mod address;
pub mod ping;
pub mod units;
