//! Where the time of a query goes (tables 1 and 2).

use stratann_storage::Result;

use super::super::item::{Found, Row, one};
use super::super::sets::{Set, made};
use super::super::study::{Study, over};
use super::{FLEET, MODEL, NAIVE, NO_DOORBELL, OWN, RDMA, Runs, WIDE_SET, index, simulate};

/// Threads of a compute instance in the paper.
pub(super) const THREADS: &str = "18";

const NETWORK: &str = "/network_us";
const SUB: &str = "/sub_hnsw_us";
const META: &str = "/meta_hnsw_us";

/// What a table says of a way: network, sub-HNSW and meta-HNSW, microseconds.
struct Printed {
    scheme: &'static str,
    times_us: [f64; 3],
}

const TABLE_1: [Printed; 3] = [
    Printed { scheme: NAIVE, times_us: [90_271.2, 6564.5, 13.52] },
    Printed { scheme: NO_DOORBELL, times_us: [607.5, 287.0, 9.97] },
    Printed { scheme: OWN, times_us: [527.6, 269.2, 9.75] },
];
const TABLE_2: [Printed; 3] = [
    Printed { scheme: NAIVE, times_us: [422_900.0, 35_300.0, 61.1] },
    Printed { scheme: NO_DOORBELL, times_us: [2900.0, 1270.0, 52.6] },
    Printed { scheme: OWN, times_us: [1300.0, 1480.0, 46.9] },
];

/// Table 1.
pub(super) fn usual(study: &mut Study, set: &Set) -> Result<Found> {
    const ROUND_TRIPS: &str =
        "each cluster is one for naive; headers, doorbells of 64 and a batch decide the others";
    let index = index(study, set)?;
    let runs = runs(study, set, (&index, "costs.json"))?;
    let mut rows = table(&runs, &TABLE_1);
    for (scheme, claim) in [(NAIVE, 3.547), (NO_DOORBELL, 0.896), (OWN, 4.75e-3)] {
        let ours = runs.of(scheme, "/per_query/round_trips");
        rows.push(Row::new(format!("round trips, {scheme}"), "", one(claim), ours, ROUND_TRIPS));
    }
    rows.push(Row::new("recall@1", "", one(0.85), runs.of(OWN, "/recall"), "another set"));
    Ok(Found { rows, charts: Vec::new() })
}

/// Table 2, on made vectors whatever the set.
pub(super) fn wide(study: &mut Study, _: &Set) -> Result<Found> {
    let set = made(WIDE_SET, "wide", study)?;
    let index = super::index_of(study, &set, "wide.idx", super::PARTITIONS)?;
    let runs = runs(study, &set, (&index, "wide-costs.json"))?;
    let mut rows = table(&runs, &TABLE_2);
    rows.push(Row::new("recall@1", "", None, runs.of(OWN, "/recall"), "another set"));
    Ok(Found { rows, charts: Vec::new() })
}

fn runs(study: &mut Study, set: &Set, index: (&str, &str)) -> Result<Runs> {
    simulate(study, set, index, (FLEET, RDMA), &["-k", "1", "--threads", THREADS])
}

/// Times of each way, and how naive and no-doorbell compare.
fn table(runs: &Runs, printed: &[Printed]) -> Vec<Row> {
    const CPU: &str =
        "smaller clusters, of which small ones are scanned; 18 threads of a compute node together";
    let mut rows = Vec::new();
    for Printed { scheme, times_us } in printed {
        let parts = [("network", NETWORK, MODEL), ("sub-HNSW", SUB, CPU), ("meta-HNSW", META, CPU)];
        for ((part, pointer, why), claim) in parts.into_iter().zip(times_us) {
            let ours = runs.of(scheme, pointer);
            rows.push(Row::new(format!("{part} time of a query, {scheme}"), "us", one(*claim), ours, why));
        }
    }
    let network = |scheme: &str| {
        let own = printed.iter().find(|printed| printed.scheme == scheme);
        own.map_or(f64::NAN, |own| own.times_us[0])
    };
    for scheme in [NAIVE, NO_DOORBELL] {
        let claim = one(network(scheme) / network(OWN));
        let ours = over(runs.of(scheme, NETWORK), runs.of(OWN, NETWORK));
        let what = format!("network time, {scheme} over {OWN}");
        rows.push(Row::new(what, "times", claim, ours, "the same bytes in more round trips, and more bytes"));
    }
    rows
}
