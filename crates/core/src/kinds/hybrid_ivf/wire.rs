//! The state of a `hybrid-ivf` query as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | … | ranked clusters: count, 4 bytes each; visits begun (varint) |
//! | 4 | weight of the fruitless clusters in a row |
//! | … | lists to scan: count, 4 bytes each |
//! | … | queued lists: count, then first list (4 bytes), number of lists (varint), whether being read (1 byte), and if so the tag (4 bytes) each |
//! | … | visits: count, then cluster (4 bytes), lists left (varint), whether begun and whether fruitful (1 byte each), weight (4 bytes) each |
//! | … | local search: whether on (1 byte), cluster (4 bytes), members (varint); smallest estimates; beam: capacity, count, then distance (4 bytes), member (4 bytes), progress (1 byte) each; codes of its cluster: lists to be read, starts of lists, bytes: count and content each; a bit for each member, visited or not |
//! | … | candidates: count, then estimate, lower bound, member (4 bytes each) |
//! | … | members that become results together: count, 4 bytes each |
//! | … | awaited candidates: count, then tag and member (4 bytes each) |
//! | … | candidates scored and not settled: count, then member, distance (4 bytes each) and external id (varint) each |
//! | … | members read: count, then member and distance (4 bytes each) |
//! | … | members among the results: count, then member, distance (4 bytes each) and external id (varint) each |
//! | … | smallest estimates, smallest upper bounds: k, count, 4 bytes each |
//! | … | members that the navigation found: count, 4 bytes each |
//! | 1 + … | job (0 none, 1 lists, 2 records, 3 no batch, and nothing follows); lists: count, 4 bytes each; asked for: count, then tag and list (4 bytes each); threshold (4 bytes); scored lists: count, then list (4 bytes), entries: count, then member, estimate, lower and upper bound (4 bytes each); smallest estimates and upper bounds of the batch, as above |
//!
//! Counts are varints. Lists hold at most what a query of these parameters can have.

use alloc::vec::Vec;

use super::batch::Entry;
use super::{Batch, Job, MAX_LOCAL_LIST, Order, Params, QueuedLists, Scored, State, Unread, Visit};
use crate::codec::{Reader, Refused, Writer};
use crate::exact::{Bounds, DistanceBounds};
use crate::search::{Candidate, KSmallest, Progress, ScoringMode, Tag};

/// Most lists of clusters that were begun. A query scans those of one cluster before it begins the next.
const LISTS_MAX: u32 = 1 << 22;
/// Most clusters of an index.
const CLUSTERS_MAX: u32 = 1 << 22;
/// Most lists of one read.
const LISTS_OF_READ_MAX: u32 = 1 << 16;
/// Most groups of lists that wait for those before them.
const QUEUE_MAX: u32 = 1 << 8;
/// Most members of a cluster that is a graph.
const MEMBERS_MAX: u32 = 1 << 26;
/// Most bytes of the codes of such a cluster.
const CODES_BYTES_MAX: u32 = 1 << 30;
/// Most candidates: a scanned list may add all its members before some are read.
pub(super) const CANDIDATES_MAX: u32 = 1 << 24;
/// Most members kept for learning.
const READ_MAX: u32 = 1 << 16;

/// First version of states in which servers know jobs that are forwarded. Others score what they hold, and reply.
const FORWARD_VERSION: u32 = 11;
/// Number in place of the job, for a query without a batch.
const NO_BATCH: u8 = 3;

pub(super) fn encode_params(p: &Params, version: u32, w: &mut Writer<'_>) {
    [p.nprobe, p.sample_hits, p.local_lists, p.local_list].into_iter().for_each(|x| w.u32(x));
    w.u32(p.early_stop.to_bits());
    w.u32(p.bound_slack.to_bits());
    w.u8(p.order as u8);
    w.u8(p.bounds as u8);
    let forwards = p.remote == ScoringMode::Forward && version >= FORWARD_VERSION;
    let remote = u8::from(p.scores_remotely()) << 2 | u8::from(forwards) << 3;
    w.u8(u8::from(p.weighed) | u8::from(p.exact) << 1 | remote);
}

