//! The closed sum of all kinds of index. Nothing outside of this file asks which kind an index is.
//!
//! Each kind is a room of its own and implements [`Kind`]. The macro `kinds!` makes the enums over them and their one
//! match for each operation. Shared rooms never see a kind, and no kind sees another.

pub mod disk_graph;
pub mod flat;
pub mod gpu_ivf;
pub mod grid_ivf;
pub mod hybrid_ivf;
mod index_view;
pub(crate) mod kind;
pub mod remote_hnsw;
#[cfg(any(test, feature = "test-kind"))]
pub mod sorted;

use alloc::vec::Vec;

use stratann_kernel::distance::Exact;

pub use self::index_view::IndexView;
pub use self::kind::Carry;
pub(crate) use self::kind::SEEDS_VERSION;
use self::kind::{Kind, Ordered, StepContext};
use crate::codec::{Reader, Refused, Writer};
use crate::score::CodeJob;
use crate::search::{Budget, IndexSize, Outcome, Query, QueryStats, Read, Tag, Threshold};
use crate::view::Base;

/// Makes the sums over all kinds. A line is a kind's number on the wire, its variant, and its room; an attribute before
/// it holds for the kind in every sum.
macro_rules! kinds {
    ($($(#[$attr:meta])* $number:literal $variant:ident $module:ident,)*) => {
        /// The part of an index of one kind in RAM.
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
                match self { $($(#[$attr])* KindView::$variant(view) => $module::$variant::budget(view),)* }
            }

            pub(crate) fn size(&self, base: &Base<'_>) -> IndexSize {
                match self {
                    $($(#[$attr])* KindView::$variant(view) => $module::$variant::size(base, view),)*
                }
            }

            pub(crate) fn rescores(&self) -> bool {
                match self { $($(#[$attr])* KindView::$variant(view) => $module::$variant::rescores(view),)* }
            }

            pub(crate) fn jobs_have_queries(&self) -> bool {
                match self { $($(#[$attr])* KindView::$variant(_) => $module::$variant::jobs_have_queries(),)* }
            }

            pub(crate) fn check_read(&self, base: &Base<'_>, read: &Read, bytes: &[u8]) -> bool {
                match self {
                    $($(#[$attr])* KindView::$variant(view) => $module::$variant::check_read(base, view, read, bytes),)*
                }
            }

            pub(crate) fn mask_unwritten(&self, read: &Read, bytes: &mut [u8]) -> bool {
                match self {
                    $($(#[$attr])* KindView::$variant(view) => $module::$variant::mask_unwritten(view, read, bytes),)*
                }
            }

            pub(crate) fn codes(&self) -> (&'a [u8], u32) {
                match self { $($(#[$attr])* KindView::$variant(view) => $module::$variant::codes(view),)* }
            }

            pub(crate) fn code_job<'s>(&self, scratch: &'s KindScratch) -> Option<CodeJob<'s>> {
                match (self, scratch) {
                    $($(#[$attr])* (KindView::$variant(view), KindScratch::$variant(scratch)) => {
                        $module::$variant::code_job(view, scratch)
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
                            $module::$variant::prepare(base, view, query, scratch);
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
                match self { $($(#[$attr])* KindParams::$variant(p) => $module::$variant::is_valid(p, k),)* }
            }

            pub(crate) fn forwards_jobs(&self) -> bool {
                match self { $($(#[$attr])* KindParams::$variant(p) => $module::$variant::forwards_jobs(p),)* }
            }

            pub(crate) fn forward_jobs(&mut self) {
                match self { $($(#[$attr])* KindParams::$variant(p) => $module::$variant::forward_jobs(p),)* }
            }

            pub(crate) fn number(&self) -> u8 {
                match self { $($(#[$attr])* KindParams::$variant(_) => $number,)* }
            }

            pub(crate) fn encode(&self, version: u32, w: &mut Writer<'_>) {
                match self {
                    $($(#[$attr])* KindParams::$variant(p) => $module::$variant::encode_params(p, version, w),)*
                }
            }

            pub(crate) fn decode(number: u8, r: &mut Reader<'_>) -> Result<KindParams, Refused> {
                match number {
                    $($(#[$attr])* $number => $module::$variant::decode_params(r).map(KindParams::$variant),)*
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
                            $module::$variant::reset(state, params, k);
                        }
                    })*
                }
            }

            pub(crate) fn fits(&self, size: &IndexSize) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::$variant::fits(state, size),)* }
            }

            pub(crate) fn has_distances(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::$variant::has_distances(state),)* }
            }

            /// Makes `job`, which was reset for the same parameters, the job of this tag.
            pub(crate) fn job(&self, view: &KindView<'_>, tag: Tag, job: &mut KindState) {
                match (self, view, job) {
                    $($(#[$attr])* (
                        KindState::$variant(state),
                        KindView::$variant(view),
                        KindState::$variant(job),
                    ) => $module::$variant::job(state, view, tag, job),)*
                    #[allow(unreachable_patterns, reason = "a sum of one kind")]
                    _ => {}
                }
            }

            pub(crate) fn is_job(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::$variant::is_job(state),)* }
            }

            pub(crate) fn uses_codes(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::$variant::uses_codes(state),)* }
            }

            pub(crate) fn shares_reads(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(_) => $module::$variant::shares_reads(),)* }
            }

            pub(crate) fn takes_any_order(&self) -> bool {
                match self { $($(#[$attr])* KindState::$variant(_) => $module::$variant::takes_any_order(),)* }
            }

            pub(crate) fn lower_threshold(&mut self, to: Threshold) {
                match self {
                    $($(#[$attr])* KindState::$variant(state) => $module::$variant::lower_threshold(state, to),)*
                }
            }

            pub(crate) fn encode_scores(&self, w: &mut Writer<'_>) {
                match self {
                    $($(#[$attr])* KindState::$variant(state) => $module::$variant::encode_scores(state, w),)*
                }
            }

            pub(crate) fn memory_bytes(&self) -> usize {
                match self { $($(#[$attr])* KindState::$variant(state) => $module::$variant::memory_bytes(state),)* }
            }

            pub(crate) fn read_counter<'s>(
                &self,
                stats: &'s mut QueryStats,
                read: &Read,
            ) -> Option<&'s mut u64> {
                match self { $($(#[$attr])* KindState::$variant(_) => $module::$variant::read_counter(stats, read),)* }
            }

            pub(crate) fn encode(
                &self,
                carry: (Carry, u32),
                w: &mut Writer<'_>,
                sorted: &mut Vec<crate::search::Candidate>,
            ) {
                match self {
                    $($(#[$attr])* KindState::$variant(state) => $module::$variant::encode(state, carry, w, sorted),)*
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
                        $module::$variant::decode(state, params, k, r)
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
                    let mut cx = StepContext { q, own, base: &view.base, view: kind, params, exact, scratch };
                    $module::$variant::step(&mut cx, arrived);
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
