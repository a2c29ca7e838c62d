//! A collection as its rows and its segments have it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stratann_core::sieve::Sieve;
use stratann_params::IndexKind;
use stratann_storage::Quiet;

use super::chosen::{Taken, sized, to_fold};
use super::jobs::Job;
use super::slot::{Shared, Slot, Turn};
use crate::collections::budget::{Reserved, SegmentRoom};
use crate::collections::delta::{Change, Delta, SegmentState, State, memory_bytes, seed_bytes};
use crate::collections::error::{Error, Result};
use crate::collections::point::{Manifest, Place, PointBytes, TailPoint, decode_point};
use crate::collections::spec::Specs;
use crate::rows::{CHUNK_BYTES, Key, RowKind, Rows};
use crate::segments::{
    Layout, LayoutCopy, Level, Newer, Overlay, Segment, SegmentEntry, Sized, Unfinished, folder_of,
    next_merge, next_minor_merge,
};

/// Segments get smaller numbers; a folder of a larger one is none of ours.
const NUMBERS_MAX: u64 = u64::MAX / 2;

/// Reads the manifest; that of a collection without changes where there is none.
///
/// # Errors
/// `Corrupt` and `Io`.
pub(crate) fn manifest(rows: &Rows, collection: u64) -> Result<Manifest> {
    let key = Manifest::key(collection);
    match rows.get(&key)? {
        Some(bytes) => {
            Manifest::decode(&bytes).ok_or_else(|| damaged(&key, "it is no manifest of this version"))
        }
        None => Ok(Manifest::default()),
    }
}

/// The error of a row that says what cannot be.
pub(crate) fn damaged(key: &Key, why: &str) -> Error {
    Error::corrupt(format!("{key} is damaged: {why}; restore the collection from a snapshot, or drop it"))
}

/// Reads a tail row.
///
/// # Errors
/// `Corrupt` for one that is no point of this collection.
pub(crate) fn point<'a>(key: &Key, value: &'a [u8], specs: &Specs) -> Result<(Place, TailPoint<'a>)> {
    let place = Place::of_tail_key(key).ok_or_else(|| damaged(key, "its key names no place"))?;
    let point = decode_point(value).ok_or_else(|| damaged(key, "it has no id"))?;
    specs.check_record(point.vectors).map_err(|why| damaged(key, &why))?;
    Ok((place, point))
}

/// Rows with their values.
type Chunk = [(Key, Vec<u8>)];

/// Passes all rows of a kind in their order.
///
/// # Errors
/// The first error of a row, or of `take`.
pub(crate) fn each_row(
    rows: &Rows,
    collection: u64,
    kind: RowKind,
    take: &mut dyn FnMut(&Chunk) -> Result<()>,
) -> Result<()> {
    each_row_from(rows, Key::first(collection, kind), Key::end(collection, kind), take)
}

