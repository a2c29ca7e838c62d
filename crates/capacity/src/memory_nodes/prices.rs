//! Costs of compute nodes and of the links to memory nodes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use stratann_core::format::checksum;
use stratann_sim::LoadCosts;
use stratann_storage::{Error, Result};

use crate::costs::{Given, Origin, read_part};

/// One way, where nothing is known: half a round trip of an RDMA network.
const LATENCY_US: f64 = 2.0;
/// The links of d-HNSW §4.
const GBPS: f64 = 100.0;
/// Time that a network card spends on a range.
const RANGE_NS: u64 = 50;

/// Bytes whose taking in is timed, and how often; the fastest counts.
const TAKEN_BYTES: usize = 4 << 20;
const ROUNDS: usize = 5;

/// Counts of a recorded search, and the processor time that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecordedWork {
    pub meta_comparisons: u64,
    pub comparisons: u64,
    pub loaded_bytes: u64,
    /// Until the clusters of the queries were chosen.
    pub meta_ns: u64,
    /// Everything.
    pub cpu_ns: u64,
}

/// [`LoadCosts`] as JSON, with the threads of a compute node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPrices {
    pub threads: usize,
    meta_comparison_ps: u64,
    comparison_ps: u64,
    load_byte_ps: u64,
    range_ns: u64,
    pub network_latency_us: f64,
    pub network_gbps: f64,
    #[serde(default)]
    network_latency_from: Origin,
    #[serde(default)]
    network_gbps_from: Origin,
}

impl LoadPrices {
    /// Measures them on this machine, from a recorded search. All other work of the search is spread over its
    /// comparisons.
    pub fn of(work: RecordedWork, threads: usize) -> LoadPrices {
        LoadPrices::from_work(work, taken_byte_ps(), threads)
    }

    fn from_work(work: RecordedWork, load_byte_ps: u64, threads: usize) -> LoadPrices {
        let each =
            |ns: u64, count: u64| (u128::from(ns) * 1000).checked_div(u128::from(count)).unwrap_or(0) as u64;
        let loads_ns = work.loaded_bytes.saturating_mul(load_byte_ps) / 1000;
        LoadPrices {
            threads,
            meta_comparison_ps: each(work.meta_ns, work.meta_comparisons),
            comparison_ps: each(
                work.cpu_ns.saturating_sub(work.meta_ns).saturating_sub(loads_ns),
                work.comparisons,
            ),
            load_byte_ps,
            range_ns: RANGE_NS,
            network_latency_us: LATENCY_US,
            network_gbps: GBPS,
            network_latency_from: Origin::Assumed,
            network_gbps_from: Origin::Assumed,
        }
    }

    /// Reads costs from a file.
    pub fn read(path: &Path) -> Result<LoadPrices> {
        read_part(path, "costs", "the \"costs\" that `stratann simulate --json` prints for a remote-hnsw")
    }

    /// Replaces measured or read costs by given ones.
    pub fn with(self, given: &Given, range_ns: Option<u64>) -> Result<LoadPrices> {
        let mut prices = LoadPrices {
            threads: given.threads.unwrap_or(self.threads),
            range_ns: range_ns.unwrap_or(self.range_ns),
            ..self
        };
        given.replace_link(
            (&mut prices.network_latency_us, &mut prices.network_latency_from),
            (&mut prices.network_gbps, &mut prices.network_gbps_from),
        )?;
        prices.check()?;
        Ok(prices)
    }

    /// With a link of a round trip and a bandwidth that are given.
    pub fn with_link(self, round_trip_us: f64, gbps: f64) -> Result<LoadPrices> {
        let prices = LoadPrices {
            network_latency_us: round_trip_us / 2.0,
            network_gbps: gbps,
            network_latency_from: Origin::Given,
            network_gbps_from: Origin::Given,
            ..self
        };
        prices.check()?;
        Ok(prices)
    }

