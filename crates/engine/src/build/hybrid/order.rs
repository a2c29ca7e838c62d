//! An order of points in which neighbours in space are mostly neighbours in the order.

use stratann_kernel::distance::{dot_f32, l2_f32};

/// Sorts `order` (numbers of rows of `points`, each `dim` floats) by halving: along the line between two far points, each half in the same way,
/// down to `least` points.
pub(super) fn halve(points: &[f32], dim: usize, order: &mut [u32], least: usize) {
    if order.len() <= least.max(1) {
        return;
    }
    let row = |i: u32| &points[i as usize * dim..(i as usize + 1) * dim];
    let farthest = |from: &[f32], order: &[u32]| {
        let far = |&i: &u32| (l2_f32(from, bytemuck::cast_slice(row(i))), i);
        order.iter().map(far).max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
    };
    let Some((_, one)) = farthest(row(order[0]), order) else { return };
    let Some((apart, other)) = farthest(row(one), order) else { return };
    if apart == 0.0 {
        return;
    }
    let line: Vec<f32> = row(other).iter().zip(row(one)).map(|(b, a)| b - a).collect();
    let mut keyed: Vec<(f32, u32)> =
        order.iter().map(|&i| (dot_f32(&line, bytemuck::cast_slice(row(i))), i)).collect();
    let half = keyed.len() / 2;
    keyed.select_nth_unstable_by(half, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    keyed[..half].sort_unstable_by_key(|k| k.1);
    keyed[half..].sort_unstable_by_key(|k| k.1);
    order.iter_mut().zip(&keyed).for_each(|(o, k)| *o = k.1);
    drop(keyed);
    let (low, high) = order.split_at_mut(half);
    halve(points, dim, low, least);
    halve(points, dim, high, least);
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
        assert!(steps.fold(0f32, f32::max) <= 8.0, "{order:?}");
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
