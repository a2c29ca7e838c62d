//! Lists that are divided over servers (HARMONY §4.1 and §4.3).
//!
//! Each list is divided into slices of its components, and each slice is on a server, or on several. Lists whose slices
//! are on the same servers are a *row*. The query stays at its origin and visits one row after another, those with the
//! nearest lists first. What a row needs of other servers is one job, which visits the servers of its slices in turn.
//! Each adds its components to the sums of the vectors that are left, and drops those beyond the threshold. The last
//! one replies with the best. Slices of the largest variance come first, wherever they are, and so most vectors drop
//! out early; a busy server comes last. Without the pipeline all slices are scored at once: see [`parallel_slices`].
//!
//! Rows of whole lists are a *chain*: one job visits them in turn and takes along the best vectors that it has found,
//! so that each row is pruned by all before it and only the last server replies. The origin scans its own lists after
//! the reply, or first where it has the nearest. A chain that is lost is begun again as one job for each row.

use alloc::vec::Vec;

use self::masks::Mask;
pub(super) use self::parallel_slices::Gathered;
use self::parallel_slices::Part;
use super::fine::Fine;
use super::rotated_query::RotatedQuery;
use super::scan::{Scanner, begin as begin_scan, count_list, limit, prewarm, scan_list};
use super::{CHAINS_VERSION, GridIvf, State, View};
use crate::codec::{Reader, Refused, Writer, varint_bytes};
use crate::kinds::kind::StepContext;
use crate::place::{Reach, SERVERS_MAX};
use crate::search::{Hit, IndexSize, Outcome, Tag, Threshold};
use crate::view::Base;
use stratann_kernel::columns::LANES;

/// Times that a row is begun again after a loss.
const TRIES: u8 = 4;

/// Lists of the first job of a query: what they hold lowers the limit for all others.
const FIRST_LISTS: usize = 1;

/// A list that is to be scanned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probe {
    list: u32,
    // Its first members were scored before.
    is_warm: bool,
    // Times that it was lost.
    tries: u8,
}

/// Lists that are scanned together, and the vectors of them that are left.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub(super) lists: Vec<Probe>,
    // A bit for each slice whose components are added.
    pub(super) done: u64,
    // The largest sum of a vector that may be among the results.
    limit: f64,
    // For each block of each list a bit for each vector that is left. Empty before the first slice is begun.
    pub(super) alive: Vec<u64>,
    // Their sums, whole numbers of units.
    pub(super) sums: Vec<f64>,
    // Those of each group, of vectors whose sum in units has too few digits.
    pub(super) fine: Fine,
    // What the slices that are missing need of the query.
    pub(super) query: RotatedQuery,
    // It is one slice of a row whose other slices are scored at the same time.
    pub(super) part: Option<Part>,
    // Lists of the rows that the same job visits after this one, the nearest first.
    pub(super) later: Vec<Probe>,
    // Of a job with a filter that has lists which are not begun: the members of its lists that may be returned.
    pub(super) masks: Vec<Mask>,
}

/// Scans what is here and not divided; the rest stays open. Where the nearest list is elsewhere, all stay open: its row
/// comes first then, and lowers the limit for all others.
pub(super) fn begin(cx: &mut StepContext<'_, GridIvf>) {
    let ranked = core::mem::take(&mut cx.scratch.ranked);
    begin_scan(cx);
    let warm = if cx.params.prewarm && cx.params.prune_dimension { prewarm(cx, &ranked) } else { 0 };
    let first_limit = first_limit(cx);
    cx.own.limit = first_limit;
    let nearest = &ranked[..ranked.len().min(cx.view.stripes.max(1) as usize)];
    let begins_here = nearest.is_empty() || nearest.iter().any(|list| is_here(cx, list.1, 0));
    for (rank, &probed) in ranked.iter().enumerate() {
        let is_warm = rank < warm;
        let skipped = if is_warm { cx.view.prewarmed(probed.1) } else { 0 };
        let is_scanned =
            begins_here && is_here(cx, probed.1, 0) && scan_list(cx, probed, skipped, first_limit).is_some();
        if !is_scanned {
            cx.own.open.push(Probe { list: probed.1, is_warm, tries: 0 });
        }
    }
    cx.scratch.ranked = ranked;
}

