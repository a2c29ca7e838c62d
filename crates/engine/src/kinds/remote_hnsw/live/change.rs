//! Single changes of a live region: one insert, one delete, and rebuilds of groups that are full.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use stratann_core::format::region::{Address, Version};
use stratann_core::remote::{
    Contents, Delete, Deleted, Fault, Insert, Inserted, NewGroup, NewVector, Rebuild, RebuildLimits, Rebuilt,
    Truncate,
};

use super::group::GroupBuilder;
use super::{LiveRegion, Reader};
use crate::budget::yield_cores;
use crate::{Error, ErrorKind, Result};

/// How often a change waits for a rebuild before it is refused.
const REBUILDS_MAX: u32 = 16;
/// Rounds of at least 1 ms after which what stands still counts as stopped. A live rebuilder's heart beats some 40
/// times as often, also on a machine that is busy.
const PATIENCE_ROUNDS: u32 = 2000;
/// Interval of the heart of a rebuilder while it builds.
const BEAT: Duration = Duration::from_millis(50);

impl Reader {
    /// Requests since the last call.
    pub(super) fn requests(&mut self) -> u64 {
        self.nodes.requests()
    }

    /// Reads the headers, for a change.
    ///
    /// # Errors
    /// A node that does not answer; damage.
    pub(super) fn begin_change(&mut self, live: &LiveRegion) -> Result<()> {
        self.begin_batch(live).map(drop)
    }

    /// Inserts a vector and rebuilds its group where that is full. Returns the clock of the record.
    ///
    /// # Errors
    /// A node that does not answer, damage, a region without space for the group, or a log without space.
    pub(super) fn insert(
        &mut self,
        live: &LiveRegion,
        new: NewVector,
        builder: &GroupBuilder,
    ) -> Result<u64> {
        let insert = Insert::new(new, &self.seen);
        self.go_on(live, insert, None, builder)
    }

    /// Inserts vectors of different ids. What all inserts ask for at a time is one request. Returns how each one went.
    pub(super) fn insert_together(
        &mut self,
        live: &LiveRegion,
        new: Vec<NewVector>,
        builder: &GroupBuilder,
    ) -> Vec<Result<u64>> {
        let insert = |(others, new)| Insert::after(new, &self.seen, others);
        let mut inserts: Vec<Insert> = (0..).zip(new).map(insert).collect();
        let count = inserts.len();
        let ends = self.nodes.run_together(count, |at, answers| inserts[at].step(&live.places, answers));
        let ends = inserts.into_iter().zip(ends);
        ends.map(|(insert, end)| self.go_on(live, insert, Some(end), builder)).collect()
    }

    /// Goes on with an insert after it has ended in some way, until it is done.
    fn go_on(
        &mut self,
        live: &LiveRegion,
        mut insert: Insert,
        mut end: Option<std::result::Result<Inserted, Fault>>,
        builder: &GroupBuilder,
    ) -> Result<u64> {
        let group = insert.group();
        for _ in 0..REBUILDS_MAX {
            let places = &live.places;
            let inserted =
                end.take().unwrap_or_else(|| self.nodes.run(|answers| insert.step(places, answers)));
            match inserted.map_err(|fault| live.error(fault, &self.nodes))? {
                Inserted::Done { clock } => return Ok(clock),
                Inserted::Full { version } | Inserted::Sealed { version } => {
                    self.begin_change(live)?;
                    self.replace(live, (group, version), builder)?;
                }
                Inserted::LogFull => self.free_tombstones(live, builder)?,
            }
        }
        let message = format!("group {group} filled up {REBUILDS_MAX} times during one insert; try again");
        Err(Error { kind: ErrorKind::Io, message })
    }

    /// Deletes an id. Returns the clock of the tombstone.
    ///
    /// # Errors
    /// As [`Reader::insert`].
    pub(super) fn delete(&mut self, live: &LiveRegion, id: u64, builder: &GroupBuilder) -> Result<u64> {
        self.go_on_deleting(live, id, None, builder)
    }

    /// Deletes different ids. What all deletes ask for at a time is one request. Returns how each one went.
    pub(super) fn delete_together(
        &mut self,
        live: &LiveRegion,
        ids: Vec<u64>,
        builder: &GroupBuilder,
    ) -> Vec<Result<u64>> {
        let delete = |(others, &id)| Delete::after(id, &self.seen, others);
        let mut deletes: Vec<Delete> = (0..).zip(&ids).map(delete).collect();
        let ends = self.nodes.run_together(ids.len(), |at, answers| deletes[at].step(&live.places, answers));
        let ends = ids.into_iter().zip(ends);
        ends.map(|(id, end)| self.go_on_deleting(live, id, Some(end), builder)).collect()
    }

