//! The rows that a query may return: those that are not deleted and match its filter.
//!
//! A search walks over all rows, whatever its sieve holds: only results, thresholds and bounds ask it. A row that does
//! not exist at all for a query is another thing, and leaves the walk too ([`crate::query::Params::exclude`]).
//!
//! Rows are kept in chunks of 65,536, each in the form that suits its number of rows, as in Roaring bitmaps (Chambi et
//! al., 2016). The form follows from the rows alone, so equal sets are equal sieves.

mod ids;
#[cfg(test)]
mod tests;
mod wire;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

pub use ids::IdSieve;

/// Rows of a chunk.
pub const CHUNK_ROWS: u32 = 1 << 16;
/// Words of a chunk's bits.
const WORDS: usize = CHUNK_ROWS as usize / 64;
/// Most rows of a chunk that are listed. A list of so many takes a quarter of the bits, and is searched in ten steps.
const LISTED_MAX: usize = 1024;

/// A set of rows of an index, by internal id. A clone shares its chunks until one of the two changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sieve {
    rows: u32,
    count: u32,
    chunks: Vec<Chunk>,
}

/// Rows of a chunk, numbered from its first.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Chunk {
    None,
    All,
    /// The number of rows, and a bit for each row of the chunk.
    Words(u32, Arc<[u64; WORDS]>),
    /// Ascending.
    Listed(Arc<[u16]>),
}

impl Sieve {
    /// All of `rows` rows.
    pub fn all(rows: u32) -> Sieve {
        Sieve { rows, count: rows, chunks: chunks_of(rows).map(|_| Chunk::All).collect() }
    }

    /// The rows named by `ids`, of an index of `rows` rows. `None` unless they ascend and lie below `rows`.
    pub fn from_sorted(rows: u32, ids: &[u32]) -> Option<Sieve> {
        let ascends = ids.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascends || ids.last().is_some_and(|&last| last >= rows) {
            return None;
        }
        let mut left = ids;
        let chunks = chunks_of(rows).map(|range| {
            let (here, later) = left.split_at(left.partition_point(|&id| id < range.end));
            left = later;
            Chunk::of(here, &range)
        });
        Some(Sieve { rows, count: ids.len() as u32, chunks: chunks.collect() })
    }

    /// The rows whose bits are set, from the lowest bit of the first word on, of an index of `rows` rows. `None` unless
    /// there are as many words as the rows need, and no bit is set beyond them.
    pub fn from_words(rows: u32, words: &[u64]) -> Option<Sieve> {
        let is_beyond = |&last: &u64| !rows.is_multiple_of(64) && last >> (rows % 64) != 0;
        if words.len() != (rows as usize).div_ceil(64) || words.last().is_some_and(is_beyond) {
            return None;
        }
        let chunks = chunks_of(rows).zip(words.chunks(WORDS)).map(|(range, own)| {
            let mut words = [0; WORDS];
            words[..own.len()].copy_from_slice(own);
            Chunk::of_words(words, &range)
        });
        let count = words.iter().map(|word| word.count_ones()).sum();
        Some(Sieve { rows, count, chunks: chunks.collect() })
    }

    /// A bit for each row, set for those that the sieve has; the inverse of [`Sieve::from_words`].
    pub fn to_words(&self) -> Vec<u64> {
        let pairs = chunks_of(self.rows).zip(&self.chunks);
        pairs
            .flat_map(|(range, chunk)| chunk.words(&range).into_iter().take(range.len().div_ceil(64)))
            .collect()
    }

    /// The rows that this sieve does not have.
    pub fn complement(&self) -> Sieve {
        let chunks = chunks_of(self.rows).zip(&self.chunks).map(|(range, chunk)| chunk.complement(&range));
        Sieve { rows: self.rows, count: self.rows - self.count, chunks: chunks.collect() }
    }

