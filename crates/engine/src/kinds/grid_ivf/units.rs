//! The units that servers hold of a `grid-ivf`: the head of each list, and each slice of its components.

use std::path::Path;

use stratann_core::format::grid::GridLayout;
use stratann_core::kinds::grid_ivf::prewarmed;
use stratann_storage::{Error, Result};

use crate::base::{IndexShape, read_role, shape};
use crate::files;
use crate::kinds::section::Section;
use crate::manifest::Manifest;
use crate::units::UnitRanges;

/// Most slices of a list: the bits of a word.
pub(crate) const SLICES_MAX: usize = 64;

/// Places of all units in the files.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Lists of each centroid.
    pub(crate) stripes: u32,
    /// The first id of each list, and the number of members of all.
    pub(crate) first: Vec<u32>,
    /// The first group of each slice, and the number of groups.
    pub(crate) slices: Vec<u32>,
    /// Offsets of the units of each list in the data file: its head, then its slices.
    pub(crate) starts: Vec<u64>,
    /// End of the last unit.
    pub(crate) end: u64,
    /// Numbers of first members before those of each list, and of all.
    pub(crate) firsts: Vec<u32>,
}

impl Places {
    /// The places of lists of these sizes, so many of them for each centroid. Sums that are too large saturate.
    pub(crate) fn new(sizes: &[u32], stripes: u32, layout: &GridLayout, slices: Vec<u32>) -> Places {
        let (mut first, mut starts, mut end, mut firsts) = (vec![0u32], Vec::new(), 0u64, vec![0u32]);
        for (list, &size) in (0..).zip(sizes) {
            let members = size as usize;
            first.push(first[first.len() - 1].saturating_add(size));
            let unit = |unit| end.saturating_add(layout.unit_at(members, &slices, unit) as u64);
            starts.extend((0..slices.len()).map(unit));
            end = end.saturating_add(layout.list_bytes(members) as u64);
            firsts.push(firsts[firsts.len() - 1].saturating_add(prewarmed(members, (list, stripes)) as u32));
        }
        Places { stripes, first, slices, starts, end, firsts }
    }

    /// Reads the sizes of the lists of an index.
    ///
    /// # Errors
    /// A file that is missing or damaged, numbers that cannot be.
    pub(crate) fn read(folder: &Path, manifest: &Manifest, layout: &GridLayout) -> Result<Places> {
        let (path, bytes) = read_role(folder, manifest, files::SIZES)?;
        let sizes: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let facts = &manifest.own(folder, Section::grid)?.facts;
        let places = Places::new(&sizes, facts.stripes, layout, slices(folder, manifest, layout)?);
        let lists = facts.lists() as usize;
        let rows = places.first.last().copied().map_or(0, u64::from);
        if bytes.len() != 4 * lists || rows != manifest.rows {
            return Err(files::senseless(&path));
        }
        Ok(places)
    }

    /// Bytes of the file of first members.
    pub(crate) fn firsts_bytes(&self, layout: &GridLayout) -> u64 {
        layout.list_bytes(self.firsts.last().map_or(0, |&count| count as usize)) as u64
    }

    /// Places of the same lists in other slices.
    pub(crate) fn divided(&self, layout: &GridLayout, slices: Vec<u32>) -> Places {
        let sizes: Vec<u32> = self.first.windows(2).map(|w| w[1] - w[0]).collect();
        Places::new(&sizes, self.stripes, layout, slices)
    }

    /// Bytes in RAM.
    pub(crate) fn memory_bytes(&self) -> u64 {
        4 * (self.first.len() + self.slices.len() + self.firsts.len()) as u64 + 8 * self.starts.len() as u64
    }

    /// The ranges of all units in a data file of so many bytes.
    pub(crate) fn ranges(&self, bytes: u64) -> UnitRanges {
        UnitRanges::sorted(self.starts.iter().copied().zip(0..).collect(), bytes)
    }
}

/// The layout that the manifest of an index tells.
///
/// # Errors
/// Numbers that cannot be.
pub(crate) fn layout(folder: &Path, manifest: &Manifest) -> Result<GridLayout> {
    let IndexShape { metric, dtype, block, .. } = shape(folder, manifest)?;
    let layout =
        manifest.own(folder, Section::grid)?.facts.layout(dtype, metric, manifest.dim, block.id_bytes);
    layout.ok_or_else(|| senseless(folder))
}

/// The first group of each slice, and the number of groups.
fn slices(folder: &Path, manifest: &Manifest, layout: &GridLayout) -> Result<Vec<u32>> {
    let groups = layout.groups() as u32;
    let Some(spread) = &manifest.spread else { return Ok(vec![0, groups]) };
    let slices = spread.slices.clone();
    let is_sane = (2..=SLICES_MAX + 1).contains(&slices.len())
        && slices.first() == Some(&0)
        && slices.last() == Some(&groups)
        && slices.is_sorted_by(|a, b| a < b);
    if is_sane { Ok(slices) } else { Err(senseless(folder)) }
}

fn senseless(folder: &Path) -> Error {
    Error::corrupt(format!("{}: the manifest's numbers cannot be; build the index again", folder.display()))
}

/// The ranges of all units in the data file of a whole index.
///
/// # Errors
/// As [`Places::read`].
pub(crate) fn unit_ranges(folder: &Path, manifest: &Manifest) -> Result<UnitRanges> {
    let layout = layout(folder, manifest)?;
    let bytes = u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64;
    Ok(Places::read(folder, manifest, &layout)?.ranges(bytes))
}
