//! A `remote-hnsw` in the memory of memory nodes: what a batch of queries sees of it.
//!
//! The memory nodes have all that an index folder has, also the manifest. Compute nodes change groups at any time
//! ([`stratann_core::remote_protocol`]), so each batch begins with the headers of all groups and keeps to what they
//! say.

pub(crate) mod group;
pub mod inspect;
pub(crate) mod load;
pub(crate) mod open;
pub(crate) mod placement;
mod update_batch;
pub mod updates;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_core::format::fresh::Tombstone;
use stratann_core::format::hnsw::HnswLayout;
use stratann_core::format::region::{Address, ControlWords, Descriptor, count_bits};
use stratann_core::kinds::remote_hnsw::{Located, View, WHOLE};
use stratann_core::kinds::{IndexView, KindView};
use stratann_core::query::QueryStats;
use stratann_core::remote_protocol::{
    Announced, Answer, Fault, GroupState, Groups, Headers, Line, Op, Places, Recheck,
};
use stratann_storage::remote_memory::{MemoryError, Nodes, RemoteSource};
use stratann_storage::{Error, ErrorKind, Result};

use updates::RebuildCounters;

use crate::exec::Snapshot;

/// The part of the index that queries of one batch see: places of the clusters, and deletions.
#[derive(Debug, Default)]
pub struct Clusters {
    clusters: Vec<Located>,
    tombstones: Vec<Tombstone>,
    /// See [`View::marks`].
    marks: Arc<Vec<Vec<u64>>>,
    /// See [`View::shares`].
    shares: Vec<u32>,
    has_fresh: bool,
}

impl Snapshot for Clusters {
    fn apply<'a>(&'a self, view: &mut IndexView<'a>) {
        if let KindView::RemoteHnsw(own) = &mut view.kind {
            self.apply_to(own);
        }
    }
}

impl Clusters {
    /// Puts them into a view of the index.
    pub(crate) fn apply_to<'a>(&'a self, view: &mut View<'a>) {
        (view.clusters, view.tombstones, view.first) = (&self.clusters, &self.tombstones, &[]);
        (view.marks, view.shares) = (&self.marks, &self.shares);
    }

    /// Place of each cluster.
    pub(crate) fn located(&self) -> &[Located] {
        &self.clusters
    }

    fn new(groups: &Groups, LiveRegion { places, loaded, .. }: &LiveRegion) -> Clusters {
        let first = places.nodes.first().copied().unwrap_or_default();
        let (mut clusters, mut has_fresh) = (Vec::with_capacity(first.clusters as usize), false);
        let mut shares = Vec::with_capacity(clusters.capacity());
        for (number, group) in (0..).zip(&groups.groups) {
            let records = group.reservations.disjoint(group.descriptor.capacity);
            for (side, records) in records.into_iter().enumerate() {
                if clusters.len() as u64 == first.clusters {
                    break;
                }
                let used = groups.used(number, side);
                has_fresh |= used > 0;
                let rows = rows((groups, number), &group.descriptor, (side, records));
                shares.push(share(rows, loaded.get(clusters.len()).copied().unwrap_or(0)));
                clusters.push(Located::new(&group.descriptor, number, (side, used), first.record_bytes));
            }
        }
        if shares.iter().all(|&share| share == WHOLE) {
            shares.clear();
        }
        let (tombstones, marks) = (groups.tombstones.clone(), groups.marks.clone());
        Clusters { clusters, tombstones, marks, shares, has_fresh }
    }
}

/// Rows of a cluster, without those that have marks.
fn rows((groups, group): (&Groups, u32), own: &Descriptor, (side, records): (usize, u32)) -> u32 {
    let (members, marks) = (own.clusters[side].members, groups.marks_of(group));
    let marked = count_bits(marks, own.member_mark(side), members.into())
        + count_bits(marks, own.slot_mark(side, records), records.into());
    members.saturating_add(records).saturating_sub(marked as u32)
}

/// The share of its rows that a cluster has: 0 for none alone.
fn share(rows: u32, loaded: u32) -> u32 {
    let part = u64::from(rows) * u64::from(WHOLE) / u64::from(loaded.max(1));
    part.clamp(u64::from(rows > 0), WHOLE.into()) as u32
}

