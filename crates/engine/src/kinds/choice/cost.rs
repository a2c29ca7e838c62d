//! Predicted cost of a query by kind. Constants are fits to searches at recall 0.95; `decisions/0033` has the figures.

use stratann_core::PAGE;
use stratann_core::format::inverted_list::ListLayout;
use stratann_storage::profile::Profile;

use crate::dataset::Shape;
use crate::kinds::hybrid_ivf::build::{clusters, plan};
use stratann_params::IndexKind;

/// Bytes of a read of a scan.
const SCAN_READ_BYTES: f64 = 65_536.0;
/// Reads of a graph search: at least so many, and `READS · rows^GROWTH · hardness` more.
const READS_LEAST: f64 = 7.0;
const READS: f64 = 0.06;
const GROWTH: f64 = 0.42;
/// Codes and vectors that a graph search scores per read.
const CODES_PER_READ: f64 = 60.0;
const VECTORS_PER_READ: f64 = 6.0;
/// Reads of a search in inverted lists whose codes are in RAM, over 10,000 rows, and their growth and bytes.
const LIST_READS: f64 = 5.0;
const LIST_GROWTH: f64 = 0.1;
const LIST_READ_BYTES: f64 = 60.0 * 1024.0;
/// Visited lists, the time of a visit, and the codes that the walk over the navigation graph scores.
const VISITS: f64 = 20.0;
const VISIT_US: f64 = 2.0;
const NAVIGATION_CODES: f64 = 1500.0;
/// A search is twice as hard for every [`DOUBLING`] intrinsic dimensions above [`USUAL_DIMENSIONS`].
const USUAL_DIMENSIONS: f64 = 20.0;
const DOUBLING: f64 = 6.0;
/// Time of a component in the rotation of a query and in its tables, nanoseconds.
const ROTATION_NS: f64 = 0.15;
const TABLE_NS: f64 = 0.1;
/// Time to check a byte that was read, and time of a query apart from all this, microseconds.
const CHECK_US: f64 = 0.00015;
const FIXED_US: f64 = 25.0;
/// Processor time of a read and of the step that takes it, microseconds.
const STEP_US: f64 = 4.0;

/// Time of a query in memory apart from its comparisons, and of a component in the rotation, microseconds.
const MEMORY_FIXED_US: f64 = 5.0;
const MEMORY_COMPONENT_US: f64 = 0.005;
/// Codes that a graph in memory compares, `CODES · hardness^(1/4) · rows^(1/3)`, and the time of each with all around
/// it.
const MEMORY_CODES: f64 = 35.0;
const MEMORY_CODE_US: f64 = 0.045;
/// Time of a row in a scan in memory besides its components.
const MEMORY_ROW_US: f64 = 0.002;

/// Unit costs, microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    read_us: f64,
    byte_us: f64,
    /// Time of a component of an exact distance, by bytes of a component.
    component_us: [f64; 3],
    code_byte_us: f64,
    code_us: f64,
}

impl Rates {
    /// Unit costs of a profile, or of a usual server with an SSD, so that a choice without a profile is the same
    /// everywhere.
    pub(super) fn of(profile: Option<&Profile>) -> Rates {
        let Some(profile) = profile else {
            return Rates {
                read_us: 10.0,
                byte_us: 0.0006,
                component_us: [0.000_02, 0.000_04, 0.000_04],
                code_byte_us: 0.0005,
                code_us: 0.0075,
            };
        };
        let (loaded, compute) = (&profile.disk.loaded, &profile.compute);
        let depth = f64::from(loaded.depth.max(1));
        let component = |cost: &stratann_storage::profile::DistanceCost| cost.ns(512) / 512.0 / 1000.0;
        Rates {
            read_us: loaded.fixed_us / depth,
            byte_us: loaded.ns_per_byte / 1000.0 / depth,
            component_us: [&compute.full_u8, &compute.full_f16, &compute.full_f32].map(component),
            code_byte_us: compute.codes.ns_per_unit / 1000.0,
            code_us: compute.codes.fixed_ns / 1000.0,
        }
    }

    fn vector_us(&self, shape: Shape) -> f64 {
        let component = match shape.dtype.size() {
            1 => self.component_us[0],
            2 => self.component_us[1],
            _ => self.component_us[2],
        };
        component * shape.dim as f64
    }

    fn codes_us(&self, count: f64, code_bytes: usize) -> f64 {
        count * (self.code_us + self.code_byte_us * code_bytes as f64)
    }

    fn reads_us(&self, reads: f64, bytes: f64) -> f64 {
        reads * (self.read_us + STEP_US) + bytes * (self.byte_us + CHECK_US)
    }
}

/// Sizes that the cost of a query depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) shape: Shape,
    /// Intrinsic dimensions.
    pub(super) dimensions: f64,
    pub(super) graph_code_bytes: usize,
    pub(super) list_code_bytes: usize,
    pub(super) clusters: Option<usize>,
    pub(super) nav_samples: f64,
    pub(super) norms: bool,
    pub(super) search_budget: Option<u64>,
    /// Memory of searches that read nothing: of a scan, and of a graph.
    pub(super) scan_bytes: u64,
    pub(super) resident_graph_bytes: u64,
}

