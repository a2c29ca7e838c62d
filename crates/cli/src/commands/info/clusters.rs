//! What a `hybrid-ivf` is made of, and what it has learnt.

use std::path::Path;

use stratann_engine::budget::size;
use stratann_engine::kinds::hybrid_ivf::learning::{self, LearntFacts};
use stratann_engine::manifest::{ClusterFacts, Manifest};

use crate::output::{Output, count};

/// What it has learnt from queries; a file that is of no use is told, and counts as none.
pub(super) fn learnt(folder: &Path, manifest: &Manifest, output: Output) -> Option<LearntFacts> {
    manifest.clusters.as_ref()?;
    learning::describe(folder, manifest).unwrap_or_else(|why| {
        output.note(&format!("warning: {why}"));
        None
    })
}

pub(super) fn text(m: &Manifest, facts: &ClusterFacts, learnt: Option<LearntFacts>) -> String {
    let (sizes, [flat, graph, ivf]) = (&facts.sizes, facts.kinds.map(|n| count(u64::from(n))));
    let mut out = format!(
        "{} clusters of {} to {} vectors (mean {:.0}, standard deviation {:.0}, Gini {:.2}): {flat} flat, {graph} graphs, {ivf} divided; {} lists\n",
        count(sizes.count),
        count(sizes.min),
        count(sizes.max),
        sizes.mean,
        sizes.std,
        sizes.gini,
        count(u64::from(facts.lists))
    );
    out += &format!(
        "codes of {} bytes, ids of {} bytes; a navigation graph of {} nodes; reads of up to {}\n",
        facts.code_bytes,
        m.blocks.id_bytes,
        count(u64::from(facts.nav_nodes)),
        size(u64::from(facts.read_max))
    );
    out + &match learnt {
        None => "it has learnt nothing from queries yet\n".to_string(),
        Some(learnt) => format!(
            "learnt from {} queries in {} epochs: {} hot vectors, {} clusters visited lately ({})\n",
            count(learnt.queries),
            count(learnt.epochs),
            count(learnt.hot),
            count(learnt.visited_clusters),
            size(learnt.bytes)
        ),
    }
}
