//! A query over lists.

use alloc::sync::Arc;
use alloc::vec::Vec;

use stratann_kernel::bits::BitQuery;
use stratann_kernel::distance::{block_dot_f32, block_l2_f32};
use stratann_kernel::{Metric, sqrt};

use super::calibration::{Calibration, PROBE_RESULTS, ProbeResult};
use super::coarse::{Coarse, Placed, ROUNDING, TINY};
use super::lists::{Chunk, List, Lists};

/// Rounding of a distance to a point, relative to the terms that it is the sum of.
const OF_DISTANCE: f32 = 4e-6;
/// Absolute rounding of a cosine.
const OF_COSINE: f32 = 2e-5;
/// Absolute rounding of products below the normal floats.
const OF_TINY: f32 = 1e-35;

/// The points of the caller.
pub trait Points {
    /// The distance beyond which no point matters: of the k-th result, once there are k, or a given one.
    fn limit(&self) -> f32;

    /// Computes the distance of a row, which is in this list, and keeps it where it is a result. Returns it, infinite
    /// for a dead row, which is no result.
    fn score(&mut self, list: u32, row: u64) -> f32;
}

/// How thoroughly lists are searched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Share of the true results that is wanted. At 1 all are found.
    pub recall: f64,
    /// Results.
    pub k: usize,
    /// Share of the rows that may be results; 0 where that is not known.
    pub share: f64,
}

/// What a query did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Lists whose codes were compared.
    pub lists: u64,
    /// Codes that were compared.
    pub codes: u64,
}

/// Buffers of a query.
#[derive(Debug, Default)]
pub struct Query {
    placed: Placed,
    /// Distance of each centroid: squared, or a negative product.
    distances: Vec<f32>,
    /// The smallest of them, and its list. Not used under inner product.
    nearest: (f32, u32),
    /// Lists that have rows, by the distances of their centroids.
    order: Vec<(f32, u32)>,
    residual: Vec<f32>,
    bits: BitQuery,
    /// How far the whole numbers of the query may be off. Under inner product all lists have the same.
    error: f32,
    keys: Vec<u32>,
    found: Vec<(u32, u32)>,
    /// The smallest distances so far, ascending.
    smallest: [f32; PROBE_RESULTS],
}

/// What the rows of a list have in common for a query.
#[derive(Clone, Copy)]
struct Bounds {
    metric: Metric,
    /// How far the query may be off, with what its whole numbers lose.
    error: f32,
    /// Roundings of distances.
    slack: f32,
    /// Under inner product: the length of the query, and what is added to distances of codes.
    length: f32,
    term: f32,
}

/// A limit on the scale of codes, squared l2 or a negative product, rounded up.
fn code_scale(metric: Metric, limit: f32) -> f32 {
    match metric {
        Metric::L2 => limit.max(0.0) * (1.0 + ROUNDING),
        Metric::Cosine => 2.0 * (limit + OF_COSINE).max(0.0) * (1.0 + ROUNDING),
        Metric::Ip => limit,
    }
}

impl Query {
    /// Ranks the centroids.
    fn rank(&mut self, lists: &Lists) {
        let coarse = &*lists.coarse;
        let dim = coarse.shape().dim;
        self.distances.clear();
        self.distances.resize(coarse.lists(), 0.0);
        if coarse.shape().metric == Metric::Ip {
            block_dot_f32(&self.placed.vector, &coarse.centroids, dim, &mut self.distances);
            self.distances.iter_mut().for_each(|x| *x = -*x);
            self.error = self.bits.set_point(&coarse.coder, &self.placed.vector, 0.0) + self.placed.rounding;
        } else {
            block_l2_f32(&self.placed.vector, &coarse.centroids, dim, &mut self.distances);
            let all = self.distances.iter().copied().zip(0..);
            self.nearest = all.min_by(|one, two| one.0.total_cmp(&two.0)).unwrap_or_default();
        }
    }

    /// Orders the lists that have rows and a factor up to `factor_max`, by the distances of their centroids.
    fn order(&mut self, lists: &Lists, (limit, factor_max): (f32, f32)) {
        let mut order = core::mem::take(&mut self.order);
        order.clear();
        for ((list, &distance), at) in lists.lists.iter().zip(&self.distances).zip(0u32..) {
            let is_far = || self.factor(&lists.coarse, (at, list), limit) > factor_max;
            if !list.chunks.is_empty() && (factor_max == f32::INFINITY || !is_far()) {
                order.push((distance, at));
            }
        }
        order.sort_unstable_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
        self.order = order;
    }

