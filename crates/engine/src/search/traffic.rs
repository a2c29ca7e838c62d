//! Expected traffic of clusters that are loaded whole.

use stratann_storage::{Error, Result};

use super::{Effort, SearchOptions};
use crate::index::Index;
use crate::kinds::known::IN_MEMORY_NODES;
use crate::kinds::shares_loads::SharesLoads;
use crate::kinds::{own, setting};

/// Most queries of a batch.
const BATCH_MAX: usize = 65_536;

/// Options of the expected traffic.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrafficOptions<'a> {
    /// Queries like those to come, as bytes; `None` to judge by the vectors of the index.
    pub queries: Option<&'a [u8]>,
    /// Clusters that a query searches; `None` for those of a usual search.
    pub nprobe: Option<u32>,
    /// Queries of a batch; `None` for the usual number.
    pub batch: Option<usize>,
}

/// Expected traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Queries that it was counted with; 0 where the vectors of the index stood for them.
    pub queries: usize,
    /// Clusters that a query searches.
    pub nprobe: u32,
    /// Queries of a batch.
    pub batch: usize,
    /// Bytes that a batch is expected to load of each cluster, where nothing is cached.
    pub cluster_bytes: Vec<u64>,
}

impl Index {
    /// The traffic that is expected of each cluster: queries are routed as a search does.
    ///
    /// # Errors
    /// Another kind; numbers out of range; queries of another length.
    pub fn expected_traffic(&self, options: &TrafficOptions<'_>) -> Result<Traffic> {
        let bad = |why: String| Err(Error::bad_input(why));
        let batch = options.batch.unwrap_or(SearchOptions::default().batch_options.batch);
        if !(1..=BATCH_MAX).contains(&batch) {
            return bad(format!("--batch is {batch}; use 1 to {BATCH_MAX}"));
        }
        let row_bytes = self.base.row_bytes();
        let queries = options.queries.map_or(0, |queries| queries.len() / row_bytes);
        if options.queries.is_some_and(|all| all.is_empty() || !all.len().is_multiple_of(row_bytes)) {
            return bad(format!("queries that tell the traffic are one or more rows of {row_bytes} bytes"));
        }
        let nprobe = self.usual_nprobe(options.nprobe)?;
        let Some(own) = self.kind.shares_loads() else {
            let (kind, wanted) = (self.base.kind.name(), IN_MEMORY_NODES.name());
            return bad(format!("a {kind} has no clusters to load; give a {wanted}"));
        };
        let cluster_bytes = own.expected_bytes(&self.base, options.queries, (nprobe, batch));
        Ok(Traffic { queries, nprobe, batch, cluster_bytes })
    }

    /// Clusters that a usual search visits; without a recall curve those of a moderate one.
    fn usual_nprobe(&self, asked: Option<u32>) -> Result<u32> {
        let with = |effort| self.params(&SearchOptions { effort, ..SearchOptions::default() });
        let params = match asked {
            Some(nprobe) => with(Effort::Nprobe(nprobe, None, None))?,
            None => {
                with(SearchOptions::default().effort).or_else(|_| with(Effort::moderate(self.base.kind)))?
            }
        };
        let all = self.kind.shares_loads().map_or(0, SharesLoads::cluster_count) as u32;
        let nprobe = setting(&params).nprobe.unwrap_or(all);
        Ok(if own(&params.kind).is_exact() { all } else { nprobe.min(all) })
    }
}
