//! The rows of inverted lists, list by list, as many at a time as the memory allows.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stratann_storage::{Error, Result, input};

use super::build::{Build, IDS};
use super::regions::Regions;
use super::tables::write_table;
use crate::dataset::Scan;
use crate::parallel;

/// File in which vectors wait for their lists when not all fit in memory.
const SPILL: &str = "spill.tmp";
/// Raw vectors, and what is written of them, lie in memory together.
const COPIES: u64 = 3;

/// The lists of a set.
pub(crate) struct ListRows<'a> {
    pub(crate) build: &'a Build<'a>,
    /// The list of every row; `u32::MAX` for rows that are left out.
    pub(crate) list_of_row: &'a [u32],
    /// The number of the first member of each list, and the number of all members.
    pub(crate) first: &'a [u32],
    /// Bytes of a vector.
    pub(crate) vector_bytes: usize,
}

/// Lists that are written at a time: their vectors and rows, list by list.
struct Part {
    lists: Range<u32>,
    vectors: Vec<u8>,
    rows: Vec<u32>,
}

/// One list before it is written.
#[derive(Clone, Copy)]
pub(crate) struct RowsOfList<'a> {
    pub(crate) list: u32,
    pub(crate) vectors: &'a [u8],
    pub(crate) rows: &'a [u32],
}

