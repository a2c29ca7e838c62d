//! Plots eight charts, as SVG.

use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::Document;
use super::servers::{MODES, Simulated};
use crate::chart::{self, Area, Drawn, LARGE, Line, Part, bars, lines};

/// Writes the figure.
///
/// # Errors
/// When it cannot be plotted or written.
pub(super) fn draw(to: &OutputPath, document: &Document<'_>) -> Result<()> {
    chart::write(to, LARGE, (2, 4), |parts| charts(parts, document))
}

fn charts(parts: &[Area<'_>], document: &Document<'_>) -> Drawn {
    survival(&parts[0], document)?;
    breakdown(&parts[1], document)?;
    let first = document.even.first().map_or(0, |row| row.servers);
    let by_recall: Vec<&Simulated> = document.even.iter().filter(|row| row.servers == first).collect();
    let title = format!("{first} servers, even load");
    lines(&parts[2], (&title, "recall", "QPS"), &by_name(&by_recall, |row| (row.recall, row.qps)))?;
    skewed(&parts[3], document)?;
    techniques(&parts[4], document)?;
    build(&parts[5], document)?;
    speed_ups(&parts[6], document)?;
    let of = |name: &str| {
        let points = document.one_server.iter().filter(|at| at.name == name).map(|at| (at.recall, at.qps));
        (name.to_string(), points.collect())
    };
    let mut names: Vec<&str> = Vec::new();
    for at in &document.one_server {
        if !names.contains(&at.name) {
            names.push(at.name);
        }
    }
    let variants: Vec<Line> = names.into_iter().map(of).collect();
    lines(&parts[7], ("one server", "recall", "QPS"), &variants)?;
    Ok(())
}

/// Figure 2a.
fn survival(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let whole =
        std::iter::once((0.0, 1.0)).filter(|_| document.survival.left.first().is_none_or(|p| p.0 > 0));
    let left = document.survival.left.iter().map(|&(components, share)| (f64::from(components), share));
    let title = format!("vectors that are left, nprobe {}", document.survival.nprobe);
    lines(area, (&title, "components", "share"), &[("share".into(), whole.chain(left).collect())])
}

/// Figures 2b and 8: the processor time of a query with many queries in flight, and with one for each thread.
fn breakdown(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let Some(last) = document.recalls.last() else { return Ok(()) };
    let first = document.even.first().map_or(0, |row| row.servers);
    let rows = || document.even.iter().filter(|row| row.servers == first && row.recall == *last);
    let names: Vec<String> =
        rows().flat_map(|row| [row.name.clone(), format!("{}, blocking", row.name)]).collect();
    let twice = |of: fn(&Simulated) -> [f64; 2]| rows().flat_map(of).collect();
    let parts: [Part; 3] = [
        ("computing", twice(|row| [row.computing_us; 2])),
        ("messages", twice(|row| [row.messages_us; 2])),
        ("idle", twice(|row| [row.idle_us, row.blocking_idle_us])),
    ];
    bars(area, ("time of all threads for a query", "us"), &names, &parts)
}

/// Figure 7. The skew of a load is what one server of whole lists has of it.
fn skewed(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let vector = MODES[0].name();
    let share = |row: &Simulated| {
        let of_vector = document
            .skewed
            .iter()
            .find(|other| other.load == row.load && other.servers == row.servers && other.name == vector);
        of_vector.map_or(0.0, |other| other.largest_share)
    };
    let rows: Vec<&Simulated> = document.skewed.iter().collect();
    let first = rows.first().map_or(0, |row| row.servers);
    let of_first: Vec<&Simulated> = rows.into_iter().filter(|row| row.servers == first).collect();
    let lines_of = by_name(&of_first, |row| (share(row), row.speed_up));
    lines(area, ("skewed loads", "share of one server of whole lists", "times one server"), &lines_of)
}

/// Figure 9.
fn techniques(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let Some(all) = document.techniques.first() else { return Ok(()) };
    let others = &document.techniques[1..];
    let names: Vec<String> = others.iter().map(|row| row.name.clone()).collect();
    let gains: Part = ("QPS of all over that", others.iter().map(|row| all.qps / row.qps).collect());
    bars(area, ("worth of each technique", "times"), &names, &[gains])
}

/// Figure 10.
fn build(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let first = document.divisions.first().map_or(0, |division| division.servers);
    let rows = || document.divisions.iter().filter(|division| division.servers == first);
    let names: Vec<String> = rows().map(|division| division.mode.name().to_string()).collect();
    let (train, add) = document.build.as_ref().map_or((0.0, 0.0), |build| (build.train, build.add));
    let parts: [Part; 3] = [
        ("train", vec![train; names.len()]),
        ("add", vec![add; names.len()]),
        ("pre-assign", rows().map(|division| division.seconds).collect()),
    ];
    bars(area, ("build", "seconds"), &names, &parts)
}

/// Figure 11b.
fn speed_ups(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let last = document.recalls.last().copied().unwrap_or(0.0);
    let rows: Vec<&Simulated> = document.even.iter().filter(|row| row.recall == last).collect();
    let mut all = by_name(&rows, |row| (row.servers as f64, row.speed_up_unpruned));
    let mut counts: Vec<f64> = rows.iter().map(|row| row.servers as f64).collect();
    counts.dedup();
    all.push(("servers".into(), counts.into_iter().map(|count| (count, count)).collect()));
    lines(area, ("speed-up over one that does not prune", "servers", "times"), &all)
}

fn by_name(rows: &[&Simulated], of: impl Fn(&Simulated) -> (f64, f64)) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        match lines.iter_mut().find(|line| line.0 == row.name) {
            Some(line) => line.1.push(of(row)),
            None => lines.push((row.name.clone(), vec![of(row)])),
        }
    }
    lines
}
