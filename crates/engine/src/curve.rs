//! A recall curve: what recall costs, and the parameters that reach it. Plain data, kept in the manifest.

use crate::kinds::known::facts;
use serde::{Deserialize, Serialize};
use stratann_core::query::MAX_SEARCH_LIST;
use stratann_kernel::Metric;
use stratann_params::IndexKind;
use stratann_storage::{Error, Result};

mod widening;

pub(crate) use widening::{Aim, RECALL_OF_FAR, aim};
pub use widening::{WidePoint, Widening};

/// Condition under which a search stops before its whole effort is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopRule {
    /// Standard errors by which a distance may exceed its estimate; `null` turns the rule off.
    pub slack: Option<f32>,
    /// The share of the effort that may bring nothing, in a row; 0 turns the rule off.
    #[serde(rename = "patience_share")]
    pub share: f32,
    /// The share of the distance to the k-th result by which the best unread candidate must be farther; absent where
    /// the rule is off.
    #[serde(rename = "stop_margin", default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<f32>,
    /// The share of all reads that must have brought nothing, in a row, before the margin counts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_share: f32,
}

fn is_zero(x: &f32) -> bool {
    *x == 0.0
}

impl StopRule {
    /// A rule that stops by the margin.
    pub(crate) const fn by_margin(margin: f32, idle_share: f32) -> StopRule {
        StopRule { slack: None, share: 0.0, margin: Some(margin), idle_share }
    }

    /// A rule that stops by slack and by a share of the effort.
    pub(crate) const fn by_slack(slack: Option<f32>, share: f32) -> StopRule {
        StopRule { slack, share, margin: None, idle_share: 0.0 }
    }

    /// The part that rules of one path have in common where points do not name it: they differ in the margin alone.
    fn family(&self) -> StopRule {
        StopRule { margin: self.margin.map(|_| 0.0), ..*self }
    }

    /// The rule at `share` of the way from this one to another one of its path.
    fn mix(&self, to: &StopRule, share: f64) -> StopRule {
        let mix = |a: f32, b: f32| mix(a.into(), b.into(), share) as f32;
        let mix_both = |a: Option<f32>, b: Option<f32>| Some(mix(a?, b?));
        StopRule {
            slack: mix_both(self.slack, to.slack),
            share: mix(self.share, to.share),
            margin: mix_both(self.margin, to.margin),
            idle_share: mix(self.idle_share, to.idle_share),
        }
    }
}

/// The number at `share` of the way from `a` to `b`.
fn mix(a: f64, b: f64, share: f64) -> f64 {
    a + share * (b - a)
}

/// One measured setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The effort, in the unit of the kind: the length of a beam, or the clusters visited.
    #[serde(rename = "search_list")]
    pub effort: u32,
    /// The path of settings that it belongs to; absent in older indexes, where rules tell paths apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<u32>,
    /// Condition under which to stop before.
    pub stop: StopRule,
    /// Mean recall@k.
    pub recall: f64,
    /// Mean recall@k of the hardest fifth of the queries, by the distance to their k-th neighbours; absent where it was
    /// not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hardest: Option<f64>,
    /// Mean reads per query.
    pub reads: f64,
    /// Mean number of vectors scored per query, of a kind that reads them apart from its lists; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<f64>,
    /// Candidates that no query exceeded while it re-ranked; absent of a kind without, and in older indexes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<u32>,
    /// Mean code comparisons per query; absent in indexes of before they were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparisons: Option<f64>,
}

impl Point {
    /// The search of everything: its recall is 1.
    pub(crate) const EXACT: Point = Point {
        effort: u32::MAX,
        path: None,
        stop: StopRule::by_slack(None, 0.0),
        recall: 1.0,
        hardest: None,
        reads: f64::INFINITY,
        vectors: None,
        candidates: None,
        comparisons: None,
    };

