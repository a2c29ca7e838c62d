//! Learning from traffic: a navigation graph that is refreshed with hot members (OrchANN §5.2).
//!
//! Queries are numbered; ΔQ of them make an epoch. Every worker counts its own traffic. When the last query of an
//! epoch has ended, the learning thread merges the counts, makes the next snapshot aside, and publishes it by
//! swapping a pointer. A query holds the snapshot that it began with; the memory of a snapshot is freed when its last
//! query has ended, before a third one is made. A snapshot has its resident lists, too: see
//! [`crate::kinds::hybrid_ivf::residency`].
//!
//! Traffic that is learned in epoch e is used from epoch e + 2 on, so that a batch of queries has the same answers on
//! any number of threads; in epoch e + 1 the snapshot is being made.
//!
//! An epoch without a hot spot, or with one that moves on before it pays, is not learned from: its next snapshot is the
//! one before, nothing is written, and members are not scored in the next but one. What was learned before stays, and
//! ages by the epochs that went by when learning goes on.
//!
//! A server of a partition learns from the queries of its own clients, and keeps the hot members of the lists that it
//! holds. They serve the jobs of other servers, too.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use stratann_core::build::costs::VisitCostModel;
use stratann_core::kinds::hybrid_ivf::learn::{
    Counting, HotSpots, Newcomer, Places, RESULTS_MAX, Sketch, Traffic, refresh, refresh_bytes,
};
use stratann_core::query::QueryState;
use stratann_kernel::{DType, Metric};
use stratann_storage::budget::{release_freed, yield_cores};
use stratann_storage::names::BuildId;

use crate::kinds::hybrid_ivf::lists::ListReader;
use crate::kinds::hybrid_ivf::residency::{
    CostModel, LIST_BYTES, ResidencyBudget, ResidentLists, table_bytes,
};
use crate::kinds::hybrid_ivf::residual::Encoder;
use crate::kinds::hybrid_ivf::snapshot::Snapshot;
use crate::kinds::hybrid_ivf::tables::ListTables;
use crate::stages::space::code_floats;

mod epochs;
pub mod facts;
pub(crate) mod file;
pub mod options;
mod room;

use epochs::{Epochs, OPEN};
use facts::LearningFacts;
pub use file::{LearnedFacts, describe};
use options::LearnOptions;
use stratann_params::choices::Learn;

/// Hot members that come in with one epoch, as a share of those that there is room for.
const SHARE_PER_EPOCH: usize = 4;
/// One hot member for so many nodes.
const NODES_PER_HOT: u32 = 10;

/// A snapshot, and what is counted of the queries that see it.
#[derive(Clone)]
struct Version {
    snapshot: Arc<Snapshot>,
    counting: Counting,
}

/// The versions that queries may still ask for.
struct Published {
    /// Epochs that have ended before the newest.
    epochs: u64,
    newest: Version,
    /// The one before, for the queries of a running epoch.
    before: Option<Version>,
}

impl Published {
    fn only(epochs: u64, newest: Version) -> Published {
        Published { epochs, newest, before: None }
    }

    /// The first version.
    fn first(snapshot: Snapshot) -> Published {
        Published::only(0, Version { snapshot: Arc::new(snapshot), counting: Counting::Scores })
    }
}

/// What the learning thread is asked for.
enum Request {
    /// To learn from this epoch, which has ended.
    Learn(u64),
    /// To answer once it has learned from all epochs before.
    Answer(mpsc::SyncSender<()>),
}

/// Source of snapshots.
pub(crate) struct LearningSource {
    pub(crate) tables: Arc<ListTables>,
    pub(crate) file: Arc<File>,
    /// The path of that file.
    pub(crate) lists: PathBuf,
    pub(crate) metric: Metric,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
    /// The file of what was learned.
    pub(crate) path: PathBuf,
    pub(crate) build_id: BuildId,
}

impl LearningSource {
    fn reader(&self) -> ListReader<'_> {
        ListReader::new(&self.tables, &self.file, &self.lists)
    }
}

/// See the module.
pub(crate) struct Learning {
    shared: Arc<LearningState>,
    updates: Option<mpsc::Sender<Request>>,
    updater: Option<JoinHandle<()>>,
}

