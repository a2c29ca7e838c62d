//! Memory of messages and states, for reuse. A server that has warmed up receives a baton, runs it and sends it on
//! without allocating.
//!
//! Every thread has a pool of its own, and [`Peer`](super::Peer) has one for all of them. Memory moves between them at
//! each call ([`Peer::exchange`](super::Peer::exchange)), because one thread receives the states that another one
//! sends.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::query::{Hit, QueryState, wire};

/// Largest size of the pool of all threads, bytes.
pub const POOL_BYTES: usize = 1 << 20;
/// Largest size of one thread's pool, bytes.
pub const THREAD_POOL_BYTES: usize = 128 << 10;
/// Longest buffer, and largest state, that a pool keeps: those of large queries are freed.
const KEPT_BYTES_MAX: usize = 32 << 10;
/// Buffers, states and lists of hits that a thread keeps between two calls: enough for one call.
const THREAD_BUFFERS: usize = 8;
const THREAD_STATES: usize = 2;
const THREAD_HITS: usize = 1;

/// Reusable buffers and states.
#[derive(Debug)]
pub struct BufferPool {
    buffers: Vec<Vec<u8>>,
    #[expect(clippy::vec_box, reason = "states are passed on in their boxes")]
    states: Vec<Box<QueryState>>,
    hits: Vec<Vec<Hit>>,
    bytes: usize,
    limit_bytes: usize,
    pub(super) encoder: wire::Encoder,
}

impl Default for BufferPool {
    /// The pool of one thread.
    fn default() -> BufferPool {
        BufferPool::new(THREAD_POOL_BYTES)
    }
}

impl BufferPool {
    /// An empty pool that keeps up to `limit_bytes`.
    pub(super) fn new(limit_bytes: usize) -> BufferPool {
        BufferPool {
            buffers: Vec::new(),
            states: Vec::new(),
            hits: Vec::new(),
            bytes: 0,
            limit_bytes,
            encoder: wire::Encoder::default(),
        }
    }

