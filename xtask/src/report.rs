//! What the user sees while something long goes on: one line per step, with the time it took.
//!
//! All of it goes to standard error, so that the output of a command run in the VM stays alone on standard output.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often a step that takes long says so where there is no terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// One line for the user.
pub(crate) fn say(text: impl AsRef<str>) {
    eprintln!("xtask: {}", text.as_ref());
}

/// A step in progress: shown as a moving line on a terminal, as plain lines elsewhere.
pub(crate) struct Step {
    title: String,
    started: Instant,
    bar: Option<ProgressBar>,
    last_plain_line: Cell<Instant>,
}

impl Step {
    /// Says that the step begins.
    pub(crate) fn start(title: impl Into<String>) -> Self {
        let title = title.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(title.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if bar.is_none() {
            say(format!("{title} ..."));
        }
        let now = Instant::now();
        Self {
            title,
            started: now,
            bar,
            last_plain_line: Cell::new(now),
        }
    }

    /// Says how far it is, in the step's own words; call it as often as is handy.
    pub(crate) fn progress(&self, how_far: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} ({})", self.title, how_far()));
        } else if self.last_plain_line.get().elapsed() >= PLAIN_INTERVAL {
            self.last_plain_line.set(Instant::now());
            say(format!(
                "  {} ({}, {})",
                self.title,
                how_far(),
                seconds(self.started.elapsed())
            ));
        }
    }

    /// Says that the step is over, with its outcome and time.
    pub(crate) fn done(mut self, outcome: &str) {
        let text = format!(
            "{}: {outcome} ({})",
            self.title,
            seconds(self.started.elapsed())
        );
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        say(text);
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// A duration for people: one decimal below a minute, minutes and seconds above.
pub(crate) fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    if whole < 60 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(seconds(Duration::from_millis(1240)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(61)), "1 min 01 s");
        assert_eq!(seconds(Duration::from_secs(600)), "10 min 00 s");
    }
}
