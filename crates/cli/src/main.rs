//! Command line program. One file of [`commands`] per subcommand; it contains no search logic.

mod commands;
mod gathering;
mod memory;
mod memory_nodes;
mod options;
mod output;
mod plans;
mod progress;
mod queries;
mod remote;
mod scorer;
mod techniques;
mod truth;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use stratann_engine::{Error, ErrorKind};

use crate::output::Output;

/// Vector search for collections that outgrow memory.
#[derive(Parser)]
#[command(name = "stratann", version, about, long_about = OVERVIEW, after_long_help = EXIT_CODES)]
#[command(
    subcommand_required = true,
    args_override_self = true,
    propagate_version = true,
    max_term_width = 110
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON document on stdout, and nothing else.
    #[arg(long, global = true)]
    json: bool,
    /// Print no progress and no notes on stderr, only errors.
    #[arg(long, short, global = true)]
    quiet: bool,
}

const OVERVIEW: &str = "\
Vector search for collections that outgrow memory.

An index is a folder. Vectors and a graph over them are on disk in blocks. Codes of a few bytes per vector are in RAM
and select the block to read next. Three steps:

  1. Build it. The RAM budget limits the whole build, which prints a forecast first.
       stratann build base.fbin -o base.idx --kind disk-graph --metric cosine --ram-budget 2GiB

  2. Search it. Ask for a recall; the build has measured the parameters that reach it.
       stratann search base.idx query.fbin -k 10 --recall 0.95 -o answers.ibin

  3. Check the answers against exact ones.
       stratann groundtruth base.fbin query.fbin -k 100 -o truth.ibin --metric cosine
       stratann search base.idx query.fbin --recall 0.9,0.95,0.99 --groundtruth truth.ibin

Vector files: .fbin .f16bin .u8bin .i8bin (u32 rows, u32 dimensions, rows), .fvecs .bvecs, .npy, and Parquet as
FILE.parquet#COLUMN.
`stratann COMMAND --help` describes a command; `stratann doctor` shows what this machine supports.";

const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 failure (also when some queries failed); 2 bad usage, bad input or an impossible budget;
130 interrupted.";

#[derive(Subcommand)]
enum Command {
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
    Serve(commands::serve::Args),
    MemoryNode(commands::memory_node::Args),
    Insert(commands::change::InsertArgs),
    Delete(commands::change::DeleteArgs),
    Simulate(commands::simulate::Args),
    Doctor(commands::doctor::Args),
    Profile(commands::profile::Args),
    Completions(commands::completions::Args),
}

/// Outcome of a command: success, a failure that was reported, or the end of a command that runs until Ctrl-C.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    Failed,
    Interrupted,
}

fn main() -> ExitCode {
    stratann_engine::budget::keep_little_freed();
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(e) => return usage(&e),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let output = Output { json: cli.json, quiet: cli.quiet };
    match run(cli.command, output) {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::Failed) => ExitCode::from(1),
        Ok(Verdict::Interrupted) => ExitCode::from(130),
        Err(e) => {
            output.error(&e);
            ExitCode::from(match e.kind {
                ErrorKind::BadInput | ErrorKind::Budget => 2,
                ErrorKind::Corrupt | ErrorKind::Io => 1,
                ErrorKind::Interrupted => 130,
            })
        }
    }
}

/// The command line. A negative number is a value that its option refuses, and no unknown option.
fn command() -> clap::Command {
    let values = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    Cli::command().mut_subcommands(|command| command.mut_args(values))
}

fn run(command: Command, output: Output) -> Result<Verdict, Error> {
    match command {
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
        Command::Serve(args) => commands::serve::run(&args, output),
        Command::MemoryNode(args) => commands::memory_node::run(&args, output),
        Command::Insert(args) => commands::change::insert(&args, output),
        Command::Delete(args) => commands::change::delete(&args, output),
        Command::Simulate(args) => commands::simulate::run(&args, output),
        Command::Doctor(args) => commands::doctor::run(&args, output),
        Command::Profile(args) => commands::profile::run(&args, output),
        Command::Completions(args) => commands::completions::run(&args, Cli::command()),
    }
}

/// Prints help to stdout, or a usage error as one line to stderr.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        return match error.print() {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                output::eprint_line(&format!("stratann: writing to standard output: {e}"));
                ExitCode::from(1)
            }
            _ => ExitCode::SUCCESS,
        };
    }
    if error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(2);
    }
    let text = error.to_string();
    // The error may have several lines; the usage and the hint after it are left out.
    let lines =
        text.lines().map(str::trim).take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more"));
    let mistake: Vec<&str> = lines.filter(|l| !l.is_empty()).collect();
    let mistake = mistake.join(" ");
    output::eprint_line(&format!(
        "stratann: {}; see --help",
        mistake.strip_prefix("error: ").unwrap_or(&mistake)
    ));
    ExitCode::from(2)
}
