//! Measures recall curves.
//!
//! A curve holds measured points: with this effort and this stop rule, so much recall for so many reads. It is measured
//! on queries whose neighbours are known exactly: a mixture made from rows of the index (build, and `tune` without
//! queries), or the user's own queries (`tune`).

use stratann_storage::{Error, Progress, Result};

use super::known::Known;
use crate::curve::{Curve, FROM_MIXTURE, Grid, IN_MEMORY, Point, RECALL_ENOUGH, Setting};
use crate::exec::{BatchOptions, DOORBELL_BYTES_MAX, Width};
use crate::index::Index;
use crate::kinds;
use crate::kinds::kind;
use crate::kinds::own;
use crate::search::{self, Answers, SearchOptions};

/// Batches whose reads are gathered take little memory while a curve is measured: the counters of queries do not depend
/// on it.
pub(super) const CALIBRATION_BATCHES: BatchOptions = BatchOptions {
    batch: 256,
    doorbell: 4,
    doorbell_bytes: DOORBELL_BYTES_MAX,
    is_doorbell_chosen: true,
    overlap: true,
};

/// Measures the curves for `k` results on queries with known neighbours: one for each way to search that the open index
/// allows.
pub(crate) fn measure_all(
    index: &Index,
    known: &Known,
    k: u32,
    source: &str,
    share: (usize, usize),
    progress: &dyn Progress,
) -> Result<Vec<Curve>> {
    let families = index.kind.ranks_codes().map_or(&[][..], |own| own.families());
    let families = std::iter::once(None).chain(families.iter().copied().map(Some));
    families.map(|family| measure(index, known, (k, family), source, share, progress)).collect()
}

/// Measures the curves of searches in memory, where the kind has such. The index moves there as far as `budget_bytes`
/// allow; what is measured does not depend on that.
pub(crate) fn measure_in_memory(
    index: &mut Index,
    budget_bytes: u64,
    (known, ks): (&Known, &[u32]),
    source: &str,
    share: (usize, usize),
    progress: &dyn Progress,
) -> Result<Vec<Curve>> {
    if !index.kind.graph().is_some_and(|graph| graph.can_be_resident()) {
        return Ok(Vec::new());
    }
    index.set_cache_budget(budget_bytes);
    index.move_into_memory(progress)?;
    ks.iter().map(|&k| measure(index, known, (k, Some(IN_MEMORY)), source, share, progress)).collect()
}

/// Measures one curve.
fn measure(
    index: &Index,
    known: &Known,
    (k, family): (u32, Option<&'static str>),
    source: &str,
    (threads, in_flight): (usize, usize),
    progress: &dyn Progress,
) -> Result<Curve> {
    // Long answers average over more neighbours each, so fewer queries tell as much.
    let count = known.count().min(QUERY_NEIGHBOURS.div_ceil(k as usize).max(QUERIES_MIN));
    let known = known.spread(count, index.base.row_bytes());
    let grid = index.kind.grid(&index.base, k, family);
    let of_family = family.map_or(String::new(), |family| format!(" of {family}"));
    let stage = |grid: &Grid| {
        let settings: usize = grid.paths.iter().map(Vec::len).sum();
        progress.stage(&format!("calibrating recall@{k}{of_family}"), (settings * count) as u64, "queries");
    };
    let options = SearchOptions {
        k: k as usize,
        threads,
        width: Width::Fixed(1),
        in_flight: Some(in_flight),
        batch_options: CALIBRATION_BATCHES,
        ..SearchOptions::default()
    };
    stage(&grid);
    let variant = family.or(best_variant(index, &known, &options, progress)?);
    let variant_name = variant.filter(|_| family.is_none()).map(str::to_string);
    let empty = Curve {
        k,
        queries: count,
        source: source.into(),
        kth_distance: known.far_kth_distance(k),
        variant: variant_name,
        family: family.map(str::to_string),
        resident_share: index.base.manifest.section.planned_resident_share(),
        misses_aimed: index.base.facts().misses_aimed.filter(|_| source == FROM_MIXTURE),
        points: Vec::new(),
        widening: Vec::new(),
    };
    let hardest = if empty.misses_aimed.is_some() { Vec::new() } else { hardest_classes(&known, k) };
    let measurement = Measurement { index, known: &known, hardest, variant, options: &options, progress };
    let grid = measurement.without_useless(grid, &empty)?;
    stage(&grid);
    measurement.follow_all(&grid, empty)
}

/// Searches for the points of a curve.
#[derive(Clone)]
struct Measurement<'a> {
    index: &'a Index,
    known: &'a Known,
    /// Classes of queries whose recall is measured apart.
    hardest: Vec<Vec<usize>>,
    variant: Option<&'static str>,
    options: &'a SearchOptions,
    progress: &'a dyn Progress,
}

