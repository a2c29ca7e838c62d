//! Lists that a query with a sieve visits.

use core::ops::Range;

use crate::search::FAR_MAX;
use crate::sieve::Sieve;

/// How many lists with a row of the sieve a query visits that would visit `nprobe` if such rows lay anywhere. `nearest`
/// has the rows of all lists by their distance to the query, those without a row of the sieve too.
///
/// Where the nearest lists have a smaller share of rows than the index has, the nearest rows of the sieve are farther
/// away and lie in more lists: with half the share from two times as many are visited to four times, as `far_tenths`
/// of [`FAR_MAX`] tell. `None` where none of them has a row.
pub(crate) fn lists_to_visit(
    sieve: &Sieve,
    (nprobe, far_tenths): (u32, u8),
    nearest: impl Iterator<Item = Range<u32>>,
) -> Option<u32> {
    let counts = nearest.map(|rows| (sieve.count_in(rows.clone()), rows.end - rows.start));
    visits((nprobe, far_tenths), (sieve.count().into(), sieve.rows().into()), counts)
}

/// As [`lists_to_visit`], of so many matches among so many rows. `nearest` has both of each list.
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
        let visited = |sieve: &Sieve, nprobe, far| lists_to_visit(sieve, (nprobe, far), lists());
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
        assert_eq!(lists_to_visit(&farther, (2, FAR_MAX), lists().take(5)), None);
        assert_eq!(visited(&sieve(Vec::new()), 2, FAR_MAX), None);
    }
}
