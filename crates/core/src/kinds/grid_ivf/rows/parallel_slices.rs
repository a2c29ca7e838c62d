//! Rows without the pipeline: all slices are scored at the same time, each on its server, and the origin adds their
//! sums (the baseline of HARMONY §6.3.2). A slice can drop only what exceeds the limit by its own components.

use alloc::vec::Vec;

use super::super::fine::{Fine, coarse_below};
use super::super::rotated_query::RotatedQuery;
use super::super::scan::count_list;
use super::super::sums::unit_distance;
use super::super::{GridIvf, State, View};
use super::wire::{put_left, take_left};
use super::{Probe, Row, count_bytes, full, is_here, masks, ones};
use crate::codec::{Reader, Refused, Writer};
use crate::format::grid::GridLayout;
use crate::kinds::kind::StepContext;
use crate::place::Reach;
use stratann_kernel::Metric;
use stratann_kernel::columns::LANES;

/// A slice of a row that is scored by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    /// The number of its row.
    pub(super) row: u32,
    /// Whether the reply has ids: its asker has no slice of the row, and so no ids.
    pub(super) with_ids: bool,
    /// Norm of the query in each group, under ip: those of other slices bound what a sum may still lose.
    pub(super) norms: Vec<f32>,
    /// Ids that users know of the vectors that are left, in a reply.
    pub(super) ids: Vec<u64>,
}

/// A row whose slices are scored at the same time, and the sums of those that have been.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gathered {
    /// Number of the row.
    pub(super) row: u32,
    pub(super) lists: Vec<Probe>,
    pub(super) alive: Vec<u64>,
    pub(super) sums: Vec<f64>,
    /// Sums of each group, of vectors whose sum in units has too few digits.
    pub(super) fine: Fine,
    /// The ids of all vectors that are left; empty before they are known.
    pub(super) ids: Vec<u64>,
}

/// Asks for all slices of a row. `None` when the budget allows no more jobs.
pub(super) fn begin(cx: &mut StepContext<'_, GridIvf>, row: Row) -> Option<()> {
    let Some(first) = row.lists.first().map(|probe| probe.list) else { return Some(()) };
    let slices = 0..cx.view.slice_count();
    let units: Vec<u32> = slices.clone().map(|slice| cx.view.unit(first, slice)).collect();
    if units.iter().any(|&unit| cx.reach(unit) == Reach::Nowhere) {
        row.lists.iter().for_each(|probe| cx.q.give_up(cx.view.unit(probe.list, 0)));
        return Some(());
    }
    let number = cx.q.io.next_tag;
    let mut gathered = Gathered { row: number, lists: row.lists.clone(), ..Gathered::default() };
    let norms = if cx.base.metric == Metric::Ip { cx.scratch.norms.clone() } else { Vec::new() };
    let all = Row { part: Some(Part { row: number, norms, ..Part::default() }), ..row };
    let mut whole = all.clone();
    whole.begin(cx);
    if cx.base.is_filtered && whole.sums.is_empty() {
        all.lists.iter().for_each(|probe| count_list(cx, probe.list));
        return Some(());
    }
    (gathered.alive, gathered.sums) = (whole.alive, whole.sums);
    let of_slice = |slice: usize| Row { done: full(cx.view.slice_count()) & !(1 << slice), ..all.clone() };
    let is_own =
        |cx: &StepContext<'_, GridIvf>, slice| all.lists.iter().all(|probe| is_here(cx, probe.list, slice));
    let own: Vec<usize> = slices.clone().filter(|&slice| is_own(cx, slice)).collect();
    for &slice in &own {
        let mut row = of_slice(slice);
        row.begin(cx);
        row.add_slice(cx, slice)?;
        if let Some(part) = &mut row.part {
            part.with_ids = slice == own[0];
        }
        note_ids(cx.view, &mut row);
        gathered.add(&row, cx.view.layout);
    }
    let mut needs_ids = own.is_empty();
    for slice in slices.filter(|slice| !own.contains(slice)) {
        let to = cx.base.here.as_ref().and_then(|here| here.next(&units[slice..=slice], 0))?;
        let tag = cx.score(to)?;
        let mut row = of_slice(slice);
        row.query = RotatedQuery::of(cx.base, cx.view, cx.scratch, row.done);
        row.masks = masks::of(cx, row.lists.iter());
        if let Some(part) = &mut row.part {
            part.with_ids = core::mem::take(&mut needs_ids);
        }
        count_bytes(cx, &row);
        cx.own.rows.push((tag, row));
    }
    cx.own.gathered.push(gathered);
    finish(cx, number);
    Some(())
}

