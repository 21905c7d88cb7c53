//! Which completion queues a connection uses.

use cm::verbs::{self, Context};

use super::config::ConnectionConfig;
use super::queue_pair::{self, Made};
use crate::channel::CompletionChannel;
use crate::cq::{CompletionQueue, CompletionQueueBuilder};
use crate::error::Error;
use crate::peer::Peer;
use crate::srq::SharedReceiveQueue;

/// Where the operations of a connection complete.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) cq: CompletionQueue,
    /// For receives, if they do not complete in `cq` or with the shared receive queue.
    pub(super) rcq: Option<CompletionQueue>,
    pub(super) srq: Option<SharedReceiveQueue>,
}

impl Queues {
    /// Where receives complete.
    fn for_receives(&self) -> &CompletionQueue {
        let shared = self.srq.as_ref().and_then(SharedReceiveQueue::rcq);
        shared.or(self.rcq.as_ref()).unwrap_or(&self.cq)
    }

    /// The channel that its queues share.
    pub(super) fn shared_channel(&self) -> Result<&CompletionChannel, Error> {
        let channel = self.cq.shared_channel().ok_or(Error::NotSharedChannel)?;
        match &self.rcq {
            Some(rcq) if rcq.shared_channel() != Some(channel) => Err(Error::NotSharedChannel),
            _ => Ok(channel),
        }
    }
}

