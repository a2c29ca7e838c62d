//! How segments of a collection are made and opened.

use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::Duration;

use stratann_params::IndexKind;
use stratann_storage::ledger::Part;
use stratann_storage::{ErrorKind, Progress};

use super::slot::{Shared, Slot};
use crate::collections::budget::SegmentRoom;
use crate::collections::error::{Kind, Result};
use crate::collections::spec::{NamedSpec, Specs, VectorsOf};
use crate::segments::{Curves, Making, Segment, SegmentEntry, VectorsMaking, folder_of};

/// Memory of builds up to which each of them may have all of it.
const BUILDS_SHORT: u64 = 128 << 20;
/// Most memory of the rows of a segment that is scanned, but for checkpoints.
const SCANNED_BYTES_MAX: u64 = 64 << 20;
/// At most this part of the memory of segments.
const SCANNED_SHARE: u64 = 16;
/// How long a merge waits before it looks whether another has ended.
const TURN_WAIT: Duration = Duration::from_millis(20);

/// Kind of an index, `None` to choose, and the curves that it may take over.
pub(super) type KindAndCurves = (Option<IndexKind>, Option<Curves>);

impl Slot {
    /// How a segment is made; `how` says it of each name.
    pub(super) fn making(
        &self,
        shared: &Shared,
        (number, level): (u64, u8),
        how: &dyn Fn(VectorsOf<'_>) -> KindAndCurves,
    ) -> Result<Making> {
        let of = |(own, named): (VectorsOf<'_>, &NamedSpec)| {
            let (kind, curves) = how(own);
            VectorsMaking { name: named.name.clone(), shape: own.spec.shape(), kind, curves }
        };
        Ok(Making {
            vectors: self.specs.each().zip(self.specs.iter()).map(of).collect(),
            number,
            level,
            threads: shared.options.threads,
            ram_budget: shared.options.build_bytes.map(|all| share_of_builds(all, level)),
            schema: self.schema(shared)?,
            grows_graphs: shared.options.grows_graphs,
        })
    }

    /// Opens a segment in whose place so many bytes go back.
    pub(super) fn open_segment(
        &self,
        shared: &Shared,
        entry: &SegmentEntry,
        replaces: u64,
    ) -> Result<Arc<Segment>> {
        let folder = folder_of(&shared.folder_of(self.id), entry.number);
        let room = SegmentRoom::replacing(&shared.memory, self.id, replaces);
        Ok(Arc::new(Segment::open(&folder, entry, (&self.specs.shapes(), &room))?))
    }

    /// The same; `None` where it has no room beside those that it replaces, and takes no more than they do.
    pub(super) fn open_beside(
        &self,
        shared: &Shared,
        entry: &SegmentEntry,
        replaces: u64,
    ) -> Result<Option<Arc<Segment>>> {
        match self.open_segment(shared, entry, replaces) {
            Err(e) if e.kind == Kind::Other(ErrorKind::Budget) => {
                let folder = folder_of(&shared.folder_of(self.id), entry.number);
                let needed = Segment::opening_bytes(&folder, entry, &self.specs.shapes())?;
                if needed <= replaces { Ok(None) } else { Err(e) }
            }
            opened => opened.map(Some),
        }
    }
}

impl Shared {
    /// Most rows of a segment of level 1 that is scanned: those that have room in memory beside the largest segment.
    pub(super) fn scanned_rows(&self, specs: &Specs) -> u64 {
        let room = SCANNED_BYTES_MAX.min(self.memory.ledger().most(Part::Segments) / SCANNED_SHARE);
        let row: u64 = specs.shapes().shapes.iter().map(Segment::scanned_row_bytes).sum();
        self.options.scanned_rows.min(room / row.max(1))
    }

    /// Where there is no memory for two merges, of one collection or of several: makes them one after another.
    ///
    /// # Errors
    /// An interruption while another merge goes on.
    pub(super) fn merging_alone(&self, progress: &dyn Progress) -> Result<Option<MutexGuard<'_, ()>>> {
        if self.options.build_bytes.is_none_or(|all| all >= 2 * BUILDS_SHORT) {
            return Ok(None);
        }
        loop {
            match self.merging.try_lock() {
                Ok(alone) => return Ok(Some(alone)),
                Err(TryLockError::Poisoned(e)) => return Ok(Some(e.into_inner())),
                Err(TryLockError::WouldBlock) => progress.check_interrupted()?,
            }
            std::thread::sleep(TURN_WAIT);
        }
    }
}

/// Memory of a build for a level, of that of all builds: one of each level may be made at once.
pub(super) fn share_of_builds(all: u64, level: u8) -> u64 {
    let eighths = match level {
        0 => 1,
        1 => 2,
        _ => 5,
    };
    (all / 8 * eighths).max(all.min(BUILDS_SHORT))
}

#[cfg(test)]
mod tests {
    use stratann_kernel::{DType, Metric};
    use stratann_storage::Quiet;

    use super::*;
    use crate::collections::node::{Node, Options};
    use crate::collections::options::SegmentOptions;
    use crate::collections::spec::Spec;
    use crate::rows::ExternalId;

    /// Interrupts whatever asks.
    struct Interrupts;

    impl Progress for Interrupts {
        fn stage(&self, _: &str, _: u64, _: &str) {}
        fn advance(&self, _: u64) {}
        fn note(&self, _: &str) {}
        fn interrupted(&self) -> bool {
            true
        }
    }

    #[test]
    fn merges_take_turns_where_memory_is_short_and_only_for_merges() {
        let place = tempfile::tempdir().unwrap();
        let segments = SegmentOptions {
            in_background: false,
            build_bytes: Some(2 * BUILDS_SHORT - 1),
            ..SegmentOptions::default()
        };
        let node = Node::open(place.path(), &Options { segments, ..Options::default() }, &Quiet).unwrap();
        let spec = Spec { dim: 1, dtype: DType::U8, metric: Metric::L2, kind: None };
        let points = node.create_collection("c", spec).unwrap();
        points.upsert(&[ExternalId::Number(1)], &[1]).unwrap();
        points.compact(&Quiet).unwrap();
        let alone = points.shared.merging_alone(&Quiet).unwrap().unwrap();
        // There is nothing to merge, so nobody waits.
        points.compact(&Quiet).unwrap();
        points.upsert(&[ExternalId::Number(2)], &[2]).unwrap();
        points.checkpoint(&Quiet).unwrap();
        let interrupted = points.compact(&Interrupts).unwrap_err();
        assert_eq!(interrupted.kind, Kind::Other(ErrorKind::Interrupted));
        assert_eq!(points.facts().unwrap().segments.len(), 2);
        drop(alone);
        points.compact(&Quiet).unwrap();
        assert_eq!(points.facts().unwrap().segments.len(), 1);
        let wide = SegmentOptions { build_bytes: Some(2 * BUILDS_SHORT), ..segments };
        let other = tempfile::tempdir().unwrap();
        let node =
            Node::open(other.path(), &Options { segments: wide, ..Options::default() }, &Quiet).unwrap();
        let points = node.create_collection("c", spec).unwrap();
        assert!(points.shared.merging_alone(&Quiet).unwrap().is_none());
    }
}
