//! What a build can be asked for.

use std::path::PathBuf;

use stratann_kernel::{DType, Metric};

pub use super::codebook::CodeKind;
use crate::dataset::{OnBadRow, Reader};
pub use crate::kinds::kind::Kind;
use crate::kinds::options::{LocalPlan, default_code_bytes};
use crate::profile::Profile;
use crate::{Error, Result};

/// Where the codes of vectors are while a search runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodePlace {
    /// In RAM, all of them.
    Ram,
    /// On disk: each block carries those of its nodes and of all neighbours. In RAM are those of the head graph's
    /// nodes.
    Disk,
}

impl CodePlace {
    /// The name used in manifests and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            CodePlace::Ram => "ram",
            CodePlace::Disk => "disk",
        }
    }
}

/// Pages that a block may be asked to have: its lists are counted with 16 bits.
const PAGES_MAX: usize = 16;
/// Cells that a graph may be asked to be built in.
const CELLS_MAX: usize = 10_000;

/// Options of a build. [`BuildOptions::new`] gives the defaults.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Kind of index.
    pub kind: Kind,
    /// Distance.
    pub metric: Metric,
    /// Bytes of RAM that the build may take; `None` for no limit.
    pub ram_budget: Option<u64>,
    /// Threads.
    pub threads: usize,
    /// Seed of all choices.
    pub seed: u64,
    /// Most neighbours of a node (R). DiskANN's and BatANN's default is 64.
    pub degree: usize,
    /// Length of the beam that finds them (L). BatANN's default is 128.
    pub build_list: usize,
    /// How much longer than a detour an edge may be (α). DiskANN's and BatANN's default is 1.2.
    pub alpha: f32,
    /// Times that every row is inserted.
    pub passes: usize,
    /// Bytes of a code; `None` for max(32, dim / 4).
    pub code_bytes: Option<usize>,
    /// How vectors are compressed.
    pub code_kind: CodeKind,
    /// Where codes are while a search runs.
    pub codes: CodePlace,
    /// Share of the rows in the head graph.
    pub head_share: f64,
    /// Pack nodes that are near in the graph into the same blocks.
    pub pack: bool,
    /// Reckon with compressed neighbour lists when deciding how many nodes share a block.
    pub compress: bool,
    /// Nodes of a block; `None` picks.
    pub nodes_per_block: Option<usize>,
    /// Pages of 4 KiB of a block; `None` picks.
    pub pages_per_block: Option<usize>,
    /// Build on floats even where bytes would do.
    pub exact_points: bool,
    /// Build the graph in at least so many overlapping cells; `None` for as many as the budget asks for.
    pub cells: Option<usize>,
    /// Clusters of a `hybrid-ivf`; `None` for 4·√n.
    pub clusters: Option<usize>,
    /// Local indexes of its clusters.
    pub local_plan: LocalPlan,
    /// RAM that searches will have: decides the plan; `None` for as little as there can be.
    pub search_budget: Option<u64>,
    /// What reads and distances cost here; `None` to measure.
    pub profile: Option<Profile>,
    /// Sampled members in its navigation graph, for each cluster.
    pub nav_samples: f64,
    /// A u64 for every row; `None` for the row number.
    pub ids: Option<PathBuf>,
    /// What to do about rows that cannot be indexed.
    pub on_bad_row: OnBadRow,
    /// Rows whose exact neighbours calibrate the recall curve; 0 for none.
    pub calibration_queries: usize,
    /// Replace an index that is there.
    pub force: bool,
    /// Go on with a build that did not finish.
    pub resume: bool,
}

impl BuildOptions {
    /// The defaults.
    pub fn new(kind: Kind, metric: Metric) -> BuildOptions {
        BuildOptions {
            kind,
            metric,
            ram_budget: None,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            seed: 1,
            degree: 64,
            build_list: 128,
            alpha: 1.2,
            passes: 1,
            code_bytes: None,
            code_kind: CodeKind::ResidualOpq,
            codes: CodePlace::Ram,
            head_share: 0.05,
            pack: true,
            compress: true,
            nodes_per_block: None,
            pages_per_block: None,
            exact_points: false,
            cells: None,
            clusters: None,
            local_plan: LocalPlan::Auto,
            search_budget: None,
            profile: None,
            nav_samples: 2.0,
            ids: None,
            on_bad_row: OnBadRow::Fail,
            calibration_queries: 500,
            force: false,
            resume: false,
        }
    }

    /// Rows that calibrate, of `rows`.
    pub(crate) fn calibration_rows(&self, rows: usize) -> usize {
        self.calibration_queries.min(rows / 2)
    }

    /// Bytes of a code for vectors of `dim` components.
    pub fn code_bytes(&self, dim: usize) -> usize {
        self.code_bytes.unwrap_or((dim / 4).max(32)).min(dim)
    }

    /// Bytes of a code of `hybrid-ivf`: four bits a component of a float, two of a byte.
    pub fn local_code_bytes(&self, dim: usize, dtype: DType) -> usize {
        self.code_bytes.unwrap_or_else(|| default_code_bytes(dim, dtype)).min(dim)
    }

    pub(crate) fn check(&self, base: &Reader) -> Result<()> {
        let shape = base.shape();
        let bad = |text: String| Err(Error::bad_input(text));
        if shape.rows >= u64::from(u32::MAX) {
            return bad(format!(
                "{} has {} rows; one index holds up to {}",
                base.path().display(),
                shape.rows,
                u32::MAX - 1
            ));
        }
        if shape.dim > 4096 {
            return bad(format!(
                "{} has {} dimensions; up to 4096 are supported",
                base.path().display(),
                shape.dim
            ));
        }
        if !(4..=250).contains(&self.degree) {
            return bad(format!("--degree is {}; use 4 to 250", self.degree));
        }
        if !(self.degree..=10_000).contains(&self.build_list) {
            return bad(format!(
                "--build-list is {}; use {} (the degree) to 10000",
                self.build_list, self.degree
            ));
        }
        if !(1.0..=4.0).contains(&self.alpha) {
            return bad(format!("--alpha is {}; use 1 to 4", self.alpha));
        }
        if self.cells.is_some_and(|c| !(1..=CELLS_MAX).contains(&c)) {
            return bad(format!("--cells is {}; use 1 to {CELLS_MAX}", self.cells.unwrap_or(0)));
        }
        if self.nodes_per_block == Some(0) {
            return bad("--nodes-per-block is 0; use 1 or more".into());
        }
        if let Some(pages) = self.pages_per_block.filter(|p| !(1..=PAGES_MAX).contains(p)) {
            return bad(format!("--pages-per-block is {pages}; use 1 to {PAGES_MAX}"));
        }
        if !(0.0..=1.0).contains(&self.head_share) {
            return bad(format!("--head-share is {}; give a share from 0 to 1", self.head_share));
        }
        if self.clusters == Some(0) {
            return bad("--clusters is 0; use 1 or more".into());
        }
        if !(0.0..=1000.0).contains(&self.nav_samples) {
            return bad(format!("--nav-samples is {}; use 0 to 1000 for each cluster", self.nav_samples));
        }
        if self.code_bytes.is_some_and(|b| b == 0 || b > shape.dim) {
            return bad(format!(
                "--code-bytes is {}; use 1 to {} for {} dimensions",
                self.code_bytes.unwrap_or(0),
                shape.dim,
                shape.dim
            ));
        }
        Ok(())
    }
}
