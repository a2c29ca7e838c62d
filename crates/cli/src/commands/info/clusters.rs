//! Structure of a `hybrid-ivf` and its learnt statistics.

use std::path::Path;

use stratann_engine::kinds::hybrid_ivf::facts::{ListSection, PlanProfile};
use stratann_engine::kinds::hybrid_ivf::learning::{self, LearnedFacts};
use stratann_engine::manifest::Manifest;
use stratann_storage::budget::size;

use crate::commands::profile::measured_words;
use crate::output::{Output, count};

/// Reads the learned statistics. Reports an unusable file and treats it as empty.
pub(super) fn learnt(folder: &Path, manifest: &Manifest, output: Output) -> Option<LearnedFacts> {
    manifest.section.lists()?;
    learning::describe(folder, manifest).unwrap_or_else(|why| {
        output.note(&format!("warning: {why}"));
        None
    })
}

pub(super) fn text(m: &Manifest, section: &ListSection, learnt: Option<LearnedFacts>) -> String {
    let (facts, plan) = (&section.facts, section.plan.as_ref());
    let (sizes, [flat, graph, ivf]) = (&facts.sizes, facts.kinds.map(|n| count(u64::from(n))));
    let mut out = format!(
        "{} inverted lists of {} to {} vectors (mean {:.0}, standard deviation {:.0}, Gini {:.2}): \
         {flat} flat, {graph} graphs, {ivf} divided; {} lists including sub-lists\n",
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
    out += &plan.and_then(|plan| plan.profile.as_ref()).map_or(String::new(), profile_line);
    out + &match learnt {
        None => "nothing was learnt from queries yet\n".to_string(),
        Some(learnt) => format!(
            "learnt from {} queries in {} epochs: {} hot vectors, {} recently visited lists ({})\n",
            count(learnt.queries),
            count(learnt.epochs),
            count(learnt.hot),
            count(learnt.visited_clusters),
            size(learnt.bytes)
        ),
    }
}

/// The profile that the plan was made from.
fn profile_line(profile: &PlanProfile) -> String {
    let measured =
        profile.measurement.as_ref().map_or(String::new(), |m| format!("; measured {}", measured_words(m)));
    format!(
        "planned for reads of {:.0} us + {:.3} us per KiB, {} in flight ({} on {}, by {}{measured})\n",
        profile.fixed_us,
        1.024 * profile.ns_per_byte,
        profile.depth,
        profile.file_system,
        profile.device,
        profile.io_backend
    )
}
