//! Equal reads under way are made once; extents that cannot be read are lost.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use stratann_core::kinds::IndexView;
use stratann_core::query::{Loss, Mode, Outcome, Params, QueryState, Step};
use stratann_engine::exec::{Alone, Driver, Queries, SharedReads, Times};
use stratann_storage::tier::{
    Buffer, Completion, Fault, FileId, IoChoice, MemoryTier, Tier, Waker, open_direct, open_file,
};

use super::common::blocks_path;
use super::{ASKED, Ended, breaking, drive, memory, options, params, place, polled};

/// Requests to a tier.
#[derive(Default)]
struct Log {
    submitted: AtomicUsize,
    under_way: Mutex<BTreeSet<u64>>,
    doubled: AtomicUsize,
}

/// A tier that logs its reads, and counts those of an offset that is read already.
struct Logged {
    inner: Box<dyn Tier>,
    log: Arc<Log>,
    offsets: std::collections::HashMap<u64, u64>,
}

impl Logged {
    fn new(inner: Box<dyn Tier>, log: &Arc<Log>) -> Box<Logged> {
        Box::new(Logged { inner, log: log.clone(), offsets: Default::default() })
    }
}

impl Tier for Logged {
    fn room(&self) -> usize {
        self.inner.room()
    }

    fn file_bytes(&self, file: FileId) -> Option<u64> {
        self.inner.file_bytes(file)
    }

    fn submit(&mut self, tag: u64, file: FileId, offset: u64, buffer: Buffer) {
        self.log.submitted.fetch_add(1, Ordering::Relaxed);
        if !self.log.under_way.lock().unwrap().insert(offset) {
            self.log.doubled.fetch_add(1, Ordering::Relaxed);
        }
        self.offsets.insert(tag, offset);
        self.inner.submit(tag, file, offset, buffer);
    }

    fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        let polled = self.inner.poll(wait, done);
        for completion in &done[before..] {
            self.log.under_way.lock().unwrap().remove(&self.offsets[&completion.tag]);
        }
        polled
    }

    fn waker(&mut self) -> io::Result<Waker> {
        self.inner.waker()
    }

    fn name(&self) -> &'static str {
        "logged"
    }
}

/// `count` queries with the same vector.
struct Same {
    params: Params,
    count: usize,
    next: usize,
    ended: Vec<(usize, Ended)>,
    dropped: Vec<usize>,
    turns_of_first: usize,
    /// The first query is dropped at its second turn.
    drops_first: bool,
}

impl Same {
    fn new(params: Params, count: usize) -> Same {
        let (ended, dropped) = (Vec::new(), Vec::new());
        Same { params, count, next: 0, ended, dropped, turns_of_first: 0, drops_first: false }
    }
}

impl Queries for Same {
    fn next(&mut self) -> Option<usize> {
        self.next += 1;
        (self.next <= self.count).then(|| self.next - 1)
    }

    fn remaining(&self) -> usize {
        self.count.saturating_sub(self.next)
    }

    fn begin(&mut self, _: usize, (approach_width, width): (u32, u32), state: &mut QueryState) -> &[u8] {
        let budget = place().built.index.view().budget();
        state.restart(Params { approach_width, width, ..self.params }, budget);
        place().asked.row(0)
    }

    fn is_wanted(&mut self, number: usize) -> bool {
        self.turns_of_first += usize::from(number == 0);
        !(self.drops_first && number == 0 && self.turns_of_first > 1)
    }

    fn dropped(&mut self, number: usize, _: &QueryState) {
        self.dropped.push(number);
    }

    fn ended(&mut self, number: usize, _: Step, state: &QueryState, _: Times) {
        let results = state.results().iter().map(|h| (h.distance.to_bits(), h.external_id)).collect();
        self.ended.push((number, Ended { outcome: state.outcome(), results, stats: *state.stats() }));
    }
}

fn view() -> IndexView<'static> {
    place().built.index.view()
}

fn sound() -> Ended {
    let mut asked = Same::new(params(Mode::Barrier), 1);
    Driver::new(Alone::new(view(), None), memory(64, 1), options(1, 4)).run(&mut asked).unwrap();
    asked.ended.remove(0).1
}

