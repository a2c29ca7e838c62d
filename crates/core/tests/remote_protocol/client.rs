//! A compute node that runs batches, inserts, deletes and rebuilds, one after another.

use stratann_core::remote_protocol::{
    Answer, Delete, Deleted, Fault, Fold, Freed, Groups, Headers, Insert, Inserted, Line, NewVector, Rebuild,
    RebuildLimits, Rebuilt, Recheck, Seen, Step, Truncate,
};

use crate::history::History;
use crate::memory::{Dice, Memory, Request};
use crate::storm::Counts;
use crate::world::{self, cluster_of, vector_of};
use stratann_core::remote_protocol::Places;

pub(crate) enum Task {
    Headers(Headers),
    Loads(Seen),
    Recheck(Seen, Vec<Answer>, Recheck),
    Insert(Insert, (u64, usize), u32),
    Delete(Delete, (u64, usize)),
    Rebuild(Box<Rebuild>, u32),
    Truncate(Truncate),
    Fold(Box<Fold>),
}

pub(crate) struct Client {
    pub(crate) number: u16,
    pub(crate) seen: Groups,
    pub(crate) line: Line,
    pub(crate) task: Option<Task>,
    request: Option<Request>,
    batch_began: u64,
    retries: u32,
    /// Steps of the world that it stands still for.
    pub(crate) sleeps: u64,
    /// A rebuild that an insert needs.
    needed: Option<u32>,
    pub(crate) capacity: u32,
    pub(crate) patience: u32,
    pub(crate) batches: u64,
}

pub(crate) struct Shared<'a> {
    pub(crate) places: &'a Places,
    pub(crate) memory: &'a mut Memory,
    pub(crate) history: &'a mut History,
    pub(crate) dice: &'a mut Dice,
    pub(crate) counts: &'a mut Counts,
    pub(crate) now: u64,
}

impl Client {
    pub(crate) fn new(number: u16, capacity: u32, patience: u32) -> Client {
        Client {
            number,
            seen: Groups::default(),
            line: Line::new(number),
            task: None,
            request: None,
            batch_began: 0,
            retries: 0,
            sleeps: 0,
            needed: None,
            capacity,
            patience,
            batches: 0,
        }
    }

    pub(crate) fn begin_batch(&mut self, now: u64) {
        self.batch_began = now;
        self.task = Some(Task::Headers(Headers::new(self.seen.clone())));
    }

    pub(crate) fn begin_rebuild(&mut self, group: u32) {
        let limits = RebuildLimits { rebuilder: self.number, patience: self.patience, group_bytes: 8192 };
        self.task = Some(Task::Rebuild(Box::new(Rebuild::new(limits, group, &self.seen)), group));
    }

    pub(crate) fn begin_delete(&mut self, id: u64, history: &mut History, now: u64) {
        let change = history.begin(id, None, now);
        self.task = Some(Task::Delete(Delete::new(id, &self.seen), change));
    }

    pub(crate) fn begin_fold(&mut self, is_forced: bool) {
        self.task = Some(Task::Fold(Box::new(Fold::new(self.number, self.patience, is_forced, &self.seen))));
    }

    /// Counts the rows of its last batch.
    pub(crate) fn begin_count(&mut self) {
        self.task = Some(Task::Fold(Box::new(Fold::count(&self.seen))));
    }

    pub(crate) fn begin_truncate(&mut self) {
        self.task = Some(Task::Truncate(Truncate::new(&self.seen)));
    }

    fn choose(&mut self, shared: &mut Shared<'_>) {
        if self.seen.groups.is_empty() {
            return self.begin_batch(shared.now);
        }
        match shared.dice.below(10) {
            0..=2 => self.begin_batch(shared.now),
            3..=6 => self.begin_insert(shared),
            7 | 8 => {
                let ids = shared.history.ids();
                let id = ids[shared.dice.below(ids.len() as u64) as usize];
                self.begin_delete(id, shared.history, shared.now);
            }
            _ if shared.dice.one_in(4) => self.begin_truncate(),
            _ if shared.dice.one_in(2) => self.begin_fold(shared.dice.one_in(16)),
            _ => self.begin_rebuild(shared.dice.below(world::GROUPS) as u32),
        }
    }

