//! Lists that a query with a sieve visits.

use core::ops::Range;

use crate::search::FAR_MAX;
use crate::sieve::Sieve;

/// How many lists with a row of the sieve a query for `k` results visits that would visit `nprobe` if such rows lay
/// anywhere. `nearest` has the rows of all lists by their distance to the query, those without a row of the sieve too.
///
/// Where the nearest lists have a smaller share of rows than the index has, the nearest rows of the sieve are farther
/// away and lie in more lists: with half the share from two times as many are visited to four times, as `far_tenths`
/// of [`FAR_MAX`] tell. In any case as many are visited as have k rows of the sieve. `None` where all of `nearest` have
/// fewer.
pub(crate) fn lists_to_visit(
    sieve: &Sieve,
    (nprobe, far_tenths): (u32, u8),
    k: u32,
    nearest: impl Iterator<Item = Range<u32>> + Clone,
) -> Option<u32> {
    let counts = nearest.map(|rows| (sieve.count_in(rows.clone()), rows.end - rows.start));
    let least = lists_with(k.min(sieve.count()), counts.clone())?;
    let visited = visits((nprobe, far_tenths), (sieve.count().into(), sieve.rows().into()), counts)?;
    Some(visited.max(least))
}

/// The lists with a match that have so many of them together. `None` where all have fewer.
fn lists_with(wanted: u32, nearest: impl Iterator<Item = (u32, u32)>) -> Option<u32> {
    let (mut found, mut lists) = (0u32, 0);
    for (here, _) in nearest {
        found = found.saturating_add(here);
        lists += u32::from(here > 0);
        if found >= wanted {
            return Some(lists);
        }
    }
    None
}

/// How many lists with a match a query visits that would visit `nprobe` if matches lay anywhere, by their share near
/// the query: see [`lists_to_visit`]. There are so many matches among so many rows, and `nearest` has both numbers of
/// each list. `None` where none of them has a match.
pub(crate) fn visits(
    (nprobe, far_tenths): (u32, u8),
    (matches, rows): (u64, u64),
    nearest: impl Iterator<Item = (u32, u32)>,
) -> Option<u32> {
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
        return None;
    }
    let expected = members as f64 * matches as f64 / rows.max(1) as f64;
    let times = (expected / found as f64).max(1.0);
    // A float beyond the range becomes the largest number.
    let more = 1.0 + (times - 1.0) * f64::from(far_tenths) / f64::from(FAR_MAX);
    Some((f64::from(nprobe) * times * more) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn fewer_rows_near_the_query_mean_more_lists() {
        let lists = || (0..10).map(|at| 10 * at..10 * at + 10);
        let sieve = |ids: Vec<u32>| Sieve::from_sorted(100, &ids).unwrap();
        let visited = |sieve: &Sieve, nprobe, far| lists_to_visit(sieve, (nprobe, far), 1, lists());
        let evenly = sieve((0..100).step_by(2).collect());
        assert_eq!(visited(&evenly, 4, FAR_MAX), Some(4));
        let near = sieve((0..20).collect());
        assert_eq!(visited(&near, 4, FAR_MAX), Some(4));
        let far = sieve((10..15).chain(20..25).chain(55..100).collect());
        // Of 30 members 10 are there, and 16.5 were to be expected.
        let expected = [0, 5, FAR_MAX].map(|far| (2.0 * 1.65 * (1.0 + 0.065 * f64::from(far))) as u32);
        assert_eq!([0, 5, FAR_MAX].map(|tenths| visited(&far, 2, tenths)), expected.map(Some));
        assert!(expected[0] < expected[2]);
        let farther = sieve((90..100).collect());
        assert_eq!(visited(&farther, 1, FAR_MAX), Some(1));
        assert_eq!(lists_to_visit(&farther, (2, FAR_MAX), 1, lists().take(5)), None);
        assert_eq!(visited(&sieve(Vec::new()), 2, FAR_MAX), None);
    }

    #[test]
    fn as_many_lists_are_visited_as_have_k_rows() {
        let lists = || (0..10).map(|at| 10 * at..10 * at + 10);
        let sieve = Sieve::from_sorted(100, &[5, 15, 16, 45, 46, 47, 95]).unwrap();
        let visited = |k| lists_to_visit(&sieve, (1, 0), k, lists());
        assert_eq!([1, 2, 3, 4, 6, 7, 50].map(visited), [1, 2, 2, 3, 3, 4, 4].map(Some));
        // The first five have six of them.
        let of_five = |k| lists_to_visit(&sieve, (1, 0), k, lists().take(5));
        assert_eq!([6, 7, 50].map(of_five), [Some(3), None, None]);
    }
}
