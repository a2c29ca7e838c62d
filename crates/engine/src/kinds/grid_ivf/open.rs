//! An open `grid-ivf`: all of its vectors are in memory.

use std::path::Path;

use stratann_core::format::grid::GridLayout;
use stratann_core::plan::grid_ivf::{Axes, Pilot, View};
use stratann_kernel::DType;

use super::facts::{GridFacts, GridSection};
use crate::base::{Base, read_role};
use crate::budget::Account;
use crate::kinds::effort::ExactCost;
use crate::manifest::{Manifest, read_resident};
use crate::tier::Resident;
use crate::{Error, Result, files};

/// See the module.
pub(crate) struct GridIndex {
    pub(crate) facts: GridFacts,
    pub(crate) layout: GridLayout,
    axes: StoredAxes,
    pilot: Option<StoredPilot>,
    centroids: Vec<f32>,
    first: Vec<u32>,
    starts: Vec<u64>,
    data: Resident,
}

/// The axes that stored components refer to, as their file has them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StoredAxes {
    /// An orthonormal matrix, a row for each axis; then the point that is subtracted first.
    Rotated(Vec<f32>),
    /// The components of the data set in this order.
    Ordered(Vec<u32>),
}

/// The code of the first principal components, as the file of the axes has it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredPilot {
    /// Orthonormal, a row for each component.
    pub(crate) axes: Vec<f32>,
    /// What the code 0 stands for, by component.
    pub(crate) offsets: Vec<f32>,
}

impl StoredPilot {
    /// As a query uses it.
    pub(crate) fn view(&self, step: f32) -> Pilot<'_> {
        Pilot { axes: &self.axes, offsets: &self.offsets, step }
    }
}

/// What a file of axes holds, for vectors of this type and dimension and a pilot of so many components; `None` when it
/// makes no sense.
pub(crate) fn decode_axes(
    bytes: &[u8],
    dtype: DType,
    dim: usize,
    pilot: usize,
) -> Option<(StoredAxes, Option<StoredPilot>)> {
    let axes_bytes = 4 * if dtype == DType::F32 { (dim + 1) * dim } else { dim };
    let (axes, rest) = bytes.split_at_checked(axes_bytes)?;
    let axes = StoredAxes::decode(axes, dtype, dim)?;
    let floats: Vec<f32> = rest.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    if rest.len() != 4 * pilot * (dim + 1) || floats.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let (matrix, offsets) = floats.split_at(pilot * dim);
    let stored = StoredPilot { axes: matrix.to_vec(), offsets: offsets.to_vec() };
    Some((axes, (pilot > 0).then_some(stored)))
}

impl StoredAxes {
    fn decode(bytes: &[u8], dtype: DType, dim: usize) -> Option<StoredAxes> {
        let words = || bytes.as_chunks::<4>().0.iter();
        if dtype == DType::F32 {
            let matrix: Vec<f32> = words().map(|b| f32::from_le_bytes(*b)).collect();
            let is_sane = bytes.len() == 4 * (dim + 1) * dim && matrix.iter().all(|x| x.is_finite());
            return is_sane.then_some(StoredAxes::Rotated(matrix));
        }
        let order: Vec<u32> = words().map(|b| u32::from_le_bytes(*b)).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let is_sane = bytes.len() == 4 * dim && sorted.into_iter().eq(0..dim as u32);
        is_sane.then_some(StoredAxes::Ordered(order))
    }

    /// The bytes of their file.
    pub(crate) fn encode(&self) -> &[u8] {
        match self {
            StoredAxes::Rotated(matrix) => bytemuck::cast_slice(matrix),
            StoredAxes::Ordered(order) => bytemuck::cast_slice(order),
        }
    }

    /// As a query of `dim` components uses them.
    pub(crate) fn view(&self, dim: usize) -> Axes<'_> {
        match self {
            StoredAxes::Rotated(floats) => {
                let (matrix, means) = floats.split_at(dim * dim);
                Axes::Rotated { matrix, means }
            }
            StoredAxes::Ordered(order) => Axes::Ordered(order),
        }
    }
}

