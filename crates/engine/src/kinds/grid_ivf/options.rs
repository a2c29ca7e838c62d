//! Options of a `grid-ivf`.

use std::path::PathBuf;

use serde_json::Value;

use crate::{Error, Result, files};

/// Options of the build of a `grid-ivf`.
#[derive(Clone, Debug, Default)]
pub struct GridOptions {
    /// Inverted lists; `None` for √n.
    pub lists: Option<usize>,
    /// A file of f32 vectors, one centroid a row; `None` to find them by k-means.
    pub centroids: Option<PathBuf>,
}

impl GridOptions {
    /// Lists of an index of so many rows: finding the nearest centroids then costs about what a list does.
    pub(crate) fn count(&self, rows: u64) -> usize {
        let default = || (rows as f64).sqrt().round() as usize;
        self.lists.unwrap_or_else(default).clamp(1, rows.max(1) as usize)
    }

    /// Checks the values.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |text: &str| Err(Error::bad_input(text));
        match (self.lists, &self.centroids) {
            (Some(0), _) => bad("--lists is 0; use 1 or more"),
            (Some(_), Some(_)) => {
                bad("--centroids gives the number of lists; leave out --lists or --centroids")
            }
            _ => Ok(()),
        }
    }

    /// The options that the content of an index depends on, as its manifest records them.
    pub(crate) fn record(&self) -> Vec<(&'static str, Value)> {
        // A file that cannot be read is refused by the build.
        let given = self.centroids.as_ref().and_then(|path| files::entry(path).ok());
        vec![("lists", self.lists.into()), ("centroids", given.map(|entry| entry.xxh3).into())]
    }
}

/// Techniques of a `grid-ivf` that may be switched (HARMONY §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSwitches {
    /// Drop a vector as soon as its first components exceed the threshold.
    pub prune_dimension: bool,
    /// Let the threshold fall from list to list.
    pub prune_vector: bool,
    /// Score some members of every probed list first.
    pub prewarm: bool,
    /// Rows that are visited at the same time, 1 to 64, where lists are divided over servers.
    pub fan_out: u8,
    /// Let slices on busy servers come last.
    pub busy_last: bool,
    /// Let loads of servers count at all: of replicas, the least busy one scores.
    pub balance: bool,
    /// Let a row visit its slices one after another, each pruning for those that follow. Otherwise all are scored at
    /// once, and their sums are added where the query is.
    pub pipeline: bool,
}

impl Default for GridSwitches {
    fn default() -> Self {
        GridSwitches {
            prune_dimension: true,
            prune_vector: true,
            prewarm: true,
            fan_out: 1,
            busy_last: true,
            balance: true,
            pipeline: true,
        }
    }
}
