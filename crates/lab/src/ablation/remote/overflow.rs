//! Room for fresh records, computed from exact counters: what a load reads of it, here and in d-HNSW §3.2.

use serde::Serialize;
use stratann_engine::kinds::remote_hnsw::facts::RemoteFacts;

use super::measure::Measured;

/// Shares of the bytes of a group that are set aside, besides that of the index.
const SHARES: [f64; 5] = [0.0, 0.0625, 0.125, 0.25, 0.5];

/// One size of the room.
#[derive(Clone, Debug, Serialize)]
pub(super) struct AtOverflow {
    /// Whether it is that of the index.
    pub(super) is_own: bool,
    /// Room in a group.
    pub(super) overflow_bytes: u64,
    /// Bytes of all groups with their clusters.
    pub(super) region_bytes: u64,
    /// Bytes of a query where each load reads the whole room, as in the paper.
    pub(super) bytes_whole: f64,
    /// Bytes of a query where a load reads its cluster's own part, for shares of the room that are in use.
    pub(super) bytes_used_0: f64,
    pub(super) bytes_used_50: f64,
    pub(super) bytes_used_100: f64,
}

impl AtOverflow {
    /// Several sizes. `own` was measured with the index as it is.
    pub(super) fn all(facts: &RemoteFacts, own: &Measured) -> Vec<AtOverflow> {
        let groups = u64::from(facts.groups.max(1));
        let group_bytes = facts.cluster_bytes / groups;
        let sizes = SHARES.map(|share| (false, (group_bytes as f64 * share) as u64));
        let mut all: Vec<AtOverflow> = sizes
            .into_iter()
            .chain([(true, facts.overflow_bytes())])
            .map(|(is_own, overflow_bytes)| {
                // Each of the two clusters has half of what is in use.
                let used = |share: f64| own.bytes + own.loads * overflow_bytes as f64 / 2.0 * share;
                AtOverflow {
                    is_own,
                    overflow_bytes,
                    region_bytes: facts.cluster_bytes + groups * overflow_bytes,
                    bytes_whole: own.bytes + own.loads * overflow_bytes as f64,
                    bytes_used_0: used(0.0),
                    bytes_used_50: used(0.5),
                    bytes_used_100: used(1.0),
                }
            })
            .collect();
        all.sort_by_key(|at| (at.overflow_bytes, at.is_own));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::tests::measured;
    use super::*;
    use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;

    #[test]
    fn a_load_reads_its_own_half_of_what_is_used() {
        let facts = RemoteFacts {
            groups: 10,
            cluster_bytes: 16_000,
            capacity: 5,
            record_bytes: 40,
            ..RemoteFacts::default()
        };
        let own = measured(LoadScheme::Own, [2.0, 1000.0, 5.0]);
        let all = AtOverflow::all(&facts, &own);
        let sizes: Vec<_> = all.iter().map(|at| (at.overflow_bytes, at.is_own)).collect();
        assert_eq!(sizes, [(0, false), (100, false), (200, false), (200, true), (400, false), (800, false)]);
        assert_eq!((all[3].region_bytes, all[3].bytes_whole, all[3].bytes_used_0), (18_000, 1400.0, 1000.0));
        assert_eq!((all[3].bytes_used_50, all[3].bytes_used_100), (1100.0, 1200.0));
    }
}
