//! What `rpma-ping` is made of: the command line, the session between its two ends, the rounds,
//! the numbers and the reports.
//!
//! The crate exists for its binary; the library half is there so that every part can be tested
//! without a device. The parts follow one another: [`cli`] parses and validates into plain
//! structures, [`ping`] runs, [`measure`] keeps the numbers, [`report`] formats them.
//! [`session`] holds the bytes that the two ends exchange, and nothing else knows them.

pub mod cli;
pub mod failure;
pub mod measure;
pub mod ping;
pub mod report;
pub mod session;
pub mod stop;