impl Measurement<'_> {
    /// Leaves out paths of settings that bring nothing, as some of the queries tell.
    fn without_useless(&self, mut grid: Grid, empty: &Curve) -> Result<Grid> {
        if grid.paths.len() <= 1 || grid.has_longer_beams {
            return Ok(grid);
        }
        if self.has_few_rows() {
            grid = grid.thinned();
        }
        let count = self.known.count();
        let scouts = SCOUTS.max(count / SCOUTS_PART).max(SCOUT_NEIGHBOURS / empty.k as usize).min(count / 2);
        if scouts < SCOUTS / 2 {
            return Ok(grid);
        }
        let scouts = self.known.spread(scouts, self.index.base.row_bytes());
        let scouted = Measurement { known: &scouts, hardest: Vec::new(), ..self.clone() };
        let useful = scouted.follow_all(&grid.thinned(), empty.clone())?.useful_paths();
        let useless = (0..).zip(&mut grid.paths).filter(|(path, _)| !useful.contains(path));
        useless.for_each(|(_, path)| path.clear());
        Ok(grid)
    }

    fn has_few_rows(&self) -> bool {
        self.index.base.manifest.rows < FEW_ROWS
    }

    /// Appends the points of all paths.
    fn follow_all(&self, grid: &Grid, mut curve: Curve) -> Result<Curve> {
        for (number, path) in (0..).zip(&grid.paths) {
            self.follow(grid, (number, path), &mut curve)?;
        }
        Ok(curve)
    }

    /// Appends the points of one path, up to where it has nothing more to tell.
    fn follow(&self, grid: &Grid, (number, path): (u32, &[Setting]), curve: &mut Curve) -> Result<()> {
        let earlier = curve.clone();
        let begin = if grid.has_longer_beams { curve.begin_longer(number) } else { Some(0) };
        for &(effort, stop) in path.iter().filter(|setting| begin.is_some_and(|begin| setting.0 >= begin)) {
            if curve.repeats(number, effort) {
                continue;
            }
            let mut point = Point { effort, stop, path: Some(number), ..Point::default() };
            let comparisons = self.measure(curve.k, &mut point)?;
            curve.points.push(point);
            let has_ended = point.safe_recall() > RECALL_ENOUGH
                || (self.has_few_rows() && curve.has_settled())
                || point.reads > grid.reads_max
                || comparisons > grid.comparisons_max;
            // Where shorter beams find too little, longer ones are no waste at any cost.
            let may_be_dear = grid.has_longer_beams && !earlier.is_complete();
            let has_stalled = grid.has_longer_beams && curve.has_stalled();
            if has_ended || has_stalled || (!may_be_dear && earlier.is_far_cheaper(&point)) {
                break;
            }
        }
        Ok(())
    }

    /// Measures one point. Returns comparisons with vectors per query.
    fn measure(&self, k: u32, point: &mut Point) -> Result<f64> {
        let Measurement { index, known, .. } = *self;
        let params = kinds::params_at(index.base.kind, k, point, self.variant);
        let hidden = |q| known.hidden(q);
        let answers = index.search_each(&known.queries, params, &hidden, self.options, self.progress)?;
        if let Some((query, why)) = answers.failed.first() {
            return Err(Error::corrupt(format!("calibration query {query}: {why}")));
        }
        fill(point, index, known, &self.hardest, &answers);
        if self.variant == Some(IN_MEMORY) {
            fill_in_memory(point, index, &answers);
        }
        Ok(answers.stats.full_comparisons as f64 / known.count().max(1) as f64)
    }
}

