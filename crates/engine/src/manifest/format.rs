//! Versions of the format of manifests.

use super::PointFacts;
use super::deletes::DeleteFacts;

/// The newest version of the format, which an index of points has: a program that does not know of their ids and
/// payloads would return other ids, and lose payloads. An index whose rows are deleted has version 5, as a program that
/// does not know of that would return them. Others have version 4, which has seeded checksums; 2 was the first with
/// codes in blocks, 3 with `hybrid-ivf`.
pub const FORMAT_VERSION: u32 = 6;
/// The version of the format of an index with deleted rows.
const FORMAT_DELETES: u32 = 5;
/// The version of the format of an index whose rows are all there.
pub const FORMAT_WHOLE: u32 = 4;

/// The version of the format that this program writes for an index with such deletes and points.
pub(crate) fn format_of(deletes: &Option<DeleteFacts>, points: &Option<PointFacts>) -> u32 {
    match (points, deletes) {
        (Some(_), _) => FORMAT_VERSION,
        (None, Some(_)) => FORMAT_DELETES,
        (None, None) => FORMAT_WHOLE,
    }
}
