//! The state of a query as bytes, between two steps.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | version of this layout |
//! | 4 | length of all that follows the checksum |
//! | 8 | checksum of all that follows, and from version 11 on of the version |
//! | 1 | kind of index |
//! | … | parameters of all kinds (k, width, approach width, excluded vector, mode), then those of the kind |
//! | 12, 16 | budget: hops, reads, hand-overs, and from version 10 on jobs for others |
//! | 1 | flags: started, lost units, reported results |
//! | 4 | next tag |
//! | … | outcome: its number (1 byte), then unit (varint), store (1 byte), offset, bytes (a varint each) and reason (1 byte) of a loss |
//! | 4, 8 + … | counters: a bit for each that is not 0, then those, a varint each; with the last bit a second word of bits follows |
//! | … | results: count, then the difference to the distance before, and the external id, a varint each |
//! | … | with the flag: number of reports, count, then the difference to the distance before, a varint each |
//! | … | reads and jobs pending: count, then tag (4 bytes), the server that scores, 254 for codes or 255 (1 byte), store (1 byte), offset, bytes, unit and note (a varint each) |
//! | … | with the flag: lost units: count, then unit (varint), the servers that tried (varint), reason (1 byte) each |
//! | … | the kind's own section, described in its room |
//!
//! Versions 9 and 10 know no jobs that are forwarded: parameters that ask for them are written as ones that ask for
//! scores. All numbers are little-endian, counts are varints (7 bits a byte, lowest first). Distances of candidates may
//! be left out: the receiver computes them again from the codes, to the bit. Wants are not carried: they were submitted
//! before a state travels. Every count is checked against its limit before memory is taken for it.

use alloc::vec::Vec;

use super::{MAX_K, MAX_WIDTH, Params, QueryState};
use crate::codec::{Reader, Refused, Writer};
use crate::hash::checksum;
pub use crate::kinds::Carry;
use crate::kinds::{KindParams, SEEDS_VERSION};
use crate::order::{from_order_key, order_key};
use crate::search::{
    Budget, Candidate, Extent, FAR_MAX, Hit, LOST_UNITS_MAX, Loss, LostUnit, LostUnits, Mode, Outcome,
    Pending, QueryStats, Read, ScorerId, Scores, StoreId, Tag,
};

/// The newest version, which is written where all servers read it.
pub const VERSION: u32 = 17;
/// The first version whose readers take masks of lists with a job.
pub const MASKS_VERSION: u32 = 16;
/// The first version whose readers know a filter by its key.
pub const KEYS_VERSION: u32 = 16;
/// The first version whose readers take a filter after the vector of a query.
pub const FILTERS_VERSION: u32 = 15;
/// The first version whose readers know messages with thresholds.
pub(crate) const THRESHOLDS_VERSION: u32 = 12;
/// The oldest version that is read, and written for servers that read no newer one. Jobs are not limited apart from
/// hand-overs in it.
pub const OLDEST_VERSION: u32 = 9;
const HEADER: usize = 16;

/// The checksum of a state of this version, for all that follows its header. Versions from 10 on have one layout:
/// what tells them apart is in the checksum of those from 11 on.
pub fn seal(version: u32, body: &[u8]) -> u64 {
    if version > 10 { checksum(body).wrapping_add(version.into()) } else { checksum(body) }
}

/// Way that the results of a query take when it is handed over (BatANN, §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Results {
    /// With the query.
    #[default]
    Along,
    /// To its origin, from the server that found them. The state keeps their distances, which decide when it stops.
    Origin,
}

/// Appends the state to `out`. A state that was decoded without distances and has not been stepped since is written
/// without.
pub fn encode(state: &QueryState, carry: Carry, out: &mut Vec<u8>) {
    Encoder::default().encode(state, carry, VERSION, out);
}

/// Entries of lists that an encoder keeps memory for.
const KEPT_CANDIDATES: usize = 1024;

/// [`encode`], again and again in the same memory.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    sorted: Vec<Candidate>,
    reported: Vec<f32>,
}

impl Encoder {
    /// As [`encode`], in a version from [`OLDEST_VERSION`] to [`VERSION`].
    pub fn encode(&mut self, state: &QueryState, carry: Carry, version: u32, out: &mut Vec<u8>) {
        self.write(state, (carry, version), None, out);
    }

