//! The program `stratann-lab`: the commands of `stratann`, and studies of its techniques. No part of the product
//! depends on it.

mod ablation;
mod chart;
mod codes;
mod cost;
mod cut;
mod paper;
mod rank;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use stratann_cli::output::Output;
use stratann_cli::program::{self, CommandLine, EXIT_CODES, OutputArgs};
use stratann_cli::{Command, Verdict};
use stratann_storage::Error;

/// Studies of the techniques of StratANN.
#[derive(Parser)]
#[command(name = "stratann-lab", version, about, long_about = OVERVIEW, after_long_help = EXIT_CODES)]
#[command(
    subcommand_required = true,
    args_override_self = true,
    propagate_version = true,
    max_term_width = 110
)]
struct Cli {
    #[command(subcommand)]
    command: LabCommand,
    #[command(flatten)]
    output: OutputArgs,
}

const OVERVIEW: &str = "\
Studies of the techniques of StratANN, for those who compare or change them.

`paper` repeats the figures of a paper and compares, `ablation` measures each technique of a kind on your
vectors, `codes` the ranking of codes, `rank` how well codes rank vectors, `cut` how a graph is divided over
servers, `cost` what systems cost.
All commands of `stratann` are here as well.";

#[derive(clap::Subcommand)]
enum LabCommand {
    Ablation(Box<ablation::Args>),
    Codes(codes::Args),
    Cost(cost::Args),
    Cut(cut::Args),
    Paper(paper::Args),
    Rank(rank::Args),
    #[command(flatten)]
    Product(Box<Command>),
}

impl CommandLine for Cli {
    fn output(&self) -> OutputArgs {
        self.output
    }

    fn run(self, output: Output) -> Result<Verdict, Error> {
        match self.command {
            LabCommand::Ablation(args) => ablation::run(&args, output),
            LabCommand::Codes(args) => codes::run(&args, output),
            LabCommand::Cost(args) => cost::run(&args, output),
            LabCommand::Cut(args) => cut::run(&args, output),
            LabCommand::Paper(args) => paper::run(&args, output),
            LabCommand::Rank(args) => rank::run(&args, output),
            LabCommand::Product(command) => command.run(output, Cli::command),
        }
    }
}

fn main() -> ExitCode {
    program::main::<Cli>()
}