    fn begin_insert(&mut self, shared: &mut Shared<'_>) {
        let is_new = shared.dice.one_in(2);
        let ids = shared.history.ids();
        let some = ids[shared.dice.below(ids.len() as u64) as usize];
        let id = if is_new { shared.dice.below(u64::MAX) } else { some };
        let value = shared.dice.below(u64::MAX);
        let cluster = cluster_of(value);
        let new = NewVector {
            id,
            cluster,
            group: cluster / 2,
            side: (cluster % 2) as usize,
            inverse_norm: 1.0,
            vector: vector_of(id, value),
            is_new,
        };
        let change = shared.history.begin(id, Some(value), shared.now);
        self.task = Some(Task::Insert(Insert::new(new, &self.seen), change, 0));
    }

    /// One step: of an operation, or of a machine.
    pub(crate) fn step(&mut self, shared: &mut Shared<'_>, is_free: bool) {
        let mut answers = Vec::new();
        if let Some(request) = &mut self.request {
            match request.step(shared.memory, shared.dice) {
                Some(all) => answers = all,
                None => return,
            }
            self.request = None;
        }
        if self.task.is_none() {
            if !is_free {
                return;
            }
            match self.needed.take() {
                Some(group) => self.begin_rebuild(group),
                None => self.choose(shared),
            }
        }
        let task = self.task.take().expect("a task");
        self.advance(task, answers, shared);
    }

    fn go_on<T>(&mut self, step: Step<T>, task: Task, shared: &mut Shared<'_>) -> Option<(T, Task)> {
        match step {
            Step::Ask(ops) => {
                self.request = Some(Request::new(ops, shared.dice));
                self.task = Some(task);
                None
            }
            Step::Pause => {
                self.sleeps = 20 + shared.dice.below(200);
                self.task = Some(task);
                None
            }
            Step::Done(done) => Some((done, task)),
        }
    }

    fn advance(&mut self, mut task: Task, answers: Vec<Answer>, shared: &mut Shared<'_>) {
        let places = shared.places;
        match &mut task {
            Task::Headers(headers) => {
                let step = headers.step(places, &mut self.line, answers);
                if let Some((done, _)) = self.go_on(step, task, shared) {
                    match done {
                        Ok(seen) => {
                            let ops = world::loads(places, &seen.groups);
                            self.request = Some(Request::new(ops, shared.dice));
                            self.task = Some(Task::Loads(seen));
                        }
                        Err(fault) => self.fail(fault, shared),
                    }
                }
            }
            Task::Loads(seen) => {
                if answers.iter().any(|answer| matches!(answer, Answer::Lost(_))) {
                    return;
                }
                let (_, is_suspect) = world::found(&seen.groups, answers.clone());
                let seen = seen.clone();
                if is_suspect {
                    let groups: Vec<u32> = (0..world::GROUPS as u32).collect();
                    let recheck = Recheck::new(&seen.groups, &groups);
                    self.advance(Task::Recheck(seen, answers, recheck), Vec::new(), shared);
                } else {
                    self.finish_batch(seen, answers, shared);
                }
            }
            Task::Recheck(_, _, recheck) => {
                let step = recheck.step(places, &self.line, answers);
                match self.go_on(step, task, shared) {
                    Some((Ok(()), Task::Recheck(seen, loaded, _))) => self.finish_batch(seen, loaded, shared),
                    Some((Err(Fault::Moved), Task::Recheck(seen, ..))) => {
                        self.retries += 1;
                        shared.counts.moved += 1;
                        assert!(self.retries < 50, "a batch that never ends");
                        self.seen = seen.groups;
                        self.task = Some(Task::Headers(Headers::new(self.seen.clone())));
                    }
                    Some((Err(fault), _)) => self.fail(fault, shared),
                    _ => {}
                }
            }
            Task::Insert(insert, change, waits) => {
                let step = insert.step(places, answers);
                let (change, waits) = (*change, *waits);
                if let Some((done, task)) = self.go_on(step, task, shared) {
                    self.take_insert(done, task, change, waits, shared);
                }
            }
            Task::Delete(delete, change) => {
                let change = *change;
                let step = delete.step(places, answers);
                match self.go_on(step, task, shared) {
                    Some((Ok(Deleted::Done { .. }), _)) => {
                        shared.counts.deleted += 1;
                        shared.history.acknowledge(change, shared.now);
                    }
                    Some((Ok(Deleted::LogFull), _)) => self.log_full(shared),
                    Some((Err(fault), _)) => self.fail(fault, shared),
                    None => {}
                }
            }
            Task::Rebuild(rebuild, group) => {
                let group = *group;
                let step = rebuild.step(places, answers);
                if let Some((done, task)) = self.go_on(step, task, shared) {
                    self.take_rebuild(done, task, group, shared);
                }
            }
            Task::Fold(fold) => {
                let step = fold.step(places, &world::ListIds, answers);
                match self.go_on(step, task, shared) {
                    Some((Ok(Freed::Room), _)) => shared.counts.folded += 1,
                    Some((Ok(Freed::Counted { rows, is_busy }), _)) => {
                        shared.counts.rows = if is_busy { u64::MAX } else { rows };
                    }
                    Some((Err(fault), _)) => self.fail(fault, shared),
                    None => {}
                }
            }
            Task::Truncate(truncate) => {
                let step = truncate.step(places, answers);
                match self.go_on(step, task, shared) {
                    Some((Ok(freed), _)) => shared.counts.freed += freed,
                    Some((Err(fault), _)) => self.fail(fault, shared),
                    None => {}
                }
            }
        }
    }

