//! An open index as the slots of a driver see it.

use std::sync::Arc;

use stratann_core::kinds::IndexView;
use stratann_core::place::Others;
use stratann_core::query::Extent;
use stratann_storage::cache::ExtentCache;
use stratann_storage::tier::FileIds;

use super::codes::CodeScorer;
use super::options::Width;
use super::scorer::Scorer;

/// An open index that queries of a driver search. Slots hold it as long as they have a query of it.
pub trait Segment: Send + Sync {
    /// The part that queries see. The driver adds which other servers answer.
    fn view(&self) -> IndexView<'_>;
    /// The cache of what was read.
    fn cache(&self) -> Option<&ExtentCache>;
    /// The numbers of its stores in the process.
    fn file_ids(&self) -> FileIds;
    /// Place of bytes of the index in their store; another one than they say where the store has a part of the index.
    /// `None` when it does not have all of them.
    fn locate(&self, at: Extent) -> Option<Extent> {
        Some(at)
    }
    /// The scorer of its codes, of a kind that has one.
    fn scorer(&self) -> Option<&dyn Scorer> {
        None
    }
}

impl<T: Segment + ?Sized> Segment for &T {
    fn view(&self) -> IndexView<'_> {
        (**self).view()
    }

    fn cache(&self) -> Option<&ExtentCache> {
        (**self).cache()
    }

    fn file_ids(&self) -> FileIds {
        (**self).file_ids()
    }

    fn locate(&self, at: Extent) -> Option<Extent> {
        (**self).locate(at)
    }

    fn scorer(&self) -> Option<&dyn Scorer> {
        (**self).scorer()
    }
}

/// A view that is read through a tier of its own, under [`FileIds::ALONE`].
pub struct Alone<'a> {
    view: IndexView<'a>,
    cache: Option<&'a ExtentCache>,
}

impl<'a> Alone<'a> {
    /// The segment of a view and its cache.
    pub fn new(view: IndexView<'a>, cache: Option<&'a ExtentCache>) -> Arc<Alone<'a>> {
        Arc::new(Alone { view, cache })
    }
}

impl Segment for Alone<'_> {
    fn view(&self) -> IndexView<'_> {
        self.view
    }

    fn cache(&self) -> Option<&ExtentCache> {
        self.cache
    }

    fn file_ids(&self) -> FileIds {
        FileIds::ALONE
    }
}

/// A segment of a driver, and what the driver keeps for it.
pub(super) struct Seat<'a> {
    pub(super) segment: Arc<dyn Segment + 'a>,
    /// Reads in one round of a query.
    pub(super) width: Width,
    // Asks its scorer; `None` where codes in memory are ranked.
    pub(super) codes: Option<CodeScorer>,
}

/// The part of a segment that its queries see while these servers answer.
pub(super) fn view_of<'s>(segment: &'s dyn Segment, others: &Others) -> IndexView<'s> {
    let mut view = segment.view();
    if let Some(here) = &mut view.base.here {
        here.others = *others;
    }
    view
}
