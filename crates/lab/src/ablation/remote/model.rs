//! The batches of each scheme, replayed on compute nodes that share the link of a memory node, at prices like those of
//! d-HNSW §4. Prices of the processor are this machine's.

use serde::Serialize;
use stratann_capacity::memory_nodes::prices::LoadPrices;
use stratann_capacity::memory_nodes::recorded::{LoadWay, Recorder};
use stratann_capacity::memory_nodes::rows::{Against, Nodes, Row};
use stratann_engine::exec::BatchOptions;
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;
use stratann_storage::Result;

use super::{Bench, TABLE_EF};

/// Numbers of compute nodes.
const NODES: [usize; 4] = [1, 2, 4, 8];

/// A link, and those who share it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Link {
    /// A round trip without bytes.
    pub(super) round_trip_us: f64,
    /// Bandwidth of a memory node.
    pub(super) gbps: f64,
    pub(super) clients: usize,
}

/// The model.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Model {
    pub(super) costs: LoadPrices,
    pub(super) clients: usize,
    /// Each client has a compute node for itself.
    pub(super) schemes: Vec<Row>,
    pub(super) against_naive: Vec<Against>,
    /// All clients ask few compute nodes.
    pub(super) nodes: Vec<Row>,
}

/// The way of a scheme, where the kind loads by `own`.
fn way(scheme: LoadScheme, own: BatchOptions) -> LoadWay {
    LoadWay {
        name: scheme.name(),
        batch_options: scheme.batch_options(own),
        is_for_each: scheme == LoadScheme::Naive,
    }
}

impl Bench<'_> {
    /// Replays the batches of all schemes.
    pub(super) fn model(&mut self) -> Result<Model> {
        let link = self.args.remote.link();
        let batch_options = BatchOptions { batch: self.args.remote.batch(), ..BatchOptions::default() };
        let search = self.options(self.args.k, TABLE_EF, batch_options);
        let (threads, count) = (self.threads(), self.batch_rows().len());
        let mut recorder = Recorder {
            index: &mut self.index,
            rows: &self.rows[..count],
            row_bytes: self.row_bytes,
            truth: Some(&self.truth),
            search,
            cache_share: self.args.remote.share(),
            memory_nodes: 1,
            seed: 1,
            progress: self.printer,
        };
        let recorded = LoadScheme::ALL.map(|scheme| recorder.record(way(scheme, batch_options), 1));
        let recorded = recorded.into_iter().collect::<Result<Vec<_>>>()?;
        let own = recorded.iter().find(|of| of.way.name == LoadScheme::Own.name());
        let work = own.map(|own| own.work).unwrap_or_default();
        let costs = LoadPrices::of(work, threads).with_link(link.round_trip_us, link.gbps)?;
        let nodes = Nodes { memory_nodes: 1, clients: link.clients, at_once: 1 };
        let rows = |compute_nodes: usize| recorded.iter().map(move |of| (of, compute_nodes));
        let row = |(of, compute_nodes)| Row::of(of, &costs, nodes, compute_nodes);
        let schemes: Vec<Row> = rows(link.clients).map(row).collect();
        Ok(Model {
            clients: link.clients,
            against_naive: Against::all(&schemes),
            nodes: NODES.into_iter().flat_map(rows).map(row).collect(),
            schemes,
            costs,
        })
    }
}
