//! Recall that is asked for and reached, and what it costs against the cheapest setting.

use serde_json::Value;
use stratann_storage::Result;

use super::super::chart::Chart;
use super::super::item::{Found, Row, range};
use super::super::sets::Set;
use super::super::study::{Study, number, over};

const ASKED: [f64; 4] = [0.9, 0.95, 0.98, 0.99];
/// Lengths of the beam of the sweep. Numbers of clusters grow by this factor, up to a recall, or as long as it grows.
const EFS: [u32; 6] = [12, 24, 48, 96, 192, 384];
const STEP: f64 = 1.3;
const ENOUGH: f64 = 0.995;
const GAIN: f64 = 0.001;

/// A search of all queries.
#[derive(Clone, Copy, Debug)]
struct Searched {
    recall: f64,
    nprobe: f64,
    comparisons: f64,
    needs: f64,
}

/// Recalls by the curve of the build, and a sweep of clusters and beams.
pub(super) fn measure(study: &mut Study, set: &Set) -> Result<Found> {
    const ASKS: &str = "what was asked for stands as the paper's number";
    const CHEAPEST: &str = "over the cheapest of a sweep of clusters and beams that reaches it";
    let index = study.index(set, "calibrated.idx", &["--kind", "remote-hnsw"])?;
    let info = study.run(&["info", &index])?;
    let clusters = number(&info, "/remote/sizes/count").unwrap_or(500.0);
    let sweep = sweep(study, set, &index, clusters as u32)?;
    let mut rows = Vec::new();
    let mut own = Vec::new();
    for asked in ASKED {
        let Some(found) = search(study, set, &index, &["--recall", &asked.to_string()])? else { continue };
        let cheapest = |of: fn(&Searched) -> f64| {
            let reaching = sweep.iter().filter(|one| one.recall >= asked);
            reaching.min_by(|a, b| a.comparisons.total_cmp(&b.comparisons)).map(of)
        };
        let row = |what: &str, unit, claim, ours, why: &str| {
            Row::new(format!("{what}, recall {asked} asked"), unit, claim, ours, why)
        };
        rows.extend([
            row("recall@10 reached", "", range(asked, 1.0), Some(found.recall), ASKS),
            row("clusters of a query", "", None, Some(found.nprobe), ""),
            row("distances of a query", "", None, Some(found.comparisons), ""),
            row(
                "distances",
                "times",
                range(0.0, 1.5),
                over(Some(found.comparisons), cheapest(|one| one.comparisons)),
                CHEAPEST,
            ),
            row(
                "clusters",
                "times",
                range(0.0, 1.5),
                over(Some(found.needs), cheapest(|one| one.needs)),
                CHEAPEST,
            ),
        ]);
        own.push((found.comparisons, found.recall));
    }
    let swept = sweep.iter().map(|one| (one.comparisons, one.recall)).collect();
    let lines = vec![("asked".to_string(), own), ("sweep".to_string(), swept)];
    let chart = Chart { title: "recall".into(), x: "distances of a query", y: "recall@10", lines };
    Ok(Found { rows, charts: vec![chart] })
}

/// All numbers of clusters with all beams, by rising cost.
fn sweep(study: &mut Study, set: &Set, index: &str, clusters: u32) -> Result<Vec<Searched>> {
    let mut all = Vec::new();
    for ef in EFS {
        let (mut nprobe, mut before) = (4u32, 0.0);
        loop {
            let effort = ["--nprobe", &nprobe.to_string(), "--ef", &ef.to_string()];
            let Some(found) = search(study, set, index, &effort)? else { break };
            all.push(found);
            if nprobe >= clusters || found.recall >= ENOUGH || found.recall < before + GAIN {
                break;
            }
            before = found.recall;
            nprobe = ((f64::from(nprobe) * STEP).ceil() as u32).min(clusters);
        }
    }
    all.sort_by(|a, b| a.comparisons.total_cmp(&b.comparisons));
    Ok(all)
}

fn search(study: &mut Study, set: &Set, index: &str, effort: &[&str]) -> Result<Option<Searched>> {
    let args = ["search", index, &set.queries, "-k", "10", "--groundtruth", &set.groundtruth];
    let document = study.run(&[&args[..], effort].concat())?;
    let read = |run: &Value| {
        Some(Searched {
            recall: number(run, "/recall")?,
            nprobe: number(run, "/params/nprobe")?,
            comparisons: number(run, "/per_query/full_comparisons")?,
            needs: number(run, "/per_query/shared_reads")?,
        })
    };
    Ok(document.pointer("/runs/0").and_then(read))
}
