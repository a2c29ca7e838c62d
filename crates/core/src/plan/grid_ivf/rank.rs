//! Which lists are visited, the one with the nearest centroid first.

use stratann_kernel::Metric;
use stratann_kernel::distance::{block_dot_f32, block_l2_f32};

use super::Marker;
use crate::plan::Cx;

/// Ranks lists by their centroids, and keeps those of as many centroids as are probed. Equally near ones come by their
/// number.
pub(super) fn rank(cx: &mut Cx<'_, Marker>) {
    let scratch = &mut *cx.scratch;
    let lists = cx.view.centroid_count() as usize;
    let dim = cx.base.dim;
    scratch.distances.clear();
    scratch.distances.resize(lists, 0.0);
    match cx.base.metric {
        Metric::Ip => {
            block_dot_f32(&scratch.point, cx.view.centroids, dim, &mut scratch.distances);
            scratch.distances.iter_mut().for_each(|d| *d = -*d);
        }
        Metric::L2 | Metric::Cosine => {
            block_l2_f32(&scratch.point, cx.view.centroids, dim, &mut scratch.distances);
        }
    }
    cx.q.stats.code_comparisons += lists as u64;
    let ranked = &mut scratch.ranked;
    ranked.clear();
    ranked.extend(scratch.distances.iter().copied().zip(0..));
    let order = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    let probed = if cx.params.exact { lists } else { (cx.params.nprobe as usize).min(lists) };
    if probed < lists {
        ranked.select_nth_unstable_by(probed, order);
        ranked.truncate(probed);
    }
    ranked.sort_unstable_by(order);
    let stripes = cx.view.stripes;
    if stripes > 1 {
        let of_centroid =
            |&(distance, at): &(f32, u32)| (0..stripes).map(move |s| (distance, at * stripes + s));
        *ranked = ranked.iter().flat_map(of_centroid).collect();
    }
}
