//! Rows as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 2, or 3 for a job; rows of 0 and 1 had no query |
//! | 8 | the limit before any list was scanned, as a double |
//! | … | lists that are open: count, then each as below |
//! | … | rows: count, and for each its tag (4 bytes) and the row |
//! | … | what a job has found: count, then distance (4 bytes) and id (a varint) each |
//!
//! A list is a varint: 8 × its number, 2 × times that it was lost, and 1 where its first members were scored. A row is
//!
//! | bytes | content |
//! |---|---|
//! | … | lists: count, then each |
//! | 8, 8 | the slices that are done; the limit, as a double |
//! | … | number of blocks, and which vectors are left |
//! | … | sums: 0 and 8 bytes each, or 1, the smallest (8 bytes) and the difference to it, 4 bytes each |
//! | … | what the missing slices need of the query: see [`super::super::turned`] |
//!
//! Vectors that are left are 0 and 8 bytes for each block, a bit for each; or, where that is shorter, 1, their number,
//! and for each a varint, how many are skipped before it.

use alloc::vec::Vec;

use super::super::{MAX_FAN_OUT, MAX_PROBES, State};
use super::{Probe, Row, TRIES, ones};
use crate::codec::{Reader, Refused, Writer};
use crate::search::{Hit, Tag};

/// Most blocks of a row.
const BLOCKS_MAX: u32 = 1 << 24;

/// Appends the state.
pub(in super::super) fn encode(state: &State, w: &mut Writer<'_>) {
    w.u8(2 + u8::from(state.is_job));
    put_u64(state.limit.to_bits(), w);
    put_probes(&state.open, w);
    w.varint(state.rows.len() as u64);
    for (tag, row) in &state.rows {
        w.u32(tag.0);
        put_row(row, w);
    }
    put_hits(&state.found, w);
}

/// Reads what [`encode`] wrote.
pub(in super::super) fn decode(state: &mut State, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
    state.is_job = match r.u8()? {
        2 => false,
        3 => true,
        _ => return Err(Refused::Content),
    };
    state.limit = f64::from_bits(r.u64()?);
    if state.limit.is_nan() {
        return Err(Refused::Content);
    }
    take_probes(r, &mut state.open)?;
    for _ in 0..r.count(MAX_FAN_OUT.into())? {
        let tag = Tag(r.u32()?);
        state.rows.push((tag, take_row(r)?));
    }
    if state.is_job && state.rows.len() != 1 {
        return Err(Refused::Content);
    }
    take_hits(r, k, &mut state.found)
}

fn flag(r: &mut Reader<'_>) -> Result<bool, Refused> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Refused::Content),
    }
}

fn put_probes(probes: &[Probe], w: &mut Writer<'_>) {
    w.varint(probes.len() as u64);
    for probe in probes {
        w.varint(u64::from(probe.list) << 3 | u64::from(probe.tries) << 1 | u64::from(probe.is_warm));
    }
}

fn take_probes(r: &mut Reader<'_>, out: &mut Vec<Probe>) -> Result<(), Refused> {
    for _ in 0..r.count(MAX_PROBES)? {
        let packed = r.varint()?;
        let list = u32::try_from(packed >> 3).map_err(|_| Refused::Content)?;
        let tries = (packed >> 1 & 3) as u8;
        if tries >= TRIES {
            return Err(Refused::Content);
        }
        out.push(Probe { list, is_warm: packed & 1 == 1, tries });
    }
    Ok(())
}

fn put_row(row: &Row, w: &mut Writer<'_>) {
    put_probes(&row.lists, w);
    put_u64(row.done, w);
    put_u64(row.limit.to_bits(), w);
    w.varint(row.alive.len() as u64);
    // A vector that is left takes a byte or two of its own.
    if row.sums.len() < 4 * row.alive.len() {
        w.u8(1);
        w.varint(row.sums.len() as u64);
        let mut next = 0;
        for (word, &bits) in (0u64..).zip(&row.alive) {
            for at in ones(bits).map(|lane| 64 * word + u64::from(lane)) {
                w.varint(at - next);
                next = at + 1;
            }
        }
    } else {
        w.u8(0);
        row.alive.iter().for_each(|&word| put_u64(word, w));
    }
    put_sums(&row.sums, w);
    row.query.encode(w);
}

