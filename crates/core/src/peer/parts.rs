//! A query of which every part of the cluster is asked. Each part has an index of its own, on one or several servers.
//! With one server for each part this is scatter-gather (BatANN §3.1 and §6).
//!
//! The origin sends each part a state that has not begun. It goes its own way through the servers of that part, and
//! ends there as any query does; the origin joins the answers ([`Join`]). A message that was lost is sent again, to
//! another server of the part where there is one. When no server of a part answers, the part is left out, and the
//! answer names it.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::host::{HostedQuery, left_us};
use super::message::Message;
use super::origin::Origin;
use super::partial_results::PartialResults;
use super::{Action, Peer, Run, is_answer, servers_in};
use crate::place::bit;
use crate::query::{Budget, Join, Params, QueryState};

/// The parts of one query.
pub(super) struct AskedParts {
    join: Join,
    each: Vec<AskedPart>,
}

/// State of one part, as far as the origin knows it.
#[derive(Default)]
pub(super) struct AskedPart {
    attempt: u8,
    // The server that was asked last, and a bit for those that were asked before without an answer.
    to: u8,
    tried: u64,
    partial_results: PartialResults,
}

impl AskedParts {
    pub(super) fn missing(&self) -> u64 {
        self.join.missing()
    }

    pub(super) fn partial_results(&mut self, part: u8) -> Option<&mut PartialResults> {
        self.each.get_mut(usize::from(part)).map(|part| &mut part.partial_results)
    }

    /// Whether this is the attempt at a part that still counts.
    pub(super) fn is_current(&self, part: u8, attempt: u8) -> bool {
        let is_missing = self.missing() & bit(part) != 0;
        is_missing && self.each.get(usize::from(part)).is_some_and(|part| part.attempt == attempt)
    }
}

impl Peer {
    /// The part of the cluster that this server belongs to.
    fn own_part(&self) -> u8 {
        self.served.parts.of(self.server)
    }

    /// The servers that can be handed a query from here.
    pub(super) fn own_servers(&self) -> u64 {
        self.served.parts.servers(self.own_part())
    }

    /// Asks all parts but this server's own, where the query starts as any other does.
    pub(super) fn ask_others(&mut self, now_us: u64, number: u64, out: &mut Vec<Action>) {
        let own = self.own_part();
        for part in (0..self.served.parts.count()).filter(|&part| part != own) {
            self.ask_part(now_us, number, part, out);
        }
    }

    /// The parts of a query that begins here; `None` where one index is on all servers.
    pub(super) fn new_parts(&self, (params, budget): (Params, Budget)) -> Option<AskedParts> {
        let count = self.served.parts.count();
        (count > 1).then(|| {
            let to = self.server;
            let each = (0..count).map(|_| AskedPart { to, ..AskedPart::default() }).collect();
            AskedParts { join: Join::new(params, budget, count), each }
        })
    }

    /// Asks a server of a part, or starts the part here; it is lost when no server answers.
    fn ask_part(&mut self, now_us: u64, number: u64, part: u8, out: &mut Vec<Action>) {
        let (query, own) = (self.id(number), self.server);
        let live = (self.live | bit(own)) & self.served.parts.servers(part);
        let loads = self.loads;
        let Some(origin) = self.origins.get_mut(&number) else { return };
        let Some(parts) = &mut origin.parts else { return };
        let Some(asked) = parts.each.get_mut(usize::from(part)) else { return };
        let untried = live & !asked.tried;
        // The one with the lowest load; servers of equal load take turns.
        let turn = |server: u8| u64::from(server).wrapping_add(number) % u64::from(live.count_ones().max(1));
        let order = |&server: &u8| (server != own, loads[usize::from(server)], turn(server));
        let Some(to) = servers_in(if untried == 0 { live } else { untried }).min_by_key(order) else {
            return parts.join.lose(part);
        };
        asked.to = to;
        let run = Run::of_query(query, asked.attempt);
        let Some(hosted) = self.hosted.get_mut(&query) else { return };
        let mut state = self.pool.state();
        state.restart(origin.params, origin.budget);
        if to == own {
            origin.visited |= hosted.visited;
            hosted.visited = bit(own);
            return self.start(run, state, out);
        }
        let left_us = left_us(now_us, origin.expires_at_us);
        let state = self.encoded(state, self.served.carry);
        let vector = self.vector_for(&query, to, &state, run.attempt > 0);
        self.send(to, Message::Baton { run, visited: bit(own), left_us, vector, state }, out);
    }

    /// Whether this is the attempt at a part that still counts.
    pub(super) fn is_current_part(&self, number: u64, part: u8, attempt: u8) -> bool {
        let parts = self.origins.get(&number).and_then(|origin| origin.parts.as_ref());
        parts.is_some_and(|parts| parts.is_current(part, attempt))
    }