    /// Goes on with a delete after it has ended in some way, until it is done.
    fn go_on_deleting(
        &mut self,
        live: &LiveRegion,
        id: u64,
        mut end: Option<std::result::Result<Deleted, Fault>>,
        builder: &GroupBuilder,
    ) -> Result<u64> {
        for _ in 0..REBUILDS_MAX {
            let deleted = end.take().unwrap_or_else(|| {
                let mut delete = Delete::new(id, &self.seen);
                self.nodes.run(|answers| delete.step(&live.places, answers))
            });
            match deleted.map_err(|fault| live.error(fault, &self.nodes))? {
                Deleted::Done { clock } => return Ok(clock),
                Deleted::LogFull => self.free_tombstones(live, builder)?,
            }
        }
        let message = "tombstones are written faster than they are freed; try again".into();
        Err(Error { kind: ErrorKind::Io, message })
    }

    fn version_of(&self, group: u32) -> Version {
        self.seen.groups.get(group as usize).map(|own| own.version).unwrap_or_default()
    }

    /// Rebuilds a version of a group, unless the last headers show a later one.
    fn replace(
        &mut self,
        live: &LiveRegion,
        (group, version): (u32, Version),
        builder: &GroupBuilder,
    ) -> Result<()> {
        if self.version_of(group) == version { self.rebuild(live, group, builder) } else { Ok(()) }
    }

    /// Rebuilds a group as the last headers show it. It is done as well when somebody else has rebuilt it.
    ///
    /// # Errors
    /// As [`Reader::insert`].
    pub(super) fn rebuild(&mut self, live: &LiveRegion, group: u32, builder: &GroupBuilder) -> Result<()> {
        let version = self.version_of(group);
        let state = self.seen.groups.get(group as usize).copied().unwrap_or_default();
        let mut limits = RebuildLimits {
            rebuilder: self.number,
            patience: PATIENCE_ROUNDS,
            group_bytes: builder.group_bytes(group, &state),
        };
        let mut rebuild = Rebuild::new(limits, group, &self.seen);
        loop {
            let rebuilt = self.nodes.run(|answers| rebuild.step(&live.places, answers));
            match rebuilt.map_err(|fault| live.error(fault, &self.nodes))? {
                Rebuilt::Build(contents) => match self.build(live, (&rebuild, group), &contents, builder) {
                    Ok(built) => rebuild.built(built),
                    Err(damage) => {
                        // Whoever stood still for long is replaced, and finds the space of another group.
                        self.begin_change(live)?;
                        return if self.version_of(group) == version { Err(damage) } else { Ok(()) };
                    }
                },
                Rebuilt::Published { .. } => {
                    live.rebuilds.count_published();
                    return self.begin_change(live);
                }
                Rebuilt::Replaced => return self.begin_change(live),
                Rebuilt::TooLarge { group_bytes } => {
                    limits.group_bytes = group_bytes;
                    rebuild = Rebuild::new(limits, group, &self.seen);
                }
                Rebuilt::NoSpace => return Err(no_space(limits.group_bytes, group, state.descriptor.at)),
            }
        }
    }

    /// Builds a group while the heart of this rebuilder beats. Queries of this machine go first.
    fn build(
        &mut self,
        live: &LiveRegion,
        (rebuild, group): (&Rebuild, u32),
        contents: &Contents,
        builder: &GroupBuilder,
    ) -> Result<NewGroup> {
        let _under_way = live.rebuilds.begin();
        std::thread::scope(|scope| {
            let (built, is_built) = channel::<()>();
            let building = scope.spawn(move || {
                yield_cores();
                let group = builder.build(group, contents);
                drop(built);
                group
            });
            while is_built.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                self.nodes.ask(vec![rebuild.beat(&live.places)]);
            }
            let ended = "a thread that rebuilt a group ended unexpectedly; please report it";
            building.join().unwrap_or_else(|_| Err(Error::corrupt(ended)))
        })
    }

    /// Rebuilds the groups that need the older half of the tombstones, and frees the places of those.
    fn free_tombstones(&mut self, live: &LiveRegion, builder: &GroupBuilder) -> Result<()> {
        self.begin_change(live)?;
        let half = live.places.nodes.first().map_or(0, |first| first.tombstones) / 2;
        let until = self.seen.control.first_tombstone + half.max(1);
        let groups = self.seen.groups.len() as u32;
        // Compute nodes that do this at once begin with different groups.
        for at in 0..groups {
            let group = (at + u32::from(self.number)) % groups;
            let state = self.seen.groups[group as usize];
            if state.descriptor.clock < until {
                self.rebuild(live, group, builder)?;
            }
        }
        let mut truncate = Truncate::new(&self.seen);
        let freed = self.nodes.run(|answers| truncate.step(&live.places, answers));
        freed.map_err(|fault| live.error(fault, &self.nodes))?;
        self.begin_change(live)
    }
}

fn no_space(bytes: u64, group: u32, at: Address) -> Error {
    let message = format!(
        "memory node {} has no {bytes} free bytes for the next version of group {group}; start it with a larger \
         --size, and load the index again",
        at.node()
    );
    Error { kind: ErrorKind::Budget, message }
}
