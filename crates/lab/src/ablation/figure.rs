//! Plots three charts side by side, as SVG.

use plotters::prelude::*;
use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use super::hybrid::{Document, Sweep};
use crate::chart::{Area, COLOURS, Drawn, legend, write};

const SIZE: (u32, u32) = (1380, 420);

/// Writes the figure.
///
/// # Errors
/// When it cannot be plotted or written.
pub(super) fn draw(to: &OutputPath, document: &Document<'_>) -> Result<()> {
    write(to, SIZE, (1, 3), |parts| charts(parts, document))
}

fn charts(parts: &[Area<'_>], document: &Document<'_>) -> Drawn {
    sweeps(&parts[0], "local indexes", &document.local_indexes)?;
    learning(&parts[1], document)?;
    sweeps(&parts[2], "pruning", &document.pruning)?;
    Ok(())
}

/// Plots throughput over recall.
fn sweeps(area: &Area<'_>, title: &str, sweeps: &[Sweep]) -> Drawn {
    let points = || sweeps.iter().flat_map(|s| &s.points);
    let low = points().map(|p| p.recall).fold(1.0, f64::min);
    let top = points().map(|p| p.qps).fold(1.0, f64::max);
    let bottom = points().map(|p| p.qps).fold(top, f64::min);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(low..1.0, ((bottom * 0.8).max(0.1)..top * 1.2).log_scale())?;
    chart.configure_mesh().x_desc("recall").y_desc("queries per second").light_line_style(WHITE).draw()?;
    for (sweep, &colour) in sweeps.iter().zip(COLOURS.iter().cycle()) {
        let line = sweep.points.iter().map(|p| (p.recall, p.qps));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))?
            .label(&sweep.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    legend(&mut chart)
}

/// Plots precision and F1 over queries.
fn learning(area: &Area<'_>, document: &Document<'_>) -> Drawn {
    let mut seen = 0.0;
    let epochs: Vec<(f64, f64, f64)> = document
        .learning
        .iter()
        .map(|e| {
            seen += e.queries as f64;
            (seen, e.precision, e.f1)
        })
        .collect();
    let top = epochs.iter().map(|e| e.1.max(e.2)).fold(0.1, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("list selection", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..seen.max(1.0), 0.0..top * 1.1)?;
    chart.configure_mesh().x_desc("queries").light_line_style(WHITE).draw()?;
    type Of = fn(&(f64, f64, f64)) -> f64;
    let series: [(&str, Of); 2] = [("precision", |e| e.1), ("F1", |e| e.2)];
    for ((name, of), &colour) in series.into_iter().zip(&COLOURS) {
        let line = epochs.iter().map(|e| (e.0, of(e)));
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    legend(&mut chart)
}
