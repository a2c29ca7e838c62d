//! Adjacency lists and vectors in memory: conversion of blocks, and what of it fits a budget.
//!
//! All of it is in memory, or lists alone where they take little of the budget: a walk then reads candidates, all at
//! once. Otherwise a cache of whole blocks saves more reads.

use stratann_core::exact::{ResidentRows, STEP_COMPARISONS};
use stratann_core::kinds::disk_graph::resident::{Resident, ResidentLists};
use stratann_storage::budget::Account;
use stratann_storage::tier::in_huge_pages;
use stratann_storage::{Progress, Result};

use crate::base::Base;
use crate::kinds::blocks;
use crate::manifest::Manifest;

/// Lists without vectors take up to this part of the budget: one in so many bytes.
const LISTS_SHARE: u64 = 8;
/// Longest lists for which memory is set aside at once.
const DEGREE_MAX: u64 = 256;

/// Most bytes of all parts of an index; `None` of codes in blocks, and of a partition.
pub(crate) fn bytes_max(manifest: &Manifest) -> Option<u64> {
    let degree = manifest.build.get("degree")?.as_u64()?;
    let rows = blocks::rows_bytes_max(manifest).filter(|_| manifest.blocks.code_bytes == 0)?;
    Some(rows + ResidentLists::least_bytes(manifest.rows) + 4 * manifest.rows * degree)
}

/// The parts of the graph in memory beside codes. Searches see them once there are lists.
#[derive(Default)]
pub(crate) struct Residency {
    lists: Option<ResidentLists>,
    rows: Option<ResidentRows>,
}

impl Residency {
    /// What queries see; `None` where every block is read.
    pub(crate) fn view(&self) -> Option<Resident<'_>> {
        let lists = self.lists.as_ref()?;
        Some(Resident { lists, rows: self.rows.as_ref(), step_comparisons: STEP_COMPARISONS })
    }

    /// Vectors and ids of all nodes, where they are here.
    pub(crate) fn rows(&self) -> Option<&ResidentRows> {
        self.rows.as_ref().filter(|_| self.lists.is_some())
    }

    /// Whether a walk reads candidates alone.
    pub(crate) fn is_of_lists(&self) -> bool {
        self.lists.is_some() && self.rows.is_none()
    }

    /// Whether queries need no reads.
    pub(crate) fn is_whole(&self) -> bool {
        self.lists.is_some() && self.rows.is_some()
    }

    /// Bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        let lists = self.lists.as_ref().map_or(0, ResidentLists::bytes);
        let rows = self.rows.as_ref().map_or(0, ResidentRows::bytes);
        (lists + rows) as u64
    }

    /// Adds its parts, by component.
    pub(crate) fn account(&self, account: &mut Account) {
        if let Some(lists) = &self.lists {
            account.add("adjacency lists", lists.bytes() as u64);
        }
        if let Some(rows) = &self.rows {
            account.add("vectors", rows.bytes() as u64);
        }
    }

    /// Frees what a budget has no room for: vectors first.
    pub(crate) fn shrink(&mut self, budget_bytes: u64) {
        if self.bytes() > budget_bytes {
            self.rows = None;
        }
        if self.rows.is_none() && self.bytes() > budget_bytes / LISTS_SHARE {
            self.lists = None;
        }
    }

    /// Reads all blocks, and keeps of them what a budget has room for.
    ///
    /// # Errors
    /// A block that cannot be read or is damaged; an interruption.
    pub(crate) fn fill(base: &Base, budget_bytes: u64, progress: &dyn Progress) -> Result<Residency> {
        let nodes = base.manifest.rows as usize;
        let degree = base.manifest.build.get("degree").and_then(|degree| degree.as_u64()).unwrap_or(0);
        let row_bytes = ResidentRows::bytes_of(nodes as u64, &base.block);
        // Lists are seldom shorter than half of the degree.
        let list_bytes = ResidentLists::least_bytes(nodes as u64) + 2 * nodes as u64 * degree;
        let has_rows = row_bytes + list_bytes <= budget_bytes;
        if !has_rows && list_bytes > budget_bytes / LISTS_SHARE {
            return Ok(Residency::default());
        }
        let mut rows = has_rows.then(|| ResidentRows::with_room(nodes, &base.block));
        let mut lists = Some(ResidentLists::with_room(nodes, nodes * degree.min(DEGREE_MAX) as usize));
        lists.iter_mut().for_each(|lists| in_huge_pages(lists.room()));
        rows.iter_mut().for_each(|rows| in_huge_pages(rows.room()));
        progress.stage("loading the graph", u64::from(base.manifest.blocks.count), "blocks");
        blocks::for_each_block(base, progress, &mut |block| {
            let Some(own) = &mut lists else { return };
            let is_pushed = own.push(block).is_some();
            let list_bytes = own.bytes() as u64;
            if let Some(own) = &mut rows {
                own.push(block);
            }
            if list_bytes + row_bytes > budget_bytes {
                rows = None;
            }
            let most_bytes = if rows.is_some() { budget_bytes } else { budget_bytes / LISTS_SHARE };
            if !is_pushed || list_bytes > most_bytes {
                (lists, rows) = (None, None);
            }
        })?;
        let mut filled = Residency { lists, rows };
        if let Some(lists) = &mut filled.lists {
            lists.shrink();
        }
        filled.shrink(budget_bytes);
        Ok(filled)
    }
}
