//! The options that the content of an index depends on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::kind::Kind;
use crate::build::options::{BuildOptions, CodePlace};
use crate::dataset::OnBadRow;

/// The options that are recorded in the manifest, and compared when a build resumes. `dim` is that of the set.
pub(crate) fn record(options: &BuildOptions, dim: usize) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let on_bad_row = if options.on_bad_row == OnBadRow::Skip { "skip" } else { "fail" };
    put(&mut all, "seed", options.seed);
    put(&mut all, "on_bad_row", on_bad_row);
    put(&mut all, "ids", options.ids.is_some());
    match options.kind {
        Kind::Flat => {}
        Kind::DiskGraph => record_graph(options, dim, &mut all),
        Kind::HybridIvf => record_lists(options, &mut all),
    }
    all
}

fn put(all: &mut BTreeMap<String, Value>, key: &str, value: impl Into<Value>) {
    all.insert(key.to_string(), value.into());
}

fn record_graph(options: &BuildOptions, dim: usize, all: &mut BTreeMap<String, Value>) {
    put(all, "degree", options.degree);
    put(all, "build_list", options.build_list);
    put(all, "alpha", f64::from(options.alpha));
    put(all, "passes", options.passes);
    put(all, "code_bytes", options.code_bytes(dim));
    put(all, "code_kind", format!("{:?}", options.code_kind).to_lowercase());
    put(all, "head_share", options.head_share);
    put(all, "pack", options.pack);
    put(all, "compress", options.compress);
    put(all, "exact_points", options.exact_points);
    put(all, "calibration_queries", options.calibration_queries);
    let numbers = [
        ("cells", options.cells),
        ("nodes_per_block", options.nodes_per_block),
        ("pages_per_block", options.pages_per_block),
    ];
    for (key, number) in numbers {
        if let Some(n) = number {
            put(all, key, n);
        }
    }
    // Absent stands for RAM, as in indexes from before there was a choice.
    if options.codes == CodePlace::Disk {
        put(all, "codes", options.codes.name());
    }
}

fn record_lists(options: &BuildOptions, all: &mut BTreeMap<String, Value>) {
    put(all, "calibration_queries", options.calibration_queries);
    put(all, "clusters", options.clusters);
    put(all, "local_plan", format!("{:?}", options.local_plan).to_lowercase());
    put(all, "nav_samples", options.nav_samples);
    put(all, "search_budget", options.search_budget);
    put(all, "code_bytes", options.code_bytes);
}
