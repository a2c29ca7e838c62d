//! The parameters of one query.

use crate::access::hnsw::{is_scanned, prices};
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
    /// Whether all vectors of a cluster are compared where that is faster than a search of its graph.
    pub scan_clusters: bool,
}

impl Params {
    /// The defaults of everything else for `k` results from `nprobe` clusters.
    pub fn new(k: u32, nprobe: u32) -> Params {
        let ef = k.saturating_add(k / 2).clamp(48, MAX_EF);
        Params { nprobe: nprobe.clamp(1, MAX_PROBES), ef, exact: false, scan_clusters: true }
    }

    /// Whether a cluster of so many vectors of so many bytes each, with M neighbours on upper layers, is scanned.
    pub fn scans(&self, members: u64, (vector_bytes, m): (u64, u64)) -> bool {
        self.exact || (self.scan_clusters && is_scanned(members, (vector_bytes, m), self.ef.into()))
    }

    /// What a scan of `matches` of so many members costs, and a search of their graph for the nearest of them, in a
    /// unit of both; as [`Params::scans`].
    pub fn prices(&self, (matches, members): (u64, u64), shape: (u64, u64)) -> (u64, u64) {
        prices((matches, members), shape, self.ef.into())
    }

    /// Whether every parameter is within its limit.
    pub fn is_valid(&self) -> bool {
        (1..=MAX_PROBES).contains(&self.nprobe) && (1..=MAX_EF).contains(&self.ef)
    }

    pub(super) fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.nprobe);
        w.u32(self.ef);
        w.u8(u8::from(self.exact) | u8::from(!self.scan_clusters) << 1);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Params, Refused> {
        let (nprobe, ef) = (r.u32()?, r.u32()?);
        match r.u8()? {
            flags @ 0..4 => Ok(Params { nprobe, ef, exact: flags & 1 != 0, scan_clusters: flags & 2 == 0 }),
            _ => Err(Refused::Content),
        }
    }
}