    fn check(&self) -> Result<()> {
        let wrong = |name: &str, value: String, how: &str| {
            Err(Error::bad_input(format!("{name} is {value}; use a number {how}")))
        };
        if !(1..=1024).contains(&self.threads) {
            return wrong("threads", self.threads.to_string(), "from 1 to 1024");
        }
        if !(0.0..=1e9).contains(&self.network_latency_us) {
            return wrong(
                "network latency",
                self.network_latency_us.to_string(),
                "of microseconds, from 0 to 1e9",
            );
        }
        if !(1e-3..=1e6).contains(&self.network_gbps) {
            return wrong("network Gbit/s", self.network_gbps.to_string(), "from 0.001 to 1e6");
        }
        let all = [self.meta_comparison_ps, self.comparison_ps, self.load_byte_ps, self.range_ns];
        match all.into_iter().max() {
            Some(dear) if dear > 1_000_000_000 => wrong("a price", dear.to_string(), "up to 1e9"),
            _ => Ok(()),
        }
    }

    /// Converts to whole numbers.
    pub(super) fn costs(&self) -> LoadCosts {
        LoadCosts {
            meta_comparison_ps: self.meta_comparison_ps,
            comparison_ps: self.comparison_ps,
            load_byte_ps: self.load_byte_ps,
            range_ns: self.range_ns,
            latency_ns: (self.network_latency_us * 1000.0).round() as u64,
            bits: ((self.network_gbps * 1e9).round() as u64).max(1),
        }
    }

    /// The prices in a sentence.
    pub fn text(&self) -> String {
        let ns = |ps: u64| ps as f64 / 1000.0;
        format!(
            "times are simulated: {} threads per compute node; comparison {:.1} ns (meta-HNSW), {:.1} ns (sub-HNSW), \
             loaded byte {:.2} ns, range {} ns; network {:.1} us ({}), {} Gbit/s ({})\n",
            self.threads,
            ns(self.meta_comparison_ps),
            ns(self.comparison_ps),
            ns(self.load_byte_ps),
            self.range_ns,
            self.network_latency_us,
            self.network_latency_from.name(),
            self.network_gbps,
            self.network_gbps_from.name(),
        )
    }
}

/// Picoseconds in which a loaded byte is checked and copied to the cache.
fn taken_byte_ps() -> u64 {
    let loaded = vec![1u8; TAKEN_BYTES];
    let once = || {
        let started = Instant::now();
        let sum = checksum(&loaded);
        let copy: Arc<[u8]> = Arc::from(&loaded[..]);
        std::hint::black_box((sum, copy));
        started.elapsed().as_nanos() as u64
    };
    (0..ROUNDS).map(|_| once()).min().unwrap_or(0) * 1000 / TAKEN_BYTES as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: RecordedWork = RecordedWork {
        meta_comparisons: 1000,
        comparisons: 5000,
        loaded_bytes: 2000,
        meta_ns: 20_000,
        cpu_ns: 121_000,
    };

    #[test]
    fn work_has_its_prices_and_senseless_ones_are_refused() {
        let prices = LoadPrices::from_work(WORK, 500, 2);
        let costs = prices.costs();
        assert_eq!(
            (costs.meta_comparison_ps, costs.comparison_ps, costs.load_byte_ps),
            (20_000, 20_000, 500)
        );
        assert_eq!((costs.latency_ns, costs.bits), (2000, 100_000_000_000));
        let link = prices.clone().with_link(10.0, 0.5).unwrap();
        assert_eq!((link.costs().latency_ns, link.costs().bits), (5000, 500_000_000));
        assert_eq!(LoadPrices::from_work(RecordedWork::default(), 500, 2).costs().comparison_ps, 0);
        for (round_trip_us, gbps) in [(-1.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
            assert!(prices.clone().with_link(round_trip_us, gbps).is_err());
        }
        let args = Given { threads: Some(0), ..Given::default() };
        assert!(prices.clone().with(&args, None).is_err());
        assert!(prices.with(&Given::default(), Some(u64::MAX)).is_err());
    }
}
