//! How a query finds the rows of a sieve in inverted lists: in the nearest lists that have some, or in all of them.

use std::ops::Range;

use stratann_core::kinds::hybrid_ivf::MAX_PROBES;
use stratann_core::sieve::Sieve;

use super::answers::SievedQuery;

/// Bytes of a list in the state and the scratch of a query, which may come to visit all of them.
pub(crate) const LIST_BYTES: u64 = 40;

/// The lists that a search visits of those with a row of the sieve, given how many it usually visits; `None` where it
/// would visit all of them.
pub(crate) fn nprobe(
    query: &SievedQuery<'_>,
    usual: u32,
    lists: impl Iterator<Item = Range<u32>>,
) -> Option<u32> {
    let nprobe = (f64::from(usual) * query.effort_times).ceil().min(f64::from(MAX_PROBES)) as u32;
    (nprobe < with_rows(lists, query.sieve)).then_some(nprobe.max(1))
}

/// Lists with a row of the sieve.
fn with_rows(lists: impl Iterator<Item = Range<u32>>, sieve: &Sieve) -> u32 {
    lists.filter(|rows| sieve.has_any(rows.clone())).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_without_a_row_are_not_counted() {
        let lists = || [0..3, 3..3, 3..7, 7..10].into_iter();
        let count = |ids: &[u32]| with_rows(lists(), &Sieve::from_sorted(10, ids).unwrap());
        assert_eq!([&[][..], &[2], &[0, 2, 3], &[0, 6, 9]].map(count), [0, 1, 2, 3]);
    }
}
