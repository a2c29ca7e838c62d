//! Scatter-gather, the other way to search on several servers (BatANN §3.1 and §6), for comparison: every server has an
//! index of its own rows, the origin asks all of them and merges their results.
//!
//! A question is a baton that has not begun. A server answers it as any query that ends there, and forgets it. So a
//! query takes two messages for each other server. A lost message is sent again; a server that no longer answers is
//! left out, and the answer says so.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::host::left_us;
use super::message::Message;
use super::{Origin, Peer, Run, servers_in};
use crate::peer::Action;
use crate::place::{SERVERS_MAX, bit};
use crate::query::{Budget, Hit, Outcome, Params, QueryState};
use crate::search::LostUnit;

/// Parts of an answer that have arrived.
pub(super) struct Gather {
    // A bit for every server whose part has not arrived.
    missing: u64,
    // The encoded state that every server starts with.
    question: Vec<u8>,
    sum: QueryState,
}

impl Gather {
    /// Of the servers `all`, those in `asked` are waited for.
    pub(super) fn new(params: Params, budget: Budget, question: Vec<u8>, all: u64, asked: u64) -> Gather {
        let mut sum = QueryState::new(params, budget);
        sum.q.outcome = Outcome::Complete;
        let mut gather = Gather { missing: asked, question, sum };
        (0..(all & !asked).count_ones()).for_each(|_| gather.count_lost());
        gather
    }

    pub(super) fn missing(&self) -> u64 {
        self.missing
    }

    pub(super) fn take_question(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.question)
    }

    /// The whole answer, once no part is missing.
    pub(super) fn whole(&self) -> Option<QueryState> {
        (self.missing == 0).then(|| self.sum.answer())
    }

    fn count_lost(&mut self) {
        self.sum.q.stats.unreachable = self.sum.q.stats.unreachable.saturating_add(1);
        if self.sum.q.outcome == Outcome::Complete {
            self.sum.q.outcome = Outcome::Partial;
        }
    }

    /// A server does not answer any more.
    fn lose(&mut self, server: u8) {
        if self.missing & bit(server) != 0 {
            self.missing &= !bit(server);
            self.count_lost();
        }
    }

    /// Merges one server's part: its results by `(distance, id)` into the best k, its counters into the sum. A part
    /// with a failed read counts as a server that does not answer.
    pub(super) fn merge(&mut self, from: u8, part: &QueryState) {
        if self.missing & bit(from) == 0 {
            return;
        }
        self.missing &= !bit(from);
        self.sum.q.stats.add(&part.q.stats);
        match part.q.outcome {
            Outcome::Complete => {}
            Outcome::OutOfBudget => self.sum.q.outcome = Outcome::OutOfBudget,
            Outcome::Lost { unit, loss, .. } => {
                self.sum.q.lost_units.0.push(LostUnit { unit, tried: u64::MAX, loss });
                return self.count_lost();
            }
            Outcome::Partial | Outcome::Running | Outcome::WrongKind => return self.count_lost(),
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
    /// Asks the servers in `asked` for their parts of a query of this server.
    pub(super) fn ask_parts(
        &mut self,
        now_us: u64,
        number: u64,
        origin: &Origin,
        asked: u64,
        out: &mut Vec<Action>,
    ) {
        let query = self.id(number);
        let Some(gather) = &origin.gather else { return };
        let run = Run::of_query(query, origin.attempt);
        let left_us = left_us(now_us, origin.expires_at_us);
        for to in servers_in(asked & !bit(self.server)) {
            let Some(hosted) = self.hosted.get(&query) else { return };
            let (vector, state) = (self.pool.copy(&hosted.vector), self.pool.copy(&gather.question));
            self.send(to, Message::Baton { run, visited: bit(self.server), left_us, vector, state }, out);
        }
    }

    /// Asks again for the missing parts.
    pub(super) fn ask_again(&mut self, now_us: u64, number: u64, out: &mut Vec<Action>) {
        let Some(mut origin) = self.origins.remove(&number) else { return };
        origin.attempt += 1;
        origin.give_up_at_us = self.limits.patience(now_us, origin.attempt).min(origin.expires_at_us);
        let missing = origin.gather.as_ref().map_or(0, Gather::missing);
        self.ask_parts(now_us, number, &origin, missing & self.live, out);
        self.origins.insert(number, origin);
    }

    /// A server that is down gives no part of any query.
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
