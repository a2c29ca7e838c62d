//! Rows as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | 2, and 1 more for a job, 2 where slices of a row are scored at the same time, 4 where sums have too few digits, 8 where a job visits other rows after its first, 16 where jobs have masks; rows of 0 and 1 had no query |
//! | 8 | the limit before any list was scanned, as a double |
//! | … | lists that are open: count, then each as below |
//! | … | rows: count, and for each its tag (4 bytes) and the row |
//! | … | what a job has found: count, then distance (4 bytes) and id (a varint) each |
//! | … | of slices at the same time: for each row 0, or 1 for a slice of one, then its number (4 bytes), whether it wants ids, and norms: count, 4 bytes each |
//! | … | of slices at the same time: gathered rows: count, then number (4 bytes), lists, what is left, and the ids (varints), if known |
//!
//! | … | of few digits: for each row by how many powers of two the unit is larger than that of the index (1 byte), and the sums of groups: count of vectors, how many are skipped before each (varints), count of sums, 4 bytes each; then the sums of groups of each gathered row |
//! | … | of more rows: for each row the lists of those after it |
//! | … | of masks: for each row their count, and for each its list (a varint) and its bits, as those of vectors below |
//!
//! A list is a varint: 8 × its number, 2 × times that it was lost, and 1 where its first members were scored. A row is
//!
//! | bytes | content |
//! |---|---|
//! | … | lists: count, then each |
//! | 8, 8 | the slices that are done; the limit, as a double |
//! | … | what is left |
//! | … | what the missing slices need of the query: see [`super::super::rotated_query`] |
//!
//! What is left is
//!
//! | bytes | content |
//! |---|---|
//! | … | number of blocks |
//! | … | vectors: 0 and 8 bytes for each block, a bit for each; or, where that is shorter, 1, their number, and for each a varint, how many are skipped before it |
//! | … | sums: 0 and 8 bytes each, or 1, the smallest (8 bytes) and the difference to it, 4 bytes each |

use alloc::vec::Vec;

use super::super::fine::Fine;
use super::super::rotated_query::DIM_MAX;
use super::super::{MAX_FAN_OUT, MAX_PROBES, State};
use super::parallel_slices::Part;
use super::{Gathered, Probe, Row, TRIES, masks, ones};
use crate::codec::{Reader, Refused, Writer, varint_bytes};
use crate::search::{Hit, Tag};

/// Most blocks of a row.
const BLOCKS_MAX: u32 = 1 << 24;

/// Appends the state.
pub(in super::super) fn encode(state: &State, w: &mut Writer<'_>) {
    let has_parts = !state.gathered.is_empty() || state.rows.iter().any(|row| row.1.part.is_some());
    let is_fine = |row: &Row| row.query.shift > 0 || !row.fine.is_empty();
    let has_fine = state.rows.iter().any(|(_, row)| is_fine(row))
        || state.gathered.iter().any(|gathered| !gathered.fine.is_empty());
    let has_later = state.rows.iter().any(|(_, row)| !row.later.is_empty());
    // A reader that does not know masks refuses the state: it would return other rows.
    let has_masks = state.rows.iter().any(|(_, row)| !row.masks.is_empty());
    let bits = [(has_parts, PARTS), (has_fine, FINE), (has_later, LATER), (has_masks, MASKS)];
    let bits: u8 = bits.iter().map(|&(is_set, bit)| u8::from(is_set) * bit).sum();
    w.u8(FORM + u8::from(state.is_job) + bits);
    put_u64(state.limit.to_bits(), w);
    put_probes(&state.open, w);
    w.varint(state.rows.len() as u64);
    for (tag, row) in &state.rows {
        w.u32(tag.0);
        put_row(row, w);
    }
    put_hits(&state.found, w);
    if has_parts {
        state.rows.iter().for_each(|(_, row)| put_part(row.part.as_ref(), w));
        w.varint(state.gathered.len() as u64);
        state.gathered.iter().for_each(|gathered| put_gathered(gathered, w));
    }
    if has_fine {
        for (_, row) in &state.rows {
            w.u8(row.query.shift);
            row.fine.encode(w);
        }
        state.gathered.iter().for_each(|gathered| gathered.fine.encode(w));
    }
    if has_later {
        state.rows.iter().for_each(|(_, row)| put_probes(&row.later, w));
    }
    if has_masks {
        state.rows.iter().for_each(|(_, row)| masks::encode(&row.masks, w));
    }
}

