//! Options of a `disk-graph`.

use serde_json::Value;

use crate::build::codebook::{CodeKind, check_code_bytes};
use crate::{Error, Result};

/// Place of the codes during searches.
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

/// Most pages of a block: its lists are counted with 16 bits.
const PAGES_MAX: usize = 16;
/// Most cells of a graph.
const CELLS_MAX: usize = 10_000;

/// Options of the build of a `disk-graph`.
#[derive(Clone, Debug)]
pub struct GraphOptions {
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
    /// Compression of the codes.
    pub code_kind: CodeKind,
    /// Place of the codes during searches.
    pub codes: CodePlace,
    /// Share of the rows in the head graph.
    pub head_share: f64,
    /// Pack nodes that are near in the graph into the same blocks.
    pub pack: bool,
    /// Assume compressed adjacency lists when choosing the nodes of a block.
    pub compress: bool,
    /// Nodes of a block; `None` picks.
    pub nodes_per_block: Option<usize>,
    /// Pages of 4 KiB of a block; `None` picks.
    pub pages_per_block: Option<usize>,
    /// Build on floats even where bytes would do.
    pub exact_points: bool,
    /// Least number of overlapping cells; `None` for as many as the budget requires.
    pub cells: Option<usize>,
}

impl Default for GraphOptions {
    fn default() -> Self {
        GraphOptions {
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
        }
    }
}

impl GraphOptions {
    /// Bytes of a code for vectors of `dim` components.
    pub fn code_bytes(&self, dim: usize) -> usize {
        self.code_bytes.unwrap_or((dim / 4).max(32)).min(dim)
    }

    /// Checks the values for vectors of `dim` components.
    pub(crate) fn check(&self, dim: usize) -> Result<()> {
        let bad = |text: String| Err(Error::bad_input(text));
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
        check_code_bytes(self.code_bytes, dim)
    }

    /// The options that the content of an index depends on, as its manifest records them.
    pub(crate) fn record(&self, dim: usize) -> Vec<(&'static str, Value)> {
        let mut all: Vec<(&str, Value)> = vec![
            ("degree", self.degree.into()),
            ("build_list", self.build_list.into()),
            ("alpha", f64::from(self.alpha).into()),
            ("passes", self.passes.into()),
            ("code_bytes", self.code_bytes(dim).into()),
            ("code_kind", format!("{:?}", self.code_kind).to_lowercase().into()),
            ("head_share", self.head_share.into()),
            ("pack", self.pack.into()),
            ("compress", self.compress.into()),
            ("exact_points", self.exact_points.into()),
        ];
        let numbers = [
            ("cells", self.cells),
            ("nodes_per_block", self.nodes_per_block),
            ("pages_per_block", self.pages_per_block),
        ];
        all.extend(numbers.into_iter().filter_map(|(key, number)| Some((key, number?.into()))));
        // Absent stands for RAM, as in indexes from before there was a choice.
        if self.codes == CodePlace::Disk {
            all.push(("codes", self.codes.name().into()));
        }
        all
    }
}

/// Techniques of a `disk-graph` that may be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphSwitches {
    /// Whether the head graph gives the first candidates; otherwise the medoid does.
    pub head: bool,
    /// Whether all nodes of a block are used, or only those asked for.
    pub whole_blocks: bool,
    /// Fruitless reads in a row after which a query stops; `None` leaves it to the effort, 0 turns it off.
    pub patience: Option<u32>,
}

impl Default for GraphSwitches {
    fn default() -> Self {
        GraphSwitches { head: true, whole_blocks: true, patience: None }
    }
}
