//! Time and bytes of the build, memory, and retrieval alone (figures 16 and 17, tables 3 and 4).

use stratann_storage::Result;

use super::super::item::{Found, Row, one, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::{built, searched};

const MIB: f64 = (1 << 20) as f64;

/// An index as a user builds it.
fn usual(study: &mut Study, set: &Set) -> Result<(String, serde_json::Value)> {
    study.build(set, "usual.idx", &["--kind", "hybrid-ivf", "--calibration-queries", "50"])
}

/// Bytes of the vectors.
fn vector_bytes(set: &Set) -> Option<f64> {
    std::fs::metadata(&set.base).ok().map(|file| file.len() as f64)
}

/// Figure 16.
pub(super) fn build(study: &mut Study, set: &Set) -> Result<Found> {
    const SMALL: &str = "a small set: measuring the disk and the local indexes is most of the build";
    let done = usual(study, set)?.1;
    let graph = study.index(set, "graph.idx", &["--kind", "disk-graph", "--calibration-queries", "0"])?;
    let stages = study.run(&["info", &graph])?;
    let stage = |name: &str| number(&done, &format!("/stages/{name}"));
    let measuring = stage("plan").zip(stage("profile")).map(|(plan, profile)| plan + profile);
    let all = number(&done, "/seconds");
    let share = over(measuring, all).map(|share| 100.0 * share);
    let rows = vec![
        Row::new("seconds of all", "s", None, all, SMALL),
        Row::new("share of measuring and planning", "%", one(100.0 * 150.0 / 6793.0), share, SMALL),
        Row::new(
            "bytes of a graph over those of lists",
            "times",
            None,
            over(number(&stages, "/index_bytes"), number(&done, "/index_bytes")),
            "see figure 17",
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Figure 17.
pub(super) fn disk(study: &mut Study, set: &Set) -> Result<Found> {
    const CODES: &str = "codes of all vectors are on disk beside them, and lists are filled up to pages";
    let done = usual(study, set)?.1;
    let ours = over(number(&done, "/index_bytes"), vector_bytes(set));
    let rows = vec![
        Row::new("bytes of the index over those of the vectors", "times", one(44.9 / 36.0), ours, CODES),
        Row::new(
            "SPANN over it",
            "times",
            one(230.3 / 44.9),
            None,
            "we keep no replicas, and nothing runs SPANN itself",
        ),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Table 3.
pub(super) fn retrieval(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str =
        "fewer vectors, recall 0.95; no language model runs here, so end-to-end figures are left out";
    let index = usual(study, set)?.0;
    let runs = searched(study, set, &index, &["--recall", "0.95", "--threads", "1", "--in-flight", "1"])?;
    let of = |pointer| runs.first().and_then(|run| number(run, pointer));
    let rows = vec![
        Row::new(
            "mean latency, one query at a time",
            "ms",
            range(5.54, 5.78),
            of("/latency_us/mean").map(|us| us / 1e3),
            WHY,
        ),
        Row::new("QPS, one query at a time", "", range(173.0, 180.5), of("/qps"), WHY),
        Row::new("recall", "", None, of("/recall"), WHY),
    ];
    Ok(Found { rows, charts: Vec::new() })
}

/// Table 4.
pub(super) fn memory(study: &mut Study, set: &Set) -> Result<Found> {
    const SMALL: &str =
        "of few vectors the program, its threads and the queries in flight are most of the memory";
    let index = built(study, set, "auto")?;
    let runs = searched(study, set, &index, &["--nprobe", "32"])?;
    let of = |pointer| runs.first().and_then(|run| number(run, pointer));
    let vectors = vector_bytes(set);
    let share = |bytes| over(bytes, vectors).map(|share| 100.0 * share);
    let navigation = of("/memory/navigation_graph_bytes");
    let rows = vec![
        Row::new(
            "navigation graph over vectors",
            "%",
            one(100.0 * 63.0 / 36e3),
            share(navigation),
            "two sampled vectors of each list, as codes",
        ),
        Row::new(
            "peak memory over vectors",
            "%",
            one(100.0 * 366.0 / 36e3),
            share(of("/peak_rss_bytes")),
            SMALL,
        ),
        Row::new(
            "peak memory",
            "MiB",
            one(366.0 / 1.048_576),
            of("/peak_rss_bytes").map(|bytes| bytes / MIB),
            SMALL,
        ),
        Row::new("the limit", "MiB", None, of("/ram_budget_bytes").map(|bytes| bytes / MIB), SMALL),
    ];
    Ok(Found { rows, charts: Vec::new() })
}
