//! The program `stratann`.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use stratann_cli::output::Output;
use stratann_cli::program::{self, CommandLine, EXIT_CODES, OutputArgs};
use stratann_cli::{Command, Verdict};
use stratann_storage::Error;

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
    #[command(flatten)]
    output: OutputArgs,
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

Vector files: .fbin .f16bin .u8bin .i8bin (u32 rows, u32 dimensions, rows), .fvecs .bvecs, .npy, Parquet as
FILE.parquet#COLUMN, and HDF5 as FILE.hdf5#DATASET.
`stratann COMMAND --help` describes a command; `stratann doctor` shows what this machine supports.";

impl CommandLine for Cli {
    fn output(&self) -> OutputArgs {
        self.output
    }

    fn run(self, output: Output) -> Result<Verdict, Error> {
        self.command.run(output, Cli::command)
    }
}

fn main() -> ExitCode {
    program::main::<Cli>()
}
