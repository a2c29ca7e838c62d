//! Codes and coarse lists of the points that a live collection has in memory.
//!
//! A row belongs to the list of its nearest centroid, and has a code of a few bits a dimension of its difference to
//! it. A query ranks the centroids, compares the codes of the lists that can matter, and asks its caller for the
//! distances of the rows that can be results by their codes. The caller keeps vectors, ids and which rows are dead.
//!
//! **Bounds of rows are strict.** A code stands for a point at a known distance, the radius, from its row. The triangle
//! inequality bounds the distance of the query (`stratann_kernel::bits`), that of Cauchy and Schwarz an inner product.
//! What floats lose is added, in the distances that the caller computes, too. So a row is left out only where its
//! distance exceeds the limit, which is the k-th distance so far.
//!
//! **Lists are left out by a geometric rule and a measured factor.** A row is nearer to its own centroid c than to any
//! other. So it is beyond the plane in the middle of c and c₁, the centroid nearest to the query, and at least h =
//! (‖q − c‖² − ‖q − c₁‖²) / 2‖c − c₁‖ away. A list with h above the limit has no result. With many dimensions most
//! results need much less: a list is left out where h exceeds the limit times a factor below 1. Under inner product a
//! row at distance ρ from c is a result only where the cosine of its direction and the query is (⟨q, c⟩ short of the
//! limit) / ‖q‖ρ or more; the factor is such a cosine. Rows in memory show which factor a recall needs
//! ([`Lists::learn`]); they say nothing of a query whose results are farther than theirs, which scans all lists. A
//! recall of 1 leaves out only lists that have no result.
//!
//! Nothing here does I/O or reads a clock.

mod calibration;
mod coarse;
mod lists;
mod scan;
#[cfg(test)]
mod tests;

pub use calibration::PROBE_RESULTS;
pub use coarse::{Coarse, LISTS_MAX, SAMPLE_OF_LIST, Shape, lists_for};
pub use lists::{Lists, Pushing, row_bytes};
pub use scan::{Effort, Points, Query, Scanned};