/// See the module.
pub struct LiveRegion {
    source: Arc<RemoteSource>,
    pub(crate) places: Places,
    /// Rows of each cluster when it was loaded.
    loaded: Vec<u32>,
    /// Sessions that no search uses now. Batches that run at once need one each.
    idle: Mutex<Vec<Session>>,
    /// Sessions that no update uses now.
    idle_writers: Mutex<Vec<Session>>,
    /// Lines of sessions that failed while the first node did not answer. It may have kept them.
    abandoned: Mutex<Vec<Line>>,
    pub(crate) rebuilds: RebuildCounters,
    /// Clusters that the newest batch saw.
    newest: Mutex<Arc<Clusters>>,
    layout: HnswLayout,
    counted: Mutex<Option<Counted>>,
}

/// Number of rows at a clock, in these groups.
struct Counted {
    clock: u64,
    groups: Vec<GroupState>,
    rows: u64,
}

/// Connections and the announced line of one batch after another.
pub(crate) struct Session {
    nodes: Nodes,
    /// A number that no other session has.
    number: u16,
    line: Line,
    seen: Groups,
}

impl LiveRegion {
    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A session for one search.
    ///
    /// # Errors
    /// The first memory node does not answer.
    pub(crate) fn session(&self) -> Result<Session> {
        if let Some(session) = self.idle().pop() {
            return Ok(session);
        }
        self.connect(false)
    }

    fn connect(&self, is_writer: bool) -> Result<Session> {
        let mut nodes = self.source.connect();
        self.free_abandoned(&mut nodes);
        let number = number(&mut nodes, &self.places).map_err(|fault| self.error(fault, &nodes))?;
        let line = if is_writer { Line::none() } else { Line::new(number) };
        Ok(Session { nodes, number, line, seen: Groups::default() })
    }

