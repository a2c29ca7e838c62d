//! Checkpoints and merges: segments are made beside the collection, and take their place in one small write.
//!
//! What changes while a segment is made is found again when it is published: rows that died meanwhile are dead rows of
//! the new segment from its first moment on.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use stratann_core::sieve::Sieve;
use stratann_params::IndexKind;
use stratann_storage::{ErrorKind, Progress};

use super::chosen::{Chosen, Taken, changed, died, sized, to_fold};
use super::jobs::{Job, beside_searches};
use super::opening::{due, minor_due};
use super::slot::{Live, Shared, Slot, Turn};
use crate::collections::delta::{SegmentState, State};
use crate::collections::error::{Error, Kind, Result};
use crate::collections::point::{Manifest, Place, PointBytes};
use crate::rows::{Batch, ExternalId, Key, Outcome, RowKind};
use crate::segments::{
    self, Curves, LARGEST, Layout, Merged, Newer, Overlay, Point, Segment, Source, Unfinished, folder_of,
};

/// Checkpoints that are not merged, at most: each is a part that every query searches.
const CHECKPOINTS_MAX: usize = 12;

/// Checkpoints from which on a merge does not wait for idle cores.
const CHECKPOINTS_URGENT: usize = 6;

/// Dead rows of a segment that are written before it is published, in one batch.
const DEATHS_AT_ONCE: usize = 50_000;

/// Most merges of one call that makes one segment of all.
const MERGES_AT_ONCE: usize = 4;

/// Bytes of newer payloads that are written before a segment is published, in one batch, but for the last one.
const NEWER_AT_ONCE: u64 = 4 << 20;

/// A segment that waits to be published, and its rows that are dead by now.
struct New {
    segment: Arc<Segment>,
    /// Places in the order of ids, ascending.
    dead: Vec<u32>,
}