impl Sizes {
    /// Whether searches in an index of this kind have all in memory that they use.
    pub(super) fn is_resident(&self, kind: IndexKind) -> bool {
        let needed = match kind {
            IndexKind::Flat => self.scan_bytes,
            IndexKind::DiskGraph => self.resident_graph_bytes,
            _ => return false,
        };
        self.search_budget.is_none_or(|budget| needed <= budget)
    }

    /// Predicted time of a query among others on one thread, microseconds.
    pub(super) fn query_us(&self, kind: IndexKind, rates: &Rates) -> f64 {
        if self.is_resident(kind) { self.in_memory_us(kind, rates) } else { self.on_disk_us(kind, rates) }
    }

    /// The same in memory, of the kinds that can be there.
    fn in_memory_us(&self, kind: IndexKind, rates: &Rates) -> f64 {
        MEMORY_FIXED_US
            + match kind {
                IndexKind::Flat => self.rows() * (rates.vector_us(self.shape) + MEMORY_ROW_US),
                _ => {
                    let codes = MEMORY_CODES * self.hardness().powf(0.25) * self.rows().cbrt();
                    self.shape.dim as f64 * MEMORY_COMPONENT_US + codes.min(self.rows()) * MEMORY_CODE_US
                }
            }
    }

    fn on_disk_us(&self, kind: IndexKind, rates: &Rates) -> f64 {
        FIXED_US
            + match kind {
                IndexKind::Flat => self.flat_us(rates),
                IndexKind::DiskGraph => self.graph_us(rates),
                IndexKind::HybridIvf => self.lists_us(rates),
                // It is no candidate.
                IndexKind::GridIvf | IndexKind::GpuIvf | IndexKind::RemoteHnsw => f64::INFINITY,
            }
    }

    fn rows(&self) -> f64 {
        self.shape.rows as f64
    }

    fn flat_us(&self, rates: &Rates) -> f64 {
        let reads = self.scan_reads();
        rates.reads_us(reads, reads * SCAN_READ_BYTES) + self.rows() * rates.vector_us(self.shape)
    }

    /// Factor by which a search is harder than in the usual number of dimensions.
    fn hardness(&self) -> f64 {
        ((self.dimensions - USUAL_DIMENSIONS) / DOUBLING).exp2()
    }

    /// Reads of a scan.
    pub(super) fn scan_reads(&self) -> f64 {
        (self.rows() * (self.shape.row_bytes() + 4) as f64 / SCAN_READ_BYTES).ceil()
    }

    /// Time to prepare a query: its rotation and its tables.
    fn tables_us(&self) -> f64 {
        let dim = self.shape.dim as f64;
        (dim * dim * ROTATION_NS + dim * 256.0 * TABLE_NS) / 1000.0
    }

    fn graph_us(&self, rates: &Rates) -> f64 {
        let row_bytes = self.shape.row_bytes() as f64;
        let pages = ((row_bytes + 128.0) / PAGE as f64).ceil();
        let per_read = (pages * PAGE as f64 / (row_bytes + 128.0)).max(1.0);
        let more = READS * self.hardness() * self.rows().powf(GROWTH);
        let reads = (READS_LEAST + more).min(self.rows() / per_read + 1.0);
        let scored = (reads * per_read.min(VECTORS_PER_READ)).min(self.rows());
        rates.reads_us(reads, reads * pages * PAGE as f64)
            + rates.codes_us((reads * CODES_PER_READ).min(self.rows()), self.graph_code_bytes)
            + scored * rates.vector_us(self.shape)
            + self.tables_us()
    }

    fn lists_us(&self, rates: &Rates) -> f64 {
        let clusters = self.clusters.unwrap_or_else(|| clusters::count(self.shape.rows)) as f64;
        // In few dimensions as many lists are visited as in the usual number.
        let hardness = self.hardness().max(1.0);
        let visits = (VISITS * hardness.sqrt()).min(clusters);
        let members = self.rows() / clusters;
        let code = self.list_code_bytes as f64 + 8.0;
        let absent = 1.0 - self.resident_share(clusters);
        let reads = LIST_READS * hardness.sqrt() * (self.rows() / 1e4).powf(LIST_GROWTH);
        let bytes = LIST_READ_BYTES * hardness;
        rates.reads_us(reads, bytes.min(self.rows() * self.shape.row_bytes() as f64))
            + visits * VISIT_US
            + rates.reads_us(absent * visits, absent * visits * (members * code).max(PAGE as f64))
            + rates.codes_us(visits * members + NAVIGATION_CODES.min(clusters), self.list_code_bytes)
            + self.tables_us()
    }

    /// Share of the list codes that searches hold in RAM.
    fn resident_share(&self, clusters: f64) -> f64 {
        let Some(budget) = self.search_budget else { return 1.0 };
        let layout = ListLayout {
            dim: self.shape.dim,
            vector_bytes: self.shape.row_bytes(),
            id_bytes: 4,
            norms: self.norms,
            code_bytes: self.list_code_bytes,
            checksum_seed: 0,
        };
        let left = plan::code_budget(budget, &layout, clusters as u64, self.nav_samples, self.shape.rows);
        let codes = self.rows() * (self.list_code_bytes as f64 + 8.0);
        left.map_or(0.0, |left| (left as f64 / codes).min(1.0))
    }
}
