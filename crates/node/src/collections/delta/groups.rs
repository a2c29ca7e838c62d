//! Rows of a state in lists.
//!
//! Rows that are sealed for a segment, and those that came before there were centroids, keep the lists that they are
//! in. So no row is filed twice, but for a few that are there when the first centroids are made.

use std::ops::Range;
use std::sync::Arc;

use stratann_core::delta::{Coarse, Effort, Lists, PROBE_RESULTS, Pushing, Query, SAMPLE_OF_LIST, lists_for};

use super::block::Column;
use super::search::Nearest;
use super::state::{At, LiveBlock, State};
use crate::collections::spec::{Spec, Specs, VectorsOf};
use crate::segments::Segment;

/// Rows without lists from which on they get centroids of their own. All distances of fewer cost little.
const SEED_ROWS: u64 = 2048;
/// Lists of these centroids. They serve until the first checkpoint, some 16,000 rows.
const SEED_LISTS: usize = 128;
/// Most rows that are filed again when new centroids come. A writer waits for as long as that takes.
const FILED_AGAIN_MAX: u64 = 4096;
/// Most bytes of a sample, as f32.
const SAMPLE_BYTES: usize = 4 << 20;

/// Consecutive blocks whose rows are in lists together, or all of them in none.
#[derive(Clone, Default)]
pub(super) struct Group {
    /// Number of the first block. The next group begins where this one ends.
    pub(super) from: u32,
    pub(super) lists: Option<Arc<Lists>>,
    /// Whether no centroids could be made of its rows.
    has_none: bool,
}

/// Lists of the vectors of one name.
#[derive(Clone, Default)]
pub(super) struct NameLists {
    /// Consecutive blocks whose rows are in lists together. Those of sealed blocks are groups of their own.
    pub(super) groups: Vec<Group>,
    /// Centroids of the largest segment, for the next group.
    pub(super) coarse: Option<CoarseOf>,
}

impl NameLists {
    /// The same centroids, for groups that are made of these.
    pub(super) fn without_groups(&self) -> NameLists {
        NameLists { groups: Vec::new(), coarse: self.coarse.clone() }
    }

    /// Takes over the lists of groups whose rows have new places.
    pub(super) fn rename(&mut self, earlier: &NameLists, renamed: &Renamed) {
        for (new, own) in self.groups.iter_mut().zip(&earlier.groups) {
            *new = own.renamed(new.from, renamed);
        }
    }
}

/// Centroids of a segment.
#[derive(Clone)]
pub(super) struct CoarseOf {
    /// Number of the segment.
    pub(super) segment: u64,
    pub(super) coarse: Arc<Coarse>,
}

/// New places of rows, by block and row.
pub(super) struct Renamed {
    /// Number of the first block.
    pub(super) from: u32,
    pub(super) rows: Vec<Vec<Option<At>>>,
}

impl At {
    /// The name of the row in lists.
    fn name(self) -> u64 {
        u64::from(self.block) << 32 | u64::from(self.row)
    }

    /// The row of a name.
    pub(super) fn of_name(name: u64) -> At {
        At { block: (name >> 32) as u32, row: name as u32 }
    }
}

impl Group {
    /// The first group, whose rows never get lists.
    #[cfg(test)]
    pub(super) fn without_lists() -> Group {
        Group { has_none: true, ..Group::default() }
    }

    /// A group without lists that begins with this block.
    pub(super) fn beginning(from: u32) -> Group {
        Group { from, ..Group::default() }
    }

    /// The rows that have a new place, under it, in a group that begins with this block.
    pub(super) fn renamed(&self, from: u32, renamed: &Renamed) -> Group {
        let place = |name: u64| {
            let at = At::of_name(name);
            let rows = renamed.rows.get(at.block.checked_sub(renamed.from)? as usize)?;
            rows.get(at.row as usize).copied().flatten().map(At::name)
        };
        let lists = self.lists.as_ref().map(|lists| Arc::new(lists.renamed(place)));
        Group { from, lists, has_none: self.has_none }
    }
}

