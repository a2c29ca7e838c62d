//! Scores of centroids by products of 16-bit integers, and the choice of the smallest.

use crate::isa::{self, Isa, for_each_isa};

/// Centroids of a group, and rows that are scored at once.
pub(super) const GROUP: usize = 16;
pub(super) const TILE: usize = 8;
/// Half of a squared length that no score of a centroid reaches, with a row of any length.
pub(super) const ABSENT: i32 = i32::MAX;

/// Scores of a tile of rows for a group of centroids.
pub(super) type Scores = [[i32; GROUP]; TILE];

/// The rows, the group, components of each, and halves of squared lengths. Panics where a slice is too short. Unsafe:
/// the machine must have the instruction set.
type Tile = unsafe fn(&[i16], &[i16], usize, &[i32; GROUP]) -> Scores;

/// The form of an instruction set that this machine has.
#[derive(Clone, Copy)]
pub(super) struct Scorer(Tile);

impl Scorer {
    /// The form for [`isa::current`].
    pub(super) fn current() -> Scorer {
        Scorer::of(isa::current()).unwrap_or(Scorer(tile))
    }

    /// The form for `isa`, or `None` where this machine cannot run it.
    pub(super) fn of(isa: Isa) -> Option<Scorer> {
        let form = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => super::avx2::tile,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => super::avx512::tile,
            // The compiler vectorises it for NEON.
            _ => tile as Tile,
        };
        isa::is_available(isa).then_some(Scorer(form))
    }

    /// Half the squared length of each centroid, less its product with each row.
    #[inline]
    pub(super) fn tile(self, rows: &[i16], group: &[i16], width: usize, halves: &[i32; GROUP]) -> Scores {
        // SAFETY: `of` gives only forms that this machine can run.
        unsafe { (self.0)(rows, group, width, halves) }
    }
}

/// The definition.
fn tile(rows: &[i16], group: &[i16], width: usize, halves: &[i32; GROUP]) -> Scores {
    let mut scores = [*halves; TILE];
    for (row, scores) in rows.chunks_exact(width).zip(&mut scores) {
        for (pair, group) in row.chunks_exact(2).zip(group.chunks_exact(2 * GROUP)) {
            for (score, c) in scores.iter_mut().zip(group.chunks_exact(2)) {
                let product = |i: usize| i32::from(pair[i]) * i32::from(c[i]);
                *score = score.wrapping_sub(product(0)).wrapping_sub(product(1));
            }
        }
    }
    scores
}

for_each_isa! {
    /// The smallest score.
    pub(super) fn smallest(scores: &[i32]) -> i32 = smallest_body
}

#[inline(always)]
fn smallest_body(scores: &[i32]) -> i32 {
    scores.iter().fold(i32::MAX, |least, &score| least.min(score))
}

for_each_isa! {
    /// Appends the scores of at most `most`, with the numbers of their centroids; that of the first is `first`.
    pub(super) fn collect(scores: &[i32], first: u32, most: i32, out: &mut Vec<(i32, u32)>) = collect_body
}

#[inline(always)]
fn collect_body(scores: &[i32], first: u32, most: i32, out: &mut Vec<(i32, u32)>) {
    for (group, number) in scores.chunks_exact(GROUP).zip((first..).step_by(GROUP)) {
        if group.iter().fold(false, |any, &score| any | (score <= most)) {
            let found = group.iter().zip(number..).filter(|&(&score, _)| score <= most);
            out.extend(found.map(|(&score, c)| (score, c)));
        }
    }
}
