//! Results that do not travel with their query but go to its origin, as BatANN's section 8 proposes.
//!
//! A server that hands a query on tells the origin of the results that it found itself; the state goes on with their distances alone, which is
//! all that the search decides by, and with the number of such words. The origin keeps the best of what it is told. When the query has
//! ended the answer waits for words that are still on their way; where one was lost the query begins anew, as it does after any loss.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::query::wire::{self, Results};
use crate::query::{Hit, QueryState};

use super::message::{Message, Refused};
use super::{Action, Peer, Run, is_answer};

/// What the origin of a query was told of, in one attempt.
#[derive(Default)]
pub(super) struct Home {
    attempt: u8,
    // The best k, by (distance, id).
    found: Vec<Hit>,
    // Numbers of the words that told of them.
    heard: Vec<u32>,
    // The ended state, and the servers that saw the query, while words are missing.
    ended: Option<(u64, Box<QueryState>)>,
}

/// An ended state with all its results, and the servers that saw its query.
type Whole = (u64, Box<QueryState>);

impl Home {
    pub(super) fn of(attempt: u8) -> Home {
        Home { attempt, ..Home::default() }
    }

    fn hear(&mut self, attempt: u8, word: u32, hits: &[Hit], k: u32) {
        if attempt == self.attempt && !self.heard.contains(&word) {
            self.heard.push(word);
            self.add(hits, k);
        }
    }

    fn add(&mut self, hits: &[Hit], k: u32) {
        self.found.extend_from_slice(hits);
        self.found.sort_unstable_by(Hit::order);
        // What begins anew within an attempt finds again what was told.
        self.found.dedup_by(|a, b| a.order(b).is_eq());
        self.found.truncate(k as usize);
    }

    /// An attempt has ended. Its state is kept while results of it are missing.
    pub(super) fn complete(&mut self, attempt: u8, visited: u64, state: Box<QueryState>) -> Option<Whole> {
        if state.q.top.reports_sent == 0 || !is_answer(state.q.outcome) {
            return Some((visited, state));
        }
        if attempt != self.attempt {
            return None;
        }
        self.ended = Some((visited, state));
        self.try_again()
    }

    fn try_again(&mut self) -> Option<Whole> {
        let (visited, mut state) = self.ended.take()?;
        if self.heard.len() < state.q.top.reports_sent as usize {
            self.ended = Some((visited, state));
            return None;
        }
        self.add(&state.q.top.hits, state.q.top.k);
        state.q.top.hits.clone_from(&self.found);
        Some((visited, state))
    }
}

impl Peer {
    /// Before a state goes on to server `to`: tells the origin what was found here, when results are to go there. Gives the number of
    /// words by then, or nothing when results travel.
    pub(super) fn send_home(
        &mut self,
        run: Run,
        to: u8,
        state: &QueryState,
        out: &mut Vec<Action>,
    ) -> Option<u32> {
        let Run { query, attempt } = run;
        // They are on their way there if it goes to the origin.
        if self.served.results == Results::Along || to == query.origin {
            return None;
        }
        let word = state.q.top.reports_sent;
        if state.q.top.hits.is_empty() {
            return Some(word);
        }
        if query.origin == self.server {
            self.own(&query)?.home.hear(attempt, word, &state.q.top.hits, state.q.top.k);
        } else {
            let mut hits = self.spare.buffer();
            wire::write_hits(&state.q.top.hits, &mut hits);
            self.send(query.origin, &Message::Found { query, attempt, word, hits: &hits }, out);
            self.spare.keep_buffer(hits);
        }
        Some(word.saturating_add(1))
    }

