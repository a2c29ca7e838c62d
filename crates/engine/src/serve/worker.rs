//! A driver thread's share of a server's queries.

use std::sync::atomic::Ordering;

use stratann_core::peer::Run;
use stratann_core::place::SERVERS_MAX;
use stratann_core::query::{Loss, QueryState, Step};

use super::Shared;
use super::inbox::Job;
use crate::driver::{Queries, Times};
use crate::kinds::hybrid_ivf::learning::Learning;
use crate::kinds::snapshot::Snapshot;

/// The queries that run on one thread.
pub(super) struct Worker<'a> {
    shared: &'a Shared,
    thread: usize,
    places: Vec<Place>,
    free: Vec<usize>,
}

/// What is kept of a query while it runs; the vector's memory is used again.
struct Place {
    run: Run,
    state: Box<QueryState>,
    vector: Vec<u8>,
    // Its number among those that are learnt from.
    number: Option<u64>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: &'a Shared, thread: usize) -> Worker<'a> {
        Worker { shared, thread, places: Vec::new(), free: Vec::new() }
    }

    /// Finds the job a place. `None` when nobody waits for the query any more.
    fn place(&mut self, job: Job) -> Option<usize> {
        let Job { run, state } = job;
        let mut peer = self.shared.lock_peer();
        let Some(vector) = peer.begin(self.shared.now_us(), &run) else {
            peer.keep_state(state);
            return None;
        };
        let number = learning(self.shared).and_then(Learning::number_now);
        let at = self.free.pop().unwrap_or(self.places.len());
        match self.places.get_mut(at) {
            Some(place) => {
                place.vector.clear();
                place.vector.extend_from_slice(vector);
                place.run = run;
                place.number = number;
                peer.keep_state(std::mem::replace(&mut place.state, state));
            }
            None => self.places.push(Place { run, state, vector: vector.to_vec(), number }),
        }
        Some(at)
    }
}

fn learning(shared: &Shared) -> Option<&Learning> {
    shared.held.index().learning.as_ref()
}

impl Queries for Worker<'_> {
    fn next(&mut self) -> Option<usize> {
        while !self.shared.is_stopped() {
            let job = self.shared.inbox.pop(self.thread)?;
            if let Some(at) = self.place(job) {
                self.shared.running.fetch_add(1, Ordering::Relaxed);
                return Some(at);
            }
        }
        None
    }

    fn snapshot(&mut self, _: usize) -> Option<Snapshot> {
        learning(self.shared).map(|l| Snapshot::HybridIvf(l.newest()))
    }

    /// Only widths depend on it, and these are the origin's.
    fn remaining(&self) -> usize {
        0
    }

    /// The origin has set the widths, by its own load.
    fn begin(&mut self, number: usize, _: (u32, u32), state: &mut QueryState) -> &[u8] {
        let place = &mut self.places[number];
        std::mem::swap(state, &mut place.state);
        &place.vector
    }

    fn ended(&mut self, number: usize, step: Step, state: &QueryState, _: Times) {
        let run = self.places[number].run;
        if let (Some(learning), Some(counted)) = (learning(self.shared), self.places[number].number.take()) {
            learning.ended(self.thread, learning.epoch(counted), Some(state));
        }
        self.free.push(number);
        self.shared.running.fetch_sub(1, Ordering::Relaxed);
        if matches!(step, Step::HandOver(_)) {
            self.shared.counters.hand_overs_out.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.with_peer(|peer, now_us, out| peer.stepped(now_us, run, step, state, out));
    }

    fn lost(&mut self, block: u32, loss: Loss) {
        self.shared.note_lost(block, loss);
    }

    fn others(&self) -> (u64, [u8; SERVERS_MAX]) {
        let loads = self.shared.lock_loads();
        (self.shared.live.load(Ordering::Relaxed), *loads)
    }

    fn may_wait(&mut self, has_room: bool) -> bool {
        // While stopping the driver ends by itself once nothing is in flight.
        !has_room || self.shared.is_stopped() || self.shared.inbox.may_wait(self.thread)
    }

    fn can_wake(&self) -> bool {
        true
    }

    fn stays(&self) -> bool {
        !self.shared.is_stopped()
    }
}
