//! The state of a query as bytes, between two steps.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | version of this layout |
//! | 4 | length of all that follows the checksum |
//! | 8 | checksum of all that follows |
//! | … | parameters, budget, counters of the walk, outcome; statistics, a varint each |
//! | … | beam: count, bits of an id; then id and progress (2 bits) of each, packed; then the step up from the distance before, a varint each |
//! | … | results: count, then distance (4 bytes), external id (varint) each |
//! | … | reads under way: count, then tag, block (4 bytes) each |
//!
//! All numbers are little-endian, counts are varints (7 bits a byte, the lowest first). A beam of 200 over a million nodes takes about 4 bytes
//! an entry. Wants are not carried: they have been submitted when a state travels. Every count is checked against its limit before memory
//! is taken for it.

use alloc::vec::Vec;

use super::state::Outstanding;
use super::{
    Beam, Budget, Candidate, Hit, Loss, MAX_WIDTH, Mode, Outcome, Params, Progress, QueryState, QueryStats,
    Tag,
};
use crate::format::checksum;

/// The version written and understood.
pub const VERSION: u32 = 2;
const HEADER: usize = 16;

/// Why bytes are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Written by another version.
    Version(u32),
    /// Shorter or longer than it says.
    Length,
    /// Damaged on the way.
    Checksum,
    /// A field is outside of its limits.
    Content,
}

/// Appends the state to `out`.
pub fn encode(state: &QueryState, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER]);
    let mut w = Writer(out);
    write_params(&state.params, &mut w);
    w.u32(state.budget.hops);
    w.u32(state.budget.reads);
    w.u32(state.budget.hand_overs);
    w.u8(u8::from(state.started));
    w.u32(state.next_tag);
    w.u32(state.next_block);
    w.u32(state.fruitless);
    write_outcome(state.outcome, &mut w);
    stats_fields(&state.stats).into_iter().for_each(|x| w.varint(x));
    write_beam(&state.beam, &mut w);
    w.varint(state.results.len() as u64);
    for hit in &state.results {
        w.u32(hit.distance.to_bits());
        w.varint(hit.external_id);
    }
    w.varint(state.outstanding.len() as u64);
    for o in &state.outstanding {
        w.u32(o.tag.0);
        w.u32(o.block);
    }
    let body = &out[start + HEADER..];
    let (length, sum) = (body.len() as u32, checksum(body));
    out[start..start + 4].copy_from_slice(&VERSION.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    out[start + 8..start + 16].copy_from_slice(&sum.to_le_bytes());
}

/// The state that `bytes` (all of them) hold.
pub fn decode(bytes: &[u8]) -> Result<QueryState, Refused> {
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
    let mut state = QueryState::new(params, budget);
    state.started = r.u8()? != 0;
    state.next_tag = r.u32()?;
    state.next_block = r.u32()?;
    state.fruitless = r.u32()?;
    state.outcome = read_outcome(&mut r)?;
    state.stats = read_stats(&mut r)?;
    state.beam = read_beam(&mut r, params.search_list as usize)?;
    for _ in 0..r.count(params.k)? {
        let hit = Hit { distance: f32::from_bits(r.u32()?), external_id: r.varint()? };
        state.results.push(hit);
    }
    for _ in 0..r.count(MAX_WIDTH)? {
        state.outstanding.push(Outstanding { tag: Tag(r.u32()?), block: r.u32()? });
    }
    if r.0.is_empty() { Ok(state) } else { Err(Refused::Length) }
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
    let (kind, block, loss) = (r.u8()?, r.u32()?, r.u8()?);
    let loss = match loss {
        0 => Loss::Failed,
        1 => Loss::Short,
        2 => Loss::Damaged,
        3 => Loss::Expired,
        _ => return Err(Refused::Content),
    };
    match kind {
        0 => Ok(Outcome::Running),
        1 => Ok(Outcome::Complete),
        2 => Ok(Outcome::OutOfBudget),
        3 => Ok(Outcome::Lost { block, loss }),
        4 => Ok(Outcome::Partial),
        _ => Err(Refused::Content),
    }
}

