//! Points in memory, as floats.

use stratann_core::build::Points;
use stratann_kernel::distance::l2_f32;

/// Nodes as floats.
pub(crate) struct Floats {
    pub(crate) rows: Vec<f32>,
    pub(crate) dim: usize,
}

impl Floats {
    pub(crate) fn row(&self, a: u32) -> &[f32] {
        &self.rows[a as usize * self.dim..(a as usize + 1) * self.dim]
    }

    /// The node nearest to the mean: the entry point.
    pub(crate) fn medoid(&self) -> u32 {
        let n = self.len();
        let sum = |i: usize| self.rows.iter().skip(i).step_by(self.dim).map(|&x| f64::from(x)).sum::<f64>();
        let mean: Vec<f32> = (0..self.dim).map(|i| (sum(i) / n as f64) as f32).collect();
        let to_mean = |a: u32| l2_f32(&mean, bytemuck::cast_slice(self.row(a)));
        (0..n as u32).min_by(|&a, &b| to_mean(a).total_cmp(&to_mean(b)).then(a.cmp(&b))).unwrap_or(0)
    }
}

impl Points for Floats {
    fn len(&self) -> usize {
        self.rows.len() / self.dim
    }

    fn distance(&self, a: u32, b: u32) -> f32 {
        l2_f32(self.row(a), bytemuck::cast_slice(self.row(b)))
    }

    fn prefetch(&self, a: u32) {
        stratann_kernel::prefetch(bytemuck::cast_slice(self.row(a)));
    }
}
