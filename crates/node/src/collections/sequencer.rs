//! Changes of a collection, one group after another.
//!
//! One of the callers makes the changes of all that wait: it resolves which earlier points die, writes one batch of
//! rows, applies it to the delta and tells the callers. There is no thread for it.

use std::collections::HashMap;
use std::sync::mpsc::{TryRecvError, sync_channel};

use super::budget::Reserved;
use super::delta::{Change, Reader};
use super::error::{Error, Result};
use super::point::{Manifest, Place, encode_point, id_bytes, place_key};
use super::slot::{Live, Shared, Slot, Turn, Waiting};
use super::spec::Spec;
use super::work::{Deleted, Done, Upserted, Work};
use crate::rows::{BATCH_BYTES_MAX, Batch, ExternalId, Outcome};

/// Most points of a collection without segments. All are in memory, and each search compares all: at this number it
/// reads 8 MB of vectors of 128 f32, and more would make searches slower in proportion.
pub const POINTS_MAX: u64 = 16_000;

impl Slot {
    /// Makes a change, and returns when it is durable and can be found.
    pub(super) fn change(&self, shared: &Shared, work: Work) -> Result<Done> {
        shared.rows.check_process()?;
        let (reply, done) = sync_channel(1);
        let mut queue = self.queue();
        queue.waiting.push_back(Waiting { work, reply });
        loop {
            match done.try_recv() {
                Ok(done) => return done,
                Err(TryRecvError::Disconnected) => {
                    let why = stratann_storage::Error::corrupt("the thread that wrote it ended");
                    return Err(Error::unknown(0, "the change", &why).of_collection(&self.name));
                }
                Err(TryRecvError::Empty) if queue.is_led => {
                    queue = self.answered.wait(queue).unwrap_or_else(|e| e.into_inner());
                }
                Err(TryRecvError::Empty) => {
                    queue.is_led = true;
                    drop(queue);
                    let led = Led(self);
                    self.change_group(shared, &mut self.turn());
                    drop(led);
                    queue = self.queue();
                }
            }
        }
    }

    /// Changes that wait, as many as a batch may have. Deletes are not with others, since a full disk admits only them.
    fn take_group(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        let (mut group, mut bytes) = (Vec::<Waiting>::new(), 0);
        while let Some(next) = queue.waiting.front() {
            bytes += next.work.bytes;
            let is_other = group.last().is_some_and(|last| last.work.is_delete() != next.work.is_delete());
            if !group.is_empty() && (is_other || bytes > BATCH_BYTES_MAX) {
                break;
            }
            group.extend(queue.waiting.pop_front());
        }
        group
    }

    fn change_group(&self, shared: &Shared, turn: &mut Turn) {
        let group = self.take_group();
        let live = match shared.wake().and_then(|()| self.live_in_turn(shared, turn)) {
            Ok(live) => live,
            Err(e) => return group.iter().for_each(|waiting| answer(waiting, Err(e.clone()))),
        };
        let before = turn.given;
        let mut resolver = Resolver::new(&live, &self.spec, before);
        let mut resolved = Vec::with_capacity(group.len());
        for waiting in &group {
            match resolver.resolve(&waiting.work) {
                Ok(work) => resolved.push((waiting, work)),
                Err(e) => answer(waiting, Err(e.of_collection(&self.name))),
            }
        }
        let after = resolver.manifest;
        drop(resolver);
        let outcome = match after.seq > before {
            true => {
                // Set before anything is written: whatever happens, the delta is built again unless all goes well.
                turn.given = after.seq;
                turn.unknown = Some(before + 1..=after.seq);
                shared.rows.write(self.batch(&resolved, &after))
            }
            false => Outcome::Durable(0),
        };
        match &outcome {
            Outcome::Durable(_) => {
                live.delta.apply(after.seq, resolved.iter().flat_map(|(_, work)| work.changes()));
                turn.unknown = None;
                turn.last = turn.last.max(after.seq);
                // Fewer bytes than before are always given.
                let _ = live.lock().resize(live.delta.state().memory_with(&self.spec, 0, 0));
            }
            Outcome::NotWritten(_) => {
                turn.unknown = None;
                turn.given = before;
                let _ = live.lock().resize(live.delta.state().memory_with(&self.spec, 0, 0));
            }
            Outcome::Unknown { .. } => {}
        }
        for (waiting, work) in resolved {
            answer(waiting, work.reply(&outcome).map_err(|e| e.of_collection(&self.name)));
        }
    }

    /// The rows of all changes of a group.
    fn batch(&self, resolved: &[(&Waiting, Resolved)], after: &Manifest) -> Batch {
        let mut batch = Batch::new();
        for (_, work) in resolved {
            for (at, id) in work.work.ids.iter().enumerate() {
                let earlier = work.earlier.get(at).copied().flatten();
                if let Some(earlier) = earlier {
                    batch.remove(earlier.tail_key(self.id));
                }
                if !work.work.is_delete() {
                    let place = work.place(at);
                    batch.put(place.tail_key(self.id), &encode_point(id, work.work.vector(at)));
                    batch.put(place_key(self.id, id), &place.encode());
                } else if earlier.is_some() {
                    batch.remove(place_key(self.id, id));
                }
            }
        }
        batch.put_beside(Manifest::key(self.id), &after.encode());
        batch
    }
}

