//! `stratann info --memory`: what memory nodes hold.

use stratann_engine::index::Index;
use stratann_engine::kinds::remote_hnsw::live::inspect::{LiveFacts, NodeFacts};
use stratann_engine::manifest::Manifest;
use stratann_storage::Result;
use stratann_storage::budget::size;

use crate::options::dtype_text;
use crate::output::{Output, count, table};
use crate::{Verdict, memory};

/// Shows the manifest, the nodes and what was changed.
pub(super) fn show(name: &str, index: &Index, output: Output) -> Result<Verdict> {
    let (manifest, live) = (index.manifest(), index.live_facts()?);
    let account = index.account();
    let mut document = super::document(index.version(), manifest, &account);
    document["rows"] = live.rows.into();
    document["memory_nodes"] = serde_json::json!(live);
    output.result(&document, || {
        let ram = memory::text(&account);
        format!("{}\nRAM when open: {ram}\n{}", text(name, manifest, &live), super::curves(manifest))
    })?;
    Ok(Verdict::Fine)
}

fn text(name: &str, m: &Manifest, live: &LiveFacts) -> String {
    let mut out = format!(
        "{name}: {}, {}, {} vectors of {} {} ({} when it was loaded), build {}\n",
        m.kind,
        m.metric,
        count(live.rows),
        m.dim,
        m.dtype().map_or("an unknown type", dtype_text),
        count(m.rows),
        m.build_id
    );
    if let Some(section) = m.section.remote() {
        out += &super::remote(&section.facts);
    }
    out += &format!(
        "{} changes since then, {} groups rebuilt; {} of {} slots for fresh records and {} of {} tombstones in use\n\n",
        count(live.clock),
        count(live.rebuilt_groups.into()),
        count(live.fresh_reserved),
        count(live.fresh_slots),
        count(live.tombstones),
        count(live.tombstones_max)
    );
    let row = |node: &NodeFacts| {
        vec![node.node.to_string(), size(node.region_bytes), size(node.used_bytes), node.epoch.clone()]
    };
    out + &table(&["node", "region", "used", "epoch"], &live.nodes.iter().map(row).collect::<Vec<_>>())
}
