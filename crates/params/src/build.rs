//! Parameters of builds.

use std::path::PathBuf;

use crate::choices::IndexKind::{DiskGraph, GpuIvf, GridIvf, HybridIvf, RemoteHnsw};
use crate::choices::{CodePlace, MetricName, OnBadRow, PlanName, Representatives};
use crate::{Level, Stage, Unit};

params! {
    /// Options of every build
    #[derive()]
    pub struct CommonOptions: Build of [] {
        /// Distance; smaller is closer for all metrics
        metric: MetricName = MetricName::L2, { also: &[Stage::Truth], level: Level::Usual };
        /// Limit of all memory of the build, such as 512MiB
        ///
        /// A graph that does not fit is built in parts on disk: slower, with nearly the same recall (within about a
        /// percent).
        ram_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit", level: Level::Usual };
        /// Threads; they do not change the result
        threads: Option<usize> = None,
            { range: 1.0..=1024.0, usual: "all cores", also: &[Stage::Tune, Stage::Truth, Stage::Replan],
              level: Level::Usual };
        /// Seed of all random choices
        seed: u64 = 1, { level: Level::Usual };
        /// External ids, one u64 per row, .u64bin or .npy; searches return them
        ids: Option<PathBuf> = None, { shown: "FILE", usual: "the row number", level: Level::Usual };
        /// Treatment of rows without valid distances (NaN, infinite, zero under cosine)
        on_bad_row: OnBadRow = OnBadRow::Fail, { also: &[Stage::Truth], level: Level::Usual };
        /// Replace the existing index; it stays in use until the new one is complete
        force: bool = false, { level: Level::Usual };
        /// Resume an interrupted build; requires the same options
        resume: bool = false, { level: Level::Usual };
        /// Cost profile, from `stratann profile`
        profile: Option<PathBuf> = None,
            { shown: "FILE", usual: "that of the disk, measured once for 8 s and then kept in STRATANN_CACHE or \
              ~/.cache/stratann, so that equal builds get equal plans", kinds: &[HybridIvf], keeps_auto: true };
        /// Rows that calibrate --recall, at most; with 0, searches need --search-list or --nprobe
        ///
        /// Sets of fewer than 50 times as many rows calibrate with a row in 50, but no fewer than 100.
        calibration_queries: usize = 500,
            { shown: "N", kinds: &[DiskGraph, HybridIvf, GridIvf, GpuIvf, RemoteHnsw], keeps_auto: true };
    }
}

params! {
    /// Options of disk-graph (the defaults suit nearly all data)
    #[derive()]
    pub struct GraphOptions: Build of [DiskGraph] {
        /// Most neighbours of a node: more neighbours find more per read and take more space in a block
        degree: usize = 64, { shown: "R", range: 4.0..=250.0, role: "neighbours of a node" };
        /// Length of the beam that finds neighbours: a longer one builds slower and better
        build_list: usize = 128, { shown: "L", range: 1.0..=10_000.0, role: "beam of the build" };
        /// Pruning factor of edges (alpha in DiskANN): larger values keep longer edges
        alpha: f32 = 1.2, { range: 1.0..=4.0 };
        /// Passes over all rows
        passes: usize = 1, { level: Level::Research };
        /// Bytes of RAM per vector for its code
        ///
        /// Larger codes need fewer reads: raise this first when RAM is left, lower it first when RAM is short.
        code_bytes: Option<usize> = None,
            { shown: "BYTES", usual: "max(32, dimensions / 4); 4 bits a dimension where all codes fit 64 MiB, and an \
              eighth of --ram-budget", level: Level::Usual };
        /// Bits of each dimension in a vector's code, on average
        code_bits: Option<usize> = None,
            { shown: "BITS", range: 1.0..=8.0, usual: "as many as fit --code-bytes", conflicts: &["code_bytes"] };
        /// Place of the codes during searches
        ///
        /// With disk, RAM holds only the head graph with its codes and one bit per vector: about a quarter.
        codes: CodePlace = CodePlace::Ram, { level: Level::Usual };
        /// Share of the rows in the head graph, the entry points of searches in RAM
        head_share: f64 = 0.05, { shown: "SHARE", range: 0.0..=1.0 };
        /// Pack nodes that are near in the graph into the same blocks
        pack: bool = true,
            { off: "Do not pack neighbours into the same blocks (to compare)", level: Level::Research };
        /// Assume compressed adjacency lists when choosing the nodes of a block
        compress: bool = true,
            { off: "Assume uncompressed adjacency lists in the design of blocks (to compare)",
              level: Level::Research };
        /// Nodes per block
        nodes_per_block: Option<usize> = None,
            { shown: "N", range: 1.0..=f64::INFINITY, usual: "as many as fit", level: Level::Research };
        /// Pages of 4 KiB per block, up to 16
        pages_per_block: Option<usize> = None,
            { shown: "N", range: 1.0..=16.0, usual: "chosen by the build", level: Level::Research };
        /// Build the graph on f32 even where bytes suffice
        exact_points: bool = false, { level: Level::Research };
        /// Build the graph in at least this many overlapping parts
        cells: Option<usize> = None, { shown: "N", range: 1.0..=10_000.0, usual: "as --ram-budget requires" };
    }
}

