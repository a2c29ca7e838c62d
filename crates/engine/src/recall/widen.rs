//! Measures how far a search with a filter must be widened, with made filters.

use stratann_core::query::FAR_MAX;
use stratann_storage::{Error, Progress, Result};

use super::calibrate::CALIBRATION_BATCHES;
use super::made_filters::{MadeFilter, Place, SHARES};
use crate::curve::{Aim, Curve, RECALL_OF_FAR, WidePoint, Widening};
use crate::exec::Width;
use crate::index::Index;
use crate::kinds::own;
use crate::search::{Answers, Effort, SearchOptions};

/// Recalls of the curve that searches with filters aim at.
const AIMS: [f64; 7] = [0.55, 0.7, 0.8, 0.88, 0.93, 0.97, 0.99];
/// How much less is as good.
const AS_GOOD: f64 = 0.005;
/// Tenths that are tried. With none, a set of photographs has places where too little is found.
const FAR_TENTHS: [u8; 4] = [2, 4, 7, FAR_MAX];
/// Where all filters reach this, a search that aims higher is no wiser.
const RECALL_ENOUGH: f64 = 0.995;
/// Numbers of results that are measured. With more than the second number half of the queries tell as much.
const KS: std::ops::RangeInclusive<u32> = 2..=100;
const MANY: u32 = 50;
/// Most results of a walk with a filter, those that it passes over among them. Where there are more, the codes of all
/// rows of the filter cost less, and so they would here.
const WALK_RESULTS_MAX: f64 = 250.0;

/// Adds to curves what searches with made filters find. `index` has these curves in its manifest.
pub(crate) fn measure(
    index: &Index,
    made: &[MadeFilter],
    curves: &mut [Curve],
    (threads, in_flight): (usize, usize),
    progress: &dyn Progress,
) -> Result<()> {
    let family = index.curve_family();
    let count: usize = made.iter().map(|filter| filter.known.count()).sum();
    for curve in curves.iter_mut().filter(|curve| curve.family.as_deref() == family && KS.contains(&curve.k))
    {
        progress.stage(
            &format!("calibrating recall@{} of filters", curve.k),
            (AIMS.len() * count) as u64,
            "queries",
        );
        let options = SearchOptions {
            k: curve.k as usize,
            threads,
            width: Width::Fixed(1),
            in_flight: Some(in_flight),
            batch_options: CALIBRATION_BATCHES,
            ..SearchOptions::default()
        };
        for (number, &share) in SHARES.iter().enumerate() {
            if index.kind.graph().is_some() && f64::from(curve.k) > WALK_RESULTS_MAX * share {
                continue;
            }
            let filters: Vec<&MadeFilter> =
                made.iter().filter(|filter| filter.share == number && filter.is_of_use(curve.k)).collect();
            let points = points(index, &filters, &options, progress)?;
            if !points.is_empty() {
                let mut own = Widening { share, far_tenths: None, points };
                own.far_tenths = far_tenths(index, &filters, &own, &options, progress)?;
                curve.widening.push(own);
            }
        }
    }
    Ok(())
}

