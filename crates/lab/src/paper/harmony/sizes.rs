//! Speed-up by components and vectors, and by servers (figure 11).

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one, range};
use super::super::sets::{MadeSet, Set, made};
use super::super::study::{Study, over};
use super::{Ablation, FOUR, PLANNED, RECALL, SLICES, WHOLE, ablation};

const SERVERS: [u64; 3] = [4, 8, 16];
/// Least and most components, and vectors; both by twice as many, twice.
const DIMS: [u32; 2] = [64, 256];
const ROWS: [u32; 2] = [5000, 20_000];

/// Growth for each doubling of two that are four times apart.
fn each_doubling(few: Option<f64>, many: Option<f64>) -> Option<f64> {
    over(many, few).map(|growth| 100.0 * (growth.sqrt() - 1.0))
}

/// Figure 11.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    const SMALL: &str = "fewer vectors and recall 0.95: messages are a larger part of less work";
    let mut speed_ups = Vec::new();
    for (dim, rows) in [(DIMS[0], ROWS[0]), (DIMS[1], ROWS[0]), (DIMS[0], ROWS[1]), (DIMS[1], ROWS[1])] {
        speed_ups.push(speed_up(study, dim, rows)?);
    }
    let [least, wide, long, most] = [speed_ups[0], speed_ups[1], speed_ups[2], speed_ups[3]];
    let mut rows = vec![
        Row::new(
            "growth for twice the components, 20,000 vectors",
            "%",
            one(26.8),
            each_doubling(long, most),
            SMALL,
        ),
        Row::new(
            "growth for twice the vectors, 256 components",
            "%",
            one(25.9),
            each_doubling(wide, most),
            SMALL,
        ),
        Row::new("speed-up of 20,000 vectors of 256 components", "times", range(4.0, f64::MAX), most, SMALL),
        Row::new("of 5,000 vectors of 64 components", "times", None, least, "the figure has no numbers"),
    ];
    let found = ablation(study, set)?;
    let of = |name: &str, servers: u64| found.even(name, servers, RECALL, "/speed_up_unpruned");
    rows.extend(SERVERS.iter().flat_map(|&servers| by_servers(&of, servers)));
    rows.push(Row::new(
        "slices, 16 servers over 8",
        "times",
        range(0.0, 1.0),
        over(of(SLICES, 16), of(SLICES, 8)),
        "messages grow with slices; - where there are fewer groups of components than servers",
    ));
    let line = |name: &str| {
        let points = SERVERS.iter().filter_map(|&servers| Some((servers as f64, of(name, servers)?)));
        (name.to_string(), points.collect())
    };
    let lines = [WHOLE, SLICES, PLANNED].map(line).into();
    let chart =
        Chart { title: "speed-up over one that does not prune".into(), x: "servers", y: "times", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// Speed-up over its number of servers.
fn by_servers(of: &dyn Fn(&str, u64) -> Option<f64>, servers: u64) -> [Row; 2] {
    const MESSAGES: &str = "pruning gains more than servers, messages take some of it";
    let each = |name: &str| of(name, servers).map(|speed_up| speed_up / servers as f64);
    let row = |name: &str, claim| {
        Row::new(
            format!("speed-up over the number of servers, {name}, {servers} servers"),
            "times",
            claim,
            each(name),
            MESSAGES,
        )
    };
    [row(PLANNED, range(1.0, f64::MAX)), row(WHOLE, one(1.0))]
}

/// Speed-up of four servers over one that does not prune, on a set of this size.
fn speed_up(study: &mut Study, dim: u32, rows: u32) -> Result<Option<f64>> {
    let like = MadeSet { shape: "gaussian", dim, clusters: 100, rows, queries: 500, seed: 1 };
    let set = made(like, &format!("vectors-{dim}-{rows}"), study)?;
    let folder = study.path(&format!("grid-{dim}-{rows}"));
    let folder = super::text(&folder)?;
    let args = ["ablation", &set.base, &set.queries, "--groundtruth", &set.groundtruth, "-o", &folder];
    let what =
        ["--kind", "grid-ivf", "--sample", "300", "--recall", "0.95", "--servers", "4", "--skew", "0.5"];
    let found = study.run(&[&args[..], &what].concat()).map(Ablation)?;
    Ok(found.even(PLANNED, FOUR, 0.95, "/speed_up_unpruned"))
}