    /// As [`Encoder::encode`]. With a number of reports, the results were reported to the origin: only their distances
    /// are written.
    pub(crate) fn write(
        &mut self,
        state: &QueryState,
        (carry, version): (Carry, u32),
        reports_sent: Option<u32>,
        out: &mut Vec<u8>,
    ) {
        let QueryState { q, .. } = state;
        let is_along = if reports_sent.is_none() { q.top.hits.len() } else { 0 };
        let (along, reported) = q.top.hits.split_at(is_along);
        let reports_sent = reports_sent.unwrap_or(q.top.reports_sent);
        self.reported.clone_from(&q.top.reported_distances);
        self.reported.extend(reported.iter().map(|hit| hit.distance));
        self.reported.sort_unstable_by(f32::total_cmp);
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        let mut w = Writer(out);
        write_params(state.params(), version, &mut w);
        let Budget { hops, reads, hand_overs, score_jobs } = q.budget;
        [hops, reads, hand_overs].into_iter().for_each(|x| w.u32(x));
        if version > 9 {
            w.u32(score_jobs);
        }
        let flags = [q.started, !q.lost_units.0.is_empty(), reports_sent > 0];
        w.u8(flags.iter().enumerate().map(|(i, &flag)| u8::from(flag) << i).sum());
        w.u32(q.io.next_tag);
        write_outcome(q.outcome, &mut w);
        write_stats(&q.stats, version, &mut w);
        put_hits(along, &mut w);
        if reports_sent > 0 {
            w.varint(reports_sent.into());
            put_distances(&self.reported, &mut w);
        }
        write_pending(&q.io.pending, &mut w);
        if !q.lost_units.0.is_empty() {
            write_lost_units(&q.lost_units, &mut w);
        }
        state.own.encode((carry, version), &mut w, &mut self.sorted);
        let body = &out[start + HEADER..];
        let (length, sum) = (body.len() as u32, seal(version, body));
        out[start..start + 4].copy_from_slice(&version.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        out[start + 8..start + 16].copy_from_slice(&sum.to_le_bytes());
        self.sorted.clear();
        self.sorted.shrink_to(KEPT_CANDIDATES);
        self.reported.clear();
        self.reported.shrink_to(KEPT_CANDIDATES);
    }
}

/// Reads a state.
///
/// # Errors
/// When the bytes are not a state of this version, are damaged, or name numbers beyond the limits.
pub fn decode(bytes: &[u8]) -> Result<QueryState, Refused> {
    let mut state = QueryState::default();
    decode_into(bytes, &mut state).map(|()| state)
}

/// [`decode`], in the memory of `state`, which is not to be used after an error.
///
/// # Errors
/// As [`decode`].
pub fn decode_into(bytes: &[u8], state: &mut QueryState) -> Result<(), Refused> {
    let mut r = Reader(bytes);
    let version = r.u32()?;
    if !(OLDEST_VERSION..=VERSION).contains(&version) {
        return Err(Refused::Version(version));
    }
    let length = r.u32()? as usize;
    let sum = r.u64()?;
    if r.0.len() != length {
        return Err(Refused::Length);
    }
    if seal(version, r.0) != sum {
        return Err(Refused::Checksum);
    }
    let params = read_params(&mut r)?;
    let (hops, reads, hand_overs) = (r.u32()?, r.u32()?, r.u32()?);
    let score_jobs = if version > 9 { r.u32()? } else { Budget::default().score_jobs };
    let budget = Budget { hops, reads, hand_overs, score_jobs };
    state.restart(params, budget);
    let q = &mut state.q;
    let flags = r.u8()?;
    if flags > 7 {
        return Err(Refused::Content);
    }
    q.started = flags & 1 != 0;
    q.io.next_tag = r.u32()?;
    q.outcome = read_outcome(&mut r)?;
    q.stats = read_stats(&mut r)?;
    take_hits(&mut r, params.k, &mut q.top.hits)?;
    if flags & 4 != 0 {
        q.top.reports_sent = r.varint_u32()?;
        let most = params.k.saturating_sub(q.top.hits.len() as u32);
        take_distances(&mut r, most, &mut q.top.reported_distances)?;
    }
    read_pending(&mut r, &mut q.io.pending)?;
    if flags & 2 != 0 {
        read_lost_units(&mut r, &mut q.lost_units)?;
    }
    state.own.decode(&params.kind, params.k, &mut r)?;
    if r.0.is_empty() { Ok(()) } else { Err(Refused::Length) }
}

/// Appends the reply of a job that has ended: whether it is complete (1 byte), its counters, and what the kind writes.
/// The asker reads states of this version.
pub fn write_scores(job: &QueryState, version: u32, out: &mut Vec<u8>) {
    let mut w = Writer(out);
    w.u8(u8::from(job.q.outcome == Outcome::Complete));
    write_stats(&job.q.stats, version, &mut w);
    job.own.encode_scores(&mut w);
}

/// Reads the reply to a job. Its content is checked by the query that asked.
///
/// # Errors
/// Bytes that no job replies.
pub fn read_scores(bytes: &[u8]) -> Result<Scores<'_>, Refused> {
    let mut r = Reader(bytes);
    let is_complete = match r.u8()? {
        0 => false,
        1 => true,
        _ => return Err(Refused::Content),
    };
    Ok(Scores { is_complete, stats: read_stats(&mut r)?, content: r.0 })
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
        before = before.wrapping_add(r.varint_u32()?);
        out.push(Hit { distance: from_order_key(before), external_id: r.varint()? });
    }
    Ok(())
}