    fn take_insert(
        &mut self,
        done: Result<Inserted, Fault>,
        task: Task,
        change: (u64, usize),
        waits: u32,
        shared: &mut Shared<'_>,
    ) {
        let Task::Insert(insert, ..) = task else { unreachable!("an insert") };
        match done {
            Ok(Inserted::Done { .. }) => {
                shared.counts.inserted += 1;
                shared.history.acknowledge(change, shared.now);
            }
            Ok(Inserted::Full { .. } | Inserted::Sealed { .. }) if waits < 20 && shared.dice.below(4) > 0 => {
                self.sleeps = 50 + shared.dice.below(400);
                self.task = Some(Task::Insert(insert, change, waits + 1));
            }
            // Whoever gives up rebuilds the group, as of its next batch.
            Ok(Inserted::Full { .. } | Inserted::Sealed { .. }) => {
                shared.counts.full += 1;
                self.begin_batch(shared.now);
                self.needed = Some(shared.dice.below(world::GROUPS) as u32);
            }
            Ok(Inserted::LogFull) => self.log_full(shared),
            Err(fault) => self.fail(fault, shared),
        }
    }

    /// Most of those that find the log full free it.
    fn log_full(&mut self, shared: &mut Shared<'_>) {
        shared.counts.log_full += 1;
        if shared.dice.below(4) > 0 {
            self.begin_fold(false);
        }
    }

    fn take_rebuild(
        &mut self,
        done: Result<Rebuilt, Fault>,
        task: Task,
        group: u32,
        shared: &mut Shared<'_>,
    ) {
        let Task::Rebuild(mut rebuild, _) = task else { unreachable!("a rebuild") };
        match done {
            Ok(Rebuilt::Build(contents)) => {
                rebuild.built(world::build(group, &contents, self.capacity));
                self.task = Some(Task::Rebuild(rebuild, group));
            }
            Ok(Rebuilt::Published { lost_bytes, damaged, .. }) => {
                assert_eq!(damaged, 0, "records that do not match their checksums");
                shared.counts.rebuilt += 1;
                shared.counts.lost_spaces += u64::from(lost_bytes > 0);
            }
            Ok(Rebuilt::Replaced) => shared.counts.replaced += 1,
            Ok(Rebuilt::NoSpace) => shared.counts.no_space += 1,
            Ok(Rebuilt::TooLarge { group_bytes }) => panic!("a group of {group_bytes} bytes"),
            Err(fault) => self.fail(fault, shared),
        }
    }

    fn fail(&mut self, fault: Fault, shared: &mut Shared<'_>) {
        assert!(
            matches!(fault, Fault::Lost(_) | Fault::Moved),
            "client {} at {}: {fault:?}",
            self.number,
            shared.now
        );
        shared.counts.faults += 1;
    }

    fn finish_batch(&mut self, seen: Seen, answers: Vec<Answer>, shared: &mut Shared<'_>) {
        let (found, _) = world::found(&seen.groups, answers);
        shared.counts.found = found.values().map(|copies| copies.len() as u64).sum();
        let place = format!("client {}", self.number);
        shared.history.check(&found, self.batch_began, shared.now, &place);
        shared.counts.batches += 1;
        self.batches += 1;
        self.retries = 0;
        self.seen = seen.groups;
    }
}
