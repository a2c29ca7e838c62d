//! A navigation graph that learns from the queries that pass (OrchANN §5.2).
//!
//! Queries are numbered; ΔQ of them make an epoch. Every worker counts on its own what its queries came by. When the last query of an epoch has ended, a
//! thread of its own merges the counts, makes the next version of the graph aside, and publishes it by swapping a pointer. A query holds
//! the version that it began with, which goes when the last of its queries has ended, before a third one is made. With the graph goes what lies in RAM
//! of the lists: see [`crate::kinds::hybrid_ivf::residency`].
//!
//! What epoch e learnt serves from epoch e + 2 on, so that a batch of queries has the same answers however many threads work on it; in epoch e + 1
//! the version is being made.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use stratann_core::build::costs::VisitCostModel;
use stratann_core::query::QueryState;
use stratann_core::route::{Newcomer, Places, RESULTS_MAX, Sketch, Traffic, refresh, refresh_bytes};
use stratann_kernel::{DType, Metric};

use crate::budget::{release_freed, yield_cores};
use crate::build::space::code_floats;
use crate::kinds::hybrid_ivf::lists::{ClusterParts, ListReader};
use crate::kinds::hybrid_ivf::residency::{LIST_BYTES, Residency, Room, Worth, table_bytes};
use crate::kinds::hybrid_ivf::residual::Encoder;
use crate::kinds::hybrid_ivf::snapshot::Snapshot;

pub(crate) mod file;

pub use file::{LearntFacts, describe};

/// Whether an open index learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Learn {
    /// It forgets what it learnt before.
    #[default]
    Off,
    /// It uses what it learnt before, and learns no more.
    Frozen,
    /// It learns.
    On,
}

/// How an index learns.
#[derive(Clone, Copy, Debug)]
pub struct LearnOptions {
    /// Whether it does.
    pub learn: Learn,
    /// Queries of an epoch (ΔQ).
    pub epoch_queries: u32,
    /// Hot members in the graph and pinned in RAM; `None` for one for ten nodes of the graph.
    pub hot: Option<u32>,
}

impl Default for LearnOptions {
    fn default() -> Self {
        LearnOptions { learn: Learn::Off, epoch_queries: 2000, hot: None }
    }
}

/// Hot members that come in with one epoch, as a share of those that there is room for.
const SHARE_PER_EPOCH: usize = 4;
/// One hot member for so many nodes.
const NODES_PER_HOT: u32 = 10;
/// Epochs that may be unfinished at a time: one that ends, one that runs.
const OPEN: u64 = 2;

/// The versions that queries may still ask for.
struct Snapshots {
    /// Epochs that the newest has learnt from.
    epochs: u64,
    newest: Arc<Snapshot>,
    /// The one before, for the queries of an epoch that runs.
    before: Option<Arc<Snapshot>>,
}

impl Snapshots {
    fn only(epochs: u64, newest: Arc<Snapshot>) -> Snapshots {
        Snapshots { epochs, newest, before: None }
    }
}

/// What versions are made from.
pub(crate) struct Ground {
    pub(crate) parts: Arc<ClusterParts>,
    pub(crate) file: Arc<File>,
    /// The path of that file.
    pub(crate) lists: PathBuf,
    pub(crate) metric: Metric,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
    /// Where what was learnt is kept, and for which build.
    pub(crate) path: PathBuf,
    pub(crate) build_id: String,
}

impl Ground {
    fn reader(&self) -> ListReader<'_> {
        ListReader::new(&self.parts, &self.file, &self.lists)
    }
}

/// See the module.
pub(crate) struct Learning {
    shared: Arc<Shared>,
    updates: Option<mpsc::Sender<u64>>,
    updater: Option<JoinHandle<()>>,
}

struct Shared {
    ground: Ground,
    options: LearnOptions,
    hot: usize,
    versions: ArcSwap<Snapshots>,
    // Number of the next query.
    next: AtomicU64,
    // By epoch modulo OPEN: queries that have ended, and what each worker counted, once it has.
    ended: [AtomicU64; OPEN as usize],
    counts: [Vec<Mutex<Option<Traffic>>>; OPEN as usize],
    // How much may lie in RAM of the lists, and what that is worth.
    room: Mutex<Option<(Room, VisitCostModel)>>,
}

/// Workers that count apart; with more, some share.
const WORKERS: usize = 16;

