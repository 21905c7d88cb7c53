//! Several operations that the device is told of once.

use std::fmt;
use std::mem::MaybeUninit;

use cm::verbs::{PostError, SendFlags, SendRequest, Sge};

use super::limits::is_full;
use super::operations::{self, Atomic, Sink};
use super::source::{Destination, Source, filled, inline_sge};
use super::{FlushType, Signal};
use crate::connection::Connection;
use crate::connection::queue_pair::{Native, NativeOperations};
use crate::error::Error;
use crate::memory::{RemoteSpan, Span};

/// Spans of all operations of a batch together.
const SPANS: usize = 2 * CAPACITY;
const CAPACITY: usize = 64;

/// Operations that [`Connection::batch`] posts together. Each is checked when it is added, as if it
/// were posted alone; one that is refused is not added.
pub struct Batch<'a> {
    connection: &'a Connection,
    /// Each without its data, which stands in `places`.
    requests: [MaybeUninit<SendRequest<'static>>; CAPACITY],
    places: [MaybeUninit<Place<'a>>; CAPACITY],
    len: usize,
    sges: [MaybeUninit<Sge>; SPANS],
    spans: usize,
    /// The run of operations without a completion before it, and with those added.
    before: u32,
    run: u32,
}

/// What belongs to one operation.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// Where its data is: the first of its SGEs, and their number.
    sges: (u8, u8),
    signal: Signal,
    what: What<'a>,
}

#[derive(Clone, Copy)]
enum What<'a> {
    Classic,
    /// Its data is a word that lies here.
    Word([u8; 8]),
    /// Not a classic request at all.
    Native(&'a NativeOperations, Native),
}

impl Connection {
    /// Posts all operations that `build` adds, with one doorbell: the device is told once, and
    /// carries them out in order. If `build` fails, none is posted.
    ///
    /// A [native](super::FlushMethod::Native) flush or atomic write takes a doorbell of its own.
    /// Spans and inline bytes have to live until this call returns.
    ///
    /// # Errors
    /// What `build` returns. Otherwise the error of the post: nothing was posted, unless it is
    /// [`Error::PartlyPosted`], which says how many of the operations were.
    ///
    /// # Example
    /// ```no_run
    /// # fn example(connection: &rpma::Connection, record: rpma::Span<'_>, at: rpma::RemoteSpan, ready: rpma::RemoteSpan)
    /// # -> Result<(), rpma::Error> {
    /// use rpma::{FlushType, Signal};
    ///
    /// connection.batch(|batch| {
    ///     batch.write(at, record, Signal::OnError, 1)?;
    ///     batch.flush(at, FlushType::Visibility, Signal::OnError, 2)?;
    ///     batch.atomic_write(ready, 1_u64.to_le_bytes(), Signal::Always, 3)
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn batch<'a, R, E: From<Error>>(
        &'a self,
        build: impl FnOnce(&mut Batch<'a>) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut batch = Batch {
            connection: self,
            requests: [const { MaybeUninit::uninit() }; CAPACITY],
            places: [const { MaybeUninit::uninit() }; CAPACITY],
            len: 0,
            sges: [const { MaybeUninit::uninit() }; SPANS],
            spans: 0,
            before: self.posting.run.now(),
            run: self.posting.run.now(),
        };
        let made = build(&mut batch)?;
        batch.post()?;
        Ok(made)
    }
}

impl<'a> Batch<'a> {
    /// Operations that a batch may have.
    pub const CAPACITY: usize = CAPACITY;

    /// As [`Connection::send`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] for more operations than the send queue or a batch takes.
    #[inline]
    pub fn send(
        &mut self,
        src: impl Source<'a>,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::send(self, src, None, signal, op_context)
    }

    /// As [`Connection::send_with_imm`].
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn send_with_imm(
        &mut self,
        src: impl Source<'a>,
        imm: u32,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::send(self, src, Some(imm), signal, op_context)
    }

    /// As [`Connection::write`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] as for [`send`](Self::send).
    #[inline]
    pub fn write(
        &mut self,
        dst: RemoteSpan,
        src: impl Source<'a>,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::write(self, dst, src, None, signal, op_context)
    }