    /// How many lists with rows are nearer than one.
    fn lists_before(&self, lists: &Lists, at: u32) -> usize {
        let own = self.distances.get(at as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let all = self.distances.iter().zip(&lists.lists);
        all.filter(|(distance, list)| **distance < own && !list.chunks.is_empty()).count()
    }

    /// The factor from which on a list is scanned, for a limit on the scale of codes: how far its rows are at least, as
    /// a part of the limit, or under inner product the cosine that they need.
    fn factor(&self, coarse: &Coarse, (at, list): (u32, &List), limit: f32) -> f32 {
        let distance = self.distances.get(at as usize).copied().unwrap_or(f32::NEG_INFINITY);
        if list.longest == f32::INFINITY {
            return f32::NEG_INFINITY;
        }
        if coarse.shape().metric == Metric::Ip {
            return (distance - limit) / (self.placed.length * list.usual());
        }
        let (nearest, nearest_at) = self.nearest;
        if distance <= nearest {
            return 0.0;
        }
        let gap = coarse.gaps(nearest_at).get(at as usize).copied().unwrap_or(0.0);
        (distance - nearest) * gap / sqrt(limit)
    }

    /// Whether no row of a list can be a result, by the distance of its centroid and of the row farthest from it.
    fn is_beyond(&self, coarse: &Coarse, (distance, list): (f32, &List), limit: f32) -> bool {
        if coarse.shape().metric == Metric::Ip {
            let length = self.placed.length * (1.0 + ROUNDING);
            let rounding = 2.0 * ROUNDING * length * (list.longest + coarse.longest) + OF_TINY;
            return distance - length * list.longest - rounding > limit;
        }
        let near = sqrt(distance) * (1.0 - ROUNDING) - self.placed.rounding - TINY - list.longest;
        near > 0.0 && near > sqrt(limit) * (1.0 + ROUNDING)
    }

    /// Prepares for the codes of a list. `None` where they bound nothing.
    fn begin_list(&mut self, coarse: &Coarse, (at, list): (u32, &List)) -> Option<Bounds> {
        let metric = coarse.shape().metric;
        let length = self.placed.length * (1.0 + ROUNDING);
        if metric == Metric::Ip {
            // A code stands for a point that is shorter than what it was made of, but for roundings.
            let longest = 2.0 * list.longest;
            let slack = self.error * longest + 2.0 * ROUNDING * length * (coarse.longest + longest) + OF_TINY;
            let bounds =
                Bounds { metric, error: self.error, slack, length, term: self.distances[at as usize] };
            return slack.is_finite().then_some(bounds);
        }
        self.residual.clear();
        let pairs = self.placed.vector.iter().zip(coarse.centroid(at));
        self.residual.extend(pairs.map(|(q, c)| q - c));
        let error = self.bits.set_point(&coarse.coder, &self.residual, 0.0) + self.placed.rounding;
        let slack = OF_DISTANCE * self.bits.terms().next()?;
        (error.is_finite() && slack.is_finite()).then_some(Bounds { metric, error, slack, length, term: 0.0 })
    }

    /// Finds the rows of a chunk that may be within a limit, the nearest by their codes first.
    fn find(&mut self, coarse: &Coarse, bounds: &Bounds, (chunk, limit): (&Chunk, f32)) {
        if bounds.metric == Metric::Ip {
            let layout = coarse.coder.layout();
            self.bits.lanes(&chunk.codes, &mut self.keys);
            let near = self.keys.iter().zip(0u32..).filter(|&(&key, at)| {
                bounds.has(self.bits.to_float(key), chunk.codes.radius(layout, at as usize), limit)
            });
            self.found.clear();
            self.found.extend(near.map(|(&key, at)| (key, at)));
        } else {
            let reach = sqrt(code_scale(bounds.metric, limit)) + bounds.error;
            self.bits.near_lanes(&chunk.codes, (reach, bounds.slack), &mut self.found);
        }
        self.found.sort_unstable();
    }

    /// Keeps a distance if it is one of the smallest.
    fn note(&mut self, distance: f32) {
        let mut distance = distance;
        if distance < self.smallest[PROBE_RESULTS - 1] {
            for one in &mut self.smallest {
                if distance < *one {
                    core::mem::swap(&mut distance, one);
                }
            }
        }
    }

    /// Whether rows say nothing of the query, as far as one knows by now. No result is farther than `bound`.
    fn is_unlike(&self, calibration: &Calibration, metric: Metric, (k, bound): (usize, f32)) -> bool {
        let distances = [self.smallest[0], self.smallest[PROBE_RESULTS - 1]].map(|own| own.min(bound));
        calibration.is_unlike(distances.map(|distance| self.relative(metric, distance)), k)
    }

    /// A distance that does not depend on the length of the query.
    fn relative(&self, metric: Metric, distance: f32) -> f32 {
        if metric == Metric::Ip { distance / self.placed.length } else { distance }
    }

    /// Compares the codes of a list.
    fn scan(&mut self, coarse: &Coarse, (at, list): (u32, &List), points: &mut impl Points) -> Scanned {
        let mut scanned = Scanned { lists: 1, codes: 0 };
        let Some(bounds) = self.begin_list(coarse, (at, list)) else {
            list.rows().for_each(|row| self.note(points.score(at, row)));
            return scanned;
        };
        let layout = coarse.coder.layout();
        for chunk in &list.chunks {
            self.find(coarse, &bounds, (chunk, points.limit()));
            scanned.codes += chunk.codes.len() as u64;
            for next in 0..self.found.len() {
                let (key, number) = self.found[next];
                let radius = chunk.codes.radius(layout, number as usize);
                if !bounds.has(self.bits.to_float(key), radius, points.limit()) {
                    continue;
                }
                if let Some(&row) = chunk.rows.get(number as usize) {
                    self.note(points.score(at, row));
                }
            }
        }
        scanned
    }
}

impl Bounds {
    /// Whether a row may be within a limit, by the distance of its code.
    fn has(&self, distance: f32, radius: f32, limit: f32) -> bool {
        if limit == f32::INFINITY {
            return true;
        }
        let limit = code_scale(self.metric, limit);
        let is_beyond = match self.metric {
            Metric::Ip => distance + self.term > limit + self.length * radius + self.slack,
            _ => {
                let both = sqrt(limit) + self.error + radius;
                distance > both * both * (1.0 + ROUNDING) + self.slack
            }
        };
        !is_beyond
    }
}

impl Lists {
    /// Shows all rows to `points` that may be results, of the lists that a recall needs.
    pub fn search(
        &self,
        query: &mut Query,
        vector: &[u8],
        effort: Effort,
        points: &mut impl Points,
    ) -> Scanned {
        let coarse = &*self.coarse;
        let metric = coarse.shape().metric;
        query.placed.set(&coarse.coder, coarse.shape(), vector);
        if !query.placed.is_usable {
            let lists = (0..).zip(&self.lists);
            lists.for_each(|(at, list)| list.rows().for_each(|row| _ = points.score(at, row)));
            return Scanned { lists: self.lists.len() as u64, codes: 0 };
        }
        query.rank(self);
        query.smallest = [f32::INFINITY; PROBE_RESULTS];
        let needed = self.calibration.needed(effort.recall, effort.k, effort.share);
        let mut scanned = Scanned::default();
        let asked = (effort.k, points.limit());
        // Lists that are far by the first limit are far by all later ones. A query that is like the rows stays so.
        let is_alike = asked.1 < f32::INFINITY && !query.is_unlike(&self.calibration, metric, asked);
        let first = match asked.1 < f32::INFINITY {
            true => (code_scale(metric, asked.1), needed.factor_max(is_alike)),
            false => (0.0, f32::INFINITY),
        };
        query.order(self, first);
        for next in 0..query.order.len() {
            let (distance, at) = query.order[next];
            let Some(list) = self.lists.get(at as usize) else { continue };
            let limit = points.limit();
            if limit < f32::INFINITY {
                let limit = code_scale(metric, limit);
                let is_alike = || !query.is_unlike(&self.calibration, metric, asked);
                if needed.are_enough(next, is_alike) {
                    break;
                }
                let factor = query.factor(coarse, (at, list), limit);
                if query.is_beyond(coarse, (distance, list), limit) || needed.is_far(factor, is_alike) {
                    continue;
                }
            }
            let of_list = query.scan(coarse, (at, list), points);
            scanned.lists += of_list.lists;
            scanned.codes += of_list.codes;
        }
        scanned
    }

    /// Learns which lists results are in from a search at a recall of 1. `results` has the distance and the list of
    /// each, the nearest first.
    pub fn learn(&mut self, query: &Query, results: &[(f32, u32)]) {
        let (Some(first), Some(last)) = (results.first(), results.last()) else { return };
        if !query.placed.is_usable {
            return;
        }
        let metric = self.coarse.shape().metric;
        let factor = |&(_, at): &(f32, u32), limit: f32| {
            let list = self.lists.get(at as usize);
            list.map_or(0.0, |list| query.factor(&self.coarse, (at, list), code_scale(metric, limit)))
        };
        let probed = results.iter().map(|result| ProbeResult {
            factor: factor(result, last.0),
            rank: query.lists_before(self, result.1),
        });
        let distances = [first.0, last.0].map(|distance| query.relative(metric, distance));
        let mut calibration = Calibration::clone(&self.calibration);
        calibration.add(distances, factor(first, first.0), probed);
        self.calibration = Arc::new(calibration);
    }
}
