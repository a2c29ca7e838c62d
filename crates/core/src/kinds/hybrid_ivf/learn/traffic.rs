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

/// What is counted of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Results, visits, and scores of all members that were read.
    Scores,
    /// Results and visits: enough to see a hot spot.
    Results,
}

/// Traffic of one half of the queries of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// Members that were results, some of them several times.
    pub results: Vec<u32>,
    /// Visits of each cluster.
    pub visits: Vec<u32>,
    /// Queries.
    pub queries: u32,
}

impl Half {
    /// Visits of each cluster in all these parts.
    pub fn visits_of(parts: &[&Half]) -> Vec<u32> {
        let mut all = Vec::new();
        for part in parts {
            all.resize(part.visits.len().max(all.len()), 0);
            add(&mut all, &part.visits);
        }
        all
    }
}

fn add(visits: &mut [u32], more: &[u32]) {
    visits.iter_mut().zip(more).for_each(|(a, b)| *a = a.saturating_add(*b));
}

/// Traffic of the queries of one worker in one epoch. Parts merge to the same whole in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Scores of members.
    pub sketch: Sketch,
    /// The first half of the epoch's queries, by their numbers, and the second.
    pub halves: [Half; 2],
}

impl Traffic {
    /// None yet, among so many clusters.
    pub fn new(clusters: u32) -> Traffic {
        let half = || Half { visits: vec![0; clusters as usize], ..Half::default() };
        Traffic { halves: [half(), half()], ..Traffic::default() }
    }

    /// Takes in a query that ended, of the second half of its epoch or of the first.
    pub fn observe(&mut self, trace: &Trace<'_>, is_second: bool, counting: Counting) {
        let half = &mut self.halves[usize::from(is_second)];
        let mut nearest = trace.results().iter().take(RESULTS_MAX);
        let worst = nearest.next_back().map_or(f32::NEG_INFINITY, |hit| hit.distance);
        // Others may be as far as the last.
        let mut left = RESULTS_MAX;
        for &(id, distance) in trace.read() {
            let is_result = distance <= worst;
            if counting == Counting::Scores {
                self.sketch.add(id, if is_result { RESULT_WEIGHT } else { 1 });
            }
            if is_result && left > 0 {
                left -= 1;
                half.results.push(id);
            }
        }
        for &cluster in trace.visited() {
            if let Some(visits) = half.visits.get_mut(cluster as usize) {
                *visits = visits.saturating_add(1);
            }
        }
        half.queries += 1;
    }

    /// Queries.
    pub fn queries(&self) -> u32 {
        self.halves.iter().map(|half| half.queries).sum()
    }

    /// Takes in another part.
    pub fn merge(&mut self, other: &Traffic) {
        self.sketch.merge(&other.sketch);
        for (mine, theirs) in self.halves.iter_mut().zip(&other.halves) {
            mine.results.extend_from_slice(&theirs.results);
            add(&mut mine.visits, &theirs.visits);
            mine.queries += theirs.queries;
        }
    }

    /// Empties it, keeping the memory.
    pub fn clear(&mut self) {
        self.sketch.clear();
        for half in &mut self.halves {
            half.results.clear();
            half.visits.fill(0);
            half.queries = 0;
        }
    }

    /// Scores of results, where only these were counted.
    pub fn score_results(&mut self) {
        self.halves.iter().flat_map(|half| &half.results).for_each(|&id| self.sketch.add(id, RESULT_WEIGHT));
    }

    /// Visits of each cluster.
    pub fn visits(&self) -> Vec<u32> {
        let [first, second] = &self.halves;
        Half::visits_of(&[first, second])
    }

    /// The members that were results, each with its score, the highest first.
    pub fn ranked(&self) -> Vec<(u32, u32)> {
        let mut ids: Vec<u32> = self.halves.iter().flat_map(|half| &half.results).copied().collect();
        ids.sort_unstable();
        ids.dedup();
        let mut ranked: Vec<(u32, u32)> = ids.into_iter().map(|id| (self.sketch.estimate(id), id)).collect();
        ranked.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.into_iter().map(|(score, id)| (id, score)).collect()
    }
}
