//! `gpu-ivf`: FusionANNS (Tian et al., FAST 2025): codes of all vectors with a scorer, on a GPU or in RAM, which gets
//! ids and returns the nearest; their vectors are read in mini-batches until more of them change nothing.
//!
//! route = the navigation graph over centroids, in [`navigate`] · access = ids go to the scorer of codes
//! ([`crate::score`]) · verify = re-ranking, in [`rerank`]. The feature `lab` has searches as other systems
//! do them.

#[cfg(feature = "lab")]
pub mod baseline;
mod navigate;
mod params;
mod rerank;
#[cfg(test)]
mod tests;
mod trace;
mod view;
mod wire;

use alloc::vec::Vec;

use crate::access::{CodedQuery, ExpectedDistances, blocks};
use crate::codec::{Reader, Refused, Writer};
use crate::exact::{BlockScratch, ResidentBlock, score_block};
use crate::kinds::kind::{Carry, Kind, Ordered, StepContext};
use crate::score::{CodeJob, RANKED_BYTES, Ranked};
use crate::search::{
    Beam, Budget, Candidate, Extent, Hit, IndexSize, Loss, Outcome, QueryStats, Read, Visited,
};
use crate::view::Base;

pub use params::{MAX_BATCH, MAX_CANDIDATES, MAX_PROBES, Params, Rule};
pub use trace::{Found, Trace};
pub use view::{Resident, View};

/// The kind itself.
pub(crate) struct GpuIvf;

/// Progress of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// Lists are chosen, and candidates are ranked or awaited.
    #[default]
    Rank = 0,
    /// Candidates are re-ranked.
    Rerank = 1,
    /// Every block is read.
    Scan = 2,
}

/// A candidate whose vector was scored, and that waits for its mini-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) id: u32,
    pub(crate) distance: f32,
    pub(crate) external_id: u64,
}

/// The candidates, and how far re-ranking has come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    stage: Stage,
    /// The next block of a scan, or the next list to read.
    next: u32,
    /// The lists to visit, the nearest first.
    lists: Vec<u32>,
    /// Code distance and id, the nearest first.
    candidates: Vec<(u32, u32)>,
    /// The candidates of the present mini-batch: from the first number up to the second.
    batch: (u32, u32),
    /// Mini-batches in a row without effect.
    stable: u32,
    /// Candidates of this mini-batch and of later ones that are scored, ascending by id.
    scored: Vec<Scored>,
    /// Other vectors of blocks that were read, which become results with the mini-batch.
    others: Vec<Hit>,
}

/// The query as codes are compared with it, and reusable buffers.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    query: CodedQuery,
    expected: ExpectedDistances,
    visited: Visited,
    beam: Beam,
    nodes: Vec<u32>,
    // Keys of lists that are offered together, and lists that make room for them.
    keys: Vec<u64>,
    moved: Vec<Candidate>,
    // The job for the scorer of codes.
    ranges: Vec<(u32, u32)>,
    ids: Vec<u32>,
    keep: u32,
    exclude: u32,
    #[cfg(feature = "lab")]
    distances: Vec<u32>,
    exact: Vec<f32>,
    norms: Vec<f32>,
    before: Vec<Hit>,
    wanted: Vec<u32>,
    // Blocks in memory that were asked for, and the candidate that asked.
    round: Vec<(u32, u32)>,
    here: Vec<u32>,
    blocks: BlockScratch,
    trace: Option<Trace>,
}

impl Scratch {
    /// Keeps a trace of the query from now on.
    pub fn trace(&mut self) {
        self.trace = Some(Trace::default());
    }

    /// Trace of the query since it is kept; `None` when none is.
    pub fn traced(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }
}

fn code_job(scratch: &Scratch) -> CodeJob<'_> {
    CodeJob {
        coded: &scratch.query.coded,
        ranges: &scratch.ranges,
        ids: &scratch.ids,
        keep: scratch.keep,
        exclude: scratch.exclude,
    }
}

impl Kind for GpuIvf {
    type View<'a> = View<'a>;
    type Params = Params;
    type State = State;
    type Scratch = Scratch;

    fn is_valid(params: &Params, k: u32) -> bool {
        params.is_valid(k)
    }

