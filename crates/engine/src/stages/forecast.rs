//! Expected time of a build: from the size of the set, and corrected by the times of the first stages.

use super::options::BuildOptions;
use super::plan::BuildPlan;
use super::stage::Stage;
use crate::codebook::{MULTIPLY_NS, PAIR_NS, bits};
use crate::dataset::Shape;
use stratann_storage::Expected;

/// The stages of a build in their order, each with the seconds that it is expected to take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Forecast {
    stages: Vec<(Stage, f64)>,
    // Of the stages that have ended: what was expected, and what they took.
    expected_s: f64,
    took_s: f64,
}

/// Stages of less than this say little about the machine.
const SHORT_S: f64 = 0.2;

impl Forecast {
    pub(crate) fn new(stages: Vec<(Stage, f64)>) -> Forecast {
        Forecast { stages, expected_s: 0.0, took_s: 0.0 }
    }

    /// Seconds of all stages.
    pub(crate) fn total_s(&self) -> f64 {
        self.stages.iter().map(|stage| stage.1).sum()
    }

    /// A stage and those after it, at the speed of the stages that have ended. Nothing is expected of a stage that has
    /// no forecast.
    pub(crate) fn left_from(&self, stage: Stage) -> Expected {
        let speed = (self.took_s + SHORT_S) / (self.expected_s + SHORT_S);
        let Some(at) = self.stages.iter().position(|planned| planned.0 == stage) else {
            return Expected::default();
        };
        let later: f64 = self.stages[at + 1..].iter().map(|stage| stage.1).sum();
        Expected { now_s: self.stages[at].1 * speed, in_parts: stage.in_parts, later_s: later * speed }
    }

    /// Takes in the seconds that a stage took.
    pub(crate) fn ended(&mut self, stage: Stage, took_s: f64) {
        if let Some(planned) = self.stages.iter().find(|planned| planned.0 == stage) {
            self.expected_s += planned.1;
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
    /// Rows of the sample that codes are prepared with, at most.
    pub(crate) codebook_sample: f64,
    /// Whether all points are one cell.
    pub(crate) is_one_cell: bool,
}

impl Size {
    pub(crate) fn of(shape: &Shape, plan: &BuildPlan) -> Size {
        Size {
            rows: shape.rows as f64,
            dim: shape.dim as f64,
            bytes: shape.rows as f64 * shape.row_bytes() as f64,
            threads: plan.threads.max(1) as f64,
            codebook_sample: plan.codebook_sample as f64,
            is_one_cell: plan.in_ram,
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

    /// Preparing codes with a sample.
    pub(crate) fn codebook_s(&self) -> f64 {
        bits::seconds(self.rows.min(self.codebook_sample), self.dim, self.threads)
    }

    /// Encoding all rows.
    pub(crate) fn encoding_s(&self) -> f64 {
        // Besides the steps that are tried: distances to centroids, and the product with a basis.
        self.shared_s(self.rows * self.dim * (BITS_NS + (256.0 + self.dim) * ENCODING_NS))
    }

    /// Two scans for exact neighbours of the calibration queries.
    pub(crate) fn truth_s(&self, options: &BuildOptions) -> f64 {
        let queries = options.calibration_rows(self.rows as usize) as f64;
        self.shared_s(2.0 * self.rows * queries * (PAIR_NS + self.dim * MULTIPLY_NS))
    }
}

/// Nanoseconds on a current processor: of a byte of the scan, and of a multiplication while rows are encoded.
const SCAN_NS: f64 = 0.5;
const ENCODING_NS: f64 = 0.05;
/// Nanoseconds of a component that becomes some bits: the steps that are tried.
const BITS_NS: f64 = 20.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::stage::{CALIBRATE, CODEBOOK, SCAN};

    const GRAPH: Stage = Stage::named("graph");

    #[test]
    fn a_slow_machine_is_noticed_after_a_stage() {
        let mut forecast =
            Forecast::new(vec![(SCAN, 0.1), (CODEBOOK, 10.0), (GRAPH, 20.0), (CALIBRATE, 4.0)]);
        let codebook = Expected { now_s: 10.0, in_parts: false, later_s: 24.0 };
        assert_eq!(forecast.left_from(CODEBOOK), codebook);
        assert!(forecast.left_from(CALIBRATE).in_parts);
        assert!((forecast.total_s() - 34.1).abs() < 1e-9);
        forecast.ended(CODEBOOK, 30.0);
        let Expected { now_s: graph, later_s: later, .. } = forecast.left_from(GRAPH);
        assert!((58.0..60.1).contains(&graph) && (11.6..12.1).contains(&later), "{graph} {later}");
        assert_eq!(forecast.left_from(Stage::named("unknown")), Expected::default());
    }

    #[test]
    fn stages_without_a_forecast_change_nothing() {
        let mut forecast = Forecast::new(vec![(GRAPH, 20.0)]);
        forecast.ended(Stage::named("numbered"), 100.0);
        assert_eq!(forecast.left_from(GRAPH).now_s, 20.0);
    }
}
