//! Orders points such that near points are mostly near in the order.

use stratann_kernel::distance::{dot_f32, l2_f32};

/// Sorts `order` (numbers of rows of `points`, each `dim` floats) by halving: along the line between two far points,
/// each half in the same way, down to `least` points. A half is reversed when its ends are then nearer to the points
/// before and after it.
pub(crate) fn halve(points: &[f32], dim: usize, order: &mut [u32], least: usize) {
    Halving { points, dim, least: least.max(1) }.sort(order, (None, None));
}

struct Halving<'a> {
    points: &'a [f32],
    dim: usize,
    least: usize,
}

impl Halving<'_> {
    fn row(&self, i: u32) -> &[f32] {
        &self.points[i as usize * self.dim..(i as usize + 1) * self.dim]
    }

    fn farthest(&self, from: u32, order: &[u32]) -> Option<(f32, u32)> {
        let far = |&i: &u32| (l2_f32(self.row(from), bytemuck::cast_slice(self.row(i))), i);
        order.iter().map(far).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
    }

    /// Sorts the points between `before` and `after`.
    fn sort(&self, order: &mut [u32], (before, after): (Option<u32>, Option<u32>)) {
        if order.len() <= self.least {
            return;
        }
        let Some((_, one)) = self.farthest(order[0], order) else { return };
        let Some((apart, other)) = self.farthest(one, order) else { return };
        if apart == 0.0 {
            return;
        }
        let mut line: Vec<f32> = self.row(other).iter().zip(self.row(one)).map(|(b, a)| b - a).collect();
        let along = |line: &[f32], i: u32| dot_f32(line, bytemuck::cast_slice(self.row(i)));
        let ends = [one, other].map(|i| along(&line, i));
        let middle = ends[0] + (ends[1] - ends[0]) / 2.0;
        let of = |neighbour: Option<u32>| neighbour.map_or(middle, |i| along(&line, i));
        if of(before) > of(after) {
            line.iter_mut().for_each(|x| *x = -*x);
        }
        let mut keyed: Vec<(f32, u32)> = order.iter().map(|&i| (along(&line, i), i)).collect();
        let half = keyed.len() / 2;
        keyed.select_nth_unstable_by(half, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let next = keyed[half].1;
        keyed[..half].sort_unstable_by_key(|k| k.1);
        keyed[half..].sort_unstable_by_key(|k| k.1);
        order.iter_mut().zip(&keyed).for_each(|(o, k)| *o = k.1);
        drop(keyed);
        let (low, high) = order.split_at_mut(half);
        self.sort(low, (before, Some(next)));
        self.sort(high, (low.last().copied(), after));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_comes_near() {
        // Points of a line, shuffled.
        let points: Vec<f32> = (0..64).map(|i| ((i * 37) % 64) as f32).collect();
        let mut order: Vec<u32> = (0..64).collect();
        halve(&points, 1, &mut order, 1);
        let steps = order.windows(2).map(|w| (points[w[0] as usize] - points[w[1] as usize]).abs());
        assert!(steps.fold(0f32, f32::max) <= 1.0, "{order:?}");
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..64).collect::<Vec<u32>>());
    }

    #[test]
    fn equal_points_end_at_once() {
        let mut order: Vec<u32> = (0..1000).collect();
        halve(&vec![1.0; 3000], 3, &mut order, 1);
        assert_eq!(order, (0..1000).collect::<Vec<u32>>());
    }
}
