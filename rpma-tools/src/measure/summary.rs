//! A running summary of times: constant memory, no sample kept.

use std::time::Duration;

/// Number of samples, minimum, mean, maximum and deviation of a series of times.
///
/// Mean and deviation follow Welford's method, so that a long run loses no precision to a sum of
/// squares. What is undefined is `None` and never a NaN: everything without a sample, the
/// deviation (sample standard deviation, divisor n − 1) with fewer than two.
///
/// ```
/// use rpma_tools::measure::Summary;
/// use std::time::Duration;
///
/// let mut summary = Summary::default();
/// assert_eq!(summary.mean_ns(), None);
/// for micros in [10, 20, 30] {
///     summary.record(Duration::from_micros(micros));
/// }
/// assert_eq!(summary.mean_ns(), Some(20_000.0));
/// assert_eq!(summary.deviation_ns(), Some(10_000.0));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    samples: u64,
    min: u64,
    max: u64,
    mean: f64,
    squares: f64,
}

impl Summary {
    /// Takes one more sample in. A time beyond 584 years counts as that.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if self.samples == 0 {
            self.min = ns;
            self.max = ns;
        } else {
            self.min = self.min.min(ns);
            self.max = self.max.max(ns);
        }
        self.samples = self.samples.saturating_add(1);
        let value = ns as f64;
        let before = value - self.mean;
        self.mean += before / self.samples as f64;
        self.squares += before * (value - self.mean);
    }

    /// How many samples there are.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The smallest sample in nanoseconds.
    pub fn min_ns(&self) -> Option<u64> {
        (self.samples > 0).then_some(self.min)
    }

    /// The largest sample in nanoseconds.
    pub fn max_ns(&self) -> Option<u64> {
        (self.samples > 0).then_some(self.max)
    }

    /// The mean in nanoseconds.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.samples > 0).then_some(self.mean)
    }

    /// The sample standard deviation in nanoseconds; needs two samples.
    pub fn deviation_ns(&self) -> Option<f64> {
        (self.samples > 1).then(|| (self.squares.max(0.0) / (self.samples - 1) as f64).sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nanos: &[u64]) -> Summary {
        let mut summary = Summary::default();
        for &ns in nanos {
            summary.record(Duration::from_nanos(ns));
        }
        summary
    }

    #[test]
    fn nothing_recorded_is_undefined_everywhere() {
        let summary = of(&[]);
        assert_eq!(summary.samples(), 0);
        assert_eq!(summary.min_ns(), None);
        assert_eq!(summary.max_ns(), None);
        assert_eq!(summary.mean_ns(), None);
        assert_eq!(summary.deviation_ns(), None);
    }

    #[test]
    fn one_sample_has_a_mean_and_no_deviation() {
        let summary = of(&[1234]);
        assert_eq!(summary.min_ns(), Some(1234));
        assert_eq!(summary.max_ns(), Some(1234));
        assert_eq!(summary.mean_ns(), Some(1234.0));
        assert_eq!(summary.deviation_ns(), None);
    }

    #[test]
    fn a_zero_sample_is_a_sample() {
        assert_eq!(of(&[0]).min_ns(), Some(0));
        assert_eq!(of(&[0, 0]).deviation_ns(), Some(0.0));
        assert_eq!(of(&[5, 0]).min_ns(), Some(0));
    }

    #[test]
    fn the_deviation_is_the_sample_standard_deviation() {
        let summary = of(&[2, 4, 4, 4, 5, 5, 7, 9]);
        assert_eq!(summary.mean_ns(), Some(5.0));
        let expected = (32.0_f64 / 7.0).sqrt();
        assert!((summary.deviation_ns().unwrap() - expected).abs() < 1e-12);
    }

    #[test]
    fn a_small_spread_on_a_large_offset_survives() {
        let base = 1_000_000_000_000_u64;
        let summary = of(&[base, base + 1, base + 2]);
        assert!((summary.deviation_ns().unwrap() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn the_longest_times_stay_finite() {
        let mut summary = Summary::default();
        summary.record(Duration::MAX);
        summary.record(Duration::MAX);
        summary.record(Duration::ZERO);
        assert_eq!(summary.max_ns(), Some(u64::MAX));
        assert!(summary.mean_ns().unwrap().is_finite());
        assert!(summary.deviation_ns().unwrap().is_finite());
    }
}