/// The first byte of a state, and what is added to it.
const FORM: u8 = 2;
const PARTS: u8 = 2;
const FINE: u8 = 4;
const LATER: u8 = 8;
const MASKS: u8 = 16;

/// Reads what [`encode`] wrote.
pub(in super::super) fn decode(state: &mut State, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
    let form = r.u8()?.checked_sub(FORM).filter(|&form| form < 2 * MASKS).ok_or(Refused::Content)?;
    state.is_job = form & 1 == 1;
    state.limit = f64::from_bits(r.u64()?);
    if state.limit.is_nan() {
        return Err(Refused::Content);
    }
    take_probes(r, &mut state.open)?;
    for _ in 0..r.count(ROWS_MAX)? {
        let tag = Tag(r.u32()?);
        state.rows.push((tag, take_row(r)?));
    }
    if state.is_job && state.rows.len() != 1 {
        return Err(Refused::Content);
    }
    take_hits(r, k, &mut state.found)?;
    if form & PARTS > 0 {
        for (_, row) in &mut state.rows {
            row.part = take_part(r)?;
        }
        for _ in 0..r.count(MAX_FAN_OUT.into())? {
            state.gathered.push(take_gathered(r)?);
        }
    }
    if form & FINE > 0 {
        for (_, row) in &mut state.rows {
            row.query.shift = r.u8()?;
            row.fine = Fine::decode(r, row.sums.len())?;
        }
        for gathered in &mut state.gathered {
            gathered.fine = Fine::decode(r, gathered.sums.len())?;
        }
    }
    if form & LATER > 0 {
        for (_, row) in &mut state.rows {
            take_probes(r, &mut row.later)?;
        }
    }
    if form & MASKS > 0 {
        for (_, row) in &mut state.rows {
            row.masks = masks::decode(r)?;
        }
    }
    Ok(())
}

/// Most rows, or slices of them, of one query.
const ROWS_MAX: u32 = MAX_FAN_OUT as u32 * 64;

fn put_part(part: Option<&Part>, w: &mut Writer<'_>) {
    w.u8(u8::from(part.is_some()));
    if let Some(part) = part {
        w.u32(part.row);
        w.u8(u8::from(part.with_ids));
        w.varint(part.norms.len() as u64);
        part.norms.iter().for_each(|norm| w.u32(norm.to_bits()));
    }
}

fn take_part(r: &mut Reader<'_>) -> Result<Option<Part>, Refused> {
    if !flag(r)? {
        return Ok(None);
    }
    let mut part = Part { row: r.u32()?, with_ids: flag(r)?, ..Part::default() };
    for _ in 0..r.count(DIM_MAX)? {
        let norm = f32::from_bits(r.u32()?);
        if !(norm.is_finite() && norm >= 0.0) {
            return Err(Refused::Content);
        }
        part.norms.push(norm);
    }
    Ok(Some(part))
}

fn put_gathered(gathered: &Gathered, w: &mut Writer<'_>) {
    w.u32(gathered.row);
    put_probes(&gathered.lists, w);
    put_left(&gathered.alive, &gathered.sums, w);
    w.u8(u8::from(!gathered.ids.is_empty()));
    gathered.ids.iter().for_each(|&id| w.varint(id));
}

fn take_gathered(r: &mut Reader<'_>) -> Result<Gathered, Refused> {
    let mut gathered = Gathered { row: r.u32()?, ..Gathered::default() };
    take_probes(r, &mut gathered.lists)?;
    take_left(r, gathered.lists.len(), (&mut gathered.alive, &mut gathered.sums))?;
    if flag(r)? {
        for _ in 0..gathered.sums.len() {
            gathered.ids.push(r.varint()?);
        }
    }
    Ok(gathered)
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
    put_left(&row.alive, &row.sums, w);
    row.query.encode(w);
}

/// Appends the vectors that are left, and their sums.
pub(super) fn put_left(alive: &[u64], sums: &[f64], w: &mut Writer<'_>) {
    put_bits(alive, sums.len(), w);
    put_sums(sums, w);
}

