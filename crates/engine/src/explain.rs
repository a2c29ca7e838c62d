//! One query, step by step: what it asked for, why, and what came of it.

use serde::Serialize;
use stratann_core::format::block;
use stratann_core::query::{
    Arrival, Arrived, Budget, Candidate, Hit, Loss, Outcome, Progress, QueryState, QueryStats, Scratch, Step,
    Tag, Want,
};

use crate::driver::{Width, failure};
use crate::index::Index;
use crate::search::SearchOptions;
use crate::tier::Buffer;
use crate::{Error, Result};

/// A node that the codes thought near.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Guess {
    /// Its number in the index.
    pub node: u32,
    /// Its place in the beam, 0 for the closest.
    pub rank: usize,
    /// Its distance by its code, on the scale of exact distances.
    pub code_distance: f32,
}

/// One block that was read.
#[derive(Clone, Debug, Serialize)]
pub struct Read {
    /// The block.
    pub block: u32,
    /// Where it begins in the file, bytes.
    pub offset: u64,
    /// Nodes in it; 0 when it was lost.
    pub nodes: usize,
    /// The candidate that asked for it; `None` in a scan.
    pub asked_by: Option<Guess>,
}

/// One round: its reads, and what they changed.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// Blocks that were asked for together.
    pub reads: Vec<Read>,
    /// Vectors compared in full.
    pub scored: u64,
    /// Nodes whose neighbours were followed.
    pub expanded: u64,
    /// Neighbours compared by their codes.
    pub code_comparisons: u64,
    /// Results so far.
    pub results: usize,
    /// Distance of the k-th result; `None` as long as there are fewer.
    pub kth_distance: Option<f32>,
}

/// The whole way of one query.
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    /// Parameters that were used.
    pub k: u32,
    /// Length of the beam.
    pub search_list: u32,
    /// Slack of the adaptive stop; `None` when it is off.
    pub stop_slack: Option<f32>,
    /// Fruitless reads in a row after which it stops; 0 when that is off.
    pub patience: u32,
    /// Candidates that the head graph gave, closest first; empty in a scan.
    pub head: Vec<Guess>,
    /// Codes compared on the way there.
    pub head_code_comparisons: u64,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Why it ended.
    pub stop: String,
    /// Whether the results are what was asked for.
    pub complete: bool,
    /// External ids, closest first.
    pub ids: Vec<u64>,
    /// Exact distances.
    pub distances: Vec<f32>,
    /// Sums over the query.
    #[serde(skip)]
    pub stats: QueryStats,
}

/// Runs `query` (one row of the index' element type) on its own, and records its way. Blocks are read one after another, past the cache.
///
/// # Errors
/// Bad options, or a query of the wrong length. A lost block ends the trace and is told there.
pub fn explain(index: &Index, query: &[u8], options: &SearchOptions) -> Result<Trace> {
    let view = index.view();
    check_length(index, query)?;
    let mut params = index.params(options)?;
    (params.approach_width, params.width) = match options.width {
        // Without a choice, the narrow rounds of a busy server: the fewest reads, and the easiest to follow.
        Width::Auto => (1, 1),
        Width::Fixed(width) => (width, width),
    };
    let mut walk = Walk {
        index,
        state: QueryState::new(params, Budget::default()),
        scratch: Scratch::default(),
        buffers: Vec::new(),
    };
    walk.scratch.prepare(&view, query);
    let mut step = walk.state.step(&view, &mut walk.scratch, &[]);
    let head = walk.beam();
    let head_code_comparisons = walk.state.stats().code_comparisons;
    let mut rounds = Vec::new();
    while step == Step::Wait {
        let (round, next) = walk.round();
        rounds.push(round);
        step = next;
    }
    Ok(Trace {
        k: params.k,
        search_list: params.search_list,
        stop_slack: Some(params.stop_slack).filter(|s| s.is_finite()),
        patience: params.patience,
        head: if view.graph.is_some() { head } else { Vec::new() },
        head_code_comparisons,
        rounds,
        stop: walk.stop(),
        complete: walk.state.outcome() == Outcome::Complete,
        ids: walk.state.results().iter().map(|h: &Hit| h.external_id).collect(),
        distances: walk.state.results().iter().map(|h| h.distance).collect(),
        stats: *walk.state.stats(),
    })
}

pub(crate) fn check_length(index: &Index, query: &[u8]) -> Result<()> {
    let wanted = index.block.vector_bytes;
    if query.len() == wanted {
        return Ok(());
    }
    Err(Error::bad_input(format!("the query has {} bytes, the index has {wanted}", query.len())))
}

struct Walk<'a> {
    index: &'a Index,
    state: QueryState,
    scratch: Scratch,
    buffers: Vec<(Tag, std::result::Result<Buffer, Loss>)>,
}

impl Walk<'_> {
    fn guess(&self, rank: usize, candidate: &Candidate) -> Guess {
        Guess { node: candidate.id, rank, code_distance: self.scratch.estimate(candidate.distance) }
    }

    fn beam(&self) -> Vec<Guess> {
        self.state.beam().entries().iter().enumerate().map(|(rank, c)| self.guess(rank, c)).collect()
    }

    /// Reads what the last step asked for, and steps.
    fn round(&mut self) -> (Round, Step) {
        let view = self.index.view();
        let wants: Vec<Want> = self.state.wants().to_vec();
        let mut reads = Vec::new();
        for Want::Fetch { tag, block, .. } in wants {
            let arrived = self.index.read_block(block);
            let nodes = match &arrived {
                Ok(buffer) => block::Block::open(&view.block, buffer.bytes()).map_or(0, |b| b.count()),
                Err(_) => 0,
            };
            let offset = u64::from(block) * view.block.block_bytes as u64;
            reads.push(Read { block, offset, nodes, asked_by: self.asker(block) });
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
        let round = Round {
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
        let map = self.index.view().graph?.map;
        let entries = self.state.beam().entries().iter().enumerate();
        let mut waiting =
            entries.filter(|(_, c)| c.progress == Progress::Awaited && map.block_of(c.id) == block);
        waiting.next().map(|(rank, c)| self.guess(rank, c))
    }

    /// Why it ended, in words.
    fn stop(&self) -> String {
        match self.state.outcome() {
            Outcome::Running => "it still runs".into(),
            Outcome::Partial => "some candidates lie on servers that do not answer".to_string(),
            Outcome::OutOfBudget => "its allowance of reads is used up".into(),
            lost @ Outcome::Lost { .. } => {
                failure(lost, &self.index.blocks_path, self.index.block.block_bytes)
                    .unwrap_or_else(|| "a block was lost".into())
            }
            Outcome::Complete => self.end_of_search(),
        }
    }

    fn end_of_search(&self) -> String {
        if self.index.graph.is_none() {
            return "every block has been read".into();
        }
        let entries = self.state.beam().entries();
        match entries.iter().enumerate().find(|(_, c)| c.progress == Progress::Fresh) {
            None => "every candidate in the beam has been expanded".into(),
            Some((rank, next)) => {
                let kth = self.state.results().last().map_or(0.0, |h| h.distance);
                format!(
                    "the adaptive stop, before the candidate of rank {rank}: by its code distance ({:.6}) it lies beyond the k-th result ({kth:.6}), or {} reads in a row changed nothing",
                    self.scratch.estimate(next.distance),
                    self.state.params().patience
                )
            }
        }
    }
}
