//! The k nearest rows of a search, with an order among rows of one distance.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A row that may be a result. Ties are broken by names: ids, or rows in the order of ids.
#[derive(Clone, Copy)]
pub(crate) struct Candidate<N> {
    pub(crate) distance: f32,
    pub(crate) name: N,
    /// The coarse list that has it.
    pub(crate) list: u32,
}

impl<N: Ord> PartialEq for Candidate<N> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<N: Ord> Eq for Candidate<N> {}

impl<N: Ord> Ord for Candidate<N> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then_with(|| self.name.cmp(&other.name))
    }
}

impl<N: Ord> PartialOrd for Candidate<N> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The `k` smallest candidates whose distance is at most a bound.
pub(crate) struct KSmallest<N> {
    k: usize,
    bound: f32,
    best: BinaryHeap<Candidate<N>>,
}

impl<N: Ord> KSmallest<N> {
    pub(crate) fn new(k: usize, bound: f32) -> KSmallest<N> {
        KSmallest { k, bound, best: BinaryHeap::new() }
    }

    /// The distance that a candidate has to be below.
    pub(crate) fn limit(&self) -> f32 {
        let worst = self.best.peek().filter(|_| self.best.len() >= self.k);
        worst.map_or(self.bound, |worst| worst.distance)
    }

    /// Takes a candidate in if it is among the smallest. NaN counts as infinite.
    pub(crate) fn offer(&mut self, distance: f32, name: N, list: u32) {
        self.offer_if(distance, name, list, || true);
    }

    /// As [`KSmallest::offer`], but of those that would be taken in only what is wanted. Returns whether it was.
    pub(crate) fn offer_if(
        &mut self,
        distance: f32,
        name: N,
        list: u32,
        is_wanted: impl FnOnce() -> bool,
    ) -> bool {
        // Minus zero becomes zero, so that the two are a tie.
        let distance = if distance.is_nan() { f32::INFINITY } else { distance + 0.0 };
        let candidate = Candidate { distance, name, list };
        let is_full = self.best.len() >= self.k;
        let is_smaller = !is_full || self.best.peek().is_some_and(|worst| candidate < *worst);
        if distance > self.bound || !is_smaller || !is_wanted() {
            return false;
        }
        if !is_full {
            self.best.push(candidate);
        } else if let Some(mut worst) = self.best.peek_mut() {
            *worst = candidate;
        }
        true
    }

    /// The candidates, the nearest first.
    pub(crate) fn into_sorted(self) -> Vec<Candidate<N>> {
        self.best.into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_stay_in_the_order_of_distances_and_names() {
        let mut best = KSmallest::new(3, 9.0);
        for (distance, name) in [(5.0, 1), (f32::NAN, 2), (9.5, 3), (0.0, 9), (-0.0, 4), (5.0, 0), (7.0, 5)] {
            best.offer(distance, name, 0);
        }
        assert_eq!(best.limit(), 5.0);
        assert!(!best.offer_if(1.0, 8, 0, || false) && !best.offer_if(6.0, 8, 0, || panic!("it is farther")));
        let names: Vec<u32> = best.into_sorted().iter().map(|found| found.name).collect();
        assert_eq!(names, [4, 9, 0]);
        assert_eq!(KSmallest::<u32>::new(1, 9.0).limit(), 9.0);
    }
}