    /// As [`Connection::write_with_imm`].
    ///
    /// # Errors
    /// As [`write`](Self::write).
    #[inline]
    pub fn write_with_imm(
        &mut self,
        dst: RemoteSpan,
        src: impl Source<'a>,
        imm: u32,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::write(self, dst, src, Some(imm), signal, op_context)
    }

    /// As [`Connection::read`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] as for [`send`](Self::send).
    #[inline]
    pub fn read(
        &mut self,
        dst: impl Destination<'a>,
        src: RemoteSpan,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::read(self, dst, src, signal, op_context)
    }

    /// As [`Connection::atomic_write`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] as for [`send`](Self::send).
    #[inline]
    pub fn atomic_write(
        &mut self,
        dst: RemoteSpan,
        value: [u8; 8],
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::atomic_write(self, dst, value, signal, op_context)
    }

    /// As [`Connection::atomic_write_from`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] as for [`send`](Self::send).
    #[inline]
    pub fn atomic_write_from(
        &mut self,
        dst: RemoteSpan,
        src: Span<'a>,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::atomic_write_from(self, dst, src, signal, op_context)
    }

    /// As [`Connection::fetch_add`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] as for [`send`](Self::send).
    #[inline]
    pub fn fetch_add(
        &mut self,
        result: Span<'a>,
        at: RemoteSpan,
        add: u64,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::atomic(self, result, at, Atomic::Add(add), signal, op_context)
    }

    /// As [`Connection::compare_swap`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] as for [`send`](Self::send).
    #[inline]
    pub fn compare_swap(
        &mut self,
        result: Span<'a>,
        at: RemoteSpan,
        compare: u64,
        new: u64,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        let what = Atomic::Swap { compare, new };
        operations::atomic(self, result, at, what, signal, op_context)
    }

    /// As [`Connection::flush`].
    ///
    /// # Errors
    /// The same; [`Error::QueueFull`] as for [`send`](Self::send).
    #[inline]
    pub fn flush(
        &mut self,
        dst: RemoteSpan,
        flush_type: FlushType,
        signal: Signal,
        op_context: u64,
    ) -> Result<(), Error> {
        operations::flush(self, dst, flush_type, signal, op_context)
    }

    /// How many operations were added.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none was added.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an operation whose data is `sges`.
    #[inline(always)]
    fn add(
        &mut self,
        request: SendRequest<'_>,
        sges: &[Sge],
        what: What<'a>,
        signal: Signal,
    ) -> Result<(), Error> {
        let run = &self.connection.posting.run;
        let longer = run.longer(self.run, signal == Signal::Always)?;
        let room = CAPACITY.min(usize::try_from(run.size()).unwrap_or(usize::MAX));
        if self.len >= room {
            return Err(Error::QueueFull {
                reason: "a batch has at most 64 operations, and no more than the send queue takes",
            });
        }
        let Some(places) = self.sges[self.spans..].get_mut(..sges.len()) else {
            return Err(Error::QueueFull {
                reason: "the operations of a batch have at most 128 spans together",
            });
        };
        for (place, sge) in places.iter_mut().zip(sges) {
            place.write(*sge);
        }
        // All below 256.
        let part = |number: usize| u8::try_from(number).unwrap_or(u8::MAX);
        self.places[self.len].write(Place {
            sges: (part(self.spans), part(sges.len())),
            signal,
            what,
        });
        // What data it has now is borrowed for this call only.
        self.requests[self.len].write(request.with_sges(&[]));
        self.len += 1;
        self.spans += sges.len();
        self.run = longer;
        Ok(())
    }

