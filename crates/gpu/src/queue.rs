//! Jobs that wait for a batch, and the blocks that they are given.
//!
//! A device has one queue. It keeps jobs apart by their codes and their kind, because a batch has jobs of the same
//! codes and of one kind; the oldest job of all that could start decides which are next.

use crate::counters::Totals;
use crate::job::Prepared;
use crate::shared::Reply;
use crate::{DeviceOptions, Failure};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of the codes of one index on a device. None is used twice.
pub(crate) type CodesNumber = u64;

/// A job without a batch.
pub(crate) struct Waiting {
    pub(crate) job: Prepared,
    pub(crate) reply: Reply,
    since: Instant,
}

impl Waiting {
    /// A job that waits from now on.
    pub(crate) fn new(job: Prepared, reply: Reply) -> Waiting {
        Waiting { job, reply, since: Instant::now() }
    }
}

/// Jobs of the next batch, each with its block.
pub(crate) struct DueJobs {
    pub(crate) codes: CodesNumber,
    pub(crate) totals: Arc<Totals>,
    pub(crate) jobs: Vec<(u32, Waiting)>,
}

/// The next batch.
pub(crate) enum Due {
    Now(DueJobs),
    /// Others may still join it for this time.
    In(Duration),
    Never,
}

/// Jobs and blocks of the same codes.
struct CodesQueue {
    // Jobs of codes, and jobs of vectors.
    waiting: [VecDeque<Waiting>; 2],
    // Blocks without a job.
    free: Vec<u32>,
    block_count: u32,
    // No more jobs come.
    is_closed: bool,
    totals: Arc<Totals>,
}

impl CodesQueue {
    fn is_idle(&self) -> bool {
        self.waiting.iter().all(VecDeque::is_empty) && self.free.len() == self.block_count as usize
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Queue {
    codes: BTreeMap<CodesNumber, CodesQueue>,
}

impl Queue {
    /// Adds codes with their blocks, all of them free.
    pub(crate) fn add(&mut self, codes: CodesNumber, block_count: u32, totals: Arc<Totals>) {
        let free = (0..block_count).rev().collect();
        let queue = CodesQueue { waiting: Default::default(), free, block_count, is_closed: false, totals };
        self.codes.insert(codes, queue);
    }

    /// Adds a job. It comes back where its codes are closed or were never there.
    pub(crate) fn push(&mut self, codes: CodesNumber, waiting: Waiting) -> Option<Waiting> {
        let Some(own) = self.codes.get_mut(&codes).filter(|own| !own.is_closed) else { return Some(waiting) };
        own.waiting[usize::from(waiting.job.has_vectors())].push_back(waiting);
        None
    }

    /// Takes back the blocks of a batch that has ended.
    pub(crate) fn release(&mut self, codes: CodesNumber, blocks: impl Iterator<Item = u32>) {
        if let Some(own) = self.codes.get_mut(&codes) {
            own.free.extend(blocks);
        }
    }

    /// Refuses new jobs of these codes; those that wait are still scored.
    pub(crate) fn close(&mut self, codes: CodesNumber) {
        if let Some(own) = self.codes.get_mut(&codes) {
            own.is_closed = true;
        }
    }

    /// Whether there are closed codes.
    pub(crate) fn has_closed(&self) -> bool {
        self.codes.values().any(|own| own.is_closed)
    }

    /// Removes closed codes whose last job has ended.
    pub(crate) fn remove_closed(&mut self) -> Option<CodesNumber> {
        let (&codes, _) = self.codes.iter().find(|(_, own)| own.is_closed && own.is_idle())?;
        self.codes.remove(&codes);
        Some(codes)
    }

    /// Whether no job waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.codes.values().all(|own| own.waiting.iter().all(VecDeque::is_empty))
    }

    /// Takes all jobs.
    pub(crate) fn drain(&mut self) -> Vec<Waiting> {
        self.codes.values_mut().flat_map(|own| &mut own.waiting).flat_map(std::mem::take).collect()
    }

    /// Takes the jobs of the next batch: the oldest that are due, of codes with a free block. Jobs are due when they
    /// fill a batch or all free blocks, when the oldest has waited long enough, and when no others can come.
    pub(crate) fn take(&mut self, options: &DeviceOptions, is_closed: bool) -> Due {
        let (now, mut next) = (Instant::now(), None);
        for (&codes, own) in self.codes.iter().filter(|(_, own)| !own.free.is_empty()) {
            let most = options.batch_max.min(own.free.len());
            for (kind, waiting) in own.waiting.iter().enumerate() {
                let Some(oldest) = waiting.front() else { continue };
                let left = options.batch_wait.saturating_sub(now.saturating_duration_since(oldest.since));
                let is_full = waiting.len() >= most || is_closed || own.is_closed;
                let left = if is_full { Duration::ZERO } else { left };
                let candidate = (!left.is_zero(), oldest.since, codes, kind, left);
                next = Some(next.map_or(candidate, |known| candidate.min(known)));
            }
        }
        let Some((is_early, _, codes, kind, left)) = next else { return Due::Never };
        let Some(own) = self.codes.get_mut(&codes).filter(|_| !is_early) else { return Due::In(left) };
        let waiting = &mut own.waiting[kind];
        let count = options.batch_max.min(own.free.len()).min(waiting.len());
        let blocks = own.free.drain(own.free.len() - count..).rev();
        let jobs = blocks.zip(waiting.drain(..count)).collect();
        Due::Now(DueJobs { codes, totals: own.totals.clone(), jobs })
    }
}

/// Answers jobs that cannot be scored any more.
pub(crate) fn answer_lost(jobs: Vec<Waiting>) {
    jobs.into_iter().for_each(|waiting| waiting.reply.send(Err(Failure::Lost)));
}

#[cfg(test)]
mod tests;
