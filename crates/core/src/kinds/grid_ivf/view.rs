//! Part of a `grid-ivf` in RAM.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use bytemuck::{Pod, Zeroable};

use stratann_kernel::columns::LANES;
use stratann_kernel::distance::{block_dot_f32, dot_f32};

use super::codes::Codes;
use crate::format::grid::{GridLayout, List};

/// The axes that stored components refer to, those of the largest variance first.
#[derive(Clone, Copy, Debug)]
pub enum Axes<'a> {
    /// Differences from a point, along the rows of an orthonormal matrix.
    Rotated {
        /// A row for each axis.
        matrix: &'a [f32],
        /// The point. Vectors far from zero and near each other keep their digits.
        means: &'a [f32],
    },
    /// The components of the data set in this order.
    Ordered(&'a [u32]),
}

impl Axes<'_> {
    /// Appends a point in these axes.
    pub fn turn(&self, point: &[f32], out: &mut Vec<f32>) {
        match self {
            Axes::Rotated { matrix, means } => {
                let (start, end) = (out.len(), out.len() + point.len());
                out.resize(end, 0.0);
                out.extend(point.iter().zip(*means).map(|(x, mean)| x - mean));
                let (turned, difference) = out[start..].split_at_mut(point.len());
                block_dot_f32(difference, matrix, point.len(), turned);
                out.truncate(end);
            }
            Axes::Ordered(order) => {
                out.extend(order.iter().map(|&c| point.get(c as usize).copied().unwrap_or(0.0)))
            }
        }
    }
}

/// The code of the first principal components.
#[derive(Clone, Copy, Debug)]
pub struct Pilot<'a> {
    /// Orthonormal, a row for each of its components.
    pub axes: &'a [f32],
    /// Values of the code 0, by component.
    pub offsets: &'a [f32],
    /// The difference between two codes that follow each other.
    pub step: f32,
}

impl Pilot<'_> {
    /// Appends a point in units of codes: code c stands for c.
    pub fn turn(&self, point: &[f32], out: &mut Vec<f32>) {
        let axes = self.axes.chunks_exact(point.len());
        let components = axes.map(|axis| dot_f32(point, bytemuck::cast_slice(axis)));
        out.extend(components.zip(self.offsets).map(|(x, offset)| (x - offset) / self.step));
    }
}

/// Part of a `grid-ivf` in RAM.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The layout of all lists.
    pub layout: &'a GridLayout,
    /// Units of a distance of 1: a power of two. Sums of component groups are whole multiples of the unit.
    pub scale: f32,
    /// The axes of the stored components.
    pub axes: Axes<'a>,
    /// The pilot, where lists have one.
    pub pilot: Option<Pilot<'a>>,
    /// How codes are made, where lists have them.
    pub codes: Option<Codes<'a>>,
    /// A centroid for each list, in the components of the data set.
    pub centroids: &'a [f32],
    /// Lists of each centroid, one after another: its members are dealt over them. One where they are not.
    pub stripes: u32,
    /// The first id of each list, and the number of vectors.
    pub first: &'a [u32],
    /// The first group of each slice, and the number of groups. One slice where lists are not divided.
    pub slices: &'a [u32],
    /// Offsets of the units of each list in `data`, its head and then its slices; [`ELSEWHERE`] for those of other
    /// servers.
    pub starts: &'a [u64],
    /// Units of the lists that are here, in one piece.
    pub data: &'a [u8],
    /// Units by themselves, in place of `starts` and `data`, and none of those of other servers: two versions of a
    /// partition share those that they have in common.
    pub apart: Option<&'a [Option<Unit>]>,
    /// First members of each list, whole, on one server. Where all lists are in `data` they are not kept apart.
    pub firsts: Option<Firsts<'a>>,
}

/// Bytes of a unit, with less than a line beyond its end.
pub type Unit = Arc<[Line]>;

/// A cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Line(pub [u8; 64]);

/// Offset of a unit that is on another server.
pub const ELSEWHERE: u64 = u64::MAX;

