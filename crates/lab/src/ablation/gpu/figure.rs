//! Plots eight charts, as SVG.

use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::Document;
use super::timed::{AtRecall, Speed};
use crate::chart::{self, Area, Drawn, LARGE, Line, Part, bars, lines};

/// Ways in the charts over recall.
const WAYS: [&str; 5] = ["spann", "default", "changes", "mi-cpu", "hi+pq"];

/// Writes the figure.
///
/// # Errors
/// When it cannot be plotted or written.
pub(super) fn draw(to: &OutputPath, document: &Document<'_>) -> Result<()> {
    chart::write(to, LARGE, (2, 4), |parts| charts(parts, document))
}

fn charts(parts: &[Area<'_>], document: &Document<'_>) -> Drawn {
    let by_recall = |all: &[AtRecall], of: &dyn Fn(&AtRecall) -> Option<f64>| -> Vec<Line> {
        let line = |name: &&str| {
            let own = all.iter().filter(|at| at.name == *name);
            (name.to_string(), own.filter_map(|at| Some((at.asked, of(at)?))).collect::<Vec<_>>())
        };
        WAYS.iter().map(line).filter(|line| !line.1.is_empty()).collect()
    };
    let ways = &document.ways;
    let speed = |of: fn(&Speed) -> Option<f64>| move |at: &AtRecall| at.speed.as_ref().and_then(of);
    let qps = by_recall(ways, &speed(|own| own.qps_over_spann));
    lines(&parts[0], ("QPS over spann", "recall", "times"), &qps)?;
    let latency = by_recall(ways, &speed(|own| own.latency_over_spann));
    lines(&parts[1], ("latency over spann", "recall", "times"), &latency)?;
    lines(&parts[2], ("reads of a query", "recall", "reads"), &by_recall(ways, &|at| Some(at.reads)))?;
    hierarchical(&parts[3], document)?;
    lines(&parts[4], ("QPS by threads", "threads", "QPS"), &by_threads(document, |scaled| scaled.qps))?;
    let us = by_threads(document, |scaled| scaled.latency_us.mean);
    lines(&parts[5], ("latency by threads", "threads", "us"), &us)?;
    techniques(&parts[6], document)?;
    let complete = document.needed.complete.iter().map(|&(n, share)| (f64::from(n), share)).collect();
    let title = format!("queries that need no more, m {}", document.needed.nprobe);
    lines(&parts[7], (&title, "candidates", "share"), &[("share".into(), complete)])?;
    Ok(())
}

fn by_threads(document: &Document<'_>, of: fn(&super::Scaled) -> f64) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for scaled in document.threads.iter().filter(|scaled| scaled.simulated) {
        let point = (scaled.threads as f64, of(scaled));
        match lines.iter_mut().find(|line| line.0 == scaled.name) {
            Some(line) => line.1.push(point),
            None => lines.push((scaled.name.to_string(), vec![point])),
        }
    }
    lines
}

/// Figure 4, of the ways that need no GPU.
fn hierarchical(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let first = document.recalls.first().copied().unwrap_or(0.0);
    let names = ["spann", "hi+pq"];
    let own = |name: &&str| document.ways.iter().find(|at| at.name == *name && at.asked == first);
    let all: Vec<(&str, f64)> =
        names.iter().filter_map(own).filter_map(|at| Some((at.name, at.speed.as_ref()?.qps))).collect();
    let bars_of: Vec<String> = all.iter().map(|at| at.0.to_string()).collect();
    let parts: [Part; 1] = [("QPS", all.iter().map(|at| at.1).collect())];
    bars(area, (&format!("hierarchical indexing, recall {first}"), "QPS"), &bars_of, &parts)
}

/// Figure 12c at the highest recall.
fn techniques(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let last = document.recalls.last().copied().unwrap_or(0.0);
    let own: Vec<_> = document.saved.iter().filter(|saved| saved.asked == last).collect();
    let names: Vec<String> = own.iter().map(|saved| saved.rule.to_string()).collect();
    let parts: [Part; 3] = [
        ("made", own.iter().map(|saved| saved.reads).collect()),
        ("saved by sharing", own.iter().map(|saved| saved.saved_by_sharing.max(0.0)).collect()),
        ("saved by the rule", own.iter().map(|saved| saved.saved_by_rule.max(0.0)).collect()),
    ];
    bars(area, (&format!("reads of re-ranking, recall {last}"), "reads"), &names, &parts)
}