impl Manifest {
    /// The section of a `grid-ivf`.
    pub(crate) fn grid(&self, folder: &Path) -> Result<&GridSection> {
        self.section.grid().ok_or_else(|| {
            Error::corrupt(format!(
                "{}: the manifest says nothing of the lists; build again",
                folder.display()
            ))
        })
    }
}

impl GridIndex {
    /// Reads and checks all files.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(base: &Base) -> Result<GridIndex> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        let facts = manifest.grid(folder)?.facts.clone();
        let layout = facts.layout(base.dtype, base.metric, manifest.dim, base.block.id_bytes);
        let layout = layout.ok_or_else(|| {
            Error::corrupt(format!(
                "{}: the manifest's numbers cannot be; build the index again",
                folder.display()
            ))
        })?;
        let (path, bytes) = read_role(folder, manifest, files::AXES)?;
        let stored = decode_axes(&bytes, base.dtype, manifest.dim, layout.pilot);
        let (axes, pilot) = stored.ok_or_else(|| files::senseless(&path))?;
        let (path, bytes) = read_role(folder, manifest, files::CENTROIDS)?;
        let centroids: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if bytes.len() != 4 * manifest.dim * facts.lists() as usize
            || centroids.iter().any(|x| !x.is_finite())
        {
            return Err(files::senseless(&path));
        }
        let (path, bytes) = read_role(folder, manifest, files::SIZES)?;
        let (first, starts, end) = places(&bytes, &layout);
        let rows = first.last().copied().map_or(0, u64::from);
        if bytes.len() != 4 * facts.lists() as usize || rows != manifest.rows {
            return Err(files::senseless(&path));
        }
        let (name, entry) = manifest.file(files::GRID)?;
        if end > entry.bytes {
            return Err(files::senseless(&folder.join(name)));
        }
        let data = read_resident(folder, name, entry)?;
        Ok(GridIndex { facts, layout, axes, pilot, centroids, first, starts, data })
    }

    /// What queries see.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            layout: &self.layout,
            scale: self.facts.scale(),
            axes: self.axes.view(self.layout.dim()),
            pilot: self.pilot.as_ref().map(|pilot| pilot.view(self.facts.pilot_step)),
            centroids: &self.centroids,
            first: &self.first,
            starts: &self.starts,
            data: &self.data,
        }
    }

    /// What a query that searches everything goes through.
    pub(crate) fn exact_cost(&self, base: &Base) -> ExactCost {
        ExactCost {
            count: self.starts.len() as u64,
            unit: "lists",
            bytes: base.manifest.rows * base.row_bytes() as u64,
            vector_bytes_max: 0,
        }
    }

    /// Its axes.
    pub(crate) fn axes(&self) -> &StoredAxes {
        &self.axes
    }

    /// Adds its memory, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        account.add("vectors", self.data.len() as u64);
        let pilot = self.pilot.as_ref().map_or(0, |pilot| 4 * (pilot.axes.len() + pilot.offsets.len()));
        account.add("axes", (self.axes.encode().len() + pilot) as u64);
        account.add("centroids", 4 * self.centroids.len() as u64);
        account.add("sizes of lists", 12 * self.starts.len() as u64);
    }
}

/// The first id of each list and the number of all members, where each list begins, and where the last one ends. Sums
/// that are too large saturate.
pub(crate) fn places(sizes: &[u8], layout: &GridLayout) -> (Vec<u32>, Vec<u64>, u64) {
    let (mut first, mut starts, mut end) = (vec![0u32], Vec::new(), 0u64);
    for size in sizes.as_chunks::<4>().0 {
        let size = u32::from_le_bytes(*size);
        first.push(first[first.len() - 1].saturating_add(size));
        starts.push(end);
        end = end.saturating_add(layout.list_bytes(size as usize) as u64);
    }
    (first, starts, end)
}
