//! Ways to the rows of a sieve, their prices, and what is reported of a filter.

use serde::{Deserialize, Serialize};

/// How a query finds the rows of a sieve, by its name in reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SieveWay {
    /// All of them are read and compared.
    Exact,
    /// The codes of all are compared, and the nearest rows are read.
    Codes,
    /// The usual search, with an effort for as many more results as rows are passed over.
    Search,
}

impl SieveWay {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            SieveWay::Exact => "exact",
            SieveWay::Codes => "codes",
            SieveWay::Search => "search",
        }
    }
}

/// The unit in which a kind compares ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriceUnit {
    /// Microseconds of a usual machine.
    Us,
    /// Inverted lists to visit.
    Lists,
}

/// The expected cost of each way to the rows of a sieve. A way that the kind did not price has none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SievePrices {
    /// The unit of all of them.
    pub unit: PriceUnit,
    /// Of [`SieveWay::Exact`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exact: Option<f64>,
    /// Of [`SieveWay::Codes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<f64>,
    /// Of [`SieveWay::Search`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<f64>,
}

impl SievePrices {
    /// Each way that has a price, with it.
    pub fn all(&self) -> impl Iterator<Item = (SieveWay, f64)> {
        let ways =
            [(SieveWay::Exact, self.exact), (SieveWay::Codes, self.codes), (SieveWay::Search, self.search)];
        ways.into_iter().filter_map(|(way, price)| Some((way, price?)))
    }
}

/// A filter in a report.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilterReport {
    /// Rows that may be returned.
    pub matches: u32,
    /// Whether there are exactly so many. In memory nodes ids that no row has are counted too.
    pub matches_exact: bool,
    /// How they were found.
    pub way: SieveWay,
    /// Named ids that no row has; null where that is not known.
    pub unknown_ids: Option<usize>,
    /// Named ids that were named before.
    pub repeated_ids: usize,
    /// What the ways were compared by; absent of a kind with one way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<SievePrices>,
}