/// Writes ascending distances.
fn put_distances(distances: &[f32], w: &mut Writer<'_>) {
    w.varint(distances.len() as u64);
    let mut before = 0;
    for at in distances.iter().map(|&distance| order_key(distance)) {
        w.varint(u64::from(at - before));
        before = at;
    }
}

fn take_distances(r: &mut Reader<'_>, most: u32, out: &mut Vec<f32>) -> Result<(), Refused> {
    let mut before = 0u32;
    for _ in 0..r.count(most)? {
        before = before.checked_add(r.varint_u32()?).ok_or(Refused::Content)?;
        out.push(from_order_key(before));
    }
    Ok(())
}

/// Number in place of the server that scores, for a read, and for a scorer of codes.
const NO_SCORER: u8 = u8::MAX;
const CODE_SCORER: u8 = u8::MAX - 1;

fn write_pending(pending: &[Pending], w: &mut Writer<'_>) {
    w.varint(pending.len() as u64);
    for p in pending {
        w.u32(p.tag.0);
        w.u8(match p.scorer {
            None => NO_SCORER,
            Some(ScorerId::Codes) => CODE_SCORER,
            Some(ScorerId::Server(server)) => server,
        });
        let Read { at, unit, note } = p.read;
        w.u8(at.store.0);
        w.varint(at.offset);
        w.varint(at.bytes.into());
        w.varint(unit.into());
        w.varint(note);
    }
}

/// Most reads of one state that can be under way: a list read without bounds may take more than its width.
const PENDING_MAX: u32 = 64 * MAX_WIDTH;

fn read_pending(r: &mut Reader<'_>, pending: &mut Vec<Pending>) -> Result<(), Refused> {
    for _ in 0..r.count(PENDING_MAX)? {
        let (tag, scorer) = (Tag(r.u32()?), r.u8()?);
        let scorer = match scorer {
            NO_SCORER => None,
            CODE_SCORER => Some(ScorerId::Codes),
            server => Some(ScorerId::Server(server)),
        };
        let at = Extent { store: StoreId(r.u8()?), offset: r.varint()?, bytes: r.varint_u32()? };
        let read = Read { at, unit: r.varint_u32()?, note: r.varint()? };
        pending.push(Pending { tag, read, scorer });
    }
    Ok(())
}

fn write_lost_units(lost: &LostUnits, w: &mut Writer<'_>) {
    w.varint(lost.0.len() as u64);
    for u in &lost.0 {
        w.varint(u.unit.into());
        w.varint(u.tried);
        w.u8(u.loss as u8);
    }
}

fn read_lost_units(r: &mut Reader<'_>, lost: &mut LostUnits) -> Result<(), Refused> {
    for _ in 0..r.count(LOST_UNITS_MAX as u32)? {
        lost.0.push(LostUnit { unit: r.varint_u32()?, tried: r.varint()?, loss: loss(r.u8()?)? });
    }
    if lost.0.is_empty() { Err(Refused::Content) } else { Ok(()) }
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

fn write_params(p: &Params, version: u32, w: &mut Writer<'_>) {
    w.u8(p.kind.number());
    [p.k, p.width, p.approach_width, p.exclude].into_iter().for_each(|x| w.u32(x));
    // Without a filter the byte is the mode alone, as before there were filters.
    w.u8(p.mode as u8 | (FAR_MAX - p.far_tenths.min(FAR_MAX)) << 1);
    p.kind.encode(version, w);
}

fn read_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
    let kind = r.u8()?;
    let (k, width, approach_width, exclude) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let byte = r.u8()?;
    let mode = if byte & 1 == 0 { Mode::Barrier } else { Mode::Eager };
    let far_tenths = FAR_MAX.checked_sub(byte >> 1).ok_or(Refused::Content)?;
    let kind = KindParams::decode(kind, r)?;
    let params = Params { k, width, approach_width, mode, exclude, far_tenths, kind };
    if params.is_valid() { Ok(params) } else { Err(Refused::Content) }
}

