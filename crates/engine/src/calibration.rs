//! From a wanted recall to the parameters of a search.
//!
//! A curve holds measured points: with this beam and this slack, so much recall for so many reads. It is measured on queries whose
//! neighbours are known exactly: rows of the index, each hidden from its own search (build), or the user's own queries (`tune`).

use serde::{Deserialize, Serialize};
use stratann_core::query::{MAX_SEARCH_LIST, Params};

use crate::driver::Width;
use crate::index::Index;
use crate::search::{self, SearchOptions};
use crate::{Error, Progress, Result};

/// One measured setting.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Length of the beam.
    pub search_list: u32,
    /// Slack of the adaptive stop; `null` when it is off.
    pub stop_slack: Option<f32>,
    /// Mean recall@k.
    pub recall: f64,
    /// Mean reads per query.
    pub reads: f64,
}

/// What recall costs for one k. Points are sorted by recall, and each is the cheapest known for its recall.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Results asked for.
    pub k: u32,
    /// Queries it was measured on.
    pub queries: usize,
    /// Where they came from: `rows` or `queries`.
    pub source: String,
    /// The measured frontier.
    pub points: Vec<Point>,
}

impl Curve {
    /// Keeps of `measured` what no other point beats in both recall and reads.
    pub fn frontier(k: u32, queries: usize, source: &str, mut measured: Vec<Point>) -> Curve {
        measured.sort_by(|a, b| a.reads.total_cmp(&b.reads).then(b.recall.total_cmp(&a.recall)));
        let mut best = f64::NEG_INFINITY;
        measured.retain(|p| {
            let keep = p.recall > best;
            best = best.max(p.recall);
            keep
        });
        Curve { k, queries, source: source.into(), points: measured }
    }

    /// The cheapest setting that reaches `recall`: between two points of the same kind the beam and the slack are interpolated.
    ///
    /// `Err` holds the highest recall of the curve when none reaches it.
    pub fn setting(&self, recall: f64) -> std::result::Result<Point, f64> {
        let Some(at) = self.points.iter().position(|p| p.recall >= recall) else {
            return Err(self.points.last().map_or(0.0, |p| p.recall));
        };
        let above = self.points[at];
        let Some(below) = at.checked_sub(1).map(|i| self.points[i]) else { return Ok(above) };
        let (Some(low), Some(high)) = (below.stop_slack, above.stop_slack) else { return Ok(above) };
        let share = (recall - below.recall) / (above.recall - below.recall);
        let list = f64::from(below.search_list) + share * (f64::from(above.search_list) - f64::from(below.search_list));
        Ok(Point {
            search_list: list.ceil() as u32,
            stop_slack: Some(low + (high - low) * share as f32),
            recall,
            reads: below.reads + share * (above.reads - below.reads),
        })
    }
}

/// The setting for `k` results at `recall`, from the curve of the nearest k that is not smaller, or else the largest.
pub fn choose(curves: &[Curve], k: u32, recall: f64) -> Option<std::result::Result<Point, f64>> {
    let curve = curves.iter().filter(|c| c.k >= k).min_by_key(|c| c.k).or_else(|| curves.iter().max_by_key(|c| c.k))?;
    Some(curve.setting(recall).map(|mut point| {
        if curve.k < k {
            // A longer answer needs a beam longer in proportion.
            point.search_list = (u64::from(point.search_list) * u64::from(k) / u64::from(curve.k.max(1)))
                .min(u64::from(MAX_SEARCH_LIST)) as u32;
        }
        point.search_list = point.search_list.max(k);
        point
    }))
}

impl Point {
    /// These settings as parameters of a query.
    pub fn params(&self, k: u32) -> Params {
        Params { stop_slack: self.stop_slack.unwrap_or(f32::INFINITY), ..Params::new(k, self.search_list) }
    }
}

