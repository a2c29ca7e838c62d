//! Numbers that are stored in chunks, which filters have compressed.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use flate2::read::ZlibDecoder;
use stratann_storage::{Error, Result};

use crate::dataset::source::Source;

/// Most bytes of a band of chunks, which is in memory as a whole.
const BAND_BYTES_MAX: u64 = 64 << 20;
/// Bytes of the checksum at the end of a chunk.
const SUM_BYTES: usize = 4;

/// A filter that chunks went through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Deflate,
    /// First bytes of all numbers, then second ones, and so on.
    Shuffle,
    /// A checksum at the end. It is dropped, not compared.
    Fletcher32,
}

impl Filter {
    /// The filter of a number of the HDF5 library.
    pub(super) fn of(id: u64) -> Option<Filter> {
        match id {
            1 => Some(Filter::Deflate),
            2 => Some(Filter::Shuffle),
            3 => Some(Filter::Fletcher32),
            _ => None,
        }
    }
}

/// A chunk in the file.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    pub(super) at: u64,
    pub(super) bytes: u64,
    /// A bit for each filter that was left out.
    pub(super) left_out: u32,
}

/// The chunks of a dataset. Those beside each other are a band: some of its rows.
pub(super) struct Chunks {
    /// Rows of a band.
    rows: u64,
    /// Components of a chunk.
    columns: u64,
    dim: u64,
    /// Bytes of a number.
    item: usize,
    filters: Vec<Filter>,
    /// By the first row and the first component.
    all: BTreeMap<(u64, u64), Chunk>,
    /// The last band that was read, by its first row. Blocks of rows are read one after another, and share one.
    last: Mutex<Option<(u64, Vec<u8>)>>,
}

impl Chunks {
    /// No chunks of this shape yet; `None` for a shape that cannot be, or is too large.
    pub(super) fn new(
        (rows, columns): (u64, u64),
        (dim, item): (u64, usize),
        filters: Vec<Filter>,
    ) -> Option<Chunks> {
        let chunk = rows.checked_mul(columns)?.checked_mul(item as u64)?;
        let band = rows.checked_mul(dim)?.checked_mul(item as u64)?;
        let is_possible = chunk > 0 && chunk.max(band) <= BAND_BYTES_MAX;
        let (all, last) = (BTreeMap::new(), Mutex::new(None));
        is_possible.then_some(Chunks { rows, columns, dim, item, filters, all, last })
    }

    /// Adds a chunk; false where it cannot be there.
    pub(super) fn add(&mut self, place: (u64, u64), chunk: Chunk) -> bool {
        // Deflate makes of what it cannot compress a little more.
        let most = self.chunk_bytes() as u64;
        place.0.is_multiple_of(self.rows)
            && place.1.is_multiple_of(self.columns)
            && chunk.bytes <= most + most / 8 + 1024
            && self.all.insert(place, chunk).is_none()
    }

    /// Whether all chunks of so many rows are there.
    pub(super) fn has_rows(&self, rows: u64) -> bool {
        let (bands, columns) = (rows.div_ceil(self.rows), self.dim.div_ceil(self.columns));
        bands.checked_mul(columns) == Some(self.all.len() as u64)
    }

    fn chunk_bytes(&self) -> usize {
        self.rows as usize * self.columns as usize * self.item
    }

    /// Appends the stored numbers of some rows, which the dataset has.
    pub(super) fn read_rows(
        &self,
        (path, source): (&Path, &Source),
        (first, count): (u64, usize),
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let row_bytes = self.dim as usize * self.item;
        let (mut row, end) = (first, first + count as u64);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        while row < end {
            let band = row - row % self.rows;
            if last.as_ref().is_none_or(|(own, _)| *own != band) {
                *last = None;
                *last = Some((band, self.band((path, source), band)?));
            }
            let until = end.min(band + self.rows);
            let bytes = (row - band) as usize * row_bytes..(until - band) as usize * row_bytes;
            out.extend_from_slice(last.as_ref().and_then(|(_, own)| own.get(bytes)).unwrap_or_default());
            row = until;
        }
        Ok(())
    }

    /// All rows of a band; those beyond the dataset have what the chunks have.
    fn band(&self, (path, source): (&Path, &Source), first: u64) -> Result<Vec<u8>> {
        let row_bytes = self.dim as usize * self.item;
        let mut band = vec![0; self.rows as usize * row_bytes];
        for column in (0..self.dim).step_by(self.columns as usize) {
            let wrong = |why: &str| {
                let path = path.display();
                Error::bad_input(format!(
                    "{path}: the chunk from row {first}, component {column} on {why}; copy the file again"
                ))
            };
            let chunk = self.all.get(&(first, column)).ok_or_else(|| wrong("is not there"))?;
            let mut bytes = vec![0; chunk.bytes as usize];
            source.read_at(path, chunk.at, &mut bytes)?;
            let bytes = self.decoded(chunk, bytes).map_err(wrong)?;
            let own_bytes = self.columns as usize * self.item;
            let from = column as usize * self.item;
            let kept = own_bytes.min(row_bytes - from);
            for (own, row) in bytes.chunks_exact(own_bytes).zip(band.chunks_exact_mut(row_bytes)) {
                row[from..from + kept].copy_from_slice(&own[..kept]);
            }
        }
        Ok(band)
    }

    /// The numbers of a chunk.
    fn decoded(&self, chunk: &Chunk, mut bytes: Vec<u8>) -> Result<Vec<u8>, &'static str> {
        let wanted = self.chunk_bytes();
        for (number, filter) in self.filters.iter().enumerate().rev() {
            if number < 32 && chunk.left_out >> number & 1 == 1 {
                continue;
            }
            bytes = match filter {
                Filter::Deflate => {
                    let mut raw = Vec::with_capacity(wanted);
                    // A checksum may be in what was compressed.
                    let most = (wanted + SUM_BYTES + 1) as u64;
                    let inflated = ZlibDecoder::new(&bytes[..]).take(most).read_to_end(&mut raw);
                    inflated.map_err(|_| "cannot be decompressed")?;
                    raw
                }
                Filter::Shuffle => unshuffled(&bytes, self.item),
                Filter::Fletcher32 => {
                    let kept = bytes.len().checked_sub(SUM_BYTES).ok_or("is cut")?;
                    bytes.truncate(kept);
                    bytes
                }
            };
        }
        match bytes.len() == wanted {
            true => Ok(bytes),
            false => Err("has another length than its dataset says"),
        }
    }
}

/// The numbers whose first bytes come first, then their second ones. Bytes behind the last whole number stay.
fn unshuffled(bytes: &[u8], item: usize) -> Vec<u8> {
    let count = bytes.len() / item;
    let mut out = bytes.to_vec();
    for (place, own) in bytes.chunks_exact(count.max(1)).take(item).enumerate() {
        for (number, byte) in own.iter().enumerate().take(count) {
            out[number * item + place] = *byte;
        }
    }
    out
}
