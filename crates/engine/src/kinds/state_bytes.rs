//! Bytes that the state and the scratch of a query take by its parameters.

use stratann_core::query::Params;

use super::params::own;
use super::questions::grown;

/// Bytes of the state and the scratch of a query, its tables excluded: results, candidates, ranked clusters.
pub(crate) fn state_bytes(params: &Params) -> u64 {
    let k = u64::from(params.k);
    // The results, and once more with the answer.
    grown(k, 16) + 16 * k + own(&params.kind).state_bytes(k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_accounted_by_its_parameters() {
        let usual = state_bytes(&Params::disk_graph(10, 200));
        let large = state_bytes(&Params::disk_graph(16_384, 65_536));
        assert!(usual < 8 << 10, "{usual}");
        // Candidates of 12 bytes and results of 16 in lists that double.
        assert!(large > 65_536 * 12 * 3 / 2 + 16_384 * 40 && large < 2 << 20, "{large}");
        let probes = |nprobe| state_bytes(&Params::hybrid_ivf(10, nprobe));
        assert!(probes(8192) > probes(64) + 8000 * 40);
    }
}
