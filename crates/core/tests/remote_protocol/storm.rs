//! Many compute nodes at once, in an order that a seed decides.

use stratann_core::remote_protocol::Places;

use crate::client::{Client, Shared};
use crate::history::History;
use crate::memory::{Dice, Memory};
use crate::world::{self, Settings};

/// Counts of the events of a storm.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) batches: u64,
    pub(crate) inserted: u64,
    pub(crate) deleted: u64,
    pub(crate) full: u64,
    pub(crate) log_full: u64,
    pub(crate) rebuilt: u64,
    pub(crate) replaced: u64,
    pub(crate) no_space: u64,
    pub(crate) lost_spaces: u64,
    pub(crate) freed: u64,
    pub(crate) moved: u64,
    pub(crate) died: u64,
    pub(crate) stopped: u64,
    pub(crate) faults: u64,
    pub(crate) folded: u64,
    /// Of the last batch and the last count.
    pub(crate) found: u64,
    pub(crate) rows: u64,
}

/// Events that may happen in a storm.
#[derive(Default)]
pub(crate) struct FaultModel {
    pub(crate) clients: u16,
    pub(crate) steps: u64,
    pub(crate) deaths: bool,
    pub(crate) stops: bool,
    /// Nodes do not answer for a while now and then.
    pub(crate) loses_nodes: bool,
}

pub(crate) struct Storm {
    places: Places,
    memory: Memory,
    history: History,
    dice: Dice,
    clients: Vec<Client>,
    next_number: u16,
    settings: Settings,
    pub(crate) counts: Counts,
    now: u64,
}

const PATIENCE: u32 = 4;

impl Storm {
    pub(crate) fn new(seed: u64, settings: Settings, faults: &FaultModel) -> Storm {
        let mut dice = Dice::new(seed);
        let mut history = History::default();
        let (places, memory) = world::load(&settings, &mut history, &mut dice);
        let clients = (1..=faults.clients).map(|n| Client::new(n, settings.capacity, PATIENCE)).collect();
        let next_number = faults.clients + 1;
        let counts = Counts::default();
        Storm { places, memory, history, dice, clients, next_number, settings, counts, now: 1 }
    }

    fn step(&mut self, client: usize, is_free: bool) {
        self.now += 1;
        let Storm { places, memory, history, dice, clients, counts, now, .. } = self;
        let own = &mut clients[client];
        if own.sleeps > 0 {
            own.sleeps -= 1;
            return;
        }
        own.step(&mut Shared { places, memory, history, dice, counts, now: *now }, is_free);
    }

    fn newcomer(&mut self) -> Client {
        self.next_number += 1;
        Client::new(self.next_number - 1, self.settings.capacity, PATIENCE)
    }

    pub(crate) fn run(&mut self, faults: &FaultModel) {
        for _ in 0..faults.steps {
            let client = self.dice.below(self.clients.len() as u64) as usize;
            if faults.deaths && self.dice.one_in(3000) {
                self.clients[client] = self.newcomer();
                self.counts.died += 1;
            }
            if faults.stops && self.dice.one_in(2500) {
                self.clients[client].sleeps = self.dice.below(40_000);
                self.counts.stopped += 1;
            }
            if faults.loses_nodes {
                for is_dead in &mut self.memory.is_dead {
                    *is_dead ^= self.dice.one_in(if *is_dead { 100 } else { 2000 });
                }
            }
            self.step(client, true);
        }
        self.memory.is_dead.fill(false);
        self.settle();
    }

    fn until(&mut self, client: usize, what: &str, is_done: impl Fn(&Client) -> bool) {
        for _ in 0..2_000_000 {
            if is_done(&self.clients[client]) {
                return;
            }
            self.step(client, false);
        }
        panic!("{what} does not end");
    }

    /// Every task ends; then batches before and after a rebuild of all groups find the same.
    fn settle(&mut self) {
        for client in 0..self.clients.len() {
            self.clients[client].sleeps = 0;
        }
        for _ in 0..3_000_000 {
            if self.clients.iter().all(|client| client.task.is_none()) {
                break;
            }
            let client = self.dice.below(self.clients.len() as u64) as usize;
            self.step(client, false);
        }
        let fresh = self.newcomer();
        self.clients.push(fresh);
        let last = self.clients.len() - 1;
        self.batch(last);
        self.clients[last].begin_fold(true);
        self.until(last, "marking", |client| client.task.is_none());
        self.batch(last);
        self.count(last);
        for group in 0..world::GROUPS as u32 {
            self.clients[last].begin_rebuild(group);
            self.until(last, "a rebuild", |client| client.task.is_none());
        }
        self.batch(last);
        self.clients[last].begin_truncate();
        self.until(last, "freeing tombstones", |client| client.task.is_none());
        self.batch(last);
        self.count(last);
    }

    /// Rows are counted as a batch finds them. Slots of dead writers look as if a change were under way.
    fn count(&mut self, client: usize) {
        self.clients[client].begin_count();
        self.until(client, "counting", |client| client.task.is_none());
        let is_busy = self.counts.rows == u64::MAX;
        assert!(is_busy || self.counts.rows == self.counts.found, "{:?}", self.counts);
    }

    fn batch(&mut self, client: usize) {
        let before = self.clients[client].batches;
        let now = self.now;
        self.clients[client].begin_batch(now);
        self.until(client, "a batch", |client| client.task.is_none());
        assert_eq!(self.clients[client].batches, before + 1, "a batch that failed");
    }
}
