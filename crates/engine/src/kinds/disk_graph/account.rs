//! The memory of searches in a `disk-graph`.

use crate::base::Base;

/// Look-up tables of one query, and what it has visited.
pub(crate) fn query_bytes(code_bytes: usize, base: &Base) -> u64 {
    code_bytes as u64 * 512 + 4096 + stratann_core::query::visited_bytes(base.manifest.rows)
}
