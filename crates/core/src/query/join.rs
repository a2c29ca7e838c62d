//! The answers of a query's parts, joined into one.
//!
//! A part is an index of its own: that of some servers of a cluster, or one of several that a process has open. Each
//! answers the query alone. The best k of all their results by (distance, id) are the answer, and their counters are
//! added up. A part without an answer is named in the joined one.

use alloc::vec::Vec;

use super::{Budget, Hit, Outcome, Params, QueryState};
use crate::place::bit;
use crate::search::LostUnit;

/// The answers so far.
#[derive(Clone, Debug)]
pub struct Join {
    // A bit for every part that has neither answered nor been given up.
    missing: u64,
    sum: QueryState,
}

impl Join {
    /// No answers yet, of `parts` parts: at most 64.
    pub fn new(params: Params, budget: Budget, parts: u8) -> Join {
        let mut sum = QueryState::new(params, budget);
        sum.q.outcome = Outcome::Complete;
        let missing = u64::MAX.checked_shr(64 - u32::from(parts.min(64))).unwrap_or(0);
        Join { missing, sum }
    }

    /// A bit for every part that has neither answered nor been given up.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    /// The joined answer, once no part is missing.
    pub fn answer(&self) -> Option<QueryState> {
        (self.missing == 0).then(|| self.sum.answer())
    }

    /// A part gives no answer. Nothing changes when it has given one.
    pub fn lose(&mut self, part: u8) {
        if self.missing & bit(part) == 0 {
            return;
        }
        self.missing &= !bit(part);
        let q = &mut self.sum.q;
        q.lost_parts |= bit(part);
        q.stats.unreachable = q.stats.unreachable.saturating_add(1);
        if q.outcome == Outcome::Complete {
            q.outcome = Outcome::Partial;
        }
    }

    /// A part has ended; only the first answer of each counts. One that failed is lost, its counters are kept. One that
    /// lacks some of its units is joined, and makes the whole incomplete.
    pub fn add(&mut self, part: u8, ended: &QueryState) {
        if self.missing & bit(part) == 0 {
            return;
        }
        let (q, from) = (&mut self.sum.q, &ended.q);
        q.stats.add(&from.stats);
        q.lost_units.0.extend(from.lost_units.given_up().copied());
        match from.outcome {
            Outcome::Complete => {}
            Outcome::OutOfBudget => q.outcome = Outcome::OutOfBudget,
            Outcome::Partial if q.outcome == Outcome::Complete => q.outcome = Outcome::Partial,
            Outcome::Partial => {}
            Outcome::Lost { unit, loss, .. } => {
                q.lost_units.0.push(LostUnit { unit, tried: u64::MAX, loss });
                return self.lose(part);
            }
            Outcome::Running | Outcome::WrongKind => return self.lose(part),
        }
        self.missing &= !bit(part);
        join_hits(&mut q.top.hits, from.top.hits.iter().copied(), q.top.k as usize);
    }
}

/// Adds the results of one part to the best `k` of others. A row that several parts hold is one result.
pub fn join_hits(best: &mut Vec<Hit>, more: impl IntoIterator<Item = Hit>, k: usize) {
    best.extend(more);
    best.sort_unstable_by(Hit::order);
    best.dedup_by(|a, b| a.order(b).is_eq());
    best.truncate(k);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{Extent, Loss};

    fn join() -> Join {
        Join::new(Params::flat(3), Budget::default(), 3)
    }

    fn ended(hits: &[(f32, u64)], reads: u64, outcome: Outcome) -> QueryState {
        let mut state = QueryState::new(Params::flat(3), Budget::default());
        state.q.top.hits =
            hits.iter().map(|&(distance, external_id)| Hit { distance, external_id }).collect();
        state.q.stats.reads = reads;
        state.q.outcome = outcome;
        state
    }

    fn ids(state: &QueryState) -> Vec<u64> {
        state.results().iter().map(|hit| hit.external_id).collect()
    }

    #[test]
    fn answers_are_joined_in_any_order() {
        let answers = [
            ended(&[(1.0, 7), (2.0, 5), (9.0, 1)], 3, Outcome::Complete),
            ended(&[(1.0, 2), (2.0, 5), (3.0, 8)], 4, Outcome::Complete),
            ended(&[], 5, Outcome::Complete),
        ];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut join = join();
            for part in order {
                assert_eq!(join.answer(), None);
                join.add(part, &answers[usize::from(part)]);
                // Only the first answer of a part counts.
                join.add(part, &ended(&[(0.0, 99)], 100, Outcome::Complete));
                join.lose(part);
            }
            let whole = join.answer().unwrap();
            assert_eq!((ids(&whole), whole.stats().reads), ([2, 7, 5].to_vec(), 12));
            assert_eq!((whole.outcome(), whole.lost_parts()), (Outcome::Complete, 0));
        }
    }

    #[test]
    fn parts_without_an_answer_are_named() {
        let mut one = join();
        one.add(0, &ended(&[(1.0, 7)], 3, Outcome::Complete));
        one.lose(1);
        let lost = Outcome::Lost { unit: 4, at: Extent::default(), loss: Loss::Damaged };
        one.add(2, &ended(&[(0.5, 9)], 2, lost));
        let whole = one.answer().unwrap();
        assert_eq!((ids(&whole), whole.lost_parts()), ([7].to_vec(), 0b110));
        assert_eq!(
            (whole.outcome(), whole.stats().unreachable, whole.stats().reads),
            (Outcome::Partial, 2, 5)
        );
        assert_eq!(whole.unreadable(), Some((4, Loss::Damaged)));
    }

    #[test]
    fn an_incomplete_part_is_joined() {
        for (first, second, expected) in [
            (Outcome::Partial, Outcome::Complete, Outcome::Partial),
            (Outcome::Partial, Outcome::OutOfBudget, Outcome::OutOfBudget),
            (Outcome::OutOfBudget, Outcome::Partial, Outcome::OutOfBudget),
        ] {
            let mut join = Join::new(Params::flat(3), Budget::default(), 2);
            join.add(0, &ended(&[(1.0, 7)], 0, first));
            join.add(1, &ended(&[(2.0, 8)], 0, second));
            let whole = join.answer().unwrap();
            assert_eq!((ids(&whole), whole.outcome(), whole.lost_parts()), ([7, 8].to_vec(), expected, 0));
        }
    }
}
