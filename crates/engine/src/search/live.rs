//! Batches over an index in memory nodes, whose groups others change meanwhile: those of a search, and those of a
//! thread of a server.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stratann_core::query::{Loss, QueryStats};
use stratann_storage::Result;

use crate::exec::Snapshot;
use crate::kinds::{LiveClusters, LiveRegion, LiveSession};

/// Number of times that a query is asked again whose clusters moved, or whose memory node was lost.
const TRIES_MAX: u8 = 8;

/// Pauses before a batch after one that lost reads: they double up to the last. Connections are dialed again after
/// pauses of their own.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
const LAST_PAUSE: Duration = Duration::from_millis(400);

/// Snapshots and retries of batches, one after another.
pub(crate) struct LiveBatches<'a> {
    region: &'a LiveRegion,
    session: Mutex<Option<LiveSession>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    clusters: Arc<LiveClusters>,
    /// Queries of the present batch that have ended, and those to ask again.
    ended: Vec<usize>,
    again: Vec<usize>,
    /// Number of times that these were asked again.
    tries: BTreeMap<usize, u8>,
    /// Whether the present batch has lost reads, and how many batches before it did, one after another.
    has_lost: bool,
    losses: u32,
    /// Whether bytes of the present batch were damaged, or replaced.
    found_damage: bool,
}

impl<'a> LiveBatches<'a> {
    /// # Errors
    /// The first memory node does not answer.
    pub(crate) fn new(region: &'a LiveRegion) -> Result<LiveBatches<'a>> {
        Ok(LiveBatches { session: Mutex::new(Some(region.session()?)), region, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn with_session<T>(&self, f: impl FnOnce(&mut LiveSession) -> T) -> Option<T> {
        self.session.lock().unwrap_or_else(|e| e.into_inner()).as_mut().map(f)
    }

    /// Reads the headers. Returns what that cost.
    ///
    /// # Errors
    /// Memory nodes that do not answer; damage.
    pub(crate) fn begin(&self) -> io::Result<QueryStats> {
        self.pause();
        let (clusters, cost) = match self.begin_once() {
            Err(_) => {
                // A session that others have used meanwhile may be connected again.
                self.change_reader();
                self.begin_once()?
            }
            begun => begun?,
        };
        let mut state = self.state();
        (state.clusters, state.ended) = (clusters, Vec::new());
        Ok(cost)
    }

    fn begin_once(&self) -> io::Result<(Arc<LiveClusters>, QueryStats)> {
        match self.with_session(|session| session.begin_batch(self.region)) {
            Some(begun) => begun.map_err(|e| io::Error::other(e.message)),
            None => Err(io::Error::other("the search has ended")),
        }
    }

    fn change_reader(&self) {
        let Ok(other) = self.region.session() else { return };
        let before = self.session.lock().unwrap_or_else(|e| e.into_inner()).replace(other);
        if let Some(before) = before {
            self.region.end(before);
        }
    }

    /// Waits where the batch before lost reads.
    fn pause(&self) {
        let losses = {
            let mut state = self.state();
            state.losses = if std::mem::take(&mut state.has_lost) { state.losses + 1 } else { 0 };
            state.losses
        };
        if losses > 0 {
            std::thread::sleep((FIRST_PAUSE * 2u32.pow((losses - 1).min(8))).min(LAST_PAUSE));
        }
    }

    /// The part of the index that the queries of the present batch see.
    pub(crate) fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.state().clusters.clone()
    }

    /// A query to ask again.
    pub(crate) fn next(&self) -> Option<usize> {
        self.state().again.pop()
    }

    /// Notes that a memory node did not give a cluster.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.state();
        state.has_lost = true;
        // What a batch read that stood still may have been replaced: its end tells.
        state.found_damage |= loss == Loss::Damaged;
    }

    /// Notes that a query has ended. Returns whether it will be asked again because it `lost` a cluster.
    pub(crate) fn ended(&self, number: usize, lost: bool) -> bool {
        if lost && self.may_try(number) {
            self.state().again.push(number);
            return true;
        }
        self.state().ended.push(number);
        false
    }

    /// Whether a query may be asked once more.
    fn may_try(&self, number: usize) -> bool {
        let mut state = self.state();
        let tries = state.tries.entry(number).or_default();
        *tries = tries.saturating_add(1);
        *tries <= TRIES_MAX
    }

    /// Notes that this number is that of another query from now on.
    pub(crate) fn forget(&self, number: usize) {
        self.state().tries.remove(&number);
    }

    /// Whether only the end of the present batch tells that what it read was there.
    pub(crate) fn ends_with_check(&self) -> bool {
        let state = self.state();
        let (clusters, found_damage) = (state.clusters.clone(), state.found_damage);
        drop(state);
        found_damage || self.with_session(|session| session.ends_with_check(&clusters)).unwrap_or(true)
    }

    /// Ends a batch. Where what it read may have been replaced meanwhile, its queries are asked again: these are
    /// returned.
    pub(crate) fn end(&self) -> Vec<usize> {
        let (clusters, ended, found_damage) = {
            let mut state = self.state();
            (
                state.clusters.clone(),
                std::mem::take(&mut state.ended),
                std::mem::take(&mut state.found_damage),
            )
        };
        let is_sound = self.with_session(|session| session.ends_well(self.region, &clusters, found_damage));
        if is_sound != Some(false) {
            return Vec::new();
        }
        let again: Vec<usize> = ended.into_iter().filter(|&number| self.may_try(number)).collect();
        self.state().again.extend(&again);
        again
    }
}

impl Drop for LiveBatches<'_> {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        session.into_iter().for_each(|session| self.region.give_back(session));
    }
}
