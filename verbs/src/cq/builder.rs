//! How to make a completion queue.

use std::ptr;
use std::sync::Arc;

use rdma_core_sys as sys;

use super::CompletionQueue;
use super::channel::{CompletionChannel, EventCount};
use super::extended_completion::CompletionFields;
use super::extended_queue::{self, ExtendedCompletionQueue};
use super::inner::{CqInner, CqParents};
use crate::context::Context;
use crate::error::{Error, ErrorKind, from_pointer};
use crate::owned::Owned;

/// How to make a [`CompletionQueue`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct CompletionQueueBuilder<'a> {
    context: &'a Context,
    entries: u32,
    channel: Option<(&'a CompletionChannel, bool)>,
    vector: u32,
    allow_overrun: bool,
}

impl<'a> CompletionQueueBuilder<'a> {
    pub(super) fn new(context: &'a Context, entries: u32) -> Self {
        Self {
            context,
            entries,
            channel: None,
            vector: 0,
            allow_overrun: false,
        }
    }

    /// Reports events on `channel`, which this queue has for itself: [`CompletionQueue::wait`] works.
    pub fn own_channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some((channel, false));
        self
    }

    /// Reports events on `channel`, which other queues use as well: wait on the channel.
    pub fn shared_channel(mut self, channel: &'a CompletionChannel) -> Self {
        self.channel = Some((channel, true));
        self
    }

    /// The interrupt vector, from 0 (the default) to below the device's number of vectors.
    pub fn vector(mut self, vector: u32) -> Self {
        self.vector = vector;
        self
    }

    /// Lets queue pairs attach although their requests could overrun this queue, which then loses
    /// completions. Off by default.
    pub fn allow_overrun(mut self, allow: bool) -> Self {
        self.allow_overrun = allow;
        self
    }

    /// Creates the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Limit`] when `entries` is 0 or above the device's limit; ENOMEM when memory may
    /// not be locked.
    #[doc(alias = "ibv_create_cq")]
    pub fn build(self) -> Result<CompletionQueue, Error> {
        self.build_with("ibv_create_cq", |context, new| {
            let [entries, vector] = [new.cqe, new.comp_vector].map(u32::cast_signed);
            // SAFETY: as `build_with` says, and both numbers were made from positive ones of C.
            unsafe { sys::ibv_create_cq(context, entries, new.cq_context, new.channel, vector) }
        })
    }

    /// Creates the queue so that its completions tell `fields`.
    ///
    /// # Errors
    /// Those of [`build`](Self::build); [`ErrorKind::Unsupported`] where the device has no extended
    /// queues, or none that tell all of `fields`.
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn build_extended(
        self,
        fields: CompletionFields,
    ) -> Result<ExtendedCompletionQueue, Error> {
        let explain = |error: Error| match error.kind() {
            ErrorKind::Unsupported => error.with_hint(
                "ask for fewer fields: many devices have no timestamps, and some no extended \
                 completion queues at all",
            ),
            _ => error,
        };
        let queue = self.build_with("ibv_create_cq_ex", |context, new| {
            new.wc_flags = fields.bits();
            // SAFETY: as `build_with` says.
            unsafe { extended_queue::create(context, new) }
        });
        let queue = queue.map_err(|error| {
            let detail = format!("fields {fields:?}");
            explain(match error.errno() {
                Some(_) => error.with_detail(detail),
                None => error,
            })
        })?;
        // SAFETY: the queue was made so just now.
        unsafe { ExtendedCompletionQueue::new(queue, fields) }.map_err(explain)
    }

    /// Creates the queue by `create`, which gets an open context and attributes that name live
    /// objects of it, and returns the C queue or NULL with errno. The context pointer is only ever
    /// handed back to `CompletionChannel::try_next_event`, for which it lives as long as the queue.
    fn build_with(
        self,
        verb: &'static str,
        create: impl FnOnce(*mut sys::ibv_context, &mut sys::ibv_cq_init_attr_ex) -> *mut sys::ibv_cq,
    ) -> Result<CompletionQueue, Error> {
        let raw_context = self.context.raw_checked(verb)?;
        let origin = self.context.origin();
        if self
            .channel
            .is_some_and(|(c, _)| c.context() != self.context)
        {
            return Err(Error::refused(
                verb,
                ErrorKind::InvalidArgument,
                "the completion channel is of another device, or of the same device opened again",
            ));
        }
        let max = self.context.attributes().max_cqe();
        let entries = self.entries;
        if i32::try_from(entries).is_err() || !(1..=max).contains(&entries) {
            return Err(Error::refused(
                verb,
                ErrorKind::Limit,
                format!(
                    "{entries} entries asked, device {} allows 1 to {max}",
                    self.context.name()
                ),
            ));
        }
        let vectors = {
            // SAFETY: the context is open; the field is set when it was opened.
            let count = unsafe { (*raw_context).num_comp_vectors };
            u32::try_from(count).unwrap_or(0).max(1)
        };
        if self.vector >= vectors {
            return Err(Error::refused(
                verb,
                ErrorKind::Limit,
                format!("vector {} asked, the device has {vectors}", self.vector),
            ));
        }
        let events = Arc::new(EventCount::new());
        let channel = self.channel.map(|(channel, _)| channel.clone());
        let raw_channel = channel
            .as_ref()
            .map_or(ptr::null_mut(), CompletionChannel::as_raw);
        let mut attributes = sys::ibv_cq_init_attr_ex {
            cqe: entries,
            cq_context: Arc::as_ptr(&events).cast_mut().cast(),
            channel: raw_channel,
            comp_vector: self.vector,
            ..Default::default()
        };
        let raw = create(raw_context, &mut attributes);
        let raw =
            from_pointer(verb, raw).map_err(|e| e.with_detail(format!("{entries} entries")))?;
        let id = events.queue;
        let parents = CqParents {
            events,
            channel,
            context: self.context.clone(),
        };
        // SAFETY: the queue was just made; its parents are all that it refers to.
        let owned = unsafe { Owned::new(raw, origin, parents) };
        Ok(CompletionQueue {
            inner: Arc::new(CqInner::new(owned, self.allow_overrun)),
            id,
            shared: self.channel.is_some_and(|(_, shared)| shared),
        })
    }
}