/// Makes the queue pair of a connection over `context`, and the queues that it needs.
pub(super) fn make(
    peer: &Peer,
    context: &Context,
    config: &ConnectionConfig,
) -> Result<(Made, Queues), Error> {
    if context != peer.device().context() {
        return Err(Error::Invalid(format!(
            "the connection goes through device {}, the peer is of device {}",
            context.name(),
            peer.device().name()
        )));
    }
    let plan = Plan::new(peer, config)?;
    let max = context.attributes().max_cqe();
    let channel = if config.shared_completion_channel() {
        Some(CompletionChannel::on(context)?)
    } else {
        None
    };
    let mut extra = 0;
    loop {
        let build = |size: &Size| {
            let entries = size.entries(extra, max);
            let mut builder = CompletionQueueBuilder::new(context, entries)
                .vector(config.completion_vector())
                .allow_overrun(config.allow_overrun());
            if let Some(channel) = &channel {
                builder = builder.channel(channel);
            }
            builder.build()
        };
        let queues = Queues {
            cq: match &plan.main {
                Source::Given(cq) => cq.clone(),
                Source::Made(size) => build(size)?,
            },
            rcq: match &plan.receive {
                Some(Source::Given(rcq)) => Some(rcq.clone()),
                Some(Source::Made(size)) => Some(build(size)?),
                None => None,
            },
            srq: config.srq().cloned(),
        };
        let built = queue_pair::create(
            peer,
            queues.cq.as_verbs(),
            queues.for_receives().as_verbs(),
            queues.srq.as_ref().map(SharedReceiveQueue::as_verbs),
            config,
        );
        match built {
            Ok(qp) => return Ok((qp, queues)),
            // The device made the queues even larger, and what it takes must fit here as well.
            Err(error) if error.kind() == verbs::ErrorKind::Limit && error.errno().is_none() => {
                if !plan.can_grow(extra, max) {
                    return Err(error.into());
                }
                extra += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Which queues are made, and how large.
struct Plan {
    main: Source,
    /// `None` when receives complete in the main queue, or with the shared receive queue.
    receive: Option<Source>,
}

enum Source {
    Given(CompletionQueue),
    Made(Size),
}

impl Plan {
    fn new(peer: &Peer, config: &ConnectionConfig) -> Result<Self, Error> {
        let invalid = |text: &str| Err(Error::Invalid(text.into()));
        let srq = config.srq();
        if let Some(srq) = srq {
            if srq.peer().domain_identity() != peer.domain_identity() {
                return invalid("the shared receive queue belongs to another peer");
            }
            if config.asks_for_receives() {
                return invalid(
                    "a connection with a shared receive queue has none of its own: do not set \
                     rq_size",
                );
            }
        }
        let with_srq = srq.and_then(SharedReceiveQueue::rcq).is_some();
        if with_srq && config.shared_completion_channel() {
            return invalid(
                "the shared receive queue has a completion queue of its own, which cannot report \
                 to this connection's shared channel: make it with an rcq_size of 0, or do not \
                 share the channel",
            );
        }
        if with_srq && config.rcq().is_some() {
            return invalid(
                "the shared receive queue has a completion queue of its own: receives cannot \
                 complete in the one given with set_rcq as well",
            );
        }
        if config.cq().is_some() && config.asks_for_cq_size() {
            return invalid("both a completion queue and its size are given: set one of them");
        }
        if config.rcq().is_some() && config.rcq_size() > 0 {
            return invalid(
                "both a receive completion queue and its size are given: set one of them",
            );
        }
        let given = config.cq().is_some() || config.rcq().is_some();
        if given && config.shared_completion_channel() {
            return invalid(
                "queues that are given keep their channel: make them on a common \
                 CompletionChannel instead of asking for a shared one",
            );
        }
        let sends = (config.sq_size(), config.sq_size());
        let receives = srq.map_or_else(
            || (config.rq_size(), config.rq_size()),
            |srq| (srq.asked_rq_size(), srq.rq_size()),
        );
        let receive = match config.rcq() {
            _ if with_srq => None,
            Some(rcq) => Some(Source::Given(rcq.clone())),
            None if config.rcq_size() > 0 => {
                let asked = Some(config.rcq_size());
                let size = Size::new("a receive completion queue", asked, &[receives], config)?;
                Some(Source::Made(size))
            }
            None => None,
        };
        let main = match config.cq() {
            Some(cq) => Source::Given(cq.clone()),
            None => {
                let parts = match &receive {
                    None if !with_srq => &[sends, receives][..],
                    _ => &[sends],
                };
                let asked = config.asks_for_cq_size().then(|| config.cq_size());
                Source::Made(Size::new("a completion queue", asked, parts, config)?)
            }
        };
        Ok(Self { main, receive })
    }

    /// Whether one of the queues can still be made larger.
    fn can_grow(&self, extra: u32, max: u32) -> bool {
        let grows = |source: &Source| match source {
            Source::Given(_) => false,
            Source::Made(size) => size.entries(extra + 1, max) > size.entries(extra, max),
        };
        grows(&self.main) || self.receive.as_ref().is_some_and(grows)
    }
}

/// The size of a completion queue.
struct Size {
    /// What the caller asks for, 0 if nothing.
    asked: u32,
    /// What the depths need; 0 when an overrun is allowed.
    room: u32,
}

impl Size {
    /// What is `asked` for, or derived from the queues whose requests complete here: `parts` says of each what it was asked to
    /// take, and what it takes. Only the first is the caller's choice, and refused where it does not fit.
    fn new(
        what: &str,
        asked: Option<u32>,
        parts: &[(u32, u32)],
        config: &ConnectionConfig,
    ) -> Result<Self, Error> {
        let sum = |part: fn((u32, u32)) -> u32| {
            let parts = parts.iter().copied().map(part);
            parts.fold(0, u32::saturating_add)
        };
        let needed = sum(|(asked, _)| asked);
        match asked {
            Some(entries) if config.allow_overrun() => Ok(Self {
                asked: entries,
                room: 0,
            }),
            Some(entries) if entries < needed => Err(Error::Invalid(format!(
                "{what} of {entries} entries can overrun: the depths of its queues need {needed}"
            ))),
            _ => Ok(Self {
                asked: asked.unwrap_or(0),
                room: sum(|(_, granted)| ring(granted)),
            }),
        }
    }

    /// The entries after `extra` attempts that the device found too small.
    fn entries(&self, extra: u32, max: u32) -> u32 {
        let grown = u64::from(self.room) << extra.min(32);
        let grown = u32::try_from(grown).unwrap_or(u32::MAX).min(max);
        // What is asked for above the device's limit is refused there, by name.
        self.asked.max(grown)
    }
}

/// The requests that a queue may take when `asked` are asked for: devices round their rings up, and
/// not all of them say so.
pub(crate) fn ring(asked: u32) -> u32 {
    let slots = asked.saturating_add(1).checked_next_power_of_two();
    slots.unwrap_or(u32::MAX).max(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_counted_as_large_as_a_device_may_make_it() {
        for (asked, slots) in [
            (0, 16),
            (14, 16),
            (15, 16),
            (16, 32),
            (1000, 1024),
            (1024, 2048),
        ] {
            assert_eq!(ring(asked), slots, "{asked}");
        }
        assert_eq!(ring(u32::MAX), u32::MAX);
    }

    #[test]
    fn what_a_device_takes_beyond_what_was_asked_makes_a_queue_larger_and_is_no_mistake() {
        let config = ConnectionConfig::default();
        let size = Size::new("a queue", Some(20), &[(20, 31)], &config).expect("as asked");
        assert_eq!(size.entries(0, 1000), 32);
        let refused = Size::new("a queue", Some(20), &[(21, 31)], &config);
        let error = refused.err().expect("too small for what was asked");
        assert!(error.to_string().contains("need 21"), "{error}");
    }
}
