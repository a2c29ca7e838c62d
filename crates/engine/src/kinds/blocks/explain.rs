//! The trace of one query that reads blocks, for `explain`.

use stratann_core::format::block;
use stratann_core::kinds::IndexView;
use stratann_core::query::{
    Arrival, Arrived, Candidate, Loss, Outcome, Params, Progress, QueryState, Scratch, Step, Tag,
};
use stratann_storage::tier::Buffer;

use crate::base::Base;
use crate::exec::failure;
use crate::kinds::answers::Setting;
use crate::trace::{BlockRead, BlockRound, BlockRounds, BlockSearch, Guess, HeadWalk, Stop, Trace, traced};

/// Runs `query` on its own, and records it. Blocks are read one after another, past the cache. `block_of` gives the
/// block of a node where a graph is searched; without it all blocks are scanned. A lost block ends the trace, which
/// names it.
pub(crate) fn explain(
    base: &Base,
    (view, setting): (IndexView<'_>, Setting),
    block_of: Option<&dyn Fn(u32) -> u32>,
    query: &[u8],
    params: Params,
) -> Trace {
    let (state, scratch) = traced(&view, query, params);
    let mut tracer = Tracer { base, view, setting, block_of, state, scratch, buffers: Vec::new() };
    let mut step = tracer.state.step(&view, &mut tracer.scratch, &[]);
    let head = tracer.beam();
    let head_code_comparisons = tracer.state.stats().code_comparisons;
    let mut rounds = Vec::new();
    while step == Step::Wait {
        let (round, next) = tracer.round();
        rounds.push(round);
        step = next;
    }
    let head = if block_of.is_some() && !tracer.scans_matches() { head } else { Vec::new() };
    let stop = tracer.stop();
    let Setting { search_list, slack: stop_slack, patience, .. } = setting;
    let events = vec![
        BlockSearch { search_list, stop_slack, patience }.into(),
        HeadWalk { head, head_code_comparisons }.into(),
        BlockRounds { rounds }.into(),
        Stop { stop: stop.clone() }.into(),
    ];
    Trace::of(&tracer.state, events, stop)
}

/// Runs one query, round by round.
struct Tracer<'a> {
    base: &'a Base,
    view: IndexView<'a>,
    setting: Setting,
    block_of: Option<&'a dyn Fn(u32) -> u32>,
    state: QueryState,
    scratch: Scratch,
    buffers: Vec<(Tag, std::result::Result<Buffer, Loss>)>,
}

impl Tracer<'_> {
    fn guess(&self, rank: usize, candidate: &Candidate) -> Guess {
        Guess { node: candidate.id, rank, code_distance: self.estimate(candidate) }
    }

    /// A candidate's code distance on the scale of exact distances.
    fn estimate(&self, candidate: &Candidate) -> f32 {
        self.scratch.disk_graph().map_or(0.0, |scratch| scratch.estimate(candidate.distance))
    }

    /// The candidates; none of a scan.
    fn candidates(&self) -> &[Candidate] {
        self.state.disk_graph().map_or(&[], |state| state.beam().entries())
    }

    fn beam(&self) -> Vec<Guess> {
        self.candidates().iter().enumerate().map(|(rank, c)| self.guess(rank, c)).collect()
    }

    /// Reads what the last step asked for, and steps.
    fn round(&mut self) -> (BlockRound, Step) {
        let view = self.view;
        let wants: Vec<Tag> = self.state.fetches().map(|(tag, _)| tag).collect();
        let mut reads = Vec::new();
        for tag in wants {
            let Some(block) = self.state.read_of(tag).map(|read| read.unit()) else { continue };
            let arrived = self.base.read_block(block);
            let nodes = match &arrived {
                Ok(buffer) => block::Block::open(&self.base.block, buffer.bytes()).map_or(0, |b| b.count()),
                Err(_) => 0,
            };
            let offset = u64::from(block) * self.base.block.block_bytes as u64;
            reads.push(BlockRead { block, offset, nodes, asked_by: self.asker(block) });
            self.buffers.push((tag, arrived));
        }
        let before = *self.state.stats();
        let arrivals: Vec<Arrival<'_>> = self
            .buffers
            .iter()
            .map(|(tag, held)| Arrival {
                tag: *tag,
                what: held.as_ref().map_or_else(|loss| Arrived::Lost(*loss), |b| Arrived::Bytes(b.bytes())),
            })
            .collect();
        let step = self.state.step(&view, &mut self.scratch, &arrivals);
        self.buffers.clear();
        let (after, results) = (self.state.stats(), self.state.results());
        let round = BlockRound {
            reads,
            scored: after.full_comparisons - before.full_comparisons,
            expanded: after.expanded - before.expanded,
            code_comparisons: after.code_comparisons - before.code_comparisons,
            results: results.len(),
            kth_distance: results.get(self.state.params().k as usize - 1).map(|h| h.distance),
        };
        (round, step)
    }

    /// The best candidate that waits for `block`.
    fn asker(&self, block: u32) -> Option<Guess> {
        let block_of = self.block_of?;
        let entries = self.candidates().iter().enumerate();
        let mut waiting = entries.filter(|(_, c)| c.progress == Progress::Awaited && block_of(c.id) == block);
        waiting.next().map(|(rank, c)| self.guess(rank, c))
    }

    /// Why it ended, in words.
    fn stop(&self) -> String {
        match self.state.outcome() {
            Outcome::Running => "it still runs".into(),
            Outcome::Partial => "some candidates lie on servers that do not answer".to_string(),
            Outcome::OutOfBudget => "its allowance of reads is used up".into(),
            lost @ (Outcome::Lost { .. } | Outcome::WrongKind) => {
                failure(lost, &self.base.blocks_path).unwrap_or_else(|| "a block was lost".into())
            }
            Outcome::Complete => self.end_of_search(),
        }
    }

    /// Whether the query goes through the rows of its filter without a walk.
    fn scans_matches(&self) -> bool {
        let own = self.state.params().kind.disk_graph();
        self.view.base.sieve.is_some() && own.is_some_and(|own| own.scan || own.sieving.code_scan)
    }

    /// Why a query with a filter ended that went through the rows that match; `None` of another.
    fn end_of_matches(&self) -> Option<String> {
        self.view.base.sieve?;
        let Some(own) = self.state.params().kind.disk_graph() else {
            return Some("every block with a row that matches has been read".into());
        };
        let gave_way = self.state.stats().gave_way > 0;
        let end = match own.sieving.code_scan || gave_way && own.sieving.to_codes && !own.scan {
            true => "the codes of all rows that match have been compared, and the nearest rows read",
            false if own.scan || gave_way => "every block with a row that matches has been read",
            false => return None,
        };
        Some(end.into())
    }

    fn end_of_search(&self) -> String {
        if let Some(end) = self.end_of_matches() {
            return end;
        }
        if self.block_of.is_none() {
            return "every block has been read".into();
        }
        let entries = self.candidates();
        match entries.iter().enumerate().find(|(_, c)| c.progress == Progress::Fresh) {
            None => "every candidate in the beam has been expanded".into(),
            Some((rank, next)) => {
                let kth = self.state.results().last().map_or(0.0, |h| h.distance);
                format!(
                    "the adaptive stop, before the candidate of rank {rank}: by its code distance ({:.6}) it lies \
                     beyond the k-th result ({kth:.6}), or {} reads in a row changed nothing",
                    self.estimate(next),
                    self.setting.patience
                )
            }
        }
    }
}
