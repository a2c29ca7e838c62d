//! Changes of a collection, one group after another.
//!
//! One of the callers makes the changes of all that wait: it resolves which earlier points die, writes one batch of
//! rows, applies it to the delta and tells the callers. There is no thread for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{TryRecvError, sync_channel};

use super::chosen::{Taken, to_fold};
use super::jobs::Job;
use super::slot::{Live, Shared, Slot, Turn, Waiting};
use crate::collections::delta::{Change, Reader};
use crate::collections::error::{Error, Kind, Result};
use crate::collections::point::{Manifest, Place, PointBytes, encode_point};
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
    /// A change of payloads or of some vectors is alone: it follows from points that are there.
    fn take_group(&self) -> Vec<Waiting> {
        let mut queue = self.queue();
        let (mut group, mut bytes) = (Vec::<Waiting>::new(), 0);
        while let Some(next) = queue.waiting.front() {
            bytes += next.work.bytes;
            let is_other = group.last().is_some_and(|last| {
                let are_alone = last.work.is_alone() || next.work.is_alone();
                are_alone || last.work.is_delete() != next.work.is_delete()
            });
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
        if let [waiting] = &group[..]
            && let Some(update) = &waiting.work.update
        {
            let done = self.change_payloads(shared, (turn, &live), (&waiting.work, update));
            let is_busy = matches!(&done, Err(e) if e.kind == Kind::Busy);
            self.is_full.fetch_or(is_busy, Ordering::AcqRel);
            return answer(waiting, done.map_err(|e| e.of_collection(&self.name)));
        }
        let mut whole = None;
        if let [waiting] = &group[..]
            && waiting.work.partial.is_some()
        {
            match self.with_all_vectors(&live, &waiting.work) {
                Ok(work) => whole = Some(work),
                Err(e) => return answer(waiting, Err(e.of_collection(&self.name))),
            }
        }
        let before = turn.given;
        let mut resolver = Resolver::new((shared, self, &live), before);
        let mut resolved = Vec::with_capacity(group.len());
        for waiting in &group {
            match resolver.resolve(whole.as_ref().unwrap_or(&waiting.work)) {
                Ok(work) => resolved.push((waiting, work)),
                Err(e) => {
                    self.is_full.fetch_or(e.kind == Kind::Busy, Ordering::AcqRel);
                    answer(waiting, Err(e.of_collection(&self.name)));
                }
            }
        }
        let after = resolver.manifest;
        drop(resolver);
        let changes = resolved.iter().flat_map(|(_, work)| work.changes());
        let batch = || self.batch(&resolved, &after);
        let outcome = self.write_changes(shared, (turn, &live), (before, after.seq), batch, changes);
        for (waiting, work) in resolved {
            answer(waiting, work.reply(&outcome).map_err(|e| e.of_collection(&self.name)));
        }
    }

    /// Writes changes with numbers behind `before` up to `newest`, and applies them once they are durable.
    pub(super) fn write_changes<'a>(
        &self,
        shared: &Shared,
        (turn, live): (&mut Turn, &Live),
        (before, newest): (u64, u64),
        batch: impl FnOnce() -> Batch,
        changes: impl Iterator<Item = Change<'a>>,
    ) -> Outcome {
        // The newest number may be that of a lost change.
        if newest == before {
            return Outcome::Durable(0);
        }
        // Set before anything is written: whatever happens, the delta is built again unless all goes well.
        turn.given = newest;
        turn.unknown = Some(before + 1..=newest);
        let outcome = shared.rows.write(batch());
        match &outcome {
            Outcome::Durable(_) => {
                live.delta.apply(newest, changes);
                turn.unknown = None;
                turn.last = turn.last.max(newest);
                // Fewer bytes than before are always given.
                let _ =
                    live.lock().resize(live.delta.state().memory_with(&self.specs, 0, PointBytes::default()));
            }
            Outcome::NotWritten(_) | Outcome::NoRoom(_) => {
                turn.unknown = None;
                turn.given = before;
                let _ =
                    live.lock().resize(live.delta.state().memory_with(&self.specs, 0, PointBytes::default()));
            }
            Outcome::Unknown { .. } => {}
        }
        outcome
    }

    /// Has a checkpoint made when there are enough points in memory for one, and newer payloads merged when they are
    /// many.
    fn ask_for_checkpoint(self: &Arc<Slot>, shared: &Shared) {
        let state = self.opened().map(|live| live.delta.state());
        if state.as_deref().is_some_and(|state| to_fold(shared, state, &Taken::new()).is_some()) {
            shared.jobs.ask(shared, self, Job::Merge);
        }
        let is_due = state.is_some_and(|state| shared.options.is_checkpoint_due(&self.specs, &state));
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
                    Some(Earlier::Tail(place, _)) => batch.remove(place.tail_key(self.id)),
                    Some(Earlier::Segment { number, ordinal, .. }) => {
                        batch.put_beside(Layout::death_key(self.id, number, ordinal), &[]);
                    }
                    None => {}
                }
                if !work.work.is_delete() && work.is_written.get(at) == Some(&true) {
                    let payload = work.work.payload(at).map(|json| &**json);
                    let value = encode_point(id, work.work.vectors(at), payload);
                    batch.put(work.place(at).tail_key(self.id), &value);
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
    /// In the tail, with the bytes of its id and its payload.
    Tail(Place, PointBytes),
    /// In a segment.
    Segment {
        /// Number of the segment.
        number: u64,
        /// Place of the id in the order of its ids.
        ordinal: u32,
        /// Its row.
        row: u32,
        /// Number of the change that wrote it.
        seq: u64,
    },
}

