//! Scores the lists of a batch where they are, all servers at once, and scores vectors for queries of other servers.
//!
//! A query takes its next lists as a batch. Lists of other servers become jobs, one for each server; those of its own
//! are read and scanned here in the same way. When all have come they take effect in the order of their ranks, so the
//! answer is that of one server. Within a batch a scorer prunes by what it has seen itself and by the threshold that
//! came with the job: less than one server would, and never more. A forwarded job visits the servers in turn, and
//! prunes by what all of them have seen.

use alloc::vec::Vec;

use super::rerank;
use super::scan::{codes_of, each_member, mark_fruitful, prune_candidates, score_whole, threshold, weigh};
use super::visit::{self, fetch};
use super::{HybridIvf, ReadKind, Scored, Scratch, State, View, bound_estimator};
use crate::codec::{Reader, Refused, Writer};
use crate::exact::{Bounds, DistanceBounds};
use crate::format::inverted_list::ListCodes;
use crate::kinds::kind::StepContext;
use crate::place::{Reach, bit};
use crate::search::{Extent, IndexSize, KSmallest, Loss, Outcome, ScoringMode, Tag};

/// Most lists of a batch. Later ones are pruned by what these hold.
const LISTS_MAX: usize = 64;
/// Clusters of a batch, as a share of those that would end the visits if all were fruitless and each counted 1: what a
/// cluster counts grows while the threshold falls.
const LIKELY_SHARE: f32 = 0.5;

/// Work of a state for another query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Job {
    /// Nothing: it is a query.
    #[default]
    None = 0,
    /// Scans the lists of its batch.
    Lists = 1,
    /// Scores its candidates by their vectors.
    Records = 2,
}

/// A member that may be among the best of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) id: u32,
    pub(crate) bounds: DistanceBounds,
}

/// Lists that are scored together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Batch {
    pub(crate) job: Job,
    /// The lists, by rank.
    pub(crate) lists: Vec<u32>,
    /// Lists that are being read here or scored elsewhere.
    pub(crate) asked: Vec<(Tag, u32)>,
    /// The threshold when the batch began: members with a lower bound beyond it are pruned.
    pub(crate) at_most: f32,
    /// Lists that were scored, each with the end of its entries.
    pub(crate) scored: Vec<(u32, u32)>,
    pub(crate) entries: Vec<Entry>,
    /// The k smallest estimates and upper bounds of what was known when the batch began, and of the lists of it that
    /// were scanned here.
    pub(crate) estimates: KSmallest,
    pub(crate) upper_bounds: KSmallest,
}

impl Batch {
    /// Empties it, keeping the memory.
    pub(crate) fn reset(&mut self, k: u32) {
        self.job = Job::None;
        self.lists.clear();
        self.asked.clear();
        self.at_most = f32::INFINITY;
        self.scored.clear();
        self.entries.clear();
        self.estimates.reset(k as usize);
        self.upper_bounds.reset(k as usize);
    }

    /// Whether this read or job is one of the batch.
    pub(crate) fn awaits(&self, tag: Tag) -> bool {
        self.asked.iter().any(|asked| asked.0 == tag)
    }

    /// Whether it can go on over an index of this size: nothing is under way, and a query has none.
    pub(crate) fn fits(&self, size: &IndexSize) -> bool {
        let is_fresh = self.scored.is_empty() && self.entries.is_empty();
        let has_lists = self.lists.len() <= LISTS_MAX && self.lists.iter().all(|&list| list < size.units);
        // A job that is forwarded has the scores of the servers before.
        let is_forwarded = || {
            self.scored.iter().enumerate().all(|(at, scored)| {
                self.lists.contains(&scored.0) && self.scored[..at].iter().all(|before| before.0 != scored.0)
            }) && self.entries.iter().all(|entry| entry.id < size.nodes)
        };
        let fits = || match self.job {
            Job::Lists => is_forwarded(),
            Job::Records | Job::None => is_fresh && self.lists.is_empty(),
        };
        has_lists && self.asked.is_empty() && fits()
    }

