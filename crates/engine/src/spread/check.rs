//! Checks the units of an index that is partitioned over servers. Parts of blocks are read all at once, in the order of
//! the blocks.

use std::fs::File;
use std::io::{BufReader, Read, Take};

use stratann_core::check::{Blocks, Checker, Violation};
use stratann_core::format::block;
use stratann_core::place::Placement;
use stratann_storage::data_file::FileEntry;
use stratann_storage::durable::hex;
use stratann_storage::{Result, input};
use xxhash_rust::xxh3::Xxh3;

use super::shard::{Shard, read_placement};
use crate::base::PlainBlocks;
use crate::findings::{Finding, Report, Verification, damage_words, fill, finding};
use crate::index::OpenOptions;
use crate::kinds;
use crate::manifest::SpreadFacts;

/// One server's file while it is read.
struct PartReader<'a> {
    name: &'a str,
    entry: &'a FileEntry,
    length: u64,
    file: Option<BufReader<Take<File>>>,
    hash: Xxh3,
    bytes: u64,
    block: Vec<u8>,
}

impl<'a> PartReader<'a> {
    fn open(check: &mut Verification<'a>, server: usize, size: usize) -> Option<Self> {
        let manifest = check.manifest;
        let (name, entry) = check.ok(manifest.file(&manifest.part_role(server)))?;
        let opened = input::open_regular(&check.folder.join(name), 0)
            .and_then(|file| Ok((file.metadata()?.len(), file)));
        // No more is read than belongs there.
        let (length, file) = match opened {
            Ok((length, file)) => (length, Some(BufReader::with_capacity(256 << 10, file.take(entry.bytes)))),
            Err(e) => {
                check.found(name, format!("it cannot be opened: {e}"));
                (0, None)
            }
        };
        Some(PartReader { name, entry, length, file, hash: Xxh3::new(), bytes: 0, block: vec![0; size] })
    }

    /// Reads the next block; false once the file has ended or failed.
    fn next(&mut self, report: &mut Report) -> bool {
        let Some(file) = &mut self.file else { return false };
        let have = match fill(file, &mut self.block) {
            Ok(have) => have,
            Err(e) => {
                report.found(Finding::of(self.name, format!("reading it failed: {e}")));
                self.file = None;
                return false;
            }
        };
        self.hash.update(&self.block[..have]);
        self.bytes += have as u64;
        have == self.block.len()
    }

    /// Reads what the placement does not know of, and compares the whole with the manifest.
    fn finish(mut self, expected: u64, report: &mut Report) {
        while self.next(report) {}
        if self.file.is_none() {
            return;
        }
        report.files += 1;
        report.bytes += self.bytes;
        if self.length != self.entry.bytes {
            let what = format!("it has {} bytes, the manifest says {}", self.length, self.entry.bytes);
            report.found(Finding::of(self.name, what));
        } else if self.bytes != expected {
            let what = format!("it has {} bytes, by the placement {expected}", self.bytes);
            report.found(Finding::of(self.name, what));
        } else if hex(self.hash.digest()) != self.entry.xxh3 {
            report.found(Finding::of(self.name, "its checksum does not match the manifest"));
        }
    }
}

/// Checks every server's file as a whole and block by block: what the placement says must lie there, copies must be
/// equal, and what must hold between blocks must hold.
pub(crate) fn check(check: &mut Verification<'_>, spread: &SpreadFacts) -> Result<()> {
    let (folder, manifest, progress) = (check.folder, check.manifest, check.progress);
    let (Some(plain), Ok(placement)) = (PlainBlocks::new(manifest), read_placement(folder, manifest, spread))
    else {
        // That the placement is damaged was found when its file was read; its content may still make no sense.
        let units = manifest.facts().unit_names.1;
        check.found(
            ".",
            format!("the placement or the manifest makes no sense; its {units} were not checked"),
        );
        return Ok(());
    };
    if kinds::kind_of(manifest).verify_parts(check, &placement)? {
        return Ok(());
    }
    let size = plain.layout.block_bytes;
    let opened = Shard::open(folder, 0, OpenOptions::default());
    if let Err(e) = &opened {
        check.found(".", e.message.clone());
    }
    let index =
        opened.as_ref().ok().and_then(|shard| shard.index().checked()).unwrap_or_else(|| plain.checked());
    let parts: Vec<_> = (0..placement.servers()).map(|s| PartReader::open(check, s, size)).collect();
    let report = &mut check.report;
    let mut merge = Merge { parts, placement: &placement, index, checker: Checker::new(&index) };
    for block in 0..index.count {
        if block % 256 == 0 {
            progress.check_interrupted()?;
        }
        merge.block(block, report);
        let holders = u64::from(placement.replicas(block).count_ones());
        progress.advance(holders * size as u64);
    }
    let Merge { parts, checker, .. } = merge;
    for (server, part) in parts.into_iter().enumerate() {
        let expected = placement.blocks_of(server).count() as u64 * size as u64;
        part.into_iter().for_each(|part| part.finish(expected, report));
    }
    let mut found = Vec::new();
    let done = checker.finish(&index, &mut found);
    (report.blocks, report.nodes, report.edges) = (index.count, manifest.rows, done.edges);
    report.unreachable = if opened.is_ok() { done.unreachable } else { 0 };
    Ok(())
}

struct Merge<'a> {
    parts: Vec<Option<PartReader<'a>>>,
    placement: &'a Placement,
    index: Blocks<'a>,
    checker: Checker,
}

impl Merge<'_> {
    /// Reads a block from all of its replicas.
    fn block(&mut self, block: u32, report: &mut Report) {
        let holders = self.placement.replicas(block);
        let mut at_hand = Vec::new();
        for server in (0..self.parts.len()).filter(|s| holders >> s & 1 == 1) {
            let Some(part) = &mut self.parts[server] else { continue };
            if part.next(report) {
                at_hand.push(server);
            } else if part.file.is_some() {
                let offset = Some(part.bytes);
                let finding = Finding::of(part.name, "the file ends before it");
                report.found(Finding { block: Some(block), offset, ..finding });
            }
        }
        let part = |server: usize| self.parts[server].as_ref();
        let damage = |server: usize| {
            part(server).and_then(|p| block::verify(self.index.layout, block, &p.block).err())
        };
        let Some(&chosen) = at_hand.iter().find(|&&s| damage(s).is_none()).or(at_hand.first()) else {
            return;
        };
        let Some(best) = part(chosen) else { return };
        let offset = |p: &PartReader<'_>| Some(p.bytes - p.block.len() as u64);
        let mut found: Vec<Violation> = Vec::new();
        self.checker.block(&self.index, block, &best.block, &mut found);
        for violation in found {
            report.found(Finding { offset: offset(best), ..finding(best.name, &violation, &self.index) });
        }
        for other in at_hand.into_iter().filter(|&s| s != chosen).filter_map(part) {
            let what = match block::verify(self.index.layout, block, &other.block) {
                Err(damage) => damage_words(damage).to_string(),
                Ok(()) if other.block != best.block => format!("it differs from its copy in {}", best.name),
                Ok(()) => continue,
            };
            let finding = Finding::of(other.name, what);
            report.found(Finding { block: Some(block), offset: offset(other), ..finding });
        }
    }
}