/// Completes the norms of a query that was loaded for one slice. `None` where they do not fit.
pub(super) fn load_norms(cx: &mut StepContext<'_, GridIvf>, part: &Part) -> Option<()> {
    if cx.base.metric == Metric::Ip {
        (part.norms.len() == cx.scratch.norms.len()).then_some(())?;
        cx.scratch.norms.clone_from(&part.norms);
    }
    Some(())
}

/// Forgets a row of which a slice was lost. Returns whether it was there.
pub(super) fn drop_row(state: &mut State, row: u32) -> bool {
    let before = state.gathered.len();
    state.gathered.retain(|gathered| gathered.row != row);
    state.gathered.len() < before
}

/// Notes the ids of what is left of a slice, where its asker needs them.
pub(super) fn note_ids(view: &View<'_>, row: &mut Row) {
    let Row { lists, alive, part, .. } = row;
    let Some(part) = part.as_mut().filter(|part| part.with_ids) else { return };
    let mut words = alive.iter();
    part.ids.clear();
    for list in lists.iter().map(|probe| probe.list) {
        // Any slice that is here has the ids in its head.
        let head = (0..view.slice_count()).find_map(|slice| view.slice(list, slice));
        let blocks = view.members(list).div_ceil(LANES);
        for (block, &word) in words.by_ref().take(blocks).enumerate() {
            let id = |lane: u8| head.as_ref().map_or(0, |h| h.external_id(block * LANES + usize::from(lane)));
            part.ids.extend(ones(word).map(id));
        }
    }
}

/// Appends the reply for a slice: the vectors that are left, their sums, and their ids where those are wanted.
pub(super) fn encode(row: &Row, w: &mut Writer<'_>) {
    put_left(&row.alive, &row.sums, w);
    let ids = row.part.as_ref().map_or(&[][..], |part| &part.ids);
    ids.iter().for_each(|&id| w.varint(id));
    if !row.fine.is_empty() {
        row.fine.encode(w);
    }
}

/// Takes the reply for a slice, whose job is at this place of the rows.
pub(super) fn take(cx: &mut StepContext<'_, GridIvf>, at: usize, r: &mut Reader<'_>) -> Result<(), Refused> {
    let (_, asked) = &cx.own.rows[at];
    let mut row = Row { lists: asked.lists.clone(), part: asked.part.clone(), ..Row::default() };
    take_left(r, row.lists.len(), (&mut row.alive, &mut row.sums))?;
    let mut whole = Row { lists: row.lists.clone(), ..Row::default() };
    whole.begin(cx);
    let is_possible = row.alive.len() == whole.alive.len()
        && row.alive.iter().zip(&whole.alive).all(|(word, all)| word & !all == 0);
    if !is_possible {
        return Err(Refused::Content);
    }
    let Some(part) = row.part.as_mut() else { return Err(Refused::Content) };
    if part.with_ids {
        for _ in 0..row.sums.len() {
            part.ids.push(r.varint()?);
        }
    }
    if !r.0.is_empty() {
        row.fine = Fine::decode(r, row.sums.len())?;
    }
    if !r.0.is_empty() {
        return Err(Refused::Length);
    }
    let number = part.row;
    cx.own.rows.swap_remove(at);
    // Without its row another slice was lost.
    if let Some(gathered) = cx.own.gathered.iter_mut().find(|gathered| gathered.row == number) {
        gathered.add(&row, cx.view.layout);
        finish(cx, number);
    }
    Ok(())
}