    /// Clusters that the newest batch saw.
    pub(crate) fn newest(&self) -> Arc<Clusters> {
        self.newest.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn idle_writers(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle_writers.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lends a session, which is kept for the next search. One that fails is ended.
    ///
    /// # Errors
    /// The first memory node does not answer; what `f` returns.
    pub(crate) fn with_session<T>(&self, f: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let mut session = self.session()?;
        let found = f(&mut session);
        match found {
            Ok(_) => self.give_back(session),
            Err(_) => {
                self.end(session);
            }
        }
        found
    }

    /// Ends a session that has failed. Its line becomes free where the first node answers: while it is taken, no space
    /// that readers of its epoch may be in is used again. Returns the requests that it has made and nobody has counted.
    pub(crate) fn end(&self, mut session: Session) -> u64 {
        let line = session.line.clone();
        session.leave(self);
        if session.nodes.is_lost(0) {
            self.abandoned().push(line);
        }
        session.requests()
    }

    fn abandoned(&self) -> MutexGuard<'_, Vec<Line>> {
        self.abandoned.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Frees lines that were left while the first node did not answer. A line that stays taken keeps all old space.
    fn free_abandoned(&self, nodes: &mut Nodes) {
        let lines = std::mem::take(&mut *self.abandoned());
        let ops: Vec<Op> = lines.iter().flat_map(|line| line.clone().leave(&self.places)).collect();
        if !ops.is_empty() {
            nodes.ask(ops);
        }
        if nodes.is_lost(0) {
            self.abandoned().extend(lines);
        }
    }

    /// A session for updates, which knows the groups. The requests of one that fails are added to `requests`.
    ///
    /// # Errors
    /// A node that does not answer; damage.
    pub(crate) fn writer(&self, requests: &AtomicU64) -> Result<Session> {
        if let Some(writer) = self.idle_writers().pop() {
            return Ok(writer);
        }
        let mut writer = self.connect(true)?;
        match writer.read_headers(self) {
            Ok(()) => Ok(writer),
            Err(why) => {
                requests.fetch_add(self.end(writer), Ordering::Relaxed);
                Err(why)
            }
        }
    }

    /// Keeps a session for the next updates.
    pub(crate) fn give_back_writer(&self, writer: Session) {
        self.idle_writers().push(writer);
    }

    /// Clusters that a single query sees that begins now, and the cost of finding them.
    ///
    /// # Errors
    /// As [`Session::begin_batch`].
    pub(crate) fn begin_alone(&self) -> Result<(Arc<Clusters>, QueryStats)> {
        self.with_session(|session| session.begin_batch(self))
    }

    /// Keeps a session for the next search.
    pub(crate) fn give_back(&self, session: Session) {
        self.idle().push(session);
    }

    /// An error of the protocol, with what is known of the node that is lost.
    pub(crate) fn error(&self, fault: Fault, nodes: &Nodes) -> Error {
        let kind = match fault {
            Fault::Lost(_) | Fault::Moved => ErrorKind::Io,
            Fault::Damaged(_) => ErrorKind::Corrupt,
        };
        match nodes.last_error() {
            // What a node had is gone: its own error says what to do.
            Some(gone @ MemoryError::EpochChanged { .. }) => gone.clone().into(),
            Some(why) => Error { kind, message: format!("{fault} ({why})") },
            None => Error { kind, message: fault.to_string() },
        }
    }
}

/// Compute nodes that stop give their lines back. Those that cannot lose them after a while.
impl Drop for LiveRegion {
    fn drop(&mut self) {
        for mut session in std::mem::take(&mut *self.idle()) {
            session.leave(self);
        }
    }
}

/// A number that no other compute node has, of 1 to 65535: they are counted in a word of the first node.
fn number(nodes: &mut Nodes, places: &Places) -> std::result::Result<u16, Fault> {
    let at =
        Address::new(0, places.nodes.first().map_or(0, |first| first.control_at) + ControlWords::READERS);
    match nodes.ask(vec![Op::FetchAdd { at, add: 1 }]).pop() {
        Some(Answer::Word(count)) => Ok((count % u64::from(u16::MAX)) as u16 + 1),
        _ => Err(Fault::Lost(0)),
    }
}

impl Session {
    /// Begins a batch: reads the headers, and what has changed. Returns what its queries see, and what that cost.
    ///
    /// # Errors
    /// A node that does not answer; damage.
    pub(crate) fn begin_batch(&mut self, live: &LiveRegion) -> Result<(Arc<Clusters>, QueryStats)> {
        self.nodes.asked();
        let Session { nodes, line, seen, .. } = self;
        let mut read = |seen| {
            let mut headers = Headers::new(seen);
            nodes.run(|answers| headers.step(&live.places, line, answers))
        };
        let mut found = read(std::mem::take(seen));
        // A connection that broke is found out only now.
        if matches!(found, Err(Fault::Lost(_))) {
            found = read(Groups::default());
        }
        let found = found.map_err(|fault| live.error(fault, nodes))?;
        let clusters = Arc::new(Clusters::new(&found.groups, live));
        *seen = found.groups;
        *live.newest.lock().unwrap_or_else(|e| e.into_inner()) = clusters.clone();
        let asked = nodes.asked();
        let (round_trips, bytes_read) = (asked.round_trips, asked.bytes_read);
        Ok((clusters, QueryStats { reads: round_trips, round_trips, bytes_read, ..QueryStats::default() }))
    }

    /// Whether the end of a batch checks that what it read was still there.
    pub(crate) fn ends_with_check(&self, clusters: &Clusters) -> bool {
        !matches!(self.line.announced(), Announced::Yes(_)) || clusters.has_fresh
    }

    /// Whether what a batch read was still there when it had read it. Only a batch that found damage, that stood still
    /// for long, or that could not be announced, can have read what was replaced meanwhile.
    pub(crate) fn ends_well(&mut self, live: &LiveRegion, clusters: &Clusters, found_damage: bool) -> bool {
        let must_check = found_damage || self.ends_with_check(clusters);
        !must_check || !matches!(self.recheck(live), Err(Fault::Moved))
    }

    /// Tells whether what the batch read is still there.
    fn recheck(&mut self, live: &LiveRegion) -> std::result::Result<(), Fault> {
        let groups: Vec<u32> = (0..self.seen.groups.len() as u32).collect();
        let mut recheck = Recheck::new(&self.seen, &groups);
        let (places, line) = (&live.places, &self.line);
        self.nodes.run(|answers| recheck.step(places, line, answers))
    }

    /// Gives the line back. A first node that did not answer is not asked again: lines that stand still are taken.
    fn leave(&mut self, live: &LiveRegion) {
        if self.nodes.is_lost(0) {
            return;
        }
        let ops = self.line.leave(&live.places);
        if !ops.is_empty() {
            self.nodes.ask(ops);
        }
    }
}
