//! Context of one step of a query, whatever its kind, and the parts of a step that kinds share.

use core::ops::Range;

use stratann_kernel::distance::Exact;

use super::{Kind, Ordered};
use crate::codec::Reader;
use crate::format::block_map::BlockMap;
use crate::place::Reach;
use crate::search::{Arrived, Extent, Loss, Outcome, Pending, Query, Read, ScorerId, Tag};
use crate::view::Base;

/// All that one step of one kind works with.
pub(crate) struct StepContext<'a, K: Kind> {
    pub(crate) q: &'a mut Query,
    pub(crate) own: &'a mut K::State,
    pub(crate) base: &'a Base<'a>,
    pub(crate) view: &'a K::View<'a>,
    pub(crate) params: &'a K::Params,
    pub(crate) exact: &'a mut Exact,
    pub(crate) scratch: &'a mut K::Scratch,
}

impl<K: Kind> StepContext<'_, K> {
    /// Whether this row may be a result.
    #[inline]
    pub(crate) fn may_return(&self, id: u32) -> bool {
        self.q.exists(id) && self.base.sieve.is_none_or(|sieve| sieve.has(id))
    }

    /// The first row at or after `from` that may be a result, as far as the sieve tells.
    pub(crate) fn next_returnable(&self, from: u32) -> Option<u32> {
        match self.base.sieve {
            Some(sieve) => sieve.next(from).filter(|&row| row < self.base.nodes),
            None => (from < self.base.nodes).then_some(from),
        }
    }

    /// The first block at or after `from` with a row that may be a result, as far as the sieve tells; the number of
    /// blocks where there is none.
    pub(crate) fn next_block(&self, map: &BlockMap, from: u32) -> u32 {
        if self.base.sieve.is_none() {
            return from;
        }
        let row = self.next_returnable(map.nodes_of(from).start);
        row.map_or(map.blocks(), |row| map.block_of(row))
    }

    /// Whether some row of a range may be a result, as far as the sieve tells.
    pub(crate) fn may_return_any(&self, rows: &Range<u32>) -> bool {
        self.base.sieve.is_none_or(|sieve| sieve.has_any(rows.clone()))
    }

    /// Asks for an extent. `None` when the budget allows no more reads.
    pub(crate) fn fetch(&mut self, at: Extent, unit: u32, note: u64) -> Option<Tag> {
        if self.q.budget.reads == 0 {
            return None;
        }
        self.q.budget.reads -= 1;
        let read = Read { at, unit, note };
        let stats = &mut self.q.stats;
        if K::shares_reads() {
            stats.shared_reads += 1;
            return Some(self.q.io.fetch(read));
        }
        stats.reads += 1;
        stats.pages_read += at.pages();
        stats.bytes_read += at.pages() * crate::PAGE as u64;
        if let Some(counter) = K::read_counter(stats, &read) {
            *counter += 1;
        }
        Some(self.q.io.fetch(read))
    }

    /// Asks another server for scores. `None` when the budget allows no more.
    pub(crate) fn score(&mut self, to: u8) -> Option<Tag> {
        self.q.budget.score_jobs = self.q.budget.score_jobs.checked_sub(1)?;
        self.q.stats.score_jobs += 1;
        Some(self.q.io.score(ScorerId::Server(to)))
    }

    /// Place where a unit can be read: here, where the whole index is local.
    pub(crate) fn reach(&self, unit: u32) -> Reach {
        self.base.here.as_ref().map_or(Reach::Here, |here| here.reach(unit, self.q.lost_units.tried(unit)))
    }

    /// Ends the choice of reads: with a round of them, a wait for those under way, or the end of the query. Where units
    /// on other servers are wanted, best first, it ends with a hand-over to a replica of the first, or to a server that
    /// reaches one. The allowance of hand-overs ends a query that is passed around.
    pub(crate) fn end_round(&mut self, remote_units: &[u32]) {
        if !self.q.io.wants.is_empty() {
            self.q.stats.score_rounds += u64::from(self.q.io.asks_for_scores());
            return self.q.count_hop();
        }
        if !self.q.io.pending.is_empty() {
            return;
        }
        let Some(&first) = remote_units.first() else {
            let partial = self.q.stats.unreachable > 0;
            return self.q.finish(if partial { Outcome::Partial } else { Outcome::Complete });
        };
        let here = self.base.here.as_ref();
        match here.and_then(|here| here.next(remote_units, self.q.lost_units.tried(first))) {
            Some(server) if self.q.budget.hand_overs > 0 => {
                self.q.next = Some(server);
                self.q.budget.hand_overs -= 1;
                self.q.stats.hand_overs += 1;
            }
            _ => self.q.finish(Outcome::OutOfBudget),
        }
    }

    /// Gives each arrival, in the order of tags, to `absorb`. A unit that was lost, or that `absorb` finds
    /// inconsistent, waits for another replica; where there is none the query ends.
    pub(crate) fn take_in(
        &mut self,
        arrived: Ordered<'_>,
        mut absorb: impl FnMut(&mut Self, &Pending, &[u8]) -> Option<()>,
    ) {
        for arrival in arrived.iter() {
            let Some(pending) = self.q.io.take(arrival.tag) else { continue };
            match pending.scorer {
                Some(ScorerId::Server(server)) => {
                    self.take_scores((pending.tag, server), arrival.what);
                    continue;
                }
                Some(ScorerId::Codes) => {
                    let ranked = if let Arrived::Ranked(ranked) = arrival.what { Some(ranked) } else { None };
                    K::take_ranked(self, ranked);
                    continue;
                }
                None => {}
            }
            let lost = match arrival.what {
                Arrived::Lost(loss) => Some(loss),
                Arrived::Scores(_) | Arrived::Ranked(_) => Some(Loss::Damaged),
                Arrived::Bytes(bytes) => absorb(self, &pending, bytes).is_none().then_some(Loss::Damaged),
            };
            // After a read, too, it stays known which servers could not read the unit: a query may begin again.
            let Some(loss) = lost else { continue };
            let Read { unit, at, .. } = pending.read;
            if !self.lose(unit, loss) {
                return self.q.finish(Outcome::Lost { unit, at, loss });
            }
        }
    }

    /// Gives the reply to a job to the kind. Scores that make no sense are lost.
    fn take_scores(&mut self, job: (Tag, u8), what: Arrived<'_>) {
        let loss = match what {
            Arrived::Scores(scores) if scores.is_complete => {
                let taken = K::take_scores(self, job, Ok(&mut Reader(scores.content)));
                if taken.is_ok() {
                    self.q.stats.add(&scores.stats);
                    let spent = |count| u32::try_from(count).unwrap_or(u32::MAX);
                    let budget = &mut self.q.budget;
                    budget.reads = budget.reads.saturating_sub(spent(scores.stats.reads));
                    budget.hand_overs = budget.hand_overs.saturating_sub(spent(scores.stats.hand_overs));
                    return;
                }
                Loss::Damaged
            }
            Arrived::Lost(loss) => loss,
            Arrived::Scores(_) | Arrived::Ranked(_) | Arrived::Bytes(_) => Loss::Failed,
        };
        // A kind that asks for scores also takes that there are none.
        let _ = K::take_scores(self, job, Err(loss));
    }

    /// Notes that a unit could not be read here. Returns false where no replica can have it, or too much was lost
    /// already.
    fn lose(&mut self, unit: u32, loss: Loss) -> bool {
        let Some(here) = &self.base.here else { return false };
        self.q.lost_units.add(unit, here.server, loss) && K::requeue(self.own, self.view, unit)
    }
}
