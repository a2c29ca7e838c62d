//! The file of blocks: placement of rows, and content of blocks. Kinds without a graph leave its part out.

pub(crate) mod code_file;
pub(crate) mod coded;
pub(crate) mod graph_file;
pub(crate) mod layout;
pub(crate) mod placement;
pub(crate) mod write;
