//! Changes that wait while a collection has no room for them.

use std::cell::Cell;

use stratann_node::collections::{self, Collection, Facts};
use stratann_storage::{Error, Progress, Result};

use crate::data_folder::plain;
use crate::progress::ProgressPrinter;

/// Times that a change is tried while no checkpoint or merge waits or runs, which would make room.
const ATTEMPTS_MAX: u32 = 10;
/// Times that it is tried while one waits or runs, and is not seen to go on.
const ATTEMPTS_AT_WORK_MAX: u32 = 600;

/// Makes changes of a collection, and waits where it has no room for them.
pub(super) struct Patience<'a> {
    printer: &'a ProgressPrinter,
    collection: &'a Collection,
    /// Times that it waited.
    waits: Cell<u64>,
}

impl<'a> Patience<'a> {
    /// Changes of a collection, whose waiting is shown.
    pub(super) fn new(printer: &'a ProgressPrinter, collection: &'a Collection) -> Patience<'a> {
        Patience { printer, collection, waits: Cell::new(0) }
    }

    /// Times that it waited so far.
    pub(super) fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Makes a change. While the collection has no room for it, waits as long as the collection asks and tries again:
    /// as long as a checkpoint or a merge goes on, else some times.
    ///
    /// # Errors
    /// Those of the change; the last refusal, when no room was made; `Interrupted`.
    pub(super) fn make<T>(&self, mut change: impl FnMut(&Collection) -> collections::Result<T>) -> Result<T> {
        let facts = || self.collection.facts().ok().map(Work::of);
        let made = retry(
            || change(self.collection),
            facts,
            |seconds, why| {
                if self.waits.replace(self.waits.get() + 1) == 0 {
                    self.printer.note(&format!("note: {why}; waiting"));
                }
                self.printer.wait(seconds)
            },
        );
        self.printer.goes_on();
        made
    }
}

/// What makes room in a collection.
#[derive(Clone, Debug, Default, PartialEq)]
struct Work {
    /// Whether a checkpoint or a merge waits or runs, and the last one did not fail.
    is_at_work: bool,
    /// Why the last checkpoint or merge failed.
    trouble: Option<String>,
    /// What changes while room is made: points in memory, segments, and stages of jobs with what is done of them.
    state: (u64, Vec<u64>, Vec<(String, u64)>),
}

impl Work {
    fn of(facts: Facts) -> Work {
        let trouble = facts.trouble.map(|e| e.message);
        let segments = facts.segments.iter().map(|own| own.number).collect();
        let stages = facts.progress.into_iter().map(|own| (format!("{} {}", own.kind, own.stage), own.done));
        Work {
            is_at_work: trouble.is_none() && !facts.jobs.is_empty(),
            trouble,
            state: (facts.delta_points, segments, stages.collect()),
        }
    }
}

/// Makes a change again and again while it is refused for want of room. `wait` has the seconds to wait, and why.
fn retry<T>(
    mut change: impl FnMut() -> collections::Result<T>,
    work: impl Fn() -> Option<Work>,
    mut wait: impl FnMut(u64, &str) -> Result<()>,
) -> Result<T> {
    let (mut attempts, mut before) = (0, Work::default());
    loop {
        let error = match change() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let Some(seconds) = error.retry_after_s() else { return Err(plain(error)) };
        let now = work().unwrap_or_default();
        attempts = if now.is_at_work && now.state != before.state { 1 } else { attempts + 1 };
        let most = if now.is_at_work { ATTEMPTS_AT_WORK_MAX } else { ATTEMPTS_MAX };
        if attempts >= most {
            let why = match &now.trouble {
                Some(trouble) => format!("; its last checkpoint or merge failed: {trouble}"),
                None if now.is_at_work => format!("; {attempts} attempts later no room was made"),
                None => String::new(),
            };
            let error = plain(error);
            return Err(Error { message: error.message + &why, ..error });
        }
        wait(seconds, &error.message)?;
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use stratann_node::collections::Kind;
    use stratann_storage::ErrorKind;

    use super::*;

    fn busy() -> collections::Error {
        collections::Error { kind: Kind::Busy, message: "no room".into() }
    }

    fn work(is_at_work: bool, done: u64) -> Work {
        Work { is_at_work, trouble: None, state: (7, vec![1], vec![("merge vectors".into(), done)]) }
    }

    /// Retries a change that is refused so many times; returns how it ended, and how often it was waited for.
    fn retried(refusals: u32, work: impl Fn(u32) -> Option<Work>) -> (Result<u32, String>, u32) {
        let (tries, waits) = (Cell::new(0), Cell::new(0));
        let change = || {
            tries.set(tries.get() + 1);
            if tries.get() > refusals { Ok(tries.get()) } else { Err(busy()) }
        };
        let done = retry(
            change,
            || work(tries.get()),
            |seconds, why| {
                assert_eq!((seconds, why), (1, "no room"));
                waits.set(waits.get() + 1);
                Ok(())
            },
        );
        (done.map_err(|e| e.message), waits.get())
    }

    #[test]
    fn it_waits_before_each_attempt_as_long_as_room_is_made() {
        assert_eq!(retried(0, |_| None), (Ok(1), 0));
        assert_eq!(retried(9, |_| None), (Ok(10), 9));
        // A merge that goes on is waited for however long it takes, even if it stands still for a while.
        assert_eq!(retried(5000, |tries| Some(work(true, u64::from(tries / 500)))), (Ok(5001), 5000));
    }

    #[test]
    fn it_gives_up_where_no_room_is_made() {
        let (error, waits) = retried(u32::MAX, |_| Some(work(false, 1)));
        assert!(error.unwrap_err() == "no room" && waits == ATTEMPTS_MAX - 1);
        let (error, waits) = retried(u32::MAX, |_| Some(work(true, 1)));
        assert!(error.unwrap_err().contains("600 attempts later") && waits == 599, "{waits}");
        let failed = Work { trouble: Some("the disk is full".into()), ..work(false, 1) };
        let (error, _) = retried(u32::MAX, |_| Some(failed.clone()));
        let error = error.unwrap_err();
        assert!(error.contains("its last checkpoint or merge failed: the disk is full"), "{error}");
    }

    #[test]
    fn other_errors_and_interruptions_end_it_at_once() {
        let other = || Err::<(), _>(collections::Error { kind: Kind::DiskFull, message: "full".into() });
        let error = retry(other, || None, |_, _| panic!("nothing to wait for")).unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Io, "full"));
        let interrupted = || Error { kind: ErrorKind::Interrupted, message: "interrupted".into() };
        let error = retry(|| Err::<(), _>(busy()), || None, |_, _| Err(interrupted())).unwrap_err();
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Interrupted, "interrupted"));
    }
}
