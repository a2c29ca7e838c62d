//! An open index as a part of a set that changes: its rows one by one, and searches among those that are left.

use std::sync::Arc;

use stratann_core::sieve::Sieve;
use stratann_kernel::Metric;
use stratann_params::IndexKind;
use stratann_storage::{Error, Progress, Result};

use super::Index;
use crate::kinds::answers::Member;
use crate::kinds::blocks;
use crate::stages::older_graph::OlderGraph;

/// A row of an open index.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its number in the index, by which sieves name it.
    pub number: u32,
    /// Its external id.
    pub id: u64,
    /// Its components, `dim` of them, little-endian.
    pub vector: &'a [u8],
}

impl<'a> Row<'a> {
    fn of(member: &'a Member<'_>) -> Row<'a> {
        Row { number: member.id, id: member.external_id, vector: member.vector }
    }
}

impl OlderGraph for Index {
    fn nodes(&self) -> Option<u64> {
        let manifest = self.manifest();
        let is_whole = manifest.kind() == Some(IndexKind::DiskGraph) && manifest.spread.is_none();
        is_whole.then_some(manifest.rows)
    }

    fn metric(&self) -> Option<Metric> {
        self.manifest().metric()
    }

    fn for_each_list(&self, progress: &dyn Progress, see: &mut dyn FnMut(u32, &[u32])) -> Result<()> {
        progress.stage("reading the graph", self.base.manifest.blocks.count.into(), "blocks");
        blocks::for_each_list(&self.base, progress, see)
    }
}

impl Index {
    /// Shows every row to `see`, in the order of the file.
    ///
    /// # Errors
    /// A disk that fails, a damaged file; an interruption.
    pub fn for_each_row(&self, progress: &dyn Progress, see: &mut (dyn FnMut(Row<'_>) + Send)) -> Result<()> {
        self.kind.for_each_member(&self.base, progress, &mut |members| {
            members.iter().for_each(|member| see(Row::of(member)));
        })
    }

    /// The vector of a row, by its number in the index.
    ///
    /// # Errors
    /// `BadInput` for a row beyond the last one; a disk that fails, a damaged file.
    pub fn vector_of(&self, row: u32) -> Result<Vec<u8>> {
        self.check_row(row)?;
        self.kind.vector(&self.base, row)
    }

    /// The external id of a row, by its number in the index.
    ///
    /// # Errors
    /// As [`Index::vector_of`].
    pub fn id_of(&self, row: u32) -> Result<u64> {
        self.check_row(row)?;
        Ok(self.kind.member(&self.base, row)?.0)
    }

    fn check_row(&self, row: u32) -> Result<()> {
        if u64::from(row) >= self.base.manifest.rows {
            return Err(Error::bad_input(format!("row {row} is not in {}", self.base.folder.display())));
        }
        Ok(())
    }

    /// Whether [`Index::vector_of`] gives the bytes that the index was built from, and not what they were turned into
    /// and back.
    pub fn keeps_vectors(&self) -> bool {
        self.kind.keeps_vectors(&self.base)
    }

    /// All rows, as a set of which some can be left out.
    pub fn all_rows(&self) -> Sieve {
        Sieve::all(self.base.manifest.rows as u32)
    }

    /// The numbers of rows by their external ids, where these are 0 to the number of rows; `None` of others.
    ///
    /// # Errors
    /// A disk that fails, a damaged file; an interruption.
    pub fn row_numbers(&self, progress: &dyn Progress) -> Result<Option<Vec<u32>>> {
        let rows = self.base.manifest.rows as usize;
        let mut numbers = vec![u32::MAX; rows];
        let mut has_others = false;
        self.for_each_row(progress, &mut |row| match usize::try_from(row.id)
            .ok()
            .and_then(|id| numbers.get_mut(id))
        {
            Some(number) => *number = row.number,
            None => has_others = true,
        })?;
        Ok((!has_others && !numbers.contains(&u32::MAX)).then_some(numbers))
    }
}

/// Rows of an open index that are left, and plans of searches among them.
#[derive(Clone, Debug)]
pub struct LeftRows {
    rows: Arc<Sieve>,
    plans: Arc<crate::kinds::live_plans::LivePlans>,
    /// Rows that were left when the plans were made.
    planned: u32,
}

/// Plans are made again where one in so many rows went since.
const PLANNED_AGAIN: u32 = 64;

impl LeftRows {
    /// These rows of an index.
    pub fn new(rows: Sieve) -> LeftRows {
        LeftRows { planned: rows.count(), rows: Arc::new(rows), plans: Arc::default() }
    }

    /// The rows.
    pub fn rows(&self) -> &Arc<Sieve> {
        &self.rows
    }

    /// The same without some more, which ascend. Plans are kept while few have gone.
    pub fn without(&self, gone: &[u32]) -> LeftRows {
        let rows = self.rows.without(gone);
        if self.planned - rows.count() > self.planned / PLANNED_AGAIN {
            return LeftRows::new(rows);
        }
        LeftRows { rows: Arc::new(rows), ..self.clone() }
    }

    pub(crate) fn plans(&self) -> &crate::kinds::live_plans::LivePlans {
        &self.plans
    }
}
