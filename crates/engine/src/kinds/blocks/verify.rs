//! Checks a file of blocks: each block, and what must hold between blocks.

use stratann_core::check::{self, Checker, Violation};
use stratann_storage::Result;

use crate::base::{Base, PlainBlocks};
use crate::files;
use crate::findings::{Verification, finding};

/// Checks the file of blocks as a whole, and block by block while it streams by. `open` reads what the kind has in RAM,
/// and `blocks_of` gives the blocks as they are checked with it.
pub(crate) fn check<T>(
    check: &mut Verification<'_>,
    open: impl FnOnce(&Base) -> Result<T>,
    blocks_of: impl for<'a> FnOnce(&'a T, &'a Base) -> Option<check::Blocks<'a>>,
) -> Result<()> {
    let opened = check.open(open);
    let manifest = check.manifest;
    let (name, entry) = match manifest.file(files::BLOCKS) {
        Ok(found) => found,
        Err(e) => {
            check.found(&format!("manifest-{}.json", check.number), e.message);
            return Ok(());
        }
    };
    let length = std::fs::metadata(check.folder.join(name)).map_or(0, |file| file.len());
    let plain = PlainBlocks::new(manifest).filter(|plain| plain.may_be_in(length));
    let index = match &opened {
        Ok((base, own)) => blocks_of(own, base),
        Err(e) => {
            // Mostly a damaged file again; without it blocks are checked one by one, not against each other.
            check.failed(e);
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
    check.file(name, entry, &mut |bytes| blocks.take(bytes))?;
    let Some(index) = index else { return Ok(()) };
    let Blocks { checker, next, mut found, .. } = blocks;
    let report = &mut check.report;
    (report.blocks, report.nodes) = (next, manifest.rows);
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
