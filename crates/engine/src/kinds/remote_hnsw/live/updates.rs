//! Inserts and deletes of many vectors, on several threads.

use std::collections::HashSet;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stratann_core::build::hash;
use stratann_core::format::hnsw::SubHnsw;
use stratann_core::remote_protocol::NewVector;
use stratann_params::Given;
use stratann_params::change::UpdateSettings;
use stratann_storage::{Error, ErrorKind, Progress, Result};

use super::group::GroupBuilder;
use super::{LiveRegion, Session};
use crate::base::Base;
use crate::dataset::check_row;
use crate::kinds::remote_hnsw::open::RemoteIndex;

/// Time for which an update waits for a memory node that does not answer.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Most threads of one call.
const THREADS_MAX: usize = 256;

/// Options of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdateOptions {
    /// The caller promises that no id was ever inserted. Else an insert replaces what is under its id.
    pub new_ids: bool,
    /// Threads, each with connections of its own.
    pub threads: usize,
    /// Updates that a thread makes side by side: one request asks for what all of them need. With 1 each update makes
    /// its own requests (to compare).
    pub batch: usize,
}

impl UpdateOptions {
    /// Reads what a user gave.
    pub fn read(given: &Given, new_ids: bool) -> UpdateOptions {
        let settings: UpdateSettings = given.read();
        UpdateOptions { new_ids, threads: settings.threads, batch: settings.batch as usize }
    }
}

impl Default for UpdateOptions {
    fn default() -> Self {
        UpdateOptions { new_ids: false, threads: 1, batch: 64 }
    }
}

/// Place of an update once it is acknowledged: in the memory of a memory node, and lost with it.
pub const PLACE: &str = "memory";

/// The end of a call: every batch that begins now sees all of its updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Number of updates.
    pub count: u64,
    /// Requests to memory nodes that they took, those of rebuilds included.
    pub round_trips: u64,
}

/// The reason why a call has not made all of its updates, and those that it has made.
#[derive(Clone, Debug)]
pub struct Unfinished {
    /// The first error.
    pub error: Error,
    /// Numbers of the updates of the call that are acknowledged, ascending. Each of the others may have been made if it
    /// was under way.
    pub acknowledged: Vec<usize>,
    /// Updates of the call; 0 where none was tried.
    pub tried: usize,
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.error, self.acknowledged.len(), self.tried) {
            (error, _, 0) => write!(f, "{error}"),
            (error, done, tried) => write!(f, "{error}; {done} of {tried} changes are acknowledged"),
        }
    }
}

impl std::error::Error for Unfinished {}

/// Nothing was changed.
impl From<Error> for Unfinished {
    fn from(error: Error) -> Unfinished {
        Unfinished { error, acknowledged: Vec::new(), tried: 0 }
    }
}

impl From<Unfinished> for Error {
    fn from(unfinished: Unfinished) -> Error {
        Error { kind: unfinished.error.kind, message: unfinished.to_string() }
    }
}

/// Applies updates to the region of an open index.
pub(crate) struct Updater<'a> {
    live: &'a LiveRegion,
    builder: GroupBuilder,
    representatives: Vec<f32>,
    base: &'a Base,
}

/// Vectors with their ids, or ids to delete.
#[derive(Clone, Copy)]
pub(crate) enum Update<'a> {
    /// Ids, vectors one after another, and whether the ids are new.
    Upsert(&'a [u64], &'a [u8], bool),
    /// Ids.
    Delete(&'a [u64]),
}

impl<'a> Update<'a> {
    fn ids(self) -> &'a [u64] {
        match self {
            Update::Upsert(ids, ..) | Update::Delete(ids) => ids,
        }
    }
}

