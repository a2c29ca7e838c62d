//! How segments of a collection are made and opened.

use std::sync::Arc;

use stratann_params::IndexKind;
use stratann_storage::ErrorKind;

use super::chosen::share_of_builds;
use super::slot::{Shared, Slot};
use crate::collections::budget::SegmentRoom;
use crate::collections::error::{Kind, Result};
use crate::collections::spec::{NamedSpec, VectorsOf};
use crate::segments::{Curves, Making, Segment, SegmentEntry, VectorsMaking, folder_of};

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
