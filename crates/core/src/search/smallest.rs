//! The k smallest of many numbers.

use alloc::vec::Vec;

/// The k smallest numbers offered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct KSmallest {
    pub(crate) k: usize,
    // Ascending.
    pub(crate) values: Vec<f32>,
}

impl KSmallest {
    /// Empties it and sets k.
    pub(crate) fn reset(&mut self, k: usize) {
        self.k = k;
        self.values.clear();
    }

    /// Becomes a copy of `other`, keeping the memory.
    pub(crate) fn copy(&mut self, other: &KSmallest) {
        self.k = other.k;
        self.values.clone_from(&other.values);
    }

    /// Offers a number. Returns whether it is among the k smallest so far.
    pub(crate) fn offer(&mut self, value: f32) -> bool {
        let at = if value < self.kth() {
            self.values.partition_point(|&v| v <= value)
        } else {
            return false;
        };
        if self.values.len() == self.k {
            self.values.pop();
        }
        self.values.insert(at, value);
        true
    }

    /// The k-th smallest; infinity while there are fewer.
    pub(crate) fn kth(&self) -> f32 {
        if self.k > 0 && self.values.len() == self.k { self.values[self.k - 1] } else { f32::INFINITY }
    }
}
