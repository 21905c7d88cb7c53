//! Standard output and standard error, either of which may go away.

use std::fmt::Display;
use std::io::{self, Write};

use crate::failure::Failure;
use crate::stop::Stop;

/// Where lines go. When nobody reads standard output any more, the rest is dropped and the end of
/// the run is requested: a pipe into `head` ends it, and is no error.
pub struct Output {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    out_open: bool,
    stop: Stop,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output")
            .field("out_open", &self.out_open)
            .finish_non_exhaustive()
    }
}

impl Output {
    /// The process's own two streams.
    pub fn standard(stop: Stop) -> Self {
        Self::new(Box::new(io::stdout()), Box::new(io::stderr()), stop)
    }

    /// Any two streams.
    pub fn new(out: Box<dyn Write>, err: Box<dyn Write>, stop: Stop) -> Self {
        Self {
            out,
            err,
            out_open: true,
            stop,
        }
    }

    /// Writes text to standard output as it is, at once.
    pub fn text(&mut self, text: impl Display) {
        if self.out_open {
            let text = text.to_string();
            let written = self
                .out
                .write_all(text.as_bytes())
                .and_then(|()| self.out.flush());
            if written.is_err() {
                self.out_open = false;
                self.stop.request();
            }
        }
    }

    /// Writes a line to standard output.
    pub fn line(&mut self, line: impl Display) {
        self.text(format_args!("{line}\n"));
    }

    /// Writes a failure to standard error.
    pub fn failure(&mut self, failure: &Failure) {
        self.error_text(&failure.to_string());
    }

    /// Writes a line to standard error.
    pub fn error_line(&mut self, line: impl Display) {
        self.error_text(&format!("rpma-ping: {line}\n"));
    }

    /// Standard error has no buffer: one call for the whole text, or lines of two processes mix.
    /// Should it be gone, there is nobody left to tell.
    fn error_text(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::BrokenPipe))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_goes_away_ends_the_run_and_is_no_panic() {
        let stop = Stop::default();
        let mut output = Output::new(Box::new(Closed), Box::new(Closed), stop.clone());
        output.failure(&Failure::failed("nobody reads this"));
        assert!(!stop.requested());
        output.line("nor this");
        assert!(stop.requested());
        output.line("nor that");
    }
}
