//! Search of one sub-HNSW by itself, to measure what it costs and finds.

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;
use stratann_kernel::{DType, Metric};

use super::Tables;
use crate::access::hnsw::{Walk, is_scan_faster};
use crate::format::hnsw::SubHnsw;

/// Searches sub-HNSWs for one query after another, as a search of the whole index does.
#[derive(Default)]
pub struct ClusterSearch {
    exact: Exact,
    tables: Tables,
}

impl ClusterSearch {
    /// Sets the query: components of the element type of the index.
    pub fn set(&mut self, (metric, dtype): (Metric, DType), query: &[u8]) {
        self.exact.set(metric, dtype, query.len() / dtype.size(), query);
    }

    /// Replaces `out` by the `k` nearest members that a search with a beam of `ef` finds, ascending. Returns the
    /// distances computed.
    pub fn search(&mut self, own: &SubHnsw<'_>, (ef, k): (usize, usize), out: &mut Vec<(f32, u32)>) -> u64 {
        out.clear();
        if is_scan_faster(own, ef) {
            let (cost, nearest) = self.tables.hnsw.nearest(own, &self.exact, k, |_| false);
            out.extend(nearest);
            return cost.comparisons;
        }
        let (cost, nearest) = self.tables.hnsw.search(own, &self.exact, Walk::new(ef), |_| false);
        out.extend(nearest.take(k));
        cost.comparisons
    }

    /// Distance to a member.
    pub fn distance(&self, own: &SubHnsw<'_>, member: u32) -> f32 {
        self.exact.distance(own.vector(member), own.inverse_norm(member))
    }
}
