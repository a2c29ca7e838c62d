//! An open `grid-ivf`: all of its vectors are in memory, or what one server holds of them.

use std::path::Path;

use stratann_core::format::grid::GridLayout;
use stratann_core::kinds::grid_ivf::{Axes, Codes, Firsts, Pilot, View};
use stratann_core::kinds::{KindParams, KindView};
use stratann_kernel::bits::BitCoder;
use stratann_kernel::{DType, Metric};
use stratann_storage::budget::Account;
use stratann_storage::cache::ExtentCache;
use stratann_storage::data_file::read_resident;
use stratann_storage::tier::Resident;
use stratann_storage::{Progress, Result};

use super::divide::{Over, Placed, place};
use super::facts::{CODE_SEED, GridFacts};
use super::held::HeldUnits;
use super::stripes::Striped;
use super::units::{self, Places};
use super::{account, calibration, digits};
use crate::base::{Base, read_role};
use crate::curve::Grid;
use crate::files;
use crate::kinds::answers::ExactCost;
use crate::kinds::answers::{SievePlan, SievedQuery};
use crate::kinds::questions::OpenKind;
use crate::kinds::section::Section;
use crate::kinds::sieved_lists::{LIST_BYTES, SievedLists};
use crate::manifest::Manifest;
use crate::sieve_ways::SieveWay;
use crate::units::{Held, HeldRanges};

/// See the module.
pub(crate) struct GridIndex {
    pub(crate) facts: GridFacts,
    pub(crate) layout: GridLayout,
    axes: StoredAxes,
    pilot: Option<StoredPilot>,
    coder: Option<StoredCoder>,
    centroids: Vec<f32>,
    places: Places,
    data: Resident,
    // Of one server.
    share: Option<Share>,
}

/// Part of one server.
struct Share {
    held: HeldRanges,
    /// Units of the server, each by itself.
    units: HeldUnits,
    /// The first members of all lists.
    firsts: Resident,
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
    /// Values of the code 0, by component.
    pub(crate) offsets: Vec<f32>,
}

impl StoredPilot {
    /// The pilot as a query uses it.
    pub(crate) fn view(&self, step: f32) -> Pilot<'_> {
        Pilot { axes: &self.axes, offsets: &self.offsets, step }
    }
}

/// How codes are made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredCoder {
    coder: BitCoder,
    /// The point that is subtracted from vectors before they are rotated, as the file of the axes has it.
    pub(crate) centre: Vec<f32>,
}

impl StoredCoder {
    /// The coder as a query uses it.
    pub(crate) fn view(&self) -> Codes<'_> {
        Codes { coder: &self.coder, centre: &self.centre }
    }

    fn memory_bytes(&self) -> u64 {
        // The rotation has three signs for each component, and the coder a centre.
        4 * 5 * self.centre.len() as u64
    }
}

/// Content of a file of axes.
pub(crate) struct AxesFile {
    pub(crate) axes: StoredAxes,
    pub(crate) pilot: Option<StoredPilot>,
    pub(crate) coder: Option<StoredCoder>,
}

impl AxesFile {
    /// The content for vectors of this layout; `None` when it makes no sense. Its length tells whether floats of 32
    /// bits are rotated.
    pub(crate) fn decode(bytes: &[u8], layout: &GridLayout) -> Option<AxesFile> {
        let (dim, pilot) = (layout.dim(), layout.pilot);
        let centre_bytes = if layout.code.is_some() { 4 * dim } else { 0 };
        let (bytes, centre) = bytes.split_at_checked(bytes.len().checked_sub(centre_bytes)?)?;
        let is_rotated = layout.dtype == DType::F32 && bytes.len() != 4 * dim;
        let axes_bytes = 4 * if is_rotated { (dim + 1) * dim } else { dim };
        let (axes, rest) = bytes.split_at_checked(axes_bytes)?;
        let axes = StoredAxes::decode(axes, is_rotated, dim)?;
        let floats = |bytes: &[u8]| -> Option<Vec<f32>> {
            let all: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            all.iter().all(|x| x.is_finite()).then_some(all)
        };
        let (rest, centre) =
            (Some(rest).filter(|rest| rest.len() == 4 * pilot * (dim + 1))?, floats(centre)?);
        let rest = floats(rest)?;
        let (matrix, offsets) = rest.split_at(pilot * dim);
        let stored = StoredPilot { axes: matrix.to_vec(), offsets: offsets.to_vec() };
        let is_ip = layout.metric == Metric::Ip;
        let coder = layout.code.map(|code| BitCoder::of_points(code, CODE_SEED, is_ip));
        Some(AxesFile {
            axes,
            pilot: (pilot > 0).then_some(stored),
            coder: coder.map(|coder| StoredCoder { coder, centre }),
        })
    }
}