impl Earlier {
    /// Number of the change that wrote the point.
    fn seq(&self) -> u64 {
        match self {
            Earlier::Tail(place, _) => place.seq,
            Earlier::Segment { seq, .. } => *seq,
        }
    }
}

/// A change of which it is known what it does.
struct Resolved<'a> {
    work: &'a Work,
    seq: u64,
    /// Where the points are that die, one for each id.
    earlier: Vec<Option<Earlier>>,
    /// Which ids it changes at all.
    is_written: Vec<bool>,
    done: Done,
}

/// Numbers of a change.
#[derive(Default)]
struct Counts {
    /// Ids that it changes.
    written: u64,
    /// Those of them that had a point.
    known: u64,
    /// Those of these whose point was in the tail.
    in_tail: u64,
    /// Bytes of the ids and payloads of these.
    tail_bytes: PointBytes,
    /// Bytes of the ids and payloads that are written.
    bytes: PointBytes,
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
        let changed =
            work.ids.iter().enumerate().zip(&self.is_written).filter(|(_, is_written)| **is_written);
        let own = changed.map(move |((at, id), _)| match work.is_delete() {
            true => Change::Remove(id),
            false => {
                let place = Place { seq, ordinal: at as u32 };
                Change::Put { id, place, vectors: work.vectors(at).into(), payload: work.payload(at) }
            }
        });
        killed.collect::<Vec<_>>().into_iter().chain(own)
    }

    /// The reply to its caller.
    fn reply(&self, outcome: &Outcome) -> Result<Done> {
        match outcome {
            Outcome::Durable(_) => Ok(self.done.clone()),
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
    /// Rows of the delta that the group adds, and bytes of their ids and payloads.
    rows: u64,
    bytes: PointBytes,
    /// Sequence number of the newest change that is there.
    newest: u64,
    manifest: Manifest,
}

impl<'a> Resolver<'a> {
    fn new((shared, slot, live): (&'a Shared, &'a Slot, &'a Live), given: u64) -> Resolver<'a> {
        let reader = live.delta.reader();
        let manifest = reader.state().manifest();
        let (newest, manifest) = (manifest.seq, Manifest { seq: given, ..manifest });
        let bytes = PointBytes::default();
        Resolver { shared, slot, live, reader, changed: HashMap::new(), rows: 0, bytes, newest, manifest }
    }

    fn earlier(&self, id: &ExternalId) -> Result<Option<Earlier>> {
        if let Some(changed) = self.changed.get(id) {
            return Ok(*changed);
        }
        match self.reader.place(id) {
            Some((place, bytes)) => Ok(Some(Earlier::Tail(place, bytes))),
            None => {
                let found = self.reader.state().place_in_segments(id)?;
                Ok(found.map(|(own, place)| Earlier::Segment {
                    number: own.segment.entry.number,
                    ordinal: place.ordinal,
                    row: place.row,
                    seq: own.seq_of(&place),
                }))
            }
        }
    }

    /// Resolves a change, and counts it in.
    ///
    /// # Errors
    /// `Busy` when there is no room for its points; `Corrupt` and `Io` of segments. Then it does not count.
    fn resolve(&mut self, work: &'a Work) -> Result<Resolved<'a>> {
        let found = work.ids.iter().enumerate().map(|(at, id)| {
            let earlier = self.earlier(id)?;
            let is_written = work.writes(at, earlier.as_ref().map(Earlier::seq));
            Ok((earlier.filter(|_| is_written), is_written))
        });
        let (earlier, is_written): (Vec<_>, Vec<bool>) =
            found.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let mut of = Counts::default();
        for (at, earlier) in earlier.iter().enumerate().filter(|(at, _)| is_written[*at]) {
            of.written += 1;
            of.bytes += work.bytes_of(at);
            of.known += u64::from(earlier.is_some());
            if let Some(Earlier::Tail(_, own)) = earlier {
                of.in_tail += 1;
                of.tail_bytes += *own;
            }
        }
        if !work.is_delete() && of.written > 0 {
            self.check_room(of.written, (self.manifest.tail_points - of.in_tail, of.bytes))?;
        }
        let seq = self.count(&of, work.is_delete());
        let skipped =
            work.ids.iter().zip(&is_written).filter(|(_, is_written)| !**is_written).map(|(id, _)| id);
        let done = match work.is_delete() {
            true => {
                Done::Deleted(Deleted { seq, deleted: of.known, unknown: work.ids.len() as u64 - of.known })
            }
            false => Done::Upserted(Upserted {
                seq,
                new: of.written - of.known,
                replaced: of.known,
                repeated: work.repeated,
                skipped: skipped.cloned().collect(),
            }),
        };
        for (at, id) in work.ids.iter().enumerate().filter(|(at, _)| is_written[*at]) {
            let place = Place { seq, ordinal: at as u32 };
            let now = (!work.is_delete()).then(|| Earlier::Tail(place, work.bytes_of(at)));
            self.changed.insert(id, now);
        }
        Ok(Resolved { work, seq, earlier, is_written, done })
    }

    /// Counts a change in. Returns its number; the newest one where it changes nothing.
    fn count(&mut self, of: &Counts, is_delete: bool) -> u64 {
        if of.written == 0 {
            return self.newest;
        }
        let manifest = &mut self.manifest;
        manifest.seq += 1;
        manifest.tail_points -= of.in_tail;
        manifest.bytes -= of.tail_bytes;
        if is_delete {
            manifest.points -= of.known;
        } else {
            manifest.points += of.written - of.known;
            manifest.tail_points += of.written;
            manifest.bytes += of.bytes;
            self.rows += of.written;
            self.bytes += of.bytes;
        }
        self.newest = manifest.seq;
        self.newest
    }

    /// Checks that so many rows may come to others in memory, and reserves memory for them.
    fn check_room(&mut self, rows: u64, (others, bytes): (u64, PointBytes)) -> Result<()> {
        let state = self.reader.state();
        // One change alone always has room.
        let rows_max = self.shared.options.full_rows();
        if others + rows > rows_max && others > 0 {
            return Err(Error::busy(format!(
                "{others} of its points wait to be written into a segment, {rows} would come to them, and at most \
                 {rows_max} may; try again in a second"
            )));
        }
        let mut all = self.bytes;
        all += bytes;
        let bytes = state.memory_with(&self.slot.specs, self.rows + rows, all);
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
