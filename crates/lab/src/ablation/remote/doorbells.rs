//! Lengths of the doorbell: time of a batch, and latency of single queries that are searched meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use stratann_engine::exec::BatchOptions;
use stratann_engine::search::{Latency, SearchOptions};
use stratann_storage::{Error, Progress, Result};

use super::{Bench, TABLE_EF};

/// Reads of a doorbell.
const LENGTHS: [usize; 6] = [1, 4, 16, 64, 128, 256];

/// One length.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtDoorbell {
    pub(super) doorbell: usize,
    /// Time of the batch, for each of its queries.
    pub(super) time_us: f64,
    pub(super) round_trips: f64,
    /// Memory of the doorbells.
    pub(super) doorbell_bytes: u64,
    /// Single queries that were searched while the batch was, one after another.
    pub(super) foreground_queries: usize,
    pub(super) foreground_us: Latency,
}

/// All lengths.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Doorbells {
    /// Single queries while there is no batch.
    pub(super) alone_us: Latency,
    pub(super) lengths: Vec<AtDoorbell>,
}

impl Bench<'_> {
    /// Measures them.
    pub(super) fn doorbells(&mut self) -> Result<Doorbells> {
        self.usual_cache();
        let count = self.batch_rows().len() / self.row_bytes;
        self.printer.stage("lengths of the doorbell", (LENGTHS.len() * count) as u64, "queries");
        self.run(self.batch_rows(), &self.options(self.args.k, TABLE_EF, self.batch_options(64)))?;
        let alone = self.singles(|answered| answered >= 200)?;
        let mut lengths = Vec::new();
        for doorbell in LENGTHS {
            lengths.push(self.doorbell(doorbell)?);
        }
        Ok(Doorbells { alone_us: Latency::of(&alone), lengths })
    }

    fn batch_options(&self, doorbell: usize) -> BatchOptions {
        BatchOptions {
            batch: self.args.remote.batch(),
            doorbell,
            is_doorbell_chosen: true,
            ..BatchOptions::default()
        }
    }

    fn doorbell(&self, doorbell: usize) -> Result<AtDoorbell> {
        let options = self.options(self.args.k, TABLE_EF, self.batch_options(doorbell));
        let ended = AtomicBool::new(false);
        let (batch, singles) = std::thread::scope(|scope| {
            let singles = scope.spawn(|| self.singles(|_| ended.load(Ordering::Relaxed)));
            let batch = self.run(self.batch_rows(), &options);
            ended.store(true, Ordering::Relaxed);
            (batch, singles.join())
        });
        let (batch, singles) = (
            batch?,
            singles.map_err(|_| Error::corrupt("a search thread ended unexpectedly; please report it"))??,
        );
        let queries = batch.latency_ns.len().max(1) as f64;
        let doorbell_bytes =
            batch.account.components.iter().filter(|part| part.0 == "doorbells").map(|part| part.1).sum();
        Ok(AtDoorbell {
            doorbell,
            time_us: batch.seconds * 1e6 * self.threads() as f64 / queries,
            round_trips: batch.stats.round_trips as f64 / queries,
            doorbell_bytes,
            foreground_queries: singles.len(),
            foreground_us: Latency::of(&singles),
        })
    }

    /// Searches single queries, at least one, until `is_done` with their number. Returns their nanoseconds.
    fn singles(&self, is_done: impl Fn(usize) -> bool) -> Result<Vec<u64>> {
        let usual = self.options(self.args.k, TABLE_EF, self.batch_options(64));
        let options = SearchOptions { threads: 1, ..usual };
        let mut latencies = Vec::new();
        for row in self.batch_rows().chunks_exact(self.row_bytes).cycle() {
            let answers = self.run(row, &options)?;
            latencies.push((answers.seconds * 1e9) as u64);
            if is_done(latencies.len()) {
                break;
            }
        }
        Ok(latencies)
    }
}