/// What searches with filters of one share find.
fn points(
    index: &Index,
    filters: &[&MadeFilter],
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Vec<WidePoint>> {
    let mut points: Vec<WidePoint> = Vec::new();
    let mut before = None;
    let has = |place| filters.iter().any(|filter| filter.place == place);
    if !has(Place::Anywhere) || !has(Place::Near) {
        return Ok(points);
    }
    for aimed in AIMS {
        let options = SearchOptions { effort: Effort::Recall(aimed), ..*options };
        let params = index.params(&options)?;
        if own(&params.kind).is_exact() {
            break;
        }
        if before.replace(params) == Some(params) {
            continue;
        }
        let point = WidePoint { aimed, ..point(index, filters, &options, progress)? };
        points.push(point);
        if point.recall() >= RECALL_ENOUGH {
            break;
        }
    }
    // Lists do not grow with the recall aimed at: a cheap setting for a low one may visit many and compare few vectors.
    points.sort_by_key(|point| point.effort);
    Ok(points)
}

fn point(
    index: &Index,
    filters: &[&MadeFilter],
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<WidePoint> {
    // A search has these tenths at least.
    let by_rule = (FAR_TENTHS[0], None);
    let anywhere = found(index, filters, Place::Anywhere, (options, by_rule), progress)?;
    let near = found(index, filters, Place::Near, (options, by_rule), progress)?;
    let Found { recall, reads, comparisons, .. } = anywhere;
    let effort = effort(index, filters, options)?;
    Ok(WidePoint { aimed: 0.0, effort, anywhere: recall, near: near.recall, reads, comparisons })
}

/// Lists that a search visits by rule where the rows of the filters lie anywhere; `None` of a graph.
fn effort(index: &Index, filters: &[&MadeFilter], options: &SearchOptions) -> Result<Option<u32>> {
    let anywhere = filters.iter().find(|filter| filter.place == Place::Anywhere);
    let Some(anywhere) = anywhere.filter(|_| index.kind.graph().is_none()) else { return Ok(None) };
    let times = index.base.manifest.measured_rows() as f64 / f64::from(anywhere.sieve.count().max(1));
    let lists = index.effort_by_rule(options, times.max(1.0))?;
    Ok(Some(lists.ceil().clamp(1.0, u32::MAX.into()) as u32))
}

/// The least tenths with which searches among the rows that are far find as much as among others. `None` of a graph
/// where none do: it gives way there.
fn far_tenths(
    index: &Index,
    filters: &[&MadeFilter],
    widening: &Widening,
    options: &SearchOptions,
    progress: &dyn Progress,
) -> Result<Option<u8>> {
    let Some(aim) = widening.aim(RECALL_OF_FAR) else { return Ok(None) };
    if !filters.iter().any(|filter| filter.place == Place::Far) {
        return Ok(None);
    }
    let options = SearchOptions { effort: Effort::Recall(aim.recall), ..*options };
    for tenths in FAR_TENTHS {
        // How many more lists are needed differs from one place to another.
        let far = found(index, filters, Place::Far, (&options, (tenths, Some(aim))), progress)?.least_recall;
        if far >= RECALL_OF_FAR - AS_GOOD {
            return Ok(Some(tenths));
        }
    }
    Ok(index.kind.graph().is_none().then_some(FAR_MAX))
}

/// What searches with the filters of one place find.
struct Found {
    /// Mean recall.
    recall: f64,
    /// Mean recall with the filter that has the least.
    least_recall: f64,
    /// Mean reads per query.
    reads: f64,
    /// Mean comparisons per query.
    comparisons: f64,
}

fn found(
    index: &Index,
    filters: &[&MadeFilter],
    place: Place,
    (options, (far_tenths, aim)): (&SearchOptions, (u8, Option<Aim>)),
    progress: &dyn Progress,
) -> Result<Found> {
    let mut sum = Found { recall: 0.0, least_recall: 1.0, reads: 0.0, comparisons: 0.0 };
    let mut filters_asked = 0.0;
    for filter in filters.iter().filter(|filter| filter.place == place) {
        let count = filter.known.count();
        let asked = if options.k as u32 > MANY { count.div_ceil(2) } else { count };
        let known = filter.known.spread(asked, index.base.row_bytes());
        let hidden = |query| known.hidden(query);
        let sieve = (&filter.sieve, far_tenths, aim);
        let answers = index.search_made(&known.queries, sieve, &hidden, options, progress)?;
        if let Some((query, why)) = answers.failed.first() {
            return Err(Error::corrupt(format!("calibration query {query}: {why}")));
        }
        let (recall, work) = (answers.recall(&known.truth, known.truth_k), work(index, &answers));
        sum = Found {
            recall: sum.recall + recall,
            least_recall: sum.least_recall.min(recall),
            reads: sum.reads + work.0,
            comparisons: sum.comparisons + work.1,
        };
        filters_asked += 1.0;
    }
    let mean = |sum: f64| sum / f64::max(filters_asked, 1.0);
    Ok(Found { recall: mean(sum.recall), reads: mean(sum.reads), comparisons: mean(sum.comparisons), ..sum })
}

/// Mean reads and comparisons of a query.
fn work(index: &Index, answers: &Answers) -> (f64, f64) {
    let stats = &answers.stats;
    let reads = if stats.shared_reads > 0 { stats.shared_reads } else { stats.reads_asked() };
    let vectors = if index.base.facts().compares_vectors { stats.full_comparisons } else { 0 };
    let count = answers.counts.len().max(1) as f64;
    (reads as f64 / count, (stats.code_comparisons + vectors) as f64 / count)
}
