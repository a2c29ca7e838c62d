//! How a query finds the rows of a sieve in inverted lists: in the nearest lists that have some, or in all of them.

use std::ops::Range;

use stratann_core::kinds::hybrid_ivf::MAX_PROBES;
use stratann_core::sieve::Sieve;

use super::answers::SievedQuery;
use crate::sieve_ways::{PriceUnit, SievePrices, SieveWay};

/// Bytes of a list in the state and the scratch of a query, which may come to visit all of them.
pub(crate) const LIST_BYTES: u64 = 40;

/// Lists of which a query visits some, or all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SievedLists {
    /// Lists that a search would visit.
    wanted: u32,
    /// Lists with a row of the sieve.
    with_rows: u32,
    /// Lists whose visit costs as much as to compare the codes of all rows of the sieve, at most those with some.
    as_codes: f64,
    /// The way that is taken whatever it costs.
    only: Option<SieveWay>,
}

impl SievedLists {
    /// The lists of a query that usually visits so many.
    pub(crate) fn new(
        query: &SievedQuery<'_>,
        usual: u32,
        lists: impl Iterator<Item = Range<u32>>,
    ) -> SievedLists {
        let wanted = (f64::from(usual) * query.effort_times).ceil().min(f64::from(MAX_PROBES)) as u32;
        let with_rows = with_rows(lists, query.sieve);
        SievedLists { wanted, with_rows, as_codes: with_rows.into(), only: query.only }
    }

    /// The same, where the codes of rows are compared without a visit of their lists.
    pub(crate) fn beside_codes(self, query: &SievedQuery<'_>) -> SievedLists {
        if query.is_measured {
            return self;
        }
        let of_list = query.work.comparisons / f64::from(self.wanted.max(1));
        let as_codes = f64::from(query.sieve.count()) / of_list.max(1.0);
        SievedLists { as_codes: as_codes.min(self.as_codes), ..self }
    }

    /// The lists that a search visits; `None` where it would visit all that have a row, or cost as much as their codes.
    pub(crate) fn nprobe(&self) -> Option<u32> {
        let is_least = self.wanted < self.with_rows && f64::from(self.wanted) < self.as_codes;
        self.only.map_or(is_least, |way| way == SieveWay::Search).then_some(self.wanted.max(1))
    }

    /// Lists that a search visits, and that another way does.
    fn prices(&self) -> (Option<f64>, Option<f64>) {
        (Some(self.wanted.clamp(1, self.with_rows.max(1)).into()), Some(self.as_codes))
    }

    /// Prices of a kind that compares the codes of all rows instead.
    pub(crate) fn prices_of_codes(&self) -> SievePrices {
        let (search, codes) = self.prices();
        SievePrices { unit: PriceUnit::Lists, exact: None, codes, search }
    }

    /// Prices of a kind that compares all rows instead.
    pub(crate) fn prices_of_exact(&self) -> SievePrices {
        let (search, exact) = self.prices();
        SievePrices { unit: PriceUnit::Lists, exact, codes: None, search }
    }
}

/// Lists with a row of the sieve.
fn with_rows(lists: impl Iterator<Item = Range<u32>>, sieve: &Sieve) -> u32 {
    lists.filter(|rows| sieve.has_any(rows.clone())).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_without_a_row_are_not_counted() {
        let lists = || [0..3, 3..3, 3..7, 7..10].into_iter();
        let count = |ids: &[u32]| with_rows(lists(), &Sieve::from_sorted(10, ids).unwrap());
        assert_eq!([&[][..], &[2], &[0, 2, 3], &[0, 6, 9]].map(count), [0, 1, 2, 3]);
    }
}