    fn reset(state: &mut State, params: &Params, _: u32) {
        state.stage = if params.exact { Stage::Scan } else { Stage::Rank };
        state.next = 0;
        state.lists.clear();
        state.candidates.clear();
        state.batch = (0, 0);
        state.stable = 0;
        state.scored.clear();
        state.others.clear();
    }

    fn budget(view: &View<'_>) -> Budget {
        let usual = Budget::default();
        Budget { hops: usual.hops.max(view.blocks), reads: usual.reads.max(view.blocks), ..usual }
    }

    fn prepare(base: &Base<'_>, view: &View<'_>, query: &[u8], scratch: &mut Scratch) {
        scratch.query.set(base, view.coder, query);
        scratch.expected = ExpectedDistances::new(base, view.coder, view.code_error, view.vector_norm);
    }

    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>) {
        let is_new = !cx.q.started;
        cx.q.started = true;
        cx.take_in(arrived, |cx, pending, bytes| match cx.own.stage {
            Stage::Scan => {
                let block = crate::format::block::Block::open(cx.view.block, bytes).ok()?;
                score_block(cx.q, cx.exact, cx.base.sieve, &mut cx.scratch.blocks, &block);
                Some(())
            }
            #[cfg(feature = "lab")]
            Stage::Rank => baseline::posting::take(cx, bytes),
            // Candidates are no read.
            #[cfg(not(feature = "lab"))]
            Stage::Rank => None,
            Stage::Rerank => rerank::take(cx, pending, bytes),
        });
        if cx.q.outcome == Outcome::Running {
            choose(cx, is_new);
        }
    }

    fn take_ranked(cx: &mut StepContext<'_, Self>, ranked: Option<Ranked<'_>>) {
        let Some(ranked) = ranked else {
            return cx.q.finish(Outcome::Lost { unit: 0, at: Extent::default(), loss: Loss::Failed });
        };
        cx.q.stats.code_comparisons += ranked.distinct;
        cx.q.stats.duplicates = cx.q.stats.duplicates.saturating_sub(ranked.distinct);
        cx.q.stats.gpu_bytes += RANKED_BYTES * ranked.nearest.len() as u64;
        let known = ranked.nearest.iter().filter(|candidate| candidate.1 < cx.base.nodes);
        cx.own.candidates.extend(known.take(cx.params.candidates as usize));
        cx.own.stage = Stage::Rerank;
    }

    fn code_job<'s>(_: &View<'_>, scratch: &'s Scratch) -> Option<CodeJob<'s>> {
        Some(code_job(scratch))
    }

    fn codes<'v>(view: &Self::View<'v>) -> (&'v [u8], u32) {
        (view.codes, view.codes_from)
    }

    fn check_read(_: &Base<'_>, view: &View<'_>, read: &Read, bytes: &[u8]) -> bool {
        view.check_read(read, bytes)
    }

    fn read_counter<'s>(stats: &'s mut QueryStats, read: &Read) -> Option<&'s mut u64> {
        let is_record = read.at.store == view::BLOCKS;
        #[cfg(feature = "lab")]
        let is_record = is_record || read.at.store == baseline::ROWS;
        is_record.then_some(&mut stats.record_reads)
    }

    fn size(base: &Base<'_>, view: &View<'_>) -> IndexSize {
        IndexSize { nodes: base.nodes, units: view.blocks, clusters: view.lists.count() }
    }

    fn fits(state: &State, size: &IndexSize) -> bool {
        wire::fits(state, size)
    }

    fn encode_params(params: &Params, _: u32, w: &mut Writer<'_>) {
        params.encode(w);
    }

    fn decode_params(r: &mut Reader<'_>) -> Result<Params, Refused> {
        Params::decode(r)
    }

    fn encode(state: &State, _: (Carry, u32), w: &mut Writer<'_>, _: &mut Vec<Candidate>) {
        wire::encode(state, w);
    }

    fn decode(state: &mut State, params: &Params, k: u32, r: &mut Reader<'_>) -> Result<(), Refused> {
        wire::decode(state, params, k, r)
    }

    fn memory_bytes(state: &State) -> usize {
        4 * state.lists.capacity()
            + size_of::<(u32, u32)>() * state.candidates.capacity()
            + size_of::<Scored>() * state.scored.capacity()
            + size_of::<Hit>() * state.others.capacity()
    }
}

