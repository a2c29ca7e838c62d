//! The stages that builds of all kinds share, and what they leave in `partial/`.

pub(crate) mod blocks;
pub(crate) mod build;
pub(crate) mod cells;
pub(crate) mod codes;
pub(crate) mod folder;
pub(crate) mod forecast;
pub(crate) mod list_rows;
pub(crate) mod older_graph;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod points;
pub(crate) mod publish;
pub(crate) mod regions;
pub(crate) mod report;
pub(crate) mod space;
pub(crate) mod stage;
pub(crate) mod state;
pub(crate) mod tables;
pub mod vamana;

use stratann_storage::{Error, Result};

/// A pool of so many threads.
pub(crate) fn pool(threads: usize) -> Result<rayon::ThreadPool> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|e| Error::bad_input(format!("cannot start {threads} threads: {e}")))
}
