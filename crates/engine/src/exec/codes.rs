//! Rankings of a driver: from a query's want to its result, by way of the scorer of codes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use stratann_core::query::{Loss, Tag};
use stratann_core::score::{RankScratch, Ranking};
use stratann_storage::tier::Waker;

use super::Driver;
use super::scorer::{Failure, Reply};
use super::segment::{Seat, view_of};
use super::shared_reads::Asker;
use super::slot::{ReadResult, seen};

type Answer = (Asker, Result<Ranking, Failure>);

/// Answers for one driver thread. Any thread adds them.
pub(super) struct CodeMailbox {
    answers: Mutex<Vec<Answer>>,
    has_answers: AtomicBool,
    waker: Option<Waker>,
}

impl CodeMailbox {
    fn add(&self, answer: Answer) {
        self.answers.lock().unwrap_or_else(|e| e.into_inner()).push(answer);
        self.has_answers.store(true, Ordering::Release);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }
}

/// What a driver asks of the scorer of a segment.
pub(super) struct CodeScorer {
    mailbox: Arc<CodeMailbox>,
    scratch: RankScratch,
    /// Jobs without an answer.
    pub(super) awaited: usize,
}

impl CodeScorer {
    pub(super) fn new(waker: Option<Waker>) -> CodeScorer {
        let mailbox = CodeMailbox { answers: Mutex::default(), has_answers: AtomicBool::new(false), waker };
        CodeScorer { mailbox: Arc::new(mailbox), scratch: RankScratch::default(), awaited: 0 }
    }

    /// Whether the thread may wait for answers: something wakes it.
    pub(super) fn may_wait(&self) -> bool {
        self.awaited > 0 && self.mailbox.waker.is_some()
    }
}

impl Driver<'_> {
    /// Begins to rank the candidates of a query by their codes.
    pub(super) fn rank_codes(&mut self, slot: usize, tag: Tag) {
        let own = &mut self.slots[slot];
        let Seat { segment, codes, .. } = &mut self.seats[own.seat];
        let view = seen(view_of(&**segment, &self.others), own.snapshot.as_ref());
        let (Some(codes), Some(scorer)) = (codes, segment.scorer()) else {
            let ranking = own.scratch.rank_codes(&view);
            own.results.push((tag, ReadResult::Ranked(ranking)));
            return;
        };
        let Some(job) = own.scratch.code_job(&view) else {
            own.results.push((tag, ReadResult::Lost(Loss::Failed)));
            return;
        };
        let asker = Asker { slot: slot as u32, generation: own.generation, tag };
        let mailbox = codes.mailbox.clone();
        let reply = Reply::new(move |ranking| mailbox.add((asker, ranking)));
        match scorer.submit(&job, &mut codes.scratch, reply) {
            Some(ranking) => own.results.push((tag, ReadResult::Ranked(ranking))),
            None => codes.awaited += 1,
        }
    }

    /// Gives answers that have come to their queries. What a scorer has failed with is ranked here, once.
    pub(super) fn collect_rankings(&mut self) {
        for seat in 0..self.seats.len() {
            let Some(codes) = &mut self.seats[seat].codes else { continue };
            if !codes.mailbox.has_answers.swap(false, Ordering::AcqRel) {
                continue;
            }
            let answers =
                std::mem::take(&mut *codes.mailbox.answers.lock().unwrap_or_else(|e| e.into_inner()));
            codes.awaited -= answers.len();
            for (asker, ranking) in answers {
                let result = self.ranked(asker, ranking);
                self.give(asker, result);
            }
        }
    }

    /// The result of a query that still waits for it.
    fn ranked(&mut self, asker: Asker, ranking: Result<Ranking, Failure>) -> ReadResult {
        let slot = &self.slots[asker.slot as usize];
        if !slot.is_active || slot.generation != asker.generation {
            return ReadResult::Lost(Loss::Expired);
        }
        let Seat { segment, codes, .. } = &mut self.seats[slot.seat];
        let ranking = ranking.or_else(|failure| {
            let view = seen(view_of(&**segment, &self.others), slot.snapshot.as_ref());
            match (slot.scratch.code_job(&view), codes, segment.scorer()) {
                (Some(job), Some(codes), Some(scorer)) => scorer.rank_here(&job, &mut codes.scratch),
                _ => Err(failure),
            }
        });
        ranking.map_or(ReadResult::Lost(Loss::Failed), ReadResult::Ranked)
    }
}
