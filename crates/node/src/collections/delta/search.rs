//! The nearest points of a state, by distances to all of them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use stratann_kernel::distance::Exact;

use super::state::State;
use crate::collections::spec::Spec;
use crate::rows::ExternalId;

/// A point that a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Its id.
    pub id: ExternalId,
    /// Its distance; smaller is nearer. One that is no number counts as infinite.
    pub distance: f32,
}

/// A hit whose id is not copied yet. Ties are broken by ids, so that equal points have one order.
#[derive(PartialEq)]
struct Candidate<'a> {
    distance: f32,
    id: &'a ExternalId,
}

impl Eq for Candidate<'_> {}

impl Ord for Candidate<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.distance.total_cmp(&other.distance).then_with(|| self.id.cmp(other.id))
    }
}

impl PartialOrd for Candidate<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl State {
    /// The `k` nearest points of a query that are in memory, nearest first; all where there are fewer.
    pub(crate) fn nearest(&self, spec: &Spec, query: &[u8], k: usize) -> Vec<Hit> {
        let (mut exact, mut distances) = (Exact::default(), Vec::new());
        exact.set(spec.metric, spec.dtype, spec.dim, query);
        let mut best: BinaryHeap<Candidate> = BinaryHeap::new();
        for part in &self.blocks {
            if part.dead.count() == part.block.rows() {
                continue;
            }
            exact.distances(&part.block.vectors, &part.block.inverse_norms, &mut distances);
            for (row, distance) in distances.iter().enumerate() {
                if part.dead.has(row) {
                    continue;
                }
                let Some(id) = part.block.id(row) else { continue };
                // Minus zero becomes zero, so that the two are a tie.
                let distance = if distance.is_nan() { f32::INFINITY } else { distance + 0.0 };
                let candidate = Candidate { distance, id };
                if best.len() < k {
                    best.push(candidate);
                } else if let Some(mut worst) = best.peek_mut().filter(|worst| candidate < **worst) {
                    *worst = candidate;
                }
            }
        }
        let sorted = best.into_sorted_vec();
        sorted.into_iter().map(|found| Hit { id: found.id.clone(), distance: found.distance }).collect()
    }
}