impl ListRows<'_> {
    /// Writes every list by `write`, on all threads, and leaves the id of every row. `write` returns the rows of a list
    /// in the order of their ids; `worker` makes what a thread works with.
    ///
    /// # Errors
    /// Files that cannot be read or written; an interruption; what `write` fails with.
    pub(crate) fn write_each<W>(
        &self,
        scan: &Scan,
        worker: impl Fn() -> W + Sync,
        write: impl Fn(&mut W, &RowsOfList<'_>) -> Result<Vec<u32>> + Sync,
    ) -> Result<()> {
        let mut id_of_row = vec![u32::MAX; self.list_of_row.len()];
        let parts = self.parts();
        let spilled = if parts.len() > 1 { Some(self.spill(&parts, scan)?) } else { None };
        for lists in parts {
            let part = match &spilled {
                None => self.gather(lists, scan)?,
                Some(path) => self.read_spilled(lists, path)?,
            };
            let write_list = |worker: &mut W, list| {
                self.build.progress.check_interrupted()?;
                let (slots, size) = (self.slots(&part, list), self.vector_bytes);
                let vectors = &part.vectors[slots.start * size..slots.end * size];
                write(worker, &RowsOfList { list, vectors, rows: &part.rows[slots] })
            };
            let written = parallel::try_map_with(part.lists.clone(), &worker, write_list)?;
            for (list, rows) in part.lists.clone().zip(written) {
                rows.iter().zip(self.first_id(list)..).for_each(|(&row, id)| id_of_row[row as usize] = id);
            }
        }
        if let Some(path) = spilled {
            let _ = std::fs::remove_file(path);
        }
        write_table(&self.build.partial.path(IDS), &id_of_row)
    }

    fn list_count(&self) -> u32 {
        self.first.len() as u32 - 1
    }

    /// The members of a list within a part.
    fn slots(&self, part: &Part, list: u32) -> Range<usize> {
        let base = self.first_id(part.lists.start);
        (self.first_id(list) - base) as usize..(self.first_id(list + 1) - base) as usize
    }

    /// Consecutive lists that fit in memory together; at least one.
    fn parts(&self) -> Vec<Range<u32>> {
        let room = self.build.plan.block_memory_bytes / COPIES;
        let each = (self.vector_bytes + 4) as u64;
        let (mut parts, mut from, mut held) = (Vec::new(), 0u32, 0u64);
        for list in 0..self.list_count() {
            let size = u64::from(self.first_id(list + 1) - self.first_id(list)) * each;
            if held + size > room && list > from {
                parts.push(from..list);
                (from, held) = (list, 0);
            }
            held += size;
        }
        parts.push(from..self.list_count());
        parts
    }

    fn first_id(&self, list: u32) -> u32 {
        self.first[list as usize]
    }

    fn empty(&self, lists: Range<u32>) -> Part {
        let count = (self.first_id(lists.end) - self.first_id(lists.start)) as usize;
        Part { lists, vectors: vec![0; count * self.vector_bytes], rows: vec![0; count] }
    }

    /// Puts a row where its list wants it next.
    fn put(&self, part: &mut Part, next: &mut [u32], list: u32, row: u32, vector: &[u8]) {
        let slot = &mut next[(list - part.lists.start) as usize];
        let at = *slot as usize;
        *slot += 1;
        part.rows[at] = row;
        part.vectors[at * vector.len()..(at + 1) * vector.len()].copy_from_slice(vector);
    }

    fn starts(&self, lists: &Range<u32>) -> Vec<u32> {
        lists.clone().map(|l| self.first_id(l) - self.first_id(lists.start)).collect()
    }

    /// All vectors, straight from the base.
    fn gather(&self, lists: Range<u32>, scan: &Scan) -> Result<Part> {
        let mut next = self.starts(&lists);
        let mut part = self.empty(lists);
        let live = self.build.live_rows(scan);
        let mut rows = live.iter();
        self.build.base.for_each(&live, |vector| {
            if let Some(&row) = rows.next() {
                self.put(&mut part, &mut next, self.list_of_row[row as usize], row, vector);
            }
        })?;
        Ok(part)
    }

    /// Sorts all vectors by part into a file.
    fn spill(&self, parts: &[Range<u32>], scan: &Scan) -> Result<PathBuf> {
        const ROWS: usize = 16_384;
        let path = self.build.partial.path(SPILL);
        let file = File::create(&path).map_err(|e| Error::io("creating", &path, &e))?;
        let size = self.vector_bytes + 4;
        let starts = parts.iter().map(|p| u64::from(self.first_id(p.start)) * size as u64).collect();
        let room = self.build.plan.block_memory_bytes / COPIES;
        let mut regions = Regions::new(&file, &path, starts, size, room);
        let live = self.build.live_rows(scan);
        for rows in live.chunks(ROWS) {
            self.build.progress.check_interrupted()?;
            let (mut at, mut failed) = (rows.iter(), None);
            self.build.base.for_each(rows, |vector| {
                let Some(&row) = at.next() else { return };
                let list = self.list_of_row[row as usize];
                let part = parts.partition_point(|p| p.end <= list);
                let put = regions.put(part, &row.to_le_bytes()).and_then(|()| regions.put(part, vector));
                failed = failed.take().or(put.err());
            })?;
            if let Some(e) = failed {
                return Err(e);
            }
        }
        regions.finish()?;
        Ok(path)
    }

    fn read_spilled(&self, lists: Range<u32>, path: &Path) -> Result<Part> {
        const ROWS: usize = 4096;
        let failed = |e: std::io::Error| Error::io("reading", path, &e);
        let file = input::open(path)?;
        let size = self.vector_bytes + 4;
        let ids = self.first_id(lists.start)..self.first_id(lists.end);
        let mut next = self.starts(&lists);
        let mut part = self.empty(lists);
        let mut bytes = vec![0u8; ROWS * size];
        for from in ids.clone().step_by(ROWS) {
            let count = ROWS.min((ids.end - from) as usize);
            file.read_exact_at(&mut bytes[..count * size], u64::from(from) * size as u64).map_err(failed)?;
            for record in bytes[..count * size].chunks_exact(size) {
                let (row, vector) = record.split_at(4);
                let row = u32::from_le_bytes([row[0], row[1], row[2], row[3]]);
                let list = self.list_of_row.get(row as usize).copied().unwrap_or(u32::MAX);
                if !part.lists.contains(&list) {
                    return Err(Error::corrupt(format!(
                        "{} makes no sense; start the build again",
                        path.display()
                    )));
                }
                self.put(&mut part, &mut next, list, row, vector);
            }
        }
        Ok(part)
    }
}