#[test]
fn equal_reads_of_a_thread_are_made_once() {
    let sound = sound();
    for (seed, merges) in [(1, true), (2, true), (3, false)] {
        let (log, shared) = (Arc::default(), SharedReads::default());
        let mut asked = Same::new(params(Mode::Barrier), 40);
        let tier = Logged::new(memory(64, seed), &log);
        let driver = Driver::new(Alone::new(view(), None), tier, options(8, 4));
        driver.sharing(merges.then_some(&shared)).run(&mut asked).unwrap();
        assert_eq!(asked.ended.len(), 40);
        // What a query asked for does not depend on what others read.
        assert!(asked.ended.iter().all(|(_, ended)| *ended == sound));
        let wanted = 40 * sound.stats.reads as usize;
        let submitted = log.submitted.load(Ordering::Relaxed);
        assert_eq!(log.doubled.load(Ordering::Relaxed) == 0, merges);
        assert!(if merges { submitted < wanted / 2 } else { submitted == wanted }, "{submitted} of {wanted}");
    }
}

#[test]
fn equal_reads_of_several_threads_are_made_once() {
    let sound = sound();
    let (file, _) = open_direct(&blocks_path(place().built.dir.path())).unwrap();
    let file = Arc::new(file);
    let (log, shared) = (Arc::default(), SharedReads::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let tier = Logged::new(open_file(&file, 64, 4096, IoChoice::Auto).unwrap(), &log);
                let mut asked = Same::new(params(Mode::Barrier), 200);
                let driver = Driver::new(Alone::new(view(), None), tier, options(16, 4));
                driver.sharing(Some(&shared)).run(&mut asked).unwrap();
                assert_eq!(asked.ended.len(), 200);
                assert!(asked.ended.iter().all(|(_, ended)| *ended == sound));
            });
        }
    });
    let (submitted, wanted) = (log.submitted.load(Ordering::Relaxed), 800 * sound.stats.reads as usize);
    assert!(submitted < wanted / 2, "{submitted} of {wanted}");
}

/// A tier that cannot be woken joins no read of another thread.
#[test]
fn threads_that_cannot_be_woken_read_for_themselves() {
    let (sound, shared) = (sound(), SharedReads::default());
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (sound, shared) = (&sound, &shared);
            scope.spawn(move || {
                let mut asked = Same::new(params(Mode::Barrier), 200);
                let driver = Driver::new(Alone::new(view(), None), memory(64, seed), options(16, 4));
                driver.sharing(Some(shared)).run(&mut asked).unwrap();
                assert!(asked.ended.len() == 200 && asked.ended.iter().all(|(_, e)| e == sound));
            });
        }
    });
}

