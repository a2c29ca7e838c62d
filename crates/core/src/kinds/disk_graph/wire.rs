//! The state of a `disk-graph` query as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | sum: 1 with distances, 2 of a search by codes, 4 with blocks in memory, 8 having given way, 16 of a scan of codes, 32 of a walk among the rows that may be returned |
//! | … | reads since the results last changed (varint) |
//! | … | of blocks in memory that were used: their number (varint) |
//! | … | of a scan: the next block, and a bit for each server that has ended its part (varints) |
//! | … | of a scan of codes: the next row (varint) |
//! | … | of a walk among the rows that may be returned: the length of its beam (varint) |
//! | … | of a search by codes: whether the walk has ended (1 byte), count of compared nodes (varint), and for each its number (4 bytes), distance (4 bytes) and external id (varint) |
//! | … | with distances: number of candidates, bits of an id; then id and progress (2 bits) of each, packed; then the difference to the distance before, a varint each |
//! | … | without: number of candidates, bits of a progress, bits of a remainder; then, by ascending id, the difference to the id before in Golomb–Rice code, and the progress, packed |
//!
//! A beam of 200 over a million nodes takes about 4 bytes an entry with its distances, and 2 without.

use alloc::vec::Vec;

use super::code_walk::{CodeWalk, ScoredNode};
use super::scan::Scan;
use super::{MAX_SEARCH_LIST, Params, SEEDS, Sieving, State, progress};
use crate::codec::{Packer, Reader, Refused, Unpacker, Writer};
use crate::kinds::kind::{Carry, SEEDS_VERSION};
use crate::search::{Beam, Candidate, Progress};

/// Most nodes that a query on its way has compared: one for each read that its budget allows.
const SCORED_MAX: u32 = 1 << 20;

pub(super) fn encode_params(p: &Params, version: u32, w: &mut Writer<'_>) {
    w.u32(p.search_list);
    w.u32(p.stop_slack.to_bits());
    w.u32(p.stop_margin.to_bits());
    w.u32(p.idle_share.to_bits());
    w.u32(p.patience);
    w.u32(p.head_list);
    let by_codes = u8::from(p.rerank > 0) << 3;
    let is_sieved = p.sieving != Sieving::default();
    let ways = u8::from(p.scan) << 2 | by_codes | u8::from(is_sieved) << 4;
    w.u8(u8::from(p.whole_blocks) | u8::from(p.head) << 1 | ways);
    if by_codes > 0 {
        w.u32(p.rerank);
    }
    if is_sieved {
        let Sieving { code_scan, slack, list, blocks_max, comparisons_max, to_codes, seeds, seed_list } =
            p.sieving;
        // Servers that do not know it give way instead.
        let has_seeds = (seeds, seed_list) != (SEEDS, 0) && version >= SEEDS_VERSION;
        w.u8(u8::from(code_scan) | u8::from(to_codes) << 1 | u8::from(has_seeds) << 2);
        w.u32(slack.to_bits());
        w.u32(list);
        w.u32(blocks_max);
        w.varint(comparisons_max);
        if has_seeds {
            w.varint(seeds.into());
            w.varint(seed_list.into());
        }
    }
}

pub(super) fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
    let (search_list, stop_slack) = (r.u32()?, f32::from_bits(r.u32()?));
    let (stop_margin, idle_share) = (f32::from_bits(r.u32()?), f32::from_bits(r.u32()?));
    let (patience, head_list, flags) = (r.u32()?, r.u32()?, r.u8()?);
    if flags > 31 {
        return Err(Refused::Content);
    }
    let rerank = if flags & 8 != 0 { r.u32()? } else { 0 };
    let sieving = if flags & 16 != 0 { decode_sieving(r)? } else { Sieving::default() };
    let (whole_blocks, head, scan) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
    Ok(Params {
        search_list,
        stop_slack,
        patience,
        stop_margin,
        idle_share,
        scan,
        whole_blocks,
        head,
        head_list,
        rerank,
        sieving,
    })
}

