//! What a server does with the queries of a cluster: those that clients brought to it, and those that pass through.
//!
//! The server that a client asks is the query's **origin**. It keeps the query until an answer is there, and begins anew when none
//! comes in time; the first answer counts, all later ones are ignored, so a client gets exactly one. Every other server
//! that the query reaches is a **host**: it is given the vector with its first baton, keeps it until the origin releases the query or
//! the query expires, and takes each baton once (a baton's number of hand-overs grows with every step of its way).
//!
//! No I/O and no clock: time is a number of microseconds that the driver passes in and that never goes back; what is to be done comes
//! out as [`Action`]s.

mod gather;
mod homing;
pub mod message;
mod spare;
mod standing;

use alloc::boxed::Box;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::vec::Vec;

use self::gather::Gather;
use self::homing::Home;
pub use self::spare::SPARE_BYTES;
use self::spare::Spare;
use self::standing::Standing;
pub use self::standing::{Change, KEPT_US_MAX, STUCK_US, Turn};
use crate::place::{SERVERS_MAX, bit};
use crate::query::{Budget, Outcome, Params, QueryState, Step, wire};
use message::{Message, QueryId, Refused};

/// One attempt at a query, as the driver runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// Which query.
    pub query: QueryId,
    /// Which attempt of its origin.
    pub attempt: u8,
}

/// What the driver is to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Send a frame to a server.
    Send {
        /// Which.
        to: u8,
        /// A whole frame.
        frame: Vec<u8>,
    },
    /// When there is room, ask [`Peer::begin`], step this state until it hands over or is done, then tell [`Peer::stepped`].
    Start {
        /// What runs.
        run: Run,
        /// The state.
        state: Box<QueryState>,
    },
    /// Give a client its answer.
    Answer {
        /// What the client called the query.
        client: u64,
        /// How it ended, with results and counters.
        state: Box<QueryState>,
    },
    /// Tell a client that there will be no answer.
    Fail {
        /// What the client called the query.
        client: u64,
        /// Why.
        why: Failure,
    },
}

/// Why a client gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Too many queries wait already.
    Overloaded,
    /// Its time was up.
    Expired,
}

/// What a server serves; frames that speak of anything else are refused.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// Build of the index.
    pub build: u64,
    /// Bytes of a query's vector.
    pub vector_bytes: usize,
    /// Nodes of the index.
    pub nodes: u32,
    /// What batons say of their candidates. Servers need not agree on it.
    pub carry: wire::Carry,
    /// Where the results go of queries that are handed on from here. Servers need not agree on it.
    pub results: wire::Results,
    /// Whether distances that a baton leaves out can be computed here: codes of all nodes are in RAM. Otherwise such a baton is refused.
    pub rescores: bool,
    /// So many servers have an index each, of their own rows, and every query is asked of all of them; `None` for one index, among
    /// whose servers queries are handed over.
    pub apart: Option<u8>,
}

/// Limits of one server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Queries of clients at a time; one more is refused.
    pub origins: usize,
    /// Queries of other origins whose vectors are kept; batons beyond are dropped, and their origins begin anew elsewhere.
    pub hosted: usize,
    /// Microseconds without an answer after which an attempt is given up.
    pub patience_us: u64,
    /// Attempts in all.
    pub attempts: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { origins: 10_000, hosted: 40_000, patience_us: 500_000, attempts: 4 }
    }
}

impl Limits {
    /// When an attempt that begins now is given up: each has twice the time of the one before, the last has until the query's end.
    fn patience(&self, now_us: u64, attempt: u8) -> u64 {
        match attempt + 1 < self.attempts {
            true => now_us.saturating_add(self.patience_us.saturating_mul(1 << attempt.min(16))),
            false => u64::MAX,
        }
    }
}

/// A query that a client brought here.
struct Origin {
    client: u64,
    params: Params,
    budget: Budget,
    attempt: u8,
    // Whether this attempt has had its turn; nothing can be lost before.
    has_begun: bool,
    give_up_at_us: u64,
    expires_at_us: u64,
    visited: u64,
    // What has come of its parts, when all servers are asked.
    gather: Option<Gather>,
    // What servers have found that handed it on.
    home: Home,
}

/// A query's vector, and how far its batons have come here.
struct Vector {
    bytes: Vec<u8>,
    expires_at_us: u64,
    visited: u64,
    // (attempt, hand-overs) of the last baton taken.
    taken: Option<(u8, u64)>,
}