/// Ends a row when no slice of it is missing: what is left has been compared in all of its components.
fn finish(cx: &mut StepContext<'_, GridIvf>, number: u32) {
    let is_of_row = |row: &Row| row.part.as_ref().is_some_and(|part| part.row == number);
    if cx.own.rows.iter().any(|(_, row)| is_of_row(row)) {
        return;
    }
    let Some(at) = cx.own.gathered.iter().position(|gathered| gathered.row == number) else { return };
    let gathered = cx.own.gathered.swap_remove(at);
    let mut whole = Row { lists: gathered.lists.clone(), ..Row::default() };
    whole.begin(cx);
    cx.q.stats.full_comparisons += gathered.sums.len() as u64;
    cx.q.stats.pruned += (whole.sums.len() - gathered.sums.len()) as u64;
    let groups = cx.view.layout.groups();
    let scale = f64::from(cx.scratch.scale);
    let sum = |(at, &units): (usize, &f64)| gathered.fine.sum_of(at, groups).unwrap_or(units / scale);
    let sums = gathered.sums.iter().enumerate().map(sum);
    let (mut words, mut left) = (gathered.alive.iter(), sums.zip(&gathered.ids));
    for list in gathered.lists.iter().map(|probe| probe.list) {
        let first = cx.view.first[list as usize];
        let blocks = cx.view.members(list).div_ceil(LANES);
        for (block, &word) in words.by_ref().take(blocks).enumerate() {
            for (lane, (sum, &id)) in ones(word).zip(left.by_ref()) {
                let member = (block * LANES + usize::from(lane)) as u32;
                if cx.may_return(first.wrapping_add(member)) {
                    cx.q.top.offer((sum / unit_distance(cx.base.metric)) as f32, || id);
                }
            }
        }
        count_list(cx, list);
    }
}

impl Gathered {
    /// Adds the sums of a slice. What it has dropped is dropped.
    fn add(&mut self, slice: &Row, layout: &GridLayout) {
        let ids = slice.part.as_ref().map_or(&[][..], |part| &part.ids);
        let has_ids = !self.ids.is_empty();
        let (mut own, mut theirs) = (0, 0);
        let (mut sums, mut kept) = (Vec::with_capacity(slice.sums.len()), Vec::new());
        let (mut fine, groups) = (Fine::default(), layout.groups());
        // Other sums than products only grow.
        let below = if layout.metric == Metric::Ip { f64::INFINITY } else { coarse_below(layout) };
        let is_first = self.fine.is_empty() && self.sums.iter().all(|&sum| sum == 0.0);
        for (word, &other) in self.alive.iter_mut().zip(&slice.alive) {
            let both = *word & other;
            for lane in ones(*word | other).map(|lane| 1u64 << lane) {
                if both & lane != 0 {
                    let sum = self.sums[own] + slice.sums[theirs];
                    let (known, more) = (self.fine.of(own, groups), slice.fine.of(theirs, groups));
                    if let Some(more) = more.filter(|_| sum < below && (is_first || known.is_some())) {
                        fine.push(sums.len(), groups, known, (0..).zip(more.iter().copied()));
                    }
                    sums.push(sum);
                    let id = if has_ids { self.ids.get(own) } else { ids.get(theirs) };
                    kept.extend(id);
                }
                own += usize::from(*word & lane != 0);
                theirs += usize::from(other & lane != 0);
            }
            *word = both;
        }
        (self.sums, self.ids, self.fine) = (sums, kept, fine);
    }

    /// Memory beside the struct itself, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.lists.capacity() * size_of::<Probe>()
            + 8 * (self.alive.capacity() + self.sums.capacity() + self.ids.capacity())
            + self.fine.memory_bytes()
    }
}
