//! How to make a completion queue.

use cm::verbs::{self, Context};

use super::{CompletionQueue, Source};
use crate::channel::CompletionChannel;
use crate::error::Error;

/// How to make a [`CompletionQueue`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CompletionQueueBuilder<'a> {
    context: &'a Context,
    entries: u32,
    channel: Option<&'a CompletionChannel>,
    vector: u32,
    allow_overrun: bool,
}

impl<'a> CompletionQueueBuilder<'a> {
    pub(crate) fn new(context: &'a Context, entries: u32) -> Self {
        Self {
            context,
            entries,
            channel: None,
            vector: 0,
            allow_overrun: false,
        }
    }

    /// Reports to `channel`, together with other queues; to a channel of its own by default.
    pub fn channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some(channel);
        self
    }

    /// The device's interrupt vector, from 0 (the default) to below their number.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Lets connections attach although their operations could overrun the queue, which then loses
    /// completions. Off by default.
    pub fn allow_overrun(mut self, allow: bool) -> Self {
        self.allow_overrun = allow;
        self
    }

    /// Makes the queue.
    ///
    /// # Errors
    /// As [`CompletionQueue::new`]; for a channel of another device and a vector that the device does
    /// not have as well.
    pub fn build(self) -> Result<CompletionQueue, Error> {
        let builder = verbs::CompletionQueue::builder(self.context, self.entries)
            .vector(self.vector)
            .allow_overrun(self.allow_overrun);
        match self.channel {
            Some(channel) => {
                let cq = builder.shared_channel(channel.as_verbs()).build()?;
                CompletionQueue::assemble(cq, Source::Shared(channel.clone()))
            }
            None => {
                let channel = verbs::CompletionChannel::new(self.context)?;
                let cq = builder.own_channel(&channel).build()?;
                CompletionQueue::assemble(cq, Source::Own(channel))
            }
        }
    }
}