    /// Posts everything: what lies between native operations with one doorbell each.
    #[inline]
    fn post(&mut self) -> Result<(), Error> {
        let connection = self.connection;
        let (mut run, len) = (self.run, self.len);
        // SAFETY: as many were written.
        let places = unsafe { filled(&self.places[..len]) };
        let now = connection.posting.run.now();
        if now != self.before {
            // Others were posted while it was built.
            run = now;
            for place in places {
                run = connection
                    .posting
                    .run
                    .longer(run, place.signal == Signal::Always)?;
            }
        }
        for place in places {
            if let What::Word(word) = &place.what
                && let Some(sge) = self.sges.get_mut(usize::from(place.sges.0))
            {
                sge.write(inline_sge(word.as_slice()));
            }
        }
        // SAFETY: as many were written.
        let sges = unsafe { filled(&self.sges[..self.spans]) };
        let start = self.requests.as_mut_ptr().cast::<SendRequest<'_>>();
        // SAFETY: as many were written. They have no data now, so any lifetime fits; under the old
        // one they are not used again.
        let requests = unsafe { std::slice::from_raw_parts_mut(start, len) };
        for (request, place) in requests.iter_mut().zip(places) {
            let (first, count) = (usize::from(place.sges.0), usize::from(place.sges.1));
            request.set_sges(&sges[first..first + count]);
        }
        let mut done = 0;
        while done < len {
            let (took, posted) = match places[done].what {
                What::Native(operations, native) => {
                    (1, operations.post(native, places[done].signal.flags()))
                }
                _ => {
                    let rest = &places[done..];
                    let count = rest.iter().position(Place::is_native);
                    let count = count.unwrap_or(rest.len());
                    let list = &mut requests[done..done + count];
                    // SAFETY: as for a single one: spans and inline bytes are borrowed for `'a`, which
                    // this call does not outlive, and words lie here.
                    (count, unsafe { connection.link.qp().post_send_list(list) })
                }
            };
            if let Err(error) = posted {
                return Err(connection.partly_posted(places, done, error));
            }
            done += took;
        }
        connection.posting.run.set(run);
        Ok(())
    }
}

impl Connection {
    /// Keeps the length of the run when after `done` operations a post has failed.
    #[cold]
    fn partly_posted(&self, places: &[Place<'_>], done: usize, error: PostError) -> Error {
        let queued = done + error.queued;
        let taken = &places[..queued.min(places.len())];
        let run = &self.posting.run;
        // What is sure to be in the queue with a completion ends a run; what may be there does not.
        let sure = if is_full(error.kind) { queued } else { done };
        let last = places[..sure.min(places.len())]
            .iter()
            .rposition(|place| place.signal == Signal::Always);
        let since = last.map_or(0, |last| {
            run.set(0);
            last + 1
        });
        let without = taken[since..]
            .iter()
            .filter(|place| place.signal == Signal::OnError);
        run.set_partly(u32::try_from(without.count()).unwrap_or(u32::MAX));
        if queued == 0 {
            return error.into();
        }
        Error::PartlyPosted {
            queued,
            of: places.len(),
            error,
        }
    }
}

impl Place<'_> {
    fn is_native(&self) -> bool {
        matches!(self.what, What::Native(..))
    }
}

impl<'a> Sink<'a> for Batch<'a> {
    #[inline(always)]
    fn connection(&self) -> &'a Connection {
        self.connection
    }

    #[inline(always)]
    fn put(
        &mut self,
        request: SendRequest<'_>,
        sges: &[Sge],
        flags: SendFlags,
        signal: Signal,
    ) -> Result<(), Error> {
        let request = request.with_flags(flags | signal.flags());
        self.add(request, sges, What::Classic, signal)
    }

    #[inline(always)]
    fn put_word(
        &mut self,
        request: SendRequest<'_>,
        word: [u8; 8],
        flags: SendFlags,
        signal: Signal,
    ) -> Result<(), Error> {
        let request = request.with_flags(flags | SendFlags::INLINE | signal.flags());
        // Where the word lies is known when nothing moves any more.
        self.add(request, &[inline_sge(&[])], What::Word(word), signal)
    }

    #[inline]
    fn put_native(
        &mut self,
        through: &'a NativeOperations,
        native: Native,
        signal: Signal,
    ) -> Result<(), Error> {
        let what = What::Native(through, native);
        // In the place of a request, never posted.
        let request = SendRequest::send(native.op_context, &[]);
        self.add(request, &[], what, signal)
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len).finish()
    }
}
