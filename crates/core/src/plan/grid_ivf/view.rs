//! What a `grid-ivf` keeps in RAM.

use alloc::vec::Vec;

use stratann_kernel::distance::{block_dot_f32, dot_f32};

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
    /// What the code 0 stands for, by component.
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

/// What queries see.
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
    /// A centroid for each list, in the components of the data set.
    pub centroids: &'a [f32],
    /// The first id of each list, and the number of vectors.
    pub first: &'a [u32],
    /// Where each list begins in `data`.
    pub starts: &'a [u64],
    /// The lists.
    pub data: &'a [u8],
}

impl<'a> View<'a> {
    /// Number of lists.
    pub fn lists(&self) -> u32 {
        self.first.len().saturating_sub(1) as u32
    }

    /// The number of members of a list.
    pub fn members(&self, list: u32) -> usize {
        (self.first[list as usize + 1] - self.first[list as usize]) as usize
    }

    /// A list; `None` when it is not in memory.
    pub fn list(&self, list: u32) -> Option<List<'a>> {
        let start = *self.starts.get(list as usize)? as usize;
        self.layout.list(self.members(list), self.data.get(start..)?)
    }
}
