//! Charts of an item, side by side.

use serde::Serialize;
use stratann_storage::Result;
use stratann_storage::output::OutputPath;

use crate::chart::{self, Line};

/// Width and height of one chart, pixels.
const ONE: (u32, u32) = (460, 420);

/// Lines over an axis.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    /// Names and points.
    pub(super) lines: Vec<Line>,
}

/// Draws charts into a file.
///
/// # Errors
/// When the file cannot be written.
pub(super) fn draw(to: &OutputPath, charts: &[Chart]) -> Result<()> {
    let count = charts.len();
    chart::write(to, (ONE.0 * count as u32, ONE.1), (1, count), |areas| {
        for (area, chart) in areas.iter().zip(charts) {
            chart::lines(area, (&chart.title, chart.x, chart.y), &chart.lines)?;
        }
        Ok(())
    })
}