    /// Memory beside the struct itself, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        4 * self.lists.capacity()
            + self.asked.capacity() * size_of::<(Tag, u32)>()
            + self.scored.capacity() * size_of::<(u32, u32)>()
            + self.entries.capacity() * size_of::<Entry>()
            + 4 * (self.estimates.values.capacity() + self.upper_bounds.values.capacity())
    }

    /// Whether a list waits to be read or scored.
    fn is_open(&self, list: u32) -> bool {
        self.scored.iter().all(|scored| scored.0 != list) && self.asked.iter().all(|asked| asked.1 != list)
    }

    /// The entries of a list; `None` where it was not scored.
    fn entries_of(&self, list: u32) -> Option<&[Entry]> {
        let at = self.scored.iter().position(|scored| scored.0 == list)?;
        let start = at.checked_sub(1).map_or(0, |before| self.scored[before].1);
        self.entries.get(start as usize..self.scored[at].1 as usize)
    }
}

/// The next step of the visits.
pub(super) enum Next {
    /// Lists are being read or scored.
    Waits,
    /// The batch has taken effect.
    Settled,
    /// No list is left, or the next cluster is searched in another way.
    None,
}

/// Whether lists are scored in batches now. A cluster that is a graph is searched by the query itself, and without
/// bounds there is nothing that scorers could prune: the query is handed over then.
pub(super) fn is_used(cx: &StepContext<'_, HybridIvf>) -> bool {
    let has_local = cx.own.local.is_on || cx.own.local.codes.lists_left > 0;
    cx.params.scores_remotely() && cx.base.here.is_some() && cx.params.bounds != Bounds::Off && !has_local
}

/// Begins a batch where there is none, asks for its lists, and lets it take effect when all have come. `None` when the
/// budget allows no more.
pub(super) fn choose(cx: &mut StepContext<'_, HybridIvf>) -> Option<Next> {
    if cx.own.batch.lists.is_empty() {
        begin(cx)?;
        if cx.own.batch.lists.is_empty() {
            return Some(Next::None);
        }
    }
    ask_here(cx)?;
    ask_others(cx)?;
    if !cx.q.io.pending.is_empty() {
        return Some(Next::Waits);
    }
    take_effect(cx);
    Some(Next::Settled)
}

/// Takes the next lists, as far as it is likely that they are scanned.
fn begin(cx: &mut StepContext<'_, HybridIvf>) -> Option<()> {
    let left = cx.params.fruitless_limit(cx.own.ranked.len()) - cx.own.fruitless;
    let mut clusters = 0;
    while cx.own.batch.lists.len() < LISTS_MAX {
        if let Some(list) = cx.own.lists.pop() {
            cx.own.batch.lists.push(list);
            continue;
        }
        let next = cx.own.ranked.get(cx.own.begun as usize).filter(|_| visit::has_clusters(cx));
        let is_graph = |cluster: u32| !cx.params.exact && cx.view.directory.has_edges(cluster);
        let is_likely = clusters == 0 || (clusters as f32) < LIKELY_SHARE * left;
        if next.is_none_or(|&cluster| is_graph(cluster)) || !is_likely {
            break;
        }
        visit::begin_cluster(cx)?;
        clusters += 1;
    }
    cx.own.batch.at_most = threshold(cx);
    let State { batch, estimates, upper_bounds, .. } = &mut *cx.own;
    batch.estimates.copy(estimates);
    batch.upper_bounds.copy(upper_bounds);
    Some(())
}

/// Scans resident lists and reads others of this server, `width` reads at a time; lists that follow each other in one
/// read.
fn ask_here(cx: &mut StepContext<'_, HybridIvf>) -> Option<()> {
    let directory = cx.view.directory;
    cx.own.batch.asked.retain(|asked| cx.q.io.get(asked.0).is_some());
    let lists = core::mem::take(&mut cx.own.batch.lists);
    let mut done = Some(());
    for &list in &lists {
        if done.is_none() || cx.q.io.reads() >= cx.q.width as usize {
            break;
        }
        if !cx.own.batch.is_open(list) {
            continue;
        }
        if let Some(codes) = cx.view.resident_codes(list) {
            done = scan(cx, list, codes, None);
            continue;
        }
        let can_read = |cx: &StepContext<'_, HybridIvf>, list: u32| {
            cx.own.batch.is_open(list)
                && cx.view.resident_codes(list).is_none()
                && cx.reach(list) == Reach::Here
        };
        if !can_read(cx, list) {
            continue;
        }
        let start = directory.codes[list as usize];
        let mut end = cx.view.list_end(list);
        let mut last = list;
        while lists.contains(&(last + 1)) && can_read(cx, last + 1) {
            let follows = directory.codes[last as usize + 1] == end;
            let next_end = cx.view.list_end(last + 1);
            if !follows || next_end.saturating_sub(start) > u64::from(cx.view.read_max) {
                break;
            }
            (last, end) = (last + 1, next_end);
        }
        let tag = fetch(cx, start, end - start, ReadKind::Lists { first: list, count: last + 1 - list });
        done = tag.map(|tag| cx.own.batch.asked.extend((list..=last).map(|list| (tag, list))));
    }
    cx.own.batch.lists = lists;
    done
}

