//! Many compute nodes at once, in an order that a seed decides.

use stratann_core::remote::Places;

use crate::client::{Client, Shared};
use crate::history::History;
use crate::memory::{Dice, Memory};
use crate::world::{self, Settings};

/// What happened in a storm.
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
}

/// What may happen in a storm.
#[derive(Default)]
pub(crate) struct FaultModel {
    pub(crate) clients: u16,
    pub(crate) steps: u64,
    pub(crate) deaths: bool,
    pub(crate) stops: bool,
    pub(crate) loses_first_copy: bool,
    /// Mirrors are lost for a while now and then, and rebuilders die while a mirror has an older version.
    pub(crate) loses_mirror: bool,
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

    /// Whether the mirror has an older version of a group than the first copy.
    fn mirror_lags(&self) -> bool {
        (0..world::GROUPS as u32).any(|group| {
            let at = self.places.nodes[0].words_at(group) as usize;
            let mirror = usize::from(self.places.mirrors[0]);
            self.memory.nodes[0][at..at + 8] != self.memory.nodes[mirror][at..at + 8]
        })
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
            if faults.loses_mirror {
                for &mirror in &self.places.mirrors {
                    let is_lost = self.memory.is_dead[usize::from(mirror)];
                    let changes = self.dice.one_in(if is_lost { 100 } else { 2000 });
                    self.memory.is_dead[usize::from(mirror)] = is_lost != changes;
                }
                let lags = self.mirror_lags();
                if self.clients[client].is_rebuilding() && self.dice.one_in(if lags { 10 } else { 400 }) {
                    self.clients[client] = self.newcomer();
                    self.counts.died += 1;
                }
            }
            self.step(client, true);
        }
        if faults.loses_first_copy {
            let first_copies = self.places.nodes.len();
            let is_dead = (0..self.memory.nodes.len()).map(|node| node < first_copies);
            self.memory.is_dead = is_dead.collect();
        } else {
            self.settle();
        }
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
        for group in 0..world::GROUPS as u32 {
            self.clients[last].begin_rebuild(group);
            self.until(last, "a rebuild", |client| client.task.is_none());
        }
        self.batch(last);
        self.clients[last].begin_truncate();
        self.until(last, "freeing tombstones", |client| client.task.is_none());
        self.batch(last);
    }

    fn batch(&mut self, client: usize) {
        let before = self.clients[client].batches;
        let now = self.now;
        self.clients[client].begin_batch(now);
        self.until(client, "a batch", |client| client.task.is_none());
        assert_eq!(self.clients[client].batches, before + 1, "a batch that failed");
    }

    /// Deletes all that was loaded, and loses the mirror for the moment in which the last rebuild publishes there. Then
    /// all places of tombstones are used again.
    pub(crate) fn lose_mirror_in_a_rebuild(&mut self, group: u32) {
        self.batch(0);
        for id in 0..self.settings.members {
            self.delete(id);
        }
        self.batch(0);
        let other = 1 - group;
        self.clients[0].begin_rebuild(other);
        self.until(0, "a rebuild", |client| client.task.is_none());
        let version_at = self.miss_a_rebuild(group);
        assert!(self.counts.faults == 1 && self.memory.is_dead[1], "the mirror was lost in time");
        assert_ne!(self.memory.nodes[0][version_at..][..8], self.memory.nodes[1][version_at..][..8]);
        self.memory.is_dead[1] = false;
        self.batch(0);
        self.clients[0].begin_truncate();
        self.until(0, "freeing tombstones", |client| client.task.is_none());
        self.batch(0);
        // Of ids that never were.
        (0..self.settings.tombstones).for_each(|id| self.delete(1000 + id));
    }

    /// Rebuilds a group, whose mirror is lost once the new version counts. Returns where the version is.
    fn miss_a_rebuild(&mut self, group: u32) -> usize {
        let version_at = self.places.nodes[0].words_at(group) as usize;
        let version = |memory: &Memory| memory.nodes[0][version_at..version_at + 8].to_vec();
        let before = version(&self.memory);
        self.clients[0].begin_rebuild(group);
        while self.clients[0].task.is_some() {
            self.memory.is_dead[1] = version(&self.memory) != before;
            self.step(0, false);
        }
        version_at
    }

    /// A rebuilder dies after `steps` steps when the mirror has missed what another one published. Others go on, and
    /// use free space and places of tombstones again. Returns whether the rebuilder had ended before.
    pub(crate) fn die_in_a_second_rebuild(&mut self, group: u32, steps: u64, truncates: bool) -> bool {
        self.batch(0);
        (0..self.settings.members / 2).for_each(|id| self.delete(id));
        self.batch(0);
        let other = 1 - group;
        self.rebuild(other);
        self.miss_a_rebuild(group);
        self.memory.is_dead[1] = false;
        self.batch(0);
        (0..self.settings.members / 4).for_each(|id| self.delete(self.settings.members / 2 + id));
        self.batch(0);
        self.clients[0].begin_rebuild(group);
        let mut is_ended = false;
        for _ in 0..steps {
            is_ended = self.clients[0].task.is_none();
            if is_ended {
                break;
            }
            self.step(0, false);
        }
        self.clients[0] = self.newcomer();
        for round in 0..6 {
            self.batch(0);
            self.rebuild(if round == 3 { group } else { other });
            if truncates {
                self.clients[0].begin_truncate();
                self.until(0, "freeing tombstones", |client| client.task.is_none());
            }
            self.batch(0);
            (0..self.settings.tombstones / 6).for_each(|id| self.try_delete(1000 * round + 1000 + id));
            self.read_mirror();
            self.clients.pop();
        }
        is_ended
    }

    fn rebuild(&mut self, group: u32) {
        self.clients[0].begin_rebuild(group);
        self.until(0, "a rebuild", |client| client.task.is_none());
    }

    /// Deletes, unless the log is full.
    fn try_delete(&mut self, id: u64) {
        let now = self.now;
        self.clients[0].begin_delete(id, &mut self.history, now);
        self.until(0, "a delete", |client| client.task.is_none());
    }

    fn delete(&mut self, id: u64) {
        let now = self.now;
        self.clients[0].begin_delete(id, &mut self.history, now);
        let before = self.counts.deleted;
        self.until(0, "a delete", |client| client.task.is_none());
        assert_eq!(self.counts.deleted, before + 1);
    }

    /// A new compute node reads the mirror.
    pub(crate) fn read_mirror(&mut self) {
        let mut fresh = self.newcomer();
        fresh.on_mirror = true;
        self.clients.push(fresh);
        self.batch(self.clients.len() - 1);
    }
}
