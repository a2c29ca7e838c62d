//! Compares ground truth with an open index.

use std::collections::HashMap;

use stratann_kernel::distance::Exact;
use stratann_storage::{Error, Progress, Result};

use super::{Effort, SearchOptions};
use crate::dataset::GroundTruth;
use crate::exec::Width;
use crate::groundtruth::{CheckedTruth, Found, Owner};
use crate::index::Index;
use crate::manifest::Manifest;

/// Most results and queries of the search that compares ground truth with an index.
const RESULTS_MAX: usize = 10;
const QUERIES_MAX: usize = 1000;

impl Owner {
    /// Properties that ground truth of the index with this manifest must agree with.
    ///
    /// # Errors
    /// A metric or an element type that this version does not know.
    pub fn of(manifest: &Manifest) -> Result<Owner> {
        let (Some(dtype), Some(metric)) = (manifest.dtype(), manifest.metric()) else {
            return Err(Error::bad_input("the index is of a newer version; use a newer stratann"));
        };
        Ok(Owner { metric, dtype, rows: manifest.rows, dim: manifest.dim })
    }
}

impl Index {
    /// Confirms what the results so far leave open: whether the index holds neighbours that no search found. Reads the
    /// whole index where results are so few or so bad that they contradict nothing; usually it reads nothing.
    ///
    /// # Errors
    /// `BadInput` for ground truth of another index; a file that cannot be read, or is damaged.
    pub fn confirm_truth(&self, truth: &CheckedTruth, progress: &dyn Progress) -> Result<()> {
        let suspects = truth.suspects();
        if suspects.is_empty() {
            return Ok(());
        }
        let mut at: HashMap<u64, Vec<usize>> = HashMap::new();
        suspects.iter().enumerate().for_each(|(i, suspect)| at.entry(suspect.id).or_default().push(i));
        let mut distances: Vec<Option<f32>> = vec![None; suspects.len()];
        let base = &self.base;
        let (work, unit) = self.kind.scan_work(base);
        progress.stage("looking up the ground truth", work, unit);
        self.kind.for_each_member(base, progress, &mut |members| {
            for member in members {
                for &i in at.get(&member.external_id).into_iter().flatten() {
                    let mut exact = Exact::default();
                    exact.set(base.metric, base.dtype, base.manifest.dim, &suspects[i].vector);
                    distances[i] = Some(exact.distance(member.vector, member.inverse_norm));
                }
            }
        })?;
        suspects.iter().zip(distances).try_for_each(|(suspect, distance)| truth.judge(suspect, distance))
    }

    /// Compares ground truth of `queries` with a quick search of some of them, before work that relies on it.
    ///
    /// # Errors
    /// As [`CheckedTruth::new`], [`CheckedTruth::compare`] and [`Index::confirm_truth`].
    pub fn check_truth(
        &self,
        truth: GroundTruth,
        path: &std::path::Path,
        queries: &[u8],
        threads: usize,
        progress: &dyn Progress,
    ) -> Result<()> {
        let k = truth.k.min(RESULTS_MAX);
        let mut checked = CheckedTruth::new(truth, path, Owner::of(self.manifest())?)?;
        let effort = Effort::moderate(self.base.kind);
        let options =
            SearchOptions { k, effort, threads, width: Width::Fixed(1), ..SearchOptions::default() };
        let params = self.params(&options)?;
        let row_bytes = self.row_bytes();
        let count = (queries.len() / row_bytes).min(QUERIES_MAX);
        progress.stage("comparing the ground truth", count as u64, "queries");
        let queries = &queries[..count * row_bytes];
        // Nothing is learnt from it.
        let answers = self.search_each(queries, params, &|_| u32::MAX, &options, progress)?;
        let (ids, distances) = (&answers.ids, &answers.distances);
        checked.compare(&Found { first: 0, queries, k: answers.k, ids, distances })?;
        self.confirm_truth(&checked, progress)
    }
}
