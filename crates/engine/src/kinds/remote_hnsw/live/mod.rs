//! A `remote-hnsw` in the memory of memory nodes: what a batch of queries sees of it.
//!
//! The memory nodes have all that an index folder has, also the manifest. Compute nodes change groups at any time
//! ([`stratann_core::remote`]), so each batch begins with the headers of all groups and keeps to what they say.

mod change;
pub mod changes;
pub(crate) mod group;
pub mod inspect;
pub mod load;
pub(crate) mod open;
pub(crate) mod placement;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use stratann_core::format::fresh::Tombstone;
use stratann_core::format::region::ControlWords;
use stratann_core::plan::remote_hnsw::{Located, View};
use stratann_core::query::{Loss, QueryStats};
use stratann_core::remote::{Announced, Answer, Fault, Groups, Headers, Line, Op, Places, Recheck};

use crate::remote_memory::{MemoryError, Nodes, RemoteSource};
use crate::{Error, ErrorKind, Result};
use changes::{Durability, RebuildCounters};

/// What queries of one batch see: where the clusters are, and what is deleted.
#[derive(Debug, Default)]
pub struct Clusters {
    clusters: Vec<Located>,
    tombstones: Vec<Tombstone>,
    has_fresh: bool,
}

impl Clusters {
    /// Puts them into a view of the index.
    pub(crate) fn apply<'a>(&'a self, view: &mut View<'a>) {
        (view.clusters, view.tombstones, view.first) = (&self.clusters, &self.tombstones, &[]);
    }

    /// Where each cluster is.
    pub(crate) fn located(&self) -> &[Located] {
        &self.clusters
    }

    fn new(groups: &Groups, places: &Places, lost: &[LostNode]) -> Clusters {
        let first = places.nodes.first().copied().unwrap_or_default();
        let (mut clusters, mut has_fresh) = (Vec::with_capacity(first.clusters as usize), false);
        for (number, group) in (0..).zip(&groups.groups) {
            for side in 0..2 {
                if clusters.len() as u64 == first.clusters {
                    break;
                }
                let used = groups.used(number, side);
                has_fresh |= used > 0;
                let mut own = Located::new(&group.descriptor, number, (side, used), first.record_bytes);
                if lost.iter().any(|lost| lost.node == own.base.store.0)
                    && let Some(mirror) = places.mirrors.get(usize::from(own.base.store.0))
                {
                    (own.base.store.0, own.fresh.store.0) = (*mirror, *mirror);
                }
                clusters.push(own);
            }
        }
        Clusters { clusters, tombstones: groups.tombstones.clone(), has_fresh }
    }
}

/// See the module.
pub struct LiveRegion {
    source: Arc<RemoteSource>,
    pub(crate) places: Places,
    /// Readers that no search uses now. Batches that run at once need one each.
    idle: Mutex<Vec<Reader>>,
    /// The same for changes.
    idle_writers: Mutex<Vec<Reader>>,
    /// Lines of readers that failed while the first node did not answer. It may have kept them.
    abandoned: Mutex<Vec<Line>>,
    pub(crate) rebuilds: RebuildCounters,
    /// What the newest batch saw.
    newest: Mutex<Arc<Clusters>>,
}

/// Connections and the announced line of one batch after another.
pub(crate) struct Reader {
    nodes: Nodes,
    /// A number that no other reader has.
    number: u16,
    line: Line,
    seen: Groups,
    /// Data nodes whose mirrors are read.
    lost: Vec<LostNode>,
}

/// A node whose mirror is read.
#[derive(Clone, Copy)]
struct LostNode {
    node: u8,
    /// How often it had answered again when it was lost; `None` where it answers, and what it has is damaged.
    returns: Option<u64>,
}

impl LostNode {
    fn is_back(&self, live: &LiveRegion) -> bool {
        self.returns.is_some_and(|before| live.source.returns(self.node) > before)
    }
}

