//! Partial results: results that do not travel with their query but go to its origin (BatANN §8).
//!
//! A server that hands a query on reports the results that it found itself to the origin. The state goes on with their
//! distances, which are all that the search needs, and with the number of reports sent. The origin keeps the best of
//! the reported results. When the query has ended, the answer waits for reports that have not arrived. If one was lost,
//! another attempt is started, as after any loss.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Action, Peer, Run, is_answer};
use crate::query::{Hit, QueryState};

/// Results that were reported to the origin of a query, of one attempt.
#[derive(Default)]
pub(super) struct PartialResults {
    attempt: u8,
    // The best k, by (distance, id).
    best: Vec<Hit>,
    // Sequence numbers of the merged reports.
    merged: Vec<u32>,
    // The servers that have the vector, and the ended state, while reports are missing.
    ended: Option<Whole>,
}

/// The servers that have a query's vector, and its ended state with all results.
type Whole = (u64, Box<QueryState>);

impl PartialResults {
    pub(super) fn new(attempt: u8) -> PartialResults {
        PartialResults { attempt, ..PartialResults::default() }
    }

    /// Merges one report; a second copy of it changes nothing.
    pub(super) fn merge(&mut self, attempt: u8, sequence: u32, hits: &[Hit], k: u32) {
        if attempt == self.attempt && !self.merged.contains(&sequence) {
            self.merged.push(sequence);
            self.add(hits, k);
        }
    }

    fn add(&mut self, hits: &[Hit], k: u32) {
        self.best.extend_from_slice(hits);
        self.best.sort_unstable_by(Hit::order);
        // A state that restarts within an attempt finds reported results again.
        self.best.dedup_by(|a, b| a.order(b).is_eq());
        self.best.truncate(k as usize);
    }

    /// An attempt has ended. Its state is kept while reports are missing.
    pub(super) fn complete(&mut self, attempt: u8, visited: u64, state: Box<QueryState>) -> Option<Whole> {
        if state.q.top.reports_sent == 0 || !is_answer(state.q.outcome) {
            return Some((visited, state));
        }
        if attempt != self.attempt {
            return None;
        }
        self.ended = Some((visited, state));
        self.take_whole()
    }

    fn take_whole(&mut self) -> Option<Whole> {
        let (visited, mut state) = self.ended.take()?;
        if self.merged.len() < state.q.top.reports_sent as usize {
            self.ended = Some((visited, state));
            return None;
        }
        self.add(&state.q.top.hits, state.q.top.k);
        state.q.top.hits.clone_from(&self.best);
        Some((visited, state))
    }
}