struct LearningState {
    source: LearningSource,
    options: LearnOptions,
    hot: usize,
    published: ArcSwap<Published>,
    // Number of the next query.
    next: AtomicU64,
    epochs: Epochs,
    // By epoch modulo OPEN, what each worker counted, once it has.
    counts: [Vec<Mutex<Option<Traffic>>>; OPEN as usize],
    // The budget of resident lists, and the cost model.
    residency: Mutex<Option<(ResidencyBudget, VisitCostModel)>>,
    progress: Mutex<LearningProgress>,
    // Apart from the progress, which is held as long as an epoch is looked at.
    facts: Mutex<LearningFacts>,
    waits: AtomicU64,
    // Members whose vectors are here.
    members: u64,
}

/// What the learning thread knows of the epochs so far.
struct LearningProgress {
    spots: HotSpots,
    // Since the last that was learned from.
    skipped: u32,
}

/// Workers that count apart; with more, some share.
const WORKERS: usize = 16;

impl Learning {
    /// Begins with what was learned before, or with the graph as it was built. Returns a warning, too, when the file
    /// of the former cannot be used.
    pub(crate) fn begin(source: LearningSource, options: LearnOptions) -> (Learning, Option<String>) {
        let hot = options.hot.unwrap_or(source.tables.nav.nodes() / NODES_PER_HOT) as usize;
        let clusters = source.tables.directory.clusters();
        let mut first = Snapshot {
            nav: source.tables.nav.clone(),
            ids: Vec::new(),
            records: Vec::new(),
            resident: None,
            visits: if options.learn == Learn::Off { Vec::new() } else { vec![0; clusters as usize] },
            epochs: 0,
            queries: 0,
        };
        let found = match options.learn {
            Learn::Off => Ok(None),
            Learn::Frozen | Learn::On | Learn::Always => file::read(&source),
        };
        let mut spots = HotSpots::default();
        let warning = match found {
            Ok(Some(summary)) => {
                first = next_snapshot(&source, &first, &summary, hot);
                spots = HotSpots::after(room::learned(&first));
                None
            }
            Ok(None) => None,
            Err(why) => Some(why),
        };
        let counts = || (0..WORKERS).map(|_| Mutex::default()).collect();
        let members = room::held_members(&source.tables);
        let shared = Arc::new(LearningState {
            source,
            options,
            hot,
            published: ArcSwap::from_pointee(Published::first(first)),
            next: AtomicU64::new(0),
            epochs: Epochs::new(options.epoch_queries),
            counts: [counts(), counts()],
            residency: Mutex::default(),
            progress: Mutex::new(LearningProgress { spots, skipped: 0 }),
            facts: Mutex::default(),
            members,
            waits: AtomicU64::new(0),
        });
        let (updates, updater) = if options.learn.counts() {
            let (sender, receiver) = mpsc::channel();
            let of_thread = shared.clone();
            let thread = std::thread::Builder::new()
                .name("learning".into())
                .spawn(move || learn_in_order(&of_thread, receiver));
            (Some(sender), thread.ok())
        } else {
            (None, None)
        };
        (Learning { shared, updates, updater }, warning)
    }

    /// Publishes these resident lists; later snapshots rebalance them within `budget`.
    pub(crate) fn rebalance_within(
        &mut self,
        lists: Arc<ResidentLists>,
        budget: ResidencyBudget,
        model: VisitCostModel,
    ) {
        *lock(&self.shared.residency) = Some((budget, model));
        let snapshot = Snapshot { resident: Some(lists), ..(*self.newest()).clone() };
        let published = self.shared.published.load_full();
        let newest = Version { snapshot: Arc::new(snapshot), ..published.newest };
        self.shared.published.store(Arc::new(Published::only(published.epochs, newest)));
    }

    /// Learns no more, and keeps nothing of what was learned but the visits of clusters. Lists are to be loaded again.
    pub(crate) fn stop(&mut self) {
        self.end();
        let nav = self.shared.source.tables.nav.clone();
        let (ids, records) = (Vec::new(), Vec::new());
        let bare = Snapshot { nav, ids, records, resident: None, ..(*self.newest()).clone() };
        self.shared.published.store(Arc::new(Published::first(bare)));
    }

    /// Learns from the epochs that have ended, two at most, and ends the thread.
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

