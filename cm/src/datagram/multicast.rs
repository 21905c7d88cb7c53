//! Multicast groups: joined through the connection manager, received by a UD queue pair.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use verbs::{Context, Deadline, QueuePair, sys};

use super::{check_receives, check_type, datagrams, ready, refused};
use crate::address::CAddr;
use crate::error::Error;
use crate::event::{Event, EventKind, RemoteQueuePair};
use crate::id::{Home, Id, check};
use crate::params::IdOptions;
use crate::source::{EventSource, Lane, OwnChannel};

/// A local address from which multicast groups are joined.
///
/// Clones share it. It lives as long as it, or a [`Group`] that was joined from it, is held.
#[derive(Debug)]
pub struct Multicast<S = OwnChannel>(Arc<Shared<S>>);

#[derive(Debug)]
struct Shared<S> {
    // Before the channel that its events arrive on.
    id: Id,
    events: S,
    context: Context,
    local: SocketAddr,
    groups: Mutex<Groups>,
}

#[derive(Debug, Default)]
struct Groups {
    /// By the number that C gives back with each event of the group.
    entries: BTreeMap<usize, Entry>,
    last: usize,
    /// Events that were met while a group was waited for.
    met: VecDeque<MulticastEvent>,
}

#[derive(Debug)]
struct Entry {
    group: IpAddr,
    kind: JoinKind,
    qp: Arc<QueuePair>,
    state: GroupState,
}

/// How a group is joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinKind {
    /// To send and to receive.
    FullMember,
    /// To send only: the queue pair is not attached.
    SendOnly,
}

/// Where a group stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupState {
    /// The join is under way.
    Joining,
    /// Joined; datagrams for the group go there.
    Joined(RemoteQueuePair),
    /// It could not be joined, or was lost: a negative errno.
    Lost(i32),
}

/// What happened to a multicast address.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MulticastEvent {
    /// A group was joined.
    Joined {
        /// The group.
        group: IpAddr,
        /// Where datagrams for it go.
        remote: RemoteQueuePair,
    },
    /// A group could not be joined, or was lost.
    Lost {
        /// The group.
        group: IpAddr,
        /// A negative errno.
        status: i32,
    },
    /// The device goes away: drop everything that belongs to it.
    DeviceRemoved,
    /// Any other event, which changes nothing here.
    Other {
        /// Its kind.
        kind: EventKind,
        /// 0, a negative errno, or a positive code of the transport.
        status: i32,
    },
}

/// How long a wait sleeps at most before it looks whether another thread has taken its event.
const NAP: Duration = Duration::from_millis(100);

impl Multicast<OwnChannel> {
    /// Binds to the local address `addr` of an RDMA device.
    ///
    /// # Errors
    /// [`Error::NoSuchAddress`] when no RDMA device has the address, as for a wildcard, or the
    /// failed call.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind(addr: SocketAddr, options: &IdOptions) -> Result<Self, Error> {
        let events = OwnChannel::new()?;
        let home = events.home();
        Self::begin(events, &home, None, addr, options)
    }
}

impl<S: EventSource> Multicast<S> {
    pub(crate) fn begin(
        events: S,
        home: &Home,
        lane: Option<Arc<Lane>>,
        addr: SocketAddr,
        options: &IdOptions,
    ) -> Result<Self, Error> {
        let id = Id::new(datagrams(options.port_space)?, home, lane)?;
        id.set_options(options)?;
        id.bind(addr)?;
        let context = id.context()?.ok_or(Error::NoSuchAddress { addr })?;
        let local = id.addresses().0.unwrap_or(addr);
        Ok(Self(Arc::new(Shared {
            id,
            events,
            context,
            local,
            groups: Mutex::default(),
        })))
    }

