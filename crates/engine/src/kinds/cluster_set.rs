//! Set of clusters, a bit for each.

/// See the module. The lowest bit of the first byte is for cluster 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSet(Vec<u8>);

impl ClusterSet {
    /// The empty set of so many clusters.
    pub fn new(clusters: usize) -> ClusterSet {
        ClusterSet(vec![0; clusters.div_ceil(8)])
    }

    /// The set with these bits; `None` where they are not as many as those of `clusters` clusters.
    pub fn from_bytes(bits: Vec<u8>, clusters: usize) -> Option<ClusterSet> {
        (bits.len() == clusters.div_ceil(8)).then_some(ClusterSet(bits))
    }

    /// The bits.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds a cluster. One beyond the last is left out.
    pub fn insert(&mut self, cluster: usize) {
        if let Some(byte) = self.0.get_mut(cluster / 8) {
            *byte |= 1 << (cluster % 8);
        }
    }

    /// Whether a cluster is in the set.
    pub fn has(&self, cluster: usize) -> bool {
        self.0.get(cluster / 8).is_some_and(|byte| byte >> (cluster % 8) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_in_once_they_are_added() {
        let mut set = ClusterSet::new(10);
        [0, 9, 200].into_iter().for_each(|cluster| set.insert(cluster));
        assert_eq!(set.bytes(), [1, 2]);
        assert_eq!((0..300).filter(|&cluster| set.has(cluster)).collect::<Vec<_>>(), [0, 9]);
        assert_eq!(ClusterSet::from_bytes(vec![1, 2], 10), Some(set));
        assert_eq!(ClusterSet::from_bytes(vec![1, 2], 17), None);
    }
}
