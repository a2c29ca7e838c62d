//! Costs of work in a simulation: given, or measured ([`crate::calibrate`]).

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use stratann_engine::kinds::division::GridPartition;
use stratann_sim::Costs;
use stratann_storage::{Error, Result, input};

/// Costs and capacities that are given, and replace measured ones.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub threads: Option<usize>,
    pub disk_iops: Option<f64>,
    pub disk_latency_us: Option<f64>,
    pub disk_mb_per_s: Option<f64>,
    /// Printed output of `doctor --link --json`.
    pub link: Option<PathBuf>,
    pub network_latency_us: Option<f64>,
    pub network_gbps: Option<f64>,
    pub request_us: Option<f64>,
    pub servers_per_host: Option<usize>,
    pub cores_per_host: Option<usize>,
}

/// Default network: Ethernet within a data centre.
pub const NETWORK_LATENCY_US: f64 = 20.0;
pub const NETWORK_GBPS: f64 = 25.0;

/// Origin of a figure of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Measured by `doctor --link`.
    Measured,
    /// Given by an option.
    Given,
    /// Nobody said anything.
    #[default]
    Assumed,
}

impl Origin {
    pub fn name(self) -> &'static str {
        match self {
            Origin::Measured => "measured",
            Origin::Given => "given",
            Origin::Assumed => "assumed",
        }
    }
}

/// [`Costs`] as JSON. Fields that earlier versions did not write have defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    pub threads: usize,
    pub prepare_ns: u64,
    pub step_ns: u64,
    pub read_ns: u64,
    /// `None` for that of other comparisons.
    #[serde(default)]
    pub route_comparison_ps: Option<u64>,
    pub code_comparison_ps: u64,
    pub full_comparison_ps: u64,
    /// 0 where no list is scanned component by component.
    #[serde(default)]
    pub component_ps: u64,
    /// 0 where threads rank codes.
    #[serde(default)]
    pub scorer_code_ps: u64,
    #[serde(default)]
    pub scorer_job_us: f64,
    pub message_ns: u64,
    #[serde(default)]
    pub message_byte_ps: u64,
    #[serde(default)]
    pub wake_ns: u64,
    #[serde(default)]
    pub request_us: f64,
    pub disk_iops: f64,
    pub disk_latency_us: f64,
    /// `None` where bytes take no time.
    #[serde(default)]
    pub disk_mb_per_s: Option<f64>,
    pub network_latency_us: f64,
    pub network_gbps: f64,
    #[serde(default)]
    pub network_latency_from: Origin,
    #[serde(default)]
    pub network_gbps_from: Origin,
    /// `None` for one.
    #[serde(default)]
    pub servers_per_host: Option<usize>,
    /// `None` for as many as its servers have threads.
    #[serde(default)]
    pub cores_per_host: Option<usize>,
}

/// The part of the document of `doctor --link`, or of its object `link`, that a simulation takes.
#[derive(Deserialize)]
struct MeasuredLink {
    latency_us: f64,
    gbps: f64,
}

impl Given {
    /// Replaces latency and bandwidth between machines, and where they are from, by measured or given ones.
    pub(crate) fn replace_link(
        &self,
        (latency_us, latency_from): (&mut f64, &mut Origin),
        (gbps, gbps_from): (&mut f64, &mut Origin),
    ) -> Result<()> {
        if let Some(path) = &self.link {
            let what = "the document of `stratann doctor --link HOST:PORT --json`";
            let link: MeasuredLink = read_part(path, "link", what)?;
            (*latency_us, *gbps) = (link.latency_us, link.gbps);
            (*latency_from, *gbps_from) = (Origin::Measured, Origin::Measured);
        }
        if let Some(us) = self.network_latency_us {
            (*latency_us, *latency_from) = (us, Origin::Given);
        }
        if let Some(given) = self.network_gbps {
            (*gbps, *gbps_from) = (given, Origin::Given);
        }
        Ok(())
    }
}

