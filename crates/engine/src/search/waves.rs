//! The two waves of a search of several indexes: the first finds a distance beyond which results of the second are of
//! no use.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use stratann_core::query::Known;

use super::SearchOptions;

/// The wave of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Wave<'a> {
    /// The only one.
    #[default]
    Alone,
    /// The first: its answers set the bounds.
    First(&'a Bounds<'a>),
    /// The second: each of its queries begins when its bound is set. So many results are expected of this index.
    Second(&'a Bounds<'a>, u32),
}

impl Wave<'_> {
    /// What is known when a query of this wave begins; `None` while it may not begin.
    pub(super) fn known(&self, query: usize) -> Option<Known> {
        match *self {
            Wave::Alone => Some(Known::default()),
            Wave::First(bounds) => Some(Known { bound: bounds.of_known(query), ..Known::default() }),
            Wave::Second(bounds, expected) => {
                bounds.get(query).map(|(bound, near)| Known { bound, near, expected })
            }
        }
    }

    /// Sets the bound of a query that the first wave has answered with results at these ascending distances.
    pub(super) fn ended(&self, query: usize, distances: impl Iterator<Item = f32>) {
        if let Wave::First(bounds) = self {
            bounds.set(query, distances);
        }
    }

    /// Ends the wait for bounds that will not be set.
    pub(super) fn give_up(&self) {
        if let Wave::First(bounds) | Wave::Second(bounds, _) = self {
            bounds.is_given_up.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_given_up(&self) -> bool {
        match self {
            Wave::Alone => false,
            Wave::First(bounds) | Wave::Second(bounds, _) => bounds.is_given_up.load(Ordering::Relaxed),
        }
    }
}

/// Bounds of the queries of a search.
#[derive(Debug)]
pub(super) struct Bounds<'a> {
    k: usize,
    // Results that are expected in the first wave, of the k nearest.
    expected: usize,
    // Ascending distances of results that the asker has; empty where it has none of any query.
    known: &'a [Vec<f32>],
    // Bits of the bound and of the near distance. Those of the bound are set last.
    bits: Vec<[AtomicU32; 2]>,
    is_given_up: AtomicBool,
}

/// Bits of a bound that is not set: of no number.
const NOT_SET: u32 = u32::MAX;

impl<'a> Bounds<'a> {
    /// Of `count` queries for the `k` nearest, of which the asker knows results at these ascending distances.
    pub(super) fn new(
        known: &'a [Vec<f32>],
        (k, expected): (usize, Option<u32>),
        count: usize,
    ) -> Bounds<'a> {
        let bits = (0..count).map(|_| [const { AtomicU32::new(NOT_SET) }; 2]).collect();
        let expected = expected.map_or(usize::MAX, |expected| expected as usize);
        Bounds { k, expected, known, bits, is_given_up: AtomicBool::new(false) }
    }

    fn known(&self, query: usize) -> &[f32] {
        self.known.get(query).map_or(&[], Vec::as_slice)
    }

    /// The bound that the known results alone give.
    fn of_known(&self, query: usize) -> f32 {
        kth(&mut self.known(query).to_vec(), self.k)
    }

    fn set(&self, query: usize, distances: impl Iterator<Item = f32>) {
        let Some([bound, near]) = self.bits.get(query) else { return };
        let mut all: Vec<f32> = self.known(query).iter().copied().chain(distances).collect();
        near.store(kth(&mut all, self.expected).to_bits(), Ordering::Relaxed);
        bound.store(kth(&mut all, self.k).to_bits(), Ordering::Release);
    }

    fn get(&self, query: usize) -> Option<(f32, f32)> {
        let [bound, near] = self.bits.get(query)?;
        let bits = bound.load(Ordering::Acquire);
        (bits != NOT_SET).then(|| (f32::from_bits(bits), f32::from_bits(near.load(Ordering::Relaxed))))
    }
}

/// The k-th smallest distance; infinity where they are fewer, or it is no number.
fn kth(all: &mut [f32], k: usize) -> f32 {
    let Some(at) = k.checked_sub(1).filter(|&at| at < all.len()) else { return f32::INFINITY };
    let (_, &mut kth, _) = all.select_nth_unstable_by(at, f32::total_cmp);
    if kth.is_nan() { f32::INFINITY } else { kth }
}

/// Results of an index with this share of all rows that are expected among the k nearest of all, and one standard
/// deviation more: its effort is that of a search for so many.
pub(super) fn effort_k(k: u32, share: f64) -> u32 {
    let expected = share * f64::from(k);
    let deviation = (expected * (1.0 - share)).max(0.0).sqrt();
    ((expected + deviation).ceil() as u32).clamp(1, k.max(1))
}

/// Results of an index in the second wave before which its search does not end; 0 where no recall is asked for.
pub(super) fn expected(options: &SearchOptions, share: f64) -> u32 {
    match near_rank(options, share) {
        Some(_) => ((share * options.k as f64) as u32).max(1),
        None => 0,
    }
}

/// The rank of the result of a first wave with this share of all rows, within which the k nearest of all are expected;
/// `None` where no recall is asked for.
pub(super) fn near_rank(options: &SearchOptions, share: f64) -> Option<u32> {
    let is_asked = options.recall().is_some_and(|recall| recall < 1.0);
    is_asked.then(|| effort_k(u32::try_from(options.k).unwrap_or(u32::MAX), share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_the_kth_distance_of_all_that_is_known() {
        let known = [vec![1.0, 4.0], vec![], vec![1.0, 2.0, 3.0, 9.0]];
        let bounds = Bounds::new(&known, (3, Some(2)), 3);
        let (first, second) = (Wave::First(&bounds), Wave::Second(&bounds, 1));
        let bound = |wave: &Wave<'_>, query| wave.known(query).map(|known| known.bound);
        let of_known = [0, 1, 2].map(|query| bound(&first, query));
        assert_eq!(of_known, [Some(f32::INFINITY), Some(f32::INFINITY), Some(3.0)]);
        assert_eq!([0, 1, 2, 3].map(|query| bound(&second, query)), [None; 4]);
        first.ended(0, [2.0, 3.0, 5.0].into_iter());
        first.ended(1, [2.0, 3.0].into_iter());
        first.ended(2, std::iter::empty());
        first.ended(9, std::iter::empty());
        let set = [0, 1, 2].map(|query| bound(&second, query));
        assert_eq!(set, [Some(3.0), Some(f32::INFINITY), Some(3.0)]);
        assert_eq!(second.known(0), Some(Known { bound: 3.0, near: 2.0, expected: 1 }));
        assert!(!second.is_given_up());
        first.give_up();
        assert!(second.is_given_up() && !Wave::Alone.is_given_up());
        let none = Bounds::new(&[], (1, None), 1);
        Wave::First(&none).ended(0, [f32::NAN].into_iter());
        assert_eq!(Wave::Second(&none, 0).known(0), Some(Known::default()));
    }

    #[test]
    fn an_index_is_searched_for_its_share_of_the_results() {
        let efforts = [(0.125, 3), (0.74, 9), (0.18, 4), (0.015, 1), (1.0, 10), (0.0, 1)];
        assert!(efforts.iter().all(|&(share, k)| effort_k(10, share) == k));
        let options = SearchOptions { k: 100, ..SearchOptions::default() };
        assert_eq!((expected(&options, 0.125), near_rank(&options, 0.125)), (12, Some(16)));
        let exact = SearchOptions { effort: super::super::Effort::Recall(1.0), ..options };
        assert_eq!((expected(&exact, 0.125), near_rank(&exact, 0.125)), (0, None));
    }
}
