//! The pace of checkpoints and merges beside searches.
//!
//! A search notes how long it waited, for a processor or the disk. While jobs run and searches wait more than twice as
//! long as they do without jobs, the jobs rest: the share of the time in which they work is halved, and grows slowly
//! again.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// One search in so many is measured: reading the clocks of a thread takes a part of a microsecond.
const MEASURED_EVERY: u64 = 8;
/// Waits up to this are no reason to rest, nanoseconds: a thread that is woken waits as long.
const WAIT_MIN_NS: u64 = 50_000;
/// Steps of the share of the time in which jobs work. At least one step is left, so that merges end.
const STEPS: u32 = 16;
/// Time between two changes of the share.
const BETWEEN: Duration = Duration::from_millis(100);
/// Longest rest at once. An interruption waits for it.
const REST_MAX: Duration = Duration::from_millis(200);

/// How long merges of a collection rest after one whose segment found no memory. Each one more that fails doubles it.
const MERGE_REST_MIN: Duration = Duration::from_secs(5);
/// The longest of these rests.
const MERGE_REST_MAX: Duration = Duration::from_secs(600);

/// Rests of merges that lack memory: each of them is a whole build, which would be made again and again.
#[derive(Debug, Default)]
pub(crate) struct MergeRest(Mutex<Failures>);

/// Merges that failed, one after another, and when the next one may begin.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    until: Option<Instant>,
}

impl MergeRest {
    fn lock(&self) -> MutexGuard<'_, Failures> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether merges rest.
    pub(crate) fn is_on(&self) -> bool {
        self.lock().until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes whether the last merge lacked memory.
    pub(crate) fn set(&self, has_failed: bool) {
        let mut own = self.lock();
        *own = match has_failed {
            true => Failures { count: own.count + 1, until: Some(Instant::now() + rest_after(own.count)) },
            false => Failures::default(),
        };
    }
}

/// The rest of merges after so many failures before this one.
fn rest_after(failures: u32) -> Duration {
    MERGE_REST_MIN.saturating_mul(1 << failures.min(10)).min(MERGE_REST_MAX)
}

/// Waits of searches, and the share of the time in which jobs work.
#[derive(Default)]
pub(crate) struct Pace {
    searches: AtomicU64,
    /// Usual waits of a query without jobs and beside them, nanoseconds; 0 where none was measured.
    quiet_ns: AtomicU64,
    busy_ns: AtomicU64,
    jobs: AtomicUsize,
    rested_us: AtomicU64,
    steps: Mutex<Steps>,
}

/// The share of the time in which jobs work, and what it was decided by.
#[derive(Default)]
struct Steps {
    /// Steps by which jobs work less than the whole time.
    rest: u32,
    /// Searches that were there at the last change, and when that was.
    searches: u64,
    changed: Option<Instant>,
}

impl Pace {
    /// Whether the next search is measured.
    pub(crate) fn measures_next(&self) -> bool {
        self.searches.fetch_add(1, Ordering::Relaxed).is_multiple_of(MEASURED_EVERY)
    }

    /// Notes how long a query waited.
    pub(crate) fn note(&self, wait_ns: u64) {
        let is_quiet = self.jobs.load(Ordering::Relaxed) == 0;
        let usual = if is_quiet { &self.quiet_ns } else { &self.busy_ns };
        let before = usual.load(Ordering::Relaxed);
        // Lost updates of several searches at once are harmless.
        let after = if before == 0 { wait_ns } else { before - before / 16 + wait_ns / 16 };
        usual.store(after.max(1), Ordering::Relaxed);
    }

    /// Counts a job as long as it is held.
    pub(crate) fn begin(&self) -> Paced<'_> {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        Paced { pace: self, since: Mutex::new(Instant::now()) }
    }

    /// Time in which jobs rested, microseconds.
    pub(crate) fn rested_us(&self) -> u64 {
        self.rested_us.load(Ordering::Relaxed)
    }