fn decode_sieving(r: &mut Reader<'_>) -> Result<Sieving, Refused> {
    let ways = r.u8()?;
    if ways > 7 {
        return Err(Refused::Content);
    }
    let (code_scan, to_codes) = (ways & 1 != 0, ways & 2 != 0);
    let (slack, list, blocks_max) = (f32::from_bits(r.u32()?), r.u32()?, r.u32()?);
    let comparisons_max = r.varint()?;
    let (seeds, seed_list) = if ways & 4 != 0 { (r.varint_u32()?, r.varint_u32()?) } else { (SEEDS, 0) };
    if ways & 4 != 0 && (seeds, seed_list) == (SEEDS, 0) {
        return Err(Refused::Content);
    }
    Ok(Sieving { code_scan, slack, list, blocks_max, comparisons_max, to_codes, seeds, seed_list })
}

pub(super) fn encode(
    state: &State,
    (carry, version): (Carry, u32),
    w: &mut Writer<'_>,
    sorted: &mut Vec<Candidate>,
) {
    // To servers that do not know such a walk it has given way.
    if state.among > 0 && version < SEEDS_VERSION {
        let given_way = State { gave_way: true, ..State::default() };
        return encode(&given_way, (carry, version), w, sorted);
    }
    let carry = if state.is_scored { carry } else { Carry::Ids };
    let by_codes = state.walk.has_ended || !state.walk.scored.is_empty();
    let in_memory = state.blocks_in_memory > 0;
    let next_row = state.scan.next_row;
    let sieved = u8::from(state.gave_way) << 3 | u8::from(next_row > 0) << 4 | u8::from(state.among > 0) << 5;
    w.u8(u8::from(carry == Carry::Distances) | u8::from(by_codes) << 1 | u8::from(in_memory) << 2 | sieved);
    w.varint(state.reads_without_change.into());
    if in_memory {
        w.varint(state.blocks_in_memory.into());
    }
    w.varint(state.scan.next_block.into());
    w.varint(state.scan.servers);
    if next_row > 0 {
        w.varint(next_row.into());
    }
    if state.among > 0 {
        w.varint(state.among.into());
    }
    if by_codes {
        write_walk(&state.walk, w);
    }
    match carry {
        Carry::Distances => write_beam(&state.beam, w),
        Carry::Ids => write_ids(&state.beam, sorted, w),
    }
}

pub(super) fn decode(
    state: &mut State,
    (params, k): (&Params, u32),
    r: &mut Reader<'_>,
) -> Result<(), Refused> {
    let form = r.u8()?;
    if form > 63 || form & 40 == 40 {
        return Err(Refused::Content);
    }
    state.uses_codes = !params.scan;
    state.reads_without_change = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
    if form & 4 != 0 {
        state.blocks_in_memory = r.varint_u32()?;
        if state.blocks_in_memory == 0 {
            return Err(Refused::Content);
        }
    }
    state.scan = Scan { next_block: r.varint_u32()?, servers: r.varint()?, next_row: 0 };
    if form & 16 != 0 {
        state.scan.next_row = r.varint_u32()?;
        if state.scan.next_row == 0 {
            return Err(Refused::Content);
        }
    }
    state.gave_way = form & 8 != 0;
    if form & 32 != 0 {
        state.among = r.varint_u32()?;
        if !(k..=MAX_SEARCH_LIST).contains(&state.among) {
            return Err(Refused::Content);
        }
    }
    let list = match state.gave_way || params.sieving.code_scan {
        true => params.beam(true).max(k),
        false if state.among > 0 => state.among,
        false => params.search_list,
    };
    state.beam.reset(list as usize);
    state.is_scored = form & 1 != 0;
    if form & 2 != 0 {
        read_walk(r, &mut state.walk)?;
    }
    match state.is_scored {
        true => read_beam(r, list, &mut state.beam),
        false => read_ids(r, list, &mut state.beam),
    }
}