impl StoredAxes {
    fn decode(bytes: &[u8], is_rotated: bool, dim: usize) -> Option<StoredAxes> {
        let words = || bytes.as_chunks::<4>().0.iter();
        if is_rotated {
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

    /// A point of the data set in these axes.
    pub(crate) fn turned(&self, point: &[f32]) -> Vec<f32> {
        let mut out = Vec::with_capacity(point.len());
        self.view(point.len()).turn(point, &mut out);
        out
    }

    /// The axes as a query of `dim` components uses them.
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

impl GridIndex {
    /// Reads and checks all files, with all units or with those of one server. Units that another version of the
    /// partition has in memory are not kept twice.
    ///
    /// # Errors
    /// A file that is missing or damaged.
    pub(crate) fn open(
        base: &Base,
        held: Option<Held<'_>>,
        previous_version: Option<&GridIndex>,
    ) -> Result<GridIndex> {
        let (folder, manifest) = (&base.folder, &base.manifest);
        let facts = manifest.own(folder, Section::grid)?.facts.clone();
        let layout = units::layout(folder, manifest)?;
        let (path, bytes) = read_role(folder, manifest, files::AXES)?;
        let stored = AxesFile::decode(&bytes, &layout);
        let AxesFile { axes, pilot, coder } = stored.ok_or_else(|| files::senseless(&path))?;
        let (path, bytes) = read_role(folder, manifest, files::CENTROIDS)?;
        let centroids: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if bytes.len() != 4 * manifest.dim * facts.centroids() as usize
            || centroids.iter().any(|x| !x.is_finite())
        {
            return Err(files::senseless(&path));
        }
        let mut places = Places::read(folder, manifest, &layout)?;
        let (name, needed, share) = match held {
            None => (manifest.file(files::GRID)?.0.to_string(), places.end, None),
            Some(held) => {
                let whole = u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64;
                let ranges = places.ranges(whole);
                let held_ranges = HeldRanges::new(&ranges, held);
                let (name, entry) = manifest.file(files::FIRSTS)?;
                if entry.bytes != places.firsts_bytes(&layout) {
                    return Err(files::senseless(&folder.join(name)));
                }
                let firsts = read_resident(folder, name, entry)?;
                let name = manifest.file(&manifest.part_role(held.server))?.0.to_string();
                let known = previous_version.and_then(|other| other.units_like(&facts, &places));
                let units =
                    HeldUnits::read((folder, &name), &manifest.files[name.as_str()], (&ranges, held), known)?;
                places.starts = Vec::new();
                (name, held_ranges.file_bytes(), Some(Share { held: held_ranges, units, firsts }))
            }
        };
        let entry = &manifest.files[name.as_str()];
        if needed > entry.bytes {
            return Err(files::senseless(&folder.join(&name)));
        }
        let data = match share {
            Some(_) => Resident::new(0).ok_or_else(|| files::senseless(&folder.join(&name)))?,
            None => read_resident(folder, &name, entry)?,
        };
        let grid = GridIndex { facts, layout, axes, pilot, coder, centroids, places, data, share };
        digits::check(folder, &grid)?;
        Ok(grid)
    }

    /// The part of the index that queries see.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            layout: &self.layout,
            scale: self.facts.scale(),
            axes: self.axes.view(self.layout.dim()),
            pilot: self.pilot.as_ref().map(|pilot| pilot.view(self.facts.pilot_step)),
            codes: self.coder.as_ref().map(StoredCoder::view),
            centroids: &self.centroids,
            stripes: self.facts.stripes,
            first: &self.places.first,
            slices: &self.places.slices,
            starts: &self.places.starts,
            data: &self.data,
            apart: self.share.as_ref().map(|share| share.units.all()),
            firsts: self
                .share
                .as_ref()
                .map(|share| Firsts { before: &self.places.firsts, data: &share.firsts }),
        }
    }

    /// Units of the index, where they are those of another version of the same partition: lists and slices are the
    /// same.
    fn units_like(&self, facts: &GridFacts, places: &Places) -> Option<&HeldUnits> {
        let is_alike =
            self.facts == *facts && self.places.slices == places.slices && self.places.first == places.first;
        self.share.as_ref().filter(|_| is_alike).map(|share| &share.units)
    }

    /// The index with other lists.
    pub(crate) fn with_lists(self, striped: Striped) -> GridIndex {
        let Striped { facts, places, data, .. } = striped;
        GridIndex { facts, places, data, ..self }
    }

    /// The bytes of all lists.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Places of all units in the files.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Axes of the index.
    pub(crate) fn axes(&self) -> &StoredAxes {
        &self.axes
    }
}

impl OpenKind for GridIndex {
    fn view<'a>(&'a self, _: &'a Base) -> KindView<'a> {
        KindView::GridIvf(GridIndex::view(self))
    }

