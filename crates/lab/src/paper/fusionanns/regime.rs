//! The regime of the paper: short codes, so that a query needs many candidates.

use stratann_storage::Result;

use super::super::item::{Found, Row, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over, percent};
use super::motivation::needed;
use super::{Ablation, DEFAULT, HIGH, LOW, SPANN, index, usual_index};

/// Queries that are timed; counters are those of all.
pub(super) const FEW: &str = "20";

/// Both codes, recalls 0.9 and 0.98.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    let short = index(study, set, "short.idx", &["--code-bits", "1"])?;
    let usual = usual_index(study, set)?;
    let mut found = Found::default();
    for (codes, index) in [("a bit a dimension", short), ("default codes", usual)] {
        let ablation = Ablation::of(study, set, &index, "0.9,0.98", &["--sample", FEW])?;
        if found.rows.is_empty() {
            found = needed(&ablation, "a bit a dimension; the paper has 32 bytes of PQ");
        }
        for recall in [LOW, HIGH] {
            found.rows.extend(at(&ablation, codes, recall));
        }
    }
    Ok(found)
}

/// Reads of each way, and what each technique saves.
fn at(ablation: &Ablation, codes: &str, recall: f64) -> Vec<Row> {
    const EXACT: &str = "the paper has no such numbers";
    let name = |what: &str| format!("{what}; {codes}, recall {recall}");
    let row = |what: &str, unit, ours| Row::new(name(what), unit, None, ours, EXACT);
    let way = |name: &str, pointer| ablation.way(name, recall, pointer);
    let saved = |rule: &str, pointer| ablation.in_part("saved", ("rule", rule), recall, pointer);
    let limited = |what: &str, claim, ours| {
        Row::new(
            name(what),
            "%",
            range(0.0, claim),
            percent(ours),
            "over the smallest fixed number, equal lists",
        )
    };
    let static_n = ablation.rows("ways").find(|row| row["asked"] == recall && row["name"] == "static");
    let mut rows = vec![row(
        "candidates, smallest fixed number",
        "",
        static_n.and_then(|row| number(row, "/setting/candidates")),
    )];
    let ways = [SPANN, "mi-cpu", "static-n", "no-dedup", "no-layout", "changes", DEFAULT];
    rows.extend(ways.map(|of| row(&format!("reads, {of}"), "", way(of, "/reads"))));
    rows.extend([
        limited("reads saved by algorithm 1", 30.0, saved("changes", "/share_by_rule")),
        limited("reads saved by the margin", 30.0, saved("margin", "/share_by_rule")),
        limited("reads saved by sharing", 23.0, saved("changes", "/share_by_sharing")),
        Row::new(
            name("reads that the layout by lists saves"),
            "%",
            None,
            percent(over(way("changes", "/reads"), way("no-layout", "/reads")).map(|left| 1.0 - left)),
            EXACT,
        ),
        Row::new(
            name("reads, SPANN over mi-cpu"),
            "times",
            range(3.2, 3.8),
            over(way(SPANN, "/reads"), way("mi-cpu", "/reads")),
            "shorter codes need more candidates, and each is a read",
        ),
        row("reads, SPANN over default", "times", over(way(SPANN, "/reads"), way(DEFAULT, "/reads"))),
    ]);
    rows
}
