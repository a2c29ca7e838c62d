//! Numbers or dates of a field, sorted, each with its row, in parts of up to 4,096 entries.
//!
//! | bytes | part of entries |
//! |---|---|
//! | 1 | 1 where numbers have a rest, else 0 |
//! | 8 each | numbers as they are sorted ([`NumberKey`]); dates: microseconds since 1970 plus 2^63 |
//! | 2 each | rests, where there are any |
//! | 4 each | rows |
//!
//! | bytes | table |
//! |---|---|
//! | | for each part: |
//! | 8 + 2 | its first number |
//! | 4 | entries |
//! | 8 | place |
//! | 8 | code of all of its rows |
//! | | at the end: |
//! | 8 + 2 | the last number of all |

use std::ops::{ControlFlow, Range};

use roaring::RoaringBitmap;
use stratann_storage::Result;

use super::PartEntry;
use super::bitmaps::{self, Code, Reader};
use super::runs::{Run, RunFile};
use crate::number::NumberKey;
use crate::predicate::Span;
use crate::stored::{PartFile, PartWriter, number, number32};

/// Most entries of a part. Small in tests, so that few rows have many parts.
const ENTRIES_MAX: usize = if cfg!(test) { 8 } else { 4096 };
const KEY_BYTES: usize = 10;
/// Bytes of a part in the table.
const BLOCK_BYTES: usize = KEY_BYTES + 4 + 8 + 8;

/// The key of a date.
pub(super) fn date_key(micros: i64) -> NumberKey {
    NumberKey { order: (micros as u64) ^ 1 << 63, rest: 0 }
}

/// A number as a term, in the order of numbers.
pub(super) fn term_of(key: NumberKey) -> [u8; KEY_BYTES] {
    let mut term = [0; KEY_BYTES];
    term[..8].copy_from_slice(&key.order.to_be_bytes());
    term[8..].copy_from_slice(&(key.rest as u16 ^ 1 << 15).to_be_bytes());
    term
}

/// Memory of a number while it is gathered and sorted.
const NUMBER_BYTES: usize = 40;

/// Numbers that are gathered, each with its row.
#[derive(Default)]
pub(super) struct NumbersBuilder {
    entries: Vec<(NumberKey, u32)>,
    /// Numbers that were gathered before, as terms.
    runs: Vec<Run>,
}

impl NumbersBuilder {
    /// Adds a number of a row.
    pub(super) fn push(&mut self, key: NumberKey, row: u32) {
        self.entries.push((key, row));
    }

    /// Memory until it is written, bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.entries.len() * NUMBER_BYTES
    }

    /// Writes what was gathered so far as a run. Later rows are beyond it.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn spill(&mut self, file: &mut RunFile) -> Result<()> {
        let mut run = file.begin()?;
        let (entries, mut rows) = (self.take_sorted(), Vec::new());
        for equal in entries.chunk_by(|one, two| one.0 == two.0) {
            rows.clear();
            rows.extend(equal.iter().map(|(_, row)| *row));
            let key = equal.first().map(|(key, _)| term_of(*key));
            key.map_or(Ok(()), |key| run.add(&key, &rows))?;
        }
        self.runs.push(run.finish()?);
        Ok(())
    }

    fn take_sorted(&mut self) -> Vec<(NumberKey, u32)> {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable();
        entries.dedup();
        entries
    }

    /// Writes numbers with their rows.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn finish(mut self, file: &mut PartWriter, runs: &mut RunFile) -> Result<PartEntry> {
        if self.runs.is_empty() {
            let entries = self.take_sorted();
            return write(file, |each| entries.chunks(ENTRIES_MAX).try_for_each(each));
        }
        self.spill(runs)?;
        write(file, |each| {
            let mut block = Vec::with_capacity(ENTRIES_MAX);
            runs.merge(&self.runs, |term, rows| {
                let key = key_of_term(term);
                for row in rows {
                    block.extend(key.map(|key| (key, *row)));
                    if block.len() == ENTRIES_MAX {
                        each(&block)?;
                        block.clear();
                    }
                }
                Ok(())
            })?;
            if block.is_empty() { Ok(()) } else { each(&block) }
        })
    }
}

/// What takes sorted entries of a part.
type EachBlock<'a> = &'a mut dyn FnMut(&[(NumberKey, u32)]) -> Result<()>;

