//! The memory for messages: places for control frames and for the data of a message each way.

use std::ops::Range;

use rpma::{Error, LocalRegion, Peer, Span, Usage};

use super::link::Tag;
use super::window::Window;
use crate::session::{CONTROL_LEN, Control, WireError};

/// One control frame may arrive per operation of a round, and one that begins it.
pub(super) const CONTROL_PLACES: usize = 5;

/// A place for a control frame is a cache line.
const PLACE: usize = 64;
const OUT: usize = CONTROL_PLACES * PLACE;
const DATA: usize = OUT + PLACE;

/// A registered region with fixed places.
#[derive(Debug)]
pub(super) struct Mailbox {
    region: LocalRegion,
    size: usize,
}

impl Mailbox {
    /// Memory for messages of `size` bytes.
    pub(super) fn new(peer: &Peer, size: usize) -> Result<Self, Error> {
        let len = DATA + 2 * size.next_multiple_of(PLACE);
        let region = LocalRegion::alloc(peer, len, Usage::SEND | Usage::RECV)?;
        Ok(Self { region, size })
    }

    /// Where control frame number `place` arrives, and the tag of its completion.
    pub(super) fn control_in(&self, place: usize) -> Result<(Span<'_>, Tag), Error> {
        Ok((
            self.region.span(frame_at(place * PLACE))?,
            Tag::control_in(place),
        ))
    }

    /// Where the data of a message arrives.
    pub(super) fn data_in(&self) -> Window<'_> {
        Window::new(&self.region, DATA, self.size)
    }

    /// Where the data of a message leaves from.
    pub(super) fn data_out(&self) -> Window<'_> {
        Window::new(
            &self.region,
            DATA + self.size.next_multiple_of(PLACE),
            self.size,
        )
    }

    /// Puts a control frame into its place and gives the span to send.
    pub(super) fn control_out(&self, control: &Control) -> Result<Span<'_>, Error> {
        self.region.store(OUT, &control.encode())?;
        self.region.span(frame_at(OUT))
    }

    /// Reads the control frame of `len` bytes that has arrived at `place`.
    pub(super) fn read_control(
        &self,
        place: usize,
        len: u32,
    ) -> Result<Result<Control, WireError>, Error> {
        let mut bytes = [0; CONTROL_LEN];
        self.region.load(place * PLACE, &mut bytes)?;
        let len = CONTROL_LEN.min(len as usize);
        Ok(Control::decode(&bytes[..len]))
    }
}

/// The range of a control frame that begins at `start`.
fn frame_at(start: usize) -> Range<u64> {
    start as u64..(start + CONTROL_LEN) as u64
}