    /// Whether both are on one path: a sequence of settings of ascending cost and recall.
    fn shares_path(&self, other: &Point) -> bool {
        self.path == other.path && (self.path.is_some() || self.stop.family() == other.stop.family())
    }

    /// Whether it is the search of everything.
    pub(crate) fn is_exact(&self) -> bool {
        self.effort == u32::MAX
    }

    /// The recall that queries of any kind may expect: that of the hardest, up to [`HARDEST_ENOUGH`].
    pub(crate) fn safe_recall(&self) -> f64 {
        self.hardest.filter(|&hardest| hardest < HARDEST_ENOUGH).unwrap_or(self.recall)
    }

    /// Whether it misses so much less than another one that the difference is no chance.
    fn gains_on(&self, other: &Point) -> bool {
        let fewer = |own: f64, other: f64| 1.0 - own < (1.0 - GAIN_MIN) * (1.0 - other);
        fewer(self.recall, other.recall)
            || self.hardest.zip(other.hardest).is_some_and(|(own, other)| fewer(own, other))
    }

    /// Product of reads and comparisons: which of them costs more depends on the memory of the search. With lists it
    /// has a factor more: vectors, which are read in any case, times the reads of a search with this share of the lists
    /// resident. Where all are, vectors alone are read.
    fn cost(&self, resident_share: f64) -> f64 {
        let (reads, comparisons) = (self.reads.max(0.1), self.comparisons.unwrap_or(1.0));
        let Some(vectors) = self.vectors else { return reads * comparisons };
        let vectors = vectors.max(0.1);
        vectors * mix(reads, vectors, resident_share) * comparisons
    }
}

/// Cost of recall for one k: several efforts for each of several stop rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Results asked for.
    pub k: u32,
    /// Queries it was measured on.
    pub queries: usize,
    /// Source of the queries: `mixture`, `rows` (in older indexes) or `queries`.
    pub source: String,
    /// Distance of these rows to the k-th of their neighbours, by the median; of a mixture the distance that few of its
    /// queries exceed. Unknown for queries, and in indexes of before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kth_distance: Option<f32>,
    /// The variant of the kind that it was measured with; absent for a kind without variants.
    #[serde(rename = "order", default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// The way to search that it was measured with, where an index has several; absent for the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Share of the lists whose codes are resident in searches, by the plan of the index; absent of a kind without one,
    /// and in indexes of before it was kept: then reads of lists do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident_share: Option<f64>,
    /// Share of the misses that a recall allows at which searches aim; absent where the hardest queries decide, and in
    /// indexes of before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses_aimed: Option<f64>,
    /// The points, by effort.
    pub points: Vec<Point>,
    /// Where searches with filters aim, by the share of the rows that these have; empty in indexes of before it was
    /// measured, and of the other ways to search.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub widening: Vec<Widening>,
}

impl Curve {
    /// A point of each path.
    fn paths(&self) -> Vec<&Point> {
        let mut paths: Vec<&Point> = Vec::new();
        for point in &self.points {
            if !paths.iter().any(|path| path.shares_path(point)) {
                paths.push(point);
            }
        }
        paths
    }

