//! Fits the constants of the cost model from short builds of every local index, at equal local recall (OrchANN §5.1,
//! Auto Profiler).
//!
//! Clusters of several sizes are cut out of a sample; the hops of a graph and the lists of a divided cluster that
//! find [`RECALL`] of the nearest members are counted. Counted, not timed: times come from the profile alone.

use stratann_core::build::costs::{UnitCosts, VisitCostModel};
use stratann_core::build::walk::{WalkScratch, each, greedy_walk};
use stratann_core::build::{Points, hash};
use stratann_core::format::inverted_list::ListLayout;
use stratann_kernel::distance::l2_f32;
use stratann_params::build::ListOptions;
use stratann_storage::profile::{LocalCosts, Profile};
use stratann_storage::{Progress, Result};

use super::list_layout;
use crate::clusterings::kmeans;
use crate::dataset::Scan;
use crate::parallel;
use crate::stages::build::Build;
use crate::stages::points::Floats;
use crate::stages::space::Space;
use crate::stages::vamana::{self, VamanaOptions};

/// Local recall@10 at which the kinds are compared.
const RECALL: f64 = 0.98;
const K: usize = 10;
/// Rows that clusters are cut out of, and the bytes that they may take.
const POOL_ROWS: usize = 20_000;
const POOL_BYTES: usize = 24 << 20;
/// Members of the clusters.
const SIZES: [usize; 4] = [128, 512, 2048, 8192];
/// Clusters of each size, and queries in each.
const CLUSTERS: usize = 3;
const QUERIES: usize = 24;
const ROUNDS: usize = 6;
pub(crate) use crate::kinds::hybrid_ivf::tables::DEGREE;
pub(crate) const BUILD_LIST: usize = 48;
/// Beams that are tried.
const BEAMS: [usize; 7] = [10, 14, 20, 28, 40, 56, 80];

/// Counts of one cluster.
#[derive(Clone, Copy)]
struct Shown {
    ln_members: f64,
    hops: f64,
    lists: f64,
}

/// The constants for this set on the machine of `profile`.
pub(crate) fn fit(
    build: &Build<'_>,
    own: &ListOptions,
    space: &Space,
    scan: &Scan,
    profile: &Profile,
) -> Result<LocalCosts> {
    let dim = space.point_dim();
    let live = build.live_rows(scan);
    // Under a budget what they are cut into has to fit beside them.
    let room = build.plan.lists().pool_bytes / (2 * cut_bytes(dim));
    let count = POOL_ROWS.min(POOL_BYTES / (4 * dim)).min(room).min(live.len());
    let rows: Vec<u32> =
        (0..count).map(|i| live[(i as u64 * live.len() as u64 / count as u64) as usize]).collect();
    let mut pool = Floats { rows: vec![0f32; count * dim], dim };
    space.load_floats(build.base, &rows, &mut pool.rows)?;
    build.progress.stage("fitting costs", (SIZES.len() * CLUSTERS) as u64, "clusters");
    let mut shown = Vec::new();
    for &members in SIZES.iter().filter(|&&m| m == SIZES[0] || m <= count) {
        for i in 0..CLUSTERS {
            let seed = hash(build.options.seed, 37, (members * CLUSTERS + i) as u64);
            shown.push(show(&pool, members.min(count), seed, build.progress)?);
            build.progress.advance(1);
        }
    }
    let line = |of: fn(&Shown) -> f64| {
        least_squares(&shown.iter().map(|s| (s.ln_members, of(s))).collect::<Vec<_>>())
    };
    let ((hops_a, hops_b), (lists_a, lists_b)) = (line(|s| s.hops), line(|s| s.lists));
    let shape = build.base.shape();
    let layout = list_layout(build, own)?;
    let alpha_flat =
        profile.compute.codes.ns(layout.code_bytes) / profile.compute.full_ns(shape.dtype, shape.dim);
    Ok(LocalCosts { alpha_flat, hops_a, hops_b, beta_scan: beta_scan(&layout), lists_a, lists_b })
}

/// Bytes of a row in a cluster that is cut out: itself, its edges, and its distances.
fn cut_bytes(dim: usize) -> usize {
    4 * dim + vamana::Graph::bytes(1, DEGREE) as usize + 32
}

/// A cluster of the members nearest to a random one, and what its nearest neighbours cost there.
fn show(pool: &Floats, members: usize, seed: u64, progress: &dyn Progress) -> Result<Shown> {
    let centre = (seed % pool.len() as u64) as u32;
    let mut near: Vec<(f32, u32)> = (0..pool.len() as u32).map(|i| (pool.distance(centre, i), i)).collect();
    near.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let dim = pool.dim;
    let cluster = Floats {
        rows: near[..members].iter().flat_map(|&(_, i)| pool.row(i).iter().copied()).collect(),
        dim,
    };
    let step = (members / QUERIES).max(1);
    let truth = parallel::map((0..members as u32).step_by(step), |q| {
        let mut others: Vec<(f32, u32)> =
            (0..members as u32).filter(|&i| i != q).map(|i| (cluster.distance(q, i), i)).collect();
        others.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        (q, others.iter().take(K).map(|o| o.1).collect::<Vec<u32>>())
    });
    Ok(Shown {
        ln_members: (members as f64).ln(),
        hops: hops(&cluster, &truth, seed, progress)?,
        lists: lists(&cluster, &truth, seed, progress)?,
    })
}

