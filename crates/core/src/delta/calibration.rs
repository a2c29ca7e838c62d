//! The factor of limits and the number of lists that a recall needs, as rows in memory show it.

use alloc::vec::Vec;

use super::coarse::LISTS_MAX;

/// Least rows of which one is a probe.
const PROBE_EVERY_MIN: u64 = 16;
/// Rows among which there are so many probes: a probe compares all codes, so that each row costs 128 codes more.
const PROBES: u64 = 128;
/// Rows without which nothing is learnt.
const PROBED_MIN: u64 = 1024;
/// Results of a probe.
pub const PROBE_RESULTS: usize = 10;

/// Bins of factors from 0 to 1. The first has all that are not positive, the last all from 1 on.
const BINS: usize = 64;
/// Probes that are counted before earlier ones count half.
const PROBES_MAX: u32 = 256;
/// Probes without which nothing is said.
const PROBES_MIN: u32 = 32;
/// Probes whose distances are known.
const DISTANCES_MAX: usize = 256;
/// Share of the probes that queries are compared with. One whose results are farther than theirs is unlike the rows.
const ALIKE: f64 = 0.97;
/// Part of what may be missed that probes may miss. The rest is for what they do not show.
const MISSED: f64 = 0.5;
/// The same for queries that are unlike the rows.
const MISSED_UNLIKE: f64 = 0.05;
/// The same of the lists nearest to a query, which say less of queries that are no rows than distances do.
const MISSED_BY_RANK: f64 = 0.25;

/// Factors from which on the lists of results are scanned. Later ones count more.
#[derive(Clone, Debug)]
struct Histogram {
    bins: [u32; BINS],
}

/// How many lists are nearer than those of results.
#[derive(Clone, Debug)]
struct Ranks {
    counts: [u32; LISTS_MAX],
}

/// What probes showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Calibration {
    probes: u32,
    /// Of the nearest row, with its distance as the limit.
    nearest: Histogram,
    /// Of all results, with the distance of the last one as the limit.
    all: Histogram,
    /// Of all results.
    ranks: Ranks,
    /// Distances of the nearest and of the last result of the newest probes.
    distances: Vec<[f32; 2]>,
    added: u32,
    /// Distances that few probes exceed.
    usual: [f32; 2],
}

/// Something for queries that are like the rows, and for others.
#[derive(Clone, Copy, Debug)]
struct Both<T> {
    alike: T,
    unlike: T,
}

impl<T: Copy> Both<T> {
    /// Whether something is beyond the value for a query.
    fn are_passed(&self, is_beyond: impl Fn(T) -> bool, is_alike: impl Fn() -> bool) -> bool {
        is_beyond(self.unlike) || is_beyond(self.alike) && is_alike()
    }
}

/// Which lists are scanned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needed {
    /// Factors beyond which none is.
    factor: Both<f32>,
    /// How many are.
    lists: Both<f64>,
}

impl Needed {
    /// The largest factor of a list that is scanned.
    pub(super) fn factor_max(&self, is_alike: bool) -> f32 {
        if is_alike { self.factor.alike } else { self.factor.unlike }
    }

    /// Whether so many lists are enough.
    pub(super) fn are_enough(&self, lists: usize, is_alike: impl Fn() -> bool) -> bool {
        self.lists.are_passed(|most| lists as f64 >= most, is_alike)
    }

    /// Whether a list of this factor is too far.
    pub(super) fn is_far(&self, factor: f32, is_alike: impl Fn() -> bool) -> bool {
        self.factor.are_passed(|most| factor > most, is_alike)
    }
}

/// A result of a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbeResult {
    /// The factor of its list, with the distance of the last result as the limit.
    pub(super) factor: f32,
    /// Lists that are nearer than its own.
    pub(super) rank: usize,
}

impl Default for Ranks {
    fn default() -> Ranks {
        Ranks { counts: [0; LISTS_MAX] }
    }
}

impl Ranks {
    fn add(&mut self, rank: usize) {
        if let Some(count) = self.counts.get_mut(rank) {
            *count += 1;
        }
    }

    /// The number of lists that have this share of the results.
    fn quantile(&self, share: f64) -> f64 {
        let mut left = f64::from(self.counts.iter().sum::<u32>()) * share;
        for (&count, lists) in self.counts.iter().zip(1u32..) {
            left -= f64::from(count);
            if left <= 0.0 {
                return lists.into();
            }
        }
        f64::INFINITY
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { bins: [0; BINS] }
    }
}

