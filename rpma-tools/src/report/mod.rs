//! What the user reads: lines while it goes on and a summary, or one JSON document at the end.

mod json;
mod output;
mod text;

pub use json::{client_document, loopback_document, server_document};
pub use output::Output;
pub use text::{TextClient, TextServer, client_summary, loopback_summary, server_summary};