    /// The device that has the address.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The local address.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local
    }

    /// Brings a new UD queue pair to RTS, with the key that datagrams for groups carry.
    ///
    /// # Errors
    /// [`verbs::ErrorKind::InvalidArgument`] for another type than UD or another device, or the
    /// failed call.
    pub fn init_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        ready(&self.0.id, qp, &self.0.context)
    }

    /// Starts to join `group`; [`Group::wait_joined`] or an event tells when it is done. The result
    /// leaves the group when it is dropped.
    ///
    /// # Errors
    /// [`verbs::ErrorKind::InvalidArgument`] when `group` is no multicast address or was joined from
    /// here already, or for a queue pair that is not UD or, to receive, not in RTR or RTS. The failed
    /// call.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    pub fn join(
        &self,
        group: IpAddr,
        qp: &Arc<QueuePair>,
        kind: JoinKind,
    ) -> Result<Group<S>, Error> {
        let verb = "rdma_join_multicast";
        if !group.is_multicast() {
            return Err(refused(verb, format!("{group} is no multicast address")));
        }
        match kind {
            JoinKind::FullMember => check_receives(qp, &self.0.context, verb)?,
            JoinKind::SendOnly => check_type(qp, &self.0.context, verb)?,
        }
        self.0.id.origin().check(verb)?;
        let mut groups = self.0.groups();
        if groups.entries.values().any(|entry| entry.group == group) {
            return Err(refused(verb, format!("{group} was joined already")));
        }
        groups.last += 1;
        let token = groups.last;
        self.0.call_join(group, kind, token)?;
        // The lock is held, so no event of the group was looked at yet.
        groups.entries.insert(
            token,
            Entry {
                group,
                kind,
                qp: Arc::clone(qp),
                state: GroupState::Joining,
            },
        );
        drop(groups);
        Ok(Group {
            shared: Arc::clone(&self.0),
            token,
            group,
        })
    }

    /// The next event if there is one; never blocks.
    ///
    /// # Errors
    /// The failed call.
    pub fn try_next_event(&self) -> Result<Option<MulticastEvent>, Error> {
        if let Some(met) = self.0.groups().met.pop_front() {
            return Ok(Some(met));
        }
        while let Some(arrived) = self.0.events.try_next()? {
            if let Some(event) = self.0.take(&arrived.event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// [`Error::TimedOut`] once the deadline has passed, or the failed call.
    pub fn next_event(&self, deadline: Deadline) -> Result<MulticastEvent, Error> {
        loop {
            if let Some(event) = self.try_next_event()? {
                return Ok(event);
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut {
                    what: format!("waiting for a multicast event at {}", self.0.local),
                });
            }
            // Not for longer: a wait for a group may put an event by for this one.
            let nap = deadline.min(Deadline::after(NAP));
            if let Some(arrived) = self.0.events.next(nap)?
                && let Some(event) = self.0.take(&arrived.event)
            {
                return Ok(event);
            }
        }
    }
}

impl<S> Clone for Multicast<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl AsFd for Multicast<OwnChannel> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.events.as_fd()
    }
}

impl<S> Shared<S> {
    fn groups(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call_join(&self, group: IpAddr, kind: JoinKind, token: usize) -> Result<(), Error> {
        let addr = CAddr::from(SocketAddr::new(group, 0));
        let context = ptr::without_provenance_mut(token);
        let (verb, ret) = match kind {
            JoinKind::FullMember => {
                // SAFETY: the id is bound to a device and the address whole. C gives the context
                // back and never follows it.
                let ret =
                    unsafe { sys::rdma_join_multicast(self.id.raw(), addr.as_ptr(), context) };
                ("rdma_join_multicast", ret)
            }
            JoinKind::SendOnly => {
                let mask = sys::rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS
                    | sys::rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
                let flags = sys::rdma_cm_mc_join_flags::RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
                let mut attributes = sys::rdma_cm_join_mc_attr_ex {
                    comp_mask: mask.0,
                    join_flags: flags.0,
                    addr: addr.as_ptr(),
                };
                // SAFETY: as above, and the attributes are filled in and live.
                let ret =
                    unsafe { sys::rdma_join_multicast_ex(self.id.raw(), &mut attributes, context) };
                ("rdma_join_multicast_ex", ret)
            }
        };
        Ok(check(verb, ret).map_err(|e| e.with_detail(format!("group {group}")))?)
    }

    /// Does what an event asks for; `None` when it is about a group that was left.
    fn take(&self, event: &Event) -> Option<MulticastEvent> {
        let (kind, status) = (event.kind(), event.status());
        let Some(data) = event.multicast() else {
            return Some(match kind {
                EventKind::DEVICE_REMOVAL => MulticastEvent::DeviceRemoved,
                kind => MulticastEvent::Other { kind, status },
            });
        };
        let mut groups = self.groups();
        let entry = groups.entries.get_mut(&data.token)?;
        let group = entry.group;
        let joined = match data.remote {
            Some(remote) if status == 0 => entry.attach(&remote).map(|()| remote),
            _ => Err(if status == 0 { -libc::EIO } else { status }),
        };
        Some(match joined {
            Ok(remote) => {
                entry.state = GroupState::Joined(remote);
                MulticastEvent::Joined { group, remote }
            }
            Err(status) => {
                entry.detach();
                entry.state = GroupState::Lost(status);
                MulticastEvent::Lost { group, status }
            }
        })
    }
}

impl Entry {
    /// librdmacm attaches queue pairs of ids only, and ours is none.
    fn attach(&self, remote: &RemoteQueuePair) -> Result<(), i32> {
        let Some(route) = remote.address.route else {
            return Err(-libc::EINVAL);
        };
        if self.kind == JoinKind::SendOnly {
            return Ok(());
        }
        let attached = self.qp.attach_multicast(route.dgid, remote.address.dlid);
        attached.map_err(|error| {
            tracing::debug!(%error, group = %self.group, "joined and not attached");
            -error.errno().unwrap_or(libc::EIO)
        })
    }

