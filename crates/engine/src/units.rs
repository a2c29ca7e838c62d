//! The units of an index that servers hold as a whole: blocks of a graph, or inverted lists.

use stratann_core::PAGE;
use stratann_core::place::Placement;

/// The groups of units that stay together, of a kind whose units are not blocks of a graph.
pub(crate) struct Units {
    /// The group of each unit.
    pub(crate) group_of: Vec<u32>,
    /// Bytes of each group.
    pub(crate) bytes: Vec<u64>,
    /// Components of a point.
    pub(crate) dim: usize,
    /// The middle of each group: groups × `dim`.
    pub(crate) points: Vec<f32>,
    /// Number of queries that visited each group; empty where that is not known.
    pub(crate) visits: Vec<u32>,
}

/// The units that one server holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held<'a> {
    pub(crate) placement: &'a Placement,
    pub(crate) server: usize,
}

impl Held<'_> {
    /// Whether the server holds a unit.
    pub(crate) fn holds(&self, unit: u32) -> bool {
        self.placement.replicas(unit) >> self.server & 1 == 1
    }
}

/// A range of bytes of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitRange {
    pub(crate) unit: u32,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// The ranges of all units in the data file of a whole index. Together they are the whole file: bytes between two
/// units belong to the one before them.
#[derive(Clone, Debug)]
pub(crate) enum UnitRanges {
    /// Units of equal length, one after another.
    Equal { count: u32, bytes: u64 },
    /// The start of each range and its unit, ascending, and the end of the last. A unit may have several ranges.
    Sorted { starts: Vec<(u64, u64)>, end: u64 },
}

impl UnitRanges {
    /// Ranges with these starts and units, in any order.
    pub(crate) fn sorted(mut starts: Vec<(u64, u64)>, end: u64) -> UnitRanges {
        starts.sort_unstable();
        UnitRanges::Sorted { starts, end }
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        match self {
            UnitRanges::Equal { count, .. } => *count as usize,
            UnitRanges::Sorted { starts, .. } => starts.len(),
        }
    }

    /// The range with this number, in the order of the file.
    pub(crate) fn get(&self, number: usize) -> UnitRange {
        match self {
            UnitRanges::Equal { bytes, .. } => {
                UnitRange { unit: number as u32, start: number as u64 * bytes, bytes: *bytes }
            }
            UnitRanges::Sorted { starts, end } => {
                let (start, unit) = starts[number];
                let next = starts.get(number + 1).map_or(*end, |next| next.0);
                UnitRange { unit: unit as u32, start, bytes: next.saturating_sub(start) }
            }
        }
    }

    /// All ranges, in the order of the file.
    pub(crate) fn iter(&self) -> impl Iterator<Item = UnitRange> + '_ {
        (0..self.len()).map(|number| self.get(number))
    }
}

/// Places of the ranges that a server holds in its file, which has them one after another in the order of the file of
/// the whole index, and then zeros up to a whole page.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldRanges {
    /// Start of each run of bytes in the whole file, and in that of the server; ascending.
    runs: Vec<(u64, u64)>,
    /// Bytes of all runs.
    bytes: u64,
}

impl HeldRanges {
    /// The ranges of the units that `held` names.
    pub(crate) fn new(ranges: &UnitRanges, held: Held<'_>) -> HeldRanges {
        let (mut runs, mut bytes, mut run_end) = (Vec::new(), 0, None);
        for range in ranges.iter().filter(|range| held.holds(range.unit) && range.bytes > 0) {
            if run_end != Some(range.start) {
                runs.push((range.start, bytes));
            }
            bytes += range.bytes;
            run_end = Some(range.start + range.bytes);
        }
        runs.shrink_to_fit();
        HeldRanges { runs, bytes }
    }

    /// Offset in the server's file of `bytes` bytes from `offset` of the whole file on; `None` when it does not hold
    /// all of them.
    pub(crate) fn locate(&self, offset: u64, bytes: u64) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.0 <= offset);
        let (start, stored) = *self.runs.get(after.checked_sub(1)?)?;
        let end = self.runs.get(after).map_or(self.bytes, |next| next.1);
        let at = stored + (offset - start);
        (at.checked_add(bytes)? <= end).then_some(at)
    }

    /// Bytes of the server's file: whole pages.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.bytes.next_multiple_of(PAGE as u64)
    }

    /// Bytes in RAM.
    pub(crate) fn memory_bytes(&self) -> u64 {
        ranges_bytes(self.runs.capacity() as u64)
    }
}

/// Bytes in RAM of so many ranges.
pub(crate) const fn ranges_bytes(ranges: u64) -> u64 {
    ranges * size_of::<(u64, u64)>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_agree_with_a_plain_table(
            lengths in prop::collection::vec((0u64..40, 0u32..12), 1..60),
            replicas in prop::collection::vec(1u64..8, 12),
            reads in prop::collection::vec((0u64..900, 0u64..50), 40),
        ) {
            let placement = Placement::new(3, replicas).unwrap();
            let (mut starts, mut end) = (Vec::new(), 0);
            for (bytes, unit) in lengths {
                starts.push((end, u64::from(unit)));
                end += bytes.max(1);
            }
            starts.reverse();
            let ranges = UnitRanges::sorted(starts, end);
            for server in 0..3 {
                let held = Held { placement: &placement, server };
                // For each byte of the whole file its place in that of the server.
                let mut plain: Vec<Option<u64>> = Vec::new();
                let mut stored = 0;
                for range in ranges.iter() {
                    for _ in 0..range.bytes {
                        let here = held.holds(range.unit);
                        plain.push(here.then_some(stored));
                        stored += u64::from(here);
                    }
                }
                let table = HeldRanges::new(&ranges, held);
                prop_assert_eq!((table.bytes, table.file_bytes() / 4096), (stored, stored.div_ceil(4096)));
                for &(offset, bytes) in &reads {
                    let wanted = plain.get(offset as usize..(offset + bytes.max(1)) as usize);
                    let first = wanted.filter(|w| w.iter().all(Option::is_some)).and_then(|w| w[0]);
                    prop_assert_eq!(table.locate(offset, bytes.max(1)), first);
                }
            }
        }

        #[test]
        fn equal_units_are_ranges_too(replicas in prop::collection::vec(1u64..8, 1..90)) {
            let count = replicas.len() as u32;
            let placement = Placement::new(3, replicas).unwrap();
            let held = Held { placement: &placement, server: 1 };
            let table = HeldRanges::new(&UnitRanges::Equal { count, bytes: 10 }, held);
            let mut stored = 0;
            for unit in 0..count {
                let here = held.holds(unit).then_some(stored);
                prop_assert_eq!(table.locate(u64::from(unit) * 10, 10), here);
                stored += if here.is_some() { 10 } else { 0 };
            }
            prop_assert_eq!((table.bytes, table.file_bytes() / 4096), (stored, stored.div_ceil(4096)));
        }
    }
}
