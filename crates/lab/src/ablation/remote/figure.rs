//! Plots eight charts, as SVG.

use stratann_capacity::memory_nodes::rows::Row;
use stratann_engine::kinds::remote_hnsw::baseline::LoadScheme;
use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::measure::Measured;
use super::{COMPARED, Document};
use crate::chart::{self, Area, Drawn, LARGE, Line, Part, bars, lines};

/// Writes the figure.
///
/// # Errors
/// When it cannot be plotted or written.
pub(super) fn draw(to: &OutputPath, document: &Document<'_>) -> Result<()> {
    chart::write(to, LARGE, (2, 4), |parts| charts(parts, document))
}

fn charts(parts: &[Area<'_>], document: &Document<'_>) -> Drawn {
    let k = document.breakdown.iter().map(|of| of.k).max().unwrap_or(1);
    recall(&parts[0], document, 1)?;
    recall(&parts[1], document, k)?;
    let own: Vec<&Measured> =
        document.breakdown.iter().filter(|of| of.k == k && of.scheme != "naive").collect();
    let names: Vec<String> = own.iter().map(|of| of.scheme.to_string()).collect();
    stages(&parts[2], "where the time goes", &names, &own)?;
    let numbers: Vec<String> = document.partitions.iter().map(|at| at.partitions.to_string()).collect();
    let by_partitions: Vec<&Measured> = document.partitions.iter().map(|at| &at.measured).collect();
    stages(&parts[3], "clusters", &numbers, &by_partitions)?;
    doorbells(&parts[4], document)?;
    overflow(&parts[5], document)?;
    modelled(&parts[6], document)?;
    nodes(&parts[7], &document.model.nodes)?;
    Ok(())
}

/// Figure 6. Naive takes so much longer that times are drawn by their powers of ten.
fn recall(area: &Area<'_>, document: &Document<'_>, k: usize) -> Drawn {
    let line = |scheme: &'static str| -> Line {
        let own = document.curve.iter().filter(|of| of.k == k && of.scheme == scheme);
        (scheme.into(), own.map(|of| (of.recall, of.time_us.max(1.0).log10())).collect())
    };
    let all: Vec<Line> = COMPARED.iter().map(|scheme| line(scheme.name())).collect();
    lines(area, (&format!("top {k}"), "recall", "log10 of us"), &all)
}

fn stages(area: &Area<'_>, title: &str, names: &[String], all: &[&Measured]) -> Drawn {
    let parts: [Part; 3] = [
        ("meta-HNSW", all.iter().map(|of| of.meta_hnsw_us).collect()),
        ("sub-HNSW", all.iter().map(|of| of.sub_hnsw_us).collect()),
        ("network", all.iter().map(|of| of.network_us).collect()),
    ];
    bars(area, (title, "us"), names, &parts)
}

fn doorbells(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let line = |name: &str, of: &dyn Fn(&super::doorbells::AtDoorbell) -> f64| -> Line {
        let points = document.doorbells.lengths.iter().map(|at| ((at.doorbell as f64).log2(), of(at)));
        (name.into(), points.collect())
    };
    let all = [
        line("a query of the batch, us", &|at| at.time_us),
        line("single query, p50 of ms", &|at| at.foreground_us.p50 / 1000.0),
        line("single query, p99 of ms", &|at| at.foreground_us.p99 / 1000.0),
    ];
    lines(area, ("doorbells, with single queries", "log2 of reads in a doorbell", "us, ms"), &all)
}

fn overflow(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let line = |name: &str, of: &dyn Fn(&super::AtOverflow) -> f64| -> Line {
        let kib = |bytes: f64| bytes / 1024.0;
        let points = document.overflow.iter().map(|at| (kib(at.overflow_bytes as f64), kib(of(at))));
        (name.into(), points.collect())
    };
    let all = [
        line("whole room", &|at| at.bytes_whole),
        line("all used", &|at| at.bytes_used_100),
        line("half used", &|at| at.bytes_used_50),
        line("unused", &|at| at.bytes_used_0),
    ];
    lines(area, ("KiB of a query (computed)", "room of a group, KiB", "KiB"), &all)
}

fn modelled(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let all: Vec<_> = document.model.schemes.iter().filter(|of| of.scheme != "naive").collect();
    let against = &document.model.against_naive;
    let names: Vec<String> = against.iter().map(|of| format!("{}, {:.0} x", of.scheme, of.time)).collect();
    let parts: [Part; 3] = [
        ("meta-HNSW", all.iter().map(|of| of.meta_hnsw_us).collect()),
        ("sub-HNSW", all.iter().map(|of| of.sub_hnsw_us).collect()),
        ("network", all.iter().map(|of| of.network_us).collect()),
    ];
    bars(area, ("model: times, and faster than naive", "us"), &names, &parts)
}

fn nodes(area: &Area<'_>, all: &[Row]) -> Drawn {
    let line = |scheme: &'static str| -> Line {
        let own = all.iter().filter(|at| at.scheme == scheme);
        (scheme.into(), own.map(|at| (at.compute_nodes as f64, at.qps)).collect())
    };
    let all: Vec<Line> = LoadScheme::ALL.iter().map(|scheme| line(scheme.name())).collect();
    lines(area, ("model: QPS by compute nodes", "compute nodes", "QPS"), &all)
}
