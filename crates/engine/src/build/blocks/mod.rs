//! The file of blocks: where rows go, and what blocks hold. Kinds without a graph leave its part out.

pub(crate) mod code_file;
pub(crate) mod coded;
pub(crate) mod graph_file;
pub(crate) mod layout;
pub(crate) mod placement;
pub(crate) mod write;