/// The limit of a query that has not begun its lists.
fn first_limit(cx: &StepContext<'_, GridIvf>) -> f64 {
    if cx.params.prune_dimension { limit(cx.q, cx.view.layout, cx.scratch.scale) } else { f64::INFINITY }
}

/// Begins rows until as many are under way as may be, and ends the query when none is left.
pub(super) fn choose(cx: &mut StepContext<'_, GridIvf>) {
    begin_scan(cx);
    while !cx.own.open.is_empty() && rows_under_way(cx.own) < usize::from(cx.params.fan_out) {
        if begin_row(cx).is_none() {
            return cx.q.finish(Outcome::OutOfBudget);
        }
    }
    cx.end_round(&[]);
}

/// Rows that are visited now.
fn rows_under_way(state: &State) -> usize {
    state.rows.iter().filter(|row| row.1.part.is_none()).count() + state.gathered.len()
}

/// Sends servers that score rows of this query a threshold that has fallen since these rows left. A round of rows ends
/// as a whole unless the mode is eager: then there is nobody to tell.
pub(super) fn tell(cx: &mut StepContext<'_, GridIvf>) {
    let Some(here) = cx.base.here.as_ref().filter(|_| cx.params.prune_vector && cx.params.prune_dimension)
    else {
        return;
    };
    let now = limit(cx.q, cx.view.layout, cx.scratch.scale);
    let mut servers = 0;
    for (_, row) in cx.own.rows.iter_mut().filter(|row| row.1.limit > now) {
        row.limit = now;
        let Some(probe) = row.lists.first() else { continue };
        let missing = (0..cx.view.slice_count()).filter(|slice| row.done >> slice & 1 == 0);
        servers |= missing
            .map(|slice| here.live_replicas(cx.view.unit(probe.list, slice)))
            .fold(0, |all, replicas| all | replicas);
    }
    let Some(threshold) = Threshold::new(now) else { return };
    for to in (0..SERVERS_MAX as u8).filter(|server| servers >> server & 1 == 1) {
        cx.q.io.tell(to, threshold);
        cx.q.stats.thresholds_sent += 1;
    }
}

/// Lowers the limit of a job.
pub(super) fn lower_threshold(state: &mut State, limit: f64) {
    state.rows.iter_mut().filter(|_| state.is_job).for_each(|row| row.1.limit = row.1.limit.min(limit));
}

/// Begins the row of the nearest list that is left. `None` when the budget allows no more jobs.
fn begin_row(cx: &mut StepContext<'_, GridIvf>) -> Option<()> {
    let mut row = Row::default();
    let open = core::mem::take(&mut cx.own.open);
    let is_of_row = |probe: &Probe| has_same_servers(cx, probe.list, open[0].list);
    let mut rest: Vec<Probe>;
    (row.lists, rest) = open.iter().partition(|probe| is_of_row(probe));
    // The limit falls within a row only where a server has whole lists, so the first lists go alone.
    if cx.view.slice_count() > 1 && cx.q.stats.lists == 0 && cx.own.rows.is_empty() && cx.params.prune_vector
    {
        let later = row.lists.split_off(FIRST_LISTS.min(row.lists.len()));
        rest.splice(0..0, later);
    }
    cx.own.open = rest;
    row.limit = if cx.params.prune_vector { first_limit(cx) } else { cx.own.limit };
    if !cx.params.pipeline && cx.view.slice_count() > 1 {
        return parallel_slices::begin(cx, row);
    }
    row.begin(cx);
    let missing = scan_here(cx, &mut row)?;
    if row.is_finished(cx.view) {
        row.lists.iter().for_each(|probe| count_list(cx, probe.list));
        return Some(());
    }
    match cx.base.here.as_ref().and_then(|here| here.next(&missing, 0)) {
        Some(to) => {
            row.later = chained(cx);
            let tag = cx.score(to)?;
            row.query = RotatedQuery::of(cx.base, cx.view, cx.scratch, row.done);
            if row.done == 0 {
                // The first scorer begins it: all vectors are left, with sums of 0.
                row.alive.clear();
                row.sums.clear();
                row.fine.clear();
                row.masks = masks::of(cx, row.lists.iter().chain(&row.later));
            }
            count_bytes(cx, &row);
            cx.own.rows.push((tag, row));
        }
        None => row.lists.iter().for_each(|probe| cx.q.give_up(cx.view.unit(probe.list, 0))),
    }
    Some(())
}

