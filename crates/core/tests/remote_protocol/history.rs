//! History of requests and acknowledgements, and whether an answer of a batch is possible.

use std::collections::BTreeMap;

/// One change of an id: to a value, or deleted.
struct Change {
    value: Option<u64>,
    start: u64,
    end: u64,
}

/// All changes of all ids.
#[derive(Default)]
pub(crate) struct History {
    changes: BTreeMap<u64, Vec<Change>>,
}

impl History {
    pub(crate) fn begin(&mut self, id: u64, value: Option<u64>, now: u64) -> (u64, usize) {
        let own = self.changes.entry(id).or_default();
        own.push(Change { value, start: now, end: u64::MAX });
        (id, own.len() - 1)
    }

    pub(crate) fn acknowledge(&mut self, change: (u64, usize), now: u64) {
        self.changes.get_mut(&change.0).expect("a change that began")[change.1].end = now;
    }

    pub(crate) fn loaded(&mut self, id: u64, value: u64) {
        self.changes.entry(id).or_default().push(Change { value: Some(value), start: 0, end: 0 });
    }

    /// Panics where a batch between these times cannot have this answer. Copies are those that no tombstone deletes.
    pub(crate) fn check(&self, found: &BTreeMap<u64, Vec<u64>>, start: u64, end: u64, place: &str) {
        for id in found.keys() {
            assert!(self.changes.contains_key(id), "{place}: id {id} was never inserted");
        }
        for (id, changes) in &self.changes {
            let copies = found.get(id).map_or(&[][..], |copies| copies);
            // What was acknowledged before another change began, which was acknowledged before the batch, is over.
            let latest = changes.iter().filter(|c| c.end < start).map(|c| c.start).max().unwrap_or(0);
            let mut may = changes.iter().filter(|c| c.start < end && c.end >= latest);
            let is_possible = match copies.first() {
                Some(value) => may.any(|c| c.value == Some(*value)),
                None => may.any(|c| c.value.is_none()) || !changes.iter().any(|c| c.end < start),
            };
            let all = || {
                let all = changes.iter().map(|c| (c.value, c.start, c.end));
                all.collect::<Vec<_>>()
            };
            assert!(is_possible, "{place}: id {id} has {copies:?} in {start}..{end} after {:?}", all());
            let is_quiet = changes.iter().all(|c| c.end < start || c.start > end);
            assert!(!is_quiet || copies.len() <= 1, "{place}: id {id} is there {copies:?} after {:?}", all());
        }
    }

    /// Ids whose first insert is over: the promise that an id is new includes that nobody else uses it meanwhile.
    pub(crate) fn ids(&self) -> Vec<u64> {
        let known = self.changes.iter().filter(|(_, changes)| changes[0].end != u64::MAX);
        known.map(|(id, _)| *id).collect()
    }
}
