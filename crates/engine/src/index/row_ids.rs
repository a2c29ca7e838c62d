//! The rows that external ids name.

use std::ops::Range;

use stratann_storage::{Progress, Result};

use crate::base::Base;
use crate::kinds::KindIndex;
use crate::manifest::Manifest;

/// The rows of an index by their external ids.
pub(crate) enum RowIds {
    /// Ids are the numbers of the rows of the set: the internal id of each.
    Numbers(Vec<u32>),
    /// Id and internal id, ascending.
    Others(Vec<(u64, u32)>),
}

impl RowIds {
    /// Most bytes that the ids of an index take.
    pub(crate) fn bytes_max(manifest: &Manifest) -> u64 {
        manifest.rows * size_of::<(u64, u32)>() as u64
    }

    /// Whether ids are the numbers of the rows of the set.
    pub(crate) fn are_numbers(&self) -> bool {
        matches!(self, RowIds::Numbers(_))
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            RowIds::Numbers(rows) => size_of_val::<[u32]>(rows) as u64,
            RowIds::Others(pairs) => size_of_val::<[(u64, u32)]>(pairs) as u64,
        }
    }

    /// Reads the ids of all rows of an index.
    ///
    /// # Errors
    /// A disk that fails, damaged rows; an interruption.
    pub(crate) fn read(base: &Base, kind: &KindIndex, progress: &dyn Progress) -> Result<RowIds> {
        // Most sets have their rows' numbers: these need no sorting, and a third of the memory.
        match RowIds::numbers(base, kind, progress)? {
            Some(rows) => Ok(RowIds::Numbers(rows)),
            None => RowIds::others(base, kind, progress),
        }
    }

    fn numbers(base: &Base, kind: &KindIndex, progress: &dyn Progress) -> Result<Option<Vec<u32>>> {
        let mut rows = vec![u32::MAX; base.manifest.rows as usize];
        let mut are_numbers = true;
        begin(base, kind, progress);
        kind.for_each_member(base, progress, &mut |members| {
            for member in members {
                let row = usize::try_from(member.external_id).ok().and_then(|at| rows.get_mut(at));
                match row.filter(|row| **row == u32::MAX) {
                    Some(row) => *row = member.id,
                    None => are_numbers = false,
                }
            }
        })?;
        Ok(are_numbers.then_some(rows))
    }

    fn others(base: &Base, kind: &KindIndex, progress: &dyn Progress) -> Result<RowIds> {
        let mut pairs = Vec::with_capacity(base.manifest.rows as usize);
        begin(base, kind, progress);
        kind.for_each_member(base, progress, &mut |members| {
            pairs.extend(members.iter().map(|member| (member.external_id, member.id)));
        })?;
        pairs.sort_unstable();
        Ok(RowIds::Others(pairs))
    }

    /// Adds the internal ids of the rows with this id to `out`. Returns whether there are any.
    pub(crate) fn rows_of(&self, id: u64, out: &mut Vec<u32>) -> bool {
        match self {
            RowIds::Numbers(rows) => {
                let row =
                    usize::try_from(id).ok().and_then(|at| rows.get(at)).filter(|&&row| row != u32::MAX);
                out.extend(row);
                row.is_some()
            }
            RowIds::Others(pairs) => {
                let found = equal_range(pairs, id);
                out.extend(pairs[found.clone()].iter().map(|pair| pair.1));
                !found.is_empty()
            }
        }
    }
}

fn equal_range(pairs: &[(u64, u32)], id: u64) -> Range<usize> {
    let start = pairs.partition_point(|pair| pair.0 < id);
    start..start + pairs[start..].partition_point(|pair| pair.0 == id)
}

fn begin(base: &Base, kind: &KindIndex, progress: &dyn Progress) {
    let (steps, unit) = kind.scan_work(base);
    progress.stage("reading ids", steps, unit);
}
