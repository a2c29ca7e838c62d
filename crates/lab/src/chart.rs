//! Charts as SVG: lines, and stacked bars.

use plotters::prelude::*;
use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
pub(crate) type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Size of a figure of eight charts.
pub(crate) const LARGE: (u32, u32) = (1840, 860);
/// Height of a chart over that of its data: names of lines are above them.
const ROOM: f64 = 1.5;

/// A line with its name.
pub(crate) type Line = (String, Vec<(f64, f64)>);
/// A part of stacked bars: its name, and its height in each bar.
pub(crate) type Part = (&'static str, Vec<f64>);
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
];

/// Writes a figure of rows and columns of charts.
///
/// # Errors
/// When it cannot be plotted or written.
pub(crate) fn write(
    to: &OutputPath,
    size: (u32, u32),
    grid: (usize, usize),
    charts: impl FnOnce(&[Area<'_>]) -> Drawn,
) -> Result<()> {
    let (path, mut svg) = (to.path(), String::new());
    let drawn = || -> Drawn {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        charts(&area.split_evenly(grid))?;
        Ok(area.present()?)
    };
    drawn().map_err(|e| Error::bad_input(format!("drawing {}: {e}", path.display())))?;
    to.write(svg.as_bytes())
}

/// Draws the names of lines where they cover the least.
pub(crate) fn legend<'a, 'b, C>(chart: &mut ChartContext<'a, SVGBackend<'b>, C>) -> Drawn
where
    C: CoordTranslate,
    SVGBackend<'b>: 'a,
{
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    Ok(())
}

/// Plots lines.
pub(crate) fn lines(area: &Area<'_>, (title, x, y): (&str, &str, &str), lines: &[Line]) -> Drawn {
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
    upper_legend(&mut chart)
}

/// Stacked bars, side by side.
pub(crate) fn bars(area: &Area<'_>, (title, y): (&str, &str), names: &[String], parts: &[Part]) -> Drawn {
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
    upper_legend(&mut chart)
}

fn upper_legend<'a, 'b, C>(chart: &mut ChartContext<'a, SVGBackend<'b>, C>) -> Drawn
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
