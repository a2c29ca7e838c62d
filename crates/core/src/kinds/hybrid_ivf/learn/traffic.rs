//! Traffic statistics, from which the navigation graph learns (OrchANN §5.2, Hot-Region Scoring).
//!
//! The score of a member is how often it was read, times how near that was to the end of the search: 1 for a result,
//! ε for a vector that was read and is no result. A search of lists has no depth to weigh by.

use alloc::vec;
use alloc::vec::Vec;

use super::sketch::Sketch;
use crate::kinds::hybrid_ivf::Trace;

/// Weight of a result, in units of ε.
pub const RESULT_WEIGHT: u16 = 16;

/// Results of a query that count as such, the nearest: so many nodes for a neighbourhood are enough.
pub const RESULTS_MAX: usize = 16;

/// Traffic of the queries of one worker in one epoch. Parts merge to the same whole in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Scores of members.
    pub sketch: Sketch,
    /// Members that were results, some of them several times.
    pub results: Vec<u32>,
    /// Visits of each cluster.
    pub visits: Vec<u32>,
    /// Queries.
    pub queries: u32,
}

impl Traffic {
    /// None yet, among so many clusters.
    pub fn new(clusters: u32) -> Traffic {
        Traffic { visits: vec![0; clusters as usize], ..Traffic::default() }
    }

    /// Takes in a query that ended.
    pub fn observe(&mut self, trace: &Trace<'_>) {
        let mut nearest = trace.results().iter().take(RESULTS_MAX);
        let worst = nearest.next_back().map_or(f32::NEG_INFINITY, |hit| hit.distance);
        // Others may be as far as the last.
        let mut left = RESULTS_MAX;
        for &(id, distance) in trace.read() {
            let is_result = distance <= worst;
            self.sketch.add(id, if is_result { RESULT_WEIGHT } else { 1 });
            if is_result && left > 0 {
                left -= 1;
                self.results.push(id);
            }
        }
        for &cluster in trace.visited() {
            if let Some(visits) = self.visits.get_mut(cluster as usize) {
                *visits = visits.saturating_add(1);
            }
        }
        self.queries += 1;
    }

    /// Takes in another part.
    pub fn merge(&mut self, other: &Traffic) {
        self.sketch.merge(&other.sketch);
        self.results.extend_from_slice(&other.results);
        self.visits.iter_mut().zip(&other.visits).for_each(|(a, b)| *a = a.saturating_add(*b));
        self.queries += other.queries;
    }

    /// Empties it, keeping the memory.
    pub fn clear(&mut self) {
        self.sketch.clear();
        self.results.clear();
        self.visits.fill(0);
        self.queries = 0;
    }

    /// The members that were results, each with its score, the highest first.
    pub fn ranked(&self) -> Vec<(u32, u32)> {
        let mut ids = self.results.clone();
        ids.sort_unstable();
        ids.dedup();
        let mut ranked: Vec<(u32, u32)> = ids.into_iter().map(|id| (self.sketch.estimate(id), id)).collect();
        ranked.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.into_iter().map(|(score, id)| (id, score)).collect()
    }
}