impl Peer {
    /// Server `from` has reported partial results.
    pub(super) fn merge_report(
        &mut self,
        (now_us, from): (u64, u8),
        run: Run,
        (sequence, hits): (u32, &[Hit]),
        out: &mut Vec<Action>,
    ) {
        let part = self.served.parts.of(from);
        let Some(origin) = self.own(&run.query) else { return };
        let k = origin.params.k;
        let Some(results) = origin.partial_results(part) else { return };
        results.merge(run.attempt, sequence, hits, k);
        if let Some((visited, state)) = results.take_whole() {
            match origin.parts {
                Some(_) => self.join_part((now_us, from), run, visited, state, out),
                None => self.answer(run.query.number, visited, state, out),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::{frames, receive, served, submit};
    use crate::peer::{BufferPool, Limits, Run};
    use crate::query::wire::{self, Results};
    use crate::query::{Budget, Outcome, Params, Step};
    use alloc::vec;

    fn peer(server: u8) -> Peer {
        Peer::new(server, 1, served(wire::Carry::Ids, Results::Origin), 0b111, Limits::default())
    }

    fn hit(distance: f32, external_id: u64) -> Hit {
        Hit { distance, external_id }
    }

    /// Steps a state away from a peer. Returns the frames that it sends.
    fn step(peer: &mut Peer, run: Run, step: Step, state: &QueryState) -> Vec<(u8, Vec<u8>)> {
        let (mut pool, mut out) = (BufferPool::default(), vec![]);
        let departure = peer.codec().departure(run, step, state, &mut pool).expect("it leaves");
        peer.stepped(0, departure, &mut out);
        frames(peer, out)
    }

    fn received(peer: &mut Peer, from: u8, frame: &[u8]) -> (Vec<Action>, Option<(Run, Box<QueryState>)>) {
        let mut out = receive(peer, from, frame).expect("a good frame");
        let started = out.iter().position(|a| matches!(a, Action::Start { .. })).map(|at| out.remove(at));
        (out, started.map(|a| if let Action::Start { run, state } = a { (run, state) } else { panic!() }))
    }

    /// A query from 0 over 1 to 2, where it ends: the frames of 1 and 2 to 0, and the peer 0.
    fn on_its_way() -> (Peer, Vec<u8>, Vec<u8>) {
        let (mut peers, mut out) = ([0, 1, 2].map(peer), vec![]);
        submit(&mut peers[0], 5, 1000, &mut out);
        let Some(Action::Start { run, mut state }) = out.pop() else { panic!("a query begins") };
        state.q.top.hits = vec![hit(1.0, 10), hit(2.0, 12)];
        state.q.stats.hand_overs = 1;
        let sent = step(&mut peers[0], run, Step::HandOver(1), &state);
        let [(1, baton)] = sent.as_slice() else { panic!("{sent:?}: the origin sends no report to itself") };

        let (_, state) = received(&mut peers[1], 0, baton);
        let (run, mut state) = state.expect("a baton");
        assert_eq!((&state.q.top.hits, &state.q.top.reported_distances), (&vec![], &vec![1.0, 2.0]));
        // As far as a reported result: only the origin can tell which of them stays.
        state.q.top.hits = vec![hit(2.0, 11)];
        state.q.stats.hand_overs = 2;
        let sent = step(&mut peers[1], run, Step::HandOver(2), &state);
        let [(0, report), (2, baton)] = sent.as_slice() else { panic!("{sent:?}") };

        let (_, state) = received(&mut peers[2], 1, baton);
        let (run, mut state) = state.expect("a baton");
        assert_eq!(state.q.top.reported_distances, vec![1.0, 2.0, 2.0]);
        assert!(state.q.top.is_full() && state.q.top.worst() == Some((2.0, None)));
        state.q.top.drop_worst();
        state.q.top.hits = vec![hit(1.5, 13)];
        state.q.outcome = Outcome::Complete;
        let sent = step(&mut peers[2], run, Step::Done, &state);
        let [(0, answer)] = sent.as_slice() else { panic!("{sent:?}") };
        let (report, answer) = (report.clone(), answer.clone());
        let [origin, ..] = peers;
        (origin, report, answer)
    }

    fn answer_of(out: &[Action]) -> Option<&[Hit]> {
        out.iter().find_map(|a| {
            if let Action::Answer { number: 5, state } = a { Some(state.results()) } else { None }
        })
    }

    const ALL: [Hit; 3] = [
        Hit { distance: 1.0, external_id: 10 },
        Hit { distance: 1.5, external_id: 13 },
        Hit { distance: 2.0, external_id: 11 },
    ];

    #[test]
    fn the_origin_merges_reported_results() {
        let (mut origin, report, answer) = on_its_way();
        assert!(answer_of(&received(&mut origin, 1, &report).0).is_none());
        assert!(answer_of(&received(&mut origin, 1, &report).0).is_none(), "a second copy changes nothing");
        assert_eq!(answer_of(&received(&mut origin, 2, &answer).0), Some(&ALL[..]));
        assert!(received(&mut origin, 1, &report).0.is_empty(), "the query has ended");
    }

    #[test]
    fn an_answer_waits_for_a_late_report() {
        let (mut origin, report, answer) = on_its_way();
        // It waits although it has three results already.
        assert!(answer_of(&received(&mut origin, 2, &answer).0).is_none());
        assert_eq!(answer_of(&received(&mut origin, 1, &report).0), Some(&ALL[..]));
    }

    #[test]
    fn hits_of_any_distance_and_id_come_back() {
        let hits = vec![hit(-f32::INFINITY, 0), hit(-1.5, u64::MAX), hit(0.0, 1), hit(f32::MAX, 300)];
        let (mut bytes, mut back) = (vec![], vec![]);
        wire::write_hits(&hits, &mut bytes);
        wire::read_hits(&bytes, &mut back).expect("hits");
        assert_eq!(back, hits);
        assert!((0..bytes.len()).all(|n| wire::read_hits(&bytes[..n], &mut vec![]).is_err()));
        // A state carries their distances, in order.
        let mut state = QueryState::new(Params::disk_graph(6, 9), Budget::default());
        (state.q.top.hits, state.q.top.reported_distances) = (hits, vec![-2.0, 0.5]);
        let mut write = |state: &QueryState| {
            bytes.clear();
            wire::Encoder::default().write(state, (wire::Carry::Ids, wire::VERSION), Some(4), &mut bytes);
            wire::decode(&bytes)
        };
        let there = write(&state).expect("a state");
        let reported = vec![-f32::INFINITY, -2.0, -1.5, 0.0, 0.5, f32::MAX];
        assert_eq!(
            (there.q.top.reports_sent, there.q.top.hits, there.q.top.reported_distances),
            (4, vec![], reported)
        );
        state.params.k = 5;
        assert!(write(&state).is_err(), "six results of five");
    }
}