impl Prices {
    /// Reads costs from a file.
    pub fn read(path: &Path) -> Result<Prices> {
        read_part(path, "costs", "the \"costs\" that `stratann simulate --json` prints")
    }

    /// The part that the planner of a `grid-ivf` takes. Both servers handle a message.
    pub fn of_plan(&self) -> GridPartition {
        let each = |ps: u64| ps as f64 / 1000.0;
        GridPartition {
            component_ns: (self.component_ps > 0).then(|| each(self.component_ps)),
            prepare_ns: Some(self.prepare_ns as f64),
            message_ns: Some(2.0 * self.message_ns as f64),
            byte_ns: Some(2.0 * each(self.message_byte_ps)),
            step_ns: Some(self.step_ns as f64),
            ..GridPartition::default()
        }
    }

    /// Replaces measured or read costs by given ones.
    pub fn with(self, given: &Given) -> Result<Prices> {
        let mut prices = Prices {
            threads: given.threads.unwrap_or(self.threads),
            request_us: given.request_us.unwrap_or(self.request_us),
            disk_iops: given.disk_iops.unwrap_or(self.disk_iops),
            disk_latency_us: given.disk_latency_us.unwrap_or(self.disk_latency_us),
            disk_mb_per_s: given.disk_mb_per_s.or(self.disk_mb_per_s),
            servers_per_host: given.servers_per_host.or(self.servers_per_host),
            cores_per_host: given.cores_per_host.or(self.cores_per_host),
            ..self
        };
        given.replace_link(
            (&mut prices.network_latency_us, &mut prices.network_latency_from),
            (&mut prices.network_gbps, &mut prices.network_gbps_from),
        )?;
        prices.check()?;
        Ok(prices)
    }

    pub fn check(&self) -> Result<()> {
        let wrong = |name: &str, value: f64, how: &str| {
            Err(Error::bad_input(format!("{name} is {value}; use a number {how}")))
        };
        if !(1..=1024).contains(&self.threads) {
            return wrong("threads", self.threads as f64, "from 1 to 1024");
        }
        for (name, count) in
            [("servers per host", self.servers_per_host), ("cores per host", self.cores_per_host)]
        {
            if let Some(count) = count.filter(|count| !(1..=1024).contains(count)) {
                return wrong(name, count as f64, "from 1 to 1024");
            }
        }
        let rates = [
            ("disk IOPS", self.disk_iops),
            ("disk MB/s", self.disk_mb_per_s.unwrap_or(1.0)),
            ("network Gbit/s", self.network_gbps),
        ];
        for (name, value) in rates {
            if !(1e-3..=1e9).contains(&value) {
                return wrong(name, value, "from 0.001 to 1e9");
            }
        }
        let latencies = [
            ("disk latency", self.disk_latency_us),
            ("network latency", self.network_latency_us),
            ("request", self.request_us),
            ("scorer job", self.scorer_job_us),
        ];
        for (name, value) in latencies {
            if !(0.0..=1e9).contains(&value) {
                return wrong(name, value, "of microseconds, from 0 to 1e9");
            }
        }
        let prices = [self.prepare_ns, self.step_ns, self.read_ns, self.message_ns, self.wake_ns];
        let comparisons = [
            self.code_comparison_ps,
            self.full_comparison_ps,
            self.component_ps,
            self.message_byte_ps,
            self.scorer_code_ps,
        ];
        let dear = prices.into_iter().chain(comparisons).chain(self.route_comparison_ps).max();
        if dear > Some(1_000_000_000_000) {
            return wrong("a price", dear.unwrap_or(0) as f64, "up to 1e12");
        }
        Ok(())
    }

