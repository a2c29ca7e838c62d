//! Report of a verification.

pub(crate) mod file;

use serde::Serialize;
use stratann_core::check::{Blocks, Violation};
use stratann_core::format::block::Damage;

use crate::manifest::Manifest;

/// One violation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the file in the index folder.
    pub file: String,
    /// The block, where one can be named.
    pub block: Option<u32>,
    /// The inverted list, where one can be named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<u32>,
    /// Offset of the damage in the file, bytes.
    pub offset: Option<u64>,
    /// Description of the damage.
    pub what: String,
}

/// Report of a verification.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Number of the manifest.
    pub version: u64,
    /// Files that were read.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// Blocks that were checked.
    pub blocks: u32,
    /// Inverted lists that were checked, of a `hybrid-ivf`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lists: Option<u32>,
    /// Nodes in them.
    pub nodes: u64,
    /// Edges between nodes.
    pub edges: u64,
    /// Nodes in blocks that no head node lies in and no list of another block leads to: no search finds them. A few
    /// are tolerable.
    pub unreachable: u64,
    /// Findings; empty for a sound index. At most [`FINDINGS_MAX`] are listed.
    pub violations: Vec<Finding>,
    /// Number of all findings.
    pub violations_found: u64,
}

/// Findings that are listed one by one.
pub const FINDINGS_MAX: usize = 1000;

impl Report {
    pub(crate) fn found(&mut self, finding: Finding) {
        self.violations_found += 1;
        if self.violations.len() < FINDINGS_MAX {
            self.violations.push(finding);
        }
    }
}

/// A violation as a finding in this file.
pub(crate) fn finding(file: &str, violation: &Violation, index: &Blocks<'_>) -> Finding {
    let block_of = |node: u32| index.links.map(|links| links.map.block_of(node));
    let (block, what) = match *violation {
        Violation::Block { block, damage } => (Some(block), damage_words(damage).to_string()),
        Violation::Misplaced { block } => (Some(block), "its nodes are not those that the map says".into()),
        Violation::List { node } => {
            (block_of(node), format!("the adjacency list of node {node} is inconsistent"))
        }
        Violation::Vector { node } => (block_of(node), format!("the vector of node {node} is not finite")),
        Violation::Code { block, node } => {
            (Some(block), format!("the code of node {node} is not the one that it has elsewhere"))
        }
    };
    let offset = block.map(|b| u64::from(b) * index.layout.block_bytes as u64);
    Finding { file: file.into(), block, offset, what, list: None }
}

/// Damage of a block, for a person.
pub(crate) fn damage_words(damage: Damage) -> &'static str {
    match damage {
        Damage::Short => "the block is cut short",
        Damage::Checksum => "the block's checksum does not match",
        Damage::WrongBlock => "the bytes are another block's",
        Damage::Layout => "the checksum matches but the layout makes no sense",
    }
}

/// The data file that an error names, else the manifest's folder as a whole.
pub(crate) fn file_in(message: &str, manifest: &Manifest) -> String {
    let named = manifest.files.keys().find(|name| message.contains(&***name));
    named.map_or_else(|| ".".into(), |name| name.to_string())
}