/// Measures a curve on `queries` (rows of the index' type, as bytes), whose true neighbours are `truth` (`truth_k` ids each).
///
/// `hidden` names for each query a node that it must not see; it may be empty.
#[allow(clippy::too_many_arguments)]
pub(crate) fn measure(
    index: &Index,
    queries: &[u8],
    truth: &[u64],
    truth_k: usize,
    hidden: &[u32],
    k: u32,
    source: &str,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Curve> {
    let lists: Vec<u32> = LISTS.iter().map(|share| ((f64::from(k) * share).ceil() as u32 + SPARE).max(k)).collect();
    progress.stage(&format!("calibrating recall@{k}"), (lists.len() * queries.len() / index.block.vector_bytes) as u64, "queries");
    let options = SearchOptions { k: k as usize, threads, width: Width::Fixed(1), ..SearchOptions::default() };
    let count = queries.len() / index.block.vector_bytes;
    let hide = |q: usize| hidden.get(q).copied().unwrap_or(u32::MAX);
    let mut measured = Vec::new();
    for &search_list in &lists {
        let mut best = 0.0;
        for slack in SLACKS {
            let mut point = Point { search_list, stop_slack: slack, recall: 0.0, reads: 0.0 };
            let answers = index.search_each(queries, point.params(k), &hide, &options, progress)?;
            if let Some((query, why)) = answers.failed.first() {
                return Err(Error::corrupt(format!("calibration query {query}: {why}")));
            }
            point.recall = search::recall(&answers.ids, answers.k, truth, truth_k);
            point.reads = answers.stats.reads as f64 / count as f64;
            best = f64::max(best, point.recall);
            measured.push(point);
        }
        if best > RECALL_ENOUGH {
            break;
        }
    }
    Ok(Curve::frontier(k, count, source, measured))
}

/// Beam lengths that are tried, as multiples of k, on top of [`SPARE`].
const LISTS: [f64; 14] = [0.2, 0.5, 0.8, 1.2, 1.8, 2.6, 3.6, 5.0, 7.0, 10.0, 14.0, 20.0, 30.0, 45.0];
const SPARE: u32 = 8;
/// Slacks of the adaptive stop that are tried with each.
const SLACKS: [Option<f32>; 5] = [None, Some(0.4), Some(0.25), Some(0.15), Some(0.08)];
/// Nobody asks for more than this by recall.
const RECALL_ENOUGH: f64 = 0.9985;

#[cfg(test)]
mod tests {
    use super::*;

    fn point(search_list: u32, slack: Option<f32>, recall: f64, reads: f64) -> Point {
        Point { search_list, stop_slack: slack, recall, reads }
    }

    #[test]
    fn the_frontier_drops_what_is_beaten() {
        let all = vec![point(10, None, 0.8, 10.0), point(20, None, 0.9, 20.0), point(12, None, 0.79, 12.0), point(18, None, 0.95, 18.0)];
        let curve = Curve::frontier(10, 5, "rows", all);
        assert_eq!(curve.points.iter().map(|p| p.search_list).collect::<Vec<_>>(), [10, 18]);
        assert_eq!(curve.setting(0.9).unwrap().search_list, 18);
        assert_eq!(curve.setting(0.99), Err(0.95));
    }

    #[test]
    fn settings_of_one_kind_are_interpolated() {
        let curve = Curve::frontier(10, 5, "rows", vec![point(10, Some(0.1), 0.8, 10.0), point(20, Some(0.3), 0.9, 20.0)]);
        let middle = curve.setting(0.85).unwrap();
        assert_eq!(middle.search_list, 15);
        assert!((middle.stop_slack.unwrap() - 0.2).abs() < 1e-6 && (middle.reads - 15.0).abs() < 1e-9);
    }

    #[test]
    fn a_larger_k_takes_a_longer_beam() {
        let curves = [Curve::frontier(10, 5, "rows", vec![point(20, None, 0.9, 20.0)])];
        assert_eq!(choose(&curves, 100, 0.9).unwrap().unwrap().search_list, 200);
        assert_eq!(choose(&curves, 1, 0.9).unwrap().unwrap().search_list, 20);
        assert!(choose(&[], 1, 0.9).is_none());
    }
}