fn write_walk(walk: &CodeWalk, w: &mut Writer<'_>) {
    w.u8(u8::from(walk.has_ended));
    w.varint(walk.scored.len() as u64);
    for scored in &walk.scored {
        w.u32(scored.node);
        w.u32(scored.distance.to_bits());
        w.varint(scored.external_id);
    }
}

fn read_walk(r: &mut Reader<'_>, walk: &mut CodeWalk) -> Result<(), Refused> {
    let has_ended = r.u8()?;
    if has_ended > 1 {
        return Err(Refused::Content);
    }
    walk.has_ended = has_ended == 1;
    for _ in 0..r.count(SCORED_MAX)? {
        let (node, distance) = (r.u32()?, f32::from_bits(r.u32()?));
        walk.scored.push(ScoredNode { node, distance, external_id: r.varint()? });
    }
    Ok(())
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

/// Reads into an empty beam of this capacity.
fn read_beam(r: &mut Reader<'_>, capacity: u32, beam: &mut Beam) -> Result<(), Refused> {
    let count = r.count(capacity)?;
    let id_bits = u32::from(r.u8()?);
    if id_bits > 32 {
        return Err(Refused::Content);
    }
    let mut packed = Unpacker::new(r.slice((count as usize * (id_bits as usize + 2)).div_ceil(8))?);
    let mut distance = 0u32;
    for _ in 0..count {
        let (progress, id) = (progress(packed.take(2)?)?, packed.take(id_bits)?);
        let step = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
        distance = distance.checked_add(step).ok_or(Refused::Content)?;
        if !beam.append(distance, id, progress) {
            return Err(Refused::Content);
        }
    }
    packed.finish()?;
    if beam.has_duplicates() { Err(Refused::Content) } else { Ok(()) }
}

/// Differences between sorted ids are small where the beam covers much of the index, or few of its blocks. A state
/// that is handed over awaits nothing, so one bit holds the progress.
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
        packed.put_unary(step >> remainder_bits);
        packed.put(step & ((1 << remainder_bits) - 1), remainder_bits);
        match awaits {
            true => packed.put(c.progress as u32, 2),
            false => packed.put(u32::from(c.progress == Progress::Expanded), 1),
        }
    }
    packed.finish();
}

/// The length of remainders that makes the code shortest; it is near the logarithm of the mean difference.
fn rice_bits(steps: impl Iterator<Item = u32> + Clone, count: usize) -> u32 {
    let sum: u64 = steps.clone().map(u64::from).sum();
    let most = (sum / count.max(1) as u64 + 1).ilog2().min(31);
    let cost = |bits: u32| steps.clone().map(|s| u64::from((s >> bits) + 1 + bits)).sum::<u64>();
    (most.saturating_sub(8)..=most).min_by_key(|&bits| cost(bits)).unwrap_or(0)
}

