//! Decides open rows by their payloads.

use std::collections::BTreeSet;

use roaring::RoaringBitmap;
use stratann_storage::Result;

use super::evaluate::{Evaluated, Known, RowFacts};
use crate::PointFacts;
use crate::id::IdValue;
use crate::predicate::Predicate;
use crate::rows::PayloadRows;
use crate::value::Payload;

impl Evaluated {
    /// The rows that match in a segment without payloads.
    ///
    /// # Errors
    /// What `facts` returns.
    pub fn without_payloads(rows: u32, predicate: &Predicate, facts: &dyn RowFacts) -> Result<Evaluated> {
        let mut known = Known::default();
        known.ask(predicate.node(), facts)?;
        // Rows that no condition names are alike, unless only some have a vector.
        let some_have = |own: &RoaringBitmap| !own.is_empty() && own.len() < rows.into();
        let mut named: RoaringBitmap = known.ids.values().copied().collect();
        if known.vectors.values().any(some_have) {
            named.insert_range(0..rows);
        }
        let nothing = Payload::new();
        let matches = |row: u32| predicate.matches(&nothing, &FactsOfRow { row, known: &known });
        let other = (0..rows).find(|row| !named.contains(*row));
        let mut sure = RoaringBitmap::new();
        if other.is_some_and(&matches) {
            sure.insert_range(0..rows);
        }
        for row in named.iter().filter(|row| *row < rows) {
            if matches(row) {
                sure.insert(row);
            } else {
                sure.remove(row);
            }
        }
        Ok(Evaluated { rows, sure, open: RoaringBitmap::new(), unindexed: BTreeSet::new(), known })
    }

    /// The rows that match: the sure ones, and those of the open ones whose payload does. `predicate` is the one that
    /// was evaluated.
    ///
    /// Rows that no search returns, as dead ones, may be taken out of `sure` and `open` before, which spares reads.
    ///
    /// # Errors
    /// `Corrupt` that names file and block for a damaged one; `Io`.
    pub fn decide(self, predicate: &Predicate, payloads: &PayloadRows) -> Result<RoaringBitmap> {
        let mut matching = self.sure.clone();
        let mut left = self.open.clone();
        let mut decide = |row: u32, payload: &Payload| {
            if predicate.matches(payload, &self.facts_of(row)) {
                matching.insert(row);
            }
        };
        payloads.for_rows(&self.open, |row, payload| {
            left.remove(row);
            decide(row, &payload);
            Ok(())
        })?;
        let nothing = Payload::new();
        left.iter().for_each(|row| decide(row, &nothing));
        Ok(matching)
    }

    /// The same with newer payloads of some rows, which count in place of those of the segment's files.
    pub fn overlaid<'p>(
        mut self,
        predicate: &Predicate,
        newer: impl IntoIterator<Item = (u32, &'p Payload)>,
    ) -> Evaluated {
        for (row, payload) in newer.into_iter().filter(|(row, _)| *row < self.rows) {
            self.open.remove(row);
            if predicate.matches(payload, &self.facts_of(row)) {
                self.sure.insert(row);
            } else {
                self.sure.remove(row);
            }
        }
        self
    }

    /// What was found out about a row beside its payload, for a predicate that is decided on a payload from elsewhere.
    pub fn facts_of(&self, row: u32) -> impl PointFacts + '_ {
        FactsOfRow { row, known: &self.known }
    }
}

struct FactsOfRow<'a> {
    row: u32,
    known: &'a Known,
}

impl PointFacts for FactsOfRow<'_> {
    fn has_id(&self, id: &IdValue) -> bool {
        self.known.ids.get(id) == Some(&self.row)
    }

    fn has_vector(&self, name: &str) -> bool {
        self.known.vectors.get(name).is_some_and(|rows| rows.contains(self.row))
    }
}
