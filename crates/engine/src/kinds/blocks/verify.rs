//! Checks a file of blocks: each block, and what must hold between blocks.

use std::path::Path;

use stratann_core::check::{self, Checker, Violation};
use stratann_storage::{Error, Progress, Result};

use crate::base::{Base, PlainBlocks};
use crate::files;
use crate::findings::file::check_file;
use crate::findings::{Finding, Report, file_in, finding};
use crate::manifest::Manifest;

/// An index of blocks as it was opened, or the reason why it could not be.
pub(crate) type Opened<'a> = std::result::Result<(&'a Base, Option<check::Blocks<'a>>), &'a Error>;

/// Checks the file of blocks as a whole, and block by block while it streams by.
pub(crate) fn check(
    folder: &Path,
    number: u64,
    (manifest, opened): (&Manifest, Opened<'_>),
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let name = match manifest.file(files::BLOCKS) {
        Ok((name, _)) => name,
        Err(e) => {
            let file = format!("manifest-{number}.json");
            report.found(Finding { file, what: e.message, ..Finding::default() });
            return Ok(());
        }
    };
    let length = std::fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    let plain = PlainBlocks::new(manifest).filter(|plain| plain.may_be_in(length));
    let index = match (&opened, &plain) {
        (Ok((_, blocks)), _) => *blocks,
        (Err(e), plain) => {
            // Mostly a damaged file again; without it blocks are checked one by one, not against each other.
            let (file, what) = (file_in(&e.message, manifest), e.message.clone());
            report.found(Finding { file, what, ..Finding::default() });
            plain.as_ref().map(PlainBlocks::checked)
        }
    };
    let mut blocks = Blocks {
        index,
        checker: index.map(|v| Checker::new(&v)),
        next: 0,
        rest: Vec::new(),
        found: Vec::new(),
    };
    check_file(folder, name, &manifest.files[name], &mut |bytes| blocks.take(bytes), progress, report)?;
    let Some(index) = index else { return Ok(()) };
    let Blocks { checker, next, mut found, .. } = blocks;
    report.blocks = next;
    report.nodes = manifest.rows;
    if let Some(checker) = checker {
        let done = checker.finish(&index, &mut found);
        report.edges = done.edges;
        // Without the head graph it is not known what is reachable.
        let is_known = opened.as_ref().is_ok_and(|(base, _)| base.facts().has_adjacency_in_blocks);
        report.unreachable = if is_known { done.unreachable } else { 0 };
    }
    for violation in found {
        report.found(finding(name, &violation, &index));
    }
    Ok(())
}

/// Cuts a stream of bytes into blocks.
struct Blocks<'a> {
    index: Option<check::Blocks<'a>>,
    checker: Option<Checker>,
    next: u32,
    rest: Vec<u8>,
    found: Vec<Violation>,
}

impl Blocks<'_> {
    fn take(&mut self, bytes: &[u8]) {
        let (Some(index), Some(checker)) = (&self.index, &mut self.checker) else { return };
        self.rest.extend_from_slice(bytes);
        let size = index.layout.block_bytes;
        let whole = self.rest.len() / size * size;
        for block in self.rest[..whole].chunks_exact(size) {
            if self.next < index.count {
                checker.block(index, self.next, block, &mut self.found);
            }
            self.next += 1;
        }
        self.rest.drain(..whole);
    }
}
