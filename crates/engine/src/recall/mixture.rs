//! Queries for calibration, made from rows of the index: rows themselves, rows with noise, and points between rows.
//!
//! Rows alone are easier than most queries: questions against texts, or queries of regions that hold few rows, lie
//! farther from their neighbours. Each query comes from a row of its own. That row is hidden from its search and left
//! out of its truth, so every query is a vector that the index has never seen.

use half::f16;
use stratann_core::build::hash;
use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric};

use crate::dataset::check_row;

/// Neighbours of a row that its query is made with.
pub(crate) const NEAR: usize = 10;

/// Recipe of a query from its row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Recipe {
    /// The row.
    Row,
    /// The row, moved by this multiple of its distance to the farthest of its [`NEAR`] neighbours.
    Noise(f32),
    /// A point between the row and two of its neighbours.
    Between,
}

const RECIPES: [Recipe; 10] = [
    Recipe::Row,
    Recipe::Row,
    Recipe::Noise(0.3),
    Recipe::Noise(0.6),
    Recipe::Noise(0.6),
    Recipe::Noise(1.0),
    Recipe::Noise(1.0),
    Recipe::Noise(1.5),
    Recipe::Between,
    Recipe::Between,
];

/// The recipe for the query that comes from a row.
pub(crate) fn recipe(seed: u64, row: u64) -> Recipe {
    RECIPES[(hash(seed, 17, row) % RECIPES.len() as u64) as usize]
}

/// Makes queries for rows of one shape.
pub(crate) struct Maker {
    pub(crate) dtype: DType,
    pub(crate) metric: Metric,
    pub(crate) dim: usize,
    pub(crate) seed: u64,
}

impl Maker {
    /// Makes the query that comes from a row, which has this number. `near` holds its neighbours, closest first.
    ///
    /// Returns the row itself where the query would be no valid vector.
    pub(crate) fn query(&self, number: u64, row: &[u8], near: &[Vec<u8>]) -> Vec<u8> {
        let mut wide = self.wide(row);
        match recipe(self.seed, number) {
            Recipe::Row => return row.to_vec(),
            Recipe::Noise(share) => self.add_noise(number, share, &mut wide, near),
            Recipe::Between => self.mix(number, &mut wide, near),
        }
        let made = narrow(self.dtype, &wide);
        if check_row(self.dtype, self.metric, &made).is_some() { row.to_vec() } else { made }
    }

    fn wide(&self, row: &[u8]) -> Vec<f32> {
        let mut wide = vec![0.0; self.dim];
        widen(self.dtype, row, &mut wide);
        wide
    }