    /// Whether searches wait too long beside jobs.
    fn is_felt(&self) -> bool {
        let busy = self.busy_ns.load(Ordering::Relaxed);
        busy > 2 * self.quiet_ns.load(Ordering::Relaxed) + WAIT_MIN_NS
    }

    /// How long to rest after working for so long.
    fn rest_after(&self, worked: Duration, now: Instant) -> Duration {
        let mut steps = self.lock();
        if steps.changed.is_none_or(|changed| now.saturating_duration_since(changed) >= BETWEEN) {
            let searches = self.searches.load(Ordering::Relaxed);
            // Nobody waits where nobody searches.
            let is_felt = searches > steps.searches && self.is_felt();
            steps.rest = match is_felt {
                true => STEPS - (STEPS - steps.rest).div_ceil(2),
                false => steps.rest.saturating_sub(1),
            };
            (steps.searches, steps.changed) = (searches, Some(now));
        }
        (worked * steps.rest / (STEPS - steps.rest)).min(REST_MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A job that runs.
pub(crate) struct Paced<'a> {
    pace: &'a Pace,
    since: Mutex<Instant>,
}

impl Paced<'_> {
    /// Rests as long as the time since the last call demands. All threads of the job that ask rest together.
    pub(crate) fn rest(&self) {
        let mut since = self.since.lock().unwrap_or_else(|e| e.into_inner());
        let now = Instant::now();
        let rest = self.pace.rest_after(now.saturating_duration_since(*since), now);
        if rest > Duration::ZERO {
            std::thread::sleep(rest);
            self.pace.rested_us.fetch_add(rest.as_micros() as u64, Ordering::Relaxed);
        }
        *since = Instant::now();
    }
}

impl Drop for Paced<'_> {
    fn drop(&mut self) {
        if self.pace.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.pace.busy_ns.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_rest_while_searches_wait_longer_than_without_them() {
        let pace = Pace::default();
        assert!((0..17).filter(|_| pace.measures_next()).count() == 3);
        (0..100).for_each(|_| pace.note(40_000));
        let worked = Duration::from_millis(10);
        let mut now = Instant::now();
        let mut rest = |is_searched: bool| {
            now += BETWEEN;
            is_searched.then(|| pace.measures_next());
            pace.rest_after(worked, now)
        };
        let _job = pace.begin();
        (0..100).for_each(|_| pace.note(100_000));
        assert_eq!(rest(true), Duration::ZERO, "twice as long is not felt");
        (0..200).for_each(|_| pace.note(1_000_000));
        let rests: Vec<_> = (0..6).map(|_| rest(true)).collect();
        assert_eq!(rests[0], worked, "half of the time");
        assert!(rests.is_sorted() && rests[5] == worked * (STEPS - 1), "{rests:?}");
        // It is felt still, but nobody searches.
        let rests: Vec<_> = (0..STEPS).map(|_| rest(false)).collect();
        assert!(rests.is_sorted_by(|one, two| one > two || two.is_zero()), "{rests:?}");
        assert_eq!(rests.last(), Some(&Duration::ZERO));
    }

    #[test]
    fn merges_that_lack_memory_rest_longer_and_longer() {
        assert_eq!([0, 1, 6, 7, 99].map(|count| rest_after(count).as_secs()), [5, 10, 320, 600, 600]);
        let rest = MergeRest::default();
        assert!(!rest.is_on());
        rest.set(true);
        assert!(rest.is_on());
        rest.set(false);
        assert!(!rest.is_on());
    }

    #[test]
    fn a_job_sleeps_and_what_it_was_felt_by_ends_with_it() {
        let pace = Pace::default();
        let job = pace.begin();
        pace.measures_next();
        pace.note(10_000_000);
        std::thread::sleep(Duration::from_millis(3));
        job.rest();
        assert!(pace.rested_us() >= 2_000, "{}", pace.rested_us());
        drop(job);
        assert!(!pace.is_felt() && pace.jobs.load(Ordering::Relaxed) == 0);
    }
}