    /// The rows that both have. Rows beyond those of the smaller index are in neither.
    pub fn intersection(&self, other: &Sieve) -> Sieve {
        let rows = self.rows.min(other.rows);
        let pairs = self.chunks.iter().zip(&other.chunks);
        let chunks: Vec<Chunk> =
            chunks_of(rows).zip(pairs).map(|(range, (one, two))| one.intersection(two, &range)).collect();
        let counts = chunks_of(rows).zip(&chunks).map(|(range, chunk)| chunk.count(&range));
        Sieve { rows, count: counts.sum(), chunks }
    }

    /// The rows of this sieve but those of `ids`, which ascend; others are ignored. Chunks without any of them are
    /// shared.
    pub fn without(&self, ids: &[u32]) -> Sieve {
        let mut next = self.clone();
        let mut left = ids;
        while let Some(&first) = left.first() {
            let at = split(first).0;
            let Some(chunk) = next.chunks.get_mut(at) else { break };
            let range = range_of(at, self.rows);
            let here = left.partition_point(|&id| id < range.end);
            let (before, (gone, later)) = (chunk.count(&range), left.split_at(here));
            *chunk = chunk.without(gone, &range);
            next.count -= before - chunk.count(&range);
            left = later;
            if gone.is_empty() {
                break;
            }
        }
        next
    }

    /// Rows of the index.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows that the sieve has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Whether it has this row; it has none beyond those of its index.
    #[inline]
    pub fn has(&self, id: u32) -> bool {
        let (at, low) = split(id);
        match self.chunks.get(at) {
            None | Some(Chunk::None) => false,
            Some(Chunk::All) => id < self.rows,
            Some(Chunk::Words(_, words)) => words[usize::from(low) / 64] >> (low % 64) & 1 != 0,
            Some(Chunk::Listed(ids)) => ids.binary_search(&low).is_ok(),
        }
    }

    /// Number of its rows in a range.
    pub fn count_in(&self, range: Range<u32>) -> u32 {
        let end = range.end.min(self.rows);
        if range.start >= end {
            return 0;
        }
        let (first, last) = (split(range.start).0, split(end - 1).0);
        let count = |at: usize| {
            let chunk = range_of(at, self.rows);
            let here = range.start.max(chunk.start) - chunk.start..end.min(chunk.end) - chunk.start;
            self.chunks[at].count_in(here, chunk.end - chunk.start)
        };
        (first..=last).map(count).sum()
    }

    /// Whether it has a row in a range.
    pub fn has_any(&self, range: Range<u32>) -> bool {
        self.next(range.start).is_some_and(|id| id < range.end)
    }

    /// Its first row at or after `from`.
    pub fn next(&self, from: u32) -> Option<u32> {
        let (first, low) = split(from);
        let later = (first..self.chunks.len()).map(|at| (at, if at == first { low } else { 0 }));
        let found = later.map(|(at, low)| self.chunks[at].next(low).map(|low| join(at, low)));
        found.flatten().next().filter(|&id| id < self.rows)
    }

    /// Its rows, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter_in(0..self.rows)
    }

    /// Its rows in a range, ascending.
    pub fn iter_in(&self, range: Range<u32>) -> impl Iterator<Item = u32> + '_ {
        let end = range.end.min(self.rows);
        let begin = range.start.min(end);
        let first = split(begin).0;
        let chunks = self.chunks.get(first..).unwrap_or(&[]).iter().zip(first..);
        let chunks = chunks.take_while(move |&(_, at)| join(at, 0) < end);
        chunks.flat_map(move |(chunk, at)| {
            let start = join(at, 0);
            let here = begin.max(start) - start..(end - start).min(CHUNK_ROWS);
            chunk.rows_in(here).map(move |low| start + low)
        })
    }

    /// Memory, bytes; chunks that other sieves share are counted in each.
    pub fn bytes(&self) -> usize {
        let of_chunk = |chunk: &Chunk| match chunk {
            Chunk::None | Chunk::All => 0,
            Chunk::Words(..) => WORDS * size_of::<u64>(),
            Chunk::Listed(ids) => size_of_val::<[u16]>(ids),
        };
        size_of::<Sieve>()
            + self.chunks.capacity() * size_of::<Chunk>()
            + self.chunks.iter().map(of_chunk).sum::<usize>()
    }
}