/// Lists that must be scanned for the recall.
fn lists(cluster: &Floats, truth: &[(u32, Vec<u32>)], seed: u64, progress: &dyn Progress) -> Result<f64> {
    let k = VisitCostModel::lists_in(cluster.len() as u64) as usize;
    let centroids = kmeans::kmeans(&cluster.rows, cluster.dim, k, ROUNDS, seed, progress)?;
    let list_of = kmeans::assign(&cluster.rows, cluster.dim, &centroids);
    let mut ranks: Vec<usize> = Vec::new();
    for (q, found) in truth {
        let to = |c: usize| {
            l2_f32(cluster.row(*q), bytemuck::cast_slice(&centroids[c * cluster.dim..(c + 1) * cluster.dim]))
        };
        let mut order: Vec<(f32, usize)> = (0..k).map(|c| (to(c), c)).collect();
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut rank = vec![0; k];
        order.iter().enumerate().for_each(|(r, o)| rank[o.1] = r + 1);
        ranks.extend(found.iter().map(|&f| rank[list_of[f as usize] as usize]));
    }
    ranks.sort_unstable();
    let at = ((ranks.len() as f64 * RECALL).ceil() as usize).clamp(1, ranks.len().max(1));
    Ok(ranks.get(at - 1).copied().unwrap_or(1) as f64)
}

/// Nodes whose lists must be followed for the recall.
fn hops(cluster: &Floats, truth: &[(u32, Vec<u32>)], seed: u64, progress: &dyn Progress) -> Result<f64> {
    struct Silent<'a>(&'a dyn Progress);
    impl Progress for Silent<'_> {
        fn stage(&self, _: &str, _: u64, _: &str) {}
        fn advance(&self, _: u64) {}
        fn note(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            self.0.interrupted()
        }
    }
    let options = VamanaOptions { degree: DEGREE, list: BUILD_LIST, alpha: 1.2, passes: 1, seed };
    let graph = vamana::build(cluster, 0, &options, &Silent(progress))?;
    let mut scratch = WalkScratch::default();
    let mut last = 1.0;
    for beam in BEAMS {
        let (mut found, mut wanted, mut visits) = (0, 0, 0);
        for (q, nearest) in truth {
            let mut visited = Vec::new();
            let distance = |id: u32| if id == *q { f32::MAX } else { cluster.distance(*q, id) };
            greedy_walk(cluster, &graph, graph.entry, each(distance), beam, &mut scratch, &mut visited);
            visits += visited.len();
            wanted += nearest.len();
            found += nearest.iter().filter(|n| visited.iter().any(|v| v.id == **n)).count();
        }
        last = visits as f64 / truth.len().max(1) as f64;
        if found as f64 >= RECALL * wanted as f64 {
            break;
        }
    }
    Ok(last)
}

/// Bytes of lists that are read over those that are wanted, at the largest size: whole pages.
fn beta_scan(layout: &ListLayout) -> f64 {
    let members = SIZES[SIZES.len() - 1] as u64;
    let each = members / VisitCostModel::lists_in(members);
    let head = layout.list_codes_bytes(each as usize) as f64;
    // A list begins anywhere in a page.
    (head + stratann_core::PAGE as f64) / head
}

/// UnitCosts of the machine of `profile` with a busy disk.
pub(crate) fn unit_costs(profile: &Profile, local: &LocalCosts, shape: crate::dataset::Shape) -> UnitCosts {
    let loaded = &profile.disk.loaded;
    let depth = f64::from(loaded.depth.max(1));
    UnitCosts {
        read_us: loaded.fixed_us / depth,
        byte_us: loaded.ns_per_byte / 1000.0 / depth,
        distance_us: profile.compute.full_ns(shape.dtype, shape.dim) / 1000.0,
        alpha_flat: local.alpha_flat,
        beta_scan: local.beta_scan,
        hops: (local.hops_a, local.hops_b),
        lists: (local.lists_a, local.lists_b),
    }
}

/// a and b of y = a x + b.
fn least_squares(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len().max(1) as f64;
    let (mx, my) = (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n);
    let spread: f64 = points.iter().map(|p| (p.0 - mx).powi(2)).sum();
    if spread == 0.0 {
        return (0.0, my);
    }
    let a = points.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum::<f64>() / spread;
    (a, my - a * mx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found() {
        let (a, b) = least_squares(&[(1.0, 5.0), (2.0, 7.0), (3.0, 9.0)]);
        assert!((a - 2.0).abs() < 1e-12 && (b - 3.0).abs() < 1e-12);
        assert_eq!(least_squares(&[(4.0, 6.0)]), (0.0, 6.0));
    }
}