pub(super) fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
    let (nprobe, sample_hits, local_lists, local_list) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let (early_stop, bound_slack) = (f32::from_bits(r.u32()?), f32::from_bits(r.u32()?));
    let order = Order::ALL.get(usize::from(r.u8()?)).copied().ok_or(Refused::Content)?;
    let bounds = match r.u8()? {
        0 => Bounds::Off,
        1 => Bounds::Centroid,
        2 => Bounds::Code,
        3 => Bounds::Both,
        _ => return Err(Refused::Content),
    };
    let flags = r.u8()?;
    let remote = match flags >> 2 {
        0 => ScoringMode::HandOver,
        1 => ScoringMode::Score,
        3 => ScoringMode::Forward,
        _ => return Err(Refused::Content),
    };
    let (weighed, exact) = (flags & 1 != 0, flags & 2 != 0);
    Ok(Params {
        nprobe,
        sample_hits,
        order,
        early_stop,
        weighed,
        local_lists,
        local_list,
        bounds,
        exact,
        remote,
        bound_slack,
    })
}

pub(super) fn encode(s: &State, w: &mut Writer<'_>) {
    put_words(&s.ranked, w);
    w.varint(s.begun.into());
    w.u32(s.fruitless.to_bits());
    put_words(&s.lists, w);
    w.varint(s.queue.len() as u64);
    for queued in &s.queue {
        w.u32(queued.first);
        w.varint(queued.count.into());
        w.u8(u8::from(queued.tag.is_some()));
        if let Some(tag) = queued.tag {
            w.u32(tag.0);
        }
    }
    w.varint(s.visits.len() as u64);
    for visit in &s.visits {
        w.u32(visit.cluster);
        w.varint(visit.lists_left.into());
        w.u8(u8::from(visit.has_begun));
        w.u8(u8::from(visit.fruitful));
        w.u32(visit.weight.to_bits());
    }
    put_local(s, w);
    w.varint(s.candidates.len() as u64);
    s.candidates.iter().for_each(|c| put_candidate(c, w));
    put_words(&s.round, w);
    w.varint(s.awaited.len() as u64);
    for &(tag, id) in &s.awaited {
        w.u32(tag.0);
        w.u32(id);
    }
    put_scored(&s.scored, w);
    w.varint(s.read.len() as u64);
    for &(id, distance) in &s.read {
        w.u32(id);
        w.u32(distance.to_bits());
    }
    put_scored(&s.results, w);
    put_smallest(&s.estimates, w);
    put_smallest(&s.upper_bounds, w);
    put_words(&s.navigated, w);
    put_batch(&s.batch, w);
}

pub(super) fn decode(s: &mut State, params: &Params, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
    take_words(r, params.visits_max(CLUSTERS_MAX), &mut s.ranked)?;
    s.begun = r.count(s.ranked.len() as u32)?;
    s.fruitless = f32::from_bits(r.u32()?);
    take_words(r, LISTS_MAX, &mut s.lists)?;
    for _ in 0..r.count(QUEUE_MAX)? {
        let (first, count) = (r.u32()?, r.count(LISTS_OF_READ_MAX)?);
        first.checked_add(count).ok_or(Refused::Content)?;
        let tag = if flag(r)? { Some(Tag(r.u32()?)) } else { None };
        s.queue.push(QueuedLists { first, count, tag });
    }
    for _ in 0..r.count(CLUSTERS_MAX)? {
        let (cluster, lists_left) = (r.u32()?, r.varint_u32()?);
        let (has_begun, fruitful) = (flag(r)?, flag(r)?);
        s.visits.push(Visit { cluster, lists_left, has_begun, fruitful, weight: f32::from_bits(r.u32()?) });
    }
    take_local(s, params.local_list.max(k), r)?;
    for _ in 0..r.count(CANDIDATES_MAX)? {
        s.candidates.push(take_candidate(r)?);
    }
    take_words(r, CANDIDATES_MAX, &mut s.round)?;
    for _ in 0..r.count(CANDIDATES_MAX)? {
        s.awaited.push((Tag(r.u32()?), r.u32()?));
    }
    take_scored(r, CANDIDATES_MAX, &mut s.scored)?;
    if !s.scored.is_sorted_by(|a, b| a.id < b.id) {
        return Err(Refused::Content);
    }
    for _ in 0..r.count(READ_MAX)? {
        s.read.push((r.u32()?, f32::from_bits(r.u32()?)));
    }
    take_scored(r, 2 * k, &mut s.results)?;
    take_smallest(r, k, &mut s.estimates)?;
    take_smallest(r, k, &mut s.upper_bounds)?;
    take_words(r, params.sample_hits, &mut s.navigated)?;
    take_batch(r, k, &mut s.batch)?;
    if s.navigated.is_sorted() { Ok(()) } else { Err(Refused::Content) }
}