/// Decides what to do next, after all that arrived was taken in.
fn choose(cx: &mut StepContext<'_, GpuIvf>, is_new: bool) {
    // Left by a query that had no budget for a whole round.
    cx.scratch.round.clear();
    let chosen = match cx.own.stage {
        Stage::Scan => scan(cx),
        Stage::Rank => rank(cx, is_new),
        Stage::Rerank => rerank::choose(cx),
    };
    match chosen {
        Some(Turn::Ends) if cx.q.outcome == Outcome::Running => cx.end_round(&[]),
        Some(_) => {}
        None => cx.q.finish(Outcome::OutOfBudget),
    }
}

/// How a step goes on where the budget allows it.
enum Turn {
    /// Reads that were asked for are awaited; without any the query has ended.
    Ends,
    /// Others have their turns first: what the query needs is in memory.
    Yields,
}

/// Chooses lists, and asks for their nearest members once.
fn rank(cx: &mut StepContext<'_, GpuIvf>, is_new: bool) -> Option<Turn> {
    if is_new {
        navigate::rank_lists(cx);
    }
    #[cfg(feature = "lab")]
    if cx.params.compared.source != baseline::Source::Codes {
        return baseline::posting::choose(cx);
    }
    if is_new {
        navigate::ask(cx)?;
    }
    Some(Turn::Ends)
}

/// Keeps `width` reads under way until every block has been asked for. Of blocks in memory, as many are a round.
fn scan(cx: &mut StepContext<'_, GpuIvf>) -> Option<Turn> {
    let until = cx.q.stats.full_comparisons.saturating_add(step_comparisons(cx));
    loop {
        while asked(cx) < cx.q.width as usize {
            cx.own.next = cx.next_block(cx.view.map, cx.own.next);
            if cx.own.next >= cx.view.blocks {
                break;
            }
            if cx.q.budget.hops == 0 {
                return None;
            }
            ask(cx, (blocks::extent(cx.view.block, cx.own.next), cx.own.next), 0)?;
            cx.own.next += 1;
        }
        let is_used = use_round(cx, |cx, _, block| {
            score_block(cx.q, cx.exact, cx.base.sieve, &mut cx.scratch.blocks, block);
        });
        if !is_used {
            return Some(Turn::Ends);
        }
        if cx.q.stats.full_comparisons >= until {
            return Some(Turn::Yields);
        }
    }
}

fn step_comparisons(cx: &StepContext<'_, GpuIvf>) -> u64 {
    cx.view.resident.map_or(0, |resident| resident.step_comparisons)
}

/// Blocks that were asked for and are not used yet.
fn asked(cx: &StepContext<'_, GpuIvf>) -> usize {
    cx.q.io.pending.len() + cx.scratch.round.len()
}

/// Asks for a block for a candidate, in memory or by a read. A block in memory counts for the budget as a read does.
/// `None` when the budget allows no more. While reads are under way, others are read as well.
fn ask(cx: &mut StepContext<'_, GpuIvf>, (at, block): (Extent, u32), asker: u32) -> Option<()> {
    if !cx.q.io.pending.is_empty() || !cx.view.is_in_memory() {
        return cx.fetch(at, block, asker.into()).map(|_| ());
    }
    cx.q.budget.reads = cx.q.budget.reads.checked_sub(1)?;
    cx.scratch.round.push((block, asker));
    Some(())
}

/// Uses the blocks in memory that were asked for, in that order, which is a round as reads are. Returns whether there
/// were any.
fn use_round<'a>(
    cx: &mut StepContext<'a, GpuIvf>,
    mut use_block: impl FnMut(&mut StepContext<'a, GpuIvf>, u32, &ResidentBlock<'a>),
) -> bool {
    if cx.scratch.round.is_empty() {
        return false;
    }
    cx.q.count_hop();
    let mut round = core::mem::take(&mut cx.scratch.round);
    for (block, asker) in round.drain(..) {
        if let Some(block) = cx.view.resident_block(block) {
            use_block(cx, asker, &block);
        }
    }
    cx.scratch.round = round;
    true
}