impl Slot {
    /// Writes the points in memory into a segment when there are enough of them.
    pub(crate) fn checkpoint_due(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<()> {
        let state = self.live(shared)?.delta.state();
        if self.is_unswept.swap(false, Ordering::AcqRel) {
            self.reclaim(shared)?;
        }
        if state.checkpoints() >= CHECKPOINTS_MAX {
            // Merges are behind. Points wait in memory, and changes are refused once there are too many.
            self.ask_for_merges(shared);
        } else if self.is_full.swap(false, Ordering::AcqRel)
            || shared.options.is_checkpoint_due(&self.specs, &state)
        {
            self.checkpoint(shared, progress)?;
        }
        Ok(())
    }

    /// Writes all points in memory into a segment.
    pub(crate) fn checkpoint(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<()> {
        shared.check_writable()?;
        let _running = self.running(Job::Checkpoint);
        let (live, sealed, number) = {
            let mut turn = self.turn();
            shared.wake()?;
            let live = self.live_in_turn(shared, &mut turn)?;
            if live.delta.state().rows() == 0 {
                return Ok(());
            }
            let number = turn.begin_segment();
            (live.clone(), live.delta.seal(), number)
        };
        let made = self.checkpoint_of(shared, (&live, &sealed, number), progress);
        if made.is_err() {
            live.delta.unseal();
        }
        self.end_segment(shared, (number, &[]), made.is_err());
        made.map_err(|e| e.of_collection(&self.name))?;
        self.copy_layout(shared, number + 1);
        self.renew_coarse();
        self.reclaim(shared)?;
        self.ask_for_merges(shared);
        Ok(())
    }

    fn checkpoint_of(
        self: &Arc<Slot>,
        shared: &Shared,
        (live, sealed, number): (&Arc<Live>, &State, u64),
        progress: &dyn Progress,
    ) -> Result<()> {
        let new = self.segment_of(shared, sealed, number, progress)?;
        self.write_early_deaths(shared, number, &[])?;
        let mut turn = self.turn();
        let now = self.live_in_turn(shared, &mut turn)?;
        if !Arc::ptr_eq(live, &now) {
            return Err(Error::busy("the collection was opened again meanwhile; try again"));
        }
        let state = live.delta.state();
        let Some(segment) = new else {
            let after = without_tail(&state, sealed, 0);
            let layout = turn.layout(&state, sealed.seq);
            self.publish(shared, &mut turn, (&layout, &after, Batch::new()))?;
            live.delta.take_sealed_out(sealed.seq, None);
            return Ok(());
        };
        let mut dead = Vec::new();
        for id in sealed.died_until(&state) {
            let place = segment.find(id)?;
            let place = place.ok_or_else(|| Error::corrupt("a segment lacks a point that it was made of"))?;
            dead.push(place.ordinal);
        }
        dead.sort_unstable();
        let new = New { segment, dead };
        let batch = self.write_deaths(shared, (new.segment.entry.number, &new.dead), &[])?;
        let mut layout = turn.layout(&state, sealed.seq);
        layout.segments.push(new.segment.entry.clone());
        let left = new.segment.rows() - new.dead.len() as u64;
        let after = without_tail(&state, sealed, left);
        // Once it is published nothing fails, or a segment that is named would be removed.
        let new = new.into_state(std::iter::empty())?;
        self.publish(shared, &mut turn, (&layout, &after, batch))?;
        live.delta.take_sealed_out(sealed.seq, Some(new));
        let _ = live.lock().resize(live.delta.state().memory_with(&self.specs, 0, PointBytes::default()));
        Ok(())
    }

    /// The segment of sealed points; `None` where all of them are dead.
    fn segment_of(
        &self,
        shared: &Shared,
        sealed: &State,
        number: u64,
        progress: &dyn Progress,
    ) -> Result<Option<Arc<Segment>>> {
        let mut points: Vec<_> = sealed.sealed_points().collect();
        points.sort_unstable_by(|one, two| one.0.cmp(two.0));
        let points = points.into_iter().map(|(id, seq, row)| {
            let mut bytes = Vec::with_capacity(17);
            id.append(&mut bytes);
            let payload = row.payload().map(|json| &**json);
            Point { id: bytes, seq, vectors: row.vectors().collect(), payload }
        });
        let points: Vec<Point> = points.collect();
        if points.is_empty() {
            return Ok(None);
        }
        let making = self.making(shared, (number, 0), &|_| (Some(IndexKind::Flat), None))?;
        let folder = folder_of(&shared.folder_of(self.id), number);
        let are_many = |live: &Arc<Live>| live.delta.state().rows() > shared.options.full_rows() / 2;
        let live = self.opened();
        let is_urgent = live.as_ref().is_some_and(are_many);
        // The points in memory go once the segment is there.
        let replaces = live.map_or(0, |live| live.lock().bytes());
        beside_searches(is_urgent, || {
            let entry = segments::from_points(&folder, &points, &making, progress)?;
            self.indexes_built.fetch_add(1, Ordering::Relaxed);
            let segment = self.open_segment(shared, &entry, replaces)?;
            segment.make_codes(progress)?;
            Ok(Some(segment))
        })
    }

    /// Merges segments as long as some are due, and has payloads of the others indexed by the schema.
    pub(crate) fn merge_due(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<()> {
        let choose = |state: &State, taken: &Taken| match due(shared, state, taken) {
            Some(next) => Some(Chosen::level(next, state)),
            None => to_fold(shared, state, taken).map(Chosen::fold),
        };
        while self.merge_next(shared, (Job::Merge, progress), choose)? {
            shared.jobs.ask(shared, self, Job::MinorMerge);
        }
        self.reindex(shared, progress)
    }

    /// Makes codes that an opening left out, and merges segments other than the largest as long as some are due.
    pub(crate) fn minor_merge_due(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<()> {
        if let Some(live) = self.opened() {
            live.delta.state().make_codes(progress)?;
        }
        let choose = |state: &State, taken: &Taken| {
            minor_due(shared, &self.specs, state, taken).map(|next| Chosen::level(next, state))
        };
        while self.merge_next(shared, (Job::MinorMerge, progress), choose)? {
            shared.jobs.ask(shared, self, Job::Merge);
        }
        Ok(())
    }

    pub(super) fn ask_for_merges(self: &Arc<Slot>, shared: &Shared) {
        shared.jobs.ask(shared, self, Job::Merge);
        shared.jobs.ask(shared, self, Job::MinorMerge);
    }

    /// Merges all segments into one, unless there is one alone without dead rows and newer payloads. Where changes go
    /// on, some are left in the end.
    pub(crate) fn merge_all(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<()> {
        for _ in 0..MERGES_AT_ONCE {
            // Whatever a minor merge has taken would be left.
            drop(self.running(Job::MinorMerge));
            let is_merged = self.merge_next(shared, (Job::Merge, progress), |state, taken| {
                let is_whole =
                    |own: &SegmentState| sized(own).dead == 0 && own.segment.entry.level == LARGEST;
                match &state.segments[..] {
                    [] => None,
                    [one] if is_whole(one) => (one.overlay.count() > 0).then(|| Chosen::fold(one)),
                    all => Chosen::all(all, taken),
                }
            })?;
            if !is_merged {
                break;
            }
        }
        self.reindex(shared, progress)
    }

    /// Writes the points in memory into a segment, and makes one segment of all.
    pub(crate) fn compact(self: &Arc<Slot>, shared: &Shared, progress: &dyn Progress) -> Result<()> {
        self.checkpoint(shared, progress)?;
        self.merge_all(shared, progress)?;
        self.reclaim(shared)
    }

    /// Merges the segments that `choose` names, none of which is taken. Returns whether there were any.
    fn merge_next(
        self: &Arc<Slot>,
        shared: &Shared,
        (job, progress): (Job, &dyn Progress),
        choose: impl Fn(&State, &Taken) -> Option<Chosen>,
    ) -> Result<bool> {
        shared.check_writable()?;
        let _running = self.running(job);
        let (chosen, is_fold, level, number) = {
            let mut turn = self.turn();
            shared.wake()?;
            let live = self.live_in_turn(shared, &mut turn)?;
            let state = live.delta.state();
            let begun = if job == Job::Merge { self.begun(shared, &mut turn, &state) } else { None };
            match begun {
                Some((begun, level, number)) => (begun, false, level, number),
                // What it is made of is not taken before.
                None if turn.begun.is_some() => return Ok(false),
                None => {
                    let Some(next) = choose(&state, &turn.taken) else { return Ok(false) };
                    let (is_fold, level) = (next.is_fold, next.level);
                    let sources = next.sources();
                    let number = turn.begin_segment_of(&sources);
                    (sources, is_fold, level, number)
                }
            }
        };
        let alone = shared.merging_alone(progress);
        let made =
            alone.and_then(|_alone| self.merge_of(shared, (&chosen, is_fold), (level, number), progress));
        let numbers: Vec<u64> = chosen.iter().map(|own| own.segment.entry.number).collect();
        if made.is_ok() {
            chosen.iter().for_each(|own| own.segment.set_obsolete());
        }
        // Whoever opens a collection that was closed for want of memory needs theirs.
        drop(chosen);
        let may_go_on = |e: &Error| {
            !is_fold
                && job == Job::Merge
                && matches!(e.kind, Kind::Other(ErrorKind::Interrupted | ErrorKind::Io))
        };
        let goes_on = made.as_ref().is_err_and(may_go_on);
        self.end_segment(shared, (number, &numbers), made.is_err() && !goes_on);
        if goes_on {
            self.turn().begun = Some(number);
        }
        let is_opened = made.map_err(|e| e.of_collection(&self.name))?;
        if !is_opened {
            self.live(shared)?;
            self.copy_layout(shared, number + 1);
        }
        self.renew_coarse();
        numbers.into_iter().try_for_each(|number| self.remove_rows_of(shared, number))?;
        Ok(true)
    }

    /// Makes a segment of others; `None` where no row is left.
    fn make(
        self: &Arc<Slot>,
        shared: &Shared,
        (sources, is_fold): (&[&Source], bool),
        (level, number): (u8, u64),
        progress: &dyn Progress,
    ) -> Result<Option<Merged>> {
        let state = self.live(shared)?.delta.state();
        let rows: u64 = sources.iter().map(|own| u64::from(own.left.count())).sum();
        let is_scanned = level < LARGEST && rows <= shared.scanned_rows(&self.specs);
        let making = self.making(shared, (number, level), &|of| {
            if is_scanned {
                return (Some(IndexKind::Flat), None);
            }
            let largest = state.segments.iter().max_by_key(|own| own.segment.rows_with(of.name));
            (of.spec.kind, largest.and_then(|own| Curves::of(&own.segment, of.name)))
        })?;
        let is_urgent = state.checkpoints() > CHECKPOINTS_URGENT;
        drop(state);
        if sources.is_empty() {
            return Ok(None);
        }
        let folder = folder_of(&shared.folder_of(self.id), number);
        let make = || match sources {
            [one] if is_fold => segments::fold(one, &folder, &making, progress),
            _ => segments::merge(sources, &folder, &making, progress),
        };
        let made = beside_searches(is_urgent, make)?;
        let count = if is_fold { &self.payloads_folded } else { &self.indexes_built };
        count.fetch_add(1, Ordering::Relaxed);
        self.rows_taken_over.fetch_add(made.taken_over, Ordering::Relaxed);
        Ok(Some(made))
    }

    /// Makes a segment, and publishes it in the place of others. Returns whether it is open: without memory for all at
    /// once the collection is closed.
    fn merge_of(
        self: &Arc<Slot>,
        shared: &Shared,
        (chosen, is_fold): (&[Source], bool),
        (level, number): (u8, u64),
        progress: &dyn Progress,
    ) -> Result<bool> {
        let numbers: Vec<u64> = chosen.iter().map(|own| own.segment.entry.number).collect();
        let sources: Vec<&Source> = chosen.iter().filter(|source| source.left.count() > 0).collect();
        let merged = self.make(shared, (&sources, is_fold), (level, number), progress)?;
        let replaces = chosen.iter().map(|own| own.segment.memory_bytes()).sum();
        let segment = merged.as_ref().map(|merged| self.open_beside(shared, &merged.entry, replaces));
        let segment = segment.transpose()?.flatten();
        let cached = chosen.iter().map(|own| own.segment.cached_bytes()).sum();
        segment.iter().try_for_each(|segment| {
            segment.make_codes(progress)?;
            segment.warm(cached, progress)
        })?;
        // Most rows that died are written while changes go on.
        let state = self.live(shared)?.delta.state();
        let early = merged.as_ref().map(|merged| died(&sources, merged, &state)).unwrap_or_default();
        self.write_early_deaths(shared, number, &early)?;
        let early_newer = merged.as_ref().map(|merged| changed(&sources, merged, &state)).unwrap_or_default();
        self.write_newer(shared, number, early_newer.values())?;
        let mut turn = self.turn();
        let live = self.live_in_turn(shared, &mut turn)?;
        let state = live.delta.state();
        let mut layout = turn.layout(&state, state.watermark);
        layout.segments.retain(|own| !numbers.contains(&own.number));
        let after = state.manifest();
        let mut batch = Batch::new();
        let mut new = None;
        let is_opened = segment.is_some() || merged.is_none();
        if let Some(merged) = merged {
            let dead = died(&sources, &merged, &state);
            batch = self.write_deaths(shared, (number, &dead), &early)?;
            layout.segments.push(merged.entry.clone());
            let newer = changed(&sources, &merged, &state);
            let is_late = |own: &&Newer| early_newer.get(&own.ordinal) != Some(*own);
            self.write_newer(shared, number, newer.values().filter(is_late))?;
            // Once it is published nothing fails, or a segment that is named would be removed.
            let made = segment.map(|segment| New { segment, dead });
            new = made.map(|made| made.into_state(newer.into_values())).transpose()?;
        }
        self.publish(shared, &mut turn, (&layout, &after, batch))?;
        if is_opened {
            live.delta.replace_segments(&numbers, new);
            // Newer payloads are in the segment now.
            let memory = live.delta.state().memory_with(&self.specs, 0, PointBytes::default());
            let _ = live.lock().resize(memory);
            drop(turn);
            // While it names segments, they are there.
            self.copy_layout(shared, number + 1);
        } else {
            // Changes that come from now on are those of what is opened next.
            self.close();
        }
        Ok(is_opened)
    }

    /// A merge that was begun and can be gone on with: its sources are there still.
    fn begun(&self, shared: &Shared, turn: &mut Turn, state: &State) -> Option<(Vec<Source>, u8, u64)> {
        let number = turn.begun.take()?;
        let found = Unfinished::read(&folder_of(&shared.folder_of(self.id), number))?;
        let source = |(number, left): (u64, Arc<Sieve>)| {
            let is_same = |own: &&SegmentState| {
                own.segment.rows() == u64::from(left.rows()) && !turn.taken.contains(&number)
            };
            let own = state.segment(number).filter(is_same)?;
            Some(Source { segment: own.segment.clone(), left, overlay: own.overlay.clone() })
        };
        let sources = found.sources.into_iter().map(source).collect::<Option<Vec<_>>>()?;
        turn.building.insert(number);
        turn.take(&sources);
        Some((sources, found.level, number))
    }

    /// Writes dead rows of a segment before it is published, and none but these.
    fn write_early_deaths(&self, shared: &Shared, number: u64, dead: &[u32]) -> Result<()> {
        // A job that was killed may have left some under this number.
        self.remove_rows_of(shared, number)?;
        dead.chunks(DEATHS_AT_ONCE).try_for_each(|part| {
            shared.rows.write(self.deaths(number, part.iter().copied())).durable()?;
            Ok(())
        })
    }

    /// Removes dead rows and newer payloads of a segment.
    fn remove_rows_of(&self, shared: &Shared, number: u64) -> Result<()> {
        for kind in [RowKind::Deletes, RowKind::Overlay] {
            let (from, end) = Layout::rows_of(self.id, kind, number);
            shared.rows.remove_range(&from, &end)?;
        }
        Ok(())
    }

    /// Writes newer payloads of a segment that is not published yet.
    fn write_newer<'a>(
        &self,
        shared: &Shared,
        number: u64,
        all: impl Iterator<Item = &'a Newer>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        for newer in all {
            if batch.bytes() >= NEWER_AT_ONCE {
                shared.rows.write(std::mem::replace(&mut batch, Batch::new())).durable()?;
            }
            batch.put(Layout::overlay_key(self.id, number, newer.ordinal), &newer.encode());
        }
        if batch.bytes() > 0 {
            shared.rows.write(batch).durable()?;
        }
        Ok(())
    }

    /// The dead rows of a new segment that were not written before, for the batch that publishes it.
    fn write_deaths(&self, shared: &Shared, (number, dead): (u64, &[u32]), early: &[u32]) -> Result<Batch> {
        let is_new = |ordinal: &&u32| early.binary_search(ordinal).is_err();
        let late: Vec<u32> = dead.iter().filter(is_new).copied().collect();
        let (first, last) = late.split_at(late.len().saturating_sub(DEATHS_AT_ONCE));
        first.chunks(DEATHS_AT_ONCE).try_for_each(|part| -> Result<()> {
            shared.rows.write(self.deaths(number, part.iter().copied())).durable()?;
            Ok(())
        })?;
        Ok(self.deaths(number, last.iter().copied()))
    }

    fn deaths(&self, number: u64, ordinals: impl Iterator<Item = u32>) -> Batch {
        let mut batch = Batch::new();
        ordinals.for_each(|ordinal| batch.put_beside(Layout::death_key(self.id, number, ordinal), &[]));
        batch
    }

    /// Writes which segments there are, and the counts that go with them.
    pub(super) fn publish(
        &self,
        shared: &Shared,
        turn: &mut Turn,
        (layout, after, mut batch): (&Layout, &Manifest, Batch),
    ) -> Result<()> {
        self.check_dropped()?;
        batch.put(Layout::key(self.id), &layout.encode());
        batch.put(Manifest::key(self.id), &after.encode());
        match shared.rows.write(batch) {
            Outcome::Durable(_) => Ok(()),
            Outcome::NotWritten(e) => Err(e.into()),
            Outcome::NoRoom(e) => Err(Error::disk_full(&e)),
            Outcome::Unknown { error, .. } => {
                // Which segments there are is found out when the collection is opened again.
                turn.is_stale = true;
                Err(Error::unknown(0, "the segment", &error))
            }
        }
    }

    /// Waits until no job of the collection runs.
    pub(crate) fn wait_for_jobs(&self) {
        Job::ALL.into_iter().for_each(|job| drop(self.running(job)));
    }

    /// Makes centroids for points in memory where another segment is the largest now.
    fn renew_coarse(&self) {
        if let Some(live) = self.opened() {
            let points = live.delta.state().memory_with(&self.specs, 0, PointBytes::default());
            live.delta.renew_coarse(|bytes| live.lock().resize(points + bytes));
        }
    }

    pub(super) fn running(&self, job: Job) -> MutexGuard<'_, ()> {
        self.running[job as usize].lock().unwrap_or_else(|e| e.into_inner())
    }

    fn end_segment(&self, shared: &Shared, (number, taken): (u64, &[u64]), is_failed: bool) {
        let mut turn = self.turn();
        turn.building.remove(&number);
        turn.taken.retain(|own| !taken.contains(own));
        // What may be published stays until the collection is opened the next time.
        if is_failed && !turn.is_stale {
            let _ = std::fs::remove_dir_all(folder_of(&shared.folder_of(self.id), number));
        }
    }

    /// Removes rows of the tail whose points are in segments.
    fn reclaim_tail(&self, shared: &Shared, watermark: u64) -> Result<()> {
        let from = Key::first(self.id, RowKind::Tail);
        let end = Place { seq: watermark.saturating_add(1), ordinal: 0 }.tail_key(self.id);
        shared.rows.remove_range(&from, &end).map_err(|e| Error::from(e).of_collection(&self.name))?;
        Ok(())
    }

    /// Removes what killed jobs left: rows of the tail that are in segments, and segments that nobody names.
    pub(crate) fn reclaim(self: &Arc<Slot>, shared: &Shared) -> Result<()> {
        let (layout, building, next) = {
            let mut turn = self.turn();
            self.live_in_turn(shared, &mut turn)?;
            let going_on = turn.building.iter().chain(&turn.begun).copied().collect::<Vec<_>>();
            (super::opening::layout(&shared.rows, self.id)?, going_on, turn.next_segment)
        };
        self.reclaim_tail(shared, layout.watermark)?;
        let is_known = |number: u64| {
            // One from here on was begun after this looked.
            number >= next
                || building.contains(&number)
                || layout.segments.iter().any(|entry| entry.number == number)
        };
        for kind in [RowKind::Deletes, RowKind::Overlay] {
            let (mut from, end) = (Key::first(self.id, kind), Key::end(self.id, kind));
            while let Some((key, _)) = shared.rows.scan(&from, &end, 1)?.rows.into_iter().next() {
                let Some((number, _)) = Layout::of_row_key(&key) else { break };
                let (first, behind) = Layout::rows_of(self.id, kind, number);
                if !is_known(number) {
                    shared.rows.remove_range(&first, &behind)?;
                }
                from = behind;
            }
        }
        let Ok(folders) = std::fs::read_dir(shared.folder_of(self.id)) else { return Ok(()) };
        for folder in folders.flatten() {
            let number = folder.file_name().to_str().and_then(|name| name.parse().ok());
            if number.is_some_and(|number| !is_known(number)) {
                let _ = std::fs::remove_dir_all(folder.path());
            }
        }
        Ok(())
    }
}

impl New {
    fn into_state(self, newer: impl Iterator<Item = Newer>) -> Result<SegmentState> {
        let mut rows = self.segment.rows_of(&self.dead)?;
        rows.sort_unstable();
        let left = self.segment.all_rows().without(&rows);
        let mut overlay = Overlay::default();
        for newer in newer {
            let row = self.segment.rows_of(&[newer.ordinal])?;
            row.into_iter().for_each(|row| overlay.set(row, newer.clone()));
        }
        Ok(SegmentState::new(self.segment, left, overlay))
    }
}

/// Counts once the sealed points are in a segment in which so many are left.
fn without_tail(state: &State, sealed: &State, left: u64) -> Manifest {
    let (mut points, mut bytes) = (0, PointBytes::default());
    let gone: std::collections::HashSet<&ExternalId> = sealed.died_until(state).collect();
    for (id, _, row) in sealed.sealed_points() {
        if !gone.contains(id) {
            points += 1;
            bytes += PointBytes::of(id, row.payload().map(|json| &**json));
        }
    }
    debug_assert_eq!(points, left, "the segment has the points that are left");
    let now = state.manifest();
    let mut left = now.bytes;
    left -= bytes;
    Manifest { tail_points: now.tail_points - points, bytes: left, ..now }
}
