//! Memory that messages and states were in, for those to come: a server that has warmed up takes in a baton, runs it and sends it on without
//! asking the allocator.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::query::{QueryState, wire};

/// The most that is kept, in bytes.
pub const SPARE_BYTES: usize = 1 << 20;

#[derive(Default)]
pub(super) struct Spare {
    buffers: Vec<Vec<u8>>,
    #[expect(clippy::vec_box, reason = "they come and go in their boxes")]
    states: Vec<Box<QueryState>>,
    bytes: usize,
    pub(super) encoder: wire::Encoder,
}

impl Spare {
    /// An empty buffer.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// A buffer with these bytes.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() {
            return Vec::new();
        }
        let mut buffer = self.buffer();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// A state, whatever it was before.
    pub(super) fn state(&mut self) -> Box<QueryState> {
        let Some(state) = self.states.pop() else { return Box::default() };
        self.bytes -= state.memory_bytes();
        state
    }

    pub(super) fn keep_buffer(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() > 0 && self.has_room(buffer.capacity()) {
            self.bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }

    pub(super) fn keep_state(&mut self, state: Box<QueryState>) {
        if self.has_room(state.memory_bytes()) {
            self.bytes += state.memory_bytes();
            self.states.push(state);
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= SPARE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::{Action, Limits, Peer, Run, Served};
    use crate::query::wire::{Carry, Results};
    use crate::query::{Budget, Hit, Params, Progress, Step};
    use alloc::vec;

    /// Sends a state from one peer to another and gives what begins there.
    fn pass(
        peers: &mut [Peer; 2],
        from: usize,
        (run, state): (Run, Box<QueryState>),
        out: &mut Vec<Action>,
    ) -> (Run, Box<QueryState>) {
        let to = 1 - from;
        let mut state = state;
        state.q.stats.hand_overs += 1;
        peers[from].stepped(0, run, Step::HandOver(to as u8), &state, out);
        peers[from].keep_state(state);
        let Some(Action::Send { frame, .. }) = out.pop() else { panic!("a baton") };
        peers[to].received(0, from as u8, &frame, out).expect("a good frame");
        peers[from].keep_frame(frame);
        let Some(Action::Start { run, state }) = out.pop() else { panic!("a state") };
        assert_eq!(peers[to].begin(0, &run), Some(&[7; 64][..]));
        (run, state)
    }

    #[test]
    fn batons_take_no_memory_once_a_server_is_warm() {
        for carry in [Carry::Ids, Carry::Distances] {
            let served = Served {
                build: 7,
                vector_bytes: 64,
                nodes: 1000,
                carry,
                results: Results::Along,
                rescores: true,
                apart: None,
            };
            let mut peers = [0, 1].map(|s| Peer::new(s, 1, served, 0b11, Limits::default()));
            let mut out = Vec::new();
            peers[0].ask(0, 0, (Params::new(10, 100), Budget::default()), &[7; 64], 1 << 40, &mut out);
            let Some(Action::Start { run, mut state }) = out.pop() else { panic!("a state") };
            assert!(peers[0].begin(0, &run).is_some());
            (0..100).for_each(|id| assert!(state.beam.offer(id, 9 * id, Progress::Expanded)));
            state.q.top.hits = vec![Hit { distance: 1.0, external_id: 300 }; 10];
            let mut at_home = (run, state);
            let mut round = |at_home| {
                let away = pass(&mut peers, 0, at_home, &mut out);
                pass(&mut peers, 1, away, &mut out)
            };
            // Counters take a byte more from 128 on: until then a buffer may still grow.
            for _ in 0..70 {
                at_home = round(at_home);
            }
            let used = allocation_counter::measure(|| {
                let mut home = Some(at_home);
                for _ in 0..100 {
                    home = home.take().map(&mut round);
                }
                assert_eq!(home.map(|(_, state)| state.q.stats.hand_overs), Some(340));
            });
            assert_eq!(used.count_total, 0, "{carry:?}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_comes_back_empty() {
        let mut spare = Spare::default();
        let state = || Box::new(QueryState::new(Params::new(10, 100), Budget::default()));
        for _ in 0..100 {
            spare.keep_buffer(vec![7; 100_000]);
            spare.keep_state(state());
        }
        assert!(spare.bytes <= SPARE_BYTES && spare.buffers.len() == 10);
        let room = SPARE_BYTES - 10 * 100_000;
        assert_eq!(spare.states.len(), (room / state().memory_bytes()).min(100));
        let again = spare.buffer();
        assert!(again.is_empty() && again.capacity() >= 100_000);
        while !spare.buffers.is_empty() || !spare.states.is_empty() {
            spare.buffer();
            spare.state();
        }
        assert_eq!(spare.bytes, 0);
        spare.keep_buffer(vec![7; SPARE_BYTES + 1]);
        assert!(spare.buffers.is_empty());
    }
}
