//! Trace of what a query has scanned, for `explain` and for measurements.

use alloc::vec::Vec;

/// Counts of the scan of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScannedList {
    /// Number of the list.
    pub list: u32,
    /// Distance of its centroid to the query.
    pub centroid_distance: f32,
    /// Members.
    pub members: u32,
    /// Members that were compared in all components.
    pub finished: u32,
    /// Components that were compared.
    pub components: u64,
}

/// Trace of what a query has scanned. Vectors that were scored first are not among those that are left.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The lists in their order.
    pub lists: Vec<ScannedList>,
    /// Vectors that their pilot or their code did not exclude.
    pub after_pilot: u64,
    /// Codes that were compared.
    pub codes: u64,
    /// Vectors that were left after each group of components.
    pub after_group: Vec<u64>,
}
