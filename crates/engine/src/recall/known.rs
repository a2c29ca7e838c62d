//! Queries whose true neighbours are known.

/// Queries whose true neighbours are known.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Rows of the index' element type, as bytes.
    pub queries: Vec<u8>,
    /// True neighbours of the queries, as ids that the index returns: `truth_k` each, closest first.
    pub truth: Vec<u64>,
    /// Neighbours per query.
    pub truth_k: usize,
    /// The distances of the true neighbours; empty where they are not known.
    pub distances: Vec<f32>,
    /// Node that each query must not see; empty for none.
    pub hidden: Vec<u32>,
}

impl Known {
    /// Number of queries.
    pub(crate) fn count(&self) -> usize {
        self.truth.len().checked_div(self.truth_k).unwrap_or(0)
    }

    /// The node that a query must not see; `u32::MAX` for none.
    pub(crate) fn hidden(&self, query: usize) -> u32 {
        self.hidden.get(query).copied().unwrap_or(u32::MAX)
    }

    /// The distance of a query to its k-th neighbour, or to the last one known.
    pub(crate) fn kth_distance(&self, query: usize, k: u32) -> f32 {
        let at = (k as usize).clamp(1, self.truth_k.max(1)) - 1;
        self.distances.get(query * self.truth_k + at).copied().unwrap_or(f32::INFINITY)
    }

    /// The distance to the k-th neighbour that a tenth of the queries exceeds; `None` where distances are not known.
    pub(crate) fn far_kth_distance(&self, k: u32) -> Option<f32> {
        if self.distances.is_empty() {
            return None;
        }
        let mut all: Vec<f32> = (0..self.count()).map(|q| self.kth_distance(q, k)).collect();
        all.sort_unstable_by(f32::total_cmp);
        all.get(all.len() * 9 / 10).copied()
    }

    /// Every other query, and the rest.
    pub(crate) fn split(&self, row_bytes: usize) -> (Known, Known) {
        let of = |first: usize| self.pick((first..self.count()).step_by(2), row_bytes);
        (of(0), of(1))
    }

    /// Some of the queries, spread evenly over all.
    pub(crate) fn spread(&self, count: usize, row_bytes: usize) -> Known {
        let all = self.count();
        self.pick((0..count.min(all)).map(|i| i * all / count), row_bytes)
    }

    fn pick(&self, queries: impl Iterator<Item = usize>, row_bytes: usize) -> Known {
        let k = self.truth_k;
        let mut picked = Known { truth_k: k, ..Known::default() };
        for q in queries {
            picked.queries.extend_from_slice(&self.queries[q * row_bytes..(q + 1) * row_bytes]);
            picked.truth.extend_from_slice(&self.truth[q * k..(q + 1) * k]);
            picked.distances.extend(self.distances.get(q * k..(q + 1) * k).unwrap_or_default());
            picked.hidden.extend(self.hidden.get(q));
        }
        picked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_and_shares_keep_what_belongs_together() {
        let known = Known {
            queries: (0..10).collect(),
            truth: (0..20).collect(),
            truth_k: 2,
            distances: (0..20u8).map(f32::from).collect(),
            hidden: (100..110).collect(),
        };
        let (a, b) = known.split(1);
        assert_eq!((a.queries, b.queries), (vec![0, 2, 4, 6, 8], vec![1, 3, 5, 7, 9]));
        assert_eq!((a.truth[2..4].to_vec(), a.hidden[1], b.distances[0]), (vec![4, 5], 102, 2.0));
        let some = known.spread(4, 1);
        assert_eq!((some.count(), some.queries), (4, vec![0, 2, 5, 7]));
        assert_eq!(
            (known.kth_distance(3, 1), known.kth_distance(3, 2), known.kth_distance(3, 9)),
            (6.0, 7.0, 7.0)
        );
        assert_eq!((known.far_kth_distance(2), Known::default().far_kth_distance(2)), (Some(19.0), None));
        assert_eq!((known.hidden(3), Known::default().hidden(3)), (103, u32::MAX));
    }
}