/// In eager mode a query has several reads under way when it is dropped; others wait for the same.
#[test]
fn a_read_goes_on_when_its_first_query_ends() {
    for seed in 0..20 {
        let (log, shared) = (Arc::default(), SharedReads::default());
        let mut asked = Same { drops_first: true, ..Same::new(params(Mode::Eager), 6) };
        let tier = Logged::new(memory(64, seed), &log);
        Driver::new(Alone::new(view(), None), tier, options(6, 8))
            .sharing(Some(&shared))
            .run(&mut asked)
            .unwrap();
        assert_eq!((asked.dropped.len(), asked.ended.len()), (1, 5), "seed {seed}");
        assert!(asked.ended.iter().all(|(_, ended)| ended.outcome == Outcome::Complete));
        assert_eq!(log.doubled.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_bad_read_is_lost_to_each_query_that_joined_it() {
    let sound = sound();
    for (fault, loss) in [
        (Fault::Error, Loss::Failed),
        (Fault::Short(4095), Loss::Short),
        (Fault::FlippedBit(77), Loss::Damaged),
    ] {
        let shared = SharedReads::default();
        let tier = MemoryTier::new(place().blocks.clone(), 64, 1).with_fault(0, fault);
        // Reads complete only while the thread waits: all queries in flight have been admitted by then.
        let tier =
            polled(Box::new(tier), |tier, wait, done| if wait { tier.poll(true, done) } else { Ok(()) });
        let mut asked = Same::new(params(Mode::Barrier), 16);
        Driver::new(Alone::new(view(), None), tier, options(8, 4))
            .sharing(Some(&shared))
            .run(&mut asked)
            .unwrap();
        assert_eq!(asked.ended.len(), 16);
        let lost: Vec<Outcome> =
            asked.ended.iter().map(|(_, e)| e.outcome).filter(|o| *o != Outcome::Complete).collect();
        assert_eq!(lost.len(), 8, "all queries in flight wait for the first read");
        assert!(
            lost.iter().all(|o| *o == lost[0] && matches!(o, Outcome::Lost { loss: l, .. } if *l == loss))
        );
        assert!(asked.ended.iter().filter(|(_, e)| e.outcome == Outcome::Complete).all(|(_, e)| *e == sound));
    }
}

/// The queries of a thread whose device fails end; those of other threads that joined its reads lose them, and no
/// thread hangs.
#[test]
fn a_thread_that_breaks_leaves_nobody_waiting() {
    let sound = sound();
    let (file, _) = open_direct(&blocks_path(place().built.dir.path())).unwrap();
    let file = Arc::new(file);
    for polls in [0, 1, 9, 49] {
        let shared = SharedReads::default();
        let tier = || open_file(&file, 64, 4096, IoChoice::Auto).unwrap();
        std::thread::scope(|scope| {
            let breaking = scope.spawn(|| {
                let driver = Driver::new(Alone::new(view(), None), breaking(tier(), polls), options(16, 4));
                driver.sharing(Some(&shared)).run(&mut Same::new(params(Mode::Barrier), 200))
            });
            let other = scope.spawn(|| {
                let mut asked = Same::new(params(Mode::Barrier), 200);
                let driver = Driver::new(Alone::new(view(), None), tier(), options(16, 4));
                driver.sharing(Some(&shared)).run(&mut asked).unwrap();
                asked.ended
            });
            assert!(breaking.join().unwrap().is_err());
            let ended = other.join().unwrap();
            assert_eq!(ended.len(), 200);
            let is_expected =
                |e: &Ended| *e == sound || matches!(e.outcome, Outcome::Lost { loss: Loss::Failed, .. });
            assert!(ended.iter().all(|(_, e)| is_expected(e)));
        });
    }
}

/// Several indexes in one process: all reads of one fail, the others do not notice.
#[test]
fn an_index_whose_disk_fails_does_not_touch_another() {
    let failing = |tier| {
        polled(tier, |tier, wait, done| {
            let polled = tier.poll(wait, done);
            done.iter_mut().for_each(|c| c.result = Err(io::Error::other("injected fault")));
            polled
        })
    };
    let sound = sound();
    let run = |tier: Box<dyn Tier>| {
        let shared = SharedReads::default();
        let mut asked = Same::new(params(Mode::Barrier), 300);
        Driver::new(Alone::new(view(), None), tier, options(16, 4))
            .sharing(Some(&shared))
            .run(&mut asked)
            .unwrap();
        asked.ended
    };
    std::thread::scope(|scope| {
        let bad = scope.spawn(|| run(failing(memory(64, 1))));
        let good: Vec<_> = (2..5).map(|seed| scope.spawn(move || run(memory(64, seed)))).collect();
        let is_lost = |e: &Ended| matches!(e.outcome, Outcome::Lost { loss: Loss::Failed, .. });
        assert!(bad.join().unwrap().iter().all(|(_, e)| is_lost(e)));
        for thread in good {
            assert!(thread.join().unwrap().iter().all(|(_, e)| *e == sound));
        }
    });
}

/// A view whose index says more than its stores hold.
#[test]
fn an_extent_beyond_its_store_or_of_no_store_is_lost() {
    struct NoFile(Box<dyn Tier>);
    impl Tier for NoFile {
        fn room(&self) -> usize {
            self.0.room()
        }
        fn file_bytes(&self, _: FileId) -> Option<u64> {
            None
        }
        fn submit(&mut self, _: u64, _: FileId, _: u64, _: Buffer) {
            panic!("nothing is read of a file that is not there");
        }
        fn poll(&mut self, wait: bool, done: &mut Vec<Completion>) -> io::Result<()> {
            self.0.poll(wait, done)
        }
        fn name(&self) -> &'static str {
            "no file"
        }
    }
    let half = Arc::new(place().blocks[..place().blocks.len() / 2].to_vec());
    for mode in [Mode::Barrier, Mode::Eager] {
        let short: Box<dyn Tier> = Box::new(MemoryTier::new(half.clone(), 64, 1));
        let empty: Box<dyn Tier> = Box::new(MemoryTier::new(Arc::default(), 64, 1));
        let missing: Box<dyn Tier> = Box::new(NoFile(memory(64, 1)));
        for (tier, expected) in [(short, Loss::Short), (empty, Loss::Short), (missing, Loss::Failed)] {
            let is_expected = |e: &Ended| matches!(e.outcome, Outcome::Lost { loss, .. } if loss == expected);
            let ended = drive(tier, None, params(mode), ASKED, options(8, 4)).unwrap();
            assert!(ended.iter().all(|e| e.outcome == Outcome::Complete || is_expected(e)));
            assert!(ended.iter().any(is_expected));
        }
    }
}
