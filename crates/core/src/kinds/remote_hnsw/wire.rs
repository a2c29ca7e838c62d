//! The state of a query as bytes.
//!
//! | bytes | content |
//! |---|---|
//! | … | clusters: count, then each (varint) |
//! | … | found vectors: count, then distance (4 bytes), id and clock (varints) |
//! | … | sum of the shares of the clusters that were searched (varint) |
//! | … | of a query with a filter, what clusters hold: count, then matches and rows (varints) of each |

use super::params::MAX_PROBES;
use super::{Found, State};
use crate::codec::{Reader, Refused, Writer};

pub(super) fn encode(state: &State, w: &mut Writer<'_>) {
    w.varint(state.clusters.len() as u64);
    state.clusters.iter().for_each(|&cluster| w.varint(cluster.into()));
    w.varint(state.found.len() as u64);
    for found in &state.found {
        w.u32(found.distance.to_bits());
        w.varint(found.id);
        w.varint(found.clock);
    }
    w.varint(state.searched);
    w.varint(state.seen.len() as u64);
    for &(matches, rows) in &state.seen {
        w.varint(matches.into());
        w.varint(rows.into());
    }
}

pub(super) fn decode(state: &mut State, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
    // An exact query names all clusters.
    for _ in 0..r.count(MAX_PROBES)? {
        state.clusters.push(r.varint_u32()?);
    }
    for _ in 0..r.count(k)? {
        let distance = f32::from_bits(r.u32()?);
        if distance.is_nan() {
            return Err(Refused::Content);
        }
        state.found.push(Found { distance, id: r.varint()?, clock: r.varint()? });
    }
    if !state.found.is_sorted_by(|a, b| a.order(b).is_lt()) {
        return Err(Refused::Content);
    }
    state.searched = r.varint()?;
    for _ in 0..r.count(state.clusters.len() as u32)? {
        state.seen.push((r.varint_u32()?, r.varint_u32()?));
    }
    Ok(())
}
