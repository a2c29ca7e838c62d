//! Scatter-gather, the other way to search on several servers (BatANN §3.1 and §6), to compare with: every server has an index of its own rows,
//! the origin asks all of them, and merges what they find.
//!
//! A question is a baton that has not begun; a server answers it as it would any query that ends there, and forgets it. So a query takes two
//! messages for each other server. One that is lost is asked again; a server that does not answer any more is left out, and the answer says so.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::place::{SERVERS_MAX, bit};
use crate::query::{Budget, Hit, Outcome, Params, QueryState, wire};
use crate::search::LostUnit;

use super::message::{Message, QueryId};
use super::{Action, Origin, Peer};

/// What has come of a query so far.
pub(super) struct Gather {
    // A bit for every server whose part is still to come.
    waits: u64,
    sum: QueryState,
}

impl Gather {
    /// Of the servers `all`, those in `asked` are waited for.
    pub(super) fn new(params: Params, budget: Budget, all: u64, asked: u64) -> Gather {
        let mut sum = QueryState::new(params, budget);
        sum.q.outcome = Outcome::Complete;
        let mut gather = Gather { waits: asked, sum };
        (0..(all & !asked).count_ones()).for_each(|_| gather.miss());
        gather
    }

    pub(super) fn waits(&self) -> u64 {
        self.waits
    }

    /// The whole answer, once nobody is waited for.
    pub(super) fn whole(&self) -> Option<QueryState> {
        (self.waits == 0).then(|| self.sum.answer())
    }

    fn miss(&mut self) {
        self.sum.q.stats.unreachable = self.sum.q.stats.unreachable.saturating_add(1);
        if self.sum.q.outcome == Outcome::Complete {
            self.sum.q.outcome = Outcome::Partial;
        }
    }

    /// A server will not answer.
    pub(super) fn lose(&mut self, server: u8) {
        if self.waits & bit(server) != 0 {
            self.waits &= !bit(server);
            self.miss();
        }
    }

    /// Takes in what one server found: its results by `(distance, id)` among the best k, its counters to the sum. What it could not read is
    /// missing as a server is that does not answer.
    pub(super) fn take(&mut self, from: u8, part: &QueryState) {
        if self.waits & bit(from) == 0 {
            return;
        }
        self.waits &= !bit(from);
        self.sum.q.stats.add(&part.q.stats);
        match part.q.outcome {
            Outcome::Complete => {}
            Outcome::OutOfBudget => self.sum.q.outcome = Outcome::OutOfBudget,
            Outcome::Lost { unit, loss, .. } => {
                self.sum.q.lost_units.0.push(LostUnit { unit, tried: u64::MAX, loss });
                return self.miss();
            }
            Outcome::Partial | Outcome::Running | Outcome::WrongKind => return self.miss(),
        }
        let results = &mut self.sum.q.top.hits;
        results.extend_from_slice(&part.q.top.hits);
        results.sort_unstable_by(Hit::order);
        results.truncate(self.sum.q.top.k as usize);
    }
}

/// A bit for every server of `servers`.
pub(super) fn all(servers: u8) -> u64 {
    match usize::from(servers) {
        0 => 0,
        n => u64::MAX >> SERVERS_MAX.saturating_sub(n),
    }
}

impl Peer {
    /// Asks the servers in `who` for their parts of a query that came here.
    pub(super) fn ask_parts(
        &mut self,
        now_us: u64,
        query: QueryId,
        origin: &Origin,
        who: u64,
        out: &mut Vec<Action>,
    ) {
        let Some(kept) = self.vectors.get_mut(&query) else { return };
        // Lent to the messages.
        let vector = core::mem::take(&mut kept.bytes);
        let mut state = self.spare.buffer();
        wire::encode(&QueryState::new(origin.params, origin.budget), self.served.carry, &mut state);
        let left_us = origin.expires_at_us.saturating_sub(now_us).min(u64::from(u32::MAX)) as u32;
        let others = who & !bit(self.server);
        for to in (0..SERVERS_MAX as u8).filter(|s| others >> s & 1 == 1) {
            let (attempt, visited) = (origin.attempt, bit(self.server));
            let message = Message::Baton { query, attempt, visited, left_us, vector: &vector, state: &state };
            self.send(to, &message, out);
        }
        self.spare.keep_buffer(state);
        if let Some(kept) = self.vectors.get_mut(&query) {
            kept.bytes = vector;
        }
    }

    /// Asks once more for what has not come.
    pub(super) fn ask_again(&mut self, now_us: u64, number: u64, out: &mut Vec<Action>) {
        let Some(mut origin) = self.origins.remove(&number) else { return };
        origin.attempt += 1;
        origin.give_up_at_us = self.limits.patience(now_us, origin.attempt).min(origin.expires_at_us);
        let waits = origin.gather.as_ref().map_or(0, |g| g.waits());
        let query = QueryId { origin: self.server, incarnation: self.incarnation, number };
        self.ask_parts(now_us, query, &origin, waits & self.live, out);
        self.origins.insert(number, origin);
    }

    /// A server that is gone will give no part of any query.
    pub(super) fn lose_parts(&mut self, server: u8, out: &mut Vec<Action>) {
        let mut whole = Vec::new();
        for (&number, origin) in &mut self.origins {
            if let Some(gather) = &mut origin.gather {
                gather.lose(server);
                whole.extend(gather.whole().map(|state| (number, Box::new(state))));
            }
        }
        for (number, state) in whole {
            self.answer(number, 0, state, out);
        }
    }
}
