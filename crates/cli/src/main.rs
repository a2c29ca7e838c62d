//! `stratann`: builds, searches and examines indexes of vectors on disk. One file of [`commands`] per subcommand; no search logic here.

mod commands;
mod memory;
mod options;
mod output;
mod progress;
mod queries;
mod remote;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use stratann_engine::{Error, Kind};

use crate::output::Output;

/// Vector search for collections that outgrow memory.
#[derive(Parser)]
#[command(name = "stratann", version, about, long_about = OVERVIEW, after_long_help = EXIT_CODES, subcommand_required = true,
          args_override_self = true, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON document on stdout, and nothing else there.
    #[arg(long, global = true)]
    json: bool,
    /// No progress and no notes on stderr; errors still come.
    #[arg(long, short, global = true)]
    quiet: bool,
}

const OVERVIEW: &str = "\
Vector search for collections that outgrow memory.

An index is a folder. Vectors and a graph over them lie on disk in blocks; codes of a few bytes per vector lie in RAM and
say which block to read next. In three steps:

  1. Build it. The RAM budget holds for the whole build; what it will take is said beforehand.
       stratann build base.fbin -o base.idx --kind disk-graph --metric cosine --ram-budget 2GiB

  2. Search it. Ask for a recall, not for knobs: the build measured what each recall costs.
       stratann search base.idx query.fbin -k 10 --recall 0.95 -o answers.ibin

  3. Check the answers against exact ones.
       stratann groundtruth base.fbin query.fbin -k 100 -o truth.ibin --metric cosine
       stratann search base.idx query.fbin --recall 0.9,0.95,0.99 --groundtruth truth.ibin

Vector files: .fbin .f16bin .u8bin .i8bin (u32 rows, u32 dimensions, rows), .fvecs .bvecs, .npy, and Parquet as FILE.parquet#COLUMN.
`stratann COMMAND --help` explains a command; `stratann doctor` says what this machine offers.";

const EXIT_CODES: &str = "\
Exit codes: 0 done; 1 failed (also when some queries failed); 2 bad usage, bad input or an impossible budget; 130 interrupted.";

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
    Simulate(commands::simulate::Args),
    Doctor(commands::doctor::Args),
    Profile(commands::profile::Args),
    Completions(commands::completions::Args),
}

/// What a command has to say in the end: that all is well, that something it reported is not, or that Ctrl-C ended what runs until then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Fine,
    Failed,
    Interrupted,
}

fn main() -> ExitCode {
    stratann_engine::budget::keep_little_freed();
    let matches = match Cli::command().try_get_matches() {
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
                Kind::BadInput | Kind::Budget => 2,
                Kind::Corrupt | Kind::Io => 1,
                Kind::Interrupted => 130,
            })
        }
    }
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
        Command::Simulate(args) => commands::simulate::run(&args, output),
        Command::Doctor(args) => commands::doctor::run(&args, output),
        Command::Profile(args) => commands::profile::run(&args, output),
        Command::Completions(args) => commands::completions::run(&args, Cli::command()),
    }
}

/// Help goes to stdout; a mistake becomes one line on stderr.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion) {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(2);
    }
    let text = error.to_string();
    // The hint names the subcommand; what is between is the mistake itself, sometimes over several lines.
    let lines =
        text.lines().map(str::trim).take_while(|l| !l.starts_with("Usage:") && !l.starts_with("For more"));
    let mistake: Vec<&str> = lines.filter(|l| !l.is_empty()).collect();
    let mistake = mistake.join(" ");
    output::tell(&format!("stratann: {}; see --help", mistake.strip_prefix("error: ").unwrap_or(&mistake)));
    ExitCode::from(2)
}