    /// Begins another attempt at a part that has not answered. It is not lost while its state is here.
    pub(super) fn ask_again(&mut self, now_us: u64, number: u64, part: u8, out: &mut Vec<Action>) {
        let is_here = self.hosted.get(&self.id(number)).is_some_and(HostedQuery::is_here);
        let is_own = part == self.own_part();
        let members = self.served.parts.servers(part);
        let Some(origin) = self.origins.get_mut(&number) else { return };
        let Some(parts) = &mut origin.parts else { return };
        let Some(asked) = parts.each.get_mut(usize::from(part)) else { return };
        let is_last = asked.attempt + 1 >= self.limits.attempts;
        if parts.join.missing() & bit(part) == 0 || is_own && is_here || is_last {
            return;
        }
        if members.count_ones() > 1 {
            origin.visited |= bit(asked.to);
        }
        asked.attempt += 1;
        asked.tried |= bit(asked.to);
        asked.partial_results = PartialResults::new(asked.attempt);
        self.ask_part(now_us, number, part, out);
    }

    /// The parts of a query take too long.
    pub(super) fn ask_missing(&mut self, now_us: u64, number: u64, out: &mut Vec<Action>) {
        let Some(origin) = self.origins.get_mut(&number) else { return };
        origin.attempt += 1;
        origin.give_up_at_us = self.limits.patience(now_us, origin.attempt).min(origin.expires_at_us);
        let missing = origin.parts.as_ref().map_or(0, AskedParts::missing);
        servers_in(missing).for_each(|part| self.ask_again(now_us, number, part, out));
        self.answer_if_whole(number, out);
    }

    /// A server is down. The queries that its part has not answered may have been there.
    pub(super) fn lose_server_of_parts(&mut self, now_us: u64, server: u8, out: &mut Vec<Action>) {
        let part = self.served.parts.of(server);
        let is_alone = self.live & self.served.parts.servers(part) == 0;
        let waits = |origin: &Origin| origin.parts.as_ref().is_some_and(|p| p.missing() & bit(part) != 0);
        let waiting: Vec<u64> =
            self.origins.iter().filter(|(_, origin)| waits(origin)).map(|(&number, _)| number).collect();
        for number in waiting {
            if is_alone {
                let parts = self.origins.get_mut(&number).and_then(|origin| origin.parts.as_mut());
                parts.into_iter().for_each(|parts| parts.join.lose(part));
            } else {
                self.ask_again(now_us, number, part, out);
            }
            self.answer_if_whole(number, out);
        }
    }

    /// A part of a query of this server has ended at server `from`.
    pub(super) fn end_part(
        &mut self,
        at: (u64, u8),
        run: Run,
        visited: u64,
        state: Box<QueryState>,
        out: &mut Vec<Action>,
    ) {
        let part = self.served.parts.of(at.1);
        let parts = self.origins.get_mut(&run.query.number).and_then(|origin| origin.parts.as_mut());
        let Some(results) = parts.and_then(|parts| parts.partial_results(part)) else {
            return self.pool.recycle_state(state);
        };
        if let Some((visited, state)) = results.complete(run.attempt, visited, state) {
            self.join_part(at, run, visited, state, out);
        }
    }

    /// Joins the answer of a part. One that failed is had from another server of the part where there is one.
    pub(super) fn join_part(
        &mut self,
        (now_us, from): (u64, u8),
        run: Run,
        visited: u64,
        state: Box<QueryState>,
        out: &mut Vec<Action>,
    ) {
        let (part, number) = (self.served.parts.of(from), run.query.number);
        let members = self.served.parts.servers(part);
        let live = members & (self.live | bit(self.server));
        let Some(origin) = self.origins.get_mut(&number) else { return };
        if members.count_ones() > 1 {
            origin.visited |= visited;
        }
        let Some(parts) = &mut origin.parts else { return };
        let Some(asked) = parts.each.get_mut(usize::from(part)) else { return };
        let is_old = asked.attempt != run.attempt;
        let has_others = live & !(asked.tried | bit(from)) != 0 && asked.attempt + 1 < self.limits.attempts;
        if is_answer(state.outcome()) || !is_old && !has_others {
            parts.join.add(part, &state);
        } else if !is_old {
            asked.tried |= bit(from);
            self.ask_again(now_us, number, part, out);
        }
        self.pool.recycle_state(state);
        self.answer_if_whole(number, out);
    }

    pub(super) fn answer_if_whole(&mut self, number: u64, out: &mut Vec<Action>) {
        let parts = self.origins.get(&number).and_then(|origin| origin.parts.as_ref());
        if let Some(whole) = parts.and_then(|parts| parts.join.answer()) {
            self.answer(number, 0, Box::new(whole), out);
        }
    }
}