/// Appends the bits of vectors, of which so many are set.
pub(super) fn put_bits(alive: &[u64], left: usize, w: &mut Writer<'_>) {
    w.varint(alive.len() as u64);
    // A vector that is left takes a byte or two of its own.
    if left < 4 * alive.len() {
        w.u8(1);
        w.varint(left as u64);
        let mut next = 0;
        for (word, &bits) in (0u64..).zip(alive) {
            for at in ones(bits).map(|lane| 64 * word + u64::from(lane)) {
                w.varint(at - next);
                next = at + 1;
            }
        }
    } else {
        w.u8(0);
        alive.iter().for_each(|&word| put_u64(word, w));
    }
}

/// Bytes of what is left of a row.
pub(super) fn left_bytes(row: &Row) -> u64 {
    let Row { alive, sums, fine, .. } = row;
    let fine = if fine.is_empty() { 0 } else { fine.bytes() };
    let vectors = bits_bytes(alive, sums.len());
    let sums = if are_near(sums).0 { 8 + 4 * sums.len() } else { 8 * sums.len() };
    vectors + 1 + sums as u64 + fine
}

/// Bytes of the bits of vectors, of which so many are set.
pub(super) fn bits_bytes(alive: &[u64], left: usize) -> u64 {
    let mut next = 0;
    let is_short = left < 4 * alive.len();
    let gaps = (0u64..)
        .zip(alive)
        .filter(|_| is_short)
        .flat_map(|(word, &bits)| ones(bits).map(move |lane| 64 * word + u64::from(lane)));
    let gaps: u64 = gaps.map(|at| varint_bytes(at - core::mem::replace(&mut next, at + 1))).sum();
    let vectors = if is_short { varint_bytes(left as u64) + gaps } else { 8 * alive.len() as u64 };
    varint_bytes(alive.len() as u64) + 1 + vectors
}

fn take_row(r: &mut Reader<'_>) -> Result<Row, Refused> {
    let mut row = Row::default();
    take_probes(r, &mut row.lists)?;
    (row.done, row.limit) = (r.u64()?, f64::from_bits(r.u64()?));
    if row.limit.is_nan() || row.lists.is_empty() {
        return Err(Refused::Content);
    }
    take_left(r, row.lists.len(), (&mut row.alive, &mut row.sums))?;
    row.query.decode(r)?;
    Ok(row)
}

/// Reads what [`put_left`] wrote of so many lists.
pub(super) fn take_left(
    r: &mut Reader<'_>,
    lists: usize,
    (alive, sums): (&mut Vec<u64>, &mut Vec<f64>),
) -> Result<(), Refused> {
    let left = take_bits(r, lists, alive)?;
    take_sums(r, left, sums)
}

/// Reads what [`put_bits`] wrote of so many lists. Returns how many are set.
pub(super) fn take_bits(r: &mut Reader<'_>, lists: usize, alive: &mut Vec<u64>) -> Result<usize, Refused> {
    let blocks = r.count(BLOCKS_MAX)? as usize;
    let mut left = 0;
    if flag(r)? {
        left = r.count(BLOCKS_MAX.saturating_mul(64))? as usize;
        // Each vector that is left takes a byte at least, so that a short frame takes little memory.
        if left > r.0.len() || blocks > 0 && blocks > MAX_BLOCKS_OF_LIST * lists {
            return Err(Refused::Content);
        }
        alive.resize(blocks, 0);
        let mut next = 0u64;
        for _ in 0..left {
            let at = next.checked_add(r.varint()?).ok_or(Refused::Content)?;
            let word = alive.get_mut((at / 64) as usize).ok_or(Refused::Content)?;
            *word |= 1 << (at % 64);
            next = at + 1;
        }
    } else {
        if 8 * blocks > r.0.len() {
            return Err(Refused::Content);
        }
        for _ in 0..blocks {
            alive.push(r.u64()?);
            left += alive[alive.len() - 1].count_ones() as usize;
        }
    }
    Ok(left)
}

/// Most blocks that the lists of a row may have on average where few vectors are left.
const MAX_BLOCKS_OF_LIST: usize = 1 << 16;

/// Whether all sums are near the smallest one, and that one.
fn are_near(sums: &[f64]) -> (bool, f64) {
    let smallest = sums.iter().copied().fold(f64::INFINITY, f64::min);
    (sums.iter().all(|sum| sum - smallest <= f64::from(u32::MAX)), smallest)
}

fn put_sums(sums: &[f64], w: &mut Writer<'_>) {
    let (is_short, smallest) = are_near(sums);
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
