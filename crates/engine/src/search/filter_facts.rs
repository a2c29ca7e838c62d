//! What is reported of filters, and the memory that many of them take.

use stratann_core::sieve::{CHUNK_ROWS, Sieve};

use super::sieved::{Filter, Naming};
use crate::index::{Index, RowIds};
use crate::manifest::Manifest;
use crate::sieve_ways::FilterReport;

/// Bytes of a chunk of a sieve as bits.
const CHUNK_BYTES: u64 = CHUNK_ROWS as u64 / 8;
/// Bytes of a chunk without its rows, and of a sieve without its chunks.
const CHUNK_FIXED_BYTES: u64 = 32;
const FILTER_FIXED_BYTES: u64 = (size_of::<Filter>() + size_of::<Sieve>()) as u64;

impl Filter {
    /// What a report says of it.
    pub fn report(&self) -> FilterReport {
        FilterReport {
            matches: self.matches(),
            matches_exact: self.is_exact(),
            way: self.way(),
            unknown_ids: self.unknown(),
            repeated_ids: self.repeated(),
            prices: self.prices(),
        }
    }
}

impl Naming {
    /// Most memory of a filter that names so many ids, once it is made.
    fn bytes_max(self, rows: u64, ids: u64) -> u64 {
        let chunks = rows.div_ceil(CHUNK_ROWS.into());
        let most = chunks * CHUNK_BYTES;
        // A chunk of few rows is a list of two bytes for each, and one of more than a thousand has bits. Of the others
        // than few rows each chunk that has one of these has bits.
        let own = match self {
            Naming::Only => most.min(ids.saturating_mul(8)),
            Naming::Without => most.min(ids.saturating_mul(CHUNK_BYTES)),
        };
        own + chunks * CHUNK_FIXED_BYTES + FILTER_FIXED_BYTES
    }
}

impl Index {
    /// Most memory that filters of so many ids each take beside the open index, bytes: sets of rows, and what one of
    /// them takes while it is made.
    pub fn filters_bytes_max(
        manifest: &Manifest,
        naming: Naming,
        ids: impl IntoIterator<Item = usize>,
    ) -> u64 {
        let (mut kept, mut making) = (0u64, 0);
        for ids in ids {
            kept = kept.saturating_add(naming.bytes_max(manifest.rows, ids as u64));
            making = Self::sieve_bytes_max(manifest, ids).max(making);
        }
        kept.saturating_add(making)
    }

    /// Most memory that the ids of all rows take, bytes.
    pub fn ids_bytes_max(manifest: &Manifest) -> u64 {
        RowIds::bytes_max(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_takes_more_than_was_foreseen() {
        for rows in [1u64, 1000, 65_536, 200_000] {
            for every in [1u64, 2, 63, 64, 500, 70_000] {
                let ids: Vec<u64> = (0..rows).filter(|id| id.is_multiple_of(every)).collect();
                for naming in [Naming::Only, Naming::Without] {
                    let sieve = naming.rows(&ids, rows).unwrap();
                    let most = naming.bytes_max(rows, ids.len() as u64);
                    let own = (sieve.bytes() + size_of::<Filter>()) as u64;
                    assert!(own <= most, "{naming:?} every {every} of {rows}: {own} of {most}");
                }
            }
        }
    }
}
