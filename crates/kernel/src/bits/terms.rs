//! The part of the distance of a query to a code that is the same for all codes of a centroid.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::query::FOUR;
use super::{BitCoder, CENTROIDS_MAX};
use crate::distance::{dot_f32, l2_f32};

/// A term that is not known yet: the bits of a NaN that no arithmetic makes.
const UNKNOWN: u32 = u32::MAX;

/// The terms of a query: 256 of them, so that any byte has one.
///
/// A term is computed when a code first asks for it. Codes of one search are near each other and have few centroids,
/// and a query that is handed over is prepared on each server.
#[derive(Debug)]
pub(super) struct Terms {
    // Bits of each. All threads compute the same ones.
    known: Box<[AtomicU32; CENTROIDS_MAX]>,
    // Those of the coder.
    centroids: Arc<[f32]>,
    // The placed query.
    placed: Vec<f32>,
    of_centre: f32,
    ip: bool,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            known: Box::new([const { AtomicU32::new(0) }; CENTROIDS_MAX]),
            centroids: Arc::default(),
            placed: Vec::new(),
            of_centre: 0.0,
            ip: false,
        }
    }
}

impl Clone for Terms {
    fn clone(&self) -> Terms {
        let known = self.known.each_ref().map(|term| AtomicU32::new(term.load(Ordering::Relaxed)));
        Terms {
            known: Box::new(known),
            centroids: self.centroids.clone(),
            placed: self.placed.clone(),
            ..*self
        }
    }
}

impl Terms {
    /// Prepares for a placed query; `of_centre` is the term of numbers without a centroid.
    pub(super) fn set(&mut self, coder: &BitCoder, placed: &[f32], of_centre: f32) {
        let count = (coder.centroids.len() / coder.layout.dim()).min(CENTROIDS_MAX);
        let (with, without) = self.known.split_at_mut(count);
        with.iter_mut().for_each(|term| *term.get_mut() = UNKNOWN);
        without.iter_mut().for_each(|term| *term.get_mut() = of_centre.to_bits());
        (self.of_centre, self.ip) = (of_centre, coder.ip);
        self.placed.clear();
        if count > 0 {
            self.placed.extend_from_slice(placed);
        }
        // The count of its owners is shared by all threads.
        if !Arc::ptr_eq(&self.centroids, &coder.centroids) {
            self.centroids = coder.centroids.clone();
        }
    }

    /// Sets the terms of all numbers, or that of codes without a number alone.
    pub(super) fn set_all(&mut self, term: f32, is_numbered: bool) {
        let count = if is_numbered { CENTROIDS_MAX } else { 1 };
        self.known[..count].iter_mut().for_each(|known| *known.get_mut() = term.to_bits());
    }

    /// The terms of four codes with these numbers.
    #[inline(always)]
    pub(super) fn of(&self, numbers: [u8; FOUR]) -> [f32; FOUR] {
        let known = numbers.map(|number| self.known[usize::from(number)].load(Ordering::Relaxed));
        // One branch for all four.
        if known.iter().fold(false, |any, &bits| any | (bits == UNKNOWN)) {
            return self.computed(numbers);
        }
        known.map(f32::from_bits)
    }

    /// The term of a number.
    pub(super) fn one(&self, number: u8) -> f32 {
        self.of([number; FOUR])[0]
    }

    #[cold]
    #[inline(never)]
    fn computed(&self, numbers: [u8; FOUR]) -> [f32; FOUR] {
        numbers.map(|number| {
            let known = &self.known[usize::from(number)];
            let bits = known.load(Ordering::Relaxed);
            if bits != UNKNOWN {
                return f32::from_bits(bits);
            }
            let dim = self.placed.len();
            let at = usize::from(number) * dim;
            // A term of the centre may look like one that is not known.
            let Some(centroid) = self.centroids.get(at..at + dim).filter(|_| dim > 0) else {
                return self.of_centre;
            };
            let centroid = bytemuck::cast_slice(centroid);
            let term = match self.ip {
                true => self.of_centre - dot_f32(&self.placed, centroid),
                false => l2_f32(&self.placed, centroid),
            };
            known.store(term.to_bits(), Ordering::Relaxed);
            term
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::{BitQuery, Layout};
    use crate::distance::{block_dot_f32, block_l2_f32};

    const DIM: usize = 40;

    fn row(seed: usize) -> Vec<f32> {
        (0..DIM).map(|i| ((seed * 31 + i * 17) % 101) as f32 / 7.0 - 5.0).collect()
    }

    /// Terms of a query, as one product of the query and all centroids gives them.
    fn expected(coder: &BitCoder, query: &[f32]) -> Vec<f32> {
        let mut placed = query.to_vec();
        let mut all = vec![0.0; CENTROIDS_MAX];
        let count = coder.centroids().len() / DIM;
        if coder.is_ip() {
            coder.rotate(&mut placed);
            let of_centre = -dot_f32(&placed, bytemuck::cast_slice(coder.centre()));
            block_dot_f32(&placed, coder.centroids(), DIM, &mut all[..count]);
            all.iter_mut().for_each(|term| *term = of_centre - *term);
        } else {
            coder.place(&mut placed);
            all.fill(dot_f32(&placed, bytemuck::cast_slice(&placed)));
            block_l2_f32(&placed, coder.centroids(), DIM, &mut all[..count]);
        }
        all
    }

    fn known(query: &BitQuery) -> usize {
        let terms = query.terms_for_test().known.iter();
        terms.filter(|term| term.load(Ordering::Relaxed) != UNKNOWN).count()
    }

    #[test]
    fn terms_have_the_bits_of_one_product_and_are_computed_when_met() {
        for (ip, count) in [(false, 9), (true, 9), (false, 0), (true, 256)] {
            let layout = Layout::even(DIM, 4, 0, true).expect("a layout");
            let centroids: Vec<f32> = (0..count).flat_map(|c| row(c + 3)).collect();
            let coder = BitCoder::new(layout, 1, &row(1), &centroids, ip);
            let mut query = BitQuery::default();
            for seed in [400, 500] {
                query.set(&coder, &row(seed), &mut Vec::new());
                assert_eq!(known(&query), CENTROIDS_MAX - count, "nothing is left of the query before");
                let mut code = vec![1; layout.code_bytes()];
                code[2 * layout.factor_bytes()] = 7;
                let distance = query.distance(&code);
                assert_eq!(known(&query), CENTROIDS_MAX - count.saturating_sub(1), "one was met");
                let of_clone: Vec<f32> = query.clone().terms().collect();
                assert_eq!(known(&query), CENTROIDS_MAX - count.saturating_sub(1));
                assert_eq!(of_clone, expected(&coder, &row(seed)));
                assert!(query.terms().eq(of_clone));
                assert_eq!((known(&query), query.distance(&code)), (CENTROIDS_MAX, distance));
            }
        }
    }
}
