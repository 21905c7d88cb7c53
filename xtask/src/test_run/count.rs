//! Counting tests by the summary lines that test programs print, and comparing with the committed minimum.

use crate::error::{Error, Result};

/// How many tests passed, failed, and were not run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Count {
    /// Adds what a line says, if it is the summary line of a test program:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    pub(crate) fn add_line(&mut self, line: &str) {
        let plain = without_colours(line);
        let Some((_, counts)) = plain
            .trim_start()
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let (Some(number), Some(what)) = (words.next(), words.next()) else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// How many were run.
    pub(crate) fn run(self) -> u64 {
        self.passed + self.failed
    }

    /// The sum of two.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }
}

fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..start]);
        let sequence = &rest[start + 2..];
        let end = sequence
            .find(|c: char| c.is_ascii_alphabetic())
            .map_or(sequence.len(), |at| at + 1);
        rest = &sequence[end..];
    }
    plain.push_str(rest);
    plain
}

/// The steps, as `minimum-tests.txt` names them.
const STEPS: [&str; 12] = [
    "host",
    "headers",
    "fake",
    "asan",
    "miri",
    "instructions",
    "device",
    "guest",
    "iwarp",
    "pmem",
    "guest-full",
    "newest",
];

/// The fewest tests that each step must have run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Minimum([u64; STEPS.len()]);

impl Minimum {
    /// Reads a line `STEP=N` for each step; `#` begins a comment.
    ///
    /// # Errors
    /// When a line is something else, or a step is missing.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut found = [None; STEPS.len()];
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let parsed = line.split_once('=').and_then(|(name, value)| {
                let step = STEPS.iter().position(|step| *step == name.trim())?;
                Some((step, value.trim().parse().ok()?))
            });
            let Some((step, number)) = parsed else {
                return Err(Error::new(format!(
                    "'{line}' is not STEP=N with one of the steps {}",
                    STEPS.join(", ")
                )));
            };
            found[step] = Some(number);
        }
        let mut numbers = [0; STEPS.len()];
        for ((step, found), number) in STEPS.iter().zip(found).zip(&mut numbers) {
            *number = found.ok_or_else(|| Error::new(format!("the line {step}=N is missing")))?;
        }
        Ok(Self(numbers))
    }

    /// The number of a step.
    pub(crate) fn of(&self, step: &str) -> u64 {
        let known = STEPS.iter().zip(self.0).find(|(known, _)| **known == step);
        // A step without a number must at least run a test.
        known.map_or(1, |(_, number)| number)
    }
}

/// What to say when a step ran fewer tests than it must, or none at all.
pub(crate) fn shortfall(step: &str, count: Count, minimum: u64) -> Option<String> {
    (count.run() < minimum || count.run() == 0).then(|| {
        format!(
            "the {step} step ran {} tests, but at least {minimum} are committed in xtask/minimum-tests.txt: find out which \
             tests no longer run, or, if some were removed on purpose, lower the number there",
            count.run()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(lines: &[&str]) -> Count {
        let mut count = Count::default();
        lines.iter().for_each(|line| count.add_line(line));
        count
    }

    #[test]
    fn summaries_of_all_test_programs_add_up() {
        let counted = count(&[
            "running 3 tests",
            "test a ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 4 filtered out; finished in 1.00s",
        ]);
        let expected = Count {
            passed: 4,
            failed: 2,
            ignored: 1,
        };
        assert_eq!(counted, expected);
        assert_eq!(counted.run(), 6);
    }

    #[test]
    fn colours_do_not_hide_a_summary() {
        let line = "test result: \u{1b}[32mok\u{1b}[0m. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(count(&[line]).passed, 5);
        assert_eq!(without_colours("a\u{1b}[1;31mb\u{1b}[0m"), "ab");
        assert_eq!(without_colours("cut \u{1b}[3"), "cut ");
    }

    #[test]
    fn other_lines_count_nothing() {
        let lines = [
            "5 passed; 0 failed",
            "test result: ok",
            "test result: odd. x passed; ; 3",
            "",
        ];
        assert_eq!(count(&lines), Count::default());
    }

    #[test]
    fn the_minimum_is_read_with_comments_and_refused_when_broken() {
        let good = "# why\nhost = 12 # unit tests\nheaders=6\nfake=1\nasan=2\nmiri=3\ninstructions=7\n\ndevice=4\nguest=5\niwarp=8\npmem=9\nguest-full=10\nnewest=11\n";
        let minimum = Minimum::parse(good).unwrap();
        assert_eq!(
            STEPS.map(|step| minimum.of(step)),
            [12, 6, 1, 2, 3, 7, 4, 5, 8, 9, 10, 11]
        );
        for bad in [
            "",
            "host=1\nfake=1\ndevice=2",
            &good.replace("miri=3", "miri=x"),
            &good.replace("guest=5\n", ""),
            &format!("{good}other=3"),
            &format!("{good}host"),
        ] {
            Minimum::parse(bad).unwrap_err();
        }
    }

    #[test]
    fn the_committed_minimum_can_be_read_and_checks_something() {
        let minimum = Minimum::parse(include_str!("../../minimum-tests.txt")).unwrap();
        for step in STEPS {
            assert!(minimum.of(step) > 0, "{step}");
        }
    }

    #[test]
    fn too_few_tests_are_told_and_none_is_always_too_few() {
        let ran = |passed| Count {
            passed,
            ..Count::default()
        };
        assert_eq!(shortfall("device", ran(3), 3), None);
        let text = shortfall("device", ran(2), 3).unwrap();
        assert!(
            text.contains("ran 2 tests") && text.contains("at least 3"),
            "{text}"
        );
        assert!(shortfall("host", ran(0), 0).is_some());
    }
}
