//! Ending the work of a queue pair so that every request is accounted for.

use std::mem::MaybeUninit;
use std::thread;
use std::time::Duration;

use super::post::{PostError, PostErrorKind};
use super::request::{RecvRequest, SendRequest};
use super::state::{QpState, QpType};
use super::{Parents, QueuePair};
use crate::ah::{Address, AddressHandle};
use crate::cq::{CqInner, WorkCompletion};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind};
use crate::flags::SendFlags;

/// How far one of the two queues has been drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The marker could not be posted yet: the queue is full.
    Unmarked,
    /// The marker is the last request in the queue.
    Marked,
    /// The marker has come out, and so has everything before it; or nothing can be in the queue.
    Drained,
}

impl QueuePair {
    /// The numbers of the requests that [`drain`](Self::drain) posts as the last of the send queue
    /// and of the receive queue.
    pub const DRAIN_MARKERS: [u64; 2] = [0x6472_6169_6e20_7371, 0x6472_6169_6e20_7271];

    /// Takes the queue pair to the error state and gives every completion to `on_completion`, until
    /// all requests posted before have completed or been flushed. After `Ok` the device reaches no
    /// memory for them.
    ///
    /// Completions of other queue pairs in the same completion queues are given to `on_completion`
    /// as well; nobody else may poll these queues meanwhile. Receives in a shared receive queue stay
    /// there. Requests that other threads post during the call may be left in the queues.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when not all came before the deadline; the call may be repeated.
    pub fn drain(
        &self,
        deadline: Deadline,
        mut on_completion: impl FnMut(&WorkCompletion),
    ) -> Result<(), Error> {
        self.owned.raw_checked("ibv_modify_qp")?;
        let state = self.state();
        if state == QpState::RESET {
            // Takes no requests, so none can be in the queues.
            return Ok(());
        }
        let start = |nothing| {
            if nothing {
                Side::Drained
            } else {
                Side::Unmarked
            }
        };
        let sizes = self.facts.capabilities;
        let mut send = start(state.raw() < QpState::RTS.raw() || sizes.max_send_wr == 0);
        let mut recv = start(self.facts.has_srq || sizes.max_recv_wr == 0);
        // A datagram needs an address also where it is never sent.
        let address = if self.qp_type() == QpType::UD && send != Side::Drained {
            Some(self.own_address()?)
        } else {
            None
        };
        let Parents {
            send_cq, recv_cq, ..
        } = &**self.owned.parents();
        let mut in_error = false;
        loop {
            let over = deadline.has_passed();
            if recv == Side::Unmarked {
                recv = self.mark_recv()?;
                // SoftRoCE looks at receives posted in the error state only when it is set again.
                in_error &= recv == Side::Unmarked;
            }
            if !in_error {
                self.set_error()?;
                in_error = true;
            }
            if send == Side::Unmarked {
                send = self.mark_send(address.as_ref())?;
            }
            let mut idle = true;
            for cq in [send_cq, recv_cq] {
                idle &= self.take(cq, [&mut send, &mut recv], &mut on_completion)?;
            }
            if [send, recv] == [Side::Drained; 2] {
                return Ok(());
            }
            if idle && over {
                return Err(Error::refused(
                    "ibv_poll_cq",
                    ErrorKind::TimedOut,
                    format!(
                        "requests of queue pair {} have not come back before the deadline",
                        self.number()
                    ),
                ));
            }
            if idle {
                thread::sleep(Duration::from_micros(200).min(deadline.remaining()));
            }
        }
    }

    fn mark_recv(&self) -> Result<Side, Error> {
        let mut request = RecvRequest::new(Self::DRAIN_MARKERS[1], &[]);
        // SAFETY: the request has no memory.
        marked(unsafe { self.post_recv(&mut request) })
    }

    fn mark_send(&self, address: Option<&AddressHandle>) -> Result<Side, Error> {
        let wr_id = Self::DRAIN_MARKERS[0];
        let mut request = match address {
            None => SendRequest::send(wr_id, &[]),
            Some(address) => SendRequest::datagram(wr_id, &[], address, 1, 0),
        }
        .with_flags(SendFlags::SIGNALED);
        // SAFETY: the request has no memory; in the error state it is flushed, so that no device
        // looks its address up later.
        marked(unsafe { self.post_send(&mut request) })
    }

    /// A handle for our own port.
    fn own_address(&self) -> Result<AddressHandle, Error> {
        let port = self.query()?.0.port();
        let context = self.context();
        let choice = context.choose_gid(port, None)?;
        let address = Address {
            dlid: context.query_port(port)?.as_raw().lid,
            ..Address::roce(port, choice.sgid_index()?, choice.entry.gid)
        };
        AddressHandle::new(self.pd(), &address)
    }

    /// Takes what is in a completion queue; whether that was nothing.
    fn take(
        &self,
        cq: &CqInner,
        sides: [&mut Side; 2],
        on_completion: &mut impl FnMut(&WorkCompletion),
    ) -> Result<bool, Error> {
        let mut out = [const { MaybeUninit::uninit() }; 16];
        let got = cq.poll(&mut out)?;
        for completion in got.iter() {
            let marker = Self::DRAIN_MARKERS
                .iter()
                .position(|&wr_id| wr_id == completion.wr_id())
                .filter(|_| completion.qp_num() == self.number());
            match marker {
                Some(side) => *sides[side] = Side::Drained,
                None => on_completion(completion),
            }
        }
        Ok(got.is_empty())
    }
}

/// What posting a marker has come to.
fn marked(posted: Result<(), PostError>) -> Result<Side, Error> {
    match posted {
        Ok(()) => Ok(Side::Marked),
        Err(error) if error.kind == PostErrorKind::QueueFull => Ok(Side::Unmarked),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_marked_later_and_any_other_refusal_is_an_error() {
        assert_eq!(marked(Ok(())).ok(), Some(Side::Marked));
        let refused = |kind| Err(PostError { kind, queued: 0 });
        assert_eq!(
            marked(refused(PostErrorKind::QueueFull)).ok(),
            Some(Side::Unmarked)
        );
        let error = marked(refused(PostErrorKind::Provider(libc::EIO))).expect_err("EIO");
        assert_eq!(error.errno(), Some(libc::EIO));
    }
}
