//! What ends a run badly, as the user reads it.

use std::fmt;

/// How the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything came back right.
    Success,
    /// Something was lost, wrong or failed.
    Failed,
    /// The command line asks for something impossible.
    Usage,
}

impl Exit {
    /// The number for the system: 0, 1 or 2.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
        }
    }

    /// The worse of two ends.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if other.code() > self.code() {
            other
        } else {
            self
        }
    }
}

/// One sentence that says what is wrong, and where possible another that says what to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    sentence: String,
    hint: Option<String>,
    exit: Exit,
}

impl Failure {
    /// A run that failed.
    pub fn failed(sentence: impl Into<String>) -> Self {
        Self {
            sentence: one_line(&sentence.into()),
            hint: None,
            exit: Exit::Failed,
        }
    }

    /// A command line that asks for something impossible.
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            ..Self::failed(sentence)
        }
    }

    /// This failure with what to try.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(one_line(&hint.into()));
        self
    }

    /// The sentence, without a newline.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// What to try, without a newline.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// How the process is to end.
    pub fn exit(&self) -> Exit {
        self.exit
    }
}

/// The lines for standard error, ending in one newline.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "rpma-ping: {}", self.sentence)?;
        match &self.hint {
            Some(hint) => writeln!(f, "  hint: {hint}"),
            None => Ok(()),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_sentence_and_a_hint_and_ends_in_one_newline() {
        let failure = Failure::failed("it broke\nbadly\n").with_hint("try\tagain\n");
        assert_eq!(
            failure.to_string(),
            "rpma-ping: it broke badly\n  hint: try again\n"
        );
        assert_eq!(Failure::usage("no").to_string(), "rpma-ping: no\n");
    }

    #[test]
    fn the_worse_end_wins() {
        assert_eq!(Exit::Success.and(Exit::Failed), Exit::Failed);
        assert_eq!(Exit::Failed.and(Exit::Success), Exit::Failed);
        assert_eq!(Exit::Usage.and(Exit::Failed), Exit::Usage);
    }
}
