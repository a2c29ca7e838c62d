//! Whether local indexes of several kinds gain anything: reads and bytes at equal recall, by kind (figure 2).

use stratann_storage::Result;

use super::super::item::{Found, Row, one, range};
use super::super::sets::{MadeSet, Set, made};
use super::super::study::{Study, number, over};
use super::{Ablation, RECALLS, Sweep, ablation};

const UNIFORM: [&str; 3] = ["uniform-flat", "uniform-graph", "uniform-ivf"];
/// Vectors of a single list.
const SIZES: [u32; 2] = [300, 20_000];
const CLOSE: f64 = 0.98;
const WHY: &str = "the paper compares QPS with graphs alone";
const PLAN: &str = "a plan may not be slower than a uniform kind that fits in the memory; the best of three \
                    measured kinds is also the luckiest of them";
const ITSELF: &str =
    "the same index, opened twice and searched in the same rounds: what noise alone makes of a ratio";

/// Figure 2.
pub(super) fn by_size(study: &mut Study, _: &Set) -> Result<Found> {
    const WHY: &str = "a scan reads codes of some 50 bytes, not vectors, and they lie together; one search of 200 \
                       queries each, so counters tell more than QPS";
    let mut rows = Vec::new();
    for size in SIZES {
        let like = MadeSet { shape: "gaussian", dim: 128, clusters: 30, rows: size, queries: 200, seed: 1 };
        let set = made(like, &format!("list-{size}"), study)?;
        let mut reads = Vec::new();
        for plan in UNIFORM {
            let name = format!("list-{size}-{plan}.idx");
            let options =
                ["--kind", "hybrid-ivf", "--clusters", "1", "--plan", plan, "--calibration-queries", "0"];
            let index = study.index(&set, &name, &options)?;
            let args =
                ["search", &index, &set.queries, "--groundtruth", &set.groundtruth, "--head-budget", "0"];
            let efforts: &[&[&str]] = match plan {
                "uniform-ivf" => {
                    &[&["--local-lists", "2"], &["--local-lists", "8"], &["--local-lists", "32"]]
                }
                "uniform-graph" => {
                    &[&["--local-list", "16"], &["--local-list", "64"], &["--local-list", "256"]]
                }
                _ => &[&[]],
            };
            let mut runs = Vec::new();
            for effort in efforts {
                let document = study.run(&[&args[..], &["--nprobe", "64"], effort].concat())?;
                runs.extend(document["runs"].as_array().cloned().unwrap_or_default());
            }
            let sweep = |pointer| Sweep::of(Some(&runs), pointer).at(0.95);
            reads.push((sweep("/qps"), sweep("/per_query/pages_read")));
        }
        let [flat, graph, ivf] = [reads[0], reads[1], reads[2]];
        let claim = if size == SIZES[0] { one(10.0) } else { None };
        let of = |what: &str| format!("{what}, a list of {size}, recall 0.95");
        rows.extend([
            Row::new(of("QPS of a scan over a graph"), "times", claim, over(flat.0, graph.0), WHY),
            Row::new(of("QPS of sub-lists over a scan"), "times", None, over(ivf.0, flat.0), WHY),
            Row::new(of("pages of a graph over a scan"), "times", None, over(graph.1, flat.1), WHY),
            Row::new(of("pages of sub-lists over a scan"), "times", None, over(ivf.1, flat.1), WHY),
        ]);
    }
    Ok(Found { rows, charts: Vec::new() })
}

/// The plan beside each uniform kind.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    let found = ablation(study, set)?;
    let mut rows = compared(&found, "");
    let index = super::built(study, set, "auto")?;
    rows.extend(planned(study, &index, "")?);
    // Lists of a thousand vectors, in so little memory that codes are read.
    if let Ok((found, folder)) = super::few_lists(study, set) {
        rows.extend(compared(&found, ", few lists"));
        rows.extend(planned(study, &folder, ", few lists")?);
    }
    Ok(Found { rows, charts: Vec::new() })
}

/// QPS, reads and bytes of the plan beside those of each uniform kind.
fn compared(found: &Ablation, part: &str) -> Vec<Row> {
    let at = |name: &str, pointer, recall| found.sweep("local_indexes", name, pointer).at(recall);
    let mut rows = Vec::new();
    for recall in RECALLS {
        let best = UNIFORM.iter().filter_map(|name| at(name, "/qps", recall)).reduce(f64::max);
        let gain = over(at("auto", "/qps", recall), best);
        let what = format!("QPS of the plan over the best uniform kind, recall {recall}{part}");
        rows.push(Row::new(what, "times", range(CLOSE, f64::MAX), gain, PLAN));
        let again = over(at("auto", "/qps", recall), at("auto again", "/qps", recall));
        let what = format!("QPS of the plan over itself, recall {recall}{part}");
        rows.push(Row::new(what, "times", None, again, ITSELF));
        for (what, pointer) in [("reads", "/reads"), ("bytes read", "/kib_read")] {
            for name in UNIFORM {
                let ours = over(at(name, pointer, recall), at("auto", pointer, recall));
                rows.push(Row::new(
                    format!("{what} of {name} over the plan, recall {recall}{part}"),
                    "times",
                    None,
                    ours,
                    WHY,
                ));
            }
        }
    }
    rows
}

/// Lists of the plan by their local index.
fn planned(study: &mut Study, index: &str, part: &str) -> Result<Vec<Row>> {
    let info = study.run(&["info", index])?;
    let of_kind = |(at, kind): (usize, &str)| {
        let lists = number(&info, &format!("/clusters/kinds/{at}"));
        let what = format!("lists of the plan: {kind}{part}");
        Row::new(what, "", None, lists, "what the cost model chose in this memory")
    };
    Ok(["scanned", "with graphs", "with sub-lists"].into_iter().enumerate().map(of_kind).collect())
}