fn take_row(r: &mut Reader<'_>) -> Result<Row, Refused> {
    let mut row = Row::default();
    take_probes(r, &mut row.lists)?;
    (row.done, row.limit) = (r.u64()?, f64::from_bits(r.u64()?));
    let blocks = r.count(BLOCKS_MAX)? as usize;
    let lists = row.lists.len();
    if row.limit.is_nan() || lists == 0 {
        return Err(Refused::Content);
    }
    let mut left = 0;
    if flag(r)? {
        left = r.count(BLOCKS_MAX.saturating_mul(64))? as usize;
        // Each vector that is left takes a byte at least, so that a short frame takes little memory.
        if left > r.0.len() || blocks > 0 && blocks > MAX_BLOCKS_OF_LIST * lists {
            return Err(Refused::Content);
        }
        row.alive.resize(blocks, 0);
        let mut next = 0u64;
        for _ in 0..left {
            let at = next.checked_add(r.varint()?).ok_or(Refused::Content)?;
            let word = row.alive.get_mut((at / 64) as usize).ok_or(Refused::Content)?;
            *word |= 1 << (at % 64);
            next = at + 1;
        }
    } else {
        if 8 * blocks > r.0.len() {
            return Err(Refused::Content);
        }
        for _ in 0..blocks {
            row.alive.push(r.u64()?);
            left += row.alive[row.alive.len() - 1].count_ones() as usize;
        }
    }
    take_sums(r, left, &mut row.sums)?;
    row.query.decode(r)?;
    Ok(row)
}

/// Most blocks that the lists of a row may have on average where few vectors are left.
const MAX_BLOCKS_OF_LIST: usize = 1 << 16;

fn put_sums(sums: &[f64], w: &mut Writer<'_>) {
    let smallest = sums.iter().copied().fold(f64::INFINITY, f64::min);
    let is_short = sums.iter().all(|sum| sum - smallest <= f64::from(u32::MAX));
    w.u8(u8::from(is_short));
    if is_short {
        put_u64(if sums.is_empty() { 0.0f64 } else { smallest }.to_bits(), w);
        sums.iter().for_each(|sum| w.u32((sum - smallest) as u32));
    } else {
        sums.iter().for_each(|sum| put_u64(sum.to_bits(), w));
    }
}

fn take_sums(r: &mut Reader<'_>, count: usize, out: &mut Vec<f64>) -> Result<(), Refused> {
    let is_short = flag(r)?;
    let smallest = if is_short { f64::from_bits(r.u64()?) } else { 0.0 };
    if (if is_short { 4 } else { 8 }) * count > r.0.len() {
        return Err(Refused::Length);
    }
    for _ in 0..count {
        let sum = if is_short { smallest + f64::from(r.u32()?) } else { f64::from_bits(r.u64()?) };
        if !sum.is_finite() {
            return Err(Refused::Content);
        }
        out.push(sum);
    }
    Ok(())
}

fn put_u64(x: u64, w: &mut Writer<'_>) {
    w.u32(x as u32);
    w.u32((x >> 32) as u32);
}

/// Appends hits.
pub(super) fn put_hits(hits: &[Hit], w: &mut Writer<'_>) {
    w.varint(hits.len() as u64);
    for hit in hits {
        w.u32(hit.distance.to_bits());
        w.varint(hit.external_id);
    }
}

/// Reads what [`put_hits`] wrote, `k` at most.
pub(super) fn take_hits(r: &mut Reader<'_>, k: u32, out: &mut Vec<Hit>) -> Result<(), Refused> {
    for _ in 0..r.count(k)? {
        let distance = f32::from_bits(r.u32()?);
        if distance.is_nan() {
            return Err(Refused::Content);
        }
        out.push(Hit { distance, external_id: r.varint()? });
    }
    Ok(())
}
