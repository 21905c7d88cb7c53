//! The bytes that the two ends of a ping exchange.
//!
//! Everything is encoded field by field in big-endian order, so it is the same from every
//! compiler and machine. Every frame begins with the same ten bytes: the magic `RPNG`, the
//! version (2 bytes), the kind (1), a zero, and the length of the whole frame (2). That header and
//! the [`Refusal`] never change, so that two versions can always tell each other why they part.
//!
//! * [`Hello`]: the client's parameters, in the private data of its connection request.
//! * [`Welcome`]: the server's two regions, in the private data of the accept.
//! * [`Refusal`]: why not, in the private data of the reject.
//! * [`Control`]: what goes over the connection beside the data.
//!
//! What a peer sent is hostile until one of the `decode` functions has taken it.

mod control;
mod frame;
mod handshake;

pub use control::{CONTROL_LEN, Control};
pub use frame::{VERSION, WireError};
pub use handshake::{Hello, Refusal, RefusalReason, Welcome};
