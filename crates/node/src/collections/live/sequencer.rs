//! Changes of a collection, one group after another.
//!
//! One of the callers makes the changes of all that wait: it resolves which earlier points die, writes one batch of
//! rows, applies it to the delta and tells the callers. There is no thread for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{TryRecvError, sync_channel};

use super::jobs::Job;
use super::slot::{Live, Shared, Slot, Turn, Waiting};
use crate::collections::delta::{Change, Reader, State};
use crate::collections::error::{Error, Kind, Result};
use crate::collections::point::{Manifest, Place, encode_point, id_bytes};
use crate::collections::work::{Deleted, Done, Upserted, Work};
use crate::rows::{BATCH_BYTES_MAX, Batch, ExternalId, Outcome};
use crate::segments::Layout;

impl Slot {
    /// Makes a change, and returns when it is durable and can be found.
    pub(crate) fn change(self: &Arc<Slot>, shared: &Shared, work: Work) -> Result<Done> {
        shared.rows.check_process()?;
        shared.check_writable()?;
        self.note_use(shared);
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
                    self.ask_for_checkpoint(shared);
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

    fn change_group(self: &Arc<Slot>, shared: &Shared, turn: &mut Turn) {
        let group = self.take_group();
        let live = match shared.wake().and_then(|()| self.live_in_turn(shared, turn)) {
            Ok(live) => live,
            Err(e) => return group.iter().for_each(|waiting| answer(waiting, Err(e.clone()))),
        };
        let before = turn.given;
        let mut resolver = Resolver::new((shared, self, &live), before);
        let mut resolved = Vec::with_capacity(group.len());
        for waiting in &group {
            match resolver.resolve(&waiting.work) {
                Ok(work) => resolved.push((waiting, work)),
                Err(e) => {
                    self.is_full.fetch_or(e.kind == Kind::Busy, Ordering::AcqRel);
                    answer(waiting, Err(e.of_collection(&self.name)));
                }
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
            // The newest number may be that of a lost change.
            Outcome::Durable(_) if after.seq == before => {}
            Outcome::Durable(_) => {
                live.delta.apply(after.seq, resolved.iter().flat_map(|(_, work)| work.changes()));
                turn.unknown = None;
                turn.last = turn.last.max(after.seq);
                // Fewer bytes than before are always given.
                let _ = live.lock().resize(live.delta.state().memory_with(&self.spec, 0, 0));
            }
            Outcome::NotWritten(_) | Outcome::NoRoom(_) => {
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

    /// Has a checkpoint made when there are enough points in memory for one.
    fn ask_for_checkpoint(self: &Arc<Slot>, shared: &Shared) {
        let state = self.opened().map(|live| live.delta.state());
        let is_due = state.is_some_and(|state| shared.options.is_checkpoint_due(&self.spec, &state));
        if is_due || self.is_full.load(Ordering::Acquire) {
            shared.jobs.ask(shared, self, Job::Checkpoint);
        }
    }

    /// The rows of all changes of a group.
    fn batch(&self, resolved: &[(&Waiting, Resolved)], after: &Manifest) -> Batch {
        let mut batch = Batch::new();
        for (_, work) in resolved {
            for (at, id) in work.work.ids.iter().enumerate() {
                match work.earlier.get(at).copied().flatten() {
                    Some(Earlier::Tail(place)) => batch.remove(place.tail_key(self.id)),
                    Some(Earlier::Segment { number, ordinal, .. }) => {
                        batch.put_beside(Layout::death_key(self.id, number, ordinal), &[]);
                    }
                    None => {}
                }
                if !work.work.is_delete() {
                    batch.put(work.place(at).tail_key(self.id), &encode_point(id, work.work.vector(at)));
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

/// Where the point of an id is that a change takes the place of.
#[derive(Clone, Copy, Debug)]
enum Earlier {
    /// In the tail.
    Tail(Place),
    /// In a segment.
    Segment {
        /// Number of the segment.
        number: u64,
        /// Place of the id in the order of its ids.
        ordinal: u32,
        /// Its row.
        row: u32,
    },
}

/// A change of which it is known what it does.
struct Resolved<'a> {
    work: &'a Work,
    seq: u64,
    /// Where the points are that die, one for each id.
    earlier: Vec<Option<Earlier>>,
    done: Done,
}

impl<'a> Resolved<'a> {
    fn place(&self, at: usize) -> Place {
        Place { seq: self.seq, ordinal: at as u32 }
    }

    /// What it does to the delta.
    fn changes(&self) -> impl Iterator<Item = Change<'a>> {
        let (work, seq) = (self.work, self.seq);
        let killed = self.earlier.iter().filter_map(|earlier| match *earlier {
            Some(Earlier::Segment { number, row, .. }) => Some(Change::Kill { segment: number, row }),
            _ => None,
        });
        let own = work.ids.iter().enumerate().map(move |(at, id)| match work.is_delete() {
            true => Change::Remove(id),
            false => Change::Put { id, place: Place { seq, ordinal: at as u32 }, vector: work.vector(at) },
        });
        killed.collect::<Vec<_>>().into_iter().chain(own)
    }

    /// The reply to its caller.
    fn reply(&self, outcome: &Outcome) -> Result<Done> {
        match outcome {
            Outcome::Durable(_) => Ok(self.done),
            Outcome::NotWritten(e) => Err(e.clone().into()),
            Outcome::NoRoom(e) => Err(Error::disk_full(e)),
            Outcome::Unknown { error, .. } => Err(Error::unknown(self.seq, "the change", error)),
        }
    }
}

/// Places of ids as the changes of a group leave them, one after another.
struct Resolver<'a> {
    shared: &'a Shared,
    slot: &'a Slot,
    live: &'a Live,
    reader: Reader<'a>,
    changed: HashMap<&'a ExternalId, Option<Earlier>>,
    /// Rows of the delta that the group adds, and bytes of their ids.
    rows: u64,
    ids: u64,
    /// Sequence number of the newest change that is there.
    newest: u64,
    manifest: Manifest,
}

impl<'a> Resolver<'a> {
    fn new((shared, slot, live): (&'a Shared, &'a Slot, &'a Live), given: u64) -> Resolver<'a> {
        let reader = live.delta.reader();
        let manifest = reader.state().manifest();
        let (newest, manifest) = (manifest.seq, Manifest { seq: given, ..manifest });
        Resolver { shared, slot, live, reader, changed: HashMap::new(), rows: 0, ids: 0, newest, manifest }
    }

    fn earlier(&self, id: &ExternalId) -> Result<Option<Earlier>> {
        if let Some(changed) = self.changed.get(id) {
            return Ok(*changed);
        }
        match self.reader.place(id) {
            Some(place) => Ok(Some(Earlier::Tail(place))),
            None => in_segments(self.reader.state(), id),
        }
    }

    /// Resolves a change, and counts it in.
    ///
    /// # Errors
    /// `Busy` when there is no room for its points; `Corrupt` and `Io` of segments. Then it does not count.
    fn resolve(&mut self, work: &'a Work) -> Result<Resolved<'a>> {
        let earlier = work.ids.iter().map(|id| self.earlier(id)).collect::<Result<Vec<_>>>()?;
        let (mut known, mut in_tail, mut tail_bytes, mut bytes) = (0, 0, 0, 0);
        for (id, earlier) in work.ids.iter().zip(&earlier) {
            bytes += id_bytes(id) as u64;
            known += u64::from(earlier.is_some());
            if let Some(Earlier::Tail(_)) = earlier {
                in_tail += 1;
                tail_bytes += id_bytes(id) as u64;
            }
        }
        let count = work.ids.len() as u64;
        let new = count - known;
        if !work.is_delete() {
            self.check_room(count, (self.manifest.tail_points - in_tail, bytes))?;
        }
        let manifest = &mut self.manifest;
        manifest.tail_points -= in_tail;
        manifest.id_bytes -= tail_bytes;
        if work.is_delete() {
            if known > 0 {
                manifest.seq += 1;
                manifest.points -= known;
                self.newest = manifest.seq;
            }
            let seq = self.newest;
            self.changed.extend(work.ids.iter().map(|id| (id, None)));
            let done = Done::Deleted(Deleted { seq, deleted: known, unknown: new });
            return Ok(Resolved { work, seq, earlier, done });
        }
        manifest.seq += 1;
        manifest.points += new;
        manifest.tail_points += count;
        manifest.id_bytes += bytes;
        let seq = manifest.seq;
        self.newest = seq;
        self.rows += count;
        self.ids += bytes;
        let places = work.ids.iter().zip(0..);
        self.changed.extend(places.map(|(id, ordinal)| (id, Some(Earlier::Tail(Place { seq, ordinal })))));
        let done = Done::Upserted(Upserted { seq, new, replaced: known, repeated: work.repeated });
        Ok(Resolved { work, seq, earlier, done })
    }

    /// Checks that so many rows may come to others in memory, and reserves memory for them.
    fn check_room(&mut self, rows: u64, (others, ids): (u64, u64)) -> Result<()> {
        let state = self.reader.state();
        // One change alone always has room.
        let rows_max = self.shared.options.full_rows();
        if others + rows > rows_max && others > 0 {
            return Err(Error::busy(format!(
                "{others} of its points wait to be written into a segment, {rows} would come to them, and at most \
                 {rows_max} may; try again in a second"
            )));
        }
        let bytes = state.memory_with(&self.slot.spec, self.rows + rows, self.ids + ids);
        loop {
            let resized = self.live.lock().resize(bytes);
            match resized {
                // Others that are idle make room, and a checkpoint does before they are opened again.
                Err(_) if self.shared.make_room(self.slot.id) => {
                    self.slot.is_full.store(true, Ordering::Release);
                }
                resized => return resized,
            }
        }
    }
}

/// The segment that has a point of an id, if one has. A point has one place.
fn in_segments(state: &State, id: &ExternalId) -> Result<Option<Earlier>> {
    for own in &state.segments {
        let place = own.segment.find(id)?.filter(|place| own.left.rows().has(place.row));
        if let Some(place) = place {
            let number = own.segment.entry.number;
            return Ok(Some(Earlier::Segment { number, ordinal: place.ordinal, row: place.row }));
        }
    }
    Ok(None)
}