fn put_batch(batch: &Batch, w: &mut Writer<'_>) {
    let is_empty = batch.job == Job::None && batch.lists.is_empty();
    w.u8(if is_empty { NO_BATCH } else { batch.job as u8 });
    if is_empty {
        return;
    }
    put_words(&batch.lists, w);
    w.varint(batch.asked.len() as u64);
    for &(tag, list) in &batch.asked {
        w.u32(tag.0);
        w.u32(list);
    }
    w.u32(batch.at_most.to_bits());
    put_lists(batch, w);
    put_smallest(&batch.estimates, w);
    put_smallest(&batch.upper_bounds, w);
}

fn take_batch(r: &mut Reader<'_>, k: u32, batch: &mut Batch) -> Result<(), Refused> {
    batch.job = match r.u8()? {
        NO_BATCH => return Ok(()),
        0 => Job::None,
        1 => Job::Lists,
        2 => Job::Records,
        _ => return Err(Refused::Content),
    };
    take_words(r, LISTS_MAX, &mut batch.lists)?;
    for _ in 0..r.count(LISTS_MAX)? {
        batch.asked.push((Tag(r.u32()?), r.u32()?));
    }
    batch.at_most = f32::from_bits(r.u32()?);
    take_lists(r, batch)?;
    take_smallest(r, k, &mut batch.estimates)?;
    take_smallest(r, k, &mut batch.upper_bounds)
}

/// Writes the lists of a batch that were scored, with their entries.
pub(super) fn put_lists(batch: &Batch, w: &mut Writer<'_>) {
    w.varint(batch.scored.len() as u64);
    let mut start = 0;
    for &(list, end) in &batch.scored {
        w.u32(list);
        w.varint(u64::from(end) - start as u64);
        for Entry { id, bounds } in &batch.entries[start..end as usize] {
            let numbers = [*id, bounds.estimate.to_bits(), bounds.lower.to_bits(), bounds.upper.to_bits()];
            numbers.into_iter().for_each(|x| w.u32(x));
        }
        start = end as usize;
    }
}

