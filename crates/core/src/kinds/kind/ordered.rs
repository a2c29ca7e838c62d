//! The order in which a step takes what arrived.

use alloc::vec::Vec;

use crate::search::Arrival;

/// Arrivals in the order of their tags, so that the order of arrival does not matter.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ordered<'a> {
    arrivals: &'a [Arrival<'a>],
    order: &'a [u32],
}

impl<'a> Ordered<'a> {
    /// Sorts into `order`, which is reused.
    pub(crate) fn new(arrivals: &'a [Arrival<'a>], order: &'a mut Vec<u32>) -> Ordered<'a> {
        order.clear();
        order.extend(0..arrivals.len() as u32);
        order.sort_unstable_by_key(|&i| arrivals[i as usize].tag);
        Ordered { arrivals, order }
    }

    pub(super) fn iter(self) -> impl Iterator<Item = &'a Arrival<'a>> {
        self.order.iter().map(move |&i| &self.arrivals[i as usize])
    }
}
