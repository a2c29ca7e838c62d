//! Network time apart from compute, at three links and by threads. The paper has one link, and mixes the two.

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row};
use super::super::sets::Set;
use super::super::study::{Study, over};
use super::{ALONE, FLEET, Fleet, Link, NAIVE, NO_DOORBELL, OWN, RDMA, index, simulate};

/// Ethernet of an office, of a data centre, and RDMA.
const LINKS: [Link; 3] = [Link { gbps: "1", latency_us: "50" }, Link { gbps: "25", latency_us: "10" }, RDMA];
const THREADS: [&str; 5] = ["1", "4", "8", "16", "32"];
/// Queries of a short batch.
const SHORT: &str = "16";
const WHY: &str = "the paper has one link";

impl Link {
    fn name(self) -> String {
        format!("{} Gb/s, {} us one way", self.gbps, self.latency_us)
    }
}

/// All links, by threads of a compute node.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    let index = index(study, set)?;
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for link in LINKS {
        let mut line = Vec::new();
        for threads in THREADS {
            let runs = simulate(study, set, (&index, "costs.json"), (FLEET, link), &["--threads", threads])?;
            let of = |pointer| runs.of(OWN, pointer);
            let name = |what: &str| format!("{what}, threads {threads}, {}", link.name());
            let compute = of("/sub_hnsw_us").zip(of("/meta_hnsw_us")).map(|(sub, meta)| sub + meta);
            rows.extend([
                Row::new(name("network time of a query"), "us", None, of("/network_us"), WHY),
                Row::new(name("compute time of a query"), "us", None, compute, WHY),
                Row::new(name("QPS of 24 compute nodes"), "", None, of("/qps"), WHY),
                Row::new(
                    name("network time, naive over ours"),
                    "times",
                    None,
                    over(runs.of(NAIVE, "/network_us"), of("/network_us")),
                    WHY,
                ),
            ]);
            if threads == THREADS[0] && link.gbps == LINKS[0].gbps {
                rows.splice(0..0, counters(&runs));
            }
            line.extend(threads.parse().ok().zip(of("/qps")));
        }
        lines.push((link.name(), line));
    }
    let chart = Chart { title: "24 compute nodes".into(), x: "threads of each", y: "QPS", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// Counters, which are those of every link.
fn counters(runs: &super::Runs) -> Vec<Row> {
    const EXACT: &str = "exact; the same for every link";
    let mut rows = Vec::new();
    for scheme in [OWN, NO_DOORBELL, NAIVE] {
        for (what, unit, pointer) in
            [("round trips", "", "/per_query/round_trips"), ("bytes", "bytes", "/per_query/bytes")]
        {
            let ours = runs.of(scheme, pointer);
            rows.push(Row::new(format!("{what} of a query, {scheme}"), unit, None, ours, EXACT));
        }
    }
    rows
}

/// Doorbells with batches of 16 and of 2,000 queries, at all links: with one client, who waits for round trips, and
/// with 24, who fill the link.
pub(super) fn short_batches(study: &mut Study, set: &Set) -> Result<Found> {
    let index = index(study, set)?;
    let fleets: [(&str, Fleet); 2] = [("one client", ALONE), ("24 clients", FLEET)];
    let mut rows = Vec::new();
    for batch in [SHORT, "2000"] {
        for (clients, fleet) in fleets {
            for (at, link) in LINKS.into_iter().enumerate() {
                let more = ["--threads", "18", "--batch", batch];
                let runs = simulate(study, set, (&index, "costs.json"), (fleet, link), &more)?;
                let ratio = |pointer| over(runs.of(NO_DOORBELL, pointer), runs.of(OWN, pointer));
                if fleet == ALONE && at == 0 {
                    let what = format!("round trips, no-doorbell over ours, batches of {batch}");
                    rows.push(Row::new(what, "times", None, ratio("/per_query/round_trips"), WHY));
                }
                let what = "network time, no-doorbell over ours";
                let what = format!("{what}, batches of {batch}, {clients}, {}", link.name());
                rows.push(Row::new(what, "times", None, ratio("/network_us"), WHY));
            }
        }
    }
    Ok(Found { rows, charts: Vec::new() })
}