impl<'a> Updater<'a> {
    /// Prepares updates of an open index.
    ///
    /// # Errors
    /// An index in a folder; a manifest that does not say how groups are built.
    pub(crate) fn new(base: &'a Base, own: &'a RemoteIndex) -> Result<Updater<'a>> {
        let Some(live) = &own.live else { return Err(refused(base)) };
        let builder = GroupBuilder::new(base, &own.facts, own.layout)?;
        let view = own.view();
        let representatives =
            SubHnsw::open(view.layout, view.meta).map(|meta| builder.representatives(&meta));
        Ok(Updater { live, builder, representatives: representatives.unwrap_or_default(), base })
    }

    /// Makes the updates. Those of one id keep their order.
    ///
    /// # Errors
    /// A bad id or vector: nothing is changed then. Nodes that do not answer for some seconds, damage, no space, an
    /// interruption: the error tells which updates are acknowledged.
    pub(crate) fn apply(
        &self,
        update: Update<'_>,
        options: &UpdateOptions,
        progress: &dyn Progress,
    ) -> Result<Acknowledged, Unfinished> {
        self.check(update)?;
        let ids = update.ids();
        let threads = options.threads.clamp(1, THREADS_MAX).min(ids.len().max(1)) as u64;
        let call = Call {
            updater: self,
            update,
            progress,
            batch: options.batch.max(1),
            round_trips: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            failed: Mutex::default(),
        };
        let done: Vec<Vec<usize>> = std::thread::scope(|scope| {
            let own = |thread: u64| {
                let rows = (0..ids.len()).filter(move |&row| hash(0, 41, ids[row]) % threads == thread);
                rows.collect::<Vec<usize>>()
            };
            let call = &call;
            let running: Vec<_> = (1..threads)
                .map(|thread| {
                    let rows = own(thread);
                    scope.spawn(move || call.thread(&rows))
                })
                .collect();
            let first = call.thread(&own(0));
            let others = running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| call.panicked()));
            [first].into_iter().chain(others).collect()
        });
        let mut acknowledged = done.concat();
        let failed = call.failed.into_inner().unwrap_or_else(|e| e.into_inner());
        if let Some(error) = failed {
            acknowledged.sort_unstable();
            return Err(Unfinished { error, acknowledged, tried: ids.len() });
        }
        let round_trips = call.round_trips.into_inner();
        Ok(Acknowledged { count: ids.len() as u64, round_trips })
    }

    /// Refuses what a build would refuse.
    fn check(&self, update: Update<'_>) -> Result<()> {
        let Update::Upsert(ids, vectors, _) = update else { return Ok(()) };
        let row_bytes = self.base.row_bytes();
        if vectors.len() != ids.len() * row_bytes {
            return Err(Error::bad_input(format!(
                "{} ids and {} bytes of vectors, but a vector of the index has {row_bytes} bytes ({} components of \
                 {}); give one id for each vector",
                ids.len(),
                vectors.len(),
                self.base.manifest.dim,
                self.base.dtype.name()
            )));
        }
        let bad = |(row, vector)| check_row(self.base.dtype, self.base.metric, vector).map(|bad| (row, bad));
        match vectors.chunks_exact(row_bytes).enumerate().find_map(bad) {
            Some((row, bad)) => Err(Error::bad_input(format!(
                "row {row} (id {}): {bad}; correct it, or leave it out. Nothing was inserted",
                ids[row]
            ))),
            None => Ok(()),
        }
    }

    fn new_vector(
        &self,
        update: Update<'_>,
        (row, again): (usize, bool),
        point: &mut Vec<f32>,
    ) -> Option<NewVector> {
        let Update::Upsert(ids, vectors, new_ids) = update else { return None };
        let size = self.base.row_bytes();
        let vector = &vectors[row * size..(row + 1) * size];
        let cluster = self.builder.cluster_of(&self.representatives, vector, point);
        Some(NewVector {
            id: ids[row],
            cluster,
            group: cluster / 2,
            side: cluster as usize & 1,
            inverse_norm: self.builder.inverse_norm(vector),
            vector: vector.to_vec(),
            // What was tried before may have been inserted.
            is_new: new_ids && !again,
        })
    }
}

/// The error of a kind or a place that takes no updates.
pub(crate) fn refused(base: &Base) -> Error {
    Error::bad_input(format!(
        "{} takes no inserts and deletes: it is a published version. Load a remote-hnsw into memory nodes with \
         `stratann memory-node load`, and name them by --memory",
        base.folder.display()
    ))
}

/// One call, shared by its threads.
struct Call<'a> {
    updater: &'a Updater<'a>,
    update: Update<'a>,
    progress: &'a dyn Progress,
    batch: usize,
    round_trips: AtomicU64,
    stopped: AtomicBool,
    failed: Mutex<Option<Error>>,
}

