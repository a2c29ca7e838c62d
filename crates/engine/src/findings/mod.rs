//! Report of a verification.

mod file;

use std::path::Path;

use serde::Serialize;
use stratann_core::check::{Blocks, Violation};
use stratann_core::format::block::Damage;
use stratann_storage::{Error, Progress, Result};

use crate::base::Base;
use crate::manifest::Manifest;
pub(crate) use file::fill;

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

impl Finding {
    /// A finding in a file as a whole.
    pub(crate) fn of(file: &str, what: impl Into<String>) -> Finding {
        Finding { file: file.into(), what: what.into(), ..Finding::default() }
    }
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

/// A version of an index while it is verified.
pub(crate) struct Verification<'a> {
    pub(crate) folder: &'a Path,
    /// Number of the manifest.
    pub(crate) number: u64,
    pub(crate) manifest: &'a Manifest,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) report: Report,
}

impl Verification<'_> {
    /// Adds a finding in a file as a whole.
    pub(crate) fn found(&mut self, file: &str, what: impl Into<String>) {
        self.report.found(Finding::of(file, what));
    }

    /// Adds an error, as a finding in the file that it names.
    pub(crate) fn failed(&mut self, error: &Error) {
        self.found(&file_in(&error.message, self.manifest), error.message.clone());
    }

    /// Returns what was read; an error becomes a finding.
    pub(crate) fn ok<T>(&mut self, read: Result<T>) -> Option<T> {
        read.map_err(|e| self.failed(&e)).ok()
    }

    /// Whether there is a finding already in the file that a message names.
    pub(crate) fn has_found_in(&self, message: &str) -> bool {
        let file = file_in(message, self.manifest);
        self.report.violations.iter().any(|finding| finding.file == file)
    }

    /// Opens the whole index.
    ///
    /// # Errors
    /// As [`Base::open`], and those of `open`.
    pub(crate) fn open<T>(&self, open: impl FnOnce(&Base) -> Result<T>) -> Result<(Base, T)> {
        let base = Base::open(self.folder, self.number, self.manifest.clone(), self.manifest.data_role())?;
        open(&base).map(|own| (base, own))
    }

    /// Returns the name of the file of a role.
    pub(crate) fn name_of(&self, role: &str) -> String {
        self.manifest.file(role).map_or(role.to_string(), |found| found.0.to_string())
    }

    /// Checks lists one by one, which are in the file of a role and hold all rows. `check` returns what is wrong with
    /// a list, and where in the file it begins.
    ///
    /// # Errors
    /// An interruption.
    pub(crate) fn lists(
        &mut self,
        role: &str,
        count: u32,
        mut check: impl FnMut(u32) -> Option<(Option<u64>, String)>,
    ) -> Result<()> {
        let file = self.name_of(role);
        for list in 0..count {
            self.progress.check_interrupted()?;
            if let Some((offset, what)) = check(list) {
                self.report.found(Finding { list: Some(list), offset, ..Finding::of(&file, what) });
            }
        }
        self.report.lists = Some(count);
        self.report.nodes = self.manifest.rows;
        Ok(())
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
    Finding { block, offset, ..Finding::of(file, what) }
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
fn file_in(message: &str, manifest: &Manifest) -> String {
    let named = manifest.files.keys().find(|name| message.contains(&***name));
    named.map_or_else(|| ".".into(), |name| name.to_string())
}
