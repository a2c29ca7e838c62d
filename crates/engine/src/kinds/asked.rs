//! Queries by their size: parameters of a given effort, and what a query takes by its parameters.

use stratann_core::plan::KindParams;
use stratann_core::query::Params;

use super::kind::Kind;

/// Parameters for k results with this effort, in the unit of the kind.
pub(crate) fn sized_params(kind: Kind, k: u32, effort: u32) -> Params {
    match kind {
        Kind::Flat => Params::flat(k),
        Kind::DiskGraph => Params::disk_graph(k, effort),
        Kind::HybridIvf => Params::hybrid_ivf(k, effort),
        Kind::GridIvf => Params::grid_ivf(k, effort),
        Kind::GpuIvf => Params::gpu_ivf(k, effort),
        Kind::RemoteHnsw => Params::remote_hnsw(k, effort),
    }
}

/// What the state and the scratch of a query take by its parameters: results, candidates, ranked clusters.
pub(crate) fn asked_bytes(params: &Params) -> u64 {
    let k = u64::from(params.k);
    // The results, and once more with the answer.
    let results = grown(k, 16) + 16 * k;
    let own = match &params.kind {
        // What grows with its parameters is accounted with its tables.
        KindParams::Flat(_) | KindParams::GridIvf(_) => 0,
        KindParams::DiskGraph(own) => grown(own.search_list.into(), 12) + grown(own.head_list.into(), 12),
        KindParams::HybridIvf(own) => {
            // Ranked clusters, their ranks and their beam; results, scored members, estimates, bounds and reads.
            grown(own.nprobe.into(), 4 + 12 + 24)
                + grown(own.sample_hits.into(), 12 + 4)
                + grown(own.local_list.into(), 12 + 4)
                + grown(k, 24 + 24 + 4 + 4 + 8)
        }
        KindParams::GpuIvf(own) => {
            // Lists, their beam and its nodes; candidates as they come, as keys, and those that are scored; other
            // vectors of the blocks of a mini-batch.
            grown(own.nprobe.into(), 4 + 12 + 4)
                + grown(own.candidates.into(), 8 + 16 + 24 + 4)
                + grown(own.batch.into(), 16 * 40)
        }
        KindParams::RemoteHnsw(own) => {
            // Clusters, with a read and a want for each and for its fresh records; a beam; what was found.
            grown(own.nprobe.into(), 4 + 2 * 128) + grown(own.ef.into(), 8) + grown(k, 24)
        }
        #[cfg(feature = "test-kind")]
        KindParams::Sorted(_) => 0,
    };
    results + own
}

/// The most that a list of `count` entries takes while it grows: it doubles, and is copied once more as it does.
fn grown(count: u64, entry_bytes: u64) -> u64 {
    count.next_power_of_two() * entry_bytes * 3 / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_accounted_as_asked() {
        let usual = asked_bytes(&Params::disk_graph(10, 200));
        let large = asked_bytes(&Params::disk_graph(16_384, 65_536));
        assert!(usual < 8 << 10, "{usual}");
        // Candidates of 12 bytes and results of 16 in lists that double.
        assert!(large > 65_536 * 12 * 3 / 2 + 16_384 * 40 && large < 2 << 20, "{large}");
        let probes = |nprobe| asked_bytes(&Params::hybrid_ivf(10, nprobe));
        assert!(probes(8192) > probes(64) + 8000 * 40);
    }
}
