//! RobustPrune (DiskANN, NeurIPS 2019, algorithm 2).

use alloc::vec::Vec;

use super::{Points, hash};

/// A neighbour candidate with its squared distance to the node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    /// Squared l2.
    pub distance: f32,
    /// Number of the point.
    pub id: u32,
}

impl Near {
    /// Total order by `(distance, id)`.
    pub fn order(&self, other: &Near) -> core::cmp::Ordering {
        self.distance.total_cmp(&other.distance).then(self.id.cmp(&other.id))
    }
}

/// Selects at most `degree` of `candidates`, closest first, such that no selected point is much closer to another
/// selected point than to the node. A candidate c is dropped when a selected p has `alpha² · d(p, c) ≤ d(node, c)`
/// (squared distances). Alpha is 1 first and then `alpha` while fewer than `degree` points are selected, so that short
/// edges in different directions precede long ones.
///
/// `candidates` may hold duplicates and the node itself; they are ignored. The result is in the order of selection.
pub fn robust_prune<P: Points>(
    points: &P,
    node: u32,
    candidates: &mut Vec<Near>,
    degree: usize,
    alpha: f32,
    scratch: &mut PruneScratch,
    out: &mut Vec<u32>,
) {
    candidates.sort_unstable_by(Near::order);
    candidates.dedup_by_key(|c| c.id);
    candidates.retain(|c| c.id != node);
    thin_duplicates(node, candidates, degree);
    out.clear();
    let factor = &mut scratch.factor;
    factor.clear();
    factor.resize(candidates.len(), 0.0);
    let mut limit = 1.0f32;
    let alpha_squared = alpha * alpha;
    loop {
        for i in 0..candidates.len() {
            if out.len() >= degree {
                return;
            }
            if factor[i] > limit {
                continue;
            }
            // Selected: not considered again, and it occludes the candidates behind it.
            factor[i] = f32::INFINITY;
            let chosen = candidates[i].id;
            out.push(chosen);
            for j in i + 1..candidates.len() {
                if factor[j] > alpha_squared {
                    continue;
                }
                let between = points.distance(chosen, candidates[j].id);
                let occlusion = match candidates[j].distance {
                    0.0 => 1.0,
                    distance if between > 0.0 => distance / between,
                    _ => f32::INFINITY,
                };
                factor[j] = factor[j].max(occlusion);
            }
        }
        if limit >= alpha_squared {
            return;
        }
        limit = alpha_squared;
    }
}

/// Keeps a random sample of the points that coincide with the node, a quarter of the degree. Duplicates stay connected
/// to each other and to other points.
fn thin_duplicates(node: u32, candidates: &mut Vec<Near>, degree: usize) {
    let same = candidates.partition_point(|c| c.distance <= 0.0);
    candidates[..same].sort_unstable_by_key(|c| (hash(u64::from(node), 13, u64::from(c.id)), c.id));
    candidates.drain((degree / 4).max(1).min(same)..same);
}

/// Reusable memory of [`robust_prune`].
#[derive(Clone, Debug, Default)]
pub struct PruneScratch {
    factor: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    struct Line(Vec<f32>);

    impl Points for Line {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn distance(&self, a: u32, b: u32) -> f32 {
            (self.0[a as usize] - self.0[b as usize]).powi(2)
        }
    }

    fn prune(points: &Line, node: u32, ids: &[u32], degree: usize, alpha: f32) -> Vec<u32> {
        let mut candidates: Vec<Near> =
            ids.iter().map(|&id| Near { distance: points.distance(node, id), id }).collect();
        let mut out = vec![];
        robust_prune(points, node, &mut candidates, degree, alpha, &mut PruneScratch::default(), &mut out);
        out
    }

    #[test]
    fn a_neighbour_occludes_points_behind_it() {
        let line = Line(vec![0.0, 1.0, 2.0, -1.5, 10.0]);
        assert_eq!(prune(&line, 0, &[4, 2, 1, 3, 1, 0], 8, 1.0), [1, 3]);
    }

    #[test]
    fn alpha_keeps_longer_edges_while_there_is_room() {
        let line = Line(vec![0.0, 1.0, 10.0]);
        assert_eq!(prune(&line, 0, &[1, 2], 8, 1.0), [1]);
        assert_eq!(prune(&line, 0, &[1, 2], 8, 1.2), [1, 2]);
        assert_eq!(prune(&line, 0, &[1, 2], 1, 1.2), [1]);
    }

    #[test]
    fn equal_points_do_not_fill_the_list() {
        let line = Line((0..100).map(|i| if i < 99 { 0.0 } else { 5.0 }).collect());
        let all: Vec<u32> = (0..100).collect();
        let (first, second) = (prune(&line, 0, &all, 16, 1.2), prune(&line, 1, &all, 16, 1.2));
        for kept in [&first, &second] {
            assert_eq!((kept.len(), kept.last()), (5, Some(&99)), "{kept:?}");
        }
        // Each node draws its own sample, so that together they connect all duplicates.
        assert_ne!(first, second);
        assert_eq!(prune(&line, 0, &all, 3, 1.2).len(), 2);
    }
}