/// Reads candidates by ascending id. Their distances are 0 until they are computed again.
fn read_ids(r: &mut Reader<'_>, capacity: u32, beam: &mut Beam) -> Result<(), Refused> {
    let count = r.count(capacity)?;
    let (progress_bits, remainder_bits) = (u32::from(r.u8()?), u32::from(r.u8()?));
    if !(1..=2).contains(&progress_bits) || remainder_bits > 31 {
        return Err(Refused::Content);
    }
    let mut packed = Unpacker::new(r.0);
    let mut next = 0u64;
    for _ in 0..count {
        let quotient = packed.take_unary()?;
        // A longer one would be lost in the shift.
        if quotient > u64::from(u32::MAX) >> remainder_bits {
            return Err(Refused::Content);
        }
        let id = next + (quotient << remainder_bits) + u64::from(packed.take(remainder_bits)?);
        let far = packed.take(progress_bits)?;
        let progress = progress(if progress_bits == 1 { far * 2 } else { far })?;
        let id = u32::try_from(id).map_err(|_| Refused::Content)?;
        next = u64::from(id) + 1;
        if !beam.append(0, id, progress) {
            return Err(Refused::Content);
        }
    }
    r.0 = packed.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::disk_graph::DiskGraph;
    use crate::kinds::kind::Kind;
    use alloc::vec;

    #[test]
    fn a_node_at_two_distances_is_refused() {
        for (ids, expected) in [([3, 9, 3], Err(Refused::Content)), ([3, 9, 4], Ok(()))] {
            let mut state = State::default();
            state.beam.reset(5);
            for (distance, id) in (0..).zip(ids) {
                assert!(state.beam.offer(10 * distance, id, Progress::Fresh));
            }
            let mut bytes = vec![];
            encode(&state, (Carry::Distances, SEEDS_VERSION), &mut Writer(&mut bytes), &mut vec![]);
            let mut decoded = State::default();
            decoded.beam.reset(5);
            assert_eq!(decode(&mut decoded, (&Params::new(5), 1), &mut Reader(&bytes)), expected);
            assert!(decoded == state || expected.is_err());
        }
    }

    #[test]
    fn a_search_of_a_sieve_comes_back_with_more_candidates_than_a_walk() {
        let mut params = Params::new(5);
        params.sieving =
            Sieving { to_codes: true, slack: 1.5, list: 9, comparisons_max: 70, ..params.sieving };
        let mut bytes = vec![];
        encode_params(&params, SEEDS_VERSION, &mut Writer(&mut bytes));
        assert_eq!(decode_params(&mut Reader(&bytes)), Ok(params));
        let mut state = State { gave_way: true, ..State::default() };
        state.scan.next_row = 40;
        state.beam.reset(9);
        assert!((0..7).all(|id| state.beam.offer(10 * id, id, Progress::Fresh)));
        for carry in [Carry::Distances, Carry::Ids] {
            let mut bytes = vec![];
            encode(&state, (carry, SEEDS_VERSION), &mut Writer(&mut bytes), &mut vec![]);
            let mut decoded = State::default();
            decoded.beam.reset(5);
            assert_eq!(decode(&mut decoded, (&params, 1), &mut Reader(&bytes)), Ok(()));
            assert_eq!((decoded.gave_way, decoded.scan.next_row), (true, 40));
            assert_eq!(decoded.beam.entries().len(), 7);
            let mut refused = State::default();
            refused.beam.reset(5);
            assert_eq!(
                decode(&mut refused, (&Params::new(5), 1), &mut Reader(&bytes)),
                Err(Refused::Content)
            );
        }
    }

    #[test]
    fn a_walk_among_rows_has_given_way_to_servers_that_do_not_know_it() {
        let mut params = Params::new(5);
        params.sieving = Sieving { comparisons_max: 70, seeds: 5, seed_list: 7, ..params.sieving };
        let mut state = State { among: 7, ..State::default() };
        state.beam.reset(7);
        assert!((0..7).all(|id| state.beam.offer(10 * id, id, Progress::Fresh)));
        for (version, knows) in [(SEEDS_VERSION, true), (SEEDS_VERSION - 1, false)] {
            let (mut bytes, mut of_params) = (vec![], vec![]);
            encode_params(&params, version, &mut Writer(&mut of_params));
            let read = decode_params(&mut Reader(&of_params)).unwrap();
            assert_eq!((read.sieving.seeds, read.sieving.seed_list), if knows { (5, 7) } else { (SEEDS, 0) });
            encode(&state, (Carry::Distances, version), &mut Writer(&mut bytes), &mut vec![]);
            let mut decoded = State::default();
            DiskGraph::reset(&mut decoded, &read, 1);
            assert_eq!(decode(&mut decoded, (&read, 1), &mut Reader(&bytes)), Ok(()));
            assert_eq!((decoded.among, decoded.gave_way), if knows { (7, false) } else { (0, true) });
            assert_eq!(decoded.beam.entries(), if knows { state.beam.entries() } else { &[] });
            bytes[0] |= 32 | 8;
            let both = decode(&mut State::default(), (&read, 1), &mut Reader(&bytes));
            assert_eq!(both, Err(Refused::Content), "among rows, and having given way");
        }
    }
}