/// Whether all servers that this one knows of visit the rows after the first one.
fn reads_chains(cx: &StepContext<'_, GridIvf>) -> bool {
    cx.base.here.as_ref().is_some_and(|here| here.others.version >= CHAINS_VERSION)
}

/// Takes the lists that the job of a row visits after it: those that are elsewhere and were not lost before.
fn chained(cx: &mut StepContext<'_, GridIvf>) -> Vec<Probe> {
    if !(reads_chains(cx) && cx.params.chain && cx.params.fan_out == 1 && has_whole_lists(cx.view)) {
        return Vec::new();
    }
    let is_chained = |probe: &Probe| {
        let is_somewhere = cx.reach(cx.view.unit(probe.list, 0)) != Reach::Nowhere;
        probe.tries == 0 && is_somewhere && !is_here(cx, probe.list, 0)
    };
    let (later, open) = cx.own.open.iter().partition(|&probe| is_chained(probe));
    cx.own.open = open;
    later
}

/// Whether this server holds a slice. In a simulation the bytes of all of them are there.
fn is_here(cx: &StepContext<'_, GridIvf>, list: u32, slice: usize) -> bool {
    let unit = cx.view.unit(list, slice);
    cx.base.here.as_ref().is_none_or(|here| here.holds(unit)) && cx.view.slice(list, slice).is_some()
}

/// Whether all slices of two lists are on the same servers. Without servers all lists are here.
fn has_same_servers(cx: &StepContext<'_, GridIvf>, a: u32, b: u32) -> bool {
    let Some(here) = &cx.base.here else { return true };
    let on = |list, slice| here.placement.replicas(cx.view.unit(list, slice));
    (0..cx.view.slice_count()).all(|slice| on(a, slice) == on(b, slice))
}

/// The units of the first list of a row that are still missing, in the order in which they are visited: those of the
/// largest variance first, but for busy servers. Empty where a unit is nowhere.
fn next_units(cx: &StepContext<'_, GridIvf>, row: &Row) -> Vec<u32> {
    let Some(probe) = row.lists.first() else { return Vec::new() };
    let missing = (0..cx.view.slice_count()).filter(|slice| row.done >> slice & 1 == 0);
    let units: Vec<u32> = missing.map(|slice| cx.view.unit(probe.list, slice)).collect();
    if units.iter().any(|&unit| cx.reach(unit) == Reach::Nowhere) {
        return Vec::new();
    }
    let Some(here) = cx.base.here.as_ref().filter(|_| cx.params.busy_last) else { return units };
    let load = |unit: u32| {
        here.next(&[unit], 0).map_or(u8::MAX, |server| here.others.loads[usize::from(server) % LANES])
    };
    let mut by_load: Vec<(bool, u32)> = units.iter().map(|&unit| (false, unit)).collect();
    let least = units.iter().map(|&unit| load(unit)).min().unwrap_or(0);
    by_load.iter_mut().for_each(|(is_busy, unit)| *is_busy = is_overloaded(load(*unit), least));
    by_load.sort();
    by_load.into_iter().map(|(_, unit)| unit).collect()
}

/// Whether a server is busy beside the least busy one of a row. Some queries more are chance, and the order of variance
/// saves much work.
fn is_overloaded(load: u8, least: u8) -> bool {
    const SOME: u8 = 16;
    load > least.saturating_mul(3).saturating_add(SOME)
}

/// Adds the next slices of a row, as long as they are here. Returns the units that are missing then, in the order in
/// which they are visited; none where one is nowhere, or nothing is left to do. `None` for a row that cannot be.
fn scan_here(cx: &mut StepContext<'_, GridIvf>, row: &mut Row) -> Option<Vec<u32>> {
    while !row.is_finished(cx.view) {
        let missing = next_units(cx, row);
        let Some(slice) = missing.first().map(|&unit| cx.view.slice_of(unit)) else { break };
        if !row.is_here(cx, slice) {
            return Some(missing);
        }
        row.add_slice(cx, slice)?;
    }
    Some(Vec::new())
}

/// Bytes of what is left of a row.
#[cfg(test)]
pub(super) fn left_bytes(row: &Row) -> u64 {
    wire::left_bytes(row)
}

