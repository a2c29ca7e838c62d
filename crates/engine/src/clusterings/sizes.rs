//! Distribution of the sizes of lists or clusters.

use serde::{Deserialize, Serialize};

/// Distribution of the sizes of clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizeStats {
    /// Number of clusters.
    pub count: u64,
    /// Members of the smallest.
    pub min: u64,
    /// Members of the largest.
    pub max: u64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub std: f64,
    /// Gini coefficient: 0 when all are of one size, near 1 when one holds nearly all.
    pub gini: f64,
}

impl SizeStats {
    /// The distribution of these sizes.
    pub fn of(sizes: &[u64]) -> SizeStats {
        let mut sorted = sizes.to_vec();
        sorted.sort_unstable();
        let n = sorted.len() as f64;
        let total: u64 = sorted.iter().sum();
        if total == 0 {
            return SizeStats { count: sorted.len() as u64, ..SizeStats::default() };
        }
        let mean = total as f64 / n;
        let variance = sorted.iter().map(|&s| (s as f64 - mean).powi(2)).sum::<f64>() / n;
        let ranked: f64 = sorted.iter().zip(1u64..).map(|(&s, rank)| rank as f64 * s as f64).sum();
        SizeStats {
            count: sorted.len() as u64,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            mean,
            std: variance.sqrt(),
            gini: 2.0 * ranked / (n * total as f64) - (n + 1.0) / n,
        }
    }
}
