//! The closed sum of all kinds of index. Nothing outside of this file asks which kind an index is.
//!
//! Each kind is a room of its own and implements [`Kind`]. The macro `kinds!` makes the enums over them and their one
//! match for each operation. Shared rooms never see a kind, and no kind sees another.

mod cx;
pub mod disk_graph;
pub mod flat;
pub mod gpu_ivf;
pub mod grid_ivf;
pub mod hybrid_ivf;
mod index_view;
mod ordered;
pub mod remote_hnsw;
#[cfg(any(test, feature = "test-kind"))]
pub mod sorted;

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;

pub(crate) use self::cx::Cx;
pub use self::index_view::IndexView;
pub(crate) use self::ordered::Ordered;
use crate::codec::{Reader, Refused, Writer};
use crate::score::{CodeJob, Ranked};
use crate::search::{Budget, IndexSize, Loss, Outcome, Query, QueryStats, Read, Step, Tag, Threshold};
use crate::view::Base;

/// What a kind says of its queries.
pub(crate) trait Kind: Sized {
    /// What the index keeps in RAM.
    type View<'a>: Copy;
    /// What a query is asked to do, besides what all are.
    type Params: Copy;
    /// Plain data that travels with the query.
    type State: Default;
    /// What can be rebuilt from the query, and reusable buffers.
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
    fn step(cx: &mut Cx<'_, Self>, arrived: Ordered<'_>);

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
        _cx: &mut Cx<'_, Self>,
        _job: (Tag, u8),
        _scores: Result<&mut Reader<'_>, Loss>,
    ) -> Result<(), Refused> {
        Err(Refused::Content)
    }

    /// Uses what a scorer of codes found; `None` where nothing came.
    fn take_ranked(_cx: &mut Cx<'_, Self>, _ranked: Option<Ranked<'_>>) {}

    /// The job that a step has made for a scorer of codes; `None` of a kind that asks for none.
    fn code_job<'s>(_view: &Self::View<'_>, _scratch: &'s Self::Scratch) -> Option<CodeJob<'s>> {
        None
    }

    /// The query of the job that the first step makes for a scorer of codes, known before that step; `None` where it
    /// makes none.
    fn code_query<'s>(_params: &Self::Params, _scratch: &'s Self::Scratch) -> Option<&'s [f32]> {
        None
    }

    /// Codes in memory that a scorer of codes ranks, and the id of the first; none of a kind that asks for none.
    fn codes<'v>(_view: &Self::View<'v>) -> (&'v [u8], u32) {
        (&[], 0)
    }

    /// Whether these bytes, as many as the extent has, are what it must hold: length, place and checksum of every
    /// unit in it.
    fn verify(base: &Base<'_>, view: &Self::View<'_>, read: &Read, bytes: &[u8]) -> bool;

    /// Makes verified bytes ready for steps. Returns whether they will never change, so that a cache may keep them.
    fn settle(_view: &Self::View<'_>, _read: &Read, _bytes: &mut [u8]) -> bool {
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

    /// Appends the state.
    fn encode(
        state: &Self::State,
        carry: Carry,
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

/// What a baton says of its candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carry {
    /// Their ids and progress: the receiver computes their distances again, from the codes of all nodes.
    #[default]
    Ids,
    /// Their distances too.
    Distances,
}

/// Makes the sums over all kinds. A line is a kind's number on the wire, its variant, and its room; an attribute before
/// it holds for the kind in every sum.
macro_rules! kinds {
    ($($(#[$attr:meta])* $number:literal $variant:ident $module:ident,)*) => {
        /// What an index of one kind keeps in RAM.
        #[derive(Clone, Copy, Debug)]
        pub enum KindView<'a> {
            $($(#[$attr])* #[doc = concat!("Of `", stringify!($module), "`.")] $variant($module::View<'a>),)*
        }

        /// The parameters of one kind.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum KindParams {
            $($(#[$attr])* #[doc = concat!("Of `", stringify!($module), "`.")] $variant($module::Params),)*
        }

        /// The state of one kind.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant, reason = "slots have one size, and a step follows no pointer")]
        pub(crate) enum KindState { $($(#[$attr])* $variant($module::State),)* }

        /// The scratch memory of one kind.
        #[derive(Clone, Debug)]
        pub(crate) enum KindScratch { $($(#[$attr])* $variant($module::Scratch),)* }

        impl Default for KindState {
            fn default() -> KindState {
                KindState::Flat(flat::State::default())
            }
        }

        impl Default for KindScratch {
            fn default() -> KindScratch {
                KindScratch::Flat(flat::Scratch::default())
            }
        }

        impl<'a> KindView<'a> {
            $(
                $(#[$attr])*
                #[doc = concat!("The view of `", stringify!($module), "`; `None` for another kind.")]
                pub fn $module(&self) -> Option<&$module::View<'a>> {
                    #[allow(irrefutable_let_patterns, reason = "a sum of one kind")]
                    if let KindView::$variant(view) = self { Some(view) } else { None }
                }
            )*

            pub(crate) fn number(&self) -> u8 {
                match self { $($(#[$attr])* KindView::$variant(_) => $number,)* }
            }

            pub(crate) fn budget(&self) -> Budget {
                match self { $($(#[$attr])* KindView::$variant(view) => $module::Marker::budget(view),)* }
            }

            pub(crate) fn size(&self, base: &Base<'_>) -> IndexSize {
                match self {
                    $($(#[$attr])* KindView::$variant(view) => $module::Marker::size(base, view),)*
                }
            }

            pub(crate) fn rescores(&self) -> bool {
                match self { $($(#[$attr])* KindView::$variant(view) => $module::Marker::rescores(view),)* }
            }

            pub(crate) fn jobs_have_queries(&self) -> bool {
                match self { $($(#[$attr])* KindView::$variant(_) => $module::Marker::jobs_have_queries(),)* }
            }

            pub(crate) fn verify(&self, base: &Base<'_>, read: &Read, bytes: &[u8]) -> bool {
                match self {
                    $($(#[$attr])* KindView::$variant(view) => $module::Marker::verify(base, view, read, bytes),)*
                }
            }

            pub(crate) fn settle(&self, read: &Read, bytes: &mut [u8]) -> bool {
                match self {
                    $($(#[$attr])* KindView::$variant(view) => $module::Marker::settle(view, read, bytes),)*
                }
            }

            pub(crate) fn codes(&self) -> (&'a [u8], u32) {
                match self { $($(#[$attr])* KindView::$variant(view) => $module::Marker::codes(view),)* }
            }

            pub(crate) fn code_job<'s>(&self, scratch: &'s KindScratch) -> Option<CodeJob<'s>> {
                match (self, scratch) {
                    $($(#[$attr])* (KindView::$variant(view), KindScratch::$variant(scratch)) => {
                        $module::Marker::code_job(view, scratch)
                    })*
                    #[allow(unreachable_patterns, reason = "a sum of one kind")]
                    _ => None,
                }
            }

            /// Makes scratch memory that of this kind, as it is.
            pub(crate) fn scratch(&self, scratch: &mut KindScratch) {
                match self {
                    $($(#[$attr])* KindView::$variant(_) => {
                        if !matches!(scratch, KindScratch::$variant(_)) {
                            *scratch = KindScratch::$variant($module::Scratch::default());
                        }
                    })*
                }
            }

            pub(crate) fn prepare(&self, base: &Base<'_>, query: &[u8], scratch: &mut KindScratch) {
                self.scratch(scratch);
                match self {
                    $($(#[$attr])* KindView::$variant(view) => {
                        #[allow(irrefutable_let_patterns, reason = "a sum of one kind")]
                        if let KindScratch::$variant(scratch) = scratch {
                            $module::Marker::prepare(base, view, query, scratch);
                        }
                    })*
                }
            }
        }

        impl KindParams {
            $(
                $(#[$attr])*
                #[doc = concat!("The parameters of `", stringify!($module), "`; `None` for another kind.")]
                pub fn $module(&self) -> Option<&$module::Params> {
                    #[allow(irrefutable_let_patterns, reason = "a sum of one kind")]
                    if let KindParams::$variant(params) = self { Some(params) } else { None }
                }
            )*

            pub(crate) fn is_valid(&self, k: u32) -> bool {
                match self { $($(#[$attr])* KindParams::$variant(p) => $module::Marker::is_valid(p, k),)* }
            }

            pub(crate) fn code_query<'s>(&self, scratch: &'s KindScratch) -> Option<&'s [f32]> {
                match (self, scratch) {
                    $($(#[$attr])* (KindParams::$variant(params), KindScratch::$variant(scratch)) => {
                        $module::Marker::code_query(params, scratch)
                    })*
                    #[allow(unreachable_patterns, reason = "a sum of one kind")]
                    _ => None,
                }
            }

            pub(crate) fn forwards_jobs(&self) -> bool {
                match self { $($(#[$attr])* KindParams::$variant(p) => $module::Marker::forwards_jobs(p),)* }
            }

            pub(crate) fn forward_jobs(&mut self) {
                match self { $($(#[$attr])* KindParams::$variant(p) => $module::Marker::forward_jobs(p),)* }
            }

            pub(crate) fn number(&self) -> u8 {
                match self { $($(#[$attr])* KindParams::$variant(_) => $number,)* }
            }

            pub(crate) fn encode(&self, version: u32, w: &mut Writer<'_>) {
                match self {
                    $($(#[$attr])* KindParams::$variant(p) => $module::Marker::encode_params(p, version, w),)*
                }
            }

            pub(crate) fn decode(number: u8, r: &mut Reader<'_>) -> Result<KindParams, Refused> {
                match number {
                    $($(#[$attr])* $number => $module::Marker::decode_params(r).map(KindParams::$variant),)*
                    _ => Err(Refused::Kind(number)),
                }
            }
        }

        impl KindState {
            /// Empties the state for another query of the kind of `params`. Memory is kept when the kind is the same.
            pub(crate) fn reset(&mut self, params: &KindParams, k: u32) {
                match params {
                    $($(#[$attr])* KindParams::$variant(params) => {
                        if !matches!(self, KindState::$variant(_)) {
                            *self = KindState::$variant($module::State::default());
                        }
                        #[allow(irrefutable_let_patterns, reason = "a sum of one kind")]
                        if let KindState::$variant(state) = self {
                            $module::Marker::reset(state, params, k);
                        }
                    })*
                }
            }

            pub(crate) fn fits(&self, size: &IndexSize) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::Marker::fits(state, size),)* }
            }

            pub(crate) fn has_distances(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::Marker::has_distances(state),)* }
            }

            /// Makes `job`, which was reset for the same parameters, the job of this tag.
            pub(crate) fn job(&self, view: &KindView<'_>, tag: Tag, job: &mut KindState) {
                match (self, view, job) {
                    $($(#[$attr])* (
                        KindState::$variant(state),
                        KindView::$variant(view),
                        KindState::$variant(job),
                    ) => $module::Marker::job(state, view, tag, job),)*
                    #[allow(unreachable_patterns, reason = "a sum of one kind")]
                    _ => {}
                }
            }

            pub(crate) fn is_job(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::Marker::is_job(state),)* }
            }

            pub(crate) fn uses_codes(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::Marker::uses_codes(state),)* }
            }

            pub(crate) fn shares_reads(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(_) => $module::Marker::shares_reads(),)* }
            }

            pub(crate) fn takes_any_order(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(_) => $module::Marker::takes_any_order(),)* }
            }

            pub(crate) fn lower_threshold(&mut self, to: Threshold) {
                match self {
                    $($(#[$attr])* KindState::$variant(state) => $module::Marker::lower_threshold(state, to),)*
                }
            }

            pub(crate) fn encode_scores(&self, w: &mut Writer<'_>) {
                match self {
                    $($(#[$attr])* KindState::$variant(state) => $module::Marker::encode_scores(state, w),)*
                }
            }

            pub(crate) fn memory_bytes(&self) -> usize {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::Marker::memory_bytes(state),)* }
            }

            pub(crate) fn read_counter<'s>(
                &self,
                stats: &'s mut QueryStats,
                read: &Read,
            ) -> Option<&'s mut u64> {
                match self { $($(#[$attr])* KindState::$variant(_) => $module::Marker::read_counter(stats, read),)* }
            }

            pub(crate) fn encode(
                &self,
                carry: Carry,
                w: &mut Writer<'_>,
                sorted: &mut Vec<crate::search::Candidate>,
            ) {
                match self {
                    $($(#[$attr])* KindState::$variant(state) => $module::Marker::encode(state, carry, w, sorted),)*
                }
            }

            /// Reads into a state that was reset for `params`.
            pub(crate) fn decode(
                &mut self,
                params: &KindParams,
                k: u32,
                r: &mut Reader<'_>,
            ) -> Result<(), Refused> {
                match (self, params) {
                    $($(#[$attr])* (KindState::$variant(state), KindParams::$variant(params)) => {
                        $module::Marker::decode(state, params, k, r)
                    })*
                    #[allow(unreachable_patterns, reason = "a sum of one kind")]
                    _ => Err(Refused::Content),
                }
            }
        }

        /// The transition of whichever kind this is. State, view, parameters and scratch must be of one kind.
        pub(crate) fn step(
            q: &mut Query,
            own: &mut KindState,
            params: &KindParams,
            view: &IndexView<'_>,
            exact: &mut Exact,
            scratch: &mut KindScratch,
            arrived: Ordered<'_>,
        ) {
            match (own, params, &view.kind, scratch) {
                $($(#[$attr])* (
                    KindState::$variant(own),
                    KindParams::$variant(params),
                    KindView::$variant(kind),
                    KindScratch::$variant(scratch),
                ) => {
                    let mut cx = Cx { q, own, base: &view.base, view: kind, params, exact, scratch };
                    $module::Marker::step(&mut cx, arrived);
                })*
                #[allow(unreachable_patterns, reason = "a sum of one kind")]
                _ => q.finish(Outcome::WrongKind),
            }
        }
    };
}

kinds! {
    0 Flat flat,
    1 DiskGraph disk_graph,
    2 HybridIvf hybrid_ivf,
    3 GridIvf grid_ivf,
    4 GpuIvf gpu_ivf,
    5 RemoteHnsw remote_hnsw,
    #[cfg(any(test, feature = "test-kind"))]
    255 Sorted sorted,
}

/// A step never hands over while reads are pending.
pub(crate) fn decision(q: &Query) -> Step {
    match q.next {
        _ if q.outcome != Outcome::Running => Step::Done,
        Some(server) => Step::HandOver(server),
        None => Step::Wait,
    }
}