/// The first members of all lists, which all servers hold.
#[derive(Clone, Copy, Debug)]
pub struct Firsts<'a> {
    /// Numbers of vectors before those of each list, and of all.
    pub before: &'a [u32],
    /// All first members as one list, with the layout of the index.
    pub data: &'a [u8],
}

/// Members of a list of which one is scored first.
const PREWARMED_PART: usize = 100;

/// Members of a list that are scored first: those that lie nearest to its centroid. Of all lists of a centroid the
/// first one has them.
pub fn prewarmed(members: usize, (list, stripes): (u32, u32)) -> usize {
    let stripes = stripes.max(1);
    let is_first = list.is_multiple_of(stripes);
    if is_first { (members * stripes as usize / PREWARMED_PART).min(LANES).min(members) } else { 0 }
}

impl<'a> View<'a> {
    /// Number of lists.
    pub fn lists(&self) -> u32 {
        self.first.len().saturating_sub(1) as u32
    }

    /// Number of centroids.
    pub fn centroid_count(&self) -> u32 {
        self.lists() / self.stripes.max(1)
    }

    /// Members of a list that are scored first.
    pub fn prewarmed(&self, list: u32) -> usize {
        prewarmed(self.members(list), (list, self.stripes))
    }

    /// Number of slices of every list.
    pub fn slice_count(&self) -> usize {
        self.slices.len().saturating_sub(1)
    }

    /// Number of units: the head and the slices of every list.
    pub fn units(&self) -> u32 {
        self.lists().saturating_mul(self.slices.len() as u32)
    }

    /// The number of a slice among all units.
    pub fn unit(&self, list: u32, slice: usize) -> u32 {
        list.wrapping_mul(self.slices.len() as u32).wrapping_add(1 + slice as u32)
    }

    /// The slice that a unit is, or the one before it for a head.
    pub fn slice_of(&self, unit: u32) -> usize {
        (unit as usize % self.slices.len()).saturating_sub(1)
    }

    /// The groups of a slice.
    pub fn groups(&self, slice: usize) -> Range<usize> {
        self.slices[slice] as usize..self.slices[slice + 1] as usize
    }

    /// The number of members of a list.
    pub fn members(&self, list: u32) -> usize {
        (self.first[list as usize + 1] - self.first[list as usize]) as usize
    }

    /// The members of the lists of a centroid.
    pub fn ids_of_centroid(&self, centroid: u32) -> Range<u32> {
        let stripes = self.stripes.max(1) as usize;
        let first = centroid as usize * stripes;
        self.first[first]..self.first[first + stripes]
    }

    /// A list that is not divided; `None` when it is not in memory.
    pub fn list(&self, list: u32) -> Option<List<'a>> {
        (self.slice_count() == 1).then(|| self.slice(list, 0))?
    }

    /// A slice of a list; `None` when it is not in memory.
    pub fn slice(&self, list: u32, slice: usize) -> Option<List<'a>> {
        let at = list as usize * self.slices.len();
        let unit = |unit: usize| match self.apart {
            Some(units) => units.get(at + unit)?.as_deref().map(bytemuck::cast_slice),
            None => {
                let start = *self.starts.get(at + unit)?;
                self.data.get(usize::try_from(start).ok()?..)
            }
        };
        self.layout.slice(self.members(list), unit(0)?, unit(1 + slice)?, self.groups(slice))
    }

    /// The members of a list that are scored first: where they are, whole, and their numbers there.
    pub(super) fn firsts(&self, list: u32) -> Option<(List<'a>, Range<usize>)> {
        let Some(firsts) = &self.firsts else {
            let head = usize::try_from(*self.starts.get(list as usize * self.slices.len())?).ok()?;
            let members = self.members(list);
            return Some((self.layout.list(members, self.data.get(head..)?)?, 0..self.prewarmed(list)));
        };
        let before = |list: usize| firsts.before.get(list).map(|&before| before as usize);
        let range = before(list as usize)?..before(list as usize + 1)?;
        Some((self.layout.list(*firsts.before.last()? as usize, firsts.data)?, range))
    }
}