    /// A server has told of results.
    pub(super) fn found(
        &mut self,
        run: Run,
        word: u32,
        hits: &[u8],
        out: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let mut found = Vec::new();
        wire::read_hits(hits, &mut found)?;
        let Run { query, attempt } = run;
        let Some(origin) = self.own(&query) else { return Ok(()) };
        origin.home.hear(attempt, word, &found, origin.params.k);
        if let Some((visited, state)) = origin.home.try_again() {
            self.answer(query.number, visited, state, out);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Limits, Run, Served};
    use crate::query::{Budget, Outcome, Params, Step};
    use alloc::vec;

    const K: u32 = 3;

    fn peer(server: u8) -> Peer {
        let (carry, results) = (wire::Carry::Ids, Results::Origin);
        let served =
            Served { build: 7, vector_bytes: 4, nodes: 9, carry, results, rescores: true, apart: None };
        Peer::new(server, 1, served, 0b111, Limits::default())
    }

    fn frames(out: &mut Vec<Action>) -> Vec<(u8, Vec<u8>)> {
        out.drain(..)
            .filter_map(|a| if let Action::Send { to, frame } = a { Some((to, frame)) } else { None })
            .collect()
    }

    fn hit(distance: f32, external_id: u64) -> Hit {
        Hit { distance, external_id }
    }

    fn received(peer: &mut Peer, from: u8, frame: &[u8]) -> (Vec<Action>, Option<(Run, Box<QueryState>)>) {
        let mut out = vec![];
        peer.received(0, from, frame, &mut out).expect("a good frame");
        let started = out.iter().position(|a| matches!(a, Action::Start { .. })).map(|at| out.remove(at));
        (out, started.map(|a| if let Action::Start { run, state } = a { (run, state) } else { panic!() }))
    }

    /// A query from 0 over 1 to 2, which ends it: the frames of 1 and 2 to 0, and the peer that waits for them.
    fn on_its_way() -> (Peer, Vec<u8>, Vec<u8>) {
        let (mut peers, mut out) = ([0, 1, 2].map(peer), vec![]);
        peers[0].ask(0, 5, (Params::new(K, 4), Budget::default()), &[1; 4], 1000, &mut out);
        let Some(Action::Start { run, mut state }) = out.pop() else { panic!("a query begins") };
        state.q.top.hits = vec![hit(1.0, 10), hit(2.0, 12)];
        state.q.stats.hand_overs = 1;
        peers[0].stepped(0, run, Step::HandOver(1), &state, &mut out);
        let sent = frames(&mut out);
        let [(1, baton)] = sent.as_slice() else {
            panic!("{sent:?}: the origin tells itself without a word")
        };

        let (_, state) = received(&mut peers[1], 0, baton);
        let (run, mut state) = state.expect("a baton");
        assert_eq!((&state.q.top.hits, &state.q.top.reported_distances), (&vec![], &vec![1.0, 2.0]));
        // One as far as what is known elsewhere: the origin alone can tell which of them stays.
        state.q.top.hits = vec![hit(2.0, 11)];
        state.q.stats.hand_overs = 2;
        peers[1].stepped(0, run, Step::HandOver(2), &state, &mut out);
        let sent = frames(&mut out);
        let [(0, found), (2, baton)] = sent.as_slice() else { panic!("{sent:?}") };

        let (_, state) = received(&mut peers[2], 1, baton);
        let (run, mut state) = state.expect("a baton");
        assert_eq!(state.q.top.reported_distances, vec![1.0, 2.0, 2.0]);
        assert!(state.is_full() && state.worst() == Some((2.0, None)));
        state.drop_worst();
        state.q.top.hits = vec![hit(1.5, 13)];
        state.q.outcome = Outcome::Complete;
        peers[2].stepped(0, run, Step::Done, &state, &mut out);
        let sent = frames(&mut out);
        let [(0, answer)] = sent.as_slice() else { panic!("{sent:?}") };
        let (found, answer) = (found.clone(), answer.clone());
        let [origin, ..] = peers;
        (origin, found, answer)
    }

    fn told(out: &[Action]) -> Option<&[Hit]> {
        out.iter().find_map(|a| {
            if let Action::Answer { client: 5, state } = a { Some(state.q.top.hits()) } else { None }
        })
    }

    const ALL: [Hit; 3] = [
        Hit { distance: 1.0, external_id: 10 },
        Hit { distance: 1.5, external_id: 13 },
        Hit { distance: 2.0, external_id: 11 },
    ];

    #[test]
    fn the_origin_puts_together_what_was_found_on_the_way() {
        let (mut origin, found, answer) = on_its_way();
        assert!(told(&received(&mut origin, 1, &found).0).is_none());
        assert!(told(&received(&mut origin, 1, &found).0).is_none(), "twice is once");
        assert_eq!(told(&received(&mut origin, 2, &answer).0), Some(&ALL[..]));
        assert!(received(&mut origin, 1, &found).0.is_empty(), "nobody waits any more");
    }

    #[test]
    fn an_answer_waits_for_word_that_is_late() {
        let (mut origin, found, answer) = on_its_way();
        // Though there are three already, of distances that would do.
        assert!(told(&received(&mut origin, 2, &answer).0).is_none());
        assert_eq!(told(&received(&mut origin, 1, &found).0), Some(&ALL[..]));
    }

    #[test]
    fn hits_of_any_distance_and_id_come_back() {
        let hits = vec![hit(-f32::INFINITY, 0), hit(-1.5, u64::MAX), hit(0.0, 1), hit(f32::MAX, 300)];
        let (mut bytes, mut back) = (vec![], vec![]);
        wire::write_hits(&hits, &mut bytes);
        wire::read_hits(&bytes, &mut back).expect("hits");
        assert_eq!(back, hits);
        assert!((0..bytes.len()).all(|n| wire::read_hits(&bytes[..n], &mut vec![]).is_err()));
        // Of a state, their distances too, in order.
        let mut state = QueryState::new(Params::new(6, 9), Budget::default());
        (state.q.top.hits, state.q.top.reported_distances) = (hits, vec![-2.0, 0.5]);
        let mut write = |state: &QueryState| {
            bytes.clear();
            wire::Encoder::default().write(state, wire::Carry::Ids, Some(4), &mut bytes);
            wire::decode(&bytes)
        };
        let there = write(&state).expect("a state");
        let told = vec![-f32::INFINITY, -2.0, -1.5, 0.0, 0.5, f32::MAX];
        assert_eq!((there.words, there.results, there.told), (4, vec![], told));
        state.q.top.k = 5;
        assert!(write(&state).is_err(), "six results of five");
    }
}