impl Learning {
    /// Begins with what was learnt before, or with the graph as it was built. The second value is what is wrong with the file of the former.
    pub(crate) fn begin(ground: Ground, options: LearnOptions) -> (Learning, Option<String>) {
        let hot = options.hot.unwrap_or(ground.parts.nav.nodes() / NODES_PER_HOT) as usize;
        let clusters = ground.parts.directory.clusters();
        let mut first = Snapshot {
            nav: ground.parts.nav.clone(),
            ids: Vec::new(),
            records: Vec::new(),
            residency: None,
            visits: if options.learn == Learn::Off { Vec::new() } else { vec![0; clusters as usize] },
            epochs: 0,
            queries: 0,
        };
        let found = match options.learn {
            Learn::Off => Ok(None),
            Learn::Frozen | Learn::On => file::read(&ground),
        };
        let warning = match found {
            Ok(Some(learnt)) => {
                first = next_snapshot(&ground, &first, &learnt, hot);
                None
            }
            Ok(None) => None,
            Err(why) => Some(why),
        };
        let counts = || (0..WORKERS).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared {
            ground,
            options,
            hot,
            versions: ArcSwap::from_pointee(Snapshots::only(0, Arc::new(first))),
            next: AtomicU64::new(0),
            ended: [AtomicU64::new(0), AtomicU64::new(0)],
            counts: [counts(), counts()],
            room: Mutex::default(),
        });
        let (updates, updater) = if options.learn == Learn::On {
            let (sender, receiver) = mpsc::channel();
            let of_thread = shared.clone();
            let thread = std::thread::Builder::new().name("learning".into()).spawn(move || {
                // Queries are waited for; the next version is not, as long as an epoch takes.
                yield_cores();
                // An epoch may end before the one before it; they are learnt from in their order.
                let (mut next, mut ended) = (0, BTreeSet::new());
                for epoch in receiver {
                    ended.insert(epoch);
                    while ended.remove(&next) {
                        of_thread.update(next);
                        next += 1;
                    }
                }
            });
            (Some(sender), thread.ok())
        } else {
            (None, None)
        };
        (Learning { shared, updates, updater }, warning)
    }

    /// From now on this lies in RAM of the lists, and follows the queries within `room`.
    pub(crate) fn hold(&mut self, residency: Arc<Residency>, room: Room, model: VisitCostModel) {
        *lock(&self.shared.room) = Some((room, model));
        let holding = Snapshot { residency: Some(residency), ..(*self.newest()).clone() };
        let epochs = self.shared.versions.load().epochs;
        self.shared.versions.store(Arc::new(Snapshots::only(epochs, Arc::new(holding))));
    }

    /// Learns no more, and keeps nothing of what was learnt but how often clusters were visited.
    pub(crate) fn stop(&mut self) {
        self.end();
        let nav = self.shared.ground.parts.nav.clone();
        let bare = Snapshot { nav, ids: Vec::new(), records: Vec::new(), ..(*self.newest()).clone() };
        self.shared.versions.store(Arc::new(Snapshots::only(0, Arc::new(bare))));
    }

    /// What ended is learnt from and kept, no more than two epochs, and then the thread ends.
    fn end(&mut self) {
        self.updates = None;
        if let Some(updater) = self.updater.take() {
            let _ = updater.join();
        }
    }

    /// Whether queries are counted.
    pub(crate) fn is_on(&self) -> bool {
        self.updater.is_some()
    }

    /// Numbers for `count` queries: the first of them.
    pub(crate) fn number(&self, count: u64) -> u64 {
        self.shared.next.fetch_add(count, Ordering::Relaxed)
    }

    /// A number for one query that cannot wait; `None` while the version for it is being made, then nobody learns from the query.
    pub(crate) fn number_now(&self) -> Option<u64> {
        let mut number = self.shared.next.load(Ordering::Relaxed);
        loop {
            if !self.is_on() || self.snapshot_for(self.epoch(number)).is_none() {
                return None;
            }
            let taken = self.shared.next.compare_exchange_weak(
                number,
                number + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match taken {
                Ok(number) => return Some(number),
                Err(next) => number = next,
            }
        }
    }

    /// The epoch of a query.
    pub(crate) fn epoch(&self, number: u64) -> u64 {
        number / u64::from(self.shared.options.epoch_queries.max(1))
    }

    /// The version for queries of `epoch`; `None` as long as it is being made.
    pub(crate) fn snapshot_for(&self, epoch: u64) -> Option<Arc<Snapshot>> {
        let versions = self.shared.versions.load();
        let wanted = if self.is_on() { epoch.saturating_sub(1) } else { 0 };
        let back = versions.epochs.checked_sub(wanted)?;
        let before = versions.before.as_ref().filter(|_| back > 0);
        Some(before.unwrap_or(&versions.newest).clone())
    }

    /// The newest version.
    pub(crate) fn newest(&self) -> Arc<Snapshot> {
        self.shared.versions.load().newest.clone()
    }

    /// A query of `epoch` has ended; `None` for one that will never run.
    pub(crate) fn ended(&self, worker: usize, epoch: u64, state: Option<&QueryState>) {
        let Some(updates) = self.updates.as_ref().filter(|_| self.is_on()) else { return };
        let at = (epoch % OPEN) as usize;
        if let Some(state) = state {
            let clusters = self.shared.ground.parts.directory.clusters();
            let mut traffic = lock(&self.shared.counts[at][worker % WORKERS]);
            traffic.get_or_insert_with(|| Traffic::new(clusters)).observe(state);
        }
        let all = u64::from(self.shared.options.epoch_queries.max(1));
        if self.shared.ended[at].fetch_add(1, Ordering::AcqRel) + 1 == all {
            // Nobody of this epoch is left, and nobody of the one after the next has begun: the place is free until the version is out.
            let _ = updates.send(epoch);
        }
    }

    /// Bytes that it takes besides what lies in RAM of the lists: the version in use, the next one, and what queries are counted in.
    pub(crate) fn bytes(&self, threads: usize) -> u64 {
        if !self.is_on() {
            let newest = self.newest();
            let is_as_built = Arc::ptr_eq(&newest.nav, &self.shared.ground.parts.nav);
            return if is_as_built { 4 * newest.visits.len() as u64 } else { newest.bytes() };
        }
        let shared = &self.shared;
        let parts = &shared.ground.parts;
        let (shape, clusters) = (parts.shape, u64::from(parts.directory.clusters()));
        // With all that there is room for: what is learnt must not exceed what was planned with.
        let per_hot = shape.code_bytes as u64 + 4 * u64::from(parts.nav.degree) + 48;
        let tables = 2 * table_bytes(parts.directory.list_count() as usize);
        let version = parts.nav.bytes() as u64 + 4 * clusters + shared.hot as u64 * per_hot + tables;
        let coming = shared.hot + shared.hot.div_ceil(SHARE_PER_EPOCH);
        let records = (coming * (shape.record_bytes() + LIST_BYTES)) as u64;
        let results = u64::from(shared.options.epoch_queries) * RESULTS_MAX as u64 * 4;
        let count = Sketch::BYTES as u64 + 4 * clusters;
        // The results are ranked once they are merged.
        let counts = (OPEN * threads.min(WORKERS) as u64 + 1) * count + (OPEN + 4) * results;
        let ranking_clusters = 48 * clusters;
        2 * version + records + counts + ranking_clusters + refresh_bytes(clusters, shape.dim as u64)
    }
}