/// One server's part in the protocol.
pub struct Peer {
    server: u8,
    incarnation: u32,
    served: Served,
    live: u64,
    loads: [u8; SERVERS_MAX],
    // What the others have said since they last answered anew.
    standings: [Option<Standing>; SERVERS_MAX],
    is_leaving: bool,
    limits: Limits,
    next: u64,
    origins: BTreeMap<u64, Origin>,
    vectors: BTreeMap<QueryId, Vector>,
    spare: Spare,
}

impl Peer {
    /// The server `server`, in its life number `incarnation`, which differs from those before. `live` has a bit for every server
    /// that answers, as far as is known.
    pub fn new(server: u8, incarnation: u32, served: Served, live: u64, limits: Limits) -> Peer {
        Peer {
            server,
            incarnation,
            served,
            live,
            loads: [0; SERVERS_MAX],
            standings: [None; SERVERS_MAX],
            is_leaving: false,
            limits,
            next: 0,
            origins: BTreeMap::new(),
            vectors: BTreeMap::new(),
            spare: Spare::default(),
        }
    }

    /// A frame that was sent: its memory is used again.
    pub fn keep_frame(&mut self, frame: Vec<u8>) {
        self.spare.keep_buffer(frame);
    }

    /// A state that is over: its memory is used again.
    pub fn keep_state(&mut self, state: Box<QueryState>) {
        self.spare.keep_state(state);
    }

    /// A bit for every server that answers, as far as is known here.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// How much waits on each server: here as [`Peer::set_load`] said, elsewhere as the last frame from there did, fading with every tick.
    pub fn loads(&self) -> [u8; SERVERS_MAX] {
        self.loads
    }

    /// Says how many queries run or wait here.
    pub fn set_load(&mut self, queries: usize) {
        if let Some(own) = self.loads.get_mut(usize::from(self.server)) {
            *own = u8::try_from(queries).unwrap_or(u8::MAX);
        }
    }

    fn own_load(&self) -> u8 {
        self.loads.get(usize::from(self.server)).copied().unwrap_or(0)
    }

    /// Queries of clients, and vectors, that are kept.
    pub fn held(&self) -> (usize, usize) {
        (self.origins.len(), self.vectors.len())
    }

    /// An attempt that was started gets its turn here: its query's vector, or nothing when nobody waits for it any more. The origin's patience
    /// with an attempt counts from its first turn, so that one that waits in a long queue is not begun again and again.
    pub fn begin(&mut self, now_us: u64, run: &Run) -> Option<&[u8]> {
        let kept = self.vectors.get(&run.query)?;
        if run.query.origin != self.server {
            let is_outdated = kept.taken.is_some_and(|taken| taken.0 > run.attempt);
            return (!is_outdated).then_some(&kept.bytes);
        }
        let is_wanted = |o: &&mut Origin| match &o.gather {
            // Its own part is in this process: it cannot be lost, so it is begun once.
            Some(gather) => gather.waits() & bit(self.server) != 0,
            None => o.attempt == run.attempt,
        };
        let origin = self.origins.get_mut(&run.query.number).filter(is_wanted)?;
        if !origin.has_begun {
            origin.has_begun = true;
            origin.give_up_at_us = self.limits.patience(now_us, run.attempt).min(origin.expires_at_us);
        }
        Some(&kept.bytes)
    }

    /// A client asks. Its query runs here first: the head graph is on every server. When all are asked, it begins there as well.
    pub fn ask(
        &mut self,
        now_us: u64,
        client: u64,
        (params, budget): (Params, Budget),
        vector: &[u8],
        time_us: u64,
        out: &mut Vec<Action>,
    ) {
        if self.origins.len() >= self.limits.origins {
            out.push(Action::Fail { client, why: Failure::Overloaded });
            return;
        }
        let number = self.next;
        self.next += 1;
        let query = QueryId { origin: self.server, incarnation: self.incarnation, number };
        let expires_at_us = now_us.saturating_add(time_us);
        let bytes = self.spare.copy(vector);
        let kept = Vector { bytes, expires_at_us, visited: bit(self.server), taken: None };
        self.vectors.insert(query, kept);
        let origin = Origin {
            client,
            params,
            budget,
            attempt: 0,
            has_begun: false,
            give_up_at_us: expires_at_us,
            expires_at_us,
            visited: bit(self.server),
            gather: self.served.apart.map(|servers| {
                let all = gather::all(servers);
                Gather::new(params, budget, all, all & (self.live | bit(self.server)))
            }),
            home: Home::default(),
        };
        if let Some(gather) = &origin.gather {
            self.ask_parts(now_us, query, &origin, gather.waits(), out);
        }
        self.origins.insert(number, origin);
        self.start(Run { query, attempt: 0 }, params, budget, out);
    }