    /// The cheapest setting with which even the hardest queries reach `recall`, over all paths; between two measured
    /// points of a path effort and stop rule are interpolated. `None` when no point reaches it.
    pub fn setting(&self, recall: f64) -> Option<Point> {
        let reached = self.paths().into_iter().filter_map(|path| self.setting_of(path, recall));
        let cost = |point: &Point| self.cost(point);
        reached.min_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.effort.cmp(&b.effort)))
    }

    fn cost(&self, point: &Point) -> f64 {
        point.cost(self.resident_share.unwrap_or(1.0))
    }

    /// Whether its points reach the recall of `point` at a small part of the cost.
    pub(crate) fn is_far_cheaper(&self, point: &Point) -> bool {
        let times = if point.vectors.is_some() { FAR_CHEAPER.powi(3) } else { FAR_CHEAPER };
        self.setting(point.safe_recall()).is_some_and(|own| times * self.cost(&own) < self.cost(point))
    }

    /// The effort to begin a path with, when each path has the efforts of the one before with longer beams. It is the
    /// least effort at which the last longer beam has missed clearly less than the beam before it: with less effort, a
    /// still longer beam finds no more. `None` where there is no such effort.
    pub(crate) fn begin_longer(&self, path: u32) -> Option<u32> {
        let of = |path: u32| self.points.iter().filter(move |p| p.path == Some(path));
        let Some(shorter) = path.checked_sub(2) else { return Some(0) };
        let gains = |p: &&Point| of(shorter).any(|s| s.effort == p.effort && p.gains_on(s));
        of(path - 1).find(gains).map(|p| p.effort)
    }

    /// Whether the last two points have this effort and are equal: searches end by their effort, and another stop rule
    /// with the same effort measures the same.
    pub(crate) fn repeats(&self, path: u32, effort: u32) -> bool {
        let [.., before, last] = self.points.as_slice() else { return false };
        let is_same = |p: &Point| p.path == Some(path) && p.effort == effort;
        let counters = |p: &Point| (p.recall, p.reads, p.comparisons);
        is_same(before) && is_same(last) && counters(before) == counters(last)
    }

    /// Whether the last two steps of its last path have hardly raised the recall.
    pub(crate) fn has_stalled(&self) -> bool {
        let [.., before, _, last] = self.points.as_slice() else { return false };
        before.path == last.path && !last.gains_on(before)
    }

    /// Whether its last path misses next to nothing, and its last step has hardly changed that.
    pub(crate) fn has_settled(&self) -> bool {
        let [.., before, last] = self.points.as_slice() else { return false };
        before.path == last.path && before.safe_recall() >= RECALL_NEARLY_ENOUGH && !last.gains_on(before)
    }

    /// The fewest paths of which one costs little more than the cheapest, at each recall that was measured.
    pub(crate) fn useful_paths(&self) -> Vec<u32> {
        let paths = self.paths();
        let cost =
            |path: &Point, recall| self.setting_of(path, recall).map_or(f64::INFINITY, |p| self.cost(&p));
        let of_recall = |recall| -> Vec<f64> { paths.iter().map(|path| cost(path, recall)).collect() };
        let mut open: Vec<Vec<f64>> = self
            .points
            .iter()
            .map(|p| p.recall)
            .filter(|&recall| recall >= LEAST_USEFUL)
            .map(of_recall)
            .collect();
        let mut useful = Vec::new();
        while !open.is_empty() {
            let covers = |path: usize, costs: &[f64]| {
                costs[path] <= NEARLY_CHEAPEST * costs.iter().copied().fold(f64::INFINITY, f64::min)
            };
            let covered = |path: &usize| open.iter().filter(|costs| covers(*path, costs)).count();
            // Of paths that cover as many recalls, the first.
            let Some(best) = (0..paths.len()).rev().max_by_key(covered) else { break };
            open.retain(|costs| !covers(best, costs));
            useful.extend(paths[best].path);
        }
        useful
    }

    /// The highest recall that a setting reaches.
    fn reach(&self) -> f64 {
        let last_of_path = |at: usize| {
            let (point, later) = (&self.points[at], &self.points[at + 1..]);
            point.hardest.is_none() || !later.iter().any(|p| p.shares_path(point))
        };
        let ends = (0..self.points.len()).filter(|&at| last_of_path(at));
        ends.map(|at| self.points[at].safe_recall()).fold(0.0, f64::max)
    }

    /// Whether it reaches all that calibration looks for.
    pub(crate) fn is_complete(&self) -> bool {
        self.points.iter().any(|p| p.safe_recall() > RECALL_ENOUGH)
    }

    /// The smallest share of misses that its queries can tell from none.
    fn least_misses(&self) -> f64 {
        match self.misses_aimed {
            // Where none of n neighbours is missed, up to three of n may be, at a confidence of 95 %.
            Some(_) => 3.0 / (self.queries as f64 * f64::from(self.k)).max(3.0),
            None => 1e-4,
        }
    }

    fn setting_of(&self, path: &Point, recall: f64) -> Option<Point> {
        let points: Vec<&Point> = self.points.iter().filter(|p| p.shares_path(path)).collect();
        let reaches = |p: &&Point| p.safe_recall() >= recall;
        let first = match points.iter().all(|p| p.hardest.is_some()) {
            // A point that is beaten by a later one was lucky.
            true => points.iter().rposition(|p| !reaches(p)).map_or(0, |below| below + 1),
            // Curves of older programs are used as these used them.
            false => points.iter().position(reaches)?,
        };
        let above = points.get(first)?;
        let Some(below) = first.checked_sub(1).and_then(|at| points.get(at)) else { return Some(**above) };
        // Misses, not hits, shrink evenly as the effort grows.
        let misses = |r: f64| (1.0 - r).max(self.least_misses()).ln();
        let (from, to) = (misses(below.safe_recall()), misses(above.safe_recall()));
        let share = if from > to { ((from - misses(recall)) / (from - to)).clamp(0.0, 1.0) } else { 1.0 };
        let mix = |a: f64, b: f64| mix(a, b, share);
        let mix_both = |a: Option<f64>, b: Option<f64>| Some(mix(a?, b?));
        Some(Point {
            effort: mix(f64::from(below.effort), f64::from(above.effort)).ceil() as u32,
            path: above.path,
            stop: below.stop.mix(&above.stop, share),
            recall: mix(below.recall, above.recall),
            hardest: mix_both(below.hardest, above.hardest),
            reads: mix(below.reads, above.reads),
            vectors: mix_both(below.vectors, above.vectors),
            candidates: below.candidates.max(above.candidates),
            comparisons: mix_both(below.comparisons, above.comparisons),
        })
    }

    /// The points that no other point beats in both cost and recall.
    pub fn frontier(&self) -> Vec<Point> {
        let mut points = self.points.clone();
        let comparisons = |p: &Point| p.comparisons.unwrap_or(0.0);
        points.sort_by(|a, b| {
            let by_work = comparisons(a).total_cmp(&comparisons(b)).then(b.recall.total_cmp(&a.recall));
            a.reads.total_cmp(&b.reads).then(by_work)
        });
        let mut best = f64::NEG_INFINITY;
        points.retain(|p| {
            let keep = p.recall > best;
            best = best.max(p.recall);
            keep
        });
        points
    }
}