    fn detach(&self) {
        if let (JoinKind::FullMember, GroupState::Joined(remote)) = (self.kind, self.state)
            && let Some(route) = remote.address.route
            && let Err(error) = self.qp.detach_multicast(route.dgid, remote.address.dlid)
        {
            tracing::debug!(%error, group = %self.group, "a group is left still attached");
        }
    }
}

/// A multicast group that is being or was joined. Dropping it leaves the group.
///
/// It keeps the queue pair alive, which has to leave its groups before it goes.
#[must_use = "dropping it leaves the group"]
pub struct Group<S = OwnChannel> {
    shared: Arc<Shared<S>>,
    token: usize,
    group: IpAddr,
}

impl<S: EventSource> Group<S> {
    /// The group's address.
    pub fn addr(&self) -> IpAddr {
        self.group
    }

    /// Where it stands, as far as the events taken tell.
    pub fn state(&self) -> GroupState {
        let groups = self.shared.groups();
        let entry = groups.entries.get(&self.token);
        entry.map_or(GroupState::Lost(0), |entry| entry.state)
    }

    /// Waits until the group is joined, and says where datagrams for it go. Events about something
    /// else are kept for [`Multicast::next_event`].
    ///
    /// # Errors
    /// [`Error::Unreachable`] when it could not be joined, [`Error::DeviceRemoved`],
    /// [`Error::TimedOut`] once the deadline has passed, or the failed call.
    pub fn wait_joined(&self, deadline: Deadline) -> Result<RemoteQueuePair, Error> {
        let peer = SocketAddr::new(self.group, 0);
        loop {
            match self.state() {
                GroupState::Joined(remote) => return Ok(remote),
                GroupState::Lost(status) => return Err(Error::Unreachable { peer, status }),
                GroupState::Joining if deadline.has_passed() => {
                    return Err(Error::TimedOut {
                        what: format!("joining the group {}", self.group),
                    });
                }
                GroupState::Joining => {}
            }
            // Not for longer: another thread may take the event that this one waits for.
            let nap = deadline.min(Deadline::after(NAP));
            if let Some(arrived) = self.shared.events.next(nap)?
                && let Some(event) = self.shared.take(&arrived.event)
            {
                let removed = event == MulticastEvent::DeviceRemoved;
                if !self.is_about(&event) {
                    self.shared.groups().met.push_back(event);
                }
                if removed {
                    return Err(Error::DeviceRemoved { peer });
                }
            }
        }
    }

    fn is_about(&self, event: &MulticastEvent) -> bool {
        match event {
            MulticastEvent::Joined { group, .. } | MulticastEvent::Lost { group, .. } => {
                *group == self.group
            }
            _ => false,
        }
    }

    /// Leaves the group.
    ///
    /// # Errors
    /// The failed call; the group is let go of all the same.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave(mut self) -> Result<(), Error> {
        self.shared.leave(&mut self.token, self.group)
    }
}

impl<S> Shared<S> {
    fn leave(&self, token: &mut usize, group: IpAddr) -> Result<(), Error> {
        let verb = "rdma_leave_multicast";
        // 0 is no token: left already.
        let entry = self.groups().entries.remove(&std::mem::take(token));
        let Some(entry) = entry else { return Ok(()) };
        self.id.origin().check(verb)?;
        entry.detach();
        let addr = CAddr::from(SocketAddr::new(group, 0));
        // SAFETY: the id is live and has joined the group, the address is whole. Events of the group
        // that the call waits for are acknowledged by whoever has got them.
        let ret = unsafe { sys::rdma_leave_multicast(self.id.raw(), addr.as_ptr()) };
        Ok(check(verb, ret).map_err(|e| e.with_detail(format!("group {group}")))?)
    }
}

impl<S> Drop for Group<S> {
    fn drop(&mut self) {
        if let Err(error) = self.shared.leave(&mut self.token, self.group) {
            tracing::debug!(%error, "a group that is not left properly");
        }
    }
}

impl<S> fmt::Debug for Group<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({})", self.group)
    }
}