impl Call<'_> {
    /// Updates that a thread has acknowledged that ended unexpectedly: none that is known.
    fn panicked(&self) -> Vec<usize> {
        let error = Error::corrupt("a thread of the changes ended unexpectedly; please report it");
        self.failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
        Vec::new()
    }

    /// Makes the updates of one thread, a batch of them at a time. Returns those that are acknowledged.
    fn thread(&self, rows: &[usize]) -> Vec<usize> {
        let (mut session, mut done, mut point) = (None, Vec::with_capacity(rows.len()), Vec::new());
        let mut left = rows;
        while !left.is_empty() && !self.stopped.load(Ordering::Relaxed) {
            let (now, later) = left.split_at(self.distinct(left));
            left = later;
            let (made, failed) = match self.progress.interrupted() {
                true => (Vec::new(), Some(Error::interrupted())),
                false => self.apply_batch(&mut session, now, &mut point),
            };
            let requests = session.as_mut().map_or(0, Session::requests);
            self.round_trips.fetch_add(requests, Ordering::Relaxed);
            self.progress.advance(made.len() as u64);
            done.extend(made);
            if let Some(error) = failed {
                self.stopped.store(true, Ordering::Relaxed);
                self.failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
                break;
            }
        }
        if let Some(session) = session {
            self.updater.live.give_back_writer(session);
        }
        done
    }

    /// Number of the first rows that go together: updates of one id keep their order.
    fn distinct(&self, rows: &[usize]) -> usize {
        let ids = self.update.ids();
        let mut met = HashSet::new();
        rows.iter().take(self.batch).take_while(|&&row| met.insert(ids[row])).count()
    }

    /// Makes updates of different ids. Returns those that are acknowledged, and why others are not.
    fn apply_batch(
        &self,
        session: &mut Option<Session>,
        rows: &[usize],
        point: &mut Vec<f32>,
    ) -> (Vec<usize>, Option<Error>) {
        let mut done = Vec::with_capacity(rows.len());
        let (mut left, mut failed) = (Vec::new(), None);
        let made = self.try_batch(session, rows, point);
        for (&row, made) in rows.iter().zip(made) {
            match made {
                Ok(()) => done.push(row),
                Err(error) if error.kind == ErrorKind::Io => left.push(row),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if failed.is_some() {
            return (done, failed);
        }
        if !left.is_empty() {
            self.drop_failed(session);
        }
        for row in left {
            match self.retry(session, row, point) {
                Ok(()) => done.push(row),
                Err(error) => return (done, Some(error)),
            }
        }
        (done, None)
    }

    /// Ends a writer over whose connections an update has failed.
    fn drop_failed(&self, session: &mut Option<Session>) {
        let requests = session.take().map_or(0, |session| self.updater.live.end(session));
        self.round_trips.fetch_add(requests, Ordering::Relaxed);
    }

    /// Makes one update that has failed again, over new connections, for some time.
    fn retry(&self, session: &mut Option<Session>, row: usize, point: &mut Vec<f32>) -> Result<()> {
        let until = Instant::now() + RETRY;
        loop {
            let made = self.try_one(session, row, point);
            let Err(error) = made else { return Ok(()) };
            self.drop_failed(session);
            if error.kind != ErrorKind::Io || Instant::now() > until || self.progress.interrupted() {
                return Err(error);
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn try_one(&self, held: &mut Option<Session>, row: usize, point: &mut Vec<f32>) -> Result<()> {
        let Updater { live, builder, .. } = self.updater;
        let session = self.session(held)?;
        let made = match self.updater.new_vector(self.update, (row, true), point) {
            Some(new) => session.insert_batch(live, vec![new], builder),
            None => session.delete_batch(live, &[self.update.ids()[row]], builder),
        };
        made.into_iter().try_for_each(|made| made.map(drop))
    }

    fn try_batch(&self, held: &mut Option<Session>, rows: &[usize], point: &mut Vec<f32>) -> Vec<Result<()>> {
        let Updater { live, builder, .. } = self.updater;
        let session = match self.session(held) {
            Ok(session) => session,
            Err(error) => return rows.iter().map(|_| Err(error.clone())).collect(),
        };
        let new: Option<Vec<NewVector>> =
            rows.iter().map(|&row| self.updater.new_vector(self.update, (row, false), point)).collect();
        let made = match new {
            Some(new) => session.insert_batch(live, new, builder),
            None => {
                let ids: Vec<u64> = rows.iter().map(|&row| self.update.ids()[row]).collect();
                session.delete_batch(live, &ids, builder)
            }
        };
        made.into_iter().map(|made| made.map(drop)).collect()
    }

    fn session<'r>(&self, held: &'r mut Option<Session>) -> Result<&'r mut Session> {
        match held {
            Some(session) => Ok(session),
            None => Ok(held.insert(self.updater.live.writer(&self.round_trips)?)),
        }
    }
}

/// Rebuilds of this process in a region.
#[derive(Debug, Default)]
pub(crate) struct RebuildCounters {
    under_way: AtomicU64,
    published: AtomicU64,
}

/// A rebuild that is under way as long as this lives.
pub(super) struct UnderWay<'a>(&'a AtomicU64);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RebuildCounters {
    pub(super) fn begin(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }

    pub(super) fn count_published(&self) {
        self.published.fetch_add(1, Ordering::Relaxed);
    }

    /// Groups that were rebuilt.
    pub(crate) fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Groups that are being rebuilt.
    pub(crate) fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }
}
