//! The settings of a `disk-graph` that calibration measures: beam lengths and stop rules.

use stratann_core::query::Params;

use crate::recall::curve::{Grid, Point, StopRule};

/// Beam lengths that are tried, as multiples of k, on top of [`SPARE`].
const LISTS: [f64; 10] = [0.2, 0.8, 1.5, 2.4, 3.6, 5.5, 8.5, 14.0, 22.0, 36.0];
const SPARE: u32 = 8;
/// Stop rules that are tried with each: standard errors of a code distance beyond the k-th result, and fruitless reads in a row as a share of
/// the beam. What they bring is in `decisions/`.
const STOP_RULES: [StopRule; 3] = [
    StopRule { slack: None, share: 0.0 },
    StopRule { slack: Some(0.5), share: 0.25 },
    StopRule { slack: Some(0.0), share: 0.2 },
];

/// What is measured for k results.
pub(crate) fn grid(k: u32) -> Grid {
    let beam = |multiple: &f64| ((f64::from(k) * multiple).ceil() as u32 + SPARE).max(k);
    Grid { efforts: LISTS.iter().map(beam).collect(), rules: &STOP_RULES, is_needless: |_, _| false }
}

/// The parameters of a point: its effort is the length of the beam, its share that of fruitless reads that end the search.
pub(crate) fn params(k: u32, point: &Point) -> Params {
    let list = point.effort.max(k);
    let patience = (list as f32 * point.stop.share).ceil() as u32;
    Params { stop_slack: point.stop.slack.unwrap_or(f32::INFINITY), patience, ..Params::new(k, list) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beams_are_never_shorter_than_the_answer() {
        let point = Point { effort: 20, ..Point::default() };
        assert_eq!([10, 300].map(|k| params(k, &point).search_list), [20, 300]);
    }
}
