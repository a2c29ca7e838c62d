//! The state of a query as bytes, between two steps.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | version of this layout |
//! | 4 | length of all that follows the checksum |
//! | 8 | checksum of all that follows |
//! | … | parameters, budget, counters of the walk, outcome; statistics, a varint each |
//! | … | beam with distances: count, bits of an id; then id and progress (2 bits) of each, packed; then the step up from the distance before, a varint each |
//! | … | beam without: count, bits of a progress, bits of a remainder; then, by ascending id, the step up from the id before in Golomb–Rice code, and the progress, packed |
//! | … | results: count, then the step up from the distance before, and the external id, a varint each |
//! | … | where the origin was told of results: in how many words; count, then the step up from the distance before, a varint each |
//! | … | reads under way: count, then tag, block (4 bytes) each |
//! | … | where there are any, blocks that could not be read: count, then block (4 bytes), the servers that tried (varint), why (1 byte) each |
//!
//! All numbers are little-endian, counts are varints (7 bits a byte, the lowest first). A beam of 200 over a million nodes takes about 4 bytes
//! an entry with its distances, and 2 without: whoever has the codes computes them again, to the bit. Wants are not carried: they have been submitted when a state travels. Every count is checked against its limit before memory
//! is taken for it.

use alloc::vec::Vec;

use super::state::{Outstanding, UNREAD_MAX, Unread};
use super::{
    Beam, Budget, Candidate, Hit, Loss, MAX_K, MAX_WIDTH, Mode, Outcome, Params, Progress, QueryState,
    QueryStats, Reading, Tag,
};
use crate::codec::{Packer, Reader, Refused, Unpacker, Writer};
use crate::hash::checksum;
use crate::order::{from_order_key, order_key};

/// The version written and understood.
pub const VERSION: u32 = 6;
const HEADER: usize = 16;

/// What is said of the candidates in a beam.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carry {
    /// Which, and how far: the receiver computes their distances again, from the codes of all nodes.
    #[default]
    Ids,
    /// Their distances too.
    Distances,
}

/// Where the results go of a query that is handed over (BatANN, §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Results {
    /// With it.
    #[default]
    Along,
    /// To its origin, from the server that found them. The state keeps their distances, which decide when it stops.
    Origin,
}

/// Appends the state to `out`. A state that came without distances and has not been stepped since goes on without.
pub fn encode(state: &QueryState, carry: Carry, out: &mut Vec<u8>) {
    Encoder::default().encode(state, carry, out);
}

/// [`encode`], again and again in the same memory.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    by_id: Vec<Candidate>,
    told: Vec<f32>,
}

impl Encoder {
    /// As [`encode`].
    pub fn encode(&mut self, state: &QueryState, carry: Carry, out: &mut Vec<u8>) {
        self.write(state, carry, None, out);
    }

