//! Plots eight charts, as SVG.

use plotters::prelude::*;
use stratann_engine::output::OutputPath;
use stratann_engine::{Error, Result};

use super::super::figure::{Area, COLOURS, Drawn};
use super::Document;
use super::one::variants;
use super::servers::{MODES, Simulated};

const SIZE: (u32, u32) = (1840, 860);
/// Height of a chart over that of its data: names of lines are above them.
const ROOM: f64 = 1.5;

/// A line with its name.
type Line = (String, Vec<(f64, f64)>);
/// A part of stacked bars: its name, and its height in each bar.
type Part = (&'static str, Vec<f64>);

/// Writes the figure.
///
/// # Errors
/// When it cannot be plotted or written.
pub(super) fn draw(to: &OutputPath, document: &Document<'_>) -> Result<()> {
    let (path, mut svg) = (to.path(), String::new());
    charts(&mut svg, document).map_err(|e| Error::bad_input(format!("drawing {}: {e}", path.display())))?;
    to.write(svg.as_bytes())
}

fn charts(svg: &mut String, document: &Document<'_>) -> Drawn {
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let parts = area.split_evenly((2, 4));
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
    let variants: Vec<Line> = variants().iter().map(|variant| of(variant.0)).collect();
    lines(&parts[7], ("one server", "recall", "QPS"), &variants)?;
    area.present()?;
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
        let of_vector = document.skewed.iter().find(|other| other.load == row.load && other.name == vector);
        of_vector.map_or(0.0, |other| other.largest_share)
    };
    let rows: Vec<&Simulated> = document.skewed.iter().collect();
    let lines_of = by_name(&rows, |row| (share(row), row.speed_up));
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

fn lines(area: &Area<'_>, (title, x, y): (&str, &str, &str), lines: &[Line]) -> Drawn {
    let points = || lines.iter().flat_map(|line| &line.1);
    let low = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high = points().map(|point| point.0).fold(0.0, f64::max);
    let across = if low < high { low..high } else { 0.9 * high..(1.1 * high).max(1.0) };
    let top = points().map(|point| point.1).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(across, 0.0..ROOM * top)?;
    chart.configure_mesh().x_desc(x).y_desc(y).light_line_style(WHITE).draw()?;
    for (at, ((name, points), &colour)) in lines.iter().zip(COLOURS.iter().cycle()).enumerate() {
        // Lines that coincide are all seen.
        let width = 1 + (lines.len() - at) as u32;
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(width)).point_size(3))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    legend(&mut chart)
}

/// Stacked bars, side by side.
fn bars(area: &Area<'_>, (title, y): (&str, &str), names: &[String], parts: &[Part]) -> Drawn {
    let count = names.len().max(1);
    let heights = (0..names.len()).map(|bar| parts.iter().map(|part| part.1[bar]).sum());
    let top = heights.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..count as f64, 0.0..ROOM * top)?;
    chart.configure_mesh().disable_x_mesh().disable_x_axis().y_desc(y).light_line_style(WHITE).draw()?;
    let mut under = vec![0.0; names.len()];
    for ((name, heights), &colour) in parts.iter().zip(COLOURS.iter().cycle()) {
        let boxes: Vec<_> = heights
            .iter()
            .zip(&mut under)
            .enumerate()
            .map(|(bar, (height, under))| {
                let (left, bottom) = (bar as f64, *under);
                *under += height;
                Rectangle::new([(left + 0.15, bottom), (left + 0.85, *under)], colour.filled())
            })
            .collect();
        chart
            .draw_series(boxes)?
            .label(*name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 16, y + 5)], colour.filled()));
    }
    // Two heights, so that long names do not meet.
    let (width, height) = area.dim_in_pixel();
    for (bar, name) in names.iter().enumerate() {
        let across = 72 + ((f64::from(width) - 84.0) * (bar as f64 + 0.5) / count as f64) as i32;
        let down = height as i32 - if bar % 2 == 0 { 44 } else { 28 };
        let style = ("sans-serif", 12).into_font().into_text_style(area).pos(CENTRED);
        area.draw(&Text::new(name.clone(), (across, down), style))?;
    }
    legend(&mut chart)
}

fn legend<'a, 'b, C>(chart: &mut ChartContext<'a, SVGBackend<'b>, C>) -> Drawn
where
    C: CoordTranslate,
    SVGBackend<'b>: 'a,
{
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

const CENTRED: plotters::style::text_anchor::Pos = plotters::style::text_anchor::Pos {
    h_pos: plotters::style::text_anchor::HPos::Center,
    v_pos: plotters::style::text_anchor::VPos::Top,
};