/// Adds what [`put_lists`] wrote.
pub(super) fn take_lists(r: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Refused> {
    for _ in 0..r.count(LISTS_MAX)? {
        let list = r.u32()?;
        for _ in 0..r.count(CANDIDATES_MAX)? {
            let (id, estimate) = (r.u32()?, f32::from_bits(r.u32()?));
            let (lower, upper) = (f32::from_bits(r.u32()?), f32::from_bits(r.u32()?));
            batch.entries.push(Entry { id, bounds: DistanceBounds { estimate, lower, upper } });
        }
        batch.scored.push((list, batch.entries.len() as u32));
    }
    Ok(())
}

pub(super) fn put_scored(scored: &[Scored], w: &mut Writer<'_>) {
    w.varint(scored.len() as u64);
    for one in scored {
        w.u32(one.id);
        w.u32(one.distance.to_bits());
        w.varint(one.external_id);
    }
}

pub(super) fn take_scored(r: &mut Reader<'_>, most: u32, out: &mut Vec<Scored>) -> Result<(), Refused> {
    for _ in 0..r.count(most)? {
        out.push(Scored { id: r.u32()?, distance: f32::from_bits(r.u32()?), external_id: r.varint()? });
    }
    Ok(())
}

fn put_local(s: &State, w: &mut Writer<'_>) {
    let local = &s.local;
    w.u8(u8::from(local.is_on));
    w.u32(local.cluster);
    w.varint(local.members.into());
    put_smallest(&local.nearest, w);
    w.varint(local.beam.capacity() as u64);
    w.varint(local.beam.entries().len() as u64);
    for c in local.beam.entries() {
        w.u32(c.distance);
        w.u32(c.id);
        w.u8(c.progress as u8);
    }
    w.varint(local.codes.lists_left.into());
    put_words(&local.codes.starts, w);
    w.varint(local.codes.bytes.len() as u64);
    local.codes.bytes.iter().for_each(|&byte| w.u8(byte));
    local.visited.iter().flat_map(|word| word.to_le_bytes()).for_each(|byte| w.u8(byte));
}

fn take_local(s: &mut State, list: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
    let is_on = flag(r)?;
    let (cluster, members) = (r.u32()?, r.count(MEMBERS_MAX)?);
    let words = members.div_ceil(64) as usize;
    // The bits come last; as many bytes must still be there before memory is taken for them.
    if r.0.len() < 8 * words {
        return Err(Refused::Length);
    }
    s.local.begin(cluster, members, 0);
    s.local.is_on = is_on;
    take_smallest(r, MAX_LOCAL_LIST.max(list), &mut s.local.nearest)?;
    let capacity = r.count(list)?;
    s.local.beam.reset(capacity as usize);
    for _ in 0..r.count(capacity)? {
        let (distance, id, progress) = (r.u32()?, r.u32()?, progress(r.u8()?)?);
        let last: Option<&Candidate> = s.local.beam.entries().last();
        let is_sorted = last.is_none_or(|c| (c.distance, c.id) < (distance, id));
        if id >= members || !is_sorted || !s.local.beam.offer(distance, id, progress) {
            return Err(Refused::Content);
        }
    }
    let codes = &mut s.local.codes;
    codes.lists_left = r.count(LISTS_MAX)?;
    take_words(r, LISTS_MAX, &mut codes.starts)?;
    let bytes = r.count(CODES_BYTES_MAX)? as usize;
    if r.0.len() < bytes {
        return Err(Refused::Length);
    }
    for _ in 0..bytes {
        codes.bytes.push(r.u8()?);
    }
    for word in &mut s.local.visited {
        *word = r.u64()?;
    }
    Ok(())
}

fn put_words(words: &[u32], w: &mut Writer<'_>) {
    w.varint(words.len() as u64);
    words.iter().for_each(|&x| w.u32(x));
}

fn take_words(r: &mut Reader<'_>, most: u32, out: &mut Vec<u32>) -> Result<(), Refused> {
    for _ in 0..r.count(most)? {
        out.push(r.u32()?);
    }
    Ok(())
}

fn put_candidate(c: &Unread, w: &mut Writer<'_>) {
    [c.estimate.to_bits(), c.lower.to_bits(), c.id].into_iter().for_each(|x| w.u32(x));
}

fn take_candidate(r: &mut Reader<'_>) -> Result<Unread, Refused> {
    Ok(Unread { estimate: f32::from_bits(r.u32()?), lower: f32::from_bits(r.u32()?), id: r.u32()? })
}

fn put_smallest(smallest: &KSmallest, w: &mut Writer<'_>) {
    w.varint(smallest.k as u64);
    w.varint(smallest.values.len() as u64);
    smallest.values.iter().for_each(|x| w.u32(x.to_bits()));
}

fn take_smallest(r: &mut Reader<'_>, most: u32, out: &mut KSmallest) -> Result<(), Refused> {
    let k = r.count(most)?;
    out.reset(k as usize);
    for _ in 0..r.count(k)? {
        out.values.push(f32::from_bits(r.u32()?));
    }
    if out.values.is_sorted() { Ok(()) } else { Err(Refused::Content) }
}

fn progress(number: u8) -> Result<Progress, Refused> {
    match number {
        0 => Ok(Progress::Fresh),
        1 => Ok(Progress::Awaited),
        2 => Ok(Progress::Expanded),
        _ => Err(Refused::Content),
    }
}

fn flag(r: &mut Reader<'_>) -> Result<bool, Refused> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Refused::Content),
    }
}
