//! The state of a query as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | stage |
//! | … | the next block or list (varint), mini-batches without effect (varint) |
//! | … | lists: count, then each (varint) |
//! | … | candidates: count, then the difference to the code distance before, and the id (varints); not sorted while lists of codes are read |
//! | … | the mini-batch: its first candidate and its end (varints) |
//! | … | scored candidates: count, then id (varint), distance (4 bytes), external id (varint) |
//! | … | other vectors: count, then distance (4 bytes), external id (varint) |

use super::params::{MAX_CANDIDATES, MAX_PROBES};
use super::{Params, Scored, Stage, State};
use crate::codec::{Reader, Refused, Writer};
use crate::search::{Hit, IndexSize};

/// Most other vectors that wait for a mini-batch.
pub(super) const OTHERS_MAX: usize = 65_536;

pub(super) fn fits(state: &State, size: &IndexSize) -> bool {
    let next_max = if state.stage == Stage::Scan { size.units } else { size.clusters };
    state.next <= next_max
        && state.lists.iter().all(|&list| list < size.clusters)
        && state.candidates.iter().all(|candidate| candidate.1 < size.nodes)
        && state.scored.iter().all(|scored| scored.id < size.nodes)
}

pub(super) fn encode(state: &State, w: &mut Writer<'_>) {
    w.u8(state.stage as u8);
    w.varint(state.next.into());
    w.varint(state.stable.into());
    w.varint(state.lists.len() as u64);
    state.lists.iter().for_each(|&list| w.varint(list.into()));
    w.varint(state.candidates.len() as u64);
    let mut before = 0u32;
    for &(distance, id) in &state.candidates {
        w.varint(distance.wrapping_sub(before).into());
        w.varint(id.into());
        before = distance;
    }
    w.varint(state.batch.0.into());
    w.varint(state.batch.1.into());
    w.varint(state.scored.len() as u64);
    for scored in &state.scored {
        w.varint(scored.id.into());
        w.u32(scored.distance.to_bits());
        w.varint(scored.external_id);
    }
    w.varint(state.others.len() as u64);
    for hit in &state.others {
        w.u32(hit.distance.to_bits());
        w.varint(hit.external_id);
    }
}

pub(super) fn decode(state: &mut State, params: &Params, _k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
    state.stage = match r.u8()? {
        0 => Stage::Rank,
        1 => Stage::Rerank,
        2 => Stage::Scan,
        _ => return Err(Refused::Content),
    };
    (state.next, state.stable) = (r.varint_u32()?, r.varint_u32()?);
    for _ in 0..r.count(params.nprobe.min(MAX_PROBES))? {
        state.lists.push(r.varint_u32()?);
    }
    let mut before = 0u32;
    // While lists of codes are read there are up to four times as many, and those of the last list.
    for _ in 0..r.count(MAX_CANDIDATES.saturating_mul(8))? {
        before = before.wrapping_add(r.varint_u32()?);
        state.candidates.push((before, r.varint_u32()?));
    }
    state.batch = (r.varint_u32()?, r.varint_u32()?);
    if state.batch.0 > state.batch.1 || state.batch.1 as usize > state.candidates.len() {
        return Err(Refused::Content);
    }
    let number = |bits: u32| Some(f32::from_bits(bits)).filter(|x| !x.is_nan()).ok_or(Refused::Content);
    for _ in 0..r.count(MAX_CANDIDATES)? {
        let (id, distance) = (r.varint_u32()?, number(r.u32()?)?);
        state.scored.push(Scored { id, distance, external_id: r.varint()? });
    }
    if !state.scored.is_sorted_by(|a, b| a.id < b.id) {
        return Err(Refused::Content);
    }
    for _ in 0..r.count(OTHERS_MAX as u32)? {
        state.others.push(Hit { distance: number(r.u32()?)?, external_id: r.varint()? });
    }
    Ok(())
}