params! {
    /// Options of hybrid-ivf
    #[derive()]
    pub struct ListOptions: Build of [HybridIvf] {
        /// Number of inverted lists
        clusters: Option<usize> = None,
            { shown: "N", range: 1.0..=f64::INFINITY, usual: "4 times the square root of the rows",
              role: "number of lists" };
        /// Local index of the inverted lists
        plan: PlanName = PlanName::Auto;
        /// RAM of later searches, such as 64MiB: which kinds --kind auto considers, and which lists are scanned,
        /// divided or graphs
        search_budget: Option<u64> = None,
            { shown: "SIZE", unit: Unit::Bytes, usual: "no limit for auto; the smallest possible for lists",
              keeps_auto: true, level: Level::Usual };
        /// Sampled vectors in the navigation graph, per list
        nav_samples: f64 = 2.0, { shown: "N", range: 0.0..=1000.0 };
        /// Bytes of a vector's code
        code_bytes: Option<usize> = None,
            { shown: "BYTES", level: Level::Usual,
              usual: "half a byte per component of a float and 8, a quarter of others and 4" };
        /// Bits of each dimension in a vector's code, on average
        code_bits: Option<usize> = None,
            { shown: "BITS", range: 1.0..=8.0, usual: "as many as fit --code-bytes", conflicts: &["code_bytes"] };
    }
}

params! {
    /// Options of grid-ivf
    #[derive()]
    pub struct GridOptions: Build of [GridIvf] {
        /// Number of inverted lists
        lists: Option<usize> = None,
            { shown: "N", range: 1.0..=f64::INFINITY, usual: "the square root of the rows", role: "number of lists" };
        /// Centroids of the inverted lists: a file of f32 vectors
        centroids: Option<PathBuf> = None, { shown: "FILE", usual: "found by k-means", conflicts: &["lists"] };
    }
}

params! {
    /// Options of gpu-ivf
    #[derive()]
    pub struct GpuOptions: Build of [GpuIvf] {
        /// Inverted lists, as a share of the rows
        list_share: f64 = 0.1, { shown: "SHARE", range: f64::MIN_POSITIVE..=1.0, role: "number of lists" };
        /// Put a vector also in lists whose centroids are farther than the nearest by this share of the distance, in 8
        /// at most
        epsilon: f32 = 0.15, { shown: "SHARE", range: 0.0..=10.0 };
        /// Bytes of a vector's code
        code_bytes: Option<usize> = None,
            { shown: "BYTES", usual: "max(36, dimensions / 4 + 4)", level: Level::Usual };
        /// Bits of each dimension in a vector's code, on average
        code_bits: Option<usize> = None,
            { shown: "BITS", range: 1.0..=8.0, usual: "as many as fit --code-bytes", conflicts: &["code_bytes"] };
        /// Write files that searches with --baseline need, and measure their recall (to compare)
        baselines: bool = false, { is_of_lab: true, level: Level::Research };
    }
}

params! {
    /// Options of remote-hnsw
    #[derive(Eq)]
    pub struct RemoteOptions: Build of [RemoteHnsw] {
        /// Number of clusters of vectors
        partitions: Option<usize> = None,
            { shown: "P", range: 1.0..=65_536.0, usual: "500, or one for 64 rows of small sets",
              role: "number of lists" };
        /// How the vectors that represent clusters are chosen
        representatives: Representatives = Representatives::Sample;
        /// Room for vectors that are inserted later, for each two clusters, such as 768KiB
        overflow: Option<u64> = None, { shown: "SIZE", unit: Unit::Bytes, usual: "an eighth of their bytes" };
        /// Neighbours of a node on upper layers, half of those on the bottom layer
        m: usize = 16, { shown: "M", short: Some('M'), range: 2.0..=256.0, role: "neighbours of a node" };
        /// Length of the beam that finds neighbours: a longer one builds slower and better
        ef_construction: usize = 200, { shown: "EF", range: 1.0..=65_536.0, role: "beam of the build" };
    }
}

