//! Sums of strips in registers of floats, of any width.

/// Makes the form of an instruction set, which has `Floats`, a register of `WIDTH` floats, and on them `load`, `splat`,
/// `plus`, `less`, `fused` (a sum and a product), `fused_less` (a sum less a product) and `add_units`.
macro_rules! in_registers {
    ($feature:literal) => {
        use crate::columns::strips::{FOUR, FourGroups, Order, STRIP};
        use crate::columns::{Sums, Term};
        use crate::distance::unroll;

        /// A register for each query.
        type Four = [Floats; FOUR];

        /// Part of a strip, as wide as a register, and four queries.
        #[derive(Clone, Copy)]
        struct Part {
            queries: [*const f32; FOUR],
            lanes: *const f32,
            width: usize,
        }

        #[inline]
        #[target_feature(enable = $feature)]
        fn both(a: Four, b: Four) -> Four {
            let mut sums = a;
            unroll!(q < FOUR, {
                sums[q] = plus(a[q], b[q]);
            });
            sums
        }

        /// The terms of component `first` and of each that lies `STEP` behind the last one, one after another.
        ///
        /// # Safety
        /// Queries must have as many components as the width says, and the strip as well.
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn terms<const SQUARE: bool, const STEP: usize>(part: &Part, first: usize) -> Four {
            let mut sums = [splat(0.0); FOUR];
            let mut c = first;
            while c < part.width {
                // SAFETY: the strip has 16 floats for component `c`.
                let x = unsafe { load(part.lanes.add(c * STRIP)) };
                unroll!(q < FOUR, {
                    // SAFETY: the query has component `c`.
                    let y = splat(unsafe { *part.queries[q].add(c) });
                    sums[q] = if SQUARE {
                        let apart = less(y, x);
                        fused(apart, apart, sums[q])
                    } else {
                        fused_less(y, x, sums[q])
                    };
                });
                c += STEP;
            }
            sums
        }

        /// The sums `i` and `i + 8` of the 16 that are folded.
        ///
        /// # Safety
        /// As [`terms`].
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn eight<const SQUARE: bool>(part: &Part, i: usize) -> Four {
            // SAFETY: as the caller vouches.
            unsafe { both(terms::<SQUARE, STRIP>(part, i), terms::<SQUARE, STRIP>(part, i + 8)) }
        }

        /// These two of the eight that are left then, `i` and `i + 4`, and then of four, `i` and `i + 2`.
        ///
        /// # Safety
        /// As [`terms`].
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn two<const SQUARE: bool>(part: &Part, i: usize) -> Four {
            // SAFETY: as the caller vouches.
            unsafe {
                let four = both(eight::<SQUARE>(part, i), eight::<SQUARE>(part, i + 4));
                both(four, both(eight::<SQUARE>(part, i + 2), eight::<SQUARE>(part, i + 6)))
            }
        }

        #[inline]
        #[target_feature(enable = $feature)]
        fn strips<const SQUARE: bool, const ROWS: bool>(
            groups: &FourGroups<'_>,
            strips: &[f32],
            sums: &mut [Sums; FOUR],
        ) {
            let width = groups.queries[0].len();
            let mut queries = [groups.queries[0].as_ptr(); FOUR];
            unroll!(q < FOUR, {
                queries[q] = groups.queries[q][..width].as_ptr();
            });
            for (number, strip) in strips.chunks_exact((STRIP * width).max(1)).enumerate() {
                for first in (0..STRIP).step_by(WIDTH) {
                    let part = Part { queries, lanes: strip[first..].as_ptr(), width };
                    // SAFETY: queries and strip have `width` components, and WIDTH lanes of the strip follow `first`.
                    let found = unsafe {
                        if ROWS {
                            both(two::<SQUARE>(&part, 0), two::<SQUARE>(&part, 1))
                        } else {
                            terms::<SQUARE, 1>(&part, 0)
                        }
                    };
                    unroll!(q < FOUR, {
                        let sums = &mut sums[q][number * STRIP + first..][..WIDTH];
                        // SAFETY: there are WIDTH sums.
                        unsafe { add_units(found[q], groups.scales[q], sums.as_mut_ptr()) };
                    });
                }
            }
        }

        /// As [`add_strips`](super::add_strips).
        #[target_feature(enable = $feature)]
        pub(super) fn add(groups: &FourGroups<'_>, all: &[f32], sums: &mut [Sums; FOUR]) {
            match (groups.term, groups.order) {
                (Term::Square, Order::Rows) => strips::<true, true>(groups, all, sums),
                (Term::Square, Order::Columns) => strips::<true, false>(groups, all, sums),
                (Term::MinusProduct, Order::Rows) => strips::<false, true>(groups, all, sums),
                (Term::MinusProduct, Order::Columns) => strips::<false, false>(groups, all, sums),
            }
        }
    };
}
pub(super) use in_registers;