/// Rows of a sample for so many lists.
fn sample_rows(spec: &Spec, lists: usize) -> usize {
    (lists * SAMPLE_OF_LIST).min(SAMPLE_BYTES / (4 * spec.dim.max(1))).max(1)
}

/// Centroids of vectors that are spread evenly over the ids of a segment. `None` where they cannot be read: then the
/// rows in memory get centroids of their own.
pub(super) fn coarse_of(of: VectorsOf<'_>, segment: &Segment) -> Option<CoarseOf> {
    let spec = of.spec;
    let rows = segment.rows_with(of.name);
    let lists = lists_for(rows);
    let count = (sample_rows(spec, lists) as u64).min(rows);
    let mut sample = Vec::with_capacity(count as usize * spec.row_bytes());
    for at in 0..count {
        sample.extend(segment.nth_vector(of.name, at * rows / count).ok()?);
    }
    let coarse = Coarse::of_sample(spec.shape(), &sample, lists)?;
    Some(CoarseOf { segment: segment.entry.number, coarse: Arc::new(coarse) })
}

/// Most memory of the centroids of a segment with so many rows, and of two groups with lists around them.
pub(super) fn coarse_bytes(spec: &Spec, rows: u64) -> u64 {
    let lists = lists_for(rows);
    Coarse::bytes(spec.dim, lists) + 2 * Lists::bytes(spec.dim, lists)
}

/// Memory of centroids that rows in memory get of their own, once there are so many.
pub(crate) fn seed_bytes(specs: &Specs, rows: u64) -> u64 {
    specs.each().map(|of| seed_bytes_of(of.spec, rows)).sum()
}

fn seed_bytes_of(spec: &Spec, rows: u64) -> u64 {
    let bytes = Coarse::bytes(spec.dim, SEED_LISTS) + Lists::bytes(spec.dim, SEED_LISTS);
    if rows < SEED_ROWS { 0 } else { bytes }
}

impl State {
    /// Whether the next row begins a group that is there already.
    pub(super) fn group_begins(&self) -> bool {
        let begins =
            |lists: &NameLists| lists.groups.last().is_some_and(|last| last.from == self.next_block());
        self.lists.iter().any(begins)
    }

    /// Begins groups with the next block, where the last ones get no more rows.
    pub(super) fn begin_group(&mut self) {
        let (from, sealed) = (self.next_block(), self.sealed);
        for own in &mut self.lists {
            if own.groups.last().is_some_and(|last| last.from >= sealed) {
                continue;
            }
            let lists = own.coarse.as_ref().map(|known| {
                let mut earlier = own.groups.iter().rev().filter_map(|group| group.lists.as_ref());
                let earlier = earlier.find(|lists| Arc::ptr_eq(lists.coarse(), &known.coarse));
                Arc::new(
                    earlier.map_or_else(|| Lists::new(known.coarse.clone()), |lists| Lists::after(lists)),
                )
            });
            own.groups.push(Group { from, lists, has_none: false });
        }
    }

    /// Begins groups with the next block for those of another state that begin with this one.
    pub(super) fn begin_groups_of(&mut self, earlier: &State, block: u32) {
        let from = self.next_block();
        for (own, earlier) in self.lists.iter_mut().zip(&earlier.lists) {
            let begun = earlier.groups.iter().filter(|group| group.from == block);
            own.groups.extend(begun.map(|_| Group::beginning(from)));
        }
    }

    fn groups(&self, name: usize) -> &[Group] {
        self.lists.get(name).map_or(&[], |lists| &lists.groups)
    }

    fn last_group(&mut self, name: usize) -> Option<&mut Group> {
        self.lists.get_mut(name)?.groups.last_mut()
    }