impl LiveRegion {
    fn idle(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.idle.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// A reader for one search.
    ///
    /// # Errors
    /// No memory node answers.
    pub(crate) fn reader(&self) -> Result<Reader> {
        if let Some(reader) = self.idle().pop() {
            return Ok(reader);
        }
        self.connect()
    }

    fn connect(&self) -> Result<Reader> {
        let mut nodes = self.source.connect()?;
        self.free_abandoned(&mut nodes);
        let number = number(&mut nodes, &self.places);
        Ok(Reader { nodes, number, line: Line::new(number), seen: Groups::default(), lost: Vec::new() })
    }

    /// What the newest batch saw.
    pub(crate) fn newest(&self) -> Arc<Clusters> {
        self.newest.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn idle_writers(&self) -> MutexGuard<'_, Vec<Reader>> {
        self.idle_writers.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lends a reader, which is kept for the next search. One that fails is ended.
    ///
    /// # Errors
    /// No memory node answers; what `f` returns.
    pub(crate) fn with_reader<T>(&self, f: impl FnOnce(&mut Reader) -> Result<T>) -> Result<T> {
        let mut reader = self.reader()?;
        let found = f(&mut reader);
        match found {
            Ok(_) => self.give_back(reader),
            Err(_) => {
                self.end(reader);
            }
        }
        found
    }

    /// Ends a reader that has failed. Its line becomes free where the first node answers: while it is taken, no space
    /// that readers of its era may be in is used again. Returns the requests that it has made and nobody has counted.
    pub(crate) fn end(&self, mut reader: Reader) -> u64 {
        let line = reader.line.clone();
        reader.leave(self);
        if reader.nodes.is_lost(0) {
            self.abandoned().push(line);
        }
        reader.requests()
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

    /// A reader for changes, which knows the groups. The requests of one that fails are added to `requests`.
    ///
    /// # Errors
    /// A node that does not answer; damage.
    pub(crate) fn writer(&self, requests: &AtomicU64) -> Result<Reader> {
        if let Some(writer) = self.idle_writers().pop() {
            return Ok(writer);
        }
        let mut writer = self.connect()?;
        match writer.begin_change(self) {
            Ok(()) => Ok(writer),
            Err(why) => {
                requests.fetch_add(self.end(writer), Ordering::Relaxed);
                Err(why)
            }
        }
    }

    /// Keeps a reader for the next changes. Its line is free until then: changes read nothing that may be replaced.
    pub(crate) fn give_back_writer(&self, mut writer: Reader) {
        writer.leave(self);
        self.idle_writers().push(writer);
    }

    /// Whether a node that does not answer may come back with what it had.
    ///
    /// # Errors
    /// It has come back without.
    pub(crate) fn may_come_back(&self) -> Result<()> {
        match self.source.connect() {
            Err(gone @ MemoryError::EpochChanged { .. }) => Err(gone.into()),
            Ok(nodes) => nodes.gone().map_or(Ok(()), |gone| Err(gone.clone().into())),
            Err(_) => Ok(()),
        }
    }

    /// Where changes are once they are acknowledged.
    pub(crate) fn durability(&self) -> Durability {
        match (self.source.have_files(), self.places.mirrors.is_empty()) {
            (false, true) => Durability::Memory,
            (true, true) => Durability::File,
            (false, false) => Durability::MemoryAndMirror,
            (true, false) => Durability::FileAndMirror,
        }
    }

    /// What a single query sees that begins now, and what that cost.
    ///
    /// # Errors
    /// As [`Reader::begin_batch`].
    pub(crate) fn begin_alone(&self) -> Result<(Arc<Clusters>, QueryStats)> {
        self.with_reader(|reader| reader.begin_batch(self))
    }

    /// Keeps a reader for the next search.
    pub(crate) fn give_back(&self, reader: Reader) {
        self.idle().push(reader);
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
        for mut reader in std::mem::take(&mut *self.idle()) {
            reader.leave(self);
        }
    }
}

/// A number that no other compute node has, of 1 to 65535: they are counted in a word of the first node.
fn number(nodes: &mut Nodes, places: &Places) -> u16 {
    let Some(first) = places.nodes.first() else { return 1 };
    let at = stratann_core::format::region::Address::new(0, first.control_at + ControlWords::READERS);
    match nodes.ask(vec![Op::FetchAdd { at, add: 1 }]).pop() {
        Some(Answer::Word(count)) => (count % u64::from(u16::MAX)) as u16 + 1,
        // Readers of a mirror need no number: they are not announced.
        _ => 1,
    }
}

impl Reader {
    /// Begins a batch: reads the headers, and what has changed. Returns what its queries see, and what that cost.
    ///
    /// # Errors
    /// A node that does not answer and has no mirror; damage.
    pub(crate) fn begin_batch(&mut self, live: &LiveRegion) -> Result<(Arc<Clusters>, QueryStats)> {
        self.take_back(live);
        self.nodes.asked();
        let Reader { nodes, line, seen, lost, .. } = self;
        let places = &live.places;
        let mut read = |seen| {
            let mut headers = Headers::new(seen);
            nodes.run(|answers| headers.step(places, line, answers))
        };
        let has_lost = |lost: &[LostNode], node| lost.iter().any(|lost| lost.node == node);
        let mut found = if has_lost(lost, 0) { Err(Fault::Lost(0)) } else { read(std::mem::take(seen)) };
        // A node that was started again has closed the connection, which is found out only now.
        if matches!(found, Err(Fault::Lost(node)) if !has_lost(lost, node)) {
            found = read(Groups::default());
        }
        if let Err(Fault::Lost(node)) = found
            && places.mirrors.get(usize::from(node)).is_some()
        {
            if !has_lost(lost, node) {
                lost.push(LostNode { node, returns: Some(live.source.lose(node)) });
            }
            let mut mirror = Headers::on_mirror();
            found = nodes.run(|answers| mirror.step(places, line, answers));
        }
        let found = found.map_err(|fault| live.error(fault, nodes))?;
        let clusters = Arc::new(Clusters::new(&found.groups, places, lost));
        *seen = found.groups;
        *live.newest.lock().unwrap_or_else(|e| e.into_inner()) = clusters.clone();
        let asked = nodes.asked();
        let (round_trips, bytes_read) = (asked.round_trips, asked.bytes_read);
        Ok((clusters, QueryStats { reads: round_trips, round_trips, bytes_read, ..QueryStats::default() }))
    }

    /// Whether the end of a batch checks that what it read was still there.
    pub(crate) fn ends_with_check(&self, clusters: &Clusters) -> bool {
        let is_announced = matches!(self.line.announced(), Announced::Yes(_));
        !self.has_lost(0) && (!is_announced || clusters.has_fresh)
    }

    /// Whether what a batch read was still there when it had read it. Only a batch that stood still for long, or that
    /// could not be announced, can have read what was replaced meanwhile.
    pub(crate) fn ends_well(&mut self, live: &LiveRegion, clusters: &Clusters) -> bool {
        !self.ends_with_check(clusters) || !matches!(self.recheck(live), Err(Fault::Moved))
    }

    /// Tells whether what the batch read is still there.
    fn recheck(&mut self, live: &LiveRegion) -> std::result::Result<(), Fault> {
        let groups: Vec<u32> = (0..self.seen.groups.len() as u32).collect();
        let mut recheck = Recheck::new(&self.seen, &groups);
        let (places, line) = (&live.places, &self.line);
        self.nodes.run(|answers| recheck.step(places, line, answers))
    }

    /// Ends a batch that found damage on nodes. Returns whether what it read was still there: then the damage is real,
    /// and later batches read the mirrors of these nodes.
    pub(crate) fn ends_damaged(&mut self, live: &LiveRegion, damaged: &[u8]) -> bool {
        // A mirror has no lines by which a batch could find out.
        let found = if self.has_lost(0) { Ok(()) } else { self.recheck(live) };
        if found.is_ok() {
            damaged.iter().for_each(|&node| self.lose(live, node, Loss::Damaged));
        }
        !matches!(found, Err(Fault::Moved))
    }

    fn has_lost(&self, node: u8) -> bool {
        self.lost.iter().any(|lost| lost.node == node)
    }

    /// Notes that a node did not give what was read of it. Later batches read its mirror: of a node with damage for
    /// good, of another one until it answers again.
    pub(crate) fn lose(&mut self, live: &LiveRegion, node: u8, loss: Loss) {
        let has_mirror = live.places.mirrors.get(usize::from(node)).is_some();
        if has_mirror && !self.has_lost(node) {
            let returns = (loss != Loss::Damaged).then(|| live.source.lose(node));
            self.lost.push(LostNode { node, returns });
        }
    }

    /// Goes back to nodes that were lost and answer again. They lack nothing: a change is acknowledged once it is on a
    /// node and on its mirror, and the node has what it had.
    fn take_back(&mut self, live: &LiveRegion) {
        if !self.lost.iter().any(|lost| lost.is_back(live)) {
            return;
        }
        let Ok(nodes) = live.source.connect() else { return };
        let before = self.lost.len();
        self.lost.retain(|lost| !(lost.is_back(live) && nodes.has(lost.node)));
        if self.lost.len() == before {
            return;
        }
        let had_first = self.nodes.has(0) && !self.nodes.is_lost(0);
        (self.nodes, self.seen) = (nodes, Groups::default());
        if !had_first && !self.has_lost(0) {
            // The line may be somebody else's now, and a reader that began on the mirror has no number of its own.
            self.leave(live);
            self.number = number(&mut self.nodes, &live.places);
            self.line = Line::new(self.number);
        }
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
