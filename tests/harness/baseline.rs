//! What must be as before when a test has ended: the kernel's RDMA objects and our descriptors.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Destroying can go on for a moment after a call has returned (work queues of the kernel).
const SETTLE: Duration = Duration::from_secs(2);

/// Counts at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// By device and kind, as in `rxe0 qp`.
    objects: BTreeMap<String, u64>,
    /// Descriptors of this process: number and what they refer to.
    descriptors: BTreeMap<i32, String>,
}

impl Baseline {
    /// Takes the counts.
    ///
    /// # Errors
    /// When the program `rdma` does not run.
    pub fn take() -> Result<Self, String> {
        Ok(Self {
            objects: objects()?,
            descriptors: descriptors(),
        })
    }

    /// Waits up to 2 s until the counts are as they were.
    ///
    /// # Errors
    /// A sentence with every difference that remains.
    pub fn check(&self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let difference = self.difference(&Self::take()?);
            if difference.is_empty() {
                return Ok(());
            }
            if start.elapsed() >= SETTLE {
                return Err(format!("left behind:{difference}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn difference(&self, now: &Self) -> String {
        let mut text = String::new();
        let zero = 0;
        for key in self.objects.keys().chain(
            now.objects
                .keys()
                .filter(|k| !self.objects.contains_key(*k)),
        ) {
            let (before, after) = (
                self.objects.get(key).unwrap_or(&zero),
                now.objects.get(key).unwrap_or(&zero),
            );
            if before != after {
                let _ = write!(text, " {key} {before} -> {after};");
            }
        }
        if now.descriptors.len() != self.descriptors.len() {
            let _ = write!(
                text,
                " descriptors {} -> {}",
                self.descriptors.len(),
                now.descriptors.len()
            );
            for (number, target) in &now.descriptors {
                if !self.descriptors.contains_key(number) {
                    let _ = write!(text, ", {number} is {target}");
                }
            }
        }
        text
    }
}

fn objects() -> Result<BTreeMap<String, u64>, String> {
    let output = Command::new("rdma")
        .args(["resource", "show"])
        .output()
        .map_err(|error| format!("cannot run rdma: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "rdma resource show failed: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Reads lines like `0: rxe0: pd 1 cq 2 qp 3 cm_id 0 mr 4 ctx 5 srq 0`.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ": ");
        let (Some(_), Some(device), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let words: Vec<_> = rest.split_whitespace().collect();
        for pair in words.chunks_exact(2) {
            // Contexts stay open for the life of the process, on purpose.
            if let (true, Ok(count)) = (pair[0] != "ctx", pair[1].parse()) {
                counts.insert(format!("{device} {}", pair[0]), count);
            }
        }
    }
    counts
}

fn descriptors() -> BTreeMap<i32, String> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return BTreeMap::new();
    };
    let all: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    all.iter()
        .filter_map(|path| {
            let number = path.file_name()?.to_str()?.parse().ok()?;
            // The descriptor of the listing itself is closed by now.
            let target = std::fs::read_link(path).ok()?;
            Some((number, target.to_string_lossy().into_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(objects: &str, descriptors: &[i32]) -> Baseline {
        Baseline {
            objects: parse(objects),
            descriptors: descriptors
                .iter()
                .map(|&n| (n, format!("target {n}")))
                .collect(),
        }
    }

    #[test]
    fn what_is_left_behind_is_named() {
        let before = at("0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0", &[0, 1]);
        let after = at(
            "0: rxe0: pd 1 cq 2 qp 1 cm_id 0 mr 0 ctx 1 srq 0",
            &[0, 1, 7],
        );
        assert_eq!(
            before.difference(&after),
            " rxe0 cq 1 -> 2; descriptors 2 -> 3, 7 is target 7"
        );
        assert_eq!(before.difference(&before), "");
    }

    #[test]
    fn a_device_that_came_or_went_is_a_difference() {
        let before = at("", &[]);
        let after = at("0: rxe0: pd 1", &[]);
        assert_eq!(before.difference(&after), " rxe0 pd 0 -> 1;");
        assert_eq!(after.difference(&before), " rxe0 pd 1 -> 0;");
    }
}
