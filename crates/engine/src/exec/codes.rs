//! Rankings of a driver: from a query's want to its result, by way of the scorer of codes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use stratann_core::query::{Loss, Tag};
use stratann_core::score::{RankScratch, Ranking};
use stratann_storage::tier::Waker;

use super::Driver;
use super::shared_reads::Asker;
use super::slot::{ReadResult, seen};
use crate::exec::scorer::{Failure, Reply, Scorer};

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

/// The scorer of a driver, and what it is asked.
pub(super) struct CodeScorer<'a> {
    scorer: &'a dyn Scorer,
    mailbox: Arc<CodeMailbox>,
    scratch: RankScratch,
    /// Jobs without an answer.
    pub(super) awaited: usize,
}

impl<'a> CodeScorer<'a> {
    pub(super) fn new(scorer: &'a dyn Scorer, waker: Option<Waker>) -> CodeScorer<'a> {
        let mailbox = CodeMailbox { answers: Mutex::default(), has_answers: AtomicBool::new(false), waker };
        CodeScorer { scorer, mailbox: Arc::new(mailbox), scratch: RankScratch::default(), awaited: 0 }
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
        let view = seen(&self.view, own.snapshot.as_ref());
        let Some(codes) = &mut self.codes else {
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
        match codes.scorer.submit(&job, &mut codes.scratch, reply) {
            Some(ranking) => own.results.push((tag, ReadResult::Ranked(ranking))),
            None => codes.awaited += 1,
        }
    }

    /// Gives answers that have come to their queries. What the scorer has failed with is ranked here, once.
    pub(super) fn collect_rankings(&mut self) {
        let Some(codes) = &mut self.codes else { return };
        if !codes.mailbox.has_answers.swap(false, Ordering::AcqRel) {
            return;
        }
        let answers = std::mem::take(&mut *codes.mailbox.answers.lock().unwrap_or_else(|e| e.into_inner()));
        for (asker, ranking) in answers {
            let Some(codes) = &mut self.codes else { return };
            codes.awaited -= 1;
            let slot = &self.slots[asker.slot as usize];
            if !slot.is_active || slot.generation != asker.generation {
                continue;
            }
            let view = seen(&self.view, slot.snapshot.as_ref());
            let ranking = ranking.or_else(|failure| match slot.scratch.code_job(&view) {
                Some(job) => codes.scorer.rank_here(&job, &mut codes.scratch),
                None => Err(failure),
            });
            let result = ranking.map_or(ReadResult::Lost(Loss::Failed), ReadResult::Ranked);
            self.give(asker, result);
        }
    }
}
