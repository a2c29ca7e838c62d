//! Re-measures the recall curve of an index, and publishes it as a version that shares the data files.
//!
//! Half of the queries fit the curve, the other half check it, so that no reported recall was measured on what it was
//! fitted to.

use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;
use stratann_kernel::distance::Exact;
use stratann_kernel::topk::{Scored, TopK};
use stratann_params::Given;
use stratann_params::build::CommonOptions;
use stratann_params::measure::TuneSettings;
use stratann_storage::{Error, Progress, Result};

use super::known::Known;
use super::made_filters::MadeFilter;
use super::mixture::{Maker, NEAR};
use super::{calibrate, made_filters, widen};
use crate::base::{draw, draw_of};
use crate::curve::{self, Curve, FROM_MIXTURE};
use crate::exec::Width;
use crate::index::{Index, OpenOptions};
use crate::kinds;
use crate::kinds::answers::Member;
use crate::manifest::{Manifest, number_after};
use crate::parallel;
use crate::search::SearchOptions;
use crate::stages::state::lock as lock_folder;

/// Options of a measurement of recall.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Numbers of results that get a curve.
    pub ks: Vec<u32>,
    /// Recalls that are checked afterwards.
    pub recalls: Vec<f64>,
    /// Rows of the index that serve as queries when there are no others.
    pub sample: usize,
    /// Draws them.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
    /// Bytes of memory in all; `None` for no limit.
    pub ram_budget: Option<u64>,
}

/// Numbers of results that get a curve where none are given.
const KS: [u32; 3] = [1, 10, 100];
/// Recalls that are checked where none are given.
const RECALLS: [f64; 3] = [0.9, 0.95, 0.99];

impl TuneOptions {
    /// Reads what a user gave.
    pub fn read(given: &Given) -> TuneOptions {
        let (settings, common): (TuneSettings, CommonOptions) = (given.read(), given.read());
        TuneOptions {
            ks: if settings.k.is_empty() { KS.into() } else { settings.k },
            recalls: if settings.recall.is_empty() { RECALLS.into() } else { settings.recall },
            sample: settings.sample,
            seed: settings.seed,
            threads: common.threads.unwrap_or_else(parallel::cores),
            ram_budget: settings.ram_budget,
        }
    }
}

/// One recall that was asked for, and what came of it on the half that the curve has not seen.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Results asked for.
    pub k: u32,
    /// Recall asked for.
    pub asked: f64,
    /// Recall that was reached; `None` where everything is searched because the curve ends below it.
    pub measured: Option<f64>,
    /// Mean reads per query.
    pub reads: Option<f64>,
    /// Length of the beam; on an index with clusters the number of them that are visited at most.
    pub search_list: Option<u32>,
    /// Slack of the adaptive stop, or of bounds.
    pub stop_slack: Option<f32>,
    /// Share of the clusters, one after another without a gain, that ends the visits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<f32>,
    /// Fruitless reads in a row after which a query stops; 0 for never.
    pub patience: Option<u32>,
    /// The highest recall of the curve.
    pub highest: f64,
}

/// Result of tuning.
#[derive(Clone, Debug, Serialize)]
pub struct Tuned {
    /// Number of the manifest that was published.
    pub version: u64,
    /// The name of the effort of a search of this kind, as tables print it.
    #[serde(skip)]
    pub effort_name: &'static str,
    /// `mixture` or `queries`.
    pub source: String,
    /// Queries that fitted the curve.
    pub fitted_on: usize,
    /// Queries that checked it.
    pub checked_on: usize,
    /// Asked and measured.
    pub checks: Vec<Check>,
    /// The new curves.
    pub curves: Vec<Curve>,
}

