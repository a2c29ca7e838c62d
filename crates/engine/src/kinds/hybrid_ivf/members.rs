//! Vectors of a `hybrid-ivf`, read past any search.

use std::ops::Range;
use std::os::unix::fs::FileExt;

use stratann_core::PAGE;
use stratann_core::format::directory::Pages;
use stratann_core::format::inverted_list::Record;
use stratann_storage::tier::Buffer;
use stratann_storage::{Error, Progress, Result};

use super::open::ListIndex;
use super::tables::ListTables;
use crate::base::Base;
use crate::kinds::answers::{Member, SeeMembers};
use crate::kinds::questions::Members;

/// Bytes that are read at a time.
const RUN_BYTES: usize = 1 << 20;

impl Members for ListIndex {
    fn member(&self, base: &Base, id: u32) -> Result<(u64, Vec<u8>)> {
        let mut found = (0, Vec::new());
        show(base, &self.tables, id..id + 1, &mut |members| {
            members.iter().for_each(|m| found = (m.external_id, m.vector.to_vec()));
        })?;
        Ok(found)
    }

    fn for_each_member(&self, base: &Base, progress: &dyn Progress, see: &mut SeeMembers<'_>) -> Result<()> {
        let at_once = RUN_BYTES / self.tables.shape.record_bytes();
        for run in runs(&self.tables, 0..base.manifest.rows as u32, at_once) {
            progress.check_interrupted()?;
            let count = run.end - run.start;
            show(base, &self.tables, run, see)?;
            progress.advance(u64::from(count));
        }
        Ok(())
    }

    fn scan_work(&self, base: &Base) -> (u64, &'static str) {
        (base.manifest.rows, "rows")
    }
}

impl ListIndex {
    /// Shows the members with these numbers to `see`, in order. Returns the reads and the pages that it took.
    ///
    /// # Errors
    /// As [`Members::member`].
    pub(crate) fn for_each_in(
        &self,
        base: &Base,
        ids: Range<u32>,
        see: &mut SeeMembers<'_>,
    ) -> Result<(u64, u64)> {
        let (mut reads, mut pages) = (0, 0);
        for run in runs(&self.tables, ids, usize::MAX) {
            pages += show(base, &self.tables, run, see)?;
            reads += 1;
        }
        Ok((reads, pages))
    }
}

/// These members in runs of one list each, and of `at_once` at most.
fn runs(tables: &ListTables, ids: Range<u32>, at_once: usize) -> impl Iterator<Item = Range<u32>> + '_ {
    let at_once = u32::try_from(at_once).unwrap_or(u32::MAX).max(1);
    let mut next = ids.start;
    std::iter::from_fn(move || {
        let first = (next < ids.end).then_some(next)?;
        let end = tables.directory.ids[tables.directory.list_of(first) as usize + 1];
        next = ids.end.min(end).min(first.saturating_add(at_once));
        Some(first..next)
    })
}

/// Shows consecutive members of one list. Returns the pages that were read.
fn show(base: &Base, tables: &ListTables, ids: Range<u32>, see: &mut SeeMembers<'_>) -> Result<u64> {
    let (first, count) = (ids.start, ids.end - ids.start);
    let (shape, size) = (&tables.shape, tables.shape.record_bytes());
    let at = tables.directory.record_at(shape, first);
    let bytes = u64::from(count) * size as u64;
    let stored = tables.locate(at, bytes).ok_or_else(|| {
        Error::bad_input(format!(
            "another server holds vector {first}, {} does not",
            base.blocks_path.display()
        ))
    })?;
    let pages = Pages::of(stored, bytes);
    let mut buffer = Buffer::new(pages.count as usize * PAGE);
    base.blocks_file()?
        .read_exact_at(buffer.bytes_mut(), u64::from(pages.first) * PAGE as u64)
        .map_err(|e| Error::io("reading", &base.blocks_path, &e))?;
    let bytes = &buffer.bytes()[pages.skip as usize..];
    let mut records = Vec::with_capacity(count as usize);
    for (id, bytes) in ids.zip(bytes.chunks_exact(size)) {
        let record = Record::verify(shape, id, bytes).ok_or_else(|| {
            Error::corrupt(format!(
                "the record of vector {id} at offset {} of {} is damaged; run `stratann verify`, then restore the \
                 file or build the index again",
                at + u64::from(id - first) * size as u64,
                base.blocks_path.display()
            ))
        })?;
        records.push((id, record));
    }
    see(&records.iter().map(member).collect::<Vec<_>>());
    Ok(pages.count.into())
}

fn member<'a>((id, record): &'a (u32, Record<'a>)) -> Member<'a> {
    Member {
        id: *id,
        vector: record.vector(),
        inverse_norm: record.inverse_norm(),
        external_id: record.external_id(),
    }
}
