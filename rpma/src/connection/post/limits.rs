//! What the operations of a connection go by, decided when it is made.

use std::cell::Cell;

use cm::verbs::{PostErrorKind, QueuePair};

use crate::error::Error;
use crate::peer::Peer;

/// What one operation may be at most.
#[derive(Debug, Clone, Copy)]
#[expect(unnameable_types, reason = "only sealed traits speak of it")]
pub struct Limits {
    /// The peer's protection domain, as an identity.
    pub(crate) domain: usize,
    /// Bytes of one message.
    pub(crate) max_message: u32,
    /// Bytes copied while posting.
    pub(crate) max_inline: u32,
    /// Spans of one message.
    pub(crate) max_spans: usize,
}

impl Limits {
    /// Those of a queue pair that is bound to its port, or of `peer` where that cannot be told.
    ///
    /// # Errors
    /// The failed query.
    pub(crate) fn of(peer: &Peer, qp: &QueuePair) -> Result<Self, Error> {
        let granted = qp.capabilities();
        Ok(Self {
            domain: peer.domain_identity(),
            max_message: max_message(peer, qp)?,
            max_inline: granted.max_inline_data,
            max_spans: granted.max_send_sge.try_into().unwrap_or(usize::MAX),
        })
    }
}

/// The longest message of the port that the connection goes through.
fn max_message(peer: &Peer, qp: &QueuePair) -> Result<u32, Error> {
    let context = qp.context();
    if context.attributes().port_count() <= 1 {
        return Ok(peer.max_message_size());
    }
    let (now, _) = qp.query()?;
    Ok(context.query_port(now.port())?.max_message_size())
}

/// How many operations without a completion were posted since the last with one.
#[derive(Debug)]
pub(crate) struct Run {
    now: Cell<u32>,
    /// Operations that the send queue takes.
    size: u32,
    /// The longest run: one slot is kept for the operation that ends it.
    most: u32,
}

impl Run {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            now: Cell::new(0),
            size,
            most: size.saturating_sub(1),
        }
    }

    #[inline(always)]
    pub(super) fn now(&self) -> u32 {
        self.now.get()
    }

    #[inline(always)]
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// How long a run of `run` operations is with one more, if the queue can have it.
    ///
    /// A run must end before the queue does: its slots come free only with a completion behind
    /// them.
    ///
    /// # Errors
    /// [`Error::QueueFull`].
    #[inline(always)]
    pub(super) fn longer(&self, run: u32, signaled: bool) -> Result<u32, Error> {
        if signaled {
            return Ok(0);
        }
        if run < self.most {
            Ok(run + 1)
        } else {
            Err(only_with_completion())
        }
    }

    /// The run is `run` now that everything is in the queue.
    #[inline(always)]
    pub(super) fn set(&self, run: u32) {
        self.now.set(run);
    }

    /// Some of what was to be posted is in the queue, or may be, `without` of it without a
    /// completion, and not one is sure to end the run.
    #[cold]
    pub(super) fn set_partly(&self, without: u32) {
        self.now.set(self.now.get().saturating_add(without));
    }
}

#[cold]
fn only_with_completion() -> Error {
    Error::QueueFull {
        reason: "as many operations as fit were posted without asking for a completion; post one \
                 with Signal::Always",
    }
}

/// Whether the error says that the queue has no room, and so exactly what it took.
pub(super) fn is_full(kind: PostErrorKind) -> bool {
    kind == PostErrorKind::QueueFull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_grows_with_what_may_be_queued_and_ends_only_with_what_is() {
        let run = Run::new(4);
        for expected in 1..4 {
            run.set(run.longer(run.now(), false).expect("room"));
            assert_eq!(run.now(), expected);
        }
        let error = run.longer(run.now(), false).expect_err("the last slot");
        assert!(matches!(error, Error::QueueFull { .. }), "{error}");
        // What may be in the queue takes a slot; that a completion comes is not sure.
        run.set_partly(0);
        assert_eq!(run.now(), 3);
        run.set_partly(1);
        assert_eq!(run.now(), 4);
        assert_eq!(run.longer(run.now(), true).expect("with a completion"), 0);
        run.set_partly(u32::MAX);
        assert!(run.longer(run.now(), false).is_err());
    }
}
