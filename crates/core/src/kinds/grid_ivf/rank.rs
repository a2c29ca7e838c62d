//! Choice of the lists to visit, the one with the nearest centroid first.

use stratann_kernel::Metric;
use stratann_kernel::distance::{block_dot_f32, block_l2_f32};

use super::{GridIvf, Params, Scratch, View};
use crate::kinds::kind::StepContext;
use crate::route::lists_to_visit;
use crate::view::Base;

/// Ranks lists for a query.
pub(super) fn rank(cx: &mut StepContext<'_, GridIvf>) {
    rank_lists(cx.base, cx.view, (cx.params, cx.q.far_tenths, cx.q.top.k), cx.scratch);
    cx.q.stats.code_comparisons += u64::from(cx.view.centroid_count());
}

/// Ranks lists by their centroids, and keeps those of as many centroids as are probed, of which some members may be
/// returned. Equally near ones come by their number.
pub(super) fn rank_lists(
    base: &Base<'_>,
    view: &View<'_>,
    (params, far_tenths, k): (&Params, u8, u32),
    scratch: &mut Scratch,
) {
    let (lists, dim) = (view.centroid_count() as usize, base.dim);
    scratch.distances.clear();
    scratch.distances.resize(lists, 0.0);
    match base.metric {
        Metric::Ip => {
            block_dot_f32(&scratch.point, view.centroids, dim, &mut scratch.distances);
            scratch.distances.iter_mut().for_each(|d| *d = -*d);
        }
        Metric::L2 | Metric::Cosine => {
            block_l2_f32(&scratch.point, view.centroids, dim, &mut scratch.distances);
        }
    }
    let ranked = &mut scratch.ranked;
    ranked.clear();
    ranked.extend(scratch.distances.iter().copied().zip(0..));
    let order = |a: &(f32, u32), b: &(f32, u32)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
    let mut probed = if params.exact { lists } else { (params.nprobe as usize).min(lists) };
    if let Some(sieve) = base.sieve {
        ranked.sort_unstable_by(order);
        let nearest = ranked.iter().map(|&(_, at)| view.ids_of_centroid(at));
        let visited = lists_to_visit(sieve, (probed as u32, far_tenths), k, nearest);
        probed = probed.max(visited.map_or(usize::MAX, |visited| visited as usize));
        // Lists without a row that may be returned are neither visited nor counted.
        ranked.retain(|&(_, at)| sieve.has_any(view.ids_of_centroid(at)));
    }
    if probed < ranked.len() {
        ranked.select_nth_unstable_by(probed, order);
        ranked.truncate(probed);
    }
    ranked.sort_unstable_by(order);
    let stripes = view.stripes;
    if stripes > 1 {
        let of_centroid =
            |&(distance, at): &(f32, u32)| (0..stripes).map(move |s| (distance, at * stripes + s));
        *ranked = ranked.iter().flat_map(of_centroid).collect();
    }
}
