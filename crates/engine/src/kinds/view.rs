//! What shared rooms ask of a view, whatever its kind.

use stratann_core::plan::IndexView;

/// The block that holds a node; `None` where no map says so.
pub(crate) fn block_of(view: &IndexView<'_>, node: u32) -> Option<u32> {
    view.graph.map(|graph| graph.map.block_of(node))
}