    /// A query begins here.
    fn start(&mut self, run: Run, params: Params, budget: Budget, out: &mut Vec<Action>) {
        let mut state = self.spare.state();
        state.restart(params, budget);
        out.push(Action::Start { run, state });
    }

    /// A state that runs here can go no further: it goes on elsewhere, or has ended.
    pub fn stepped(&mut self, now_us: u64, run: Run, step: Step, state: &QueryState, out: &mut Vec<Action>) {
        match step {
            Step::Wait => {}
            Step::HandOver(to) => self.hand_over(now_us, run, to, state, out),
            Step::Done => {
                let mut answer = self.spare.state();
                answer.become_answer_of(state);
                match run.query.origin == self.server {
                    true => self.end(run, self.server, 0, answer, out),
                    false => self.send_answer(run, answer, out),
                }
            }
        }
    }

    fn send_answer(&mut self, run: Run, answer: Box<QueryState>, out: &mut Vec<Action>) {
        let Run { query, attempt } = run;
        let visited = self.vectors.get(&query).map_or(0, |v| v.visited);
        let mut bytes = self.spare.buffer();
        self.spare.encoder.encode(&answer, wire::Carry::Ids, &mut bytes);
        self.send(query.origin, &Message::Answer { query, attempt, visited, state: &bytes }, out);
        self.spare.keep_buffer(bytes);
        self.spare.keep_state(answer);
        if self.served.apart.is_some() {
            // Nobody hands it over to here again.
            self.forget(&query);
        }
    }

    fn hand_over(&mut self, now_us: u64, run: Run, to: u8, state: &QueryState, out: &mut Vec<Action>) {
        let Run { query, attempt } = run;
        let (build, load) = (self.served.build, self.own_load());
        let words = self.send_home(run, to, state, out);
        // Released or expired meanwhile: nobody waits for it.
        let Some(kept) = self.vectors.get_mut(&query) else { return };
        let is_known = kept.visited & bit(to) != 0;
        kept.visited |= bit(to);
        let (mut bytes, mut frame) = (self.spare.buffer(), self.spare.buffer());
        self.spare.encoder.write(state, self.served.carry, words, &mut bytes);
        let left_us = kept.expires_at_us.saturating_sub(now_us).min(u64::from(u32::MAX)) as u32;
        let message = Message::Baton {
            query,
            attempt,
            visited: kept.visited,
            left_us,
            vector: if is_known { &[] } else { &kept.bytes },
            state: &bytes,
        };
        message.encode(build, load, &mut frame);
        self.spare.keep_buffer(bytes);
        out.push(Action::Send { to, frame });
    }

    /// A query's vector is not needed any more. Gives the servers that were given it.
    fn forget(&mut self, query: &QueryId) -> u64 {
        let Some(kept) = self.vectors.remove(query) else { return 0 };
        self.spare.keep_buffer(kept.bytes);
        kept.visited
    }

    /// A frame has come from a server.
    ///
    /// # Errors
    /// When it is not to be trusted; nothing has changed then.
    pub fn received(
        &mut self,
        now_us: u64,
        from: u8,
        frame: &[u8],
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let (message, load) = message::decode(frame, self.served.build)?;
        match message {
            Message::Baton { query, attempt, visited, left_us, vector, state } => {
                let fits = vector.is_empty() || vector.len() == self.served.vector_bytes;
                let rescores = self.served.rescores;
                let state = self.decode(state).filter(|s| fits && (rescores || s.has_distances()));
                let state = state.filter(|s| s.is_baton(self.served.nodes)).ok_or(Refused::Content)?;
                let expires_at_us = now_us.saturating_add(u64::from(left_us));
                let came = Vector { bytes: self.spare.copy(vector), expires_at_us, visited, taken: None };
                self.take(Run { query, attempt }, state, came, out);
            }
            Message::Answer { query, attempt, visited, state } => {
                let state = self.decode(state).ok_or(Refused::Content)?;
                self.end(Run { query, attempt }, from, visited, state, out);
            }
            Message::Standing { live, has_left } => {
                if let Some(standing) = self.standings.get_mut(usize::from(from)) {
                    *standing = Some(Standing { live, has_left });
                }
            }
            Message::Found { query, attempt, word, hits } => {
                self.found(Run { query, attempt }, word, hits, out)?;
            }
            Message::Release { query } => {
                // Its origin alone may say so of a query; a server never releases its own this way.
                if query.origin != self.server {
                    self.forget(&query);
                }
            }
        }
        if let Some(theirs) = self.loads.get_mut(usize::from(from)).filter(|_| from != self.server) {
            *theirs = load;
        }
        Ok(())
    }

