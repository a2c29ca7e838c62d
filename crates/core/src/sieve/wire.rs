//! A sieve as bytes, for another server.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | rows of the index |
//! | | for each chunk: |
//! | 1 | 0 none, 1 all, 2 bits, 3 a list |
//! | 8,192, or less in the last chunk | bits: one for each row, in whole words |
//! | 2 + 2 each | a list: its length, its rows, ascending |

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{Chunk, Sieve, WORDS, chunks_of};
use crate::codec::{Reader, Refused};

impl Sieve {
    /// Appends the sieve to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rows.to_le_bytes());
        for (range, chunk) in chunks_of(self.rows).zip(&self.chunks) {
            match chunk {
                Chunk::None => out.push(0),
                Chunk::All => out.push(1),
                Chunk::Words(_, words) => {
                    out.push(2);
                    let words = &words[..range.len().div_ceil(64)];
                    words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
                }
                Chunk::Listed(rows) => {
                    out.push(3);
                    out.extend_from_slice(&(rows.len() as u16).to_le_bytes());
                    rows.iter().for_each(|row| out.extend_from_slice(&row.to_le_bytes()));
                }
            }
        }
    }

    /// Bytes that [`Sieve::encode`] appends.
    pub fn encoded_bytes(&self) -> usize {
        let chunks = chunks_of(self.rows).zip(&self.chunks);
        let bytes = chunks.map(|(range, chunk)| match chunk {
            Chunk::None | Chunk::All => 1,
            Chunk::Words(..) => 1 + 8 * range.len().div_ceil(64),
            Chunk::Listed(rows) => 3 + 2 * rows.len(),
        });
        4 + bytes.sum::<usize>()
    }

    /// Reads a sieve of an index of `rows` rows. Each chunk must be in the form that follows from its rows.
    ///
    /// # Errors
    /// Bytes of another index, cut short, too many, or that make no sense.
    pub fn decode(rows: u32, bytes: &[u8]) -> Result<Sieve, Refused> {
        let mut r = Reader(bytes);
        if r.u32()? != rows {
            return Err(Refused::Content);
        }
        let mut chunks = Vec::with_capacity(chunks_of(rows).len());
        let mut count = 0;
        for range in chunks_of(rows) {
            let chunk = match r.u8()? {
                0 => Chunk::None,
                1 => Chunk::All,
                2 => read_words(&mut r, range.len())?,
                3 => read_list(&mut r, range.len())?,
                _ => return Err(Refused::Content),
            };
            count += chunk.count(&range);
            chunks.push(chunk);
        }
        if r.0.is_empty() { Ok(Sieve { rows, count, chunks }) } else { Err(Refused::Content) }
    }
}

fn read_words(r: &mut Reader<'_>, rows: usize) -> Result<Chunk, Refused> {
    let mut words = [0u64; WORDS];
    for word in &mut words[..rows.div_ceil(64)] {
        *word = r.u64()?;
    }
    let beyond =
        words[rows.div_ceil(64) - 1].checked_shr(rows as u32 % 64).filter(|_| !rows.is_multiple_of(64));
    let count = words.iter().map(|word| word.count_ones()).sum::<u32>();
    let is_usual =
        count as usize > super::LISTED_MAX && (count as usize) < rows && beyond.is_none_or(|bits| bits == 0);
    if is_usual { Ok(Chunk::Words(count, Arc::new(words))) } else { Err(Refused::Content) }
}

fn read_list(r: &mut Reader<'_>, rows: usize) -> Result<Chunk, Refused> {
    let length = usize::from(read_u16(r)?);
    let list = (0..length).map(|_| read_u16(r)).collect::<Result<Vec<u16>, _>>()?;
    let ascends = list.windows(2).all(|pair| pair[0] < pair[1]);
    let fits = list.last().is_some_and(|&last| usize::from(last) < rows);
    let is_usual = length <= super::LISTED_MAX && length < rows && ascends && fits;
    if is_usual { Ok(Chunk::Listed(list.into())) } else { Err(Refused::Content) }
}

fn read_u16(r: &mut Reader<'_>) -> Result<u16, Refused> {
    r.take().map(u16::from_le_bytes)
}
