//! The memory of k-means, for the plans of all builds.

/// Rows as integers, and products of rows with centroids, on each thread.
pub(crate) const PRODUCT_BYTES: u64 = 512 << 10;

/// The memory of k-means over rows of `dim` floats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KmeansMemory {
    pub(crate) dim: u64,
}

impl KmeansMemory {
    /// A row of the sample, with its nearest centroid and its distance, now and in the round before.
    pub(crate) fn row_bytes(self) -> u64 {
        4 * self.dim + 24
    }

    /// A centroid as it is found, and either in its place in an order or as integers, with room for one more.
    pub(crate) fn centroid_bytes(self) -> u64 {
        3 * 4 * self.dim
    }
}
