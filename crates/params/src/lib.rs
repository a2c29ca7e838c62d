//! The table of parameters: every option of builds, open indexes, searches, partitions, servers, simulations,
//! measurements, changes and collections is declared once, here. What is no parameter of the engine is declared with
//! its command: positional arguments, the file to write, addresses and keys of nodes.
//!
//! One row of [`params!`](macros) is a field of a typed struct, an option of the command line, a field of a request, a
//! keyword in Python, a line of the reference. The engine reads the structs. Surfaces walk the rows ([`GROUPS`]),
//! collect what a user gave in a [`Given`], and fill the structs from it; a row that a kind or a place does not have is
//! refused there, with one text for all surfaces.
//!
//! | to add | edit |
//! |---|---|
//! | a parameter of a group | a row in the module of its stage, such as [`build`] or [`search`], and the code that reads the field |
//! | a choice of a parameter | a variant in [`choices`] |
//! | a group | the struct, and its line in [`GROUPS`] |
//! | an error for a parameter that was removed | a row of [`RETIRED`] |

#[macro_use]
mod macros;
pub mod build;
pub mod change;
pub mod choices;
pub mod collection;
mod given;
pub mod measure;
pub mod open;
mod param;
pub mod partition;
mod retired;
pub mod search;
pub mod serve;
pub mod simulate;
mod value;

pub use choices::IndexKind;
pub use given::{Given, Scope, Wrong, similar, unknown_among};
pub use param::{
    Fixed, Group, GroupInfo, Key, Level, Param, Place, Shorthand, Stage, Surface, list_of, named, rows,
};
pub use retired::{RETIRED, Retired, retired};
pub use value::{AutoOr, Choice, Parameter, Type, Unit, Value, parse_size};

/// Every group of the table, in the order of the reference.
pub static GROUPS: &[GroupInfo] = &[
    GroupInfo::of::<build::CommonOptions>(),
    GroupInfo::of::<build::GraphOptions>(),
    GroupInfo::of::<build::ListOptions>(),
    GroupInfo::of::<build::GridOptions>(),
    GroupInfo::of::<build::GpuOptions>(),
    GroupInfo::of::<build::RemoteOptions>(),
    GroupInfo::of::<open::OpenSettings>(),
    GroupInfo::of::<open::LearnSettings>(),
    GroupInfo::of::<open::ScorerSettings>(),
    GroupInfo::of::<search::SearchSettings>(),
    GroupInfo::of::<search::ClientSettings>(),
    GroupInfo::of::<search::GraphSwitches>(),
    GroupInfo::of::<search::ListSwitches>(),
    GroupInfo::of::<search::GridSwitches>(),
    GroupInfo::of::<search::GpuSwitches>(),
    GroupInfo::of::<search::RemoteSwitches>(),
    GroupInfo::of::<search::BatchSettings>(),
    GroupInfo::of::<partition::PartitionSettings>(),
    GroupInfo::of::<partition::PlacementSettings>(),
    GroupInfo::of::<partition::TrafficSettings>(),
    GroupInfo::of::<partition::SeparateSettings>(),
    GroupInfo::of::<partition::DivisionSettings>(),
    GroupInfo::of::<serve::ServeSettings>(),
    GroupInfo::of::<serve::CapSettings>(),
    GroupInfo::of::<serve::PeerSettings>(),
    GroupInfo::of::<serve::NodeSettings>(),
    GroupInfo::of::<simulate::RunSettings>(),
    GroupInfo::of::<simulate::SimulateSettings>(),
    GroupInfo::of::<simulate::ScatterSettings>(),
    GroupInfo::of::<simulate::ServerCosts>(),
    GroupInfo::of::<simulate::NodesSettings>(),
    GroupInfo::of::<measure::SweepSettings>(),
    GroupInfo::of::<measure::OpenLoopSettings>(),
    GroupInfo::of::<measure::TuneSettings>(),
    GroupInfo::of::<measure::TruthSettings>(),
    GroupInfo::of::<measure::ExplainSettings>(),
    GroupInfo::of::<measure::DoctorSettings>(),
    GroupInfo::of::<measure::ProfileSettings>(),
    GroupInfo::of::<change::UpdateSettings>(),
    GroupInfo::of::<change::ReplanSettings>(),
    GroupInfo::of::<collection::CollectionSettings>(),
    GroupInfo::of::<collection::CreateSettings>(),
    GroupInfo::of::<collection::LimitSettings>(),
    GroupInfo::of::<collection::UpsertSettings>(),
    GroupInfo::of::<collection::DeleteSettings>(),
];
