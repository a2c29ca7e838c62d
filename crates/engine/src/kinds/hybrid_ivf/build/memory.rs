//! Memory of a build of clusters, decided before it begins: the plan of its memory under a budget.

use stratann_core::format::edges;
use stratann_core::format::inverted_list::ListLayout;
use stratann_kernel::Metric;
use stratann_params::build::ListOptions;
use stratann_params::choices::PlanName;
use stratann_storage::Result;
use stratann_storage::budget::THREAD_BYTES;

use super::clusters;
use super::forecast;
use super::local_costs::DEGREE;
use super::{ReadSizes, nav};
use crate::clusterings::memory::KmeansMemory;
use crate::codebook::{self, bits};
use crate::curve::CALIBRATION_IN_FLIGHT;
use crate::dataset::Reader;
use crate::kinds::hybrid_ivf::options::code_bytes;
use crate::stages::cells::CellsMemory;
use crate::stages::options::BuildOptions;
use crate::stages::plan::{BuildMemory, BuildPlan, CODEBOOK_SAMPLE_LEAST, ListPlan};
use crate::stages::stage::PlannedStage;
use crate::stages::vamana::Graph;

/// Most that a row takes in tables at any time: its cluster, its place among the members, its list, and what a list
/// is made of.
const TABLE_BYTES: u64 = 20;
/// Longest reads of lists when no profile says which suit the disk.
const READ_MOST: u32 = 256 << 10;
/// Bytes that a thread holds of a cluster that it divides.
pub(crate) const DIVIDE_BYTES: usize = 2 << 20;
/// Least bytes of a part of the lists that are held before it is written.
const PART_LEAST: u64 = 1 << 20;
/// Least bytes of rows that clusters are cut out of for the constants of the cost model.
const POOL_LEAST: u64 = 1 << 20;
/// Bytes of calibration beside the index: exact neighbours first, then queries in flight.
const CALIBRATION_BYTES: u64 = 8 << 20;

/// Sizes that are known of a build before it begins, as far as memory goes.
struct Sizes {
    rows: u64,
    clusters: u64,
    /// Lists, as many as there may be.
    lists: u64,
    dim: u64,
    point_dim: u64,
    shape: ListLayout,
    /// Members of the longest list.
    longest: u64,
    nodes: u64,
}

impl Sizes {
    fn of(base: &Reader, options: &BuildOptions, own: &ListOptions) -> Sizes {
        let of_base = base.shape();
        let rows = of_base.rows;
        let clusters = own.clusters.unwrap_or_else(|| clusters::count(rows)) as u64;
        let clusters = clusters.clamp(1, rows.max(1));
        let shape = ListLayout {
            dim: of_base.dim,
            vector_bytes: of_base.dim * of_base.dtype.size(),
            id_bytes: if options.ids.is_some() { 8 } else { 4 },
            norms: options.metric == Metric::Cosine,
            code_bytes: code_bytes(own, &of_base),
            checksum_seed: 0,
        };
        let most = options.profile.as_ref().map_or(READ_MOST, |profile| ReadSizes::of(profile).most);
        let longest = (shape.members_in(most as usize) as u64).min(rows);
        // √N lists of N members come to no more than this, whatever the sizes.
        let divided = match own.plan {
            PlanName::Auto | PlanName::UniformIvf => ((rows * clusters) as f64).sqrt() as u64,
            PlanName::UniformFlat | PlanName::UniformGraph => 0,
        };
        Sizes {
            rows,
            clusters,
            lists: divided + clusters + rows / longest.max(1),
            dim: of_base.dim as u64,
            point_dim: (of_base.dim + usize::from(options.metric == Metric::Ip)) as u64,
            shape,
            longest,
            nodes: (clusters as f64 * (2.0 + own.nav_samples)) as u64,
        }
    }

    fn point_bytes(&self) -> u64 {
        4 * self.point_dim
    }

    fn cells(&self) -> CellsMemory {
        CellsMemory { rows: self.rows, cells: self.clusters, kmeans: KmeansMemory { dim: self.point_dim } }
    }

    /// Centroids of clusters, as f16 and as floats.
    fn centroid_bytes(&self) -> u64 {
        6 * self.clusters * self.dim
    }

    /// The centroids of lists, and what the directory says of them.
    fn list_bytes(&self) -> u64 {
        self.lists * (4 * self.dim + 2 * self.shape.code_bytes as u64 + 64)
    }

    /// Bytes that the lists are written with, besides the vectors on their way.
    fn writing_bytes(&self) -> u64 {
        self.list_bytes() + self.centroid_bytes()
    }

    fn part_least(&self) -> u64 {
        PART_LEAST.max(self.longest * (self.shape.vector_bytes as u64 + 4))
    }

    fn nav_bytes(&self) -> u64 {
        let node = self.point_bytes() + Graph::bytes(1, nav::DEGREE) + self.shape.code_bytes as u64 + 112;
        self.nodes * node + self.centroid_bytes()
    }