    /// Returns an empty buffer.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        let buffer = self.buffers.pop().unwrap_or_default();
        self.bytes -= buffer.capacity();
        buffer
    }

    /// Returns a buffer with these bytes.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() {
            return Vec::new();
        }
        let mut buffer = self.buffer();
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Returns a state with arbitrary content.
    pub(super) fn state(&mut self) -> Box<QueryState> {
        let Some(state) = self.states.pop() else { return Box::default() };
        self.bytes -= state.memory_bytes();
        state
    }

    /// Returns an empty list of hits.
    pub(super) fn hits(&mut self) -> Vec<Hit> {
        let hits = self.hits.pop().unwrap_or_default();
        self.bytes -= hits.capacity() * size_of::<Hit>();
        hits
    }

    /// Keeps a buffer for reuse, or frees it when the pool is full.
    pub fn recycle_buffer(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() > 0 && self.has_room(buffer.capacity()) {
            self.bytes += buffer.capacity();
            self.buffers.push(buffer);
        }
    }

    /// Keeps a state for reuse, or frees it when the pool is full.
    pub fn recycle_state(&mut self, state: Box<QueryState>) {
        let bytes = state.memory_bytes();
        if self.has_room(bytes) {
            self.bytes += bytes;
            self.states.push(state);
        }
    }

    pub(super) fn recycle_hits(&mut self, mut hits: Vec<Hit>) {
        hits.clear();
        let bytes = hits.capacity() * size_of::<Hit>();
        if bytes > 0 && self.has_room(bytes) {
            self.bytes += bytes;
            self.hits.push(hits);
        }
    }

    fn has_room(&self, bytes: usize) -> bool {
        bytes <= KEPT_BYTES_MAX && self.bytes + bytes <= self.limit_bytes
    }

    /// Takes the surplus of a thread's pool, and fills the pool up.
    pub(super) fn exchange(&mut self, thread: &mut BufferPool) {
        while thread.buffers.len() > THREAD_BUFFERS {
            self.recycle_buffer(thread.buffer());
        }
        while thread.buffers.len() < THREAD_BUFFERS && !self.buffers.is_empty() {
            thread.recycle_buffer(self.buffer());
        }
        while thread.states.len() > THREAD_STATES {
            self.recycle_state(thread.state());
        }
        while thread.states.len() < THREAD_STATES && !self.states.is_empty() {
            thread.recycle_state(self.state());
        }
        while thread.hits.len() > THREAD_HITS {
            self.recycle_hits(thread.hits());
        }
        while thread.hits.len() < THREAD_HITS && !self.hits.is_empty() {
            thread.recycle_hits(self.hits());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::tests::{VECTOR_BYTES, served, submit};
    use crate::peer::{Action, Limits, Peer, Run};
    use crate::query::wire::{Carry, Results};
    use crate::query::{Budget, Params, Progress, Step};
    use alloc::vec;

    /// Hands a state from one peer to the other. Returns the run that starts there. Frames are encoded and decoded as
    /// the threads of a server do.
    fn pass(
        peers: &mut [Peer; 2],
        pools: &mut [BufferPool; 2],
        from: usize,
        (run, mut state): (Run, Box<QueryState>),
        out: &mut Vec<Action>,
    ) -> (Run, Box<QueryState>) {
        let to = 1 - from;
        state.q.stats.hand_overs += 1;
        let codec = peers[from].codec();
        let departure = codec.departure(run, Step::HandOver(to as u8), &state, &mut pools[from]);
        pools[from].recycle_state(state);
        peers[from].exchange(&mut pools[from]);
        peers[from].stepped(0, departure.expect("it leaves"), out);
        let Some(Action::Send { message, .. }) = out.pop() else { panic!("a baton") };
        let frame = codec.frame(message, &mut pools[from]);
        let received = peers[to].codec().decode(&frame, &mut pools[to]).expect("a good frame");
        pools[from].recycle_buffer(frame);
        peers[to].exchange(&mut pools[to]);
        peers[to].received(0, from as u8, received, out);
        let Some(Action::Start { run, state }) = out.pop() else { panic!("a state") };
        assert_eq!(peers[to].begin(0, &run).expect("it is wanted").vector, [7; VECTOR_BYTES]);
        (run, state)
    }

    #[test]
    fn batons_allocate_nothing_once_a_server_is_warm() {
        for carry in [Carry::Ids, Carry::Distances] {
            let served = served(carry, Results::Along);
            let mut peers = [0, 1].map(|s| Peer::new(s, 1, served, 0b11, Limits::default()));
            let mut pools = [BufferPool::default(), BufferPool::default()];
            let mut out = Vec::new();
            submit(&mut peers[0], 0, 1 << 40, &mut out);
            let Some(Action::Start { run, mut state }) = out.pop() else { panic!("a state") };
            assert!(peers[0].begin(0, &run).is_some());
            state.restart(Params::disk_graph(10, 100), Budget::default());
            (0..100).for_each(|id| assert!(state.beam_mut().offer(id, 9 * id, Progress::Expanded)));
            state.q.top.hits = vec![Hit { distance: 1.0, external_id: 300 }; 10];
            let mut at_origin = (run, state);
            let mut round = |at_origin| {
                let away = pass(&mut peers, &mut pools, 0, at_origin, &mut out);
                pass(&mut peers, &mut pools, 1, away, &mut out)
            };
            // Counters take a byte more from 128 on: until then a buffer may still grow.
            for _ in 0..70 {
                at_origin = round(at_origin);
            }
            let used = allocation_counter::measure(|| {
                let mut state = Some(at_origin);
                for _ in 0..100 {
                    state = state.take().map(&mut round);
                }
                assert_eq!(state.map(|(_, state)| state.q.stats.hand_overs), Some(340));
            });
            assert_eq!(used.count_total, 0, "{carry:?}");
        }
    }

    #[test]
    fn queries_of_clients_do_not_fill_the_pool() {
        let served = served(Carry::Ids, Results::Along);
        let mut peer = Peer::new(0, 1, served, 0b11, Limits::default());
        let (mut pool, mut out) = (BufferPool::default(), Vec::new());
        for number in 0..20_000 {
            submit(&mut peer, number, 1 << 40, &mut out);
            let Some(Action::Start { run, state }) = out.pop() else { panic!("a state") };
            assert!(peer.begin(0, &run).is_some());
            let departure = peer.codec().departure(run, Step::Done, &state, &mut pool);
            peer.recycle_state(state);
            peer.exchange(&mut pool);
            peer.stepped(0, departure.expect("it has ended"), &mut out);
            let Some(Action::Answer { state, .. }) = out.pop() else { panic!("an answer") };
            pool.recycle_state(state);
        }
        assert!(
            peer.pool.bytes < 4096,
            "{} buffers, {} states",
            peer.pool.buffers.len(),
            peer.pool.states.len()
        );
    }

    #[test]
    fn vectors_of_batons_do_not_fill_the_pool() {
        let served = served(Carry::Ids, Results::Along);
        let mut peers = [0, 1].map(|s| Peer::new(s, 1, served, 0b11, Limits::default()));
        let mut pools = [BufferPool::default(), BufferPool::default()];
        let mut out = Vec::new();
        for number in 0..5000 {
            submit(&mut peers[0], number, 1 << 40, &mut out);
            let Some(Action::Start { run, state }) = out.pop() else { panic!("a state") };
            assert!(peers[0].begin(0, &run).is_some());
            let (run, state) = pass(&mut peers, &mut pools, 0, (run, state), &mut out);
            peers[1].recycle_state(state);
            for peer in &mut peers {
                peer.forget(&run.query);
            }
        }
        for peer in &peers {
            assert!(peer.pool.buffers.len() < 32, "{} buffers", peer.pool.buffers.len());
        }
    }

    #[test]
    fn a_pool_is_bounded_and_returns_empty_buffers() {
        let mut pool = BufferPool::new(POOL_BYTES);
        let state = || Box::new(QueryState::new(Params::disk_graph(10, 100), Budget::default()));
        for _ in 0..100 {
            pool.recycle_buffer(vec![7; KEPT_BYTES_MAX]);
            pool.recycle_state(state());
        }
        // Both come in turn; the last states fill what a buffer does not fit into.
        let states = pool.states.len();
        let room = POOL_BYTES - pool.buffers.len() * KEPT_BYTES_MAX;
        assert!(pool.bytes <= POOL_BYTES && room < KEPT_BYTES_MAX + states * state().memory_bytes());
        assert_eq!(states, (room / state().memory_bytes()).min(100));
        let again = pool.buffer();
        assert!(again.is_empty() && again.capacity() == KEPT_BYTES_MAX);
        while !pool.buffers.is_empty() || !pool.states.is_empty() {
            pool.buffer();
            pool.state();
        }
        assert_eq!(pool.bytes, 0);
        // What a large query used is freed.
        pool.recycle_buffer(vec![7; KEPT_BYTES_MAX + 1]);
        assert!(pool.buffers.is_empty());
    }

    #[test]
    fn a_thread_returns_its_surplus_and_is_filled_up() {
        let (mut shared, mut sender, mut receiver) =
            (BufferPool::default(), BufferPool::default(), BufferPool::default());
        for _ in 0..3 * THREAD_BUFFERS {
            sender.recycle_buffer(vec![7; 100]);
            sender.recycle_state(Box::default());
        }
        shared.exchange(&mut sender);
        shared.exchange(&mut receiver);
        for pool in [&sender, &receiver] {
            assert_eq!((pool.buffers.len(), pool.states.len()), (THREAD_BUFFERS, THREAD_STATES));
        }
        assert_eq!(shared.buffers.len(), THREAD_BUFFERS);
    }
}
