//! Report of a build.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::curve::UnreachedRecall;

/// Report of a build.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BuildReport {
    /// Kind of the index.
    pub kind: String,
    /// Wall-clock seconds, all stages that this call ran.
    pub seconds: f64,
    /// Largest resident set of the process.
    pub peak_rss_bytes: u64,
    /// Bytes of all files of the index.
    pub index_bytes: u64,
    /// Seconds by stage.
    pub stages: BTreeMap<String, f64>,
    /// Vectors in the index.
    pub rows: u64,
    /// Rows that were left out.
    pub skipped_rows: u64,
    /// Decisions on the way: nodes per block, mean list, cells, precision, ….
    pub facts: BTreeMap<String, serde_json::Value>,
    /// Numbers of results for which calibration does not reach the recall of usual searches.
    pub unreached: Vec<UnreachedRecall>,
}
