//! Completion channels that several queues share.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cm::Deadline;
use cm::verbs::{self, Context, CqId, wait_for};

use crate::cq::{self, CompletionQueue, NAP, no_completion};
use crate::error::Error;
use crate::peer::Peer;

/// Where any number of completion queues report that they have something. `Send` and `Sync`; cloning gives
/// another handle.
///
/// Queues are put on it when they are made
/// ([`CompletionQueueBuilder::channel`](crate::CompletionQueueBuilder::channel)), and
/// [`wait`](Self::wait) says which one to poll.
///
/// The descriptor ([`AsFd`]) becomes readable with an event: call [`try_wait`](Self::try_wait), and drain the
/// queue that it names, until it names none, then sleep.
///
/// ```no_run
/// # fn main() -> Result<(), rpma::Error> {
/// # let peer = rpma::Peer::new(&rpma::Device::local([192, 0, 2, 1].into())?)?;
/// use std::time::Duration;
/// use rpma::{CompletionChannel, CompletionQueue, ConnectionConfig};
///
/// let channel = CompletionChannel::new(&peer)?;
/// let queue = CompletionQueue::builder(&peer, 256).channel(&channel).build()?;
/// let mut config = ConnectionConfig::default();
/// // All connections made with it complete there.
/// config.set_cq(Some(&queue));
/// // …
/// let ready = channel.wait(Duration::from_secs(1))?;
/// while let Some(completion) = ready.poll_one()? {
///     println!("{} of {}", completion.op_context(), completion.qp_num());
/// }
/// # Ok(())
/// # }
/// ```
#[doc(alias = "rpma_conn_wait")]
#[derive(Clone)]
pub struct CompletionChannel(Arc<Inner>);

struct Inner {
    users: Mutex<Users>,
    channel: verbs::CompletionChannel,
}

#[derive(Default)]
struct Users {
    all: HashMap<CqId, Weak<cq::Inner>>,
    /// Those that were named by a wait and may not be drained since. Each stands here once.
    named: VecDeque<Weak<cq::Inner>>,
}

impl CompletionChannel {
    /// A channel for queues of the peer's device.
    ///
    /// # Errors
    /// The failed call, as when the process has no descriptor left.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn new(peer: &Peer) -> Result<Self, Error> {
        Self::on(peer.device().context())
    }

    pub(crate) fn on(context: &Context) -> Result<Self, Error> {
        Ok(Self(Arc::new(Inner {
            users: Mutex::default(),
            channel: verbs::CompletionChannel::new(context)?,
        })))
    }

    /// Waits until one of its queues has something to poll, and says which. It may turn out to be
    /// nothing, when the completion was polled before. A queue that was not drained is named again,
    /// in turn with others.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<CompletionQueue, Error> {
        self.wait_for(timeout, |_| true)
    }

    /// As [`wait`](Self::wait), without waiting.
    ///
    /// # Errors
    /// The failed call.
    pub fn try_wait(&self) -> Result<Option<CompletionQueue>, Error> {
        self.ready(|_| true)
    }

    /// Waits for one of the queues that `wanted` names. Others are left for those who wait for
    /// them, who find them within 100 ms.
    pub(crate) fn wait_for(
        &self,
        timeout: Duration,
        wanted: impl Fn(CqId) -> bool,
    ) -> Result<CompletionQueue, Error> {
        if let Some(ready) = self.ready(&wanted)? {
            return Ok(ready);
        }
        let deadline = Deadline::after(timeout);
        loop {
            let over = deadline.has_passed();
            let nap = deadline.min(Deadline::after(NAP));
            match wait_for(self.as_fd(), nap, || self.ready(&wanted))? {
                Some(ready) => return Ok(ready),
                None if over => return Err(no_completion()),
                None => {}
            }
        }
    }

    /// One of the queues that `wanted` names, if one has something.
    pub(crate) fn ready(
        &self,
        wanted: impl Fn(CqId) -> bool,
    ) -> Result<Option<CompletionQueue>, Error> {
        loop {
            // One event before each look at those named before, so that neither starves.
            let event = self.0.channel.try_next_event()?;
            if let Some(event) = event {
                self.note(event.queue())?;
            }
            match self.next_named(&wanted) {
                Some(ready) => return Ok(Some(CompletionQueue::from_inner(ready))),
                None if event.is_none() => return Ok(None),
                None => {}
            }
        }
    }

    /// Notes that a queue had an event.
    fn note(&self, id: CqId) -> Result<(), Error> {
        // Upgraded under the lock and dropped outside of it: the last handle takes the lock.
        let user = self.users().all.get(&id).and_then(Weak::upgrade);
        // Otherwise the queue is gone.
        let Some(user) = user else { return Ok(()) };
        user.reported()?;
        let mut users = self.users();
        let is_there = |other: &Weak<cq::Inner>| other.as_ptr() == Arc::as_ptr(&user);
        if !users.named.iter().any(is_there) {
            users.named.push_back(Arc::downgrade(&user));
        }
        drop(users);
        Ok(())
    }

    /// The next queue that was not drained since it was named, of those that `wanted` names.
    fn next_named(&self, wanted: impl Fn(CqId) -> bool) -> Option<Arc<cq::Inner>> {
        // Dropped outside of the lock, which the last handle takes.
        let mut held = Vec::new();
        let mut users = self.users();
        let mut found = None;
        for _ in 0..users.named.len() {
            let Some(weak) = users.named.pop_front() else {
                break;
            };
            let Some(user) = weak.upgrade() else { continue };
            if user.has_more() {
                users.named.push_back(weak);
                if found.is_none() && wanted(user.id()) {
                    found = Some(user);
                    break;
                }
            }
            held.push(user);
        }
        drop(users);
        found
    }

    /// Lets events find a queue.
    pub(crate) fn know(&self, user: &Arc<cq::Inner>) {
        self.users().all.insert(user.id(), Arc::downgrade(user));
    }

    pub(crate) fn forget(&self, id: CqId) {
        self.users().all.remove(&id);
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.0.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel as verbs has it. Its events must not be taken there.
    pub fn as_verbs(&self) -> &verbs::CompletionChannel {
        &self.0.channel
    }
}

/// Handles of the same channel are equal.
impl PartialEq for CompletionChannel {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CompletionChannel {}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.channel.as_fd()
    }
}

impl fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionChannel")
            .field("queues", &self.users().all.len())
            .finish_non_exhaustive()
    }
}
