//! A batch of updates of a live region, inserts or deletes, and rebuilds of groups that are full.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use stratann_core::format::region::{Address, Version, count_bits};
use stratann_core::remote_protocol::{
    Contents, Delete, Deleted, Fault, Fold, Insert, Inserted, NewGroup, NewVector, Rebuild, RebuildLimits,
    Rebuilt,
};
use stratann_storage::budget::yield_cores;
use stratann_storage::{Error, ErrorKind, Result};

use super::group::GroupBuilder;
use super::{LiveRegion, Session};

/// Rounds of rebuilds that updates wait for, while none of them is made, before they are refused.
const REBUILDS_MAX: u32 = 16;
/// Rounds of at least 1 ms after which what stands still counts as stopped. A live rebuilder's heart beats some 40
/// times as often, also on a machine that is busy.
const PATIENCE_ROUNDS: u32 = 2000;
/// Interval of the heart of a rebuilder while it builds.
const BEAT: Duration = Duration::from_millis(50);

/// The end of a try of one update.
enum Ended {
    Done(u64),
    Full(u32, Version),
    LogFull,
}

impl Session {
    /// Requests since the last call.
    pub(super) fn requests(&mut self) -> u64 {
        self.nodes.requests()
    }

    /// Reads the headers, for updates.
    ///
    /// # Errors
    /// A node that does not answer; damage.
    pub(super) fn read_headers(&mut self, live: &LiveRegion) -> Result<()> {
        self.begin_batch(live).map(drop)
    }

    /// Inserts vectors of different ids, and rebuilds their groups where those are full. What all inserts ask for at a
    /// time is one request. Returns the clock of each record, or why it is not there: a node that does not answer,
    /// damage, a region without space for the group, or a log without space.
    pub(super) fn insert_batch(
        &mut self,
        live: &LiveRegion,
        new: Vec<NewVector>,
        builder: &GroupBuilder,
    ) -> Vec<Result<u64>> {
        self.update_batch(live, new.len(), builder, |session, left| {
            let insert = |(others, &at): (u64, &usize)| Insert::after(new[at].clone(), &session.seen, others);
            let mut inserts: Vec<Insert> = (0..).zip(left).map(insert).collect();
            let step = |at: usize, answers| inserts[at].step(&live.places, answers);
            let ends = session.nodes.run_batch(left.len(), step);
            let group = |at: usize| new[left[at]].group;
            let ended = |(at, end): (usize, _)| match end {
                Ok(Inserted::Done { clock }) => Ok(Ended::Done(clock)),
                Ok(Inserted::Full { version } | Inserted::Sealed { version }) => {
                    Ok(Ended::Full(group(at), version))
                }
                Ok(Inserted::LogFull) => Ok(Ended::LogFull),
                Err(fault) => Err(fault),
            };
            ends.into_iter().enumerate().map(ended).collect()
        })
    }

    /// Deletes different ids. What all deletes ask for at a time is one request. Returns the clock of each tombstone,
    /// or why there is none, as [`Session::insert_batch`].
    pub(super) fn delete_batch(
        &mut self,
        live: &LiveRegion,
        ids: &[u64],
        builder: &GroupBuilder,
    ) -> Vec<Result<u64>> {
        self.update_batch(live, ids.len(), builder, |session, left| {
            let delete = |(others, &at): (u64, &usize)| Delete::after(ids[at], &session.seen, others);
            let mut deletes: Vec<Delete> = (0..).zip(left).map(delete).collect();
            let step = |at: usize, answers| deletes[at].step(&live.places, answers);
            let ends = session.nodes.run_batch(left.len(), step).into_iter();
            let ended = |end| match end {
                Ok(Deleted::Done { clock }) => Ok(Ended::Done(clock)),
                Ok(Deleted::LogFull) => Ok(Ended::LogFull),
                Err(fault) => Err(fault),
            };
            ends.map(ended).collect()
        })
    }

