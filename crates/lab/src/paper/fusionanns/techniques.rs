//! Techniques added one by one (figure 12).

use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, range};
use super::super::sets::Set;
use super::super::study::{Study, over, percent};
use super::{Ablation, DEFAULT, HIGH, LOW, NEEDS_GPU, SMALL, SPANN};

const RULE: &str = "codes that rank well leave a rule little to save; see regime";

/// Figure 12.
pub(super) fn one_by_one(study: &mut Study, set: &Set) -> Result<Found> {
    const READS: &str = "lists of the paper span more pages, and a query needs more of them; see list size";
    const SHARES: &str = "it depends on the vectors of a block, and how near they lie";
    const TIMES: &str = "times of this machine, which are uncertain";
    let ablation = Ablation::usual(study, set)?;
    let way = |name: &str, recall, pointer| ablation.way(name, recall, pointer);
    let mut rows = Vec::new();
    for recall in [LOW, HIGH] {
        let qps = way("mi-cpu", recall, "/qps_over_spann");
        let fewer = |pointer| over(way(SPANN, recall, pointer), way("mi-cpu", recall, pointer));
        rows.extend([
            Row::new(
                format!("QPS, mi-cpu over SPANN, recall {recall}"),
                "times",
                range(1.5, 4.2),
                qps,
                SMALL,
            ),
            Row::new(
                format!("reads, SPANN over mi-cpu, recall {recall}"),
                "times",
                range(3.2, 3.8),
                fewer("/reads"),
                READS,
            ),
            Row::new(
                format!("pages, SPANN over mi-cpu, recall {recall}"),
                "times",
                None,
                fewer("/pages"),
                READS,
            ),
        ]);
    }
    rows.push(Row::new("QPS, mi-gpu over SPANN", "times", range(5.9, 6.8), None, NEEDS_GPU));
    rows.push(saved(
        &ablation,
        "reads saved by algorithm 1, at best",
        "changes",
        "/share_by_rule",
        30.0,
        RULE,
    ));
    rows.push(saved(&ablation, "reads saved by the margin, at best", "margin", "/share_by_rule", 30.0, RULE));
    rows.push(saved(
        &ablation,
        "reads saved by sharing, at best",
        "changes",
        "/share_by_sharing",
        23.0,
        SHARES,
    ));
    let gain = |name: &str, before: &str| best_gain(&ablation, name, before);
    rows.extend([
        Row::new("QPS, algorithm 1, at best", "%", range(0.0, 39.0), gain("no-dedup", "mi-cpu"), TIMES),
        Row::new("QPS, shared reads, at best", "%", range(0.0, 17.0), gain("changes", "no-dedup"), TIMES),
    ]);
    let names = [SPANN, "mi-cpu", "no-dedup", "changes", DEFAULT];
    let lines = |pointer| names.map(|name| (name.to_string(), ablation.line(name, pointer))).to_vec();
    let chart =
        |title: &str, y, pointer| Chart { title: title.into(), x: "recall", y, lines: lines(pointer) };
    Ok(Found {
        rows,
        charts: vec![chart("throughput", "QPS", "/qps"), chart("reads", "reads of a query", "/reads")],
    })
}

/// The largest share of reads over all recalls that a rule or sharing saves, percent.
fn saved(ablation: &Ablation, what: &str, rule: &str, pointer: &str, claim: f64, why: &str) -> Row {
    let own = ablation.rows("saved").filter(|row| row["rule"] == rule);
    let best = own.filter_map(|row| row.pointer(pointer)?.as_f64()).max_by(f64::total_cmp);
    Row::new(what, "%", range(0.0, claim), percent(best), why)
}

/// The largest gain in QPS over all recalls of a technique over the one before, with equal lists, percent.
fn best_gain(ablation: &Ablation, name: &str, before: &str) -> Option<f64> {
    let of = |name: &str, asked| ablation.in_part("techniques", ("name", name), asked, "/qps");
    let recalls = ablation.rows("techniques").filter_map(|row| row["asked"].as_f64());
    let gains = recalls.filter_map(|asked| over(of(name, asked), of(before, asked)));
    percent(gains.max_by(f64::total_cmp).map(|times| times - 1.0))
}