/// The setting for `k` results at `recall`, from the curve of the nearest k that is not smaller, or else the largest.
/// Where the curve ends below `recall`, everything is searched. `None` without a curve.
pub fn choose(curves: &[Curve], k: u32, recall: f64) -> Option<Point> {
    choose_of(curves, None, k, recall)
}

/// As [`choose`], for another way to search.
pub fn choose_of(curves: &[Curve], family: Option<&str>, k: u32, recall: f64) -> Option<Point> {
    if recall >= 1.0 {
        return Some(Point::EXACT);
    }
    let curve = nearest(curves, family, k)?;
    let has_hardest = curve.points.iter().all(|p| p.hardest.is_some());
    let share = curve.misses_aimed.unwrap_or(match &*curve.source {
        _ if has_hardest => 1.0,
        FROM_ROWS | FROM_MIXTURE => MISSES_AIMED_ROWS,
        _ => MISSES_AIMED,
    });
    let setting = curve.setting(1.0 - (1.0 - recall) * share).or_else(|| curve.setting(recall));
    let mut point = setting.unwrap_or(Point::EXACT);
    if curve.k < k && !point.is_exact() {
        // A longer answer needs an effort larger in proportion, and no fewer candidates than are usual.
        point.candidates = None;
        point.effort = (u64::from(point.effort) * u64::from(k) / u64::from(curve.k.max(1)))
            .min(u64::from(MAX_SEARCH_LIST)) as u32;
    }
    Some(point)
}

