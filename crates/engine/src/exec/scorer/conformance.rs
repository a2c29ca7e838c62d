//! Duties of every scorer. Tests of each call [`check`].

use std::sync::mpsc;
use std::time::Duration;

use stratann_core::hash::hash;
use stratann_core::score::{CodeJob, RankScratch, Ranking, rank};
use stratann_kernel::coder::{CodeQuery, Coder};

use super::{Reply, Scorer};

/// Time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// One query's candidates.
struct Candidates {
    coded: CodeQuery,
    ranges: Vec<(u32, u32)>,
    ids: Vec<u32>,
    keep: u32,
    exclude: u32,
}

impl Candidates {
    fn draw(coder: &Coder, count: u32, seed: u64) -> Candidates {
        let number =
            |stream: u64, i: u64, below: u32| (hash(seed, stream, i) % u64::from(below.max(1))) as u32;
        let component = |i: usize| number(1, i as u64, 2001) as f32 / 1000.0 - 1.0;
        let query: Vec<f32> = (0..coder.dim()).map(component).collect();
        let mut coded = CodeQuery::default();
        coded.set(coder, &query, &mut Vec::new());
        let ranges = (0..u64::from(number(2, 0, 6))).map(|i| (number(3, i, count + 3), number(4, i, 60)));
        let ids = (0..u64::from(number(5, 0, 200))).map(|i| match number(6, i, 40) {
            0 => u32::MAX,
            _ => number(7, i, count + count / 8 + 1),
        });
        Candidates {
            ranges: ranges.collect(),
            ids: ids.collect(),
            keep: [0, 1, 10, 300][number(8, 0, 4) as usize],
            exclude: if number(9, 0, 2) == 0 { u32::MAX } else { number(10, 0, count) },
            coded,
        }
    }

    fn job(&self) -> CodeJob<'_> {
        CodeJob {
            coded: &self.coded,
            ranges: &self.ranges,
            ids: &self.ids,
            keep: self.keep,
            exclude: self.exclude,
        }
    }
}

/// Checks that a scorer ranks `jobs` random jobs over `codes` as this machine does, from several threads at once, and
/// answers each once.
///
/// # Panics
/// When it does not.
pub fn check(scorer: &dyn Scorer, coder: &Coder, codes: &[u8], jobs: u64) {
    let count = (codes.len() / coder.code_bytes().max(1)) as u32;
    let (threads, (sender, receiver)) = (4, mpsc::channel::<(u64, Ranking)>());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut scratch = RankScratch::default();
                for number in (thread..jobs).step_by(threads as usize) {
                    let candidates = Candidates::draw(coder, count, number);
                    let answer = sender.clone();
                    let reply = Reply::new(move |ranking| {
                        let ranking = ranking.expect("a ranking");
                        answer.send((number, ranking)).expect("a receiver");
                    });
                    let job = candidates.job();
                    if let Some(ranking) = scorer.submit(&job, &mut scratch, reply) {
                        sender.send((number, ranking)).expect("a receiver");
                    }
                }
            });
        }
    });
    drop(sender);
    let mut answered = vec![false; jobs as usize];
    for _ in 0..jobs {
        let (number, ranking) = receiver.recv_timeout(PATIENCE).expect("every job is answered");
        assert!(!std::mem::replace(&mut answered[number as usize], true), "job {number} is answered twice");
        let candidates = Candidates::draw(coder, count, number);
        let mut wanted = Ranking::default();
        rank(&candidates.job(), codes, 0, &mut RankScratch::default(), &mut wanted);
        assert_eq!(ranking.nearest, wanted.nearest, "job {number}");
        assert!(candidates.keep == 0 || ranking.distinct == wanted.distinct, "job {number}");
        let here = scorer.rank_here(&candidates.job(), &mut RankScratch::default());
        assert_eq!(here.expect("a ranking").nearest, wanted.nearest, "job {number}, here");
    }
    assert!(receiver.try_recv().is_err(), "no job is answered twice");
}
