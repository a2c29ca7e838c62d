//! The memory of searches in a `disk-graph`.

use crate::base::Base;
use crate::kinds::answers::code_query_bytes;

/// One query prepared for codes, and what it has visited.
pub(crate) fn query_bytes(code_bytes: usize, base: &Base) -> u64 {
    code_query_bytes(&base.manifest, code_bytes) + stratann_core::query::visited_bytes(base.manifest.rows)
}