fn stats_fields(s: &QueryStats) -> [u64; 10] {
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
    })
}

fn write_beam(beam: &Beam, w: &mut Writer<'_>) {
    let entries = beam.entries();
    let id_bits = 32 - entries.iter().fold(0, |all, c| all | c.id).leading_zeros();
    w.varint(entries.len() as u64);
    w.u8(id_bits as u8);
    let (mut held, mut bits) = (0u64, 0);
    for c in entries {
        held |= (u64::from(c.id) << 2 | c.progress as u64) << bits;
        bits += id_bits + 2;
        while bits >= 8 {
            w.u8(held as u8);
            held >>= 8;
            bits -= 8;
        }
    }
    if bits > 0 {
        w.u8(held as u8);
    }
    let mut before = 0;
    for c in entries {
        w.varint(u64::from(c.distance - before));
        before = c.distance;
    }
}

fn read_beam(r: &mut Reader<'_>, capacity: usize) -> Result<Beam, Refused> {
    let mut beam = Beam::default();
    beam.reset(capacity);
    let count = r.count(capacity as u32)? as usize;
    let width = u32::from(r.u8()?) + 2;
    if width > 34 {
        return Err(Refused::Content);
    }
    let packed = r.slice((count * width as usize).div_ceil(8))?;
    let (mut bytes, mut held, mut bits) = (packed.iter(), 0u64, 0);
    let mut distance = 0u32;
    for _ in 0..count {
        while bits < width {
            held |= u64::from(*bytes.next().ok_or(Refused::Length)?) << bits;
            bits += 8;
        }
        let (id, progress) = ((held & ((1 << width) - 1)) >> 2, held & 3);
        held >>= width;
        bits -= width;
        let progress = match progress {
            0 => Progress::Fresh,
            1 => Progress::Awaited,
            2 => Progress::Expanded,
            _ => return Err(Refused::Content),
        };
        let step = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
        distance = distance.checked_add(step).ok_or(Refused::Content)?;
        let last: Option<&Candidate> = beam.entries().last();
        let is_sorted = last.is_none_or(|c| (c.distance, c.id) < (distance, id as u32));
        if !is_sorted || !beam.offer(distance, id as u32, progress) {
            return Err(Refused::Content);
        }
    }
    Ok(beam)
}

struct Writer<'a>(&'a mut Vec<u8>);

impl Writer<'_> {
    fn u8(&mut self, x: u8) {
        self.0.push(x);
    }

    fn u32(&mut self, x: u32) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    fn varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.u8(x as u8 | 0x80);
            x >>= 7;
        }
        self.u8(x as u8);
    }
}

/// Takes numbers off the front of bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Refused::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Refused> {
        self.take::<1>().map(|b| b[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Refused> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Refused> {
        self.take().map(u64::from_le_bytes)
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], Refused> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(Refused::Length)?;
        self.0 = rest;
        Ok(head)
    }

    /// The shortest form alone is accepted, so that one state has one encoding.
    fn varint(&mut self) -> Result<u64, Refused> {
        let mut x = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7F);
            if (part << shift) >> shift != part || (byte == 0 && shift > 0) {
                return Err(Refused::Content);
            }
            x |= part << shift;
            if byte < 0x80 {
                return Ok(x);
            }
        }
        Err(Refused::Content)
    }

    /// A counter that leaves room to count on.
    fn counter(&mut self) -> Result<u64, Refused> {
        let count = self.varint()?;
        if count <= u64::MAX / 2 { Ok(count) } else { Err(Refused::Content) }
    }

    fn count(&mut self, limit: u32) -> Result<u32, Refused> {
        let count = u32::try_from(self.varint()?).map_err(|_| Refused::Content)?;
        if count <= limit { Ok(count) } else { Err(Refused::Content) }
    }
}
