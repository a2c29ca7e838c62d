//! The trait that each kind implements, and the context of a step.

mod ordered;
mod step_context;

use alloc::vec::Vec;

pub(crate) use self::ordered::Ordered;
pub(crate) use self::step_context::StepContext;
use crate::codec::{Reader, Refused, Writer};
use crate::score::{CodeJob, Ranked};
use crate::search::{Budget, IndexSize, Loss, Outcome, Query, QueryStats, Read, Step, Tag, Threshold};
use crate::view::Base;

/// Decisions of a kind about its queries.
pub(crate) trait Kind: Sized {
    /// Part of the index in RAM.
    type View<'a>: Copy;
    /// Parameters of a query besides those of all kinds.
    type Params: Copy;
    /// Plain data that travels with the query.
    type State: Default;
    /// Reusable buffers, and values that can be rebuilt from the query.
    type Scratch: Default;

    /// Whether every parameter is within its limit, for `k` results.
    fn is_valid(params: &Self::Params, k: u32) -> bool;

    /// Empties the state for another query, keeping its memory.
    fn reset(state: &mut Self::State, params: &Self::Params, k: u32);

    /// The limits of a query over this index.
    fn budget(view: &Self::View<'_>) -> Budget;

    /// Prepares `scratch` for a query: `dim` components of the index's element type, as bytes.
    fn prepare(base: &Base<'_>, view: &Self::View<'_>, query: &[u8], scratch: &mut Self::Scratch);

    /// Uses what arrived and decides what to do next.
    fn step(cx: &mut StepContext<'_, Self>, arrived: Ordered<'_>);

    /// Makes what waited for a lost unit wait for another replica. Returns false where the kind has no replicas.
    fn requeue(_state: &mut Self::State, _view: &Self::View<'_>, _unit: u32) -> bool {
        false
    }

    /// Makes `job` the job of this tag, which another server scores. It was reset for the parameters of the query.
    fn job(_state: &Self::State, _view: &Self::View<'_>, _tag: Tag, _job: &mut Self::State) {}

    /// Whether arrivals may be taken one by one and in any order, without a change of the answer. Then a step does not
    /// wait for all reads, in barrier mode too, and the bytes of each are released at once.
    fn takes_any_order() -> bool {
        false
    }

    /// Whether its reads serve all queries of a batch, and are counted with the batch.
    fn shares_reads() -> bool {
        false
    }

    /// Whether jobs are forwarded from server to server before one replies.
    fn forwards_jobs(_params: &Self::Params) -> bool {
        false
    }

    /// Lets jobs with these parameters be forwarded.
    fn forward_jobs(_params: &mut Self::Params) {}

    /// Whether the state is a job: it ends with scores for the query that asked, not with an answer.
    fn is_job(_state: &Self::State) -> bool {
        false
    }

    /// Whether jobs carry what they need of their query, so that no vector goes with them.
    fn jobs_have_queries() -> bool {
        false
    }

    /// Whether the state goes on with distances of codes. Otherwise its scratch memory need not be prepared.
    fn uses_codes(_state: &Self::State) -> bool {
        true
    }

    /// Lowers the threshold of a job.
    fn lower_threshold(_state: &mut Self::State, _threshold: Threshold) {}

    /// Appends the scores of a job that has ended.
    fn encode_scores(_state: &Self::State, _w: &mut Writer<'_>) {}

    /// Uses the scores of the job of this tag from a server, or notes that they were lost.
    ///
    /// # Errors
    /// Content that no scorer writes for this job. It counts as lost then.
    fn take_scores(
        _cx: &mut StepContext<'_, Self>,
        _job: (Tag, u8),
        _scores: Result<&mut Reader<'_>, Loss>,
    ) -> Result<(), Refused> {
        Err(Refused::Content)
    }

    /// Uses what a scorer of codes found; `None` where nothing came.
    fn take_ranked(_cx: &mut StepContext<'_, Self>, _ranked: Option<Ranked<'_>>) {}

    /// The job that a step has made for a scorer of codes; `None` of a kind that asks for none.
    fn code_job<'s>(_view: &Self::View<'_>, _scratch: &'s Self::Scratch) -> Option<CodeJob<'s>> {
        None
    }

    /// Codes in memory that a scorer of codes ranks, and the id of the first; none of a kind that asks for none.
    fn codes<'v>(_view: &Self::View<'v>) -> (&'v [u8], u32) {
        (&[], 0)
    }

    /// Whether these bytes, as many as the extent has, are what it must hold: length, place and checksum of every
    /// unit in it.
    fn check_read(base: &Base<'_>, view: &Self::View<'_>, read: &Read, bytes: &[u8]) -> bool;

    /// Makes verified bytes ready for steps. Returns whether they will never change, so that a cache may keep them.
    fn mask_unwritten(_view: &Self::View<'_>, _read: &Read, _bytes: &mut [u8]) -> bool {
        true
    }

    /// The counter of reads of this purpose, if there is one besides `reads`.
    fn read_counter<'s>(_stats: &'s mut QueryStats, _read: &Read) -> Option<&'s mut u64> {
        None
    }

    /// The numbers below which all that a state names must lie.
    fn size(base: &Base<'_>, view: &Self::View<'_>) -> IndexSize;

    /// Whether a state with nothing pending can go on over an index of this size.
    fn fits(state: &Self::State, size: &IndexSize) -> bool;

    /// Whether the candidates have their distances.
    fn has_distances(_state: &Self::State) -> bool {
        true
    }

    /// Whether distances that a state leaves out can be computed with this view.
    fn rescores(_view: &Self::View<'_>) -> bool {
        true
    }

    /// Appends the parameters, for servers that read this version of states.
    fn encode_params(params: &Self::Params, version: u32, w: &mut Writer<'_>);

    /// Reads what [`Kind::encode_params`] wrote; the caller checks the limits.
    fn decode_params(r: &mut Reader<'_>) -> Result<Self::Params, Refused>;

    /// Appends the state, for servers that read this version of states.
    fn encode(
        state: &Self::State,
        carry: (Carry, u32),
        w: &mut Writer<'_>,
        sorted: &mut Vec<crate::search::Candidate>,
    );

    /// Reads what [`Kind::encode`] wrote into a state that was reset. Every count is checked before memory is taken
    /// for it.
    fn decode(
        state: &mut Self::State,
        params: &Self::Params,
        k: u32,
        r: &mut Reader<'_>,
    ) -> Result<(), Refused>;

    /// Memory beside the struct itself, bytes.
    fn memory_bytes(state: &Self::State) -> usize;
}

/// The first version of states whose readers know walks among the rows that a query may return.
pub(crate) const SEEDS_VERSION: u32 = 17;

/// Form of the candidates in a baton.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carry {
    /// Ids and progress of the candidates: the receiver computes their distances again, from the codes of all nodes.
    #[default]
    Ids,
    /// Ids, progress and distances.
    Distances,
}

/// A step never hands over while reads are pending.
pub(crate) fn decision(q: &Query) -> Step {
    match q.next {
        _ if q.outcome != Outcome::Running => Step::Done,
        Some(server) => Step::HandOver(server),
        None => Step::Wait,
    }
}
