//! What a `remote-hnsw` keeps in RAM.

use crate::format::fresh::{self, Tombstone};
use crate::format::hnsw::{self, HnswLayout, HnswName, SubHnsw};
use crate::format::region::{Descriptor, Span, versioned_offset};
use crate::search::{Extent, Read, StoreId};
use crate::view::Base;

/// The `note` of a read of a sub-HNSW, and of fresh records.
pub(super) const BASE: u64 = 0;
/// See [`BASE`].
pub(super) const FRESH: u64 = 1;

/// Where a cluster is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Its sub-HNSW.
    pub base: Extent,
    /// Its fresh records that are in use; no bytes where there are none.
    pub fresh: Extent,
    /// The version of its group.
    pub version: u32,
    /// Its group.
    pub group: u32,
    /// The clock up to which changes are in the sub-HNSW.
    pub clock: u64,
}

impl Located {
    /// A side of a group, and how many of its fresh records are in use.
    pub fn new(at: &Descriptor, group: u32, (side, used): (usize, u32), record_bytes: u64) -> Located {
        let extent = |span: Span| Extent {
            store: StoreId(at.at.node()),
            offset: versioned_offset(at.version, span.offset),
            bytes: u32::try_from(span.bytes).unwrap_or(u32::MAX),
        };
        let (base, fresh) = (at.cluster(side, record_bytes), at.fresh(side, used, record_bytes));
        let Descriptor { version, clock, .. } = *at;
        Located { base: extent(base), fresh: extent(fresh), version, group, clock }
    }
}

/// What `remote-hnsw` keeps in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all sub-HNSWs, and of the meta-HNSW.
    pub layout: &'a HnswLayout,
    /// The meta-HNSW, verified: a vector for each cluster, and a graph over them.
    pub meta: &'a [u8],
    /// The build of the index, as a number.
    pub build: u64,
    /// Where the clusters are: A of group 0, B of group 0, A of group 1 and so on.
    pub clusters: &'a [Located],
    /// Number of the first member of each cluster; empty where members have no numbers.
    pub first: &'a [u32],
    /// Deleted ids, ascending, each with the clock of its last deletion.
    pub tombstones: &'a [Tombstone],
}

impl View<'_> {
    /// The name of a cluster's sub-HNSW.
    pub fn name(&self, cluster: u32) -> Option<HnswName> {
        let &Located { version, group, .. } = self.clusters.get(cluster as usize)?;
        let seed = hnsw::seed(self.build, group, version, (cluster & 1) as usize);
        Some(HnswName { cluster, version, seed })
    }

    /// Bytes of a fresh record.
    pub fn record_bytes(&self) -> usize {
        fresh::record_bytes(self.layout.vector_bytes)
    }

    /// Whether what was inserted under an id at this clock is deleted.
    pub(super) fn is_hidden(&self, id: u64, clock: u64) -> bool {
        let at = self.tombstones.binary_search_by_key(&id, |tombstone| tombstone.id);
        at.is_ok_and(|at| self.tombstones[at].clock > clock)
    }

    /// Whether nothing more will be written: every slot has a record, or will never have one.
    pub(super) fn is_settled(&self, read: &Read, bytes: &[u8]) -> bool {
        let Some(located) = self.clusters.get(read.unit as usize).filter(|_| read.note == FRESH) else {
            return read.note == BASE;
        };
        let seed = fresh::seed(self.build, located.group, located.version);
        bytes.chunks_exact(self.record_bytes()).all(|slot| fresh::is_decided(seed, slot))
    }

    /// Whether these bytes are what a read must bring. Fresh records have a checksum each, which is checked when they
    /// are read: one that is written just now is none yet, and no damage.
    pub(super) fn verify(&self, _: &Base<'_>, read: &Read, bytes: &[u8]) -> bool {
        let Some(located) = self.clusters.get(read.unit as usize) else { return false };
        match read.note {
            BASE => {
                located.base == read.at
                    && self.name(read.unit).is_some_and(|name| SubHnsw::verify(self.layout, &name, bytes))
            }
            FRESH => located.fresh == read.at && bytes.len().is_multiple_of(self.record_bytes()),
            _ => false,
        }
    }
}