/// Bytes of a code for vectors of `dim` components, where none are given: a quarter of the components, 32 at least, but
/// for few components.
fn usual_code_bytes(dim: usize) -> usize {
    // Factors and a number need five bytes, however few the dimensions.
    (dim / 4).max(32).min(dim.max(6))
}

/// Bytes of codes of `bits` bits for each of `dim` components: whole bytes for the bits of each weight, two factors,
/// and the number of a centroid.
fn bytes_of_bits(dim: usize, bits: usize, is_numbered: bool) -> usize {
    let factors = if bits > 3 { 8 } else { 4 };
    let planes = [8, 4, 2, 1].into_iter().filter(|width| bits & width != 0);
    factors + usize::from(is_numbered) + planes.map(|width| (dim * width).div_ceil(8)).sum::<usize>()
}

impl GraphOptions {
    /// Bytes of a code for vectors of `dim` components, at most.
    pub fn code_bytes(&self, dim: usize) -> usize {
        let of_bits = || self.code_bits.map(|bits| bytes_of_bits(dim, bits, true));
        self.code_bytes.or_else(of_bits).unwrap_or_else(|| usual_code_bytes(dim))
    }

    /// Gives codes four bits a dimension where none are given and all `rows` codes take up to `most_bytes` in RAM.
    pub fn choose_codes(&mut self, rows: u64, dim: usize, most_bytes: u64) {
        let is_open = self.code_bytes.is_none() && self.code_bits.is_none() && self.codes == CodePlace::Ram;
        let bytes = bytes_of_bits(dim, FINE_BITS, true);
        let is_finer = bytes > usual_code_bytes(dim);
        if is_open && is_finer && rows.saturating_mul(bytes as u64) <= most_bytes {
            self.code_bits = Some(FINE_BITS);
        }
    }
}

/// Bits of a dimension with which codes of a graph rank nearly as vectors do.
const FINE_BITS: usize = 4;

impl ListOptions {
    /// Bytes of a code for vectors of `dim` components, floats or bytes, at most: four bits a component of a float, two
    /// of a byte, and two factors.
    pub fn code_bytes(&self, dim: usize, is_float: bool) -> usize {
        let usual = || if is_float { (dim / 2).max(1) + 8 } else { (dim / 4).max(1) + 4 };
        let of_bits = || self.code_bits.map(|bits| bytes_of_bits(dim, bits, false));
        self.code_bytes.or_else(of_bits).unwrap_or_else(usual)
    }
}

impl GridOptions {
    /// Lists of an index of so many rows: finding the nearest centroids then costs about what a list does.
    pub fn count(&self, rows: u64) -> usize {
        let usual = || (rows as f64).sqrt().round() as usize;
        self.lists.unwrap_or_else(usual).clamp(1, rows.max(1) as usize)
    }
}

impl GpuOptions {
    /// Bytes of a code for vectors of `dim` components, at most: factors lie beside the usual number of bits.
    pub fn code_bytes(&self, dim: usize) -> usize {
        const FACTORS: usize = 4;
        let of_bits = || self.code_bits.map(|bits| bytes_of_bits(dim, bits, true));
        let usual = || (usual_code_bytes(dim) + FACTORS).min(dim.max(6));
        self.code_bytes.or_else(of_bits).unwrap_or_else(usual)
    }

    /// Lists of an index of so many rows.
    pub fn lists(&self, rows: u64) -> usize {
        ((rows as f64 * self.list_share).round() as usize).clamp(1, rows.max(1) as usize)
    }
}

/// Clusters of a set of any size, by default; small sets have fewer.
const CLUSTERS: u64 = 500;
/// Vectors of a cluster, at least by the mean.
const MEMBERS_LEAST: u64 = 64;

impl RemoteOptions {
    /// Clusters of an index of so many rows.
    pub fn count(&self, rows: u64) -> usize {
        let usual = || CLUSTERS.min(rows / MEMBERS_LEAST) as usize;
        self.partitions.unwrap_or_else(usual).clamp(1, rows.max(1) as usize)
    }
}
