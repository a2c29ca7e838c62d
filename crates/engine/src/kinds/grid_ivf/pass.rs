//! Exact queries of one call that score all vectors together.

use std::ops::Range;
use std::sync::Mutex;

use stratann_core::kinds::grid_ivf::pass::{PANEL, Panel, PassQueries, panel_bytes};
use stratann_core::kinds::grid_ivf::{Scratch, View};
use stratann_kernel::topk::TopK;
use stratann_storage::{Result, threads};

use super::open::GridIndex;
use crate::base::Base;
use crate::tiles::TILE;

/// Queries of a pass, and the lists that it scores.
pub(crate) struct GridPass<'a> {
    view: View<'a>,
    queries: PassQueries,
}

/// Vectors that a thread scores at a time.
pub(crate) type GridPanel<'a> = Panel<'a>;

/// A thread scores a multiple of so many rows at a time.
pub(crate) const PANEL_ROWS: u32 = PANEL as u32;

/// Memory of a thread, bytes.
pub(crate) fn thread_bytes(dim: usize) -> u64 {
    panel_bytes(dim, TILE) as u64
}

impl GridIndex {
    /// Begins a pass for these queries, which are turned into the axes of the index on so many threads.
    ///
    /// # Errors
    /// No thread.
    pub(crate) fn pass<'a>(&'a self, base: &Base, queries: &[u8], threads: usize) -> Result<GridPass<'a>> {
        let (view, shared, size) = (self.view(), base.view(), base.row_bytes());
        let each = (queries.len() / size).div_ceil(threads).max(1);
        let parts: Mutex<Vec<(usize, PassQueries)>> = Mutex::default();
        threads::together(threads, &|number| {
            let (mut part, mut scratch) = (PassQueries::default(), Scratch::default());
            let own = queries.chunks(each * size).nth(number).unwrap_or(&[]);
            own.chunks_exact(size).for_each(|query| part.push(&shared, &view, query, &mut scratch));
            parts.lock().unwrap_or_else(|e| e.into_inner()).push((number, part));
        })?;
        let mut parts = parts.into_inner().unwrap_or_else(|e| e.into_inner());
        parts.sort_by_key(|(number, _)| *number);
        let mut queries = PassQueries::default();
        parts.into_iter().for_each(|(_, part)| queries.append(part));
        Ok(GridPass { view, queries })
    }

    /// Lists that a pass scores, those of a centroid as one.
    pub(crate) fn scored_lists(&self) -> u64 {
        self.facts.centroids().into()
    }
}

impl<'a> GridPass<'a> {
    /// Scores rows against all queries, each with the row that it must not see. Ends early where `is_interrupted`.
    /// `None` where a row is not in memory.
    pub(crate) fn score(
        &self,
        rows: Range<u32>,
        panel: &mut GridPanel<'a>,
        (exclude, tops): (&[u32], &mut [TopK]),
        is_interrupted: &dyn Fn() -> bool,
    ) -> Option<()> {
        for first in rows.clone().step_by(PANEL) {
            panel.fill(&self.view, first..rows.end.min(first + PANEL_ROWS))?;
            for (tile, (tops, exclude)) in tops.chunks_mut(TILE).zip(exclude.chunks(TILE)).enumerate() {
                if is_interrupted() {
                    return Some(());
                }
                panel.score(&self.view, (&self.queries, tile * TILE), exclude, tops);
            }
        }
        Some(())
    }
}
