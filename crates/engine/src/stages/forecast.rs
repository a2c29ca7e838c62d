//! How long a build takes: expected from the size of the set, and corrected by what the first stages took.

use super::options::BuildOptions;
use super::plan::BuildPlan;
use crate::codebook::{CodebookOptions, MULTIPLY_NS, PAIR_NS, training_seconds};
use crate::dataset::Shape;
use stratann_params::choices::CodeKind;
use stratann_storage::Expected;

/// The stages of a build in their order, each with the seconds that it is expected to take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forecast {
    stages: Vec<(&'static str, f64)>,
    // Of the stages that have ended: what was expected, and what they took.
    expected_s: f64,
    took_s: f64,
}

/// Stages of a build that report their progress as several, of which none is most of the work.
const IN_PARTS: [&str; 3] = ["calibrate", "clusters", "plan"];

/// Stages of less than this say little about the machine.
const SHORT_S: f64 = 0.2;

impl Forecast {
    pub(crate) fn new(stages: Vec<(&'static str, f64)>) -> Forecast {
        Forecast { stages, expected_s: 0.0, took_s: 0.0 }
    }

    /// Seconds of all stages.
    pub(crate) fn total_s(&self) -> f64 {
        self.stages.iter().map(|stage| stage.1).sum()
    }

    /// A stage and those after it, at the speed of the stages that have ended. Nothing is expected of a stage that has
    /// no forecast.
    pub(crate) fn left_from(&self, name: &str) -> Expected {
        let speed = (self.took_s + SHORT_S) / (self.expected_s + SHORT_S);
        let Some(at) = self.stages.iter().position(|stage| stage.0 == name) else {
            return Expected::default();
        };
        let later: f64 = self.stages[at + 1..].iter().map(|stage| stage.1).sum();
        Expected {
            now_s: self.stages[at].1 * speed,
            in_parts: IN_PARTS.contains(&name),
            later_s: later * speed,
        }
    }

    /// Takes in what a stage took.
    pub(crate) fn ended(&mut self, name: &str, took_s: f64) {
        if let Some(stage) = self.stages.iter().find(|stage| stage.0 == name) {
            self.expected_s += stage.1;
            self.took_s += took_s;
        }
    }
}

/// The size of the work, in the terms of the forecasts of all kinds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) rows: f64,
    pub(crate) dim: f64,
    /// Bytes of all rows.
    pub(crate) bytes: f64,
    pub(crate) threads: f64,
}

impl Size {
    pub(crate) fn of(shape: &Shape, plan: &BuildPlan) -> Size {
        Size {
            rows: shape.rows as f64,
            dim: shape.dim as f64,
            bytes: shape.rows as f64 * shape.row_bytes() as f64,
            threads: plan.threads.max(1) as f64,
        }
    }

    /// Seconds of so many nanoseconds of work that all threads share.
    pub(crate) fn shared_s(&self, work_ns: f64) -> f64 {
        work_ns * 1e-9 / self.threads
    }

    /// The scan of all rows.
    pub(crate) fn scan_s(&self) -> f64 {
        self.shared_s(self.bytes * SCAN_NS)
    }

    /// Training a codebook of this kind on a sample.
    pub(crate) fn codebook_s(&self, plan: &BuildPlan, options: &CodebookOptions) -> f64 {
        let sample = self.rows.min(plan.codebook_sample as f64);
        training_seconds(sample, self.dim, options, self.threads)
    }

    /// Encoding all rows.
    pub(crate) fn encoding_s(&self, kind: CodeKind) -> f64 {
        let centroids = if kind == CodeKind::ResidualOpq { 5.0 } else { 1.0 } * 256.0;
        self.shared_s(self.rows * self.dim * (centroids + self.dim) * ENCODING_NS)
    }

    /// Two scans for exact neighbours of the calibration queries.
    pub(crate) fn truth_s(&self, options: &BuildOptions) -> f64 {
        let queries = options.calibration_queries as f64;
        self.shared_s(2.0 * self.rows * queries * (PAIR_NS + self.dim * MULTIPLY_NS))
    }
}

/// Nanoseconds on a current processor: of a byte of the scan, and of a multiplication while rows are encoded.
const SCAN_NS: f64 = 0.5;
const ENCODING_NS: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_is_noticed_after_a_stage() {
        let mut forecast =
            Forecast::new(vec![("scan", 0.1), ("codebook", 10.0), ("graph", 20.0), ("calibrate", 4.0)]);
        let codebook = Expected { now_s: 10.0, in_parts: false, later_s: 24.0 };
        assert_eq!(forecast.left_from("codebook"), codebook);
        assert!(forecast.left_from("calibrate").in_parts);
        assert!((forecast.total_s() - 34.1).abs() < 1e-9);
        forecast.ended("codebook", 30.0);
        let Expected { now_s: graph, later_s: later, .. } = forecast.left_from("graph");
        assert!((58.0..60.1).contains(&graph) && (11.6..12.1).contains(&later), "{graph} {later}");
        assert_eq!(forecast.left_from("unknown"), Expected::default());
    }

    #[test]
    fn stages_without_a_forecast_change_nothing() {
        let mut forecast = Forecast::new(vec![("graph", 20.0)]);
        forecast.ended("numbered", 100.0);
        assert_eq!(forecast.left_from("graph").now_s, 20.0);
    }
}