/// Counts what a job carries to a server.
fn count_bytes(cx: &mut StepContext<'_, GridIvf>, row: &Row) {
    cx.q.stats.query_bytes += row.query.bytes() + masks::bytes(&row.masks);
    cx.q.stats.sum_bytes += wire::left_bytes(row) + u64::from(!row.fine.is_empty());
}

/// Bytes of sums and of results that a job replies with.
fn reply_bytes(own: &State, row: &Row) -> (u64, u64) {
    match &row.part {
        None => (0, hits_bytes(&own.found)),
        Some(part) => (wire::left_bytes(row), part.ids.iter().map(|&id| varint_bytes(id)).sum()),
    }
}

/// Bytes of results in a message.
fn hits_bytes(hits: &[Hit]) -> u64 {
    hits.iter().map(|hit| 4 + varint_bytes(hit.external_id)).sum()
}

/// Goes on with a job.
pub(super) fn step_job(cx: &mut StepContext<'_, GridIvf>) {
    let Some((tag, mut row)) = cx.own.rows.pop() else { return cx.q.finish(Outcome::OutOfBudget) };
    let Some(sieve) = masks::sieve(&row, cx.view, cx.base.nodes) else {
        return cx.q.finish(Outcome::OutOfBudget);
    };
    let base = Base { sieve: sieve.as_ref().or(cx.base.sieve), ..*cx.base };
    let cx: &mut StepContext<'_, GridIvf> = &mut super::with_base(cx, &base);
    begin_scan(cx);
    cx.q.count_hop();
    let Some(missing) = go_on(cx, &mut row) else { return cx.q.finish(Outcome::OutOfBudget) };
    if missing.is_empty() {
        let State { found, .. } = &mut *cx.own;
        found.clone_from(&cx.q.top.hits);
        parallel_slices::note_ids(cx.view, &mut row);
        let is_finished = row.is_finished(cx.view);
        let (sums, results) = reply_bytes(cx.own, &row);
        cx.q.stats.sum_bytes += sums;
        cx.q.stats.result_bytes += results;
        cx.own.rows.push((tag, row));
        return cx.q.finish(if is_finished { Outcome::Complete } else { Outcome::Partial });
    }
    // A server of before would score the row and leave those after it.
    if !row.later.is_empty() && !reads_chains(cx) {
        cx.own.rows.push((tag, row));
        return cx.q.finish(Outcome::Partial);
    }
    row.query = RotatedQuery::of(cx.base, cx.view, cx.scratch, row.done);
    count_bytes(cx, &row);
    cx.q.stats.result_bytes += hits_bytes(&cx.q.top.hits);
    cx.own.rows.push((tag, row));
    cx.end_round(&missing);
}

/// Adds a slice that a job was sent here for, even if this server is busy now, and those that follow; then the rows
/// after it, as long as they are here.
fn go_on(cx: &mut StepContext<'_, GridIvf>, row: &mut Row) -> Option<Vec<u32>> {
    let is_new = row.alive.is_empty() && (row.done == 0 || row.part.is_some());
    if is_new && row.lists.iter().all(|probe| probe.list < cx.view.lists()) {
        row.begin(cx);
        if !has_whole_lists(cx.view) {
            // What is left tells from now on.
            row.masks.clear();
        }
    }
    if !row.is_sane(cx.view) {
        return None;
    }
    row.query.load(cx.base, cx.view, row.done, cx.scratch)?;
    if let Some(part) = &row.part {
        parallel_slices::load_norms(cx, part)?;
    }
    loop {
        let is_next = |slice: &usize| row.done >> slice & 1 == 0 && row.is_here(cx, *slice);
        if let Some(slice) = (0..cx.view.slice_count()).find(is_next) {
            row.add_slice(cx, slice)?;
        }
        let missing = scan_here(cx, row)?;
        if !row.is_finished(cx.view) || !row.begin_later(cx) {
            return Some(missing);
        }
    }
}

/// Appends what a job has found.
pub(super) fn encode_scores(state: &State, w: &mut Writer<'_>) {
    match state.rows.first() {
        Some((_, row)) if row.part.is_some() => parallel_slices::encode(row, w),
        _ => put_hits(&state.found, w),
    }
}