    fn account(&self, account: &mut Account) {
        let units = self.share.as_ref().map_or(0, |share| share.units.bytes());
        account.add("vectors", self.data.len() as u64 + units);
        let pilot = self.pilot.as_ref().map_or(0, |pilot| 4 * (pilot.axes.len() + pilot.offsets.len()));
        let coder = self.coder.as_ref().map_or(0, StoredCoder::memory_bytes);
        account.add("axes", (self.axes.encode().len() + pilot) as u64 + coder);
        account.add("centroids", 4 * self.centroids.len() as u64);
        account.add("sizes of lists", self.places.memory_bytes());
        if let Some(share) = &self.share {
            account.add("first members of lists", share.firsts.len() as u64);
            account.add("ranges of lists", share.held.memory_bytes());
        }
    }

    fn cache(&self, _: &Base, _: u64) -> Option<ExtentCache> {
        None
    }

    fn plan_sieve(&self, _: &Base, query: &SievedQuery<'_>) -> Option<SievePlan> {
        let view = GridIndex::view(self);
        // The members of a striped list are those of one.
        let lists = (0..view.centroid_count()).map(|centroid| view.ids_of_centroid(centroid));
        let mut plan = SievePlan {
            way: SieveWay::Exact,
            params: query.usual,
            more_bytes: LIST_BYTES * view.first.len() as u64,
            prices: None,
        };
        let KindParams::GridIvf(own) = &mut plan.params.kind else { return None };
        let lists = SievedLists::new(query, own.nprobe, lists);
        plan.prices = Some(lists.prices_of_exact());
        match lists.nprobe().filter(|_| !own.exact) {
            Some(nprobe) => (plan.way, own.nprobe) = (SieveWay::Search, nprobe),
            None => own.exact = true,
        }
        Some(plan)
    }

    fn in_flight(&self) -> usize {
        account::in_flight(self.share.is_some())
    }

    fn query_tables_bytes(&self, base: &Base, _: u64) -> u64 {
        account::query_bytes(base.manifest.dim, &self.facts)
    }

    fn exact_cost(&self, base: &Base) -> ExactCost {
        ExactCost {
            count: self.facts.centroids().into(),
            unit: "lists",
            bytes: base.manifest.rows * base.row_bytes() as u64,
            vector_bytes_max: 0,
            is_shared: false,
        }
    }

    fn grid(&self, _: &Base, _: u32, _: Option<&str>) -> Grid {
        calibration::grid(self.facts.lists())
    }

    fn held_ranges(&self) -> Option<&HeldRanges> {
        self.share.as_ref().map(|share| &share.held)
    }
}

/// Slices of the lists, which a planner divides over servers.
impl GridIndex {
    /// Divides its lists over servers.
    ///
    /// # Errors
    /// Queries of another shape, an interruption, damage.
    pub(crate) fn divide(&self, base: &Base, over: Over<'_>, progress: &dyn Progress) -> Result<Placed> {
        place(base, self, over, progress)
    }

    /// The view that queries have of the whole index when its lists are divided.
    pub(crate) fn divided_view<'a>(
        &'a self,
        (places, striped): &'a (Places, Option<Striped>),
    ) -> KindView<'a> {
        let view = View { slices: &places.slices, starts: &places.starts, ..self.view() };
        KindView::GridIvf(match striped {
            None => view,
            Some(lists) => {
                View { stripes: lists.facts.stripes, first: &places.first, data: &lists.data, ..view }
            }
        })
    }

    /// Lists that the members of each are dealt over, one after another.
    pub(crate) fn stripes(&self) -> u32 {
        self.facts.stripes.max(1)
    }

    /// Bytes of units that are in memory once for this version and for the one beside which it was opened.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.share.as_ref().map_or(0, |share| share.units.shared_bytes())
    }

    /// Bytes of the units that a server holds of another version, and that are in memory here.
    ///
    /// # Errors
    /// As [`Places::read`].
    pub(crate) fn shareable_bytes(&self, folder: &Path, manifest: &Manifest, held: Held<'_>) -> Result<u64> {
        let layout = units::layout(folder, manifest)?;
        let places = Places::read(folder, manifest, &layout)?;
        let whole = u64::from(manifest.blocks.count) * manifest.blocks.bytes as u64;
        let own = self.units_like(&manifest.own(folder, Section::grid)?.facts, &places);
        Ok(own.map_or(0, |units| units.bytes_in(&places.ranges(whole), held)))
    }
}