/// Measures curves on `known` queries, or on rows of the index, checks them, and publishes them.
///
/// # Errors
/// A flat index (it is exact), too few queries or neighbours, another writer, a budget too small, a damaged block.
pub fn tune(
    folder: &Path,
    known: Option<Known>,
    options: &TuneOptions,
    progress: &dyn Progress,
) -> Result<Tuned> {
    // Locked before it is opened: nobody else publishes while this version is measured.
    let (_, manifest) = Manifest::read(folder)?;
    manifest.check_newest()?;
    let _lock = lock_folder(folder)?;
    let open = OpenOptions {
        ram_budget: options.ram_budget,
        #[cfg(feature = "lab")]
        baselines: crate::index::OpenBaselines::of(manifest.section.gpu()),
        ..OpenOptions::default()
    };
    let mut index = Index::open(folder, open)?;
    if !index.base.facts().has_curve {
        return Err(Error::bad_input(format!(
            "{} is flat: every search is exact, there is nothing to tune",
            folder.display()
        )));
    }
    let source = if known.is_some() { "queries" } else { FROM_MIXTURE };
    let known = match known {
        Some(known) => known,
        None => made_queries(&index, options, progress)?,
    };
    let (fit, check) = known.split(index.base.row_bytes());
    let ks = usable_ks(options, &known, &[&fit, &check])?;
    drop(known);
    lend_cache(&mut index, options, fit.count());
    let (mut curves, made) = measure(&mut index, (&fit, &ks), source, options, progress)?;
    // Reads are counted before the index moves into memory, where there are none.
    let checks = check_all(&index, &curves, &check, options, progress)?;
    let share = (options.threads, curve::CALIBRATION_IN_FLIGHT);
    let budget_bytes = index.cache_budget();
    curves.extend(calibrate::measure_in_memory(
        &mut index,
        budget_bytes,
        (&fit, &ks),
        source,
        share,
        progress,
    )?);
    index.base.manifest = with_curves(&index.base.manifest, &curves);
    if index.is_resident() {
        widen::measure(&index, &made, &mut curves, share, progress)?;
    }
    let version = publish(folder, &index, &curves)?;
    Ok(Tuned {
        version,
        effort_name: index.base.facts().effort.name(),
        source: source.into(),
        fitted_on: fit.count(),
        checked_on: check.count(),
        checks,
        curves,
    })
}

/// The curves of `fit` queries for these numbers of results, and the filters that tell how wide searches with filters
/// must be. The manifest of the index has the curves then.
fn measure(
    index: &mut Index,
    (fit, ks): (&Known, &[u32]),
    source: &str,
    options: &TuneOptions,
    progress: &dyn Progress,
) -> Result<(Vec<Curve>, Vec<MadeFilter>)> {
    let share = (options.threads, curve::CALIBRATION_IN_FLIGHT);
    let mut curves = Vec::new();
    for &k in ks {
        curves.extend(calibrate::measure_all(index, fit, k, source, share, progress)?);
    }
    let spare = options.ram_budget.map_or(u64::MAX, |budget| budget.saturating_sub(index.account().total()));
    let most = ks.iter().copied().max().unwrap_or(1) as usize;
    let made = made_filters::make(index, fit, most, (options.seed, options.threads, spare), progress)?;
    index.base.manifest = with_curves(&index.base.manifest, &curves);
    widen::measure(index, &made, &mut curves, share, progress)?;
    Ok((curves, made))
}

/// The numbers of results that the known neighbours are enough for.
fn usable_ks(options: &TuneOptions, known: &Known, parts: &[&Known]) -> Result<Vec<u32>> {
    let is_known = |&k: &u32| k > 0 && k as usize <= known.truth_k;
    let ks: Vec<u32> = options.ks.iter().copied().filter(is_known).collect();
    if ks.is_empty() || parts.iter().any(|part| part.count() == 0) {
        return Err(Error::bad_input(format!(
            "{} queries with {} neighbours each are too few to tune with; give at least two queries, and neighbours \
             for every k",
            parts.iter().map(|part| part.count()).sum::<usize>(),
            known.truth_k
        )));
    }
    Ok(ks)
}