/// Takes what a job has found; nothing where it was lost.
pub(super) fn take_scores(
    cx: &mut StepContext<'_, GridIvf>,
    tag: Tag,
    scores: Option<&mut Reader<'_>>,
) -> Result<(), Refused> {
    let Some(at) = cx.own.rows.iter().position(|row| row.0 == tag) else { return Err(Refused::Content) };
    let Some(r) = scores else {
        let (_, row) = cx.own.rows.swap_remove(at);
        // Of all slices of a row that are lost, the first one opens its lists again.
        if row.part.is_some_and(|part| !parallel_slices::drop_row(cx.own, part.row)) {
            return Ok(());
        }
        for probe in row.lists.into_iter().chain(row.later) {
            if probe.tries + 1 >= TRIES {
                cx.q.give_up(cx.view.unit(probe.list, 0));
            } else {
                cx.own.open.push(Probe { tries: probe.tries + 1, ..probe });
            }
        }
        return Ok(());
    };
    if cx.own.rows[at].1.part.is_some() {
        return parallel_slices::take(cx, at, r);
    }
    let mut hits = Vec::new();
    take_hits(r, cx.q.top.k, &mut hits)?;
    if !r.0.is_empty() {
        return Err(Refused::Length);
    }
    let (_, row) = cx.own.rows.swap_remove(at);
    row.lists.iter().chain(&row.later).for_each(|probe| count_list(cx, probe.list));
    for hit in hits {
        cx.q.top.offer(hit.distance, || hit.external_id);
    }
    Ok(())
}

impl Row {
    fn is_here(&self, cx: &StepContext<'_, GridIvf>, slice: usize) -> bool {
        self.lists.iter().all(|probe| is_here(cx, probe.list, slice))
    }

