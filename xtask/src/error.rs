//! One error type: a sentence that says what failed and what to do, and the exit code that goes with it.

use std::fmt;

/// A failure as the user sees it.
#[derive(Debug)]
pub(crate) struct Error {
    message: String,
    exit_code: u8,
}

/// The result of everything in this program that can fail.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure with exit code 1.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            exit_code: 1,
        }
    }

    /// The same failure with another exit code.
    pub(crate) fn with_exit_code(mut self, exit_code: u8) -> Self {
        self.exit_code = exit_code;
        self
    }

    /// What the process ends with.
    pub(crate) fn exit_code(&self) -> u8 {
        self.exit_code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Adds to a lower-level error what was being done when it happened.
pub(crate) trait Context<T> {
    /// Turns the error into "`what`: the lower error".
    fn context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Error::new(format!("{}: {error}", what())))
    }
}