/// Sets what was measured with the setting of a point.
fn fill(point: &mut Point, index: &Index, known: &Known, classes: &[Vec<usize>], answers: &Answers) {
    let found = found_shares(answers, known);
    let mean =
        |queries: &[usize]| queries.iter().map(|&q| found[q]).sum::<f64>() / queries.len().max(1) as f64;
    let count = known.count() as f64;
    point.recall = answers.recall(&known.truth, known.truth_k);
    point.hardest = classes.iter().map(|class| mean(class)).min_by(f64::total_cmp);
    // Reads of resident lists are counted: searches may have less memory.
    let resident = index.kind.resident_share();
    // Loads of a batch depend on the batch; what its queries need does not.
    let shared = Some(answers.stats.shared_reads).filter(|&shared| shared > 0);
    let asked = shared.unwrap_or(answers.stats.reads_asked());
    point.reads = (asked as f64 + resident * answers.stats.lists as f64) / count;
    if index.kind.lists().is_some() {
        // Reads of records depend on what is cached meanwhile; the vectors that are scored do not.
        point.vectors = Some(answers.stats.full_comparisons as f64 / count);
    }
    point.candidates = own(&answers.params.kind).needed_candidates(&answers.largest);
    // Components are counted as vectors of them.
    let components = answers.stats.components as f64 / index.base.manifest.dim as f64;
    // A kind without codes compares vectors alone.
    let vectors = if index.base.facts().compares_vectors { answers.stats.full_comparisons } else { 0 };
    let compared = answers.stats.code_comparisons + vectors;
    point.comparisons = Some((compared as f64 + components) / count);
}

/// Sets the costs of a search in memory: comparisons, those of vectors by the memory that they touch.
fn fill_in_memory(point: &mut Point, index: &Index, answers: &Answers) {
    let of_vector = index.base.row_bytes() as f64
        / index.kind.graph().map_or(1, |graph| graph.code_bytes()).max(1) as f64;
    let compared = answers.stats.code_comparisons as f64 + of_vector * answers.stats.full_comparisons as f64;
    point.reads = 0.0;
    point.comparisons = Some(compared / answers.counts.len().max(1) as f64);
}

/// The share of each query's true neighbours that was found.
fn found_shares(answers: &Answers, known: &Known) -> Vec<f64> {
    let rows = answers.ids.chunks_exact(answers.k).zip(answers.counts.chunks_exact(1));
    let pairs = rows.zip(known.truth.chunks_exact(known.truth_k));
    pairs.map(|(found, truth)| search::recall(found, answers.k, truth, known.truth_k)).collect()
}

/// Divides the queries into classes of equal size, by the distance to the k-th neighbour. None where the distances are
/// not known, or there are too few queries to tell classes apart.
fn hardest_classes(known: &Known, k: u32) -> Vec<Vec<usize>> {
    let count = known.count();
    if known.distances.is_empty() || count < CLASSES * CLASS_MIN {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| known.kth_distance(a, k).total_cmp(&known.kth_distance(b, k)).then(a.cmp(&b)));
    order.chunks(count.div_ceil(CLASSES)).map(<[usize]>::to_vec).collect()
}

/// The variant of the kind that finds most of the true neighbours at equal effort.
fn best_variant(
    index: &Index,
    known: &Known,
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Option<&'static str>> {
    let (variants, point) = kind(index.base.kind).variants();
    let mut best: Option<(f64, &'static str)> = None;
    for &variant in variants {
        let params = kinds::params_at(index.base.kind, options.k as u32, &point, Some(variant));
        let answers = index.search_each(&known.queries, params, &|q| known.hidden(q), options, progress)?;
        let found = answers.recall(&known.truth, known.truth_k);
        if best.is_none_or(|b| found > b.0) {
            best = Some((found, variant));
        }
    }
    Ok(best.map(|b| b.1))
}

/// Neighbours looked for by all queries of a point together, at most, but by so many queries at least.
const QUERY_NEIGHBOURS: usize = 10_000;
const QUERIES_MIN: usize = 150;
/// With fewer rows, the measurement of all settings would take longer than the build.
const FEW_ROWS: u64 = 25_000;
/// One query in so many tells which paths of settings are worth measuring with all. There are more of them where these
/// are fewer than the second number or look for fewer neighbours than the third, up to half of all.
const SCOUTS_PART: usize = 8;
const SCOUTS: usize = 50;
const SCOUT_NEIGHBOURS: usize = 160;
/// Classes of queries, and the fewest queries of a class.
const CLASSES: usize = 5;
const CLASS_MIN: usize = 10;