    fn decode(&mut self, bytes: &[u8]) -> Option<Box<QueryState>> {
        let mut state = self.spare.state();
        wire::decode_into(bytes, &mut state).ok()?;
        Some(state)
    }

    /// A baton is taken once: its number grows with every hand-over of an attempt, and with every attempt.
    fn take(&mut self, run: Run, state: Box<QueryState>, came: Vector, out: &mut Vec<Action>) {
        let number = (run.attempt, state.stats().hand_overs);
        let Vector { bytes: vector, expires_at_us, visited, .. } = came;
        let is_mine = run.query.origin == self.server;
        let is_full = self.vectors.len() >= self.limits.hosted.saturating_add(self.limits.origins);
        let kept = match self.vectors.entry(run.query) {
            Entry::Occupied(entry) => entry.into_mut(),
            // Answered long ago, or the frame with the vector is lost: the origin begins anew if it still waits.
            Entry::Vacant(_) if is_mine || is_full || vector.is_empty() => return,
            Entry::Vacant(entry) => {
                entry.insert(Vector { bytes: Vec::new(), expires_at_us, visited, taken: None })
            }
        };
        if kept.taken.is_some_and(|taken| number <= taken) {
            return;
        }
        // A new attempt begins because something was lost, perhaps a frame with the vector: trust no older word about who has it.
        let is_new = kept.taken.is_none_or(|taken| taken.0 < run.attempt);
        kept.visited = if is_new { visited } else { kept.visited | visited };
        kept.taken = Some(number);
        if !vector.is_empty() {
            self.spare.keep_buffer(core::mem::replace(&mut kept.bytes, vector));
        }
        out.push(Action::Start { run, state });
    }

    /// A query that a client brought here, in this life of the server.
    fn own(&mut self, query: &QueryId) -> Option<&mut Origin> {
        let is_own = query.origin == self.server && query.incarnation == self.incarnation;
        self.origins.get_mut(&query.number).filter(|_| is_own)
    }

    /// The query has ended at `from`: the first answer counts, or all of them when all were asked.
    fn end(&mut self, run: Run, from: u8, visited: u64, state: Box<QueryState>, out: &mut Vec<Action>) {
        let query = run.query;
        let Some(origin) = self.own(&query) else { return };
        let Some(gather) = &mut origin.gather else {
            let Some(whole) = origin.home.complete(run.attempt, visited, state) else { return };
            return self.answer(query.number, whole.0, whole.1, out);
        };
        gather.take(from, &state);
        if let Some(whole) = gather.whole() {
            self.answer(query.number, 0, Box::new(whole), out);
        }
        self.spare.keep_state(state);
    }

    /// To the client with it, and everybody forgets the query.
    fn answer(&mut self, number: u64, visited: u64, state: Box<QueryState>, out: &mut Vec<Action>) {
        let query = QueryId { origin: self.server, incarnation: self.incarnation, number };
        let Some(origin) = self.origins.remove(&number) else { return };
        let kept = self.forget(&query);
        self.release(&query, origin.visited | kept | visited, out);
        out.push(Action::Answer { client: origin.client, state });
    }

    fn release(&mut self, query: &QueryId, visited: u64, out: &mut Vec<Action>) {
        let others = visited & self.live & !bit(self.server);
        for to in (0..SERVERS_MAX as u8).filter(|s| others >> s & 1 == 1) {
            self.send(to, &Message::Release { query: *query }, out);
        }
    }

    /// Time has passed: attempts that took too long begin anew, queries that expired end, and what nobody needs is forgotten.
    pub fn tick(&mut self, now_us: u64, out: &mut Vec<Action>) {
        let due: Vec<u64> = self
            .origins
            .iter()
            .filter(|(_, o)| now_us >= o.give_up_at_us.min(o.expires_at_us))
            .map(|(&number, _)| number)
            .collect();
        for number in due {
            self.begin_anew(now_us, number, out);
        }
        self.vectors.retain(|_, v| now_us < v.expires_at_us);
        // Word of a load grows old: a server that was shunned for it, and says nothing since, is tried again.
        let own = self.own_load();
        self.loads.iter_mut().for_each(|load| *load /= 2);
        self.set_load(own.into());
    }