    /// Vectors that are left.
    fn left(&self) -> usize {
        self.alive.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn is_finished(&self, view: &View<'_>) -> bool {
        (self.sums.is_empty() && !has_whole_lists(view)) || self.done == full(view.slice_count())
    }

    /// Whether it fits these lists: a row from another server may say anything.
    fn is_sane(&self, view: &View<'_>) -> bool {
        if self.lists.iter().chain(&self.later).any(|probe| probe.list >= view.lists()) {
            return false;
        }
        if has_whole_lists(view) {
            return self.done == 0 && self.alive.is_empty() && self.sums.is_empty() && self.part.is_none();
        }
        if !self.later.is_empty() {
            return false;
        }
        let members = || self.lists.iter().map(|probe| view.members(probe.list));
        let blocks: usize = members().map(|members| members.div_ceil(LANES)).sum();
        let wanted =
            members().flat_map(|members| (0..members).step_by(LANES).map(move |from| full(members - from)));
        blocks == self.alive.len()
            && self.alive.iter().zip(wanted).all(|(word, all)| word & !all == 0)
            && self.sums.len() == self.left()
            && self.done & !full(view.slice_count()) == 0
            && self.done != full(view.slice_count())
    }

    /// Adds a slice to the sums of all vectors that are left, and drops those beyond the limit. When no slice is
    /// missing then, offers them.
    fn add_slice(&mut self, cx: &mut StepContext<'_, GridIvf>, slice: usize) -> Option<()> {
        if has_whole_lists(cx.view) {
            return self.scan_lists(cx);
        }
        // A part has only its own slice.
        let is_first = self.done == 0 || self.part.is_some();
        self.done |= 1 << slice;
        let missing = match &self.part {
            Some(_) => full(cx.view.slice_count()) & !(1 << slice),
            None => full(cx.view.slice_count()) & !self.done,
        };
        let (mut word, mut read, mut write) = (0, 0, 0);
        let before = core::mem::take(&mut self.fine);
        let groups = cx.view.layout.groups();
        for at in 0..self.lists.len() {
            let list = self.lists[at].list;
            let view = *cx.view;
            let bytes = view.slice(list, slice)?;
            let blocks = bytes.blocks();
            let mut scanner = Scanner::new(cx, list, bytes, self.limit, (false, true))
                .without(missing, self.part.is_some());
            for block in 0..blocks {
                let bits = self.alive[word];
                let (mut sums, mut lanes, mut count) = ([f64::NAN; LANES], [0u8; LANES], 0);
                let mut places = [0; LANES];
                for lane in ones(bits) {
                    sums[usize::from(lane)] = self.sums[read];
                    places[usize::from(lane)] = read;
                    lanes[count] = lane;
                    (read, count) = (read + 1, count + 1);
                }
                scanner.tighten();
                let kept = if count == 0 { 0 } else { scanner.add(block, &mut sums, &mut lanes[..count]) };
                let lanes = &mut lanes[..kept];
                lanes.sort_unstable();
                self.alive[word] = lanes.iter().map(|lane| 1u64 << lane).sum();
                for &lane in &*lanes {
                    let sum = sums[usize::from(lane)];
                    self.sums[write] = sum;
                    if scanner.turned().is_coarse(scanner.list(), (block, lane), sum) {
                        let known = before.of(places[usize::from(lane)], groups);
                        if known.is_none() && !is_first {
                            return None;
                        }
                        let more = scanner.turned().fine_sums(scanner.list(), (block, lane));
                        self.fine.push(write, groups, known, more);
                    }
                    if missing == 0 {
                        let distance = scanner.turned().distance(sum, self.fine.sum_of(write, groups));
                        scanner.offer_one((block, lane), distance);
                    }
                    write += 1;
                }
                word += 1;
            }
        }
        self.sums.truncate(write);
        Some(())
    }

    /// Becomes the row of the nearest of the later lists; whether there is one.
    fn begin_later(&mut self, cx: &StepContext<'_, GridIvf>) -> bool {
        let later = core::mem::take(&mut self.later);
        let Some(first) = later.first() else { return false };
        (self.lists, self.later) =
            later.iter().partition(|probe| has_same_servers(cx, probe.list, first.list));
        self.done = 0;
        masks::keep_needed(self);
        true
    }

    /// Scans whole lists. Codes of the first one lower the limit, where it is among the nearest of the query or there
    /// is no limit yet.
    fn scan_lists(&mut self, cx: &mut StepContext<'_, GridIvf>) -> Option<()> {
        self.done = 1;
        let view = *cx.view;
        for (at, probe) in self.lists.iter().enumerate() {
            let list = view.list(probe.list)?;
            let skipped = if probe.is_warm { view.prewarmed(probe.list) } else { 0 };
            let mut scanner = Scanner::new(cx, probe.list, list, self.limit, (false, true));
            if at == 0 && (probe.is_warm || self.limit == f64::INFINITY) {
                scanner.bound_by_codes();
            }
            scanner.blocks(skipped);
            self.limit = scanner.limit();
        }
        Some(())
    }
}

/// Whether lists are not divided into slices.
fn has_whole_lists(view: &View<'_>) -> bool {
    view.slice_count() == 1
}

/// The lowest `count` bits.
fn full(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// The bits that are set, ascending.
fn ones(mut bits: u64) -> impl Iterator<Item = u8> {
    core::iter::from_fn(move || {
        let at = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (at < 64).then_some(at as u8)
    })
}

/// Whether it can go on over an index of this size.
pub(super) fn fits(state: &State, size: &IndexSize) -> bool {
    let rows = state.rows.iter().flat_map(|row| row.1.lists.iter().chain(&row.1.later));
    let gathered = state.gathered.iter().flat_map(|gathered| &gathered.lists);
    state.open.iter().chain(rows).chain(gathered).all(|probe| probe.list < size.clusters)
}

/// Memory beside the struct itself, bytes.
pub(super) fn memory_bytes(state: &State) -> usize {
    let of_row = |row: &Row| {
        (row.lists.capacity() + row.later.capacity()) * size_of::<Probe>()
            + 8 * (row.alive.capacity() + row.sums.capacity())
            + row.fine.memory_bytes()
            + row.query.memory_bytes()
            + masks::memory_bytes(&row.masks)
            + row.part.as_ref().map_or(0, |part| 8 * part.ids.capacity() + 4 * part.norms.capacity())
    };
    state.open.capacity() * size_of::<Probe>()
        + state.rows.capacity() * size_of::<(Tag, Row)>()
        + state.rows.iter().map(|row| of_row(&row.1)).sum::<usize>()
        + state.gathered.capacity() * size_of::<Gathered>()
        + state.gathered.iter().map(Gathered::memory_bytes).sum::<usize>()
        + state.found.capacity() * size_of::<Hit>()
}

mod masks;
mod parallel_slices;
mod wire;
pub(super) use wire::{decode, encode};
use wire::{put_hits, take_hits};