impl Chunk {
    /// The chunk of ascending rows of `range`.
    fn of(ids: &[u32], range: &Range<u32>) -> Chunk {
        let low = |&id: &u32| (id - range.start) as u16;
        match ids.len() {
            0 => Chunk::None,
            all if all == range.len() => Chunk::All,
            few if few <= LISTED_MAX => Chunk::Listed(ids.iter().map(low).collect()),
            count => {
                let mut words = [0; WORDS];
                ids.iter().for_each(|id| set(&mut words, low(id)));
                Chunk::Words(count as u32, Arc::new(words))
            }
        }
    }

    /// The chunk of these bits, of which those beyond `range` are 0.
    fn of_words(words: [u64; WORDS], range: &Range<u32>) -> Chunk {
        let count = words.iter().map(|word| word.count_ones()).sum::<u32>();
        if count as usize > LISTED_MAX && count as usize != range.len() {
            return Chunk::Words(count, Arc::new(words));
        }
        let mut ids = Vec::with_capacity(count as usize);
        for (at, &word) in words.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                ids.push(range.start + at as u32 * 64 + left.trailing_zeros());
                left &= left - 1;
            }
        }
        Chunk::of(&ids, range)
    }

    /// Its rows as bits.
    fn words(&self, range: &Range<u32>) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        match self {
            Chunk::None => {}
            Chunk::All => (0..range.len()).for_each(|low| set(&mut words, low as u16)),
            Chunk::Words(_, own) => words = **own,
            Chunk::Listed(ids) => ids.iter().for_each(|&low| set(&mut words, low)),
        }
        words
    }

    fn complement(&self, range: &Range<u32>) -> Chunk {
        match self {
            Chunk::None => Chunk::All,
            Chunk::All => Chunk::None,
            own => {
                let (mut words, all) = (own.words(range), Chunk::All.words(range));
                words.iter_mut().zip(all).for_each(|(word, all)| *word = all & !*word);
                Chunk::of_words(words, range)
            }
        }
    }

    /// The rows of both. Where `range` is shorter than one of the two, its rows beyond are left out.
    fn intersection(&self, other: &Chunk, range: &Range<u32>) -> Chunk {
        match (self, other) {
            (Chunk::None, _) | (_, Chunk::None) => Chunk::None,
            (Chunk::All, Chunk::All) => Chunk::All,
            (one, two) => {
                let (mut words, two) = (one.words(range), two.words(range));
                words.iter_mut().zip(two).for_each(|(word, two)| *word &= two);
                Chunk::of_words(words, range)
            }
        }
    }

    fn without(&self, gone: &[u32], range: &Range<u32>) -> Chunk {
        let mut words = self.words(range);
        for id in gone.iter().filter(|id| range.contains(id)) {
            let low = (id - range.start) as usize;
            words[low / 64] &= !(1 << (low % 64));
        }
        Chunk::of_words(words, range)
    }

    fn count(&self, range: &Range<u32>) -> u32 {
        self.count_in(0..range.end - range.start, range.end - range.start)
    }

    /// Rows in a part of the chunk, which has `rows` rows.
    fn count_in(&self, part: Range<u32>, rows: u32) -> u32 {
        match self {
            Chunk::None => 0,
            Chunk::All => part.end - part.start,
            Chunk::Words(count, _) if part == (0..rows) => *count,
            Chunk::Words(_, words) => count_bits(&words[..], part),
            Chunk::Listed(ids) => {
                let before = |low: u32| ids.partition_point(|&id| u32::from(id) < low) as u32;
                before(part.end) - before(part.start)
            }
        }
    }

    /// Its rows in a part of the chunk, ascending.
    fn rows_in(&self, part: Range<u32>) -> RowsIn<'_> {
        match self {
            Chunk::None => RowsIn::Run(0..0),
            Chunk::All => RowsIn::Run(part),
            Chunk::Words(_, words) => {
                let at = part.start as usize / 64;
                let first = words.get(at).map_or(0, |word| word & (u64::MAX << (part.start % 64)));
                RowsIn::Words { words: &words[..], at, left: first, end: part.end }
            }
            Chunk::Listed(ids) => {
                let before = |low: u32| ids.partition_point(|&id| u32::from(id) < low);
                RowsIn::Listed(ids[before(part.start)..before(part.end)].iter())
            }
        }
    }

    /// The first row at or after `from`, which may lie beyond the index in the last chunk.
    fn next(&self, from: u16) -> Option<u16> {
        match self {
            Chunk::None => None,
            Chunk::All => Some(from),
            Chunk::Words(_, words) => {
                let at = usize::from(from) / 64;
                let first = words[at] & (u64::MAX << (from % 64));
                let words = core::iter::once(first).chain(words[at + 1..].iter().copied());
                let (skipped, word) = words.enumerate().find(|(_, word)| *word != 0)?;
                Some((at + skipped) as u16 * 64 + word.trailing_zeros() as u16)
            }
            Chunk::Listed(ids) => ids.get(ids.partition_point(|&id| id < from)).copied(),
        }
    }
}