    /// Groups of the lists of a name, with their blocks.
    pub(super) fn blocks_of_groups(&self, name: usize) -> impl Iterator<Item = (&Group, &[LiveBlock])> {
        self.groups(name).iter().enumerate().map(move |(at, group)| {
            let blocks = self.blocks.get(self.range_of_group(name, at)).unwrap_or_default();
            (group, blocks)
        })
    }

    fn range_of_group(&self, name: usize, at: usize) -> Range<usize> {
        let place = |from: u32| from.saturating_sub(self.first) as usize;
        let groups = self.groups(name);
        let from = groups.get(at).map_or(self.blocks.len(), |group| place(group.from));
        let end = groups.get(at + 1).map_or(self.blocks.len(), |next| place(next.from));
        from..end.min(self.blocks.len()).max(from)
    }

    /// Files a row that was appended. Returns whether it is to be a probe.
    pub(super) fn file(&mut self, name: usize, at: At, vector: &[u8], pushing: &mut Pushing) -> bool {
        let Some(lists) = self.last_group(name).and_then(|group| group.lists.as_mut()) else { return false };
        Arc::make_mut(lists).push(vector, at.name(), pushing)
    }

    /// Learns from a row how its nearest ones are found.
    pub(super) fn probe(&mut self, of: VectorsOf<'_>, at: At) {
        let Some(group) = self.groups(of.name).iter().rposition(|group| group.from <= at.block) else {
            return;
        };
        let Some(lists) = self.groups(of.name)[group].lists.clone() else {
            return;
        };
        let Some(own) = self.block(at).filter(|own| !own.dead.has(at.row as usize)) else { return };
        let Some(vector) = own.block.vector(of.name, at.row as usize) else { return };
        let mut query = Query::default();
        let mut nearest = Nearest::of(self, of, vector, (PROBE_RESULTS, f32::INFINITY));
        nearest.skip = Some(at);
        lists.search(&mut query, vector, Effort { recall: 1.0, k: PROBE_RESULTS, share: 1.0 }, &mut nearest);
        let results = nearest.into_lists();
        drop(lists);
        let groups = self.lists.get_mut(of.name).map(|lists| &mut lists.groups);
        let lists = groups.and_then(|groups| groups.get_mut(group)).and_then(|group| group.lists.as_mut());
        if let Some(lists) = lists.filter(|_| results.len() == PROBE_RESULTS) {
            Arc::make_mut(lists).learn(&query, &results);
        }
    }

    /// Makes centroids of rows in memory when they have none and are many.
    pub(super) fn seed(&mut self, of: VectorsOf<'_>) {
        let Some(at) = self.groups(of.name).len().checked_sub(1) else { return };
        let group = &self.groups(of.name)[at];
        if group.lists.is_some() || group.has_none || group.from < self.sealed {
            return;
        }
        let blocks = self.blocks.get(self.range_of_group(of.name, at)).unwrap_or_default();
        let rows = vectors_in(blocks, of.name);
        if (rows as u64) < SEED_ROWS {
            return;
        }
        let step = rows.div_ceil(sample_rows(of.spec, SEED_LISTS));
        let vectors =
            blocks.iter().flat_map(|own| own.live_rows().filter_map(|row| own.block.vector(of.name, row)));
        let sample: Vec<u8> = vectors.step_by(step).flatten().copied().collect();
        match Coarse::of_sample(of.spec.shape(), &sample, SEED_LISTS) {
            Some(coarse) => self.file_last(of.name, Lists::new(Arc::new(coarse))),
            None => self.last_group(of.name).into_iter().for_each(|group| group.has_none = true),
        }
    }

