//! How segments of a collection are made and opened.

use std::sync::{Arc, MutexGuard};

use stratann_params::IndexKind;
use stratann_storage::ErrorKind;

use super::slot::{Shared, Slot};
use crate::collections::budget::SegmentRoom;
use crate::collections::error::{Kind, Result};
use crate::collections::spec::{NamedSpec, VectorsOf};
use crate::segments::{Curves, Making, Segment, SegmentEntry, VectorsMaking, folder_of};

/// Memory of builds up to which each of them may have all of it.
const BUILDS_SHORT: u64 = 128 << 20;

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
    /// Where there is no memory for two merges, of one collection or of several: makes them one after another.
    pub(super) fn merging_alone(&self) -> Option<MutexGuard<'_, ()>> {
        let are_short = self.options.build_bytes.is_some_and(|all| all < 2 * BUILDS_SHORT);
        are_short.then(|| self.merging.lock().unwrap_or_else(|e| e.into_inner()))
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