    /// A number for one query that cannot wait; `None` while its snapshot is being made: then the query is not counted.
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
        self.shared.epochs.of(number)
    }

    /// The snapshot for queries of `epoch`; `None` as long as it is being made.
    pub(crate) fn snapshot_for(&self, epoch: u64) -> Option<Arc<Snapshot>> {
        let epoch = if self.is_on() { epoch } else { 0 };
        self.shared.version_for(epoch, |version| version.snapshot.clone())
    }

    /// Notes that a query waits for its snapshot.
    pub(crate) fn note_wait(&self) {
        self.shared.waits.fetch_add(1, Ordering::Relaxed);
    }

    /// The newest snapshot.
    pub(crate) fn newest(&self) -> Arc<Snapshot> {
        self.shared.published.load().newest.snapshot.clone()
    }

    /// What was found in the epochs so far; `None` where queries are not counted.
    pub(crate) fn facts(&self) -> Option<LearningFacts> {
        self.updates.as_ref().filter(|_| self.is_on())?;
        let waits = self.shared.waits.load(Ordering::Relaxed);
        Some(LearningFacts { waits, ..*lock(&self.shared.facts) })
    }

    /// Waits until all epochs that have ended are learned from.
    pub(crate) fn settle(&self) {
        let Some(updates) = self.updates.as_ref().filter(|_| self.is_on()) else { return };
        let (sender, receiver) = mpsc::sync_channel(1);
        if updates.send(Request::Answer(sender)).is_ok() {
            let _ = receiver.recv();
        }
    }

    /// A query with this number has ended; `None` for one that will never run.
    pub(crate) fn ended(&self, worker: usize, number: u64, state: Option<&QueryState>) {
        let Some(updates) = self.updates.as_ref().filter(|_| self.is_on()) else { return };
        let (epochs, epoch) = (&self.shared.epochs, self.epoch(number));
        let at = (epoch % OPEN) as usize;
        if let Some(trace) = state.and_then(QueryState::hybrid_ivf) {
            let clusters = self.shared.source.tables.directory.clusters();
            let counting = self.shared.counting_in(epoch);
            let mut traffic = lock(&self.shared.counts[at][worker % WORKERS]);
            let traffic = traffic.get_or_insert_with(|| Traffic::new(clusters));
            traffic.observe(&trace, epochs.is_second_half(number), counting);
        }
        let has_ended = if state.is_some() { epochs.end(epoch) } else { epochs.abandon(epoch) };
        if has_ended {
            // No query of this epoch is left, and none of the epoch after the next has begun: its counts are not in
            // use until the snapshot is published.
            let _ = updates.send(Request::Learn(epoch));
        }
    }

    /// Bytes in RAM, resident lists excluded: the snapshot in use, the next one, and the counts.
    pub(crate) fn bytes(&self, threads: usize) -> u64 {
        if !self.is_on() {
            let newest = self.newest();
            let is_as_built = Arc::ptr_eq(&newest.nav, &self.shared.source.tables.nav);
            return if is_as_built { 4 * newest.visits.len() as u64 } else { newest.bytes() };
        }
        let shared = &self.shared;
        let tables = &shared.source.tables;
        let (shape, clusters) = (tables.shape, u64::from(tables.directory.clusters()));
        // With as many hot members as there may be: learning must not exceed what was planned with.
        let per_hot = shape.code_bytes as u64 + 4 * u64::from(tables.nav.degree) + 48;
        let list_tables = 2 * table_bytes(tables.directory.list_count() as usize);
        let snapshot = tables.nav.bytes() as u64 + 4 * clusters + shared.hot as u64 * per_hot + list_tables;
        let coming = shared.hot + shared.hot.div_ceil(SHARE_PER_EPOCH);
        let records = (coming * (shape.record_bytes() + LIST_BYTES)) as u64;
        let results = u64::from(shared.options.epoch_queries) * RESULTS_MAX as u64 * 4;
        let count = Sketch::BYTES as u64 + 8 * clusters;
        // The results are ranked once they are merged, and the hot sets of three epochs are kept.
        let hot_sets = 4 * (4 * shared.hot as u64 + 4 * clusters);
        let counts = (OPEN * threads.min(WORKERS) as u64 + 1) * count + (OPEN + 4) * results + hot_sets;
        let ranking_clusters = 48 * clusters;
        2 * snapshot + records + counts + ranking_clusters + refresh_bytes(clusters, shape.dim as u64)
    }
}