/// The curve of searches whose index is in memory.
pub const IN_MEMORY: &str = "memory";

/// The recall of searches that ask for none.
pub const RECALL_USUAL: f64 = 0.95;

/// A recall that no setting reaches: searches that ask for it go through everything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UnreachedRecall {
    /// Results of a query, of the curve.
    pub k: u32,
    /// Recall that was asked for.
    pub asked: f64,
    /// The highest recall that was reached by unseen queries.
    pub reached: f64,
}

impl UnreachedRecall {
    /// Text of the recall that was reached on an index of this kind, what follows, and what to do.
    pub fn describe(&self, kind: IndexKind) -> String {
        format!(
            "recall {} asked, {} reached for k {} at the widest setting of the calibration: searches that ask for more \
             go through everything; ask for less, build with {}, or calibrate with your queries: `stratann tune`",
            self.asked,
            (1000.0 * self.reached).floor() / 1000.0,
            self.k,
            facts(kind).recall_options
        )
    }
}

/// The recall that a search for `k` results does not reach; `None` where it does, where the search of everything was
/// asked for, and without a curve.
pub fn unreached(curves: &[Curve], k: u32, recall: f64) -> Option<UnreachedRecall> {
    let curve = nearest(curves, None, k)?;
    let found = UnreachedRecall { k: curve.k, asked: recall, reached: curve.reach() };
    (recall < 1.0 && curve.setting(recall).is_none()).then_some(found)
}

/// The curves of the usual way to search that do not reach a recall.
pub fn all_unreached(curves: &[Curve], recall: f64) -> Vec<UnreachedRecall> {
    let usual = curves.iter().filter(|curve| curve.family.is_none());
    usual.filter_map(|curve| unreached(std::slice::from_ref(curve), curve.k, recall)).collect()
}

/// The curve of the nearest k that is not smaller, or else the largest.
fn nearest<'c>(curves: &'c [Curve], family: Option<&str>, k: u32) -> Option<&'c Curve> {
    let own = || curves.iter().filter(|c| c.family.as_deref() == family);
    own().filter(|c| c.k >= k).min_by_key(|c| c.k).or_else(|| own().max_by_key(|c| c.k))
}

/// The cheapest of the settings that several ways to search come to, and its way. `None` where none has a curve.
pub(crate) fn cheapest<'f>(
    curves: &[Curve],
    families: &[Option<&'f str>],
    k: u32,
    recall: f64,
) -> Option<(Option<&'f str>, Point)> {
    let chosen = families.iter().filter_map(|&family| Some((family, choose_of(curves, family, k, recall)?)));
    let cost = |(family, point): &(Option<&str>, Point)| {
        nearest(curves, *family, k).map_or(f64::INFINITY, |curve| curve.cost(point))
    };
    chosen.min_by(|a, b| cost(a).total_cmp(&cost(b)))
}

/// The variant of the curve for `k`; `None` where no curve has one.
pub fn variant(curves: &[Curve], k: u32) -> Option<&str> {
    let nearest = curves.iter().filter(|c| c.variant.is_some()).min_by_key(|c| c.k.abs_diff(k));
    nearest?.variant.as_deref()
}

/// An effort, and the condition under which to stop before.
pub(crate) type Setting = (u32, StopRule);

/// Settings that calibration measures on an index, of ascending cost and recall, for each of several stop rules.
pub(crate) struct Grid {
    /// The settings of each path.
    pub(crate) paths: Vec<Vec<Setting>>,
    /// A setting with more reads ends its path.
    pub(crate) reads_max: f64,
    /// A setting with more comparisons with vectors ends its path.
    pub(crate) comparisons_max: f64,
    /// Whether each path has the efforts of the one before, with longer beams.
    pub(crate) has_longer_beams: bool,
}

