//! A model of the link of d-HNSW §4: exact counters with prices. Times of the processor are this machine's.

use serde::Serialize;

use super::measure::Measured;
use super::schemes::Scheme;

/// Numbers of compute nodes.
const NODES: [u32; 4] = [1, 2, 4, 8];

/// Prices of a link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Prices {
    /// A round trip without bytes.
    pub(super) round_trip_us: f64,
    /// Bandwidth of a memory node.
    pub(super) gbps: f64,
    /// Compute threads that load at the same time, each with an equal share of the bandwidth.
    pub(super) clients: u32,
}

impl Prices {
    /// Microseconds on the link for round trips and bytes, where so many share it.
    fn network_us(&self, round_trips: f64, bytes: f64, clients: u32) -> f64 {
        round_trips * self.round_trip_us + bytes * 8.0 * f64::from(clients) / (self.gbps * 1000.0)
    }

    /// Queries in a second that the bandwidth allows.
    fn link_qps(&self, bytes: f64) -> f64 {
        self.gbps * 1e9 / 8.0 / bytes.max(f64::MIN_POSITIVE)
    }
}

/// A scheme with the prices, for each query.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Modelled {
    pub(super) scheme: &'static str,
    pub(super) network_us: f64,
    /// Measured on this machine.
    pub(super) sub_hnsw_us: f64,
    pub(super) meta_hnsw_us: f64,
    pub(super) latency_us: f64,
    /// So many times faster than naive.
    pub(super) speedup: f64,
    pub(super) network_speedup: f64,
}

/// Throughput of compute nodes on one memory node.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scaled {
    pub(super) scheme: &'static str,
    pub(super) compute_nodes: u32,
    pub(super) qps: f64,
    /// The most that the link carries.
    pub(super) link_qps: f64,
    /// What limits it: "compute" or "link".
    pub(super) limit: &'static str,
}

/// The model.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Model {
    pub(super) prices: Prices,
    /// Threads of a compute node.
    pub(super) threads: usize,
    pub(super) schemes: Vec<Modelled>,
    pub(super) nodes: Vec<Scaled>,
}

/// Microseconds of a query. With overlap, all doorbells but the first are loaded while others are searched.
fn latency_us(of: &Measured, network_us: f64, batch: usize) -> f64 {
    let sub = of.sub_hnsw_us;
    let overlaps = [Scheme::Own, Scheme::NoDoorbell].iter().any(|scheme| scheme.name() == of.scheme);
    let search = if overlaps {
        let doorbells = (of.round_trips * batch as f64).max(1.0);
        network_us.max(sub) + network_us.min(sub) / doorbells
    } else {
        network_us + sub
    };
    of.meta_hnsw_us + search
}

impl Model {
    /// Of schemes at one setting.
    pub(super) fn of(prices: Prices, batch: usize, threads: usize, measured: &[&Measured]) -> Model {
        let network = |of: &Measured, clients| prices.network_us(of.round_trips, of.bytes, clients);
        let latency = |of: &Measured, clients| latency_us(of, network(of, clients), batch.min(of.queries));
        let naive = measured.iter().find(|of| of.scheme == Scheme::Naive.name());
        let ratio = |own: f64, naive: f64| if own > 0.0 { naive / own } else { 0.0 };
        let modelled = |of: &&Measured| {
            let (network_us, latency_us) = (network(of, prices.clients), latency(of, prices.clients));
            Modelled {
                scheme: of.scheme,
                network_us,
                sub_hnsw_us: of.sub_hnsw_us,
                meta_hnsw_us: of.meta_hnsw_us,
                latency_us,
                speedup: naive.map_or(0.0, |naive| ratio(latency_us, latency(naive, prices.clients))),
                network_speedup: naive.map_or(0.0, |naive| ratio(network_us, network(naive, prices.clients))),
            }
        };
        let scaled = |of: &&Measured| {
            let (of, link_qps) = (*of, prices.link_qps(of.bytes));
            let one = threads as f64 * 1e6 / latency(of, 1).max(f64::MIN_POSITIVE);
            NODES.map(|compute_nodes| {
                let most = one * f64::from(compute_nodes);
                let limit = if most < link_qps { "compute" } else { "link" };
                Scaled { scheme: of.scheme, compute_nodes, qps: most.min(link_qps), link_qps, limit }
            })
        };
        Model {
            prices,
            threads,
            schemes: measured.iter().map(modelled).collect(),
            nodes: measured.iter().flat_map(scaled).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::measure::tests::measured;
    use super::*;

    const PRICES: Prices = Prices { round_trip_us: 4.0, gbps: 100.0, clients: 24 };

    #[test]
    fn a_link_prices_round_trips_and_bytes() {
        // A round trip takes 4 us, and 12.5 KB one more where nobody shares the link.
        assert_eq!(PRICES.network_us(2.0, 12_500.0, 1), 9.0);
        assert_eq!(PRICES.network_us(2.0, 12_500.0, 24), 32.0);
        assert_eq!(PRICES.link_qps(12_500.0), 1e6);
    }

    #[test]
    fn overlap_hides_all_but_one_doorbell() {
        // Ten doorbells of a batch of 2,000: 20 ms on the link, 10 ms of search, so 10 us and 5 us a query.
        let own = measured(Scheme::Own, [0.005, 0.0, 5.0]);
        assert_eq!(latency_us(&own, 10.0, 2000), 1.0 + 10.0 + 0.5);
        assert_eq!(latency_us(&own, 2.0, 2000), 1.0 + 5.0 + 0.2);
        let apart = measured(Scheme::NoOverlap, [0.005, 0.0, 5.0]);
        assert_eq!(latency_us(&apart, 10.0, 2000), 1.0 + 10.0 + 5.0);
    }

    #[test]
    fn the_link_limits_many_compute_nodes() {
        let naive = measured(Scheme::Naive, [4.0, 4e6, 100.0]);
        let own = measured(Scheme::Own, [0.005, 12_500.0, 9.0]);
        let model = Model::of(PRICES, 2000, 1, &[&naive, &own]);
        assert_eq!(model.schemes[0].speedup, 1.0);
        assert!(model.schemes[1].network_speedup > 300.0, "{:?}", model.schemes[1]);
        let at = |nodes: u32| {
            let is_it = |at: &&Scaled| at.scheme == Scheme::Own.name() && at.compute_nodes == nodes;
            model.nodes.iter().find(is_it).unwrap()
        };
        assert_eq!((at(1).limit, at(8).limit), ("compute", "compute"));
        assert_eq!(at(8).qps, 8.0 * at(1).qps);
        let naive = model.nodes.iter().filter(|at| at.scheme == Scheme::Naive.name());
        let naive: Vec<_> = naive.map(|at| (at.limit, at.qps)).collect();
        assert_eq!((naive[3].0, naive[3].1), ("link", 3125.0));
    }
}