/// Asks other servers for the lists that they hold, each once.
fn ask_others(cx: &mut StepContext<'_, HybridIvf>) -> Option<()> {
    let mut targets = core::mem::take(&mut cx.scratch.targets);
    targets.clear();
    let open = cx.own.batch.lists.iter().filter(|&&list| cx.own.batch.is_open(list));
    targets.extend(open.filter_map(|&list| Some((scorer(cx, list)?, list))));
    let done = ask_each(cx, &mut targets, |cx, tag, list| cx.own.batch.asked.push((tag, list)));
    cx.scratch.targets = targets;
    done
}

/// The server that scores a list; `None` where it is here, or nowhere.
fn scorer(cx: &StepContext<'_, HybridIvf>, list: u32) -> Option<u8> {
    let here = cx.base.here.as_ref().filter(|_| cx.reach(list) == Reach::Remote)?;
    here.next(&[list], cx.q.lost_units.tried(list))
}

/// Asks each server for what it holds; where jobs are forwarded, one for all. `note` receives the tag and the list or
/// member.
fn ask_each(
    cx: &mut StepContext<'_, HybridIvf>,
    targets: &mut [(u8, u32)],
    mut note: impl FnMut(&mut StepContext<'_, HybridIvf>, Tag, u32),
) -> Option<()> {
    if cx.params.remote == ScoringMode::Forward
        && let Some(&(first, _)) = targets.first()
    {
        targets.iter_mut().for_each(|target| target.0 = first);
    }
    targets.sort_by_key(|target| target.0);
    for of_server in targets.chunk_by(|a, b| a.0 == b.0) {
        let tag = cx.score(of_server[0].0)?;
        of_server.iter().for_each(|&(_, what)| note(cx, tag, what));
    }
    Some(())
}

/// Asks other servers for the distances of candidates of a round, and of those that later rounds are likely to need.
pub(super) fn ask_records(cx: &mut StepContext<'_, HybridIvf>) -> Option<()> {
    let mut targets = core::mem::take(&mut cx.scratch.targets);
    targets.clear();
    let limit = cx.own.estimates.kth();
    let likely = cx.own.candidates.iter().filter(|c| c.lower <= limit);
    for c in cx.scratch.remote.iter().chain(likely) {
        let is_asked = cx.own.awaited.iter().any(|awaited| awaited.1 == c.id);
        if is_asked || rerank::is_known(cx, c.id) {
            continue;
        }
        targets.extend(scorer(cx, cx.view.directory.list_of(c.id)).map(|server| (server, c.id)));
    }
    targets.sort_unstable();
    targets.dedup();
    let done = ask_each(cx, &mut targets, |cx, tag, id| cx.own.awaited.push((tag, id)));
    cx.scratch.targets = targets;
    done
}

/// Scans lists of the batch that were read here.
pub(super) fn take(
    cx: &mut StepContext<'_, HybridIvf>,
    tag: Tag,
    (first, count): (u32, u32),
    bytes: &[u8],
) -> Option<()> {
    cx.own.batch.asked.retain(|asked| asked.0 != tag);
    for list in first..first.checked_add(count)? {
        let (codes, after) = codes_of(cx.view, (first, list), bytes)?;
        let records = cx.view.directory.is_whole(&cx.view.shape, list).then_some(after);
        scan(cx, list, codes, records)?;
    }
    Some(())
}

/// Scans one list of the batch.
fn scan(cx: &mut StepContext<'_, HybridIvf>, list: u32, codes: &[u8], records: Option<&[u8]>) -> Option<()> {
    let codes = ListCodes::open(&cx.view.shape, list, codes)?;
    let (estimator, first) = (bound_estimator(cx), codes.first_id());
    let limit = |batch: &Batch| batch.at_most.min(batch.upper_bounds.kth());
    let cut = estimator.cut(limit(&cx.own.batch), cx.own.batch.estimates.kth());
    each_member(cx, &codes, (&estimator, cut), |cx, slot, bounds, by_pivot| {
        let batch = &mut cx.own.batch;
        let mut is_among_best = batch.estimates.offer(bounds.estimate);
        let mut lower = by_pivot;
        if estimator.uses_codes() {
            is_among_best |= batch.upper_bounds.offer(bounds.upper);
            lower = lower.max(bounds.lower);
        }
        let is_candidate = lower <= limit(batch);
        if !is_candidate && !is_among_best {
            cx.q.stats.pruned += 1;
            return Some(());
        }
        let id = first.wrapping_add(slot);
        batch.entries.push(Entry { id, bounds: DistanceBounds { lower, ..bounds } });
        records.filter(|_| is_candidate).map_or(Some(()), |bytes| score_whole(cx, id, slot, bytes))
    })?;
    let end = cx.own.batch.entries.len() as u32;
    cx.own.batch.scored.push((list, end));
    Some(())
}

/// Lets the lists of the batch take effect by rank, as if they had been scanned one after another. Those that no server
/// could read are given up.
fn take_effect(cx: &mut StepContext<'_, HybridIvf>) {
    let estimator = bound_estimator(cx);
    let mut batch = core::mem::take(&mut cx.own.batch);
    for &list in &batch.lists {
        if visit::stops_before(cx, list) {
            break;
        }
        let cluster = cx.view.directory.cluster_of(list);
        let Some(entries) = batch.entries_of(list) else {
            cx.q.give_up(list);
            visit::end_list(cx, list);
            continue;
        };
        visit::begin_visit(cx, cluster);
        let mut fruitful = false;
        for entry in entries {
            let (is_among_best, lower) = weigh(cx, &estimator, &entry.bounds, entry.bounds.lower);
            fruitful |= is_among_best;
            let (estimate, id) = (entry.bounds.estimate, entry.id);
            cx.own.candidates.extend(lower.map(|lower| super::Unread { estimate, lower, id }));
        }
        if fruitful {
            mark_fruitful(cx, cluster);
        }
        visit::end_list(cx, list);
    }
    batch.reset(cx.q.top.k);
    cx.own.batch = batch;
    prune_candidates(cx);
    keep_scored(cx, |own, ids| ids.extend(own.candidates.iter().map(|c| c.id)));
}

/// Makes the job of a tag.
pub(super) fn job(state: &State, view: &View<'_>, tag: Tag, job: &mut State) {
    let own = &state.batch;
    let lists = own.asked.iter().filter(|asked| asked.0 == tag).map(|asked| asked.1);
    job.batch.lists.extend(lists);
    job.batch.at_most = own.at_most;
    if !job.batch.lists.is_empty() {
        job.batch.job = Job::Lists;
        job.batch.estimates.copy(&state.estimates);
        job.batch.upper_bounds.copy(&state.upper_bounds);
        let is_asked = |&id: &u32| job.batch.lists.contains(&view.directory.list_of(id));
        job.navigated.extend(state.navigated.iter().copied().filter(is_asked));
        return;
    }
    job.batch.job = Job::Records;
    let ids = state.awaited.iter().filter(|awaited| awaited.0 == tag).map(|awaited| awaited.1);
    job.candidates.extend(ids.map(|id| super::Unread { estimate: 0.0, lower: 0.0, id }));
}

/// Goes on with a job, and ends it when nothing is left that can be read here.
pub(super) fn choose_job(cx: &mut StepContext<'_, HybridIvf>) {
    let asked = match cx.own.batch.job {
        Job::Lists => ask_here(cx),
        Job::Records | Job::None => read_records(cx),
    };
    if asked.is_none() || (!cx.q.io.wants.is_empty() && cx.q.budget.hops == 0) {
        return cx.q.finish(Outcome::OutOfBudget);
    }
    if cx.q.io.pending.is_empty() && cx.own.batch.job == Job::Lists {
        drop_pruned(cx);
    }
    let mut elsewhere = core::mem::take(&mut cx.scratch.elsewhere);
    elsewhere.clear();
    if cx.params.remote == ScoringMode::Forward && cx.q.budget.hand_overs > 0 {
        find_elsewhere(cx, &mut elsewhere);
    }
    cx.end_round(&elsewhere);
    cx.scratch.elsewhere = elsewhere;
}

/// Finds the lists on other servers that a job is to be forwarded for.
fn find_elsewhere(cx: &StepContext<'_, HybridIvf>, out: &mut Vec<u32>) {
    let batch = &cx.own.batch;
    let is_elsewhere = |&list: &u32| cx.reach(list) == Reach::Remote;
    match batch.job {
        Job::Lists => {
            out.extend(batch.lists.iter().copied().filter(|&list| batch.is_open(list)).filter(is_elsewhere));
        }
        Job::Records | Job::None => {
            let unread = cx.own.candidates.iter().filter(|c| !rerank::is_known(cx, c.id));
            out.extend(unread.map(|c| cx.view.directory.list_of(c.id)).filter(is_elsewhere));
        }
    }
}

/// Scores the candidates of a job.
fn read_records(cx: &mut StepContext<'_, HybridIvf>) -> Option<()> {
    cx.own.awaited.retain(|awaited| cx.q.io.get(awaited.0).is_some());
    cx.scratch.here.clear();
    rerank::read_ahead(cx, cx.q.width as usize)
}

/// Drops entries that the whole job has pruned, where it does not matter what was known when a list was scanned.
fn drop_pruned(cx: &mut StepContext<'_, HybridIvf>) {
    if cx.params.early_stop.is_finite() {
        return;
    }
    let State { batch, .. } = &mut *cx.own;
    let limit = batch.at_most.min(batch.upper_bounds.kth());
    let (estimate_max, upper_max) = (batch.estimates.kth(), batch.upper_bounds.kth());
    let (mut from, mut kept) = (0, 0);
    for scored in &mut batch.scored {
        for at in from..scored.1 as usize {
            let entry = batch.entries[at];
            let DistanceBounds { estimate, lower, upper } = entry.bounds;
            if lower <= limit || estimate <= estimate_max || upper <= upper_max {
                batch.entries[kept] = entry;
                kept += 1;
            } else {
                cx.q.stats.pruned += 1;
            }
        }
        from = core::mem::replace(&mut scored.1, kept as u32) as usize;
    }
    batch.entries.truncate(kept);
    keep_scored(cx, |own, ids| ids.extend(own.batch.entries.iter().map(|entry| entry.id)));
}

/// Forgets the distances of members of whole lists but for those that `list` names.
fn keep_scored(cx: &mut StepContext<'_, HybridIvf>, list: impl Fn(&State, &mut Vec<u32>)) {
    let Scratch { ids, .. } = &mut *cx.scratch;
    ids.clear();
    list(cx.own, ids);
    ids.sort_unstable();
    cx.own.scored.retain(|scored| ids.binary_search(&scored.id).is_ok());
}

/// Appends the scores of a job: lists with the number of their entries, the entries, and the members with exact
/// distances.
pub(super) fn encode_scores(state: &State, w: &mut Writer<'_>) {
    super::wire::put_lists(&state.batch, w);
    super::wire::put_scored(&state.scored, w);
}

/// Takes the scores of a job. What it was asked for and does not hold could not be read by `scorer`.
pub(super) fn take_scores(
    cx: &mut StepContext<'_, HybridIvf>,
    (tag, scorer): (Tag, u8),
    r: &mut Reader<'_>,
) -> Result<(), Refused> {
    let before = (cx.own.batch.scored.len(), cx.own.batch.entries.len());
    let taken = read_scores(cx, tag, r);
    if taken.is_err() {
        cx.own.batch.scored.truncate(before.0);
        cx.own.batch.entries.truncate(before.1);
        return taken;
    }
    let mut scored = core::mem::take(&mut cx.scratch.scored);
    let has_scores = cx.own.batch.scored.len() > before.0 || !scored.is_empty();
    let State { batch, awaited, .. } = &mut *cx.own;
    batch.asked.retain(|asked| asked.0 != tag || batch.scored.iter().all(|scored| scored.0 != asked.1));
    awaited.retain(|awaited| awaited.0 != tag || scored.iter().all(|scored| scored.id != awaited.1));
    for one in scored.drain(..) {
        let at = cx.own.scored.partition_point(|scored| scored.id < one.id);
        if cx.own.scored.get(at).is_none_or(|known| known.id != one.id) {
            cx.own.scored.insert(at, one);
        }
    }
    cx.scratch.scored = scored;
    lose_scores(cx, (tag, scorer), Loss::Failed, has_scores);
    Ok(())
}

/// Lets what a forwarded job did not reach be asked for again, where `scorer`, the first server that it visited, does
/// not hold it. A server that holds nothing of a job without scores has failed to pass it on.
fn reopen(cx: &mut StepContext<'_, HybridIvf>, (tag, scorer): (Tag, u8), has_scores: bool) {
    let (Some(here), directory) = (&cx.base.here, cx.view.directory) else { return };
    if cx.params.remote != ScoringMode::Forward {
        return;
    }
    let is_held = |list: u32| here.placement.replicas(list) & bit(scorer) != 0;
    let State { batch, awaited, .. } = &mut *cx.own;
    let holds_list = batch.asked.iter().any(|asked| asked.0 == tag && is_held(asked.1));
    let is_held_member = |id: u32| is_held(directory.list_of(id));
    let holds_member = awaited.iter().any(|awaited| awaited.0 == tag && is_held_member(awaited.1));
    if has_scores || holds_list || holds_member {
        batch.asked.retain(|asked| asked.0 != tag || is_held(asked.1));
        awaited.retain(|awaited| awaited.0 != tag || is_held_member(awaited.1));
    }
}

/// Reads scores into the batch and into the scratch memory, and checks that they were asked for.
fn read_scores(cx: &mut StepContext<'_, HybridIvf>, tag: Tag, r: &mut Reader<'_>) -> Result<(), Refused> {
    let directory = cx.view.directory;
    let State { batch, awaited, .. } = &mut *cx.own;
    let from = (batch.scored.len(), batch.entries.len());
    super::wire::take_lists(r, batch)?;
    let mut start = from.1;
    for (at, &(list, end)) in batch.scored.iter().enumerate().skip(from.0) {
        let is_new = batch.scored[..at].iter().all(|scored| scored.0 != list);
        if !is_new || !batch.asked.contains(&(tag, list)) {
            return Err(Refused::Content);
        }
        let members = directory.ids[list as usize]..directory.ids[list as usize + 1];
        if !batch.entries[start..end as usize].iter().all(|entry| members.contains(&entry.id)) {
            return Err(Refused::Content);
        }
        start = end as usize;
    }
    let scored: &mut Vec<Scored> = &mut cx.scratch.scored;
    scored.clear();
    super::wire::take_scored(r, super::wire::CANDIDATES_MAX, scored)?;
    let is_asked = |one: &Scored| {
        awaited.contains(&(tag, one.id)) || batch.entries[from.1..].iter().any(|entry| entry.id == one.id)
    };
    if r.0.is_empty() && scored.iter().all(is_asked) { Ok(()) } else { Err(Refused::Content) }
}

/// Notes that a server did not score what it was asked for with a tag: another one is asked, if there is one.
/// `has_scores` tells that it scored some of it.
pub(super) fn lose_scores(
    cx: &mut StepContext<'_, HybridIvf>,
    (tag, scorer): (Tag, u8),
    loss: Loss,
    has_scores: bool,
) {
    reopen(cx, (tag, scorer), has_scores);
    let directory = cx.view.directory;
    let lists = cx.own.batch.asked.iter().filter(|asked| asked.0 == tag).map(|asked| asked.1);
    let records = cx.own.awaited.iter().filter(|awaited| awaited.0 == tag);
    for list in lists.chain(records.map(|awaited| directory.list_of(awaited.1))) {
        if !cx.q.lost_units.add(list, scorer, loss) {
            return cx.q.finish(Outcome::Lost { unit: list, at: Extent::default(), loss });
        }
    }
    cx.own.batch.asked.retain(|asked| asked.0 != tag);
    cx.own.awaited.retain(|awaited| awaited.0 != tag);
}
