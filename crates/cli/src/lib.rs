//! The command line as a library: one file of [`commands`] per subcommand, and what they share. It contains no search
//! logic.
//!
//! [`program`] parses and runs a command line. The program `stratann` has the commands of [`Command`]; that of the
//! laboratory adds its studies.

#![allow(missing_docs, reason = "fields of options and of documents have the names that users read")]

pub mod commands;
mod data_folder;
mod filter;
mod help;
pub mod http_client;
pub mod memory;
pub mod memory_nodes;
pub mod options;
pub mod output;
mod parameters;
mod plans;
mod point_columns;
mod point_filter;
mod points;
pub mod program;
pub mod progress;
pub mod queries;
mod truth;
mod unknown;

use stratann_storage::Error;

use crate::output::Output;

/// The commands of `stratann`.
#[derive(clap::Subcommand)]
pub enum Command {
    Build(commands::build::Args),
    Search(commands::search::Args),
    Groundtruth(commands::groundtruth::Args),
    Tune(commands::tune::Args),
    Replan(commands::replan::Args),
    Info(commands::info::Args),
    Verify(commands::verify::Args),
    Explain(commands::explain::Args),
    Bench(commands::bench::Args),
    Cluster(commands::cluster::Args),
    Collection(commands::collection::Args),
    Serve(commands::serve::Args),
    MemoryNode(commands::memory_node::Args),
    Insert(commands::update::InsertArgs),
    Delete(commands::update::DeleteArgs),
    Simulate(commands::simulate::Args),
    Doctor(commands::doctor::Args),
    Profile(commands::profile::Args),
    Completions(commands::completions::Args),
}

/// Outcome of a command: success, a failure that was reported, or the end of a command that runs until Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Success.
    Fine,
    /// A failure that was reported.
    Failed,
    /// Ctrl-C ended a command that runs until then.
    Interrupted,
}

impl Command {
    /// Runs the command. `program` makes the whole command line, for `completions`.
    ///
    /// # Errors
    /// Those of the command.
    pub fn run(self, output: Output, program: fn() -> clap::Command) -> Result<Verdict, Error> {
        match self {
            Command::Build(args) => commands::build::run(&args, output),
            Command::Search(args) => commands::search::run(&args, output),
            Command::Groundtruth(args) => commands::groundtruth::run(&args, output),
            Command::Tune(args) => commands::tune::run(&args, output),
            Command::Replan(args) => commands::replan::run(&args, output),
            Command::Info(args) => commands::info::run(&args, output),
            Command::Verify(args) => commands::verify::run(&args, output),
            Command::Explain(args) => commands::explain::run(&args, output),
            Command::Bench(args) => commands::bench::run(&args, output),
            Command::Cluster(args) => commands::cluster::run(&args, output),
            Command::Collection(args) => commands::collection::run(&args, output),
            Command::Serve(args) => commands::serve::run(&args, output),
            Command::MemoryNode(args) => commands::memory_node::run(&args, output),
            Command::Insert(args) => commands::update::insert(&args, output),
            Command::Delete(args) => commands::update::delete(&args, output),
            Command::Simulate(args) => commands::simulate::run(&args, output),
            Command::Doctor(args) => commands::doctor::run(&args, output),
            Command::Profile(args) => commands::profile::run(&args, output),
            Command::Completions(args) => commands::completions::run(&args, program()),
        }
    }
}