/// Caches blocks as far as memory allows: counters do not change, the measurement takes less time.
fn lend_cache(index: &mut Index, options: &TuneOptions, queries: usize) {
    const MOST: u64 = 4 << 30;
    if !index.kind.reads_blocks() {
        return;
    }
    let k = options.ks.iter().copied().max().unwrap_or(1) as usize;
    let search = SearchOptions { k, threads: options.threads, ..SearchOptions::default() };
    // Room for beams that are longer than the default, and for both halves of the queries.
    let taken = index.search_account(&search, 4 * queries).total() + (16 << 20);
    let spare = options.ram_budget.map_or(MOST, |b| b.saturating_sub(taken));
    index.set_cache_budget(spare.min(MOST));
}

fn check_all(
    index: &Index,
    curves: &[Curve],
    known: &Known,
    options: &TuneOptions,
    progress: &dyn Progress,
) -> Result<Vec<Check>> {
    let curves: Vec<&Curve> = curves.iter().filter(|curve| curve.family.is_none()).collect();
    let total = curves.len() * options.recalls.len() * known.count();
    progress.stage("checking the curve on unseen queries", total as u64, "queries");
    let mut checks = Vec::new();
    for curve in curves {
        for &asked in &options.recalls {
            checks.push(check(index, curve, known, asked, options, progress)?);
        }
    }
    Ok(checks)
}

fn check(
    index: &Index,
    curve: &Curve,
    known: &Known,
    asked: f64,
    options: &TuneOptions,
    progress: &dyn Progress,
) -> Result<Check> {
    let highest = curve.points.iter().map(|p| p.recall).fold(0.0, f64::max);
    let nothing = Check {
        k: curve.k,
        asked,
        measured: None,
        reads: None,
        search_list: None,
        stop_slack: None,
        early_stop: None,
        patience: None,
        highest,
    };
    let family = curve.family.as_deref();
    let chosen = curve::choose_of(std::slice::from_ref(curve), family, curve.k, asked);
    let Some(point) = chosen.filter(|point| !point.is_exact()) else { return Ok(nothing) };
    let params = kinds::params_at(index.base.kind, curve.k, &point, family.or(curve.variant.as_deref()));
    let setting = kinds::setting(&params);
    let search = SearchOptions {
        k: curve.k as usize,
        threads: options.threads,
        width: Width::Fixed(1),
        ..SearchOptions::default()
    };
    let answers = index.search_each(&known.queries, params, &|q| known.hidden(q), &search, progress)?;
    if let Some((query, why)) = answers.failed.first() {
        return Err(Error::corrupt(format!("query {query}: {why}")));
    }
    Ok(Check {
        measured: Some(answers.recall(&known.truth, known.truth_k)),
        reads: Some(answers.stats.reads_asked() as f64 / known.count() as f64),
        search_list: Some(setting.effort),
        stop_slack: setting.slack,
        early_stop: setting.early_stop,
        patience: Some(setting.patience),
        ..nothing
    })
}

/// Publishes the index' manifest with these curves in place of those for the same k.
fn publish(folder: &Path, index: &Index, curves: &[Curve]) -> Result<u64> {
    let manifest = with_curves(&index.base.manifest, curves);
    let number = number_after(index.base.number, folder)?;
    manifest.publish(folder, number)?;
    Ok(number)
}

/// The manifest with these curves in place of those for the same k, measured on the rows that are there.
fn with_curves(manifest: &Manifest, curves: &[Curve]) -> Manifest {
    let mut manifest = manifest.clone();
    manifest.curves.retain(|old| curves.iter().all(|new| new.k != old.k));
    manifest.curves.extend_from_slice(curves);
    manifest.curves.sort_by_key(|c| c.k);
    let measured_rows = Some(manifest.live_rows());
    manifest.deletes.iter_mut().for_each(|deletes| deletes.measured_rows = measured_rows);
    manifest.curve_rows = None;
    manifest
}

