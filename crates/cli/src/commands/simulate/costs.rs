//! Costs of work in a simulation: given, or measured ([`super::calibrate`]).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stratann_engine::{Error, Result, input};
use stratann_sim::Costs;

use crate::options;

/// Options of costs and capacities of every server.
#[derive(clap::Args)]
#[command(next_help_heading = "Times (measured on this machine, unless given)")]
pub(super) struct CostArgs {
    /// Read costs from FILE: a "costs" object, or a whole document of an earlier `simulate --json`
    #[arg(long, value_name = "FILE", conflicts_with = "calibrate")]
    pub(super) costs: Option<PathBuf>,
    /// Compare the model with this machine: also search for real, and report the error of one simulated server
    #[arg(long)]
    pub(super) calibrate: bool,
    /// Count only: no measurements and no times
    #[arg(long, conflicts_with_all = ["costs", "calibrate", "rate"])]
    pub(super) no_times: bool,
    /// Threads of each server [default: the cores of this machine]
    #[arg(long, value_parser = options::threads)]
    pub(super) threads: Option<usize>,
    /// Reads per second of each server's disk [default: measured on this disk]
    #[arg(long, value_name = "N")]
    pub(super) disk_iops: Option<f64>,
    /// Latency of a single read, microseconds [default: measured on this disk]
    #[arg(long, value_name = "US")]
    pub(super) disk_latency_us: Option<f64>,
    /// Latency between servers, one way, microseconds [default: 20]
    #[arg(long, value_name = "US")]
    pub(super) network_latency_us: Option<f64>,
    /// Bandwidth of each server's link, Gbit/s [default: 25]
    #[arg(long, value_name = "GBPS")]
    pub(super) network_gbps: Option<f64>,
}

/// Default network: Ethernet within a data centre.
const NETWORK_LATENCY_US: f64 = 20.0;
const NETWORK_GBPS: f64 = 25.0;

/// [`Costs`] as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prices {
    pub(super) threads: usize,
    pub(super) prepare_ns: u64,
    pub(super) step_ns: u64,
    pub(super) read_ns: u64,
    pub(super) code_comparison_ps: u64,
    pub(super) full_comparison_ps: u64,
    pub(super) message_ns: u64,
    pub(super) disk_iops: f64,
    pub(super) disk_latency_us: f64,
    pub(super) network_latency_us: f64,
    pub(super) network_gbps: f64,
}

impl Prices {
    /// Reads costs from a file.
    pub(super) fn read(path: &Path) -> Result<Prices> {
        let text = input::read_text(path)?;
        let wrong = |e: serde_json::Error| {
            Error::bad_input(format!(
                "{}: {e}; give the \"costs\" that `stratann simulate --json` prints",
                path.display()
            ))
        };
        let mut value: serde_json::Value = serde_json::from_str(&text).map_err(wrong)?;
        if let Some(costs) = value.get_mut("costs") {
            value = costs.take();
        }
        serde_json::from_value(value).map_err(wrong)
    }

    /// Replaces measured or read costs by given ones.
    pub(super) fn with(self, args: &CostArgs) -> Result<Prices> {
        let prices = Prices {
            threads: args.threads.unwrap_or(self.threads),
            disk_iops: args.disk_iops.unwrap_or(self.disk_iops),
            disk_latency_us: args.disk_latency_us.unwrap_or(self.disk_latency_us),
            network_latency_us: args.network_latency_us.unwrap_or(self.network_latency_us),
            network_gbps: args.network_gbps.unwrap_or(self.network_gbps),
            ..self
        };
        prices.check()?;
        Ok(prices)
    }

    fn check(&self) -> Result<()> {
        let wrong = |name: &str, value: f64, how: &str| {
            Err(Error::bad_input(format!("{name} is {value}; use a number {how}")))
        };
        if !(1..=1024).contains(&self.threads) {
            return wrong("threads", self.threads as f64, "from 1 to 1024");
        }
        for (name, value) in [("disk IOPS", self.disk_iops), ("network Gbit/s", self.network_gbps)] {
            if !(1e-3..=1e9).contains(&value) {
                return wrong(name, value, "from 0.001 to 1e9");
            }
        }
        let latencies =
            [("disk latency", self.disk_latency_us), ("network latency", self.network_latency_us)];
        for (name, value) in latencies {
            if !(0.0..=1e9).contains(&value) {
                return wrong(name, value, "of microseconds, from 0 to 1e9");
            }
        }
        let prices = [self.prepare_ns, self.step_ns, self.read_ns, self.message_ns];
        let dear = prices.into_iter().chain([self.code_comparison_ps, self.full_comparison_ps]).max();
        if dear > Some(1_000_000_000_000) {
            return wrong("a price", dear.unwrap_or(0) as f64, "up to 1e12");
        }
        Ok(())
    }

    /// Converts to whole numbers.
    pub(super) fn costs(&self) -> Costs {
        let ns = |us: f64| (us * 1000.0).round() as u64;
        Costs {
            threads: self.threads,
            prepare_ns: self.prepare_ns,
            step_ns: self.step_ns,
            read_ns: self.read_ns,
            code_comparison_ps: self.code_comparison_ps,
            full_comparison_ps: self.full_comparison_ps,
            message_ns: self.message_ns,
            disk_latency_ns: ns(self.disk_latency_us),
            disk_iops: (self.disk_iops.round() as u64).max(1),
            network_latency_ns: ns(self.network_latency_us),
            network_bits: ((self.network_gbps * 1e9).round() as u64).max(1),
        }
    }
}

/// Default of the network.
pub(super) fn network(args: &CostArgs) -> (f64, f64) {
    (args.network_latency_us.unwrap_or(NETWORK_LATENCY_US), args.network_gbps.unwrap_or(NETWORK_GBPS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices {
        threads: 2,
        prepare_ns: 1,
        step_ns: 2,
        read_ns: 3,
        code_comparison_ps: 4,
        full_comparison_ps: 5,
        message_ns: 6,
        disk_iops: 50_000.4,
        disk_latency_us: 80.5,
        network_latency_us: 20.0,
        network_gbps: 0.5,
    };

    #[test]
    fn prices_become_whole_numbers_and_senseless_ones_are_refused() {
        let costs = PRICES.costs();
        assert_eq!(
            (costs.disk_iops, costs.disk_latency_ns, costs.network_bits),
            (50_000, 80_500, 500_000_000)
        );
        assert!(PRICES.check().is_ok());
        for prices in [
            Prices { threads: 0, ..PRICES },
            Prices { disk_iops: 0.0, ..PRICES },
            Prices { disk_iops: f64::NAN, ..PRICES },
            Prices { disk_latency_us: -1.0, ..PRICES },
            Prices { network_gbps: f64::INFINITY, ..PRICES },
            Prices { message_ns: u64::MAX, ..PRICES },
        ] {
            assert!(prices.check().is_err(), "{prices:?}");
        }
    }
}
