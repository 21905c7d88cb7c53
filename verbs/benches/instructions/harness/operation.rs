//! An operation, as two loops over it.

use super::provider::set_ready;

/// A loop over one operation: the rounds to make, and how many succeeded.
type Loop<R> = extern "C" fn(&R, u64) -> u64;

/// One operation.
pub(crate) struct Operation<R> {
    pub(crate) name: &'static str,
    /// How many instructions more than the raw loop it may take.
    pub(crate) allowed: f64,
    pub(crate) raw: (&'static str, Loop<R>),
    pub(crate) ours: (&'static str, Loop<R>),
    /// Completions that a poll finds.
    pub(crate) ready: i32,
}

impl<R> Operation<R> {
    /// Runs both loops, and gives the number of rounds that failed or were not made.
    pub(crate) fn run(&self, rig: &R, rounds: u64) -> u64 {
        set_ready(self.ready);
        2 * rounds - self.raw.1(rig, rounds) - self.ours.1(rig, rounds)
    }
}

/// Defines the loops on the `Rig` in scope, with the list of them.
macro_rules! operations {
    ($(
        $name:literal, +$allowed:literal, $ready:literal ready:
        $raw:ident = |$raw_rig:ident, $raw_round:ident| $raw_body:block
        $ours:ident = |$our_rig:ident, $our_round:ident| $our_body:block
    )*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $raw($raw_rig: &Rig, rounds: u64) -> u64 {
                for $raw_round in 0..rounds {
                    let succeeded: bool = $raw_body;
                    if !succeeded {
                        return $raw_round;
                    }
                }
                rounds
            }

            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $ours($our_rig: &Rig, rounds: u64) -> u64 {
                for $our_round in 0..rounds {
                    let succeeded: bool = $our_body;
                    if !succeeded {
                        return $our_round;
                    }
                }
                rounds
            }
        )*

        /// All of them, in the order of the table.
        pub(crate) const OPERATIONS: &[$crate::harness::Operation<Rig>] = &[$(
            $crate::harness::Operation {
                name: $name,
                allowed: $allowed,
                raw: (stringify!($raw), $raw),
                ours: (stringify!($ours), $ours),
                ready: $ready,
            },
        )*];
    };
}

pub(crate) use operations;
