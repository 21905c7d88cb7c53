//! The steps, how long they took, and the table that tells it.

use std::fmt;
use std::time::Duration;

/// A step of every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    CreateId,
    BindAddr,
    ResolveAddr,
    ResolveRoute,
    CreateQp,
    Connect,
    Disconnect,
    Destroy,
}

impl Step {
    const ALL: [Self; 8] = [
        Self::CreateId,
        Self::BindAddr,
        Self::ResolveAddr,
        Self::ResolveRoute,
        Self::CreateQp,
        Self::Connect,
        Self::Disconnect,
        Self::Destroy,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::CreateId => "create id",
            Self::BindAddr => "bind addr",
            Self::ResolveAddr => "resolve addr",
            Self::ResolveRoute => "resolve route",
            Self::CreateQp => "create qp",
            Self::Connect => "connect",
            Self::Disconnect => "disconnect",
            Self::Destroy => "destroy",
        }
    }

    /// What is done in it, as the C program announces it.
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Self::CreateId => "creating id",
            Self::BindAddr => "binding source address",
            Self::ResolveAddr => "resolving address",
            Self::ResolveRoute => "resolving route",
            Self::CreateQp => "creating qp",
            Self::Connect => "connecting",
            Self::Disconnect => "disconnecting",
            Self::Destroy => "destroying id",
        }
    }
}

/// How long a step took: all connections together, and each.
#[derive(Debug, Clone, Default)]
struct Row {
    taken: bool,
    total: Duration,
    max: Duration,
    min: Option<Duration>,
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Table {
    connections: u32,
    rows: [Row; Step::ALL.len()],
}

impl Table {
    pub(crate) fn new(connections: u32) -> Self {
        Self {
            connections,
            rows: Default::default(),
        }
    }

    /// One connection has taken a step.
    pub(crate) fn add(&mut self, step: Step, took: Duration) {
        let row = &mut self.rows[step as usize];
        row.max = row.max.max(took);
        row.min = Some(row.min.map_or(took, |min| min.min(took)));
    }

    /// All connections that came so far have.
    pub(crate) fn finish(&mut self, step: Step, total: Duration) {
        let row = &mut self.rows[step as usize];
        row.taken = true;
        row.total = total;
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<15}{:>11}{:>11}{:>11}{:>11}",
            "step", "total ms", "max ms", "min us", "us / conn"
        )?;
        for (step, row) in Step::ALL.into_iter().zip(&self.rows) {
            if !row.taken {
                continue;
            }
            let micros = |time: Duration| time.as_secs_f64() * 1e6;
            writeln!(
                f,
                "{:<13}: {:>11.2}{:>11.2}{:>11.2}{:>11.2}",
                step.name(),
                micros(row.total) / 1e3,
                micros(row.max) / 1e3,
                micros(row.min.unwrap_or_default()),
                micros(row.total) / f64::from(self.connections)
            )?;
        }
        Ok(())
    }
}
