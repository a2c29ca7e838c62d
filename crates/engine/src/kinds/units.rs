//! What lies on servers as a whole, where it is not a block of a graph.

/// What a kind says of its units, where they are not blocks of a graph.
pub(crate) struct Units {
    /// The group of each unit.
    pub(crate) group_of: Vec<u32>,
    /// Bytes of each group.
    pub(crate) bytes: Vec<u64>,
    /// Components of a point.
    pub(crate) dim: usize,
    /// The middle of each group: groups × `dim`.
    pub(crate) points: Vec<f32>,
}