fn write_outcome(outcome: Outcome, w: &mut Writer<'_>) {
    let none = (0, Extent::default(), 0);
    let (number, (unit, at, loss)) = match outcome {
        Outcome::Running => (0, none),
        Outcome::Complete => (1, none),
        Outcome::OutOfBudget => (2, none),
        Outcome::Lost { unit, at, loss } => (3, (unit, at, loss as u8)),
        Outcome::Partial => (4, none),
        Outcome::WrongKind => (5, none),
    };
    w.u8(number);
    w.varint(unit.into());
    w.u8(at.store.0);
    w.varint(at.offset);
    w.varint(at.bytes.into());
    w.u8(loss);
}

fn read_outcome(r: &mut Reader<'_>) -> Result<Outcome, Refused> {
    let (number, unit) = (r.u8()?, r.varint_u32()?);
    let at = Extent { store: StoreId(r.u8()?), offset: r.varint()?, bytes: r.varint_u32()? };
    let loss = loss(r.u8()?)?;
    match number {
        0 => Ok(Outcome::Running),
        1 => Ok(Outcome::Complete),
        2 => Ok(Outcome::OutOfBudget),
        3 => Ok(Outcome::Lost { unit, at, loss }),
        4 => Ok(Outcome::Partial),
        5 => Ok(Outcome::WrongKind),
        _ => Err(Refused::Content),
    }
}

/// Counters on the wire: all but `bounded`. Bounds never travel, so it is 0 where states do.
const COUNTERS: usize = QueryStats::NAMES.len() - 1;
/// Counters of the first bits. One bit more says that those of others follow: only kinds
/// that no server hands over count these.
const FIRST_COUNTERS: usize = 31;
const _: () = assert!(COUNTERS <= FIRST_COUNTERS + 32, "a bit for each counter");

/// Counters that servers know which read no version of states beyond 11.
const COUNTERS_OF_11: usize = 25;
/// Of those that read none beyond 16.
const COUNTERS_OF_16: usize = COUNTERS - 1;

fn write_stats(stats: &QueryStats, version: u32, w: &mut Writer<'_>) {
    let values = stats.values();
    let values = match version {
        ..12 => &values[..COUNTERS_OF_11],
        12..SEEDS_VERSION => &values[..COUNTERS_OF_16],
        _ => &values[..COUNTERS],
    };
    let (first, others) = values.split_at(values.len().min(FIRST_COUNTERS));
    let bits = |values: &[u64]| (0..).zip(values).map(|(i, &value)| u32::from(value > 0) << i).sum::<u32>();
    match bits(others) {
        0 => w.u32(bits(first)),
        others => {
            w.u32(bits(first) | 1 << FIRST_COUNTERS);
            w.u32(others);
        }
    }
    values.iter().filter(|&&value| value > 0).for_each(|&value| w.varint(value));
}

fn read_stats(r: &mut Reader<'_>) -> Result<QueryStats, Refused> {
    let mut present = u64::from(r.u32()?);
    if present >> FIRST_COUNTERS == 1 {
        let others = u64::from(r.u32()?);
        present = (present & !(1 << FIRST_COUNTERS)) | others << FIRST_COUNTERS;
        if others == 0 {
            return Err(Refused::Content);
        }
    }
    if present >> COUNTERS != 0 {
        return Err(Refused::Content);
    }
    let mut values = [0; QueryStats::NAMES.len()];
    for (_, value) in (0..).zip(&mut values).filter(|(i, _)| present >> i & 1 == 1) {
        *value = r.counter()?;
        if *value == 0 {
            return Err(Refused::Content);
        }
    }
    Ok(QueryStats::from_values(values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn how_far_a_query_goes_travels_and_takes_no_byte() {
        let written = |params: &Params| {
            let mut bytes = Vec::new();
            write_params(params, VERSION, &mut Writer(&mut bytes));
            bytes
        };
        let usual = Params::grid_ivf(10, 4);
        const MODE_AT: usize = 17;
        for mode in [Mode::Barrier, Mode::Eager] {
            assert_eq!(
                written(&Params { mode, ..usual })[MODE_AT],
                mode as u8,
                "as before there were filters"
            );
            for far_tenths in 0..=FAR_MAX {
                let params = Params { mode, far_tenths, ..usual };
                let bytes = written(&params);
                assert_eq!(bytes.len(), written(&usual).len());
                assert_eq!(read_params(&mut Reader(&bytes)), Ok(params));
            }
        }
        let mut beyond = written(&usual);
        beyond[MODE_AT] = (FAR_MAX + 1) << 1;
        assert_eq!(read_params(&mut Reader(&beyond)), Err(Refused::Content));
    }
}
