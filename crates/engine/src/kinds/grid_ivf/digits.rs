//! Whether rotated vectors have the digits that tell near ones from each other.

use std::path::Path;

use stratann_kernel::Metric;
use stratann_kernel::distance::l2_f32;
use stratann_storage::{Error, Result};

use super::facts::{keeps_digits, spread_of};
use super::open::{GridIndex, StoredAxes};

/// Lists that are looked at, and members of each.
const LISTS: usize = 64;
const MEMBERS: usize = 1024;
/// Neighbours within a list are not the nearest of all.
const MARGIN: f64 = 16.0;

/// Refuses vectors that an earlier program rotated although near ones lose their digits by it.
///
/// # Errors
/// An index that must be built again.
pub(crate) fn check(folder: &Path, grid: &GridIndex) -> Result<()> {
    let is_rotated = matches!(grid.axes(), StoredAxes::Rotated(_)) && grid.layout.metric != Metric::Ip;
    if !is_rotated || grid.facts.keeps_digits {
        return Ok(());
    }
    let Some(near) = near(grid) else { return Ok(()) };
    if keeps_digits(grid.layout.dim(), spread_of(grid.facts.scale_exponent), MARGIN * near) {
        return Ok(());
    }
    Err(Error::corrupt(format!(
        "{}: an earlier version stored these vectors so that near ones cannot be told from each other, as they lie far \
         apart in groups; build the index again",
        folder.display()
    )))
}

/// A squared distance of neighbours that is small among those of some lists; `None` where nothing is whole or near.
fn near(grid: &GridIndex) -> Option<f64> {
    let (view, mut nearest) = (grid.view(), Vec::new());
    let lists = view.lists() as usize;
    for list in (0..lists).step_by(lists.div_ceil(LISTS).max(1)).filter_map(|list| view.list(list as u32)) {
        let vector = |member: usize| {
            let mut stored = Vec::new();
            list.vector(member, &mut stored);
            stored
        };
        if list.members() == 0 {
            continue;
        }
        let first: Vec<f32> = vector(0).as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
        let distances = (1..list.members().min(MEMBERS)).map(|member| l2_f32(&first, &vector(member)));
        let least = distances.filter(|&distance| distance > 0.0).fold(f32::INFINITY, f32::min);
        nearest.push(least);
    }
    nearest.retain(|distance| distance.is_finite());
    nearest.sort_unstable_by(f32::total_cmp);
    nearest.get(nearest.len() / 10).map(|&distance| f64::from(distance))
}