/// Writes sorted entries, which `blocks` passes part by part, twice.
fn write(file: &mut PartWriter, blocks: impl Fn(EachBlock<'_>) -> Result<()>) -> Result<PartEntry> {
    let mut places = Vec::new();
    blocks(&mut |block| {
        let is_wide = block.iter().any(|(key, _)| key.rest != 0);
        let mut bytes = vec![u8::from(is_wide)];
        block.iter().for_each(|(key, _)| bytes.extend(key.order.to_le_bytes()));
        if is_wide {
            block.iter().for_each(|(key, _)| bytes.extend(key.rest.to_le_bytes()));
        }
        block.iter().for_each(|(_, row)| bytes.extend(row.to_le_bytes()));
        places.push(file.part(&bytes)?);
        Ok(())
    })?;
    // Sets of rows stand together, as a wide range reads most of them.
    let (mut table, mut places, mut last) = (Vec::new(), places.into_iter(), None);
    blocks(&mut |block| {
        let rows: RoaringBitmap = block.iter().map(|(_, row)| *row).collect();
        let code = bitmaps::write_bitmap(file, rows)?;
        if let (Some((first, _)), Some(place)) = (block.first(), places.next()) {
            table.extend(key_bytes(*first));
            table.extend((block.len() as u32).to_le_bytes());
            table.extend(place.to_le_bytes());
            table.extend(code.to_le_bytes());
        }
        last = block.last().map(|(key, _)| key_bytes(*key));
        Ok(())
    })?;
    table.extend(last.unwrap_or_default());
    Ok(PartEntry { place: file.part(&table)?, bytes: table.len() as u64 })
}

/// The number of a term.
fn key_of_term(term: &[u8]) -> Option<NumberKey> {
    let (order, rest) = (term.first_chunk()?, term.get(8..)?.first_chunk()?);
    Some(NumberKey { order: u64::from_be_bytes(*order), rest: (u16::from_be_bytes(*rest) ^ 1 << 15) as i16 })
}

fn key_bytes(key: NumberKey) -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    bytes[..8].copy_from_slice(&key.order.to_le_bytes());
    bytes[8..].copy_from_slice(&key.rest.to_le_bytes());
    bytes
}

fn key_of(bytes: &[u8]) -> Option<NumberKey> {
    let rest = bytes.get(8..)?.first_chunk().map(|bytes| i16::from_le_bytes(*bytes))?;
    Some(NumberKey { order: number(bytes, 0)?, rest })
}

/// A part of entries.
#[derive(Clone, Copy)]
struct Block {
    first: NumberKey,
    entries: u32,
    place: u64,
    rows: Code,
}

/// Numbers of a field: the table in memory, entries in the file.
pub(super) struct Numbers {
    blocks: Vec<Block>,
    last: NumberKey,
}

impl Numbers {
    pub(super) fn open(file: &PartFile, entry: PartEntry, what: &str) -> Result<Numbers> {
        let table = file.part_of(entry.place, entry.bytes, what)?;
        Numbers::of_table(&table).ok_or_else(|| file.damaged(what, "its table cannot be"))
    }

    fn of_table(table: &[u8]) -> Option<Numbers> {
        let (table, last) = table.split_at(table.len() / BLOCK_BYTES * BLOCK_BYTES);
        let block = |bytes: &[u8]| {
            Some(Block {
                first: key_of(bytes)?,
                entries: number32(bytes, KEY_BYTES)?,
                place: number(bytes, KEY_BYTES + 4)?,
                rows: number(bytes, KEY_BYTES + 12)?,
            })
        };
        let blocks = table.chunks_exact(BLOCK_BYTES).map(block).collect::<Option<Vec<Block>>>()?;
        // Without entries there is no last number.
        let last = key_of(last).or_else(|| blocks.is_empty().then_some(date_key(0)))?;
        blocks.is_sorted_by_key(|block| block.first).then_some(Numbers { blocks, last })
    }

