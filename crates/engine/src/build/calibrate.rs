//! The last stage: what recall costs on this index, measured with queries that are made from its own rows.
//!
//! The drawn row of a query is hidden from its search, and left out of its truth.

use stratann_storage::Result;
use stratann_storage::budget::{PROGRAM_BYTES, release_freed};

use crate::curve::{CURVE_KS, Curve, FROM_MIXTURE};
use crate::dataset::Scan;
use crate::groundtruth;
use crate::index::{Index, OpenOptions};
use crate::manifest::Manifest;
use crate::recall::calibrate::{measure_all, measure_in_memory};
use crate::recall::known::Known;
use crate::recall::mixture::{Maker, NEAR};
use crate::recall::{made_filters, widen};
use crate::stages::build::{Build, IDS};
use crate::stages::tables::read_at;

/// Less than this makes the scan for exact neighbours crawl.
const GROUNDTRUTH_MIN: u64 = 6 << 20;

pub(crate) fn run(build: &Build<'_>, manifest: &Manifest, scan: &Scan) -> Result<Vec<Curve>> {
    if let Some(curves) = &build.options.curves {
        return Ok(curves.to_vec());
    }
    let drawn = &build.drawn;
    if drawn.is_empty() {
        return Ok(Vec::new());
    }
    let k = CURVE_KS.iter().copied().max().unwrap_or(1).min(scan.rows as u32 - 1) as usize;
    // What earlier stages have freed would count beside the search for exact neighbours.
    release_freed();
    // What lives through this stage besides: ids of the user, and a reserve for what the allocator keeps.
    let others = PROGRAM_BYTES + 12 * scan.rows + (6 << 20);
    let budget = build.options.ram_budget.map_or(1 << 30, |b| b.saturating_sub(others).max(GROUNDTRUTH_MIN));
    let mut known = made_queries(build, k, budget)?;
    known.hidden = read_at(&build.partial.path(IDS), drawn)?;
    release_freed();
    // Unused memory caches blocks: the counters stay the same and the measurement takes less time.
    let blocks = u64::from(manifest.blocks.count) * (manifest.blocks.bytes as u64 + 128);
    // Beside the index lie the same, the queries and their truth, and the queries in flight.
    let ids = if build.external.is_some() { 12 } else { 4 };
    let taken = manifest.planned_account(0).total() + ids * scan.rows + (16 << 20);
    let spare = build.options.ram_budget.map_or(u64::MAX, |b| b.saturating_sub(taken));
    let open = OpenOptions {
        ram_budget: None,
        cache_budget: blocks.min(spare).min(4 << 30),
        head_budget: Some(spare),
        #[cfg(feature = "lab")]
        baselines: crate::index::OpenBaselines::of(manifest.section.gpu()),
        ..OpenOptions::default()
    };
    let mut index = Index::from_manifest(build.partial.folder(), build.number, manifest.clone(), open)?;
    let wanted: Vec<u32> = CURVE_KS.iter().map(|&c| c.min(k as u32)).collect();
    let mut curves: Vec<Curve> = Vec::new();
    for &k in &wanted {
        if curves.iter().any(|c| c.k == k) {
            continue;
        }
        let share = (build.plan.threads, build.plan.calibration_in_flight);
        curves.extend(measure_all(&index, &known, k, FROM_MIXTURE, share, build.progress)?);
    }
    let made = made_filters::make(
        &index,
        &known,
        k,
        (build.options.seed, build.plan.threads, spare.min(4 << 30)),
        build.progress,
    )?;
    let share = (build.plan.threads, build.plan.calibration_in_flight);
    index.base.manifest.curves = curves.clone();
    widen::measure(&index, &made, &mut curves, share, build.progress)?;
    let ks: Vec<u32> = curves.iter().filter(|curve| curve.family.is_none()).map(|curve| curve.k).collect();
    let budget_bytes = spare.min(4 << 30);
    curves.extend(measure_in_memory(
        &mut index,
        budget_bytes,
        (&known, &ks),
        FROM_MIXTURE,
        share,
        build.progress,
    )?);
    index.base.manifest.curves = curves.clone();
    if index.is_resident() {
        widen::measure(&index, &made, &mut curves, share, build.progress)?;
    }
    build.progress.check_interrupted()?;
    Ok(curves)
}

/// Makes a query from each drawn row, and finds its `k` exact neighbours. The base is scanned twice.
fn made_queries(build: &Build<'_>, k: usize, budget: u64) -> Result<Known> {
    let (base, metric) = (build.base, build.options.metric);
    let rows: Vec<u64> = build.drawn.iter().map(|&r| u64::from(r)).collect();
    let near = groundtruth::neighbours(base, &rows, metric, NEAR.min(k), budget, build.progress)?;
    let shape = base.shape();
    let maker = Maker { dtype: shape.dtype, metric, dim: shape.dim, seed: build.options.seed };
    let read = |row: u64| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        base.read_rows(row, 1, &mut bytes)?;
        Ok(bytes)
    };
    let mut queries = Vec::new();
    for (&row, near) in rows.iter().zip(near.ids.chunks_exact(near.k)) {
        let near = near.iter().map(|&n| read(n.into())).collect::<Result<Vec<_>>>()?;
        queries.extend_from_slice(&maker.query(row, &read(row)?, &near));
    }
    let truth = groundtruth::neighbours_of_made(base, (&rows, &queries), metric, k, budget, build.progress)?;
    Ok(Known {
        queries,
        truth: truth.ids.iter().map(|&row| build.external_id(row)).collect(),
        truth_k: truth.k,
        distances: truth.distances,
        hidden: Vec::new(),
    })
}
