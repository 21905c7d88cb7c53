//! The numbers that a report prints.

mod summary;

pub use summary::Summary;
