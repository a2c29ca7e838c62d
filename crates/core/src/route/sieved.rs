//! Lists that a query with a sieve visits.

use core::ops::Range;

use crate::sieve::Sieve;

/// How many lists with a row of the sieve a query visits that would visit `nprobe` if such rows lay anywhere. `nearest`
/// has the rows of all lists by their distance to the query, those without a row of the sieve too.
///
/// Where the nearest lists have a smaller share of rows than the index has, the nearest rows of the sieve are farther
/// away and lie in more lists: with half the share four times as many are visited.
pub(crate) fn lists_to_visit(sieve: &Sieve, nprobe: u32, nearest: impl Iterator<Item = Range<u32>>) -> u32 {
    let counts = nearest.map(|rows| (sieve.count_in(rows.clone()), rows.end - rows.start));
    visits(nprobe, (sieve.count().into(), sieve.rows().into()), counts)
}

/// As [`lists_to_visit`], of so many matches among so many rows. `nearest` has both of each list.
pub(crate) fn visits(
    nprobe: u32,
    (matches, rows): (u64, u64),
    nearest: impl Iterator<Item = (u32, u32)>,
) -> u32 {
    let (mut members, mut found, mut lists) = (0u64, 0u64, 0);
    for (here, all) in nearest {
        if lists >= nprobe {
            break;
        }
        members += u64::from(all);
        found += u64::from(here);
        lists += u32::from(here > 0);
    }
    if found == 0 {
        return u32::MAX;
    }
    let expected = members as f64 * matches as f64 / rows.max(1) as f64;
    let times = (expected / found as f64).max(1.0);
    // A float beyond the range becomes the largest number.
    (f64::from(nprobe) * times * times) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn fewer_rows_near_the_query_mean_more_lists() {
        let lists = || (0..10).map(|at| 10 * at..10 * at + 10);
        let sieve = |ids: Vec<u32>| Sieve::from_sorted(100, &ids).unwrap();
        let evenly = sieve((0..100).step_by(2).collect());
        assert_eq!(lists_to_visit(&evenly, 4, lists()), 4);
        let near = sieve((0..20).collect());
        assert_eq!(lists_to_visit(&near, 4, lists()), 4);
        let far = sieve((10..15).chain(20..25).chain(55..100).collect());
        // Of 30 members 10 are there, and 16.5 were to be expected.
        assert_eq!(lists_to_visit(&far, 2, lists()), (2.0 * 1.65 * 1.65) as u32);
        let farther = sieve((90..100).collect());
        assert_eq!(lists_to_visit(&farther, 1, lists()), 1);
        assert_eq!(lists_to_visit(&farther, 2, lists().take(5)), u32::MAX);
        assert_eq!(lists_to_visit(&sieve(Vec::new()), 2, lists()), u32::MAX);
    }
}
