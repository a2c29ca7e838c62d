//! `flat`: all vectors, scanned.

pub(crate) mod build;
pub(crate) mod facts;
pub mod options;

use std::ops::Range;

use stratann_core::check::Blocks;
use stratann_core::kinds::KindView;
use stratann_core::kinds::flat::{self, View};
use stratann_core::query::Params;
use stratann_storage::Result;
use stratann_storage::budget::Account;

use crate::base::Base;
use crate::curve::{Grid, Point};
use crate::findings::Verification;
use crate::kinds::answers::{Setting, SievePlan, SievedQuery};
use crate::kinds::blocks;
use crate::kinds::questions::{Kind, Members, OpenKind, SearchParams};
use crate::sieve_ways::SieveWay;

/// Queries in flight per thread: each reads every block.
pub(crate) const IN_FLIGHT: usize = 1;

/// The part of the index that queries see.
pub(crate) fn view(base: &Base) -> View<'_> {
    View { block: &base.block, blocks: base.manifest.blocks.count }
}

/// Answers of the kind, about an index that is open or not: it has its blocks alone.
pub(crate) struct Flat;

pub(crate) use self::Flat as Index;

impl Kind for Flat {
    fn params(&self, k: u32, _: u32, _: (Option<f32>, Option<f32>)) -> Params {
        Params::flat(k)
    }

    fn params_at(&self, k: u32, _: &Point, _: Option<&str>) -> Params {
        Params::flat(k)
    }

    fn verify(&self, check: &mut Verification<'_>) -> Result<()> {
        blocks::verify::check(check, |_| Ok(Flat), |flat, base| flat.checked(base))
    }
}

impl SearchParams for flat::Params {
    fn setting(&self, k: u32) -> Setting {
        Setting::of_beam(k)
    }

    fn least_scanned(&self) -> Option<usize> {
        Some(1)
    }

    /// One query is in flight on a thread, and its answer does not depend on this.
    fn usual_width(&self) -> u32 {
        8
    }
}

impl Members for Flat {
    fn member(&self, base: &Base, id: u32) -> Result<(u64, Vec<u8>)> {
        blocks::member(base, view(base).block_of(id), id)
    }
}

impl OpenKind for Flat {
    fn view<'a>(&'a self, base: &'a Base) -> KindView<'a> {
        KindView::Flat(view(base))
    }

    fn account(&self, _: &mut Account) {}

    fn in_flight(&self) -> usize {
        IN_FLIGHT
    }

    fn query_tables_bytes(&self, _: &Base, _: u64) -> u64 {
        0
    }

    fn grid(&self, _: &Base, _: u32, _: Option<&str>) -> Grid {
        Grid::default()
    }

    fn checked<'a>(&'a self, base: &'a Base) -> Option<Blocks<'a>> {
        Some(view(base).checked(base.view()))
    }

    fn reads_blocks(&self) -> bool {
        true
    }

    fn block_with(&self, base: &Base, row: u32) -> Option<(u32, Range<u32>)> {
        let block = view(base).block_of(row);
        Some((block, view(base).rows_of(block)))
    }

    fn plan_sieve(&self, _: &Base, query: &SievedQuery<'_>) -> Option<SievePlan> {
        Some(SievePlan { way: SieveWay::Exact, params: query.usual, more_bytes: 0, prices: None })
    }
}
