//! The rows of a filter that all queries of a scan share: only these are gathered, from the blocks that have some.

use std::ops::Range;
use std::sync::Arc;

use stratann_core::PAGE;
use stratann_core::sieve::Sieve;
use stratann_storage::Result;

use super::{Chunk, Done, Rows};
use crate::index::Index;
use crate::kinds::blocks;

/// Memory of a block with such rows, bytes.
pub(super) const BLOCK_BYTES: u64 = size_of::<(u32, Range<u32>)>() as u64;

/// The rows, and their blocks in order.
pub(super) struct Matched {
    sieve: Arc<Sieve>,
    blocks: Vec<(u32, Range<u32>)>,
}

impl Matched {
    /// `None` of a kind whose rows do not lie in blocks in order.
    pub(super) fn new(index: &Index, sieve: &Arc<Sieve>) -> Option<Matched> {
        let (mut blocks, mut next) = (Vec::new(), sieve.next(0));
        while let Some(row) = next {
            let (block, rows) = index.kind.block_with(&index.base, row)?;
            next = sieve.next(rows.end.max(row.saturating_add(1)));
            blocks.push((block, rows));
        }
        Some(Matched { sieve: sieve.clone(), blocks })
    }

    pub(super) fn blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Number of the rows, without one that is excluded.
    pub(super) fn rows_but(&self, exclude: u32) -> u64 {
        u64::from(self.sieve.count() - u32::from(self.sieve.has(exclude)))
    }

    /// Collects the rows in these of the blocks.
    ///
    /// # Errors
    /// A block that cannot be read.
    pub(super) fn gather(
        &self,
        (index, rows): (&Index, &Rows<'_>),
        units: Range<u32>,
        chunk: &mut Chunk<'_>,
        own: &mut Done,
    ) -> Result<()> {
        let blocks = &self.blocks[units.start as usize..units.end as usize];
        match rows {
            Rows::Resident(resident) => {
                for row in blocks.iter().flat_map(|(_, rows)| self.sieve.iter_in(rows.clone())) {
                    let Some((vector, inverse_norm)) = resident.vector(row) else { continue };
                    chunk.push_row(vector, inverse_norm, (row, resident.external_id(row)));
                }
                Ok(())
            }
            _ => blocks.chunk_by(|a, b| a.0 + 1 == b.0).try_for_each(|run| self.read(index, run, chunk, own)),
        }
    }

    /// Collects the rows of blocks that lie one after another.
    fn read(
        &self,
        index: &Index,
        run: &[(u32, Range<u32>)],
        chunk: &mut Chunk<'_>,
        own: &mut Done,
    ) -> Result<()> {
        let Some(&(first, _)) = run.first() else { return Ok(()) };
        let count = run.len() as u32;
        let cache = index.cache.as_ref().filter(|cache| cache.holds_all());
        let read = blocks::for_each_of(&index.base, cache, first..first + count, &mut |block| {
            let rows = block.first_id()..block.first_id().saturating_add(block.count() as u32);
            for row in self.sieve.iter_in(rows.clone()) {
                let slot = (row - rows.start) as usize;
                let inverse_norm = if block.has_norms() { block.inverse_norm(slot) } else { 1.0 };
                chunk.push_row(block.vector(slot), inverse_norm, (row, block.external_id(slot)));
            }
        })?;
        own.reads += u64::from(read);
        own.pages_read += u64::from(read) * index.base.block.block_bytes.div_ceil(PAGE) as u64;
        own.blocks_cached += u64::from(count - read);
        Ok(())
    }
}
