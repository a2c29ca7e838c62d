//! A walk over the navigation graph, which keeps the best nodes in one beam or in several.

use alloc::vec::Vec;

use stratann_kernel::Metric;
use stratann_kernel::distance::{dot_f16, dot_f32, l2_f16, l2_f32};

use super::NavGraph;
use crate::search::{Beam, Progress};

/// The distance from the query to a centroid, f16 or f32, on the scale of codes: squared l2 or minus the inner product.
pub(crate) fn to_centroid(metric: Metric, wide: &[f32], centroid: &[u8]) -> f32 {
    match (metric, centroid.len() == size_of_val(wide)) {
        (Metric::Ip, false) => -dot_f16(wide, centroid),
        (Metric::Ip, true) => -dot_f32(wide, centroid),
        (Metric::L2 | Metric::Cosine, false) => l2_f16(wide, centroid),
        (Metric::L2 | Metric::Cosine, true) => l2_f32(wide, centroid),
    }
}

/// Searches the graph from its entry until no beam has a fresh candidate. `score` offers the nodes that it is given to
/// the beams; `nodes` is a reusable buffer.
pub(crate) fn walk<const B: usize>(
    nav: &NavGraph,
    nodes: &mut Vec<u32>,
    beams: &mut [Beam; B],
    mut score: impl FnMut(&mut Vec<u32>, &mut [Beam; B]),
) {
    nodes.clear();
    nodes.push(nav.entry);
    loop {
        score(nodes, beams);
        let mut fresh = None;
        for beam in beams.iter_mut() {
            if let Some(at) = beam.next_fresh(0) {
                beam.mark(at, Progress::Expanded);
                fresh = Some(beam.entries()[at].id);
                break;
            }
        }
        let Some(node) = fresh else { break };
        nodes.clear();
        nodes.extend_from_slice(nav.list(node));
    }
}
