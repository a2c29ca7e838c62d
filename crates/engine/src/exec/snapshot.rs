//! A part of an index that changes while it is searched.

use stratann_core::kinds::IndexView;

/// The changing part of an open index, as one query sees it from its first step to its last.
pub trait Snapshot: Send + Sync {
    /// Puts what this snapshot holds into a view of its index.
    fn apply<'a>(&'a self, view: &mut IndexView<'a>);
}