impl Histogram {
    fn add(&mut self, factor: f32) {
        // What is no number goes into the last bin, which says least.
        let at = if factor <= 0.0 { 0.0 } else { factor * BINS as f32 };
        let bin = if at < BINS as f32 { at as usize } else { BINS - 1 };
        if let Some(count) = self.bins.get_mut(bin) {
            *count += 1;
        }
    }

    /// The end of the bin up to which this share of the factors is.
    fn quantile(&self, share: f64) -> f32 {
        let all: u32 = self.bins.iter().sum();
        let mut left = f64::from(all) * share;
        for (&count, bin) in self.bins[..BINS - 1].iter().zip(1u16..) {
            left -= f64::from(count);
            if left <= 0.0 {
                return f32::from(bin) / BINS as f32;
            }
        }
        f32::INFINITY
    }
}

/// Whether the last of so many rows is a probe. Which ones are has no pattern, as what is written may have one.
pub(super) fn is_probe(rows: u64) -> bool {
    let every = (rows / PROBES).max(PROBE_EVERY_MIN);
    rows >= PROBED_MIN && (rows.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(every)
}

impl Calibration {
    /// Counts a probe: the distances of its nearest and its last result, the factor of the nearest, and all results.
    pub(super) fn add(&mut self, distances: [f32; 2], nearest: f32, all: impl Iterator<Item = ProbeResult>) {
        let next = self.added as usize % DISTANCES_MAX;
        match self.distances.get_mut(next) {
            Some(oldest) => *oldest = distances,
            None => self.distances.push(distances),
        }
        self.added = self.added.wrapping_add(1);
        for (at, usual) in self.usual.iter_mut().enumerate() {
            let mut all: Vec<f32> = self.distances.iter().map(|distances| distances[at]).collect();
            let last = (all.len() as f64 * ALIKE) as usize;
            *usual = *all.select_nth_unstable_by(last, f32::total_cmp).1;
        }
        self.nearest.add(nearest);
        all.for_each(|result| {
            self.all.add(result.factor);
            self.ranks.add(result.rank);
        });
        self.probes += 1;
        if self.probes >= PROBES_MAX {
            self.probes /= 2;
            let all = self.nearest.bins.iter_mut().chain(&mut self.all.bins).chain(&mut self.ranks.counts);
            all.for_each(|count| *count /= 2);
        }
    }

    /// Whether a query with these distances of its nearest row and of its tenth so far is unlike the rows, so that
    /// they say nothing of it.
    pub(super) fn is_unlike(&self, [nearest, tenth]: [f32; 2], k: usize) -> bool {
        if k < PROBE_RESULTS { nearest > self.usual[0] } else { tenth > self.usual[1] }
    }

    /// Whether there were enough probes.
    pub(super) fn is_known(&self) -> bool {
        self.probes >= PROBES_MIN
    }

    /// The lists for a recall of `k` results, of queries that are like the rows and of others: all for a recall of 1,
    /// and where too little is known. `share` of the rows may be results; 0 where that is not known.
    pub(super) fn needed(&self, recall: f64, k: usize, share: f64) -> Needed {
        const ALL: f64 = f64::INFINITY;
        if recall >= 1.0 || !self.is_known() {
            let factor = Both { alike: f32::INFINITY, unlike: f32::INFINITY };
            return Needed { factor, lists: Both { alike: ALL, unlike: ALL } };
        }
        let share_of = |missed: f64| 1.0 - (1.0 - recall) * missed;
        let factor = |missed: f64| {
            let all = self.all.quantile(share_of(missed));
            if k < PROBE_RESULTS { all.max(self.nearest.quantile(share_of(missed))) } else { all }
        };
        // More results, or results of which some may not be returned, are in as many times the lists.
        let times = (k as f64 / PROBE_RESULTS as f64).max(1.0) / share;
        let lists =
            |missed: f64| if share > 0.0 { self.ranks.quantile(share_of(missed)) * times } else { ALL };
        Needed {
            factor: Both { alike: factor(MISSED), unlike: factor(MISSED_UNLIKE) },
            lists: Both { alike: lists(MISSED_BY_RANK), unlike: lists(MISSED_UNLIKE) },
        }
    }
}