    /// Converts to whole numbers.
    pub fn costs(&self) -> Costs {
        let ns = |us: f64| (us * 1000.0).round() as u64;
        Costs {
            threads: self.threads,
            prepare_ns: self.prepare_ns,
            step_ns: self.step_ns,
            read_ns: self.read_ns,
            route_comparison_ps: self.route_comparison_ps.unwrap_or(self.code_comparison_ps),
            code_comparison_ps: self.code_comparison_ps,
            full_comparison_ps: self.full_comparison_ps,
            component_ps: self.component_ps,
            scorer_job_ns: ns(self.scorer_job_us),
            scorer_code_ps: self.scorer_code_ps,
            message_ns: self.message_ns,
            message_byte_ps: self.message_byte_ps,
            wake_ns: self.wake_ns,
            request_ns: ns(self.request_us),
            servers_per_host: self.servers_per_host.unwrap_or(1),
            cores_per_host: self.cores_per_host.unwrap_or(0),
            disk_latency_ns: ns(self.disk_latency_us),
            disk_iops: (self.disk_iops.round() as u64).max(1),
            disk_bytes_per_s: self.disk_mb_per_s.map_or(0, |mb| ((mb * 1e6).round() as u64).max(1)),
            network_latency_ns: ns(self.network_latency_us),
            network_bits: ((self.network_gbps * 1e9).round() as u64).max(1),
        }
    }
}

/// Reads a document, or its object `part`, from a file. `what` names what is expected.
pub(crate) fn read_part<T: DeserializeOwned>(path: &Path, part: &str, what: &str) -> Result<T> {
    let text = input::read_text(path)?;
    let wrong = |e: serde_json::Error| Error::bad_input(format!("{}: {e}; give {what}", path.display()));
    let mut value: serde_json::Value = serde_json::from_str(&text).map_err(wrong)?;
    if let Some(inner) = value.get_mut(part) {
        value = inner.take();
    }
    serde_json::from_value(value).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices {
        threads: 2,
        prepare_ns: 1,
        step_ns: 2,
        read_ns: 3,
        route_comparison_ps: None,
        code_comparison_ps: 4,
        full_comparison_ps: 5,
        component_ps: 9,
        scorer_code_ps: 0,
        scorer_job_us: 0.0,
        message_ns: 6,
        message_byte_ps: 7,
        wake_ns: 8,
        request_us: 1.5,
        disk_iops: 50_000.4,
        disk_latency_us: 80.5,
        disk_mb_per_s: Some(900.0),
        network_latency_us: 20.0,
        network_gbps: 0.5,
        network_latency_from: Origin::Assumed,
        network_gbps_from: Origin::Given,
        servers_per_host: None,
        cores_per_host: None,
    };

    #[test]
    fn prices_become_whole_numbers_and_senseless_ones_are_refused() {
        let costs = PRICES.costs();
        assert_eq!(
            (costs.disk_iops, costs.disk_latency_ns, costs.network_bits),
            (50_000, 80_500, 500_000_000)
        );
        assert_eq!(
            (costs.disk_bytes_per_s, costs.request_ns, costs.route_comparison_ps),
            (900_000_000, 1500, 4)
        );
        assert_eq!((costs.servers_per_host, costs.cores_per_host), (1, 0));
        assert!(PRICES.check().is_ok());
        for prices in [
            Prices { threads: 0, ..PRICES },
            Prices { disk_iops: 0.0, ..PRICES },
            Prices { disk_iops: f64::NAN, ..PRICES },
            Prices { disk_mb_per_s: Some(0.0), ..PRICES },
            Prices { request_us: -1.0, ..PRICES },
            Prices { servers_per_host: Some(0), ..PRICES },
            Prices { cores_per_host: Some(2000), ..PRICES },
            Prices { route_comparison_ps: Some(u64::MAX), ..PRICES },
            Prices { disk_latency_us: -1.0, ..PRICES },
            Prices { network_gbps: f64::INFINITY, ..PRICES },
            Prices { message_ns: u64::MAX, ..PRICES },
        ] {
            assert!(prices.check().is_err(), "{prices:?}");
        }
    }
}
