//! The last stage: what recall costs on this index, measured with rows of its own.
//!
//! Each drawn row is asked for its neighbours while it is hidden from its own search, and left out of its own truth.
//! That is as near as rows come to queries that the index has never seen.

use super::stages::Build;
use crate::budget::{PROGRAM_BYTES, release_freed};
use crate::dataset::Scan;
use crate::groundtruth;
use crate::index::{Index, OpenOptions};
use crate::manifest::Manifest;
use crate::recall::calibrate::measure;
use crate::recall::curve::{Curve, FROM_ROWS, median};
use crate::{Error, Result};

/// Less than this makes the scan for exact neighbours crawl.
const GROUNDTRUTH_MIN: u64 = 6 << 20;

/// The numbers of results that get a curve.
pub(crate) const CURVE_KS: [u32; 3] = [1, 10, 100];

pub(crate) fn run(
    build: &Build<'_>,
    manifest: &Manifest,
    scan: &Scan,
    id_of_row: &[u32],
) -> Result<Vec<Curve>> {
    let drawn = &build.drawn;
    if drawn.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<u64> = drawn.iter().map(|&r| u64::from(r)).collect();
    let k = CURVE_KS.iter().copied().max().unwrap_or(1).min(scan.rows as u32 - 1) as usize;
    // What lives through this stage besides: row tables, and the index that is opened next.
    let others = PROGRAM_BYTES + 12 * scan.rows + (6 << 20);
    let budget = build.options.ram_budget.map_or(1 << 30, |b| b.saturating_sub(others).max(GROUNDTRUTH_MIN));
    let truth = groundtruth::neighbours(build.base, &rows, build.options.metric, k, budget, build.progress)?;
    release_freed();
    let known: Vec<u64> = truth
        .ids
        .iter()
        .map(|&row| build.external.as_ref().map_or(u64::from(row), |ids| ids[row as usize]))
        .collect();
    let mut queries = Vec::new();
    let mut row = Vec::new();
    for &r in &rows {
        build.base.read_rows(r, 1, &mut row)?;
        queries.extend_from_slice(&row);
    }
    // Unused memory caches blocks: the counters stay the same and the measurement takes less time.
    let blocks = u64::from(manifest.blocks.count) * (manifest.blocks.bytes as u64 + 128);
    // Beside the index lie the table of ids, the queries and their truth, and the queries in flight.
    let ids = if build.external.is_some() { 12 } else { 4 };
    let taken = manifest.planned_account(0).total() + ids * scan.rows + (16 << 20);
    let spare = build.options.ram_budget.map_or(u64::MAX, |b| b.saturating_sub(taken));
    let open = OpenOptions {
        ram_budget: None,
        cache_budget: blocks.min(spare).min(4 << 30),
        head_budget: Some(spare),
        ..OpenOptions::default()
    };
    let index = Index::from_manifest(build.partial.folder(), build.number, manifest.clone(), open)?;
    let hidden: Vec<u32> = drawn.iter().map(|&r| id_of_row[r as usize]).collect();
    let wanted: Vec<u32> = CURVE_KS.iter().map(|&c| c.min(k as u32)).collect();
    let mut curves: Vec<Curve> = Vec::new();
    for &k in &wanted {
        if curves.iter().any(|c| c.k == k) {
            continue;
        }
        let mut curve = measure(
            &index,
            &queries,
            &known,
            truth.k,
            &hidden,
            k,
            FROM_ROWS,
            (build.plan.threads, build.plan.calibration_in_flight),
            build.progress,
        )?;
        let kth = truth.distances.chunks_exact(truth.k).map(|d| d[k as usize - 1]);
        curve.kth_distance = median(&mut kth.collect::<Vec<f32>>());
        curves.push(curve);
    }
    if build.progress.interrupted() {
        return Err(Error::interrupted());
    }
    Ok(curves)
}