impl Grid {
    /// Every other setting of each path, and its last.
    pub(crate) fn thinned(&self) -> Grid {
        let thinned = |path: &Vec<Setting>| {
            let is_kept = |at: usize| at.is_multiple_of(2) || at + 1 == path.len();
            path.iter().enumerate().filter(|(at, _)| is_kept(*at)).map(|(_, &setting)| setting).collect()
        };
        Grid { paths: self.paths.iter().map(thinned).collect(), ..*self }
    }
}

impl Default for Grid {
    fn default() -> Grid {
        Grid {
            paths: Vec::new(),
            reads_max: f64::INFINITY,
            comparisons_max: f64::INFINITY,
            has_longer_beams: false,
        }
    }
}

/// Distance of queries from the k-th of their neighbours, over that of the queries that the curve for k was measured
/// on, by their median and [`Curve::kth_distance`]; `None` where that is not known, or the metric is no distance. Sorts
/// `kth_distances`, one of each query.
pub fn remoteness(curves: &[Curve], metric: Metric, k: u32, kth_distances: &mut [f32]) -> Option<f64> {
    let usual = curves.iter().find(|c| c.k == k && c.family.is_none())?;
    let own = usual.kth_distance.filter(|&d| d > 0.0 && metric != Metric::Ip)?;
    // Squared, both of them: l2 by definition, cosine as half of the squared l2 of unit vectors.
    median(kth_distances).map(|theirs| f64::from(theirs / own).max(0.0).sqrt())
}

/// Remoteness from which on queries are of another kind than those of the calibration, and a recall that was measured
/// on these is too much to expect.
pub const REMOTE: f64 = 1.1;

/// Sorts; `None` of nothing.
pub(crate) fn median(values: &mut [f32]) -> Option<f32> {
    values.sort_unstable_by(f32::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Curves that older programs measured on rows of the index say so.
const FROM_ROWS: &str = "rows";
/// Curves measured on queries that were made from rows of the index say so.
pub(crate) const FROM_MIXTURE: &str = "mixture";
/// A curve is a mean over a few hundred queries: aim at a little fewer misses than asked.
const MISSES_AIMED: f64 = 0.95;
/// Rows, even hidden ones, turn out to be a little easier than queries that the index has never seen.
const MISSES_AIMED_ROWS: f64 = 0.82;

/// The recall of the hardest fifth from which on the mean counts. A fifth has a hundred queries: with one neighbour
/// each, two or three misses are as good as none.
const HARDEST_ENOUGH: f64 = 0.98;

/// The numbers of results that get a curve.
pub(crate) const CURVE_KS: [u32; 3] = [1, 10, 100];

/// The part of the misses that more effort must take.
const GAIN_MIN: f64 = 0.1;
/// A path ends where even the hardest queries reach this.
pub(crate) const RECALL_ENOUGH: f64 = 0.999;

/// Recall from which on it matters what a search costs, and the ratio of costs that is no reason to measure one path
/// more.
const LEAST_USEFUL: f64 = 0.5;
const NEARLY_CHEAPEST: f64 = 1.2;

/// Where a step hardly raises this, few rows are no reason to go on.
const RECALL_NEARLY_ENOUGH: f64 = 0.998;

/// Ratio of costs that is too much: the rest of such a path would not be chosen. A point that costs somewhat more may
/// be followed by one that costs less, because few hundred queries make curves uneven. The cost of lists is a product
/// of three.
const FAR_CHEAPER: f64 = 2.0;

/// Queries in flight while a curve is measured: the counters do not depend on it, but the longest beams take 100 KB a
/// query.
pub(crate) const CALIBRATION_IN_FLIGHT: usize = 16;
/// Refuses a slack that is no number of standard errors.
///
/// # Errors
/// A slack out of range.
pub(crate) fn check_slack(slack: f32) -> Result<()> {
    if slack >= -16.0 {
        return Ok(());
    }
    Err(Error::bad_input("the slack of the adaptive stop is a number of standard errors, from -16 up"))
}

#[cfg(test)]
mod tests;