    /// Memory, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
    }

    /// Rows with a number in a span.
    pub(super) fn rows_in(
        &self,
        reader: &Reader<'_>,
        span: &Span<NumberKey>,
        what: &str,
    ) -> Result<RoaringBitmap> {
        let (mut found, mut whole) = (RoaringBitmap::new(), Vec::new());
        for at in self.blocks_of(span) {
            let block = &self.blocks[at];
            let last = self.blocks.get(at + 1).map_or(self.last, |next| next.first);
            if span.has(&block.first) && span.has(&last) {
                whole.push(block.rows);
                continue;
            }
            let entries = self.entries(reader, block, what)?;
            found.extend(entries.into_iter().filter(|(key, _)| span.has(key)).map(|(_, row)| row));
        }
        Ok(found | reader.union(&whole, what)?)
    }

    /// Rows with one of these numbers, which ascend. A part of entries is read once.
    pub(super) fn rows_of(
        &self,
        reader: &Reader<'_>,
        keys: impl IntoIterator<Item = NumberKey>,
        what: &str,
    ) -> Result<RoaringBitmap> {
        let (mut found, mut whole) = (Vec::new(), Vec::new());
        let mut read: Option<(usize, Vec<(NumberKey, u32)>)> = None;
        for key in keys {
            for at in self.blocks_of(&Span { low: Some((key, true)), high: Some((key, true)) }) {
                let last = self.blocks.get(at + 1).map_or(self.last, |next| next.first);
                if self.blocks[at].first == key && last == key {
                    whole.push(self.blocks[at].rows);
                    continue;
                }
                let entries = match &mut read {
                    Some((own, entries)) if *own == at => &*entries,
                    other => &other.insert((at, self.entries(reader, &self.blocks[at], what)?)).1,
                };
                let from = entries.partition_point(|(own, _)| *own < key);
                let equal = entries[from..].iter().take_while(|(own, _)| *own == key);
                found.extend(equal.map(|(_, row)| *row));
            }
        }
        found.sort_unstable();
        Ok(found.into_iter().collect::<RoaringBitmap>() | reader.union(&whole, what)?)
    }

    /// Calls `each` with numbers and rows in their order, until it breaks.
    pub(super) fn in_order(
        &self,
        reader: &Reader<'_>,
        is_descending: bool,
        from: Option<NumberKey>,
        mut each: impl FnMut(NumberKey, u32) -> Result<ControlFlow<()>>,
        what: &str,
    ) -> Result<()> {
        let span = match (from, is_descending) {
            (None, _) => Span { low: None, high: None },
            (Some(from), false) => Span { low: Some((from, true)), high: None },
            (Some(from), true) => Span { low: None, high: Some((from, true)) },
        };
        let range = self.blocks_of(&span);
        for at in 0..range.len() {
            let block = if is_descending { range.end - 1 - at } else { range.start + at };
            let mut entries = self.entries(reader, &self.blocks[block], what)?;
            if is_descending {
                entries.reverse();
            }
            for (key, row) in entries.into_iter().filter(|(key, _)| span.has(key)) {
                if each(key, row)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The parts that may have numbers of a span.
    fn blocks_of(&self, span: &Span<NumberKey>) -> Range<usize> {
        // A number may stand at the end of the part before the first one that begins with it.
        let begins =
            |key: NumberKey| self.blocks.partition_point(|block| block.first < key).saturating_sub(1);
        let ends = |key: NumberKey| self.blocks.partition_point(|block| block.first <= key);
        let start = span.low.map_or(0, |(low, _)| begins(low));
        start..span.high.map_or(self.blocks.len(), |(high, _)| ends(high)).max(start)
    }

    fn entries(&self, reader: &Reader<'_>, block: &Block, what: &str) -> Result<Vec<(NumberKey, u32)>> {
        let count = block.entries as usize;
        let bytes = reader.file.part_of(block.place, count as u64 * 12 + 1, what)?;
        let entries = entries_of(&bytes, count).filter(|all| all.iter().all(|(_, row)| *row < reader.rows));
        entries.ok_or_else(|| reader.file.damaged(what, "its entries cannot be"))
    }

    /// Reads everything.
    pub(super) fn verify(&self, reader: &Reader<'_>, what: &str) -> Result<()> {
        for block in &self.blocks {
            let entries = self.entries(reader, block, what)?;
            let rows: RoaringBitmap = entries.into_iter().map(|(_, row)| row).collect();
            if rows != reader.read(block.rows, what)? {
                return Err(reader.file.damaged(what, "entries and rows of a part differ"));
            }
        }
        Ok(())
    }
}

/// The entries of a part.
fn entries_of(bytes: &[u8], count: usize) -> Option<Vec<(NumberKey, u32)>> {
    let (is_wide, rest) = bytes.split_first()?;
    let (orders, rest) = rest.split_at_checked(8 * count)?;
    let (rests, rows) = rest.split_at_checked(if *is_wide == 1 { 2 * count } else { 0 })?;
    let entry = |at: usize| {
        let rest = rests.get(2 * at..2 * at + 2).and_then(|two| two.first_chunk());
        let rest = rest.map_or(0, |two| i16::from_le_bytes(*two));
        Some((NumberKey { order: number(orders, 8 * at)?, rest }, number32(rows, 4 * at)?))
    };
    (0..count).map(entry).collect()
}