    /// A number in 0..1. The arithmetic is exact, so that every machine makes the same queries.
    fn uniform(&self, number: u64, place: u64) -> f32 {
        (hash(hash(self.seed, 18, number), 19, place) >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Adds noise without preferred direction.
    fn add_noise(&self, number: u64, share: f32, wide: &mut [f32], near: &[Vec<u8>]) {
        let Some(last) = near.last() else { return };
        let mut length = l2(wide, &self.wide(last));
        if self.metric == Metric::Cosine {
            length = length.min(2.0 * l2(wide, &vec![0.0; self.dim]));
        }
        // A sum of four uniform numbers is nearly normal; its variance is a third.
        let deviation = share * length * (3.0 / self.dim as f32).sqrt();
        for (place, x) in (0u64..).zip(wide.iter_mut()) {
            let sum: f32 = (0..4).map(|part| self.uniform(number, 4 * place + part)).sum();
            *x += deviation * (sum - 2.0);
        }
    }

    /// Moves to a random point between the row and two of its neighbours.
    fn mix(&self, number: u64, wide: &mut [f32], near: &[Vec<u8>]) {
        let pick = |place: u64| {
            let at = (self.uniform(number, place) * near.len() as f32) as usize;
            near.get(at).map(|row| self.wide(row))
        };
        let (Some(first), Some(second)) = (pick(0), pick(1)) else { return };
        // Uniform in the triangle.
        let (mut a, mut b) = (self.uniform(number, 2), self.uniform(number, 3));
        if a + b > 1.0 {
            (a, b) = (1.0 - a, 1.0 - b);
        }
        for ((x, &y), &z) in wide.iter_mut().zip(&first).zip(&second) {
            *x += a * (y - *x) + b * (z - *x);
        }
    }
}

fn l2(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum::<f32>().sqrt()
}

/// Components as stored: integers are rounded and kept within their range.
fn narrow(dtype: DType, wide: &[f32]) -> Vec<u8> {
    let rounded = |x: &f32| x.round();
    match dtype {
        DType::F32 => wide.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => wide.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        DType::U8 => wide.iter().map(|x| rounded(x) as u8).collect(),
        DType::I8 => wide.iter().map(|x| rounded(x) as i8 as u8).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maker(dtype: DType, metric: Metric) -> Maker {
        Maker { dtype, metric, dim: 16, seed: 3 }
    }

    fn rows(dtype: DType) -> Vec<Vec<u8>> {
        let component = |i: u64| (hash(1, 2, i) % 200) as f32 - if dtype == DType::U8 { 0.0 } else { 100.0 };
        (0..=NEAR as u64)
            .map(|r| narrow(dtype, &(0..16).map(|c| component(16 * r + c)).collect::<Vec<_>>()))
            .collect()
    }

    #[test]
    fn every_recipe_makes_valid_vectors_of_every_type() {
        for dtype in DType::ALL {
            let rows = rows(dtype);
            for metric in Metric::ALL {
                let maker = maker(dtype, metric);
                let mut moved = 0;
                for number in 0..100 {
                    let made = maker.query(number, &rows[0], &rows[1..]);
                    assert_eq!(made, maker.query(number, &rows[0], &rows[1..]));
                    assert_eq!(made.len(), rows[0].len());
                    assert!(check_row(dtype, metric, &made).is_none());
                    assert_eq!(made == rows[0], recipe(3, number) == Recipe::Row, "{dtype:?} {number}");
                    moved += usize::from(made != rows[0]);
                }
                assert!((60..95).contains(&moved), "{moved}");
            }
        }
    }

    #[test]
    fn noise_is_as_long_as_the_recipe_says() {
        let rows = rows(DType::F32);
        let maker = maker(DType::F32, Metric::L2);
        let unit = l2(&maker.wide(&rows[0]), &maker.wide(&rows[NEAR]));
        let (mut sum, mut count) = (0.0, 0.0);
        for number in 0..500 {
            let made = maker.wide(&maker.query(number, &rows[0], &rows[1..]));
            let length = l2(&made, &maker.wide(&rows[0])) / unit;
            match recipe(3, number) {
                Recipe::Noise(share) => (sum, count) = (sum + length / share, count + 1.0),
                Recipe::Row => assert_eq!(length, 0.0),
                Recipe::Between => assert!(length < 3.0),
            }
        }
        assert!((0.95..1.05).contains(&(sum / count)), "{}", sum / count);
    }

    #[test]
    fn extreme_rows_and_lone_rows_are_queries_as_they_are() {
        let zeros = vec![0u8; 64];
        let largest: Vec<u8> = [f32::MAX; 16].iter().flat_map(|x| x.to_le_bytes()).collect();
        for number in 0..40 {
            assert_eq!(maker(DType::F32, Metric::L2).query(number, &zeros, &[]), zeros);
            let made = maker(DType::F32, Metric::Ip).query(number, &zeros, std::slice::from_ref(&largest));
            assert!(made == zeros || check_row(DType::F32, Metric::Ip, &made).is_none());
        }
        assert_eq!(narrow(DType::U8, &[-3.0, 300.0, 2.5, f32::NAN]), [0, 255, 3, 0]);
        assert_eq!(narrow(DType::I8, &[-300.0, 127.6, -0.4]), [128, 127, 0]);
    }
}
