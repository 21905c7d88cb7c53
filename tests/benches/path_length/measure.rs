//! Taking times of what is compared, in turns.

use std::time::Instant;

use libtest_mimic::Failed;

/// How often all candidates have their turn, and how often each repeats in it.
pub(crate) const TURNS: usize = 9;

/// One way to do what is compared.
pub(crate) trait Candidate {
    /// What it is called in the table.
    fn name(&self) -> &'static str;

    /// Does it once, telling the clock after each step.
    fn once(&mut self, clock: &mut Clock) -> Result<(), Failed>;
}

/// Takes the time of each step. Steps belong to parts, which are what limits are about.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Instant,
    steps: Vec<Step>,
}

/// The instructions of one step.
#[derive(Debug, Clone, Copy)]
struct Step {
    part: &'static str,
    name: &'static str,
    cost: u64,
}

impl Clock {
    /// A step begins now.
    pub(crate) fn start() -> Self {
        Self {
            steps: Vec::with_capacity(32),
            last: Instant::now(),
        }
    }

    /// A step has been done.
    pub(crate) fn step(&mut self, part: &'static str, name: &'static str) {
        let now = Instant::now();
        let cost = u64::try_from((now - self.last).as_nanos()).unwrap_or(u64::MAX);
        self.steps.push(Step { part, name, cost });
        // What this function does is not part of the next step.
        self.last = Instant::now();
    }
}

/// What the steps of one candidate cost.
#[derive(Debug)]
pub(crate) struct Costs {
    name: &'static str,
    /// Part, step, instructions.
    steps: Vec<(&'static str, &'static str, u64)>,
    parts: Vec<(&'static str, u64)>,
}

impl Costs {
    /// The instructions of a part.
    pub(crate) fn of(&self, part: &str) -> Result<u64, Failed> {
        let found = self.parts.iter().find(|(name, _)| *name == part);
        Ok(found.ok_or("a part that nobody measured")?.1)
    }
}

/// Lets the candidates run in turns; of each step and part the median of the turns' medians.
///
/// # Errors
/// The failed step.
pub(crate) fn in_turns(
    candidates: &mut [Box<dyn Candidate + '_>],
    repeats: usize,
) -> Result<Vec<Costs>, Failed> {
    // Steps by turn: what each repeat took.
    let mut all: Vec<Vec<Vec<Vec<Step>>>> = candidates.iter().map(|_| Vec::new()).collect();
    for turn in 0..=TURNS {
        for (candidate, turns) in candidates.iter_mut().zip(&mut all) {
            let mut runs = Vec::with_capacity(repeats);
            for _ in 0..repeats {
                let mut clock = Clock::start();
                candidate.once(&mut clock)?;
                runs.push(clock.steps);
            }
            // The first turn makes the allocators' lists and caches what they stay.
            if turn > 0 {
                turns.push(runs);
            }
        }
    }
    let costs = candidates.iter().zip(&all);
    Ok(costs
        .map(|(candidate, turns)| summary(candidate.name(), turns))
        .collect())
}

fn summary(name: &'static str, turns: &[Vec<Vec<Step>>]) -> Costs {
    let order: Vec<Step> = turns
        .first()
        .and_then(|runs| runs.first())
        .cloned()
        .unwrap_or_default();
    let of = |wanted: &dyn Fn(&Step) -> bool| {
        let middles = turns.iter().map(|runs| {
            median(
                runs.iter()
                    .map(|steps| steps.iter().filter(|s| wanted(s)).map(|s| s.cost).sum())
                    .collect(),
            )
        });
        median(middles.collect())
    };
    let mut parts: Vec<(&'static str, u64)> = Vec::new();
    for step in &order {
        if !parts.iter().any(|(name, _)| *name == step.part) {
            parts.push((step.part, of(&|s: &Step| s.part == step.part)));
        }
    }
    let cost = |step: &Step| of(&|s: &Step| (s.part, s.name) == (step.part, step.name));
    let steps = order
        .iter()
        .map(|step| (step.part, step.name, cost(step)))
        .collect();
    Costs { name, steps, parts }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// One line for each step and part, one column for each candidate, the first with the ratio of the others to it.
pub(crate) fn print(all: &[Costs]) {
    let Some(first) = all.first() else { return };
    let row = |name: &str, values: &[u64]| {
        let base = values.first().copied().unwrap_or(0);
        let mut line = format!("{name:<38}");
        for (index, value) in values.iter().enumerate() {
            line.push_str(&format!("{value:>12}"));
            if index > 0 {
                line.push_str(&format!(" {:>7}", ratio_text(*value, base)));
            }
        }
        println!("{line}");
    };
    let mut heading = format!("{:<38}", "instructions");
    for (index, costs) in all.iter().enumerate() {
        heading.push_str(&format!("{:>12}", costs.name));
        if index > 0 {
            heading.push_str("        ");
        }
    }
    // Behind the name of the test.
    println!("\n{heading}");
    for (part, total) in &first.parts {
        for (_, name, _) in first.steps.iter().filter(|(of, ..)| of == part) {
            let values: Vec<u64> = all
                .iter()
                .map(|costs| {
                    let found = costs.steps.iter().find(|s| (s.0, s.1) == (*part, *name));
                    found.map_or(0, |step| step.2)
                })
                .collect();
            row(&format!("  {name}"), &values);
        }
        let mut values = vec![*total];
        values.extend(all.iter().skip(1).map(|costs| costs.of(part).unwrap_or(0)));
        row(part, &values);
    }
}

fn ratio_text(value: u64, base: u64) -> String {
    thousandths(value, base).map_or_else(
        || "-".to_owned(),
        |ratio| format!("{}.{:03}", ratio / 1000, ratio % 1000),
    )
}

/// `value / base` in thousandths, rounded up.
fn thousandths(value: u64, base: u64) -> Option<u64> {
    value
        .checked_mul(1000)?
        .checked_next_multiple_of(base)?
        .checked_div(base)
}

/// Fails where `ours` is more than `limit` thousandths of `base`.
///
/// # Errors
/// Both numbers, their ratio and the limit.
pub(crate) fn at_most(what: &str, ours: u64, base: u64, limit: u64) -> Result<(), Failed> {
    match thousandths(ours, base) {
        Some(ratio) if ratio <= limit => Ok(()),
        _ => Err(format!(
            "{what}: {ours} instructions are {} times {base}, and may be {}.{:03} times",
            ratio_text(ours, base),
            limit / 1000,
            limit % 1000
        )
        .into()),
    }
}
