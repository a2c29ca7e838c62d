//! Checks the files of a `remote-hnsw`.

use std::collections::HashSet;

use stratann_core::format::hnsw::SubHnsw;
use stratann_kernel::element::widen;
use stratann_storage::Result;

use super::members;
use super::open::RemoteIndex;
use crate::base::Base;
use crate::files;
use crate::findings::Verification;

/// Opens the index, and checks every cluster: its checksum, its graph and its vectors.
pub(crate) fn check(check: &mut Verification<'_>) -> Result<()> {
    let opened = check.open(RemoteIndex::open);
    let Some((base, own)) = check.ok(opened) else { return Ok(()) };
    let view = own.view();
    let mut ids = HashSet::with_capacity(check.manifest.rows as usize);
    let (mut edges, mut bytes) = (0, Vec::new());
    check.lists(files::REGION, own.facts.clusters(), |cluster| {
        let wrong = match members::read(&base, &view, cluster, &mut bytes) {
            Err(e) => Some(e.message),
            Ok(()) => SubHnsw::open(view.layout, &bytes)
                .and_then(|found| check_cluster(&base, &found, &mut ids, &mut edges)),
        };
        wrong.map(|what| (Some(view.clusters[cluster as usize].base.offset), what))
    })?;
    check.report.edges = edges;
    Ok(())
}

/// Damage of a cluster; `None` for nothing. Adds its edges.
pub(super) fn check_cluster(
    base: &Base,
    found: &SubHnsw<'_>,
    ids: &mut HashSet<u64>,
    edges: &mut u64,
) -> Option<String> {
    let mut floats = vec![0f32; base.manifest.dim];
    for member in 0..found.members() {
        if !ids.insert(found.external_id(member)) {
            return Some(format!("member {member} has the id of another vector"));
        }
        widen(base.dtype, found.vector(member), &mut floats);
        if floats.iter().any(|x| !x.is_finite()) || !found.inverse_norm(member).is_finite() {
            return Some(format!("the vector of member {member} is not finite"));
        }
        let mut is_wrong = false;
        found.each_neighbour(member, |other| {
            *edges += 1;
            is_wrong |= other >= found.members() || other == member;
        });
        if is_wrong {
            return Some(format!("the adjacency list of member {member} is inconsistent"));
        }
    }
    for layer in 1..=found.layers() {
        for slot in 0..found.nodes_of(layer) {
            let own = found.slot(layer, slot);
            let mut is_wrong =
                own.is_none_or(|own| own.member >= found.members() || own.below >= found.nodes_of(layer - 1));
            if let Some(own) = own {
                found.each_slot(&own, |other| is_wrong |= other >= found.nodes_of(layer) || other == slot);
            }
            if is_wrong {
                return Some(format!("slot {slot} of layer {layer} is inconsistent"));
            }
        }
    }
    None
}
