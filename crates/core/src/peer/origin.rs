//! Queries that clients submitted to this server.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::filters::Filters;
use super::frames::NewQuery;
use super::host::HostedQuery;
use super::message::QueryId;
use super::partial_results::PartialResults;
use super::parts::AskedParts;
use super::{Action, Failure, Peer, Run, servers_in};
use crate::place::bit;
use crate::query::{Budget, Params, QueryState};

/// A query of a client.
pub(super) struct Origin {
    pub(super) params: Params,
    pub(super) budget: Budget,
    pub(super) attempt: u8,
    // Whether this attempt has had a slot; nothing can be lost before.
    pub(super) has_begun: bool,
    pub(super) give_up_at_us: u64,
    pub(super) expires_at_us: u64,
    pub(super) visited: u64,
    // Of a query that several parts are asked.
    pub(super) parts: Option<AskedParts>,
    pub(super) partial_results: PartialResults,
}

impl Origin {
    /// The results that a part's servers have reported.
    pub(super) fn partial_results(&mut self, part: u8) -> Option<&mut PartialResults> {
        match &mut self.parts {
            Some(parts) => parts.partial_results(part),
            None => Some(&mut self.partial_results),
        }
    }
}

impl Peer {
    /// A client submits a query. It runs here first, since the head graph is on every server; of several
    /// parts each starts on a server of its own.
    pub fn submit(&mut self, now_us: u64, query: NewQuery, out: &mut Vec<Action>) {
        let NewQuery { number, time_us, vector, filter, state } = query;
        let key = filter.as_ref().map(|filter| filter.0);
        let most = self.limits.filter_bytes;
        let has_room = |filters: &mut Filters| {
            filter.is_none_or(|(key, bytes)| filters.keep((key, true), Some(bytes), most).is_ok())
        };
        if self.origins.len() >= self.limits.origins || !has_room(&mut self.filters) {
            out.push(Action::Fail { number, why: Failure::Overloaded });
            return;
        }
        let (params, budget) = (*state.params(), state.q.budget);
        let expires_at_us = now_us.saturating_add(time_us);
        let mut hosted = HostedQuery::new(vector, expires_at_us, bit(self.server));
        hosted.filter = key;
        self.hosted.insert(self.id(number), hosted);
        let origin = Origin {
            params,
            budget,
            attempt: 0,
            has_begun: false,
            give_up_at_us: expires_at_us,
            expires_at_us,
            visited: bit(self.server),
            parts: self.new_parts((params, budget)),
            partial_results: PartialResults::default(),
        };
        let is_one = origin.parts.is_none();
        self.origins.insert(number, origin);
        if !is_one {
            self.ask_others(now_us, number, out);
        }
        self.start(Run::of_query(self.id(number), 0), state, out);
    }

    /// A client no longer waits: its query ends without an answer. A query that was handed over is released on all
    /// servers, since only its answer names those that it has visited.
    pub fn cancel(&mut self, number: u64, out: &mut Vec<Action>) {
        let known = self.hosted.get(&self.id(number)).map_or(0, |hosted| hosted.visited);
        let is_here = known & !bit(self.server) == 0;
        self.drop_query(number, if is_here { 0 } else { u64::MAX }, out);
    }

    /// The id of a query of this server.
    pub(super) fn id(&self, number: u64) -> QueryId {
        QueryId { origin: self.server, incarnation: self.incarnation, number }
    }

    /// A query that was submitted here, in this incarnation.
    pub(super) fn own(&mut self, query: &QueryId) -> Option<&mut Origin> {
        let is_own = query.origin == self.server && query.incarnation == self.incarnation;
        self.origins.get_mut(&query.number).filter(|_| is_own)
    }

    pub(super) fn start(&mut self, run: Run, state: Box<QueryState>, out: &mut Vec<Action>) {
        self.set_here(&run, true);
        out.push(Action::Start { run, state });
    }

    /// A query has ended at server `from`. The first answer counts; of several parts the first of each.
    pub(super) fn end(
        &mut self,
        (now_us, from): (u64, u8),
        run: Run,
        visited: u64,
        state: Box<QueryState>,
        out: &mut Vec<Action>,
    ) {
        let query = run.query;
        let Some(origin) = self.own(&query) else { return self.pool.recycle_state(state) };
        if origin.parts.is_some() {
            return self.end_part((now_us, from), run, visited, state, out);
        }
        if let Some((visited, state)) = origin.partial_results.complete(run.attempt, visited, state) {
            self.answer(query.number, visited, state, out);
        }
    }

    /// Gives the answer to the client; all servers forget the query.
    pub(super) fn answer(
        &mut self,
        number: u64,
        visited: u64,
        state: Box<QueryState>,
        out: &mut Vec<Action>,
    ) {
        let query = self.id(number);
        let Some(origin) = self.origins.remove(&number) else { return self.pool.recycle_state(state) };
        let visited = visited | origin.visited | self.forget(&query);
        self.release(&query, visited, out);
        out.push(Action::Answer { number, state });
    }

    /// A query's deadline has passed.
    pub(super) fn expire(&mut self, number: u64, out: &mut Vec<Action>) {
        if self.drop_query(number, 0, out) {
            out.push(Action::Fail { number, why: Failure::Expired });
        }
    }

    /// Ends a query without an answer; the servers that are known to have it and those in `others` forget it. False
    /// when it has ended before.
    fn drop_query(&mut self, number: u64, others: u64, out: &mut Vec<Action>) -> bool {
        let query = self.id(number);
        let Some(origin) = self.origins.remove(&number) else { return false };
        let missing = servers_in(origin.parts.as_ref().map_or(0, AskedParts::missing));
        let asked = missing.fold(0, |asked, part| asked | self.served.parts.servers(part));
        let visited = others | origin.visited | asked | self.forget(&query);
        self.release(&query, visited, out);
        true
    }

    /// An attempt takes too long, or its query has expired.
    pub(super) fn retry_or_expire(&mut self, now_us: u64, number: u64, out: &mut Vec<Action>) {
        let query = self.id(number);
        let Some(origin) = self.origins.get_mut(&number) else { return };
        if now_us >= origin.expires_at_us {
            return self.expire(number, out);
        }
        if origin.attempt + 1 >= self.limits.attempts {
            // The last attempt has until the deadline.
            origin.give_up_at_us = origin.expires_at_us;
            return;
        }
        if origin.parts.is_some() {
            return self.ask_missing(now_us, number, out);
        }
        if self.jobs.is_asking(&query, origin.attempt) {
            // Its state waits here and cannot be lost. Jobs are sent again one by one.
            origin.give_up_at_us = self.limits.patience(now_us, origin.attempt).min(origin.expires_at_us);
            return;
        }
        origin.attempt += 1;
        origin.partial_results = PartialResults::new(origin.attempt);
        origin.has_begun = false;
        origin.give_up_at_us = origin.expires_at_us;
        let (params, budget, attempt) = (origin.params, origin.budget, origin.attempt);
        if let Some(hosted) = self.hosted.get_mut(&query) {
            // A server that lost the vector in a crash must receive it again.
            origin.visited |= hosted.visited;
            hosted.visited = bit(self.server);
        }
        let mut state = self.pool.state();
        state.restart(params, budget);
        self.start(Run::of_query(query, attempt), state, out);
    }
}