    fn calibration_bytes(&self) -> u64 {
        let codebook = 4 * self.dim * (self.dim + 256);
        let nav = 2 * self.nodes * (76 + self.shape.code_bytes as u64);
        let lists = 2 * self.lists * (40 + self.shape.code_bytes as u64);
        CALIBRATION_BYTES + 2 * self.clusters * self.dim + codebook + nav + lists
    }

    /// Bytes of each thread: of rows that it assigns, of a list that it writes, of a cluster that it divides.
    fn thread_bytes(&self) -> u64 {
        let assigned = self.cells().assigned_bytes(self.shape.vector_bytes as u64);
        let written = self.point_bytes() as usize + self.shape.record_bytes() + self.shape.member_bytes();
        let working = assigned.max(self.longest * written as u64).max(DIVIDE_BYTES as u64);
        THREAD_BYTES + (1 << 20) + working
    }

    /// Bytes of a query that calibrates.
    fn query_bytes(&self) -> u64 {
        codebook::bit_query_bytes(self.dim) + self.dim * 16 + (128 << 10) + 2 * u64::from(READ_MOST)
    }

    fn disk_bytes(&self) -> u64 {
        let member = self.shape.record_bytes() + self.shape.member_bytes() + edges::edge_bytes(DEGREE);
        let lists = self.rows * member as u64 + self.lists * self.shape.list_codes_bytes(0) as u64;
        let spilled = self.rows * (self.shape.vector_bytes as u64 + 4 + TABLE_BYTES);
        lists + spilled + self.list_bytes() + self.centroid_bytes() + 2 * self.nav_bytes()
    }
}

/// The stages of the build, with the least memory of each.
fn stages<'a>(
    sizes: &Sizes,
    base: &Reader,
    options: &'a BuildOptions,
    own: &ListOptions,
) -> Vec<PlannedStage<'a>> {
    let n = sizes.rows;
    let (sampled, fixed) = (bits::row_bytes(sizes.dim as usize), bits::fixed_bytes(sizes.dim as usize));
    let [scan, clusters, profile, plan, codebook, lists, navigation, calibrate] =
        forecast::stages(&base.shape(), options, own);
    vec![
        scan,
        clusters.needs("centroids and the sample they are found from", sizes.cells().least_bytes()),
        profile,
        plan.needs("centroids of divided clusters", 2 * sizes.lists * sizes.point_bytes() + POOL_LEAST),
        codebook.needs("preparing codes", sampled * CODEBOOK_SAMPLE_LEAST.min(n) + fixed),
        lists.needs("lists on their way to the file", sizes.writing_bytes() + sizes.part_least()),
        navigation.needs("the navigation graph", sizes.nav_bytes()),
        calibrate.needs("calibration", options.calibration_bytes(sizes.calibration_bytes())),
    ]
}

/// Plans for the rows of `base`.
///
/// # Errors
/// `ErrorKind::Budget` when no plan fits, naming the smallest budget that works.
pub(crate) fn plan(base: &Reader, options: &BuildOptions, own: &ListOptions) -> Result<BuildPlan> {
    let sizes = Sizes::of(base, options, own);
    if let Some(budget) = own.search_budget {
        // A budget of searches in which no plan can fit is refused before any work.
        super::plan::code_budget(budget, &sizes.shape, sizes.clusters, own.nav_samples, sizes.rows)?;
    }
    let n = sizes.rows;
    let (sampled, fixed) = (bits::row_bytes(sizes.dim as usize), bits::fixed_bytes(sizes.dim as usize));
    let stages = stages(&sizes, base, options, own);
    let memory = BuildMemory::divide(options, (n, TABLE_BYTES), &stages, sizes.thread_bytes())?;
    let (free, cluster_sample) = (memory.free, sizes.cells().sample(memory.free));
    let codebook_sample = (free.saturating_sub(fixed) / sampled).min(bits::SAMPLE_ROWS as u64).min(n).max(1);
    let block_memory = free
        .saturating_sub(sizes.writing_bytes())
        .min(4 * n * (sizes.shape.vector_bytes as u64 + 16))
        .max(sizes.part_least());
    let peaks = [
        sizes.cells().bytes(cluster_sample),
        codebook_sample * sampled + fixed,
        sizes.writing_bytes() + block_memory,
    ];
    let in_flight =
        (CALIBRATION_BYTES / (memory.threads * sizes.query_bytes())).clamp(1, CALIBRATION_IN_FLIGHT as u64);
    let own = ListPlan {
        sample: cluster_sample as usize,
        pool_bytes: free.saturating_sub(sizes.list_bytes()).max(POOL_LEAST) as usize,
    };
    let plan = BuildPlan {
        in_ram: n * (sizes.shape.vector_bytes as u64 + 4) <= block_memory,
        block_memory_bytes: block_memory,
        codebook_sample: codebook_sample as usize,
        calibration_in_flight: match options.ram_budget {
            Some(_) => in_flight as usize,
            None => CALIBRATION_IN_FLIGHT,
        },
        ..memory.plan(n, &peaks, sizes.disk_bytes(), own)
    };
    Ok(plan.with_stages(&base.shape(), &stages))
}
