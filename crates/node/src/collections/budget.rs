//! Memory of the collections of a node, all of it from one ledger.

use std::sync::Arc;

use stratann_engine::index::CacheBudget;
use stratann_storage::budget::size;
use stratann_storage::ledger::{Guarantee, Ledger, Part, Reservation};

use super::error::{Error, Result};
use crate::segments::{SegmentMemory, TakenMemory};

/// What is set aside for a node from its opening on.
pub(super) struct Memory {
    ledger: Arc<Ledger>,
    _guaranteed: Vec<Guarantee>,
    deltas: u64,
}

impl Memory {
    /// Sets memory aside for the storage engine, points in memory and builds. Segments have the rest.
    ///
    /// # Errors
    /// `Budget` where the ledger has no room for them.
    pub(super) fn new(ledger: Arc<Ledger>, engine: u64, deltas: u64, merges: u64) -> Result<Arc<Memory>> {
        let engine_line = ledger.guarantee(Part::Engine, engine)?;
        // The engine takes its memory at once.
        let parts = [(Part::Deltas, deltas), (Part::Merges, merges)];
        let others = parts.into_iter().map(|(part, bytes)| ledger.guarantee(part, bytes));
        let mut guaranteed = others.collect::<stratann_storage::Result<Vec<_>>>()?;
        guaranteed.push(engine_line);
        Ok(Arc::new(Memory { ledger, _guaranteed: guaranteed, deltas }))
    }

    /// The ledger.
    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Bytes of a part that are used.
    pub(super) fn used(&self, part: Part) -> u64 {
        let parts = self.ledger.parts();
        parts.iter().find(|own| own.part == part.name()).map_or(0, |own| own.used_bytes)
    }
}

/// Memory of a segment, which goes back when it is dropped.
struct SegmentBytes {
    _reserved: Reservation,
    cache: u64,
}

impl SegmentMemory for Arc<Memory> {
    fn take(&self, tables: u64, usable: u64) -> stratann_storage::Result<Box<dyn TakenMemory>> {
        let reserved = self.ledger.reserve(Part::Segments, tables);
        let mut reserved = reserved.ok_or_else(|| {
            stratann_storage::Error::budget(format!(
                "a segment needs {} of memory, and {} of the {} for segments are taken; close collections that are \
                 idle, or give a larger --ram-budget",
                size(tables),
                size(self.used(Part::Segments)),
                size(self.ledger.most(Part::Segments))
            ))
        })?;
        let left = match self.ledger.limit() {
            None => CacheBudget::free_bytes(),
            // What fits is in memory as a whole; of anything larger others keep a half.
            Some(_) => self.ledger.most(Part::Segments).saturating_sub(self.used(Part::Segments)) / 2,
        };
        let cache = usable.min(left);
        let cache = if reserved.grow(cache) { cache } else { 0 };
        Ok(Box::new(SegmentBytes { _reserved: reserved, cache }))
    }
}

impl TakenMemory for SegmentBytes {
    fn cache_bytes(&self) -> u64 {
        self.cache
    }
}

/// Memory of the points of a collection, which goes back when it is dropped.
pub(super) struct Reserved {
    memory: Arc<Memory>,
    own: Option<Reservation>,
}

impl Reserved {
    pub(super) fn none(memory: &Arc<Memory>) -> Reserved {
        Reserved { memory: memory.clone(), own: None }
    }

    /// Bytes of the part.
    pub(super) fn bytes(&self) -> u64 {
        self.own.as_ref().map_or(0, Reservation::bytes)
    }

    /// Changes the part to so many bytes. One that becomes smaller never fails.
    ///
    /// # Errors
    /// `Busy` when there is not that much; then the part stays as it is.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<()> {
        let more = bytes.saturating_sub(self.bytes());
        let fits = match &mut self.own {
            Some(own) if more == 0 => {
                own.shrink_to(bytes);
                true
            }
            Some(own) => own.grow(more),
            none => {
                *none = self.memory.ledger.reserve(Part::Deltas, bytes);
                none.is_some()
            }
        };
        if fits {
            return Ok(());
        }
        Err(Error::busy(format!(
            "its points need {} of memory, and {} of the {} for points are taken by other collections; close \
             collections that are idle, remove points, or raise the budget",
            size(bytes),
            size(self.memory.used(Part::Deltas).saturating_sub(self.bytes())),
            size(self.memory.deltas)
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_get_what_is_set_aside_and_segments_the_rest() {
        let memory = Memory::new(Ledger::new(Some(1000)), 300, 100, 200).unwrap();
        let (mut one, mut two) = (Reserved::none(&memory), Reserved::none(&memory));
        one.resize(60).unwrap();
        two.resize(40).unwrap();
        assert!(two.resize(41).is_err() && one.resize(61).is_err());
        assert_eq!(memory.used(Part::Deltas), 100);
        one.resize(10).unwrap();
        two.resize(90).unwrap();
        drop(two);
        assert_eq!((memory.used(Part::Deltas), one.bytes()), (10, 10));
        let segment = memory.take(100, 1000).unwrap();
        assert_eq!((segment.cache_bytes(), memory.used(Part::Segments)), (150, 250));
        assert!(memory.take(200, 0).is_err_and(|e| e.message.contains("--ram-budget")));
        drop(segment);
        assert_eq!(memory.take(400, 0).unwrap().cache_bytes(), 0);
        assert!(Memory::new(Ledger::new(Some(500)), 300, 100, 200).is_err());
    }
}