impl Drop for Learning {
    fn drop(&mut self) {
        self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// What a version is made from besides the one before.
pub(crate) struct Learnt {
    /// Members and their scores, the hottest first.
    pub(crate) hot: Vec<(u32, u32)>,
    pub(crate) visits: Vec<u32>,
    /// Epochs and queries that it comes from.
    pub(crate) epochs: u64,
    pub(crate) queries: u64,
}

impl Shared {
    /// Makes the version that learns from `epoch`, and publishes it.
    fn update(&self, epoch: u64) {
        let newest = self.only_newest();
        let at = (epoch % OPEN) as usize;
        let traffic = self.take_counts(at);
        let version = if traffic.queries > 0 {
            let version = Arc::new(self.next(&newest, &traffic));
            let _ = file::write(&self.ground, &version);
            version
        } else {
            // The search was interrupted.
            newest.clone()
        };
        // Before the swap: whoever sees the new version may use the place.
        self.ended[at].store(0, Ordering::Release);
        let epochs = self.versions.load().epochs + 1;
        self.versions.store(Arc::new(Snapshots { epochs, newest: version, before: Some(newest) }));
    }

    /// Lets the version before the newest go, and waits until nobody holds on to it: queries that end, as those of this epoch have.
    fn only_newest(&self) -> Arc<Snapshot> {
        let versions = self.versions.load_full();
        let newest = versions.newest.clone();
        let before = versions.before.as_ref().filter(|v| !Arc::ptr_eq(v, &newest)).map(Arc::downgrade);
        self.versions.store(Arc::new(Snapshots::only(versions.epochs, newest.clone())));
        drop(versions);
        if let Some(before) = before {
            while before.strong_count() > 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            release_freed();
        }
        newest
    }

    /// What all workers have counted in an epoch.
    fn take_counts(&self, at: usize) -> Traffic {
        let mut traffic = Traffic::new(self.ground.parts.directory.clusters());
        for part in &self.counts[at] {
            if let Some(part) = lock(part).as_mut() {
                traffic.merge(part);
                part.clear();
            }
        }
        traffic
    }

    fn next(&self, newest: &Snapshot, traffic: &Traffic) -> Snapshot {
        let learnt = Learnt {
            hot: traffic.ranked(),
            visits: traffic.visits.clone(),
            epochs: 1,
            queries: u64::from(traffic.queries),
        };
        let score_of = |id: u32| traffic.sketch.estimate(id);
        let each = self.hot.div_ceil(SHARE_PER_EPOCH);
        let mut version = make(&self.ground, newest, &learnt, score_of, (self.hot, each));
        let room = *lock(&self.room);
        if let (Some((room, model)), Some(residency)) = (room, &newest.residency) {
            let mut reader = self.ground.reader();
            let worth = Worth { model: &model, visits: &version.visits };
            version.residency = Some(Arc::new(residency.follow(&mut reader, room, &worth)));
        }
        version
    }
}

/// A version of all that was learnt before, at once.
fn next_snapshot(ground: &Ground, first: &Snapshot, learnt: &Learnt, hot: usize) -> Snapshot {
    make(ground, first, learnt, |_| 0, (hot, hot))
}

fn make(
    ground: &Ground,
    old: &Snapshot,
    learnt: &Learnt,
    score_of: impl Fn(u32) -> u32,
    (hot, each): (usize, usize),
) -> Snapshot {
    let parts = &ground.parts;
    let mut known: Vec<u32> = old.nav.ids.clone();
    known.sort_unstable();
    let wanted = learnt.hot.iter().filter(|(id, _)| known.binary_search(id).is_err()).take(each);
    let mut records: Vec<(u32, Arc<[u8]>)> =
        old.ids.iter().copied().zip(old.records.iter().cloned()).collect();
    let mut newcomers = Vec::new();
    let mut encoder = Encoder::new(&parts.codebook, ground.metric);
    let mut reader = ground.reader();
    for &(id, score) in wanted {
        // One that cannot be had is left out: a hot member is no more than a hint.
        let Some(record) = reader.record(id) else { continue };
        newcomers.push(newcomer(ground, &mut encoder, id, score, record));
        records.push((id, Arc::from(record)));
    }
    let places = Places { codebook: &parts.codebook, centroids: &parts.centroids };
    let nav = refresh(&old.nav, &places, &newcomers, score_of, hot, ground.seed);
    let mut stay: Vec<u32> = nav.ids[nav.bootstrap as usize..].to_vec();
    stay.sort_unstable();
    records.retain(|(id, _)| stay.binary_search(id).is_ok());
    records.sort_unstable_by_key(|r| r.0);
    let (ids, records) = records.into_iter().unzip();
    let visits = old.visits.iter().zip(&learnt.visits).map(|(a, b)| a / 2 + b).collect();
    let (epochs, queries) =
        (old.epochs.saturating_add(learnt.epochs), old.queries.saturating_add(learnt.queries));
    Snapshot { nav: Arc::new(nav), ids, records, residency: None, visits, epochs, queries }
}

fn newcomer(ground: &Ground, encoder: &mut Encoder<'_>, id: u32, score: u32, record: &[u8]) -> Newcomer {
    let (parts, dim) = (&ground.parts, ground.parts.shape.dim);
    let cluster = parts.directory.cluster_of(parts.directory.list_of(id));
    let (mut vector, mut centroid) = (vec![0f32; dim], vec![0f32; dim]);
    code_floats(ground.metric, ground.dtype, &record[..parts.shape.vector_bytes], &mut vector);
    stratann_kernel::element::widen(DType::F16, parts.centroid(cluster), &mut centroid);
    let mut code = vec![0u8; parts.shape.code_bytes];
    encoder.set_centroid(&centroid);
    let member = encoder.encode(&vector, &centroid, &mut code);
    Newcomer { id, score, cluster, term: member.term, radius: member.radius, code }
}
