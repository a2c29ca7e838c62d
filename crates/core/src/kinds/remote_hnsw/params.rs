//! The parameters of one query.

use crate::codec::{Reader, Refused, Writer};

/// Most clusters that a query can search.
pub const MAX_PROBES: u32 = 65_536;
/// Longest beam.
pub const MAX_EF: u32 = 65_536;

/// The parameters of one query; plain data that travels with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Clusters that are searched: b in d-HNSW.
    pub nprobe: u32,
    /// Length of the beam in each of them: efSearch.
    pub ef: u32,
    /// Whether every vector is compared, whatever else is given.
    pub exact: bool,
}

impl Params {
    /// The defaults of everything else for `k` results from `nprobe` clusters.
    pub fn new(k: u32, nprobe: u32) -> Params {
        let ef = k.saturating_add(k / 2).clamp(48, MAX_EF);
        Params { nprobe: nprobe.clamp(1, MAX_PROBES), ef, exact: false }
    }

    /// Whether every parameter is within its limit.
    pub fn is_valid(&self) -> bool {
        (1..=MAX_PROBES).contains(&self.nprobe) && (1..=MAX_EF).contains(&self.ef)
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.nprobe);
        w.u32(self.ef);
        w.u8(self.exact.into());
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Params, Refused> {
        let (nprobe, ef) = (r.u32()?, r.u32()?);
        match r.u8()? {
            exact @ 0..2 => Ok(Params { nprobe, ef, exact: exact == 1 }),
            _ => Err(Refused::Content),
        }
    }
}
