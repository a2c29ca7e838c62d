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

/// Neighbours that an earlier pruning of the node has selected, by round. No one of them occludes another, so that
/// distances among them are not needed again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Selected<'a> {
    /// Selected with an alpha of 1.
    pub first: &'a [u32],
    /// Selected with the alpha of the options.
    pub second: &'a [u32],
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
    prune_again(points, node, Selected::default(), candidates, (degree, alpha), scratch, out);
}

/// As [`robust_prune`], where some of `candidates` were `selected` before; `limits` are degree and alpha. Returns how
/// many of the result are of the first round.
///
/// A candidate is compared with selected points when its turn comes, in the order of their selection, and only until
/// one of them occludes it.
pub fn prune_again<P: Points>(
    points: &P,
    node: u32,
    selected: Selected<'_>,
    candidates: &mut Vec<Near>,
    limits: (usize, f32),
    scratch: &mut PruneScratch,
    out: &mut Vec<u32>,
) -> usize {
    let (degree, alpha) = limits;
    candidates.sort_unstable_by(Near::order);
    candidates.dedup_by_key(|c| c.id);
    candidates.retain(|c| c.id != node);
    thin_duplicates(node, candidates, degree);
    out.clear();
    let PruneScratch { states, occluders, distances } = scratch;
    states.clear();
    states.extend(candidates.iter().map(|c| State::new(c.id, selected)));
    occluders.iter_mut().for_each(Vec::clear);
    let alpha_squared = alpha * alpha;
    for (round, limit) in [1.0, alpha_squared].into_iter().enumerate() {
        for (at, candidate) in candidates.iter().enumerate() {
            if out.len() >= degree {
                return occluders[0].len();
            }
            let state = &mut states[at];
            if state.factor > limit {
                continue;
            }
            for (of_round, list) in occluders.iter().enumerate() {
                // In the second round, farther points of the first do not occlude.
                let end = list.partition_point(|o| o.at < at);
                while state.seen[of_round] < end && state.factor <= limit {
                    let unseen = &list[state.seen[of_round]..end];
                    state.seen[of_round] += state.occlude(points, candidate, unseen, distances);
                }
            }
            if state.factor > limit {
                continue;
            }
            state.factor = f32::INFINITY;
            occluders[round].push(Occluder { at, id: candidate.id, is_new: !state.was_selected });
            out.push(candidate.id);
        }
        if limit >= alpha_squared {
            break;
        }
    }
    occluders[0].len()
}

/// Selected points that a candidate is compared with at a time.
const TOGETHER: usize = 4;

/// What is known of a candidate.
#[derive(Clone, Copy, Debug)]
struct State {
    /// The largest factor by which a selected point is closer to it than the node is; infinite once it is selected.
    factor: f32,
    /// Selected points of each round that it was compared with.
    seen: [usize; 2],
    was_selected: bool,
}

impl State {
    fn new(id: u32, selected: Selected<'_>) -> State {
        let (first, second) = (selected.first.contains(&id), selected.second.contains(&id));
        // Something occluded those of the second round at an alpha of 1.
        let factor = if second { 1.0f32.next_up() } else { 0.0 };
        State { factor, seen: [0; 2], was_selected: first || second }
    }

    /// Compares it with some selected points. Returns how many were seen.
    fn occlude<P: Points>(
        &mut self,
        points: &P,
        candidate: &Near,
        occluders: &[Occluder],
        distances: &mut Vec<f32>,
    ) -> usize {
        let (mut ids, mut count, mut seen) = ([0; TOGETHER], 0, 0);
        while count < TOGETHER && seen < occluders.len() {
            let occluder = &occluders[seen];
            seen += 1;
            if occluder.is_new || !self.was_selected {
                ids[count] = occluder.id;
                count += 1;
            }
        }
        points.distances(candidate.id, &ids[..count], distances);
        for &between in distances.iter() {
            let occlusion = match candidate.distance {
                0.0 => 1.0,
                distance if between > 0.0 => distance / between,
                _ => f32::INFINITY,
            };
            self.factor = self.factor.max(occlusion);
        }
        seen
    }
}

/// A selected point that may occlude candidates behind it.
#[derive(Clone, Copy, Debug)]
struct Occluder {
    /// Its position among the candidates.
    at: usize,
    id: u32,
    is_new: bool,
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
    states: Vec<State>,
    /// Selected points, by round.
    occluders: [Vec<Occluder>; 2],
    distances: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

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

    /// The definition: each selected point at once occludes all candidates behind it.
    fn by_definition(points: &Line, node: u32, ids: &[u32], degree: usize, alpha: f32) -> Vec<u32> {
        let mut near: Vec<Near> =
            ids.iter().map(|&id| Near { distance: points.distance(node, id), id }).collect();
        near.sort_unstable_by(Near::order);
        near.dedup();
        let mut factors = vec![0f32; near.len()];
        let mut out = vec![];
        for limit in [1.0, alpha * alpha] {
            for at in 0..near.len() {
                if out.len() == degree || factors[at] > limit {
                    continue;
                }
                factors[at] = f32::INFINITY;
                out.push(near[at].id);
                for behind in at + 1..near.len() {
                    let factor = near[behind].distance / points.distance(near[at].id, near[behind].id);
                    factors[behind] = factors[behind].max(factor);
                }
            }
        }
        out
    }

    proptest! {
        #[test]
        fn candidates_are_selected_as_defined(
            places in prop::collection::vec(-1000f32..1000.0, 2..60),
            degree in 1usize..20,
            alpha in 1f32..2.0,
        ) {
            let line = Line(places);
            let ids: Vec<u32> = (1..line.len() as u32).collect();
            let distinct = ids.iter().all(|&a| (0..a).all(|b| line.distance(a, b) > 0.0));
            prop_assume!(distinct);
            prop_assert_eq!(
                prune(&line, 0, &ids, degree, alpha),
                by_definition(&line, 0, &ids, degree, alpha)
            );
        }

        #[test]
        fn what_was_selected_stays_where_nothing_is_added(
            places in prop::collection::vec(-1000f32..1000.0, 2..60),
            degree in 1usize..20,
        ) {
            let line = Line(places);
            let near = |ids: &[u32]| -> Vec<Near> {
                ids.iter().map(|&id| Near { distance: line.distance(0, id), id }).collect()
            };
            let (mut once, mut again) = (vec![], vec![]);
            let mut scratch = PruneScratch::default();
            let mut all = near(&(1..line.len() as u32).collect::<Vec<_>>());
            let limits = (degree, 1.2);
            let first = prune_again(&line, 0, Selected::default(), &mut all, limits, &mut scratch, &mut once);
            let selected = Selected { first: &once[..first], second: &once[first..] };
            let count = prune_again(&line, 0, selected, &mut near(&once), limits, &mut scratch, &mut again);
            prop_assert_eq!((count, &again), (first, &once));
        }
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