/// The time in which one caller makes the changes of all. However it ends, the others are woken.
struct Led<'a>(&'a Slot);

impl Drop for Led<'_> {
    fn drop(&mut self) {
        self.0.queue().is_led = false;
        self.0.answered.notify_all();
    }
}

fn answer(waiting: &Waiting, done: Result<Done>) {
    // A caller that is gone needs no answer.
    let _ = waiting.reply.send(done);
}

/// A change of which it is known what it does.
struct Resolved<'a> {
    work: &'a Work,
    seq: u64,
    /// Places of the points that die, one for each id.
    earlier: Vec<Option<Place>>,
    done: Done,
}

impl<'a> Resolved<'a> {
    fn place(&self, at: usize) -> Place {
        Place { seq: self.seq, ordinal: at as u32 }
    }

    /// What it does to the delta.
    fn changes(&self) -> impl Iterator<Item = Change<'a>> {
        let (work, seq) = (self.work, self.seq);
        work.ids.iter().enumerate().map(move |(at, id)| match work.is_delete() {
            true => Change::Remove(id),
            false => Change::Put { id, place: Place { seq, ordinal: at as u32 }, vector: work.vector(at) },
        })
    }

    /// The reply to its caller.
    fn reply(&self, outcome: &Outcome) -> Result<Done> {
        match outcome {
            Outcome::Durable(_) => Ok(self.done),
            Outcome::NotWritten(e) => Err(e.clone().into()),
            Outcome::Unknown { error, .. } => Err(Error::unknown(self.seq, "the change", error)),
        }
    }
}

/// Places of ids as the changes of a group leave them, one after another.
struct Resolver<'a> {
    spec: &'a Spec,
    live: &'a Live,
    reader: Reader<'a>,
    changed: HashMap<&'a ExternalId, Option<Place>>,
    /// Rows of the delta that the group adds, and bytes of their ids.
    rows: u64,
    ids: u64,
    manifest: Manifest,
}

impl<'a> Resolver<'a> {
    fn new(live: &'a Live, spec: &'a Spec, given: u64) -> Resolver<'a> {
        let reader = live.delta.reader();
        let state = reader.state();
        let manifest = Manifest { seq: given, points: state.points(), id_bytes: state.id_bytes() };
        Resolver { spec, live, reader, changed: HashMap::new(), rows: 0, ids: 0, manifest }
    }

    fn earlier(&self, id: &ExternalId) -> Option<Place> {
        self.changed.get(id).copied().unwrap_or_else(|| self.reader.place(id))
    }

    /// Resolves a change, and counts it in.
    ///
    /// # Errors
    /// `Busy` when there is no room for its points; then it does not count.
    fn resolve(&mut self, work: &'a Work) -> Result<Resolved<'a>> {
        let earlier: Vec<_> = work.ids.iter().map(|id| self.earlier(id)).collect();
        let (mut known, mut known_bytes, mut bytes) = (0, 0, 0);
        for (id, earlier) in work.ids.iter().zip(&earlier) {
            bytes += id_bytes(id) as u64;
            known += u64::from(earlier.is_some());
            known_bytes += if earlier.is_some() { id_bytes(id) as u64 } else { 0 };
        }
        let count = work.ids.len() as u64;
        let new = count - known;
        if work.is_delete() {
            let seq = self.manifest.seq + u64::from(known > 0);
            self.manifest.seq = seq;
            self.manifest.points -= known;
            self.manifest.id_bytes -= known_bytes;
            self.changed.extend(work.ids.iter().map(|id| (id, None)));
            let done = Done::Deleted(Deleted { seq, deleted: known, unknown: new });
            return Ok(Resolved { work, seq, earlier, done });
        }
        self.check_room(new, count, bytes)?;
        let seq = self.manifest.seq + 1;
        self.rows += count;
        self.ids += bytes;
        self.manifest.seq = seq;
        self.manifest.points += new;
        self.manifest.id_bytes += bytes - known_bytes;
        let places = work.ids.iter().enumerate();
        self.changed.extend(places.map(|(at, id)| (id, Some(Place { seq, ordinal: at as u32 }))));
        let done = Done::Upserted(Upserted { seq, new, replaced: known, repeated: work.repeated });
        Ok(Resolved { work, seq, earlier, done })
    }

    /// Checks the number of points, and reserves memory for rows.
    fn check_room(&mut self, new: u64, rows: u64, ids: u64) -> Result<()> {
        if self.manifest.points + new > POINTS_MAX {
            return Err(Error::busy(format!(
                "it is full: it has {} points, {new} are new, and it takes {POINTS_MAX}; delete points, or use \
                 another collection",
                self.manifest.points
            )));
        }
        let bytes = self.reader.state().memory_with(self.spec, self.rows + rows, self.ids + ids);
        let mut reserved: std::sync::MutexGuard<'_, Reserved> = self.live.lock();
        reserved.resize(bytes)
    }
}