/// Learns from epochs in their order; one may end before the one before it.
fn learn_in_order(state: &LearningState, requests: mpsc::Receiver<Request>) {
    // Queries are waited for; the next version is not, as long as an epoch takes.
    yield_cores();
    let (mut next, mut ended) = (0, BTreeSet::new());
    for request in requests {
        match request {
            Request::Learn(epoch) => {
                ended.insert(epoch);
                while ended.remove(&next) {
                    if state.update(next) {
                        ended.insert(next + OPEN);
                    }
                    next += 1;
                }
            }
            Request::Answer(sender) => drop(sender.send(())),
        }
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

/// The traffic that a snapshot is made from, besides the snapshot before.
pub(crate) struct TrafficSummary {
    /// Members and their scores, the hottest first.
    pub(crate) hot: Vec<(u32, u32)>,
    pub(crate) visits: Vec<u32>,
    /// Epochs and queries that it comes from.
    pub(crate) epochs: u64,
    pub(crate) queries: u64,
}

impl LearningState {
    /// Something of the version for queries of `epoch`; `None` as long as it is being made.
    fn version_for<T>(&self, epoch: u64, take: impl FnOnce(&Version) -> T) -> Option<T> {
        let published = self.published.load();
        let back = published.epochs.checked_sub(epoch.saturating_sub(1))?;
        let before = published.before.as_ref().filter(|_| back > 0);
        Some(take(before.unwrap_or(&published.newest)))
    }

    /// What is counted of the queries of an epoch that runs, or has just ended.
    fn counting_in(&self, epoch: u64) -> Counting {
        self.version_for(epoch, |version| version.counting).unwrap_or(Counting::Scores)
    }

    /// Makes the snapshot for what follows `epoch`, and publishes it. Returns whether the epoch after the next has
    /// ended already.
    fn update(&self, epoch: u64) -> bool {
        let at = (epoch % OPEN) as usize;
        let counting = self.counting_in(epoch);
        let newest = self.only_newest();
        let mut traffic = self.take_counts(at);
        if counting == Counting::Results {
            traffic.score_results();
        }
        let learned = self
            .halvings_to_learn(&newest.snapshot, &traffic)
            .map(|halvings| self.next(&newest, &traffic, halvings));
        let learned = learned.map(Arc::new);
        let counting = match (&learned, self.options.learn) {
            (Some(_), _) | (None, Learn::Always) => Counting::Scores,
            (None, _) => Counting::Results,
        };
        let next = Version { snapshot: learned.clone().unwrap_or_else(|| newest.snapshot.clone()), counting };
        // Before the swap: whoever sees the new snapshot may use the counts.
        let has_ended = self.epochs.open_after(epoch);
        let epochs = self.published.load().epochs + 1;
        self.published.store(Arc::new(Published { epochs, newest: next, before: Some(newest) }));
        // After the swap: no query waits for the disk.
        if let Some(snapshot) = learned {
            let _ = file::write(&self.source, &snapshot);
        }
        has_ended
    }

    /// How often what was learned before is to halve when this epoch is learned from; `None` when it is not.
    fn halvings_to_learn(&self, newest: &Snapshot, traffic: &Traffic) -> Option<u32> {
        // Otherwise the search was interrupted.
        if traffic.queries() == 0 {
            return None;
        }
        let residency = *lock(&self.residency);
        let mut progress = lock(&self.progress);
        let (tables, lists) = (&self.source.tables, newest.resident.as_deref());
        let room = room::Room { tables, hot: self.hot, residency, members: self.members, lists };
        let finding = progress.spots.observe(traffic, &room);
        let learns = finding.is_worth || self.options.learn == Learn::Always;
        lock(&self.facts).note(finding, learns);
        match learns {
            true => Some(1 + std::mem::take(&mut progress.skipped)),
            false => {
                progress.skipped = progress.skipped.saturating_add(1);
                None
            }
        }
    }

    /// Drops the version before the newest, and waits until no query holds it; all queries of its epoch end.
    fn only_newest(&self) -> Version {
        let published = self.published.load_full();
        let newest = published.newest.clone();
        let before = published.before.as_ref().map(|version| &version.snapshot);
        let before = before.filter(|v| !Arc::ptr_eq(v, &newest.snapshot)).map(Arc::downgrade);
        self.published.store(Arc::new(Published::only(published.epochs, newest.clone())));
        drop(published);
        if let Some(before) = before {
            while before.strong_count() > 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            release_freed();
        }
        newest
    }

    /// The counts of all workers in an epoch.
    fn take_counts(&self, at: usize) -> Traffic {
        let mut traffic = Traffic::new(self.source.tables.directory.clusters());
        for part in &self.counts[at] {
            if let Some(part) = lock(part).as_mut() {
                traffic.merge(part);
                part.clear();
            }
        }
        traffic
    }

    fn next(&self, newest: &Version, traffic: &Traffic, halvings: u32) -> Snapshot {
        let newest = &newest.snapshot;
        let summary = TrafficSummary {
            hot: traffic.ranked(),
            visits: traffic.visits(),
            epochs: 1,
            queries: u64::from(traffic.queries()),
        };
        let score_of = |id: u32| traffic.sketch.estimate(id);
        let each = self.hot.div_ceil(SHARE_PER_EPOCH);
        let mut snapshot = make(&self.source, newest, &summary, score_of, (self.hot, each, halvings));
        let residency = *lock(&self.residency);
        if let (Some((budget, model)), Some(lists)) = (residency, &newest.resident) {
            let mut reader = self.source.reader();
            let costs = CostModel { model: &model, visits: &snapshot.visits };
            snapshot.resident = Some(Arc::new(lists.rebalance(&mut reader, budget, &costs)));
        }
        snapshot
    }
}

/// The snapshot of all that was learned before, at once.
fn next_snapshot(
    source: &LearningSource,
    first: &Snapshot,
    summary: &TrafficSummary,
    hot: usize,
) -> Snapshot {
    make(source, first, summary, |_| 0, (hot, hot, 1))
}

fn make(
    source: &LearningSource,
    old: &Snapshot,
    summary: &TrafficSummary,
    score_of: impl Fn(u32) -> u32,
    (hot, each, halvings): (usize, usize, u32),
) -> Snapshot {
    let tables = &source.tables;
    let mut known: Vec<u32> = old.nav.ids.clone();
    known.sort_unstable();
    let is_new = |id: u32| known.binary_search(&id).is_err() && tables.holds_record(id);
    let wanted = summary.hot.iter().filter(|hot| is_new(hot.0)).take(each);
    let mut records: Vec<(u32, Arc<[u8]>)> =
        old.ids.iter().copied().zip(old.records.iter().cloned()).collect();
    let mut hot_members = Vec::new();
    let mut encoder = Encoder::new(&tables.coder, source.metric);
    let mut reader = source.reader();
    for &(id, score) in wanted {
        // A record that cannot be read is left out: a hot member is no more than a hint.
        let Some(record) = reader.record(id) else { continue };
        hot_members.push(hot_member(source, &mut encoder, id, score, record));
        records.push((id, Arc::from(record)));
    }
    let places = Places { coder: &tables.coder, centroids: &tables.centroids };
    let nav = refresh(&old.nav, &places, &hot_members, score_of, (hot, halvings), source.seed);
    let mut stay: Vec<u32> = nav.ids[nav.bootstrap as usize..].to_vec();
    stay.sort_unstable();
    records.retain(|(id, _)| stay.binary_search(id).is_ok());
    records.sort_unstable_by_key(|r| r.0);
    let (ids, records) = records.into_iter().unzip();
    let visits = old
        .visits
        .iter()
        .zip(&summary.visits)
        .map(|(a, b)| a.checked_shr(halvings).unwrap_or(0) + b)
        .collect();
    let (epochs, queries) =
        (old.epochs.saturating_add(summary.epochs), old.queries.saturating_add(summary.queries));
    Snapshot { nav: Arc::new(nav), ids, records, resident: None, visits, epochs, queries }
}

fn hot_member(
    source: &LearningSource,
    encoder: &mut Encoder<'_>,
    id: u32,
    score: u32,
    record: &[u8],
) -> Newcomer {
    let (tables, dim) = (&source.tables, source.tables.shape.dim);
    let cluster = tables.directory.cluster_of(tables.directory.list_of(id));
    let (mut vector, mut centroid) = (vec![0f32; dim], vec![0f32; dim]);
    code_floats(source.metric, source.dtype, &record[..tables.shape.vector_bytes], &mut vector);
    stratann_kernel::element::widen(DType::F16, tables.centroid(cluster), &mut centroid);
    let mut code = vec![0u8; tables.shape.code_bytes];
    encoder.set_centroid(&centroid);
    let member = encoder.encode(&vector, &centroid, &mut code);
    Newcomer { id, score, cluster, term: member.term, radius: member.radius, code }
}
