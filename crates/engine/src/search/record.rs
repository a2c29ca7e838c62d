//! Record of gathered batches for a simulation: the clusters that each doorbell reads, and the comparisons of every
//! query in them. None of it depends on time.

use std::sync::{Mutex, MutexGuard};

use stratann_core::query::{Read, Scratch};
use stratann_storage::tier::IoChoice;
use stratann_storage::{Error, Progress, Result};

use super::run::Call;
use super::sieved::Filters;
use super::waves::Wave;
use super::{Answers, Purpose, SearchOptions, TrafficOptions};
use crate::index::Index;
use crate::kinds::known::IN_MEMORY_NODES;
use crate::kinds::shares_loads::RecordedVisit;
use crate::kinds::{self, Linking, LinkingOptions};

/// A batch of queries whose reads were gathered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedBatch {
    /// Queries of the batch, in the order in which they ended.
    pub queries: Vec<RecordedQuery>,
    /// Loads of each doorbell, in order. What the cache has comes first, in doorbells of its own.
    pub doorbells: Vec<Vec<RecordedLoad>>,
}

/// A read that was made once for all queries that wanted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedLoad {
    /// The cluster of which it is.
    pub cluster: u32,
    /// Bytes of the load; 0 where the cache has it.
    pub bytes: u32,
}

/// A query of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedQuery {
    /// Number of the query in the search.
    pub number: usize,
    /// Distances to representatives.
    pub meta_comparisons: u64,
    /// The clusters that it searched, the nearest first.
    pub visits: Vec<RecordedVisit>,
}

/// The batches of a search under way.
#[derive(Default)]
pub(super) struct Recording(Mutex<Vec<RecordedBatch>>);

impl Recording {
    fn batches(&self) -> MutexGuard<'_, Vec<RecordedBatch>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn begin_batch(&self) {
        self.batches().push(RecordedBatch::default());
    }

    pub(super) fn on_doorbell(&self, loads: &[(Read, bool)]) {
        let load = |(read, is_cached): &(Read, bool)| RecordedLoad {
            cluster: read.unit(),
            bytes: if *is_cached { 0 } else { read.at.bytes },
        };
        if let Some(batch) = self.batches().last_mut() {
            batch.doorbells.push(loads.iter().map(load).collect());
        }
    }

    pub(super) fn ended(&self, number: usize, scratch: &Scratch) {
        let Some((meta_comparisons, visits)) = kinds::recorded_visits(scratch) else { return };
        if let Some(batch) = self.batches().last_mut() {
            batch.queries.push(RecordedQuery { number, meta_comparisons, visits });
        }
    }
}

impl Index {
    /// Answers `queries` on one thread and records what their batches do. What the cache holds afterwards, and so the
    /// next recording, depends on the order of the reads: they are made one after another.
    ///
    /// # Errors
    /// As [`Index::search`]; a kind whose queries read for themselves.
    pub fn search_recorded(
        &self,
        queries: &[u8],
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<(Answers, Vec<RecordedBatch>)> {
        if !self.base.facts().shares_reads {
            return Err(Error::bad_input(format!(
                "only searches of a {} are recorded, and this index is a {}",
                IN_MEMORY_NODES.name(),
                self.base.kind.name()
            )));
        }
        let params = self.params(options)?;
        let options = SearchOptions { threads: 1, io: IoChoice::InOrder, ..*options };
        let recording = Recording::default();
        let purpose = Purpose::Record(&recording);
        let (exclude, filters) = (&|_| u32::MAX, Filters::None);
        let answers = self.answer(
            Call { queries, params, exclude, filters, progress, purpose, wave: Wave::Alone },
            &options,
        )?;
        let batches = recording.0.into_inner().unwrap_or_else(|e| e.into_inner());
        Ok((answers, batches))
    }

    /// Bytes of each cluster that is loaded whole; empty of a kind without any.
    pub fn cluster_bytes(&self) -> Vec<u32> {
        self.kind.shares_loads().map_or_else(Vec::new, |own| own.cluster_map(&self.base).bytes)
    }

    /// Measures what it would cost and save to link fresh records into the graphs of loaded clusters. Exact: nothing
    /// depends on time.
    ///
    /// # Errors
    /// Another kind; a cluster that cannot be read; an interruption.
    pub fn measure_linking(
        &self,
        options: &LinkingOptions<'_>,
        progress: &dyn Progress,
    ) -> Result<Vec<Linking>> {
        let found = self.kind.measure_linking(&self.base, options, progress)?;
        found.ok_or_else(|| {
            Error::bad_input(format!(
                "fresh records are those of a {}, and this index is a {}",
                IN_MEMORY_NODES.name(),
                self.base.kind.name()
            ))
        })
    }

    /// The memory node of each cluster where the index is loaded into so many nodes.
    ///
    /// # Errors
    /// As [`Index::expected_traffic`].
    pub fn nodes_of_clusters(&self, nodes: usize, traffic: &TrafficOptions<'_>) -> Result<Vec<u8>> {
        let traffic = self.expected_traffic(traffic)?;
        let own = self.kind.shares_loads();
        Ok(own.map_or_else(Vec::new, |own| own.nodes_of_clusters(nodes, &traffic.cluster_bytes)))
    }
}
