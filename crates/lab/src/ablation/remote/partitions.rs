//! Numbers of clusters (figure 7): an index is built for each.

use serde::Serialize;
use stratann_cli::output::Output;
use stratann_engine::build::{self, BuildOptions, KindOptions};
use stratann_engine::dataset::Reader;
use stratann_engine::index::{Index, OpenOptions};
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;
use stratann_engine::manifest::Manifest;
use stratann_params::build::RemoteOptions;
use stratann_storage::{Error, Result};

use super::measure::Measured;
use super::{Bench, TABLE_EF, facts_of};

/// Numbers of the figure, and more.
const PARTITIONS: [usize; 6] = [70, 80, 90, 100, 200, 500];

/// One number of clusters.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtPartitions {
    pub(super) partitions: u32,
    pub(super) meta_bytes: u64,
    #[serde(flatten)]
    pub(super) measured: Measured,
}

impl Bench<'_> {
    /// Builds and measures them, with as many clusters a query as the other measurements have. Nothing without vectors.
    pub(super) fn partitions(&self, output: Output) -> Result<Vec<AtPartitions>> {
        let Some(vectors) = &self.args.remote.vectors else { return Ok(Vec::new()) };
        let base = Reader::open(vectors)?;
        let own = self.index.manifest();
        if (base.shape().rows, base.shape().dim) != (own.rows, own.dim) {
            return Err(Error::bad_input(format!(
                "{} has {} vectors of {} components, and the index {} of {}; give the vectors of the index",
                vectors.display(),
                base.shape().rows,
                base.shape().dim,
                own.rows,
                own.dim
            )));
        }
        let asked = &self.args.remote.partitions;
        let counts = if asked.is_empty() { &PARTITIONS[..] } else { asked };
        counts.iter().map(|&count| self.at_partitions(&base, count, output)).collect()
    }

    fn at_partitions(&self, base: &Reader, partitions: usize, output: Output) -> Result<AtPartitions> {
        let folder = self.args.folder().join(format!("partitions-{partitions}.idx"));
        let own = self.index.manifest();
        if Manifest::read(&folder).is_ok_and(|(_, there)| (there.rows, there.dim) == (own.rows, own.dim)) {
            output.note(&format!("{} exists and is used again", folder.display()));
        } else {
            let remote = RemoteOptions {
                partitions: Some(partitions),
                m: self.facts.m as usize,
                ..RemoteOptions::default()
            };
            let metric = own.metric().unwrap_or_else(|| self.args.metric());
            let options = BuildOptions {
                threads: self.args.threads(),
                calibration_queries: 0,
                ..BuildOptions::new(KindOptions::RemoteHnsw(remote), metric)
            };
            build::build(base, &folder, &options, self.printer)?;
        }
        let index = Index::open(&folder, OpenOptions::default())?;
        let facts = facts_of(&folder, index.manifest())?;
        let mut bench = Bench {
            args: self.args,
            printer: self.printer,
            index,
            facts,
            row_bytes: self.row_bytes,
            rows: self.rows.clone(),
            truth: self.truth.clone(),
            nprobe: self.nprobe,
        };
        let measured = bench.measure(LoadScheme::Own, 1, TABLE_EF)?;
        Ok(AtPartitions { partitions: bench.facts.clusters(), meta_bytes: bench.facts.meta_bytes, measured })
    }
}