/// Rows of a part of a chunk.
enum RowsIn<'a> {
    Run(Range<u32>),
    /// Bits that are left of word `at`, and those of the words after it.
    Words {
        words: &'a [u64],
        at: usize,
        left: u64,
        end: u32,
    },
    Listed(core::slice::Iter<'a, u16>),
}

impl Iterator for RowsIn<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        match self {
            RowsIn::Run(run) => run.next(),
            RowsIn::Listed(ids) => ids.next().map(|&low| low.into()),
            RowsIn::Words { words, at, left, end } => {
                while *left == 0 {
                    *at += 1;
                    *left = *words.get(*at).filter(|_| (*at as u32) * 64 < *end)?;
                }
                let low = *at as u32 * 64 + left.trailing_zeros();
                *left &= *left - 1;
                (low < *end).then_some(low)
            }
        }
    }
}

fn set(words: &mut [u64; WORDS], low: u16) {
    words[usize::from(low) / 64] |= 1 << (low % 64);
}

/// Bits that are set in a part, which is not empty.
fn count_bits(words: &[u64], part: Range<u32>) -> u32 {
    let (first, last) = (part.start as usize / 64, (part.end - 1) as usize / 64);
    let of_first = u64::MAX << (part.start % 64);
    let of_last = u64::MAX >> (63 - (part.end - 1) % 64);
    let count = |at: usize| {
        let begins = if at == first { of_first } else { u64::MAX };
        let ends = if at == last { of_last } else { u64::MAX };
        (words[at] & begins & ends).count_ones()
    };
    (first..=last).map(count).sum()
}

/// A row's chunk, and its number there.
fn split(id: u32) -> (usize, u16) {
    ((id / CHUNK_ROWS) as usize, (id % CHUNK_ROWS) as u16)
}

fn join(chunk: usize, low: u16) -> u32 {
    chunk as u32 * CHUNK_ROWS + u32::from(low)
}

/// The rows of a chunk.
fn range_of(chunk: usize, rows: u32) -> Range<u32> {
    let start = chunk as u32 * CHUNK_ROWS;
    start..start.saturating_add(CHUNK_ROWS).min(rows)
}

fn chunks_of(rows: u32) -> impl ExactSizeIterator<Item = Range<u32>> {
    (0..rows.div_ceil(CHUNK_ROWS) as usize).map(move |chunk| range_of(chunk, rows))
}