    /// As [`encode`], or, with a number of words, without saying which the results are: by then the origin has been told in so many.
    pub(crate) fn write(&mut self, state: &QueryState, carry: Carry, words: Option<u32>, out: &mut Vec<u8>) {
        let is_along = if words.is_none() { state.results.len() } else { 0 };
        let (along, tells) = state.results.split_at(is_along);
        let words = words.unwrap_or(state.words);
        self.told.clone_from(&state.told);
        self.told.extend(tells.iter().map(|hit| hit.distance));
        self.told.sort_unstable_by(f32::total_cmp);
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        let mut w = Writer(out);
        write_params(&state.params, &mut w);
        w.u32(state.budget.hops);
        w.u32(state.budget.reads);
        w.u32(state.budget.hand_overs);
        let carry = if state.is_scored { carry } else { Carry::Ids };
        let flags = [state.started, carry == Carry::Distances, !state.unread.is_empty(), words > 0];
        w.u8(flags.iter().enumerate().map(|(i, &flag)| u8::from(flag) << i).sum());
        w.u32(state.next_tag);
        w.u32(state.next_block);
        w.u32(state.fruitless);
        write_outcome(state.outcome, &mut w);
        stats_fields(&state.stats).into_iter().for_each(|x| w.varint(x));
        match carry {
            Carry::Distances => write_beam(&state.beam, &mut w),
            Carry::Ids => write_ids(&state.beam, &mut self.by_id, &mut w),
        }
        put_hits(along, &mut w);
        if words > 0 {
            w.varint(words.into());
            put_told(&self.told, &mut w);
        }
        w.varint(state.outstanding.len() as u64);
        for o in &state.outstanding {
            w.u32(o.tag.0);
            w.u32(o.block);
        }
        if !state.unread.is_empty() {
            write_unread(&state.unread, &mut w);
        }
        let body = &out[start + HEADER..];
        let (length, sum) = (body.len() as u32, checksum(body));
        out[start..start + 4].copy_from_slice(&VERSION.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        out[start + 8..start + 16].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The state that `bytes` (all of them) hold.
///
/// # Errors
/// Whatever is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<QueryState, Refused> {
    let mut state = QueryState::default();
    decode_into(bytes, &mut state)?;
    Ok(state)
}

/// [`decode`], in the memory of `state`, which is not to be used after an error.
///
/// # Errors
/// As [`decode`].
pub fn decode_into(bytes: &[u8], state: &mut QueryState) -> Result<(), Refused> {
    let mut r = Reader(bytes);
    let version = r.u32()?;
    if version != VERSION {
        return Err(Refused::Version(version));
    }
    let length = r.u32()? as usize;
    let sum = r.u64()?;
    if r.0.len() != length {
        return Err(Refused::Length);
    }
    if checksum(r.0) != sum {
        return Err(Refused::Checksum);
    }
    let params = read_params(&mut r)?;
    let budget = Budget { hops: r.u32()?, reads: r.u32()?, hand_overs: r.u32()? };
    state.restart(params, budget);
    let flags = r.u8()?;
    if flags > 15 {
        return Err(Refused::Content);
    }
    state.started = flags & 1 != 0;
    state.is_scored = flags & 2 != 0;
    state.next_tag = r.u32()?;
    state.next_block = r.u32()?;
    state.fruitless = r.u32()?;
    state.outcome = read_outcome(&mut r)?;
    state.stats = read_stats(&mut r)?;
    match state.is_scored {
        true => read_beam(&mut r, params.search_list, &mut state.beam)?,
        false => read_ids(&mut r, params.search_list, &mut state.beam)?,
    }
    take_hits(&mut r, params.k, &mut state.results)?;
    if flags & 8 != 0 {
        state.words = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
        take_told(&mut r, params.k.saturating_sub(state.results.len() as u32), &mut state.told)?;
    }
    for _ in 0..r.count(MAX_WIDTH)? {
        state.outstanding.push(Outstanding { tag: Tag(r.u32()?), block: r.u32()?, reading: Reading::Block });
    }
    if flags & 4 != 0 {
        read_unread(&mut r, &mut state.unread)?;
    }
    if r.0.is_empty() { Ok(()) } else { Err(Refused::Length) }
}

/// Appends hits to `out`, for [`read_hits`].
pub(crate) fn write_hits(hits: &[Hit], out: &mut Vec<u8>) {
    put_hits(hits, &mut Writer(out));
}

/// Adds the hits that `bytes` (all of them) hold to `out`.
pub(crate) fn read_hits(bytes: &[u8], out: &mut Vec<Hit>) -> Result<(), Refused> {
    let mut r = Reader(bytes);
    take_hits(&mut r, MAX_K, out)?;
    if r.0.is_empty() { Ok(()) } else { Err(Refused::Length) }
}

fn put_hits(hits: &[Hit], w: &mut Writer<'_>) {
    w.varint(hits.len() as u64);
    let mut before = 0;
    for hit in hits {
        let at = order_key(hit.distance);
        // They are sorted; if they were not, this would be longer and still right.
        w.varint(u64::from(at.wrapping_sub(before)));
        w.varint(hit.external_id);
        before = at;
    }
}

fn take_hits(r: &mut Reader<'_>, most: u32, out: &mut Vec<Hit>) -> Result<(), Refused> {
    let mut before = 0u32;
    for _ in 0..r.count(most)? {
        let step = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
        before = before.wrapping_add(step);
        out.push(Hit { distance: from_order_key(before), external_id: r.varint()? });
    }
    Ok(())
}

fn put_told(told: &[f32], w: &mut Writer<'_>) {
    w.varint(told.len() as u64);
    let mut before = 0;
    for at in told.iter().map(|&distance| order_key(distance)) {
        w.varint(u64::from(at - before));
        before = at;
    }
}

fn take_told(r: &mut Reader<'_>, most: u32, told: &mut Vec<f32>) -> Result<(), Refused> {
    let mut before = 0u32;
    for _ in 0..r.count(most)? {
        let step = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
        before = before.checked_add(step).ok_or(Refused::Content)?;
        told.push(from_order_key(before));
    }
    Ok(())
}

fn write_unread(unread: &[Unread], w: &mut Writer<'_>) {
    w.varint(unread.len() as u64);
    for u in unread {
        w.u32(u.block);
        w.varint(u.tried);
        w.u8(u.loss as u8);
    }
}

fn read_unread(r: &mut Reader<'_>, unread: &mut Vec<Unread>) -> Result<(), Refused> {
    for _ in 0..r.count(UNREAD_MAX as u32)? {
        unread.push(Unread { block: r.u32()?, tried: r.varint()?, loss: loss(r.u8()?)? });
    }
    if unread.is_empty() { Err(Refused::Content) } else { Ok(()) }
}

fn loss(number: u8) -> Result<Loss, Refused> {
    match number {
        0 => Ok(Loss::Failed),
        1 => Ok(Loss::Short),
        2 => Ok(Loss::Damaged),
        3 => Ok(Loss::Expired),
        _ => Err(Refused::Content),
    }
}

fn write_params(p: &Params, w: &mut Writer<'_>) {
    [
        p.k,
        p.search_list,
        p.width,
        p.approach_width,
        p.stop_slack.to_bits(),
        p.patience,
        p.head_list,
        p.exclude,
    ]
    .into_iter()
    .for_each(|x| w.u32(x));
    w.u8(p.mode as u8);
    w.u8(u8::from(p.whole_blocks) | u8::from(p.head) << 1);
}

fn read_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
    let mut p = Params::new(1, 1);
    p.k = r.u32()?;
    p.search_list = r.u32()?;
    // Kinds with clusters do not travel yet.
    p.probe = super::Probe::new(p.search_list);
    p.width = r.u32()?;
    p.approach_width = r.u32()?;
    p.stop_slack = f32::from_bits(r.u32()?);
    p.patience = r.u32()?;
    p.head_list = r.u32()?;
    p.exclude = r.u32()?;
    p.mode = match r.u8()? {
        0 => Mode::Barrier,
        1 => Mode::Eager,
        _ => return Err(Refused::Content),
    };
    let flags = r.u8()?;
    p.whole_blocks = flags & 1 != 0;
    p.head = flags & 2 != 0;
    if p.is_valid() && flags < 4 { Ok(p) } else { Err(Refused::Content) }
}

fn write_outcome(outcome: Outcome, w: &mut Writer<'_>) {
    let (kind, block, loss) = match outcome {
        Outcome::Running => (0, 0, 0),
        Outcome::Complete => (1, 0, 0),
        Outcome::OutOfBudget => (2, 0, 0),
        Outcome::Lost { block, loss } => (3, block, loss as u8),
        Outcome::Partial => (4, 0, 0),
    };
    w.u8(kind);
    w.u32(block);
    w.u8(loss);
}

fn read_outcome(r: &mut Reader<'_>) -> Result<Outcome, Refused> {
    let (kind, block, loss) = (r.u8()?, r.u32()?, loss(r.u8()?)?);
    match kind {
        0 => Ok(Outcome::Running),
        1 => Ok(Outcome::Complete),
        2 => Ok(Outcome::OutOfBudget),
        3 => Ok(Outcome::Lost { block, loss }),
        4 => Ok(Outcome::Partial),
        _ => Err(Refused::Content),
    }
}

fn stats_fields(s: &QueryStats) -> [u64; 12] {
    [
        s.code_comparisons,
        s.full_comparisons,
        s.pruned,
        s.reads,
        s.pages_read,
        s.cache_hits,
        s.hops,
        s.hand_overs,
        s.unreachable,
        s.expanded,
        s.rescored,
        s.repeats,
    ]
}

fn read_stats(r: &mut Reader<'_>) -> Result<QueryStats, Refused> {
    Ok(QueryStats {
        code_comparisons: r.counter()?,
        full_comparisons: r.counter()?,
        pruned: r.counter()?,
        reads: r.counter()?,
        pages_read: r.counter()?,
        cache_hits: r.counter()?,
        hops: r.counter()?,
        hand_overs: r.counter()?,
        unreachable: r.counter()?,
        expanded: r.counter()?,
        rescored: r.counter()?,
        repeats: r.counter()?,
        ..QueryStats::default()
    })
}

fn write_beam(beam: &Beam, w: &mut Writer<'_>) {
    let entries = beam.entries();
    let id_bits = 32 - entries.iter().fold(0, |all, c| all | c.id).leading_zeros();
    w.varint(entries.len() as u64);
    w.u8(id_bits as u8);
    let mut packed = Packer::new(w);
    for c in entries {
        packed.put(c.progress as u32, 2);
        packed.put(c.id, id_bits);
    }
    packed.finish();
    let mut before = 0;
    for c in entries {
        w.varint(u64::from(c.distance - before));
        before = c.distance;
    }
}

/// Into a beam that is empty and has room for `capacity`.
fn read_beam(r: &mut Reader<'_>, capacity: u32, beam: &mut Beam) -> Result<(), Refused> {
    let count = r.count(capacity)?;
    let id_bits = u32::from(r.u8()?);
    if id_bits > 32 {
        return Err(Refused::Content);
    }
    let mut packed = Unpacker::new(Reader(r.slice((count as usize * (id_bits as usize + 2)).div_ceil(8))?));
    let mut distance = 0u32;
    for _ in 0..count {
        let (progress, id) = (progress(packed.take(2)?)?, packed.take(id_bits)?);
        let step = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
        distance = distance.checked_add(step).ok_or(Refused::Content)?;
        let last: Option<&Candidate> = beam.entries().last();
        let is_sorted = last.is_none_or(|c| (c.distance, c.id) < (distance, id));
        if !is_sorted || !beam.offer(distance, id, progress) {
            return Err(Refused::Content);
        }
    }
    packed.finish()?;
    Ok(())
}

fn progress(number: u32) -> Result<Progress, Refused> {
    match number {
        0 => Ok(Progress::Fresh),
        1 => Ok(Progress::Awaited),
        2 => Ok(Progress::Expanded),
        _ => Err(Refused::Content),
    }
}

/// Steps between the sorted ids of a beam are small where it covers much of the index, or few of its blocks; a state that is handed over
/// awaits nothing, so a bit says how far a candidate is.
fn write_ids(beam: &Beam, sorted: &mut Vec<Candidate>, w: &mut Writer<'_>) {
    sorted.clear();
    sorted.extend_from_slice(beam.entries());
    sorted.sort_unstable_by_key(|c| c.id);
    let awaits = sorted.iter().any(|c| c.progress == Progress::Awaited);
    let steps =
        || sorted.iter().scan(0, |next, c| Some(c.id - core::mem::replace(next, c.id.wrapping_add(1))));
    let remainder_bits = rice_bits(steps(), sorted.len());
    w.varint(sorted.len() as u64);
    w.u8(1 + u8::from(awaits));
    w.u8(remainder_bits as u8);
    let mut packed = Packer::new(w);
    for (c, step) in sorted.iter().zip(steps()) {
        for _ in 0..step >> remainder_bits {
            packed.put(1, 1);
        }
        packed.put(0, 1);
        packed.put(step & ((1 << remainder_bits) - 1), remainder_bits);
        match awaits {
            true => packed.put(c.progress as u32, 2),
            false => packed.put(u32::from(c.progress == Progress::Expanded), 1),
        }
    }
    packed.finish();
}

/// The length of the remainders that makes the whole shortest, near the logarithm of the mean step.
fn rice_bits(steps: impl Iterator<Item = u32> + Clone, count: usize) -> u32 {
    let sum: u64 = steps.clone().map(u64::from).sum();
    let most = (sum / count.max(1) as u64 + 1).ilog2().min(31);
    let cost = |bits: u32| steps.clone().map(|s| u64::from((s >> bits) + 1 + bits)).sum::<u64>();
    (most.saturating_sub(8)..=most).min_by_key(|&bits| cost(bits)).unwrap_or(0)
}

/// The candidates by ascending id, their distances 0 until they are computed again.
fn read_ids(r: &mut Reader<'_>, capacity: u32, beam: &mut Beam) -> Result<(), Refused> {
    let count = r.count(capacity)?;
    let (progress_bits, remainder_bits) = (u32::from(r.u8()?), u32::from(r.u8()?));
    if !(1..=2).contains(&progress_bits) || remainder_bits > 31 {
        return Err(Refused::Content);
    }
    let mut packed = Unpacker::new(Reader(r.0));
    let mut next = 0u64;
    for _ in 0..count {
        let mut step = 0u64;
        while packed.take(1)? == 1 {
            step += 1 << remainder_bits;
            if step > u64::from(u32::MAX) {
                return Err(Refused::Content);
            }
        }
        let id = next + step + u64::from(packed.take(remainder_bits)?);
        let far = packed.take(progress_bits)?;
        let progress = progress(if progress_bits == 1 { far * 2 } else { far })?;
        let id = u32::try_from(id).map_err(|_| Refused::Content)?;
        next = u64::from(id) + 1;
        if !beam.offer(0, id, progress) {
            return Err(Refused::Content);
        }
    }
    r.0 = packed.finish()?;
    Ok(())
}