/// Makes queries from drawn nodes of the index, and finds their exact neighbours. Reads all of the index twice.
fn made_queries(index: &Index, options: &TuneOptions, progress: &dyn Progress) -> Result<Known> {
    let base = &index.base;
    let rows = base.manifest.live_rows();
    if rows < 2 {
        let folder = base.folder.display();
        return Err(Error::bad_input(format!(
            "{folder} has {rows} rows, too few to make queries of; give some"
        )));
    }
    let most = options.ks.iter().copied().max().unwrap_or(1) as usize;
    let truth_k = most.min(rows as usize - 1);
    let hidden = match &base.live {
        None => draw(base.manifest.rows as u32, options.sample, options.seed),
        Some(live) => draw_of(live.iter(), live.count(), options.sample, options.seed),
    };
    let vector = |&node: &u32| index.kind.vector(base, node);
    let drawn = hidden.iter().map(vector).collect::<Result<Vec<_>>>()?;
    let near = nearest(index, &hidden, &drawn, NEAR.min(truth_k), options.threads, progress)?;
    let maker = Maker { dtype: base.dtype, metric: base.metric, dim: base.manifest.dim, seed: options.seed };
    let mut made = Vec::new();
    for ((&node, row), found) in hidden.iter().zip(&drawn).zip(&near) {
        let near = found.iter().map(|f| vector(&f.node)).collect::<Result<Vec<_>>>()?;
        made.push(maker.query(node.into(), row, &near));
    }
    let mut known = Known { truth_k, queries: made.concat(), ..Known::default() };
    for mut found in nearest(index, &hidden, &made, truth_k, options.threads, progress)? {
        found.resize(truth_k, Found { node: u32::MAX, external_id: u64::MAX, distance: f32::INFINITY });
        known.truth.extend(found.iter().map(|f| f.external_id));
        known.distances.extend(found.iter().map(|f| f.distance));
    }
    known.hidden = hidden;
    Ok(known)
}

/// A neighbour.
#[derive(Clone, Copy)]
struct Found {
    node: u32,
    external_id: u64,
    distance: f32,
}

/// The `k` members nearest to each query but for the one that it comes from, by reading all of the index.
fn nearest(
    index: &Index,
    hidden: &[u32],
    queries: &[Vec<u8>],
    k: usize,
    threads: usize,
    progress: &dyn Progress,
) -> Result<Vec<Vec<Found>>> {
    let base = &index.base;
    let seeker = |(&node, query): (&u32, &Vec<u8>)| {
        let mut exact = Exact::default();
        exact.set(base.metric, base.dtype, base.manifest.dim, query);
        Seeker { node, exact, top: TopK::new(k), nodes: HashMap::new() }
    };
    let mut seekers: Vec<Seeker> = hidden.iter().zip(queries).map(seeker).collect();
    let (work, unit) = index.kind.scan_work(base);
    progress.stage("exact neighbours of made queries", work, unit);
    // Seekers are divided among the threads once for each run of members.
    pool(threads)?.install(|| {
        index.kind.for_each_member(base, progress, &mut |members| {
            let live = || members.iter().filter(|member| base.is_live(member.id));
            parallel::for_each(&mut seekers, |seeker| live().for_each(|member| seeker.see(member)));
        })
    })?;
    Ok(seekers.into_iter().map(Seeker::into_found).collect())
}

pub(super) fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|e| Error::bad_input(format!("cannot start {threads} threads: {e}")))
}

/// A query, and the nearest members so far.
struct Seeker {
    node: u32,
    exact: Exact,
    top: TopK,
    /// The nodes of members that were among the nearest, by external id.
    nodes: HashMap<u64, u32>,
}

impl Seeker {
    fn see(&mut self, member: &Member<'_>) {
        if member.id == self.node {
            return;
        }
        let distance = self.exact.distance(member.vector, member.inverse_norm);
        if distance <= self.top.threshold() {
            self.top.push(Scored { distance, id: member.external_id });
            self.nodes.insert(member.external_id, member.id);
        }
    }

    fn into_found(self) -> Vec<Found> {
        let node = |id: u64| self.nodes.get(&id).copied().unwrap_or(u32::MAX);
        let found = |s: &Scored| Found { node: node(s.id), external_id: s.id, distance: s.distance };
        self.top.into_sorted().iter().map(found).collect()
    }
}