    /// Files all rows of the last group.
    fn file_last(&mut self, name: usize, mut lists: Lists) {
        let Some(at) = self.groups(name).len().checked_sub(1) else { return };
        let from = self.groups(name)[at].from;
        let mut pushing = Pushing::default();
        for (own, block) in self.blocks[self.range_of_group(name, at)].iter().zip(from..) {
            for row in own.live_rows() {
                if let Some(vector) = own.block.vector(name, row) {
                    lists.push(vector, At { block, row: row as u32 }.name(), &mut pushing);
                }
            }
        }
        let lists = Arc::new(lists);
        self.last_group(name).into_iter().for_each(|group| group.lists = Some(lists.clone()));
    }

    /// Has rows filed around other centroids from now on.
    pub(super) fn set_coarse(&mut self, name: usize, own: CoarseOf) {
        let lists = Lists::new(own.coarse.clone());
        let sealed = self.sealed;
        let Some(known) = self.lists.get_mut(name) else { return };
        known.coarse = Some(own);
        let Some(at) = known.groups.len().checked_sub(1).filter(|at| known.groups[*at].from >= sealed) else {
            return;
        };
        let rows = vectors_in(&self.blocks[self.range_of_group(name, at)], name);
        if rows as u64 <= FILED_AGAIN_MAX {
            self.file_last(name, lists);
        } else {
            let group = Group { from: self.next_block(), lists: Some(Arc::new(lists)), has_none: false };
            self.lists[name].groups.push(group);
        }
    }

    /// Takes over the centroids of an earlier state, if they are of a segment of this one.
    pub(crate) fn take_coarse_of(&mut self, earlier: Option<&State>) {
        let numbers: Vec<u64> = self.segments.iter().map(|own| own.segment.entry.number).collect();
        let earlier = earlier.map_or(&[][..], |state| &state.lists);
        for (own, earlier) in self.lists.iter_mut().zip(earlier) {
            own.coarse = earlier.coarse.clone().filter(|own| numbers.contains(&own.segment));
        }
    }

    /// The segment with most vectors of a name, unless the centroids are its.
    pub(crate) fn segment_for_lists(&self, name: usize) -> Option<&Arc<Segment>> {
        let with_some = self.segments.iter().filter(|own| own.segment.rows_with(name) > 0);
        let largest = with_some.max_by_key(|own| (own.segment.rows_with(name), own.segment.entry.number))?;
        let number = largest.segment.entry.number;
        let coarse = self.lists.get(name).and_then(|lists| lists.coarse.as_ref());
        let is_known = coarse.is_some_and(|own| own.segment == number);
        (!is_known).then_some(&largest.segment)
    }

    /// Memory of centroids and lists beside their rows, once there are so many rows.
    pub(super) fn lists_bytes(&self, specs: &Specs, rows: u64) -> u64 {
        specs.each().zip(&self.lists).map(|(of, lists)| lists.bytes(of.spec, rows)).sum()
    }
}

/// How many rows of blocks have a vector of a name.
fn vectors_in(blocks: &[LiveBlock], name: usize) -> usize {
    blocks.iter().filter_map(|own| own.block.column(name)).map(Column::count).sum()
}

impl NameLists {
    fn bytes(&self, spec: &Spec, rows: u64) -> u64 {
        let lists = || self.groups.iter().filter_map(|group| group.lists.as_ref());
        let mut known: Vec<&Arc<Coarse>> = self.coarse.iter().map(|own| &own.coarse).collect();
        for lists in lists() {
            if !known.iter().any(|coarse| Arc::ptr_eq(coarse, lists.coarse())) {
                known.push(lists.coarse());
            }
        }
        let coarse: u64 = known.iter().map(|coarse| Coarse::bytes(spec.dim, coarse.lists())).sum();
        let groups: u64 = lists().map(|lists| Lists::bytes(spec.dim, lists.coarse().lists())).sum();
        // The next group has lists, too.
        let of_next = self.coarse.as_ref().map(|own| Lists::bytes(spec.dim, own.coarse.lists()));
        let next = of_next.unwrap_or_else(|| seed_bytes_of(spec, rows));
        coarse + groups + next
    }
}
