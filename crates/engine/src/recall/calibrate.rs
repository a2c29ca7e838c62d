//! Measures recall curves.
//!
//! A curve holds measured points: with this beam and this slack, so much recall for so many reads. It is measured on
//! queries whose neighbours are known exactly: rows of the index, each hidden from its own search (build), or the
//! user's own queries (`tune`).

use super::curve::{Curve, Point};
use crate::driver::Width;
use crate::index::Index;
use crate::kinds;
use crate::search::{self, SearchOptions};
use crate::{Error, Progress, Result};

/// Measures a curve on `queries` (rows of the index' type, as bytes), whose true neighbours are `truth` (`truth_k`
/// ids each).
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
    (threads, in_flight): (usize, usize),
    progress: &dyn Progress,
) -> Result<Curve> {
    // Long answers average over more neighbours each, so fewer queries tell as much.
    let count =
        (queries.len() / index.base.row_bytes()).min(QUERY_NEIGHBOURS.div_ceil(k as usize).max(QUERIES_MIN));
    let queries = &queries[..count * index.base.row_bytes()];
    let grid = index.kind.grid(k);
    let rules = |effort: u32| grid.rules.iter().filter(move |rule| !(grid.is_needless)(effort, rule));
    let runs: usize = grid.efforts.iter().map(|&effort| rules(effort).count()).sum();
    progress.stage(&format!("calibrating recall@{k}"), (runs * count) as u64, "queries");
    let options = SearchOptions {
        k: k as usize,
        threads,
        width: Width::Fixed(1),
        in_flight: Some(in_flight),
        ..SearchOptions::default()
    };
    let hide = |q: usize| hidden.get(q).copied().unwrap_or(u32::MAX);
    // Reads of resident lists are counted: searches may have less memory.
    let resident = index.kind.resident_share();
    let kind = index.base.kind;
    let variant = best_variant(index, queries, (truth, truth_k), &hide, &options, progress)?;
    let mut measured = Vec::new();
    for &effort in &grid.efforts {
        let mut best = 0.0;
        for &stop in rules(effort) {
            let mut point = Point { effort, stop, recall: 0.0, reads: 0.0 };
            let params = kinds::params_at(kind, k, &point, variant);
            let answers = index.search_each(queries, params, &hide, &options, progress)?;
            if let Some((query, why)) = answers.failed.first() {
                return Err(Error::corrupt(format!("calibration query {query}: {why}")));
            }
            point.recall = search::recall(&answers.ids, answers.k, truth, truth_k);
            point.reads =
                (answers.stats.reads_asked() as f64 + resident * answers.stats.lists as f64) / count as f64;
            best = f64::max(best, point.recall);
            measured.push(point);
        }
        if best > RECALL_ENOUGH {
            break;
        }
    }
    let variant = variant.map(str::to_string);
    Ok(Curve { k, queries: count, source: source.into(), kth_distance: None, variant, points: measured })
}

/// The variant of the kind that finds most of the true neighbours at equal effort.
fn best_variant(
    index: &Index,
    queries: &[u8],
    (truth, truth_k): (&[u64], usize),
    hide: &(dyn Fn(usize) -> u32 + Sync),
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Option<&'static str>> {
    let (variants, point) = kinds::variants(index.base.kind);
    let mut best: Option<(f64, &'static str)> = None;
    for &variant in variants {
        let params = kinds::params_at(index.base.kind, options.k as u32, &point, Some(variant));
        let answers = index.search_each(queries, params, hide, options, progress)?;
        let found = search::recall(&answers.ids, answers.k, truth, truth_k);
        if best.is_none_or(|b| found > b.0) {
            best = Some((found, variant));
        }
    }
    Ok(best.map(|b| b.1))
}

/// Neighbours looked for by all queries of a point together, at most, but by so many queries at least.
const QUERY_NEIGHBOURS: usize = 10_000;
const QUERIES_MIN: usize = 100;
/// Nobody asks for more than this by recall.
const RECALL_ENOUGH: f64 = 0.995;