/// The same from a key on.
pub(crate) fn each_row_from(
    rows: &Rows,
    mut from: Key,
    end: Key,
    take: &mut dyn FnMut(&Chunk) -> Result<()>,
) -> Result<()> {
    loop {
        let chunk = rows.scan(&from, &end, CHUNK_BYTES)?;
        take(&chunk.rows)?;
        match chunk.next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// Reads which segments there are; none where there was no checkpoint.
///
/// # Errors
/// `Corrupt` and `Io`.
pub(crate) fn layout(rows: &Rows, collection: u64) -> Result<Layout> {
    let key = Layout::key(collection);
    match rows.get(&key)? {
        Some(bytes) => Layout::decode(&bytes).ok_or_else(|| damaged(&key, "it is no layout of this version")),
        None => Ok(Layout::default()),
    }
}

/// Opens a collection: its segments, and the delta from the tail behind them. Memory is reserved before, as the
/// manifest counts the points. Segments that `earlier` has stay open.
///
/// # Errors
/// `Busy`; `Budget` for segments that have no room, and for a quota that is less than they need; `Corrupt` when a row
/// or a segment is damaged, or tail and manifest differ; `Io`.
pub(crate) fn build(
    shared: &Shared,
    slot: &Slot,
    (earlier, turn): (Option<&State>, &mut Turn),
    reserved: &mut Reserved,
) -> Result<Delta> {
    let (rows, specs) = (&shared.rows, &slot.specs);
    let manifest = manifest(rows, slot.id)?;
    let layout = layout(rows, slot.id)?;
    turn.next_segment = turn.next_segment.max(layout.next_segment);
    let points = memory_bytes(specs, manifest.tail_points, manifest.bytes);
    let with_seeds = points + seed_bytes(specs, manifest.tail_points);
    let tables = needed_bytes(shared, slot, &layout)?;
    shared.memory.check_quota(slot.id, with_seeds.saturating_add(tables))?;
    let overlays = overlays(shared, (slot.id, &layout), &mut |bytes| reserved.resize(with_seeds + bytes))?;
    let room = SegmentRoom::of_tables(&shared.memory, slot.id, tables);
    let segments = open_segments(shared, slot, (&layout, overlays, &room), earlier)?;
    let mut state = State::of_segments(specs, layout.watermark, segments);
    state.take_coarse_of(earlier);
    let beside = points + state.overlay_bytes();
    let delta = Delta::of_segments(specs.clone(), state);
    delta.renew_coarse(|bytes| reserved.resize(beside + bytes));
    fill(rows, slot, (&delta, &layout, &manifest))?;
    let state = delta.state();
    let found = Manifest { seq: manifest.seq, ..state.manifest() };
    if found != manifest {
        let why = format!(
            "it counts {} points, {} of them in the tail; there are {} and {}",
            manifest.points, manifest.tail_points, found.points, found.tail_points
        );
        return Err(damaged(&Manifest::key(slot.id), &why));
    }
    Ok(delta)
}

/// Puts the tail into a delta.
fn fill(rows: &Rows, slot: &Slot, (delta, layout, manifest): (&Delta, &Layout, &Manifest)) -> Result<()> {
    let (mut points, mut bytes) = (0, PointBytes::default());
    // A collection without points has a newest change, too.
    delta.apply(manifest.seq, std::iter::empty());
    let from = Place { seq: layout.watermark.saturating_add(1), ordinal: 0 }.tail_key(slot.id);
    each_row_from(rows, from, Key::end(slot.id, RowKind::Tail), &mut |chunk| {
        let mut found = Vec::with_capacity(chunk.len());
        for (key, value) in chunk {
            let (place, TailPoint { id, vectors, payload }) = point(key, value, &slot.specs)?;
            points += 1;
            bytes += PointBytes::of(&id, payload);
            let is_beyond = place.seq > manifest.seq
                || points > manifest.tail_points
                || bytes.ids > manifest.bytes.ids
                || bytes.payloads > manifest.bytes.payloads;
            if is_beyond || delta.reader().place(&id).is_some() {
                return Err(damaged(
                    key,
                    "the manifest counts fewer changes or points, or its id is there twice",
                ));
            }
            found.push((id, place, vectors, payload.map(Arc::<[u8]>::from)));
        }
        let changes = found.iter().map(|(id, place, vectors, payload)| Change::Put {
            id,
            place: *place,
            vectors: Cow::Borrowed(*vectors),
            payload: payload.as_ref(),
        });
        delta.apply(manifest.seq, changes);
        Ok(())
    })
}

/// Bytes that the segments of a layout need at least; 0 for a collection without a quota, for which nobody asks.
fn needed_bytes(shared: &Shared, slot: &Slot, layout: &Layout) -> Result<u64> {
    if shared.memory.account(slot.id).limits.quota_bytes.is_none() {
        return Ok(0);
    }
    let (folder, shapes) = (shared.folder_of(slot.id), slot.specs.shapes());
    let each = layout.segments.iter();
    let each = each.map(|entry| Segment::needed_bytes(&folder_of(&folder, entry.number), entry, &shapes));
    Ok(each.sum::<stratann_storage::Result<u64>>()?)
}

/// Newer payloads by the numbers of their segments.
type Overlays = BTreeMap<u64, Vec<Newer>>;

/// Reads newer payloads over segments. Memory is reserved before they are kept.
fn overlays(
    shared: &Shared,
    (collection, layout): (u64, &Layout),
    reserve: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Overlays> {
    let (mut overlays, mut bytes) = (Overlays::new(), 0);
    each_row(&shared.rows, collection, RowKind::Overlay, &mut |chunk| {
        for (key, value) in chunk {
            let (segment, newer) = newer_payload(key, value)?;
            // Others are of segments that are gone, or were never named.
            if layout.segments.iter().any(|entry| entry.number == segment) {
                bytes += Overlay::bytes_of(newer.payload.as_deref());
                overlays.entry(segment).or_default().push(newer);
            }
        }
        reserve(bytes)
    })?;
    Ok(overlays)
}

/// Reads the row of a newer payload; with the number of its segment.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn newer_payload(key: &Key, value: &[u8]) -> Result<(u64, Newer)> {
    let (segment, ordinal) = Layout::of_row_key(key).ok_or_else(|| damaged(key, "its key names no row"))?;
    let newer = Newer::decode(ordinal, value);
    Ok((segment, newer.ok_or_else(|| damaged(key, "it is no payload of this version"))?))
}

/// Opens the segments of a layout, and takes out the rows that are dead.
fn open_segments(
    shared: &Shared,
    slot: &Slot,
    (layout, mut overlays, room): (&Layout, Overlays, &SegmentRoom),
    earlier: Option<&State>,
) -> Result<Vec<SegmentState>> {
    let mut dead: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    each_row(&shared.rows, slot.id, RowKind::Deletes, &mut |chunk| {
        for (key, _) in chunk {
            let (segment, ordinal) =
                Layout::of_row_key(key).ok_or_else(|| damaged(key, "its key names no row"))?;
            dead.entry(segment).or_default().push(ordinal);
        }
        Ok(())
    })?;
    let (folder, shapes) = (shared.folder_of(slot.id), slot.specs.shapes());
    let mut open = |entry: &SegmentEntry| {
        let known = earlier.and_then(|state| state.segment(entry.number));
        let segment = match known.filter(|own| own.segment.entry == *entry) {
            Some(own) => own.segment.clone(),
            None => {
                let folder = folder_of(&folder, entry.number);
                let segment = Segment::open(&folder, entry, (&shapes, room))?;
                if !shared.options.in_background {
                    segment.make_codes(&Quiet)?;
                }
                Arc::new(segment)
            }
        };
        if let Some(left) = shared.salvaged.get(&(slot.id, entry.number)) {
            return Ok(SegmentState::new(segment, left.clone(), Overlay::default()));
        }
        let ordinals = dead.get(&entry.number).map(Vec::as_slice).unwrap_or_default();
        let mut rows = segment.rows_of(ordinals)?;
        rows.sort_unstable();
        let left = segment.all_rows().without(&rows);
        let mut overlay = Overlay::default();
        for newer in overlays.remove(&entry.number).unwrap_or_default() {
            // Those of dead rows are removed with the segment.
            let row = segment.rows_of(&[newer.ordinal])?.first().copied().filter(|row| left.has(*row));
            row.into_iter().for_each(|row| overlay.set(row, newer.clone()));
        }
        Ok(SegmentState::new(segment, left, overlay))
    };
    layout.segments.iter().map(&mut open).collect()
}

impl Slot {
    /// Notes a merge that an earlier process began, if there is one, and gives no number again that has a folder.
    pub(crate) fn find_begun(&self, shared: &Shared, turn: &mut Turn, state: &State) {
        let folders = std::fs::read_dir(shared.folder_of(self.id)).into_iter().flatten().flatten();
        let numbers = folders.filter_map(|folder| folder.file_name().to_str()?.parse::<u64>().ok());
        let is_free = |number: &u64| state.segment(*number).is_none() && !turn.building.contains(number);
        let left: Vec<u64> = numbers.filter(|number| *number < NUMBERS_MAX).filter(is_free).collect();
        let is_begun =
            |number: &u64| Unfinished::read(&folder_of(&shared.folder_of(self.id), *number)).is_some();
        turn.begun = left.iter().copied().find(is_begun).or(turn.begun);
        let next = left.iter().max().map_or(0, |last| last + 1);
        turn.next_segment = turn.next_segment.max(next);
    }

    /// Copies what the rows say of segments, for a day on which they are damaged. A copy that cannot be written is
    /// harmless: the next one is tried again.
    pub(crate) fn copy_layout(&self, shared: &Shared, next_segment: u64) {
        let _copying = shared.copying.lock().unwrap_or_else(|e| e.into_inner());
        let Some(state) = self.opened().map(|live| live.delta.state()) else { return };
        let copy = LayoutCopy {
            collection: self.id,
            seq: state.seq,
            name: self.name.clone(),
            spec: self.specs.encode(),
            layout: Layout::new(state.watermark, next_segment, state.entries()),
            left: state.segments.iter().map(|own| Sieve::clone(own.left.rows())).collect(),
        };
        let _ = copy.write(&shared.folder_of(self.id));
    }

    /// Asks for what an earlier process left undone: its leftovers, points for a segment, merges.
    pub(crate) fn ask_after_opening(self: &Arc<Slot>, shared: &Shared, is_begun: bool, state: &State) {
        let has_folder = shared.folder_of(self.id).is_dir();
        self.is_unswept.store(has_folder, Ordering::Release);
        if has_folder || shared.options.is_checkpoint_due(&self.specs, state) {
            shared.jobs.ask(shared, self, Job::Checkpoint);
        }
        if is_begun
            || due(shared, state, &Taken::new()).is_some()
            || to_fold(shared, state, &Taken::new()).is_some()
            || self.is_reindexing_due(shared, state)
        {
            shared.jobs.ask(shared, self, Job::Merge);
        }
        let lacks_codes = state.segments.iter().any(|own| own.segment.lacks_codes());
        if lacks_codes || minor_due(shared, &self.specs, state, &Taken::new()).is_some() {
            shared.jobs.ask(shared, self, Job::MinorMerge);
        }
    }
}

/// The merge of a state that is due.
pub(super) fn due(shared: &Shared, state: &State, taken: &Taken) -> Option<Level> {
    next_merge(&sizes(state, taken), shared.options.first_rows)
}

/// The minor merge of a state that is due. A checkpoint of a `flat` collection is of its kind.
pub(super) fn minor_due(shared: &Shared, specs: &Specs, state: &State, taken: &Taken) -> Option<Level> {
    let is_flat = specs.iter().all(|own| own.spec.kind == Some(IndexKind::Flat));
    let scanned_max = if is_flat { u64::MAX } else { shared.scanned_rows(specs) };
    next_minor_merge(&sizes(state, taken), shared.options.first_rows, scanned_max)
}

fn sizes(state: &State, taken: &Taken) -> Vec<Sized> {
    let of = |own: &SegmentState| Sized { is_free: !taken.contains(&own.segment.entry.number), ..sized(own) };
    state.segments.iter().map(of).collect()
}
