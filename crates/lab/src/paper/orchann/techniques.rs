//! What codes, bounds, the early stop and learning gain (figures 6, 7 and 18).

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, one};
use super::super::sets::Set;
use super::super::study::{Study, number, over};
use super::{RECALLS, Sweep, ablation, built, searched};

const READS: &str = "/reads";

/// Figure 6.
pub(super) fn unclear(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str = "bits of RaBitQ with bounds of their error, where the paper has product quantization; \
                       vectors of visited lists that bounds leave to be read";
    let index = built(study, set, "auto")?;
    let strict = ["--nprobe", "16", "--no-learning", "--no-early-stop", "--bounds", "code"];
    let runs = searched(study, set, &index, &strict)?;
    let of = |pointer| runs.first().and_then(|run| number(run, pointer));
    let compared = of("/per_query/full_comparisons");
    let all = compared.zip(of("/per_query/pruned")).map(|(read, pruned)| read + pruned);
    let share = over(compared, all).map(|share| 100.0 * share);
    Ok(Found {
        rows: vec![Row::new("vectors that codes leave", "%", one(49.8), share, WHY)],
        charts: Vec::new(),
    })
}

/// Figure 7.
pub(super) fn rerank(study: &mut Study, set: &Set) -> Result<Found> {
    const WHY: &str =
        "recall 0.7 is reached with one or two lists here; growth is shown where more are needed";
    let index = built(study, set, "auto")?;
    let probes = ["--nprobe", "1,2,3,4,6,8,12,16,32,64,128,256", "--no-early-stop", "--no-learning"];
    let bounds = searched(study, set, &index, &probes)?;
    let none = searched(study, set, &index, &[&probes[..], &["--no-bounds"]].concat())?;
    let at = |runs, recall| Sweep::of(Some(runs), "/per_query/pages_read").at(recall);
    let growth = |runs, low, high| over(at(runs, high), at(runs, low));
    let rows = vec![
        Row::new(
            "pages, recall 0.75 over 0.7, without bounds",
            "times",
            one(7.0),
            growth(&none, 0.7, 0.75),
            WHY,
        ),
        Row::new("pages, recall 0.98 over 0.9, without bounds", "times", None, growth(&none, 0.9, 0.98), WHY),
        Row::new("pages, recall 0.98 over 0.9, with bounds", "times", None, growth(&bounds, 0.9, 0.98), WHY),
        Row::new(
            "pages without bounds over pages with them, recall 0.95",
            "times",
            None,
            over(at(&none, 0.95), at(&bounds, 0.95)),
            "the paper has no such number",
        ),
    ];
    let line = |name: &str, runs| (name.to_string(), Sweep::of(Some(runs), "/per_query/pages_read").0);
    let lines = vec![line("bounds", &bounds), line("no bounds", &none)];
    Ok(Found {
        rows,
        charts: vec![Chart { title: "re-ranking".into(), x: "recall", y: "pages of a query", lines }],
    })
}

/// Figure 18.
pub(super) fn breakdown(study: &mut Study, set: &Set) -> Result<Found> {
    const MIXED: &str = "codes apart from vectors prune in every kind of list: see mixing";
    const PRUNING: &str =
        "codes prune before the bounds of the paper would, and recall 0.98 where it has 0.99";
    const LEARNED: &str = "the early stop leaves little to learn, and queries of this set crowd less";
    let found = ablation(study, set)?;
    let most = RECALLS[2];
    let qps = |part, name| found.sweep(part, name, "/qps");
    let reads = |name| found.sweep("pruning", name, READS).at(most);
    let pages = |name| found.sweep("pruning", name, "/kib_read").at(most);
    let gain = |name| over(qps("pruning", "all").at(most), qps("pruning", name).at(most));
    let uniform = |recall| {
        let at = |name| qps("local_indexes", name).at(recall);
        over(at("auto"), at("uniform-graph"))
    };
    let epochs = found.0["learning"].as_array().cloned().unwrap_or_default();
    let of = |at: usize, name: &str| epochs.get(at).and_then(|epoch| number(epoch, &format!("/{name}")));
    let last = epochs.len().saturating_sub(1);
    let mut rows = vec![
        Row::new(
            "QPS of the plan over graphs in all lists, recall 0.9",
            "times",
            one(2.0),
            uniform(0.9),
            MIXED,
        ),
        Row::new("the same, recall 0.98", "times", None, uniform(most), MIXED),
        Row::new("precision of lists, first epoch", "", one(0.16), of(0, "precision"), LEARNED),
        Row::new("precision, last epoch", "", one(0.2), of(last, "precision"), LEARNED),
        Row::new("F1, first epoch", "", one(0.24), of(0, "f1"), LEARNED),
        Row::new("F1, last epoch", "", one(0.3), of(last, "f1"), LEARNED),
        Row::new("QPS of all over no list pruning", "times", one(3.8), gain("no list pruning"), PRUNING),
        Row::new("QPS of all over no bounds", "times", one(9.2), gain("no bounds"), PRUNING),
    ];
    for name in ["no list pruning", "no early stop", "bounds by centroids", "no bounds"] {
        let what = format!("reads of {name} over all");
        rows.push(Row::new(what, "times", None, over(reads(name), reads("all")), PRUNING));
        let what = format!("bytes read of {name} over all");
        rows.push(Row::new(what, "times", None, over(pages(name), pages("all")), PRUNING));
    }
    let names = ["all", "no list pruning", "bounds by centroids", "no bounds"];
    let lines = names.map(|name| (name.to_string(), qps("pruning", name).0)).into();
    Ok(Found { rows, charts: vec![Chart { title: "pruning".into(), x: "recall", y: "QPS", lines }] })
}
