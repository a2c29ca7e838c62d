//! One file per subcommand.

pub(crate) mod bench;
pub(crate) mod build;
pub mod cluster;
pub mod collection;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod groundtruth;
pub(crate) mod info;
pub(crate) mod memory_node;
pub(crate) mod profile;
pub(crate) mod replan;
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod tune;
pub(crate) mod update;
pub(crate) mod verify;