    /// Tries `count` updates until each has ended. Between two tries full groups are rebuilt, and a full log is freed.
    fn update_batch(
        &mut self,
        live: &LiveRegion,
        count: usize,
        builder: &GroupBuilder,
        mut try_round: impl FnMut(&mut Session, &[usize]) -> Vec<std::result::Result<Ended, Fault>>,
    ) -> Vec<Result<u64>> {
        let message =
            "groups and tombstones fill up faster than they are rebuilt and freed; try again".into();
        let mut ends = vec![Err(Error { kind: ErrorKind::Io, message }); count];
        let mut left: Vec<usize> = (0..count).collect();
        let mut tries = 0;
        while tries < REBUILDS_MAX {
            let before = left.len();
            let (mut full, mut is_log_full, mut again) = (BTreeMap::new(), false, Vec::new());
            for (at, ended) in left.iter().copied().zip(try_round(self, &left)) {
                match ended {
                    Ok(Ended::Done(clock)) => ends[at] = Ok(clock),
                    Ok(Ended::Full(group, version)) => {
                        full.entry(group).or_insert((version, Vec::new())).1.push(at)
                    }
                    Ok(Ended::LogFull) => {
                        is_log_full = true;
                        again.push(at);
                    }
                    Err(fault) => ends[at] = Err(live.error(fault, &self.nodes)),
                }
            }
            if is_log_full && let Err(why) = self.free_tombstones(live, builder) {
                again.drain(..).for_each(|at| ends[at] = Err(why.clone()));
            }
            for (group, (version, of_group)) in full {
                match self.read_headers(live).and_then(|()| self.replace(live, (group, version), builder)) {
                    Ok(()) => again.extend(of_group),
                    Err(why) => of_group.into_iter().for_each(|at| ends[at] = Err(why.clone())),
                }
            }
            if again.is_empty() {
                break;
            }
            again.sort_unstable();
            left = again;
            // An overflow may have room for one of them alone.
            tries = if left.len() < before { 0 } else { tries + 1 };
        }
        ends
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

    /// Rebuilds a group as the last headers show it. It is done as well when somebody else has rebuilt it. Where there
    /// is no space, what is deleted is marked first: then the group may be small enough.
    ///
    /// # Errors
    /// A node that does not answer, damage, no space.
    pub(super) fn rebuild(&mut self, live: &LiveRegion, group: u32, builder: &GroupBuilder) -> Result<()> {
        let version = self.version_of(group);
        if let Some(bytes) = self.try_rebuild(live, group, builder)? {
            self.fold(live, builder, true)?;
            if self.version_of(group) != version {
                return Ok(());
            }
            let at = self.seen.groups.get(group as usize).map_or(Address::default(), |own| own.descriptor.at);
            if self.try_rebuild(live, group, builder)?.is_some() {
                return Err(no_space(bytes, group, at));
            }
        }
        Ok(())
    }

    /// Rebuilds a group; where there is no space for so many bytes these are returned.
    fn try_rebuild(&mut self, live: &LiveRegion, group: u32, builder: &GroupBuilder) -> Result<Option<u64>> {
        let version = self.version_of(group);
        let mut limits = RebuildLimits {
            rebuilder: self.number,
            patience: PATIENCE_ROUNDS,
            group_bytes: builder.group_bytes(group, &self.seen),
        };
        let mut rebuild = Rebuild::new(limits, group, &self.seen);
        loop {
            let rebuilt = self.nodes.run(|answers| rebuild.step(&live.places, answers));
            match rebuilt.map_err(|fault| live.error(fault, &self.nodes))? {
                Rebuilt::Build(contents) => match self.build(live, (&rebuild, group), &contents, builder) {
                    Ok(built) => rebuild.built(built),
                    Err(damage) => {
                        // Whoever stood still for long is replaced, and finds the space of another group.
                        self.read_headers(live)?;
                        return if self.version_of(group) == version { Err(damage) } else { Ok(None) };
                    }
                },
                Rebuilt::Published { .. } => {
                    live.rebuilds.count_published();
                    return self.read_headers(live).map(|()| None);
                }
                Rebuilt::Replaced => return self.read_headers(live).map(|()| None),
                Rebuilt::TooLarge { group_bytes } => {
                    limits.group_bytes = group_bytes;
                    rebuild = Rebuild::new(limits, group, &self.seen);
                }
                Rebuilt::NoSpace => return Ok(Some(limits.group_bytes)),
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

    /// Frees the log of tombstones where it is full, then replaces groups that are for the most part deleted.
    fn free_tombstones(&mut self, live: &LiveRegion, builder: &GroupBuilder) -> Result<()> {
        self.fold(live, builder, false)?;
        let groups = self.seen.groups.len() as u32;
        // Compute nodes that do this at once begin with different groups.
        let order = (0..groups).map(|at| (at + u32::from(self.number)) % groups);
        for group in order.collect::<Vec<u32>>() {
            if self.is_mostly_deleted(group) {
                // Without space the marks are enough.
                self.try_rebuild(live, group, builder)?;
            }
        }
        Ok(())
    }

    /// Frees the log of tombstones, and reads the headers.
    fn fold(&mut self, live: &LiveRegion, builder: &GroupBuilder, is_forced: bool) -> Result<()> {
        self.read_headers(live)?;
        let mut fold = Fold::new(self.number, PATIENCE_ROUNDS, is_forced, &self.seen);
        let freed = self.nodes.run(|answers| fold.step(&live.places, builder.layout(), answers));
        freed.map_err(|fault| live.error(fault, &self.nodes))?;
        self.read_headers(live)
    }

    /// Whether more rows of a group are deleted than are left, and more than its overflow takes.
    fn is_mostly_deleted(&self, group: u32) -> bool {
        let Some(own) = self.seen.groups.get(group as usize) else { return false };
        let marked = count_bits(self.seen.marks_of(group), 0, u64::MAX);
        marked > self.seen.rows(group).max(own.descriptor.capacity.into())
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
