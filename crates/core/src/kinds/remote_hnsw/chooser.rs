//! The clusters that queries need, for a client that sends them where these are cached.

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;
use stratann_kernel::{DType, Metric};

use super::Tables;
use super::navigate::each_nearest;
use crate::format::hnsw::{HnswLayout, HnswName, SubHnsw};

/// Chooses the clusters of queries by a meta-HNSW, as a search does.
pub struct Chooser<'a> {
    meta: SubHnsw<'a>,
    vector_bytes: usize,
    exact: Exact,
    tables: Tables,
}

impl<'a> Chooser<'a> {
    /// Checks the bytes of a meta-HNSW; `None` where they are damaged or those of another.
    pub fn open(layout: &HnswLayout, name: &HnswName, meta: &'a [u8]) -> Option<Chooser<'a>> {
        let own = SubHnsw::open(layout, meta).filter(|_| SubHnsw::verify(layout, name, meta))?;
        let vector_bytes = layout.vector_bytes;
        Some(Chooser { meta: own, vector_bytes, exact: Exact::default(), tables: Tables::default() })
    }

    /// Appends the `nprobe` clusters nearest to a query, the nearest first. A query of another length needs none.
    pub fn choose(
        &mut self,
        (metric, dtype): (Metric, DType),
        query: &[u8],
        nprobe: u32,
        out: &mut Vec<u32>,
    ) {
        if query.len() != self.vector_bytes {
            return;
        }
        self.exact.set(metric, dtype, query.len() / dtype.size(), query);
        let all = self.meta.members() as usize;
        let wanted = all.min(nprobe as usize);
        let size = (all, wanted, true);
        each_nearest(&mut self.tables, &self.meta, &self.exact, size, &mut |near| out.push(near.1));
    }
}