    fn begin_anew(&mut self, now_us: u64, number: u64, out: &mut Vec<Action>) {
        let query = QueryId { origin: self.server, incarnation: self.incarnation, number };
        let limits = self.limits;
        let Some(origin) = self.origins.get_mut(&number) else { return };
        if now_us >= origin.expires_at_us {
            let client = origin.client;
            let visited = origin.visited | origin.gather.as_ref().map_or(0, |g| g.waits());
            self.origins.remove(&number);
            let kept = self.forget(&query);
            self.release(&query, visited | kept, out);
            out.push(Action::Fail { client, why: Failure::Expired });
            return;
        }
        if origin.attempt + 1 >= limits.attempts {
            // No more attempts: the last one has until the end.
            origin.give_up_at_us = origin.expires_at_us;
            return;
        }
        if origin.gather.is_some() {
            return self.ask_again(now_us, number, out);
        }
        origin.attempt += 1;
        origin.home = Home::of(origin.attempt);
        origin.has_begun = false;
        origin.give_up_at_us = origin.expires_at_us;
        let (params, budget, attempt) = (origin.params, origin.budget, origin.attempt);
        if let Some(kept) = self.vectors.get_mut(&query) {
            // Whoever lost the vector in a crash must be given it again.
            origin.visited |= kept.visited;
            kept.visited = bit(self.server);
        }
        self.start(Run { query, attempt }, params, budget, out);
    }

    /// A server no longer answers: whatever may have been there begins anew.
    pub fn down(&mut self, now_us: u64, server: u8, out: &mut Vec<Action>) {
        if self.live & bit(server) == 0 || server == self.server {
            return;
        }
        self.live &= !bit(server);
        self.standings[usize::from(server)] = None;
        self.tell_standing(out);
        self.lose_parts(server, out);
        let whole = self.origins.values_mut().filter(|o| o.has_begun && o.gather.is_none());
        whole.for_each(|o| o.give_up_at_us = now_us);
        self.tick(now_us, out);
    }

    /// A server answers again; it may have forgotten everything.
    pub fn up(&mut self, server: u8, out: &mut Vec<Action>) {
        self.live |= bit(server);
        self.tell_standing(out);
        self.vectors.values_mut().for_each(|v| v.visited &= !bit(server));
    }

    fn send(&mut self, to: u8, message: &Message<'_>, out: &mut Vec<Action>) {
        let mut frame = self.spare.buffer();
        message.encode(self.served.build, self.own_load(), &mut frame);
        out.push(Action::Send { to, frame });
    }
}

/// Whether an ended query's results may be shown as an answer.
pub fn is_answer(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Complete | Outcome::OutOfBudget | Outcome::Partial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::Progress;
    use crate::query::wire::Carry;
    use alloc::vec;

    #[test]
    fn a_baton_without_distances_is_refused_where_nobody_can_compute_them() {
        let query = QueryId { origin: 1, incarnation: 1, number: 0 };
        let baton = |carry, candidates: u32| {
            let mut state = QueryState::new(Params::new(1, 4), Budget::default());
            (0..candidates).for_each(|id| assert!(state.beam.offer(9, id, Progress::Fresh)));
            let (mut bytes, mut frame) = (vec![], vec![]);
            wire::encode(&state, carry, &mut bytes);
            Message::Baton { query, attempt: 0, visited: 2, left_us: 9, vector: &[0; 4], state: &bytes }
                .encode(7, 0, &mut frame);
            frame
        };
        let taken = |rescores, frame: &[u8]| {
            let served = Served {
                build: 7,
                vector_bytes: 4,
                nodes: 9,
                carry: Carry::Distances,
                results: wire::Results::Along,
                rescores,
                apart: None,
            };
            let mut out = vec![];
            let taken = Peer::new(0, 1, served, 3, Limits::default()).received(0, 1, frame, &mut out);
            taken.map(|()| out.len())
        };
        assert_eq!(taken(false, &baton(Carry::Ids, 3)), Err(Refused::Content));
        // A query that has not begun has nothing to compute.
        for (rescores, carry, candidates) in
            [(true, Carry::Ids, 3), (false, Carry::Distances, 3), (false, Carry::Ids, 0)]
        {
            assert_eq!(taken(rescores, &baton(carry, candidates)), Ok(1));
        }
    }
}
