//! Changes of a live region: inserts, deletes, and rebuilds of groups that are full.

use stratann_core::remote::{
    Contents, Delete, Deleted, Insert, Inserted, NewGroup, NewVector, Rebuild, RebuildLimits, Rebuilt,
    Truncate,
};

use super::{LiveRegion, Reader};
use crate::{Error, ErrorKind, Result};

/// How often a change waits for a rebuild before it is refused.
const REBUILDS_MAX: u32 = 16;

impl Reader {
    /// Inserts a vector and rebuilds its group where that is full. `build` builds the sub-HNSWs of a group.
    ///
    /// # Errors
    /// A node that does not answer, damage, a region without space for the group, or a log without space.
    pub(crate) fn insert(
        &mut self,
        live: &LiveRegion,
        new: NewVector,
        limits: RebuildLimits,
        build: &mut dyn FnMut(u32, &Contents) -> Result<NewGroup>,
    ) -> Result<u64> {
        let group = new.group;
        let mut insert = Insert::new(new, &self.seen);
        for _ in 0..REBUILDS_MAX {
            let places = &live.places;
            let inserted = self.nodes.run(|answers| insert.step(places, answers));
            match inserted.map_err(|fault| live.error(fault, &self.nodes))? {
                Inserted::Done { clock } => return Ok(clock),
                Inserted::Full { .. } | Inserted::Sealed { .. } => {
                    self.begin_batch(live)?;
                    self.rebuild(live, group, limits, build)?;
                }
                Inserted::LogFull => self.free_tombstones(live, limits, build)?,
            }
        }
        let message = format!("group {group} filled up {REBUILDS_MAX} times during one insert; try again");
        Err(Error { kind: ErrorKind::Io, message })
    }

    /// Deletes an id.
    ///
    /// # Errors
    /// As [`Reader::insert`].
    pub(crate) fn delete(
        &mut self,
        live: &LiveRegion,
        id: u64,
        limits: RebuildLimits,
        build: &mut dyn FnMut(u32, &Contents) -> Result<NewGroup>,
    ) -> Result<u64> {
        for _ in 0..REBUILDS_MAX {
            let mut delete = Delete::new(id, &self.seen);
            let deleted = self.nodes.run(|answers| delete.step(&live.places, answers));
            match deleted.map_err(|fault| live.error(fault, &self.nodes))? {
                Deleted::Done { clock } => return Ok(clock),
                Deleted::LogFull => self.free_tombstones(live, limits, build)?,
            }
        }
        let message = "tombstones are written faster than they are freed; try again".into();
        Err(Error { kind: ErrorKind::Io, message })
    }

    /// Rebuilds a group as the last batch saw it. It is done as well when somebody else has rebuilt it.
    ///
    /// # Errors
    /// As [`Reader::insert`].
    pub(crate) fn rebuild(
        &mut self,
        live: &LiveRegion,
        group: u32,
        mut limits: RebuildLimits,
        build: &mut dyn FnMut(u32, &Contents) -> Result<NewGroup>,
    ) -> Result<()> {
        let mut rebuild = Rebuild::new(limits, group, &self.seen);
        loop {
            let rebuilt = self.nodes.run(|answers| rebuild.step(&live.places, answers));
            match rebuilt.map_err(|fault| live.error(fault, &self.nodes))? {
                Rebuilt::Build(contents) => rebuild.built(build(group, &contents)?),
                Rebuilt::Published { .. } | Rebuilt::Replaced => return self.begin_batch(live).map(drop),
                Rebuilt::TooLarge { group_bytes } => {
                    limits.group_bytes = group_bytes;
                    rebuild = Rebuild::new(limits, group, &self.seen);
                }
                Rebuilt::NoSpace => {
                    let bytes = limits.group_bytes;
                    let message = format!(
                        "no memory node has {bytes} free bytes for group {group}; start it with a larger --size, and \
                         load the index again"
                    );
                    return Err(Error { kind: ErrorKind::Io, message });
                }
            }
        }
    }

    /// Rebuilds all groups, so that no tombstone is needed, and frees their places.
    fn free_tombstones(
        &mut self,
        live: &LiveRegion,
        limits: RebuildLimits,
        build: &mut dyn FnMut(u32, &Contents) -> Result<NewGroup>,
    ) -> Result<()> {
        self.begin_batch(live)?;
        for group in 0..self.seen.groups.len() as u32 {
            self.rebuild(live, group, limits, build)?;
        }
        let mut truncate = Truncate::new(&self.seen);
        let freed = self.nodes.run(|answers| truncate.step(&live.places, answers));
        freed.map(drop).map_err(|fault| live.error(fault, &self.nodes))
    }
}
