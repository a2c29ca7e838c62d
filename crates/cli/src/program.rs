//! A program: its command line is parsed, its command is run, and what went wrong becomes the exit code.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use stratann_storage::{Error, ErrorKind};

use crate::output::{self, Output};
use crate::{Verdict, help, unknown};

/// Exit codes, for the end of a program's help.
pub const EXIT_CODES: &str = "\
Exit codes: 0 success; 1 failure (also when some queries failed); 2 bad usage, bad input or an impossible budget;
130 interrupted.";

/// Options of output, which every command has.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputArgs {
    /// Print one JSON document on stdout, and nothing else.
    #[arg(long, global = true)]
    json: bool,
    /// Print no progress and no notes on stderr, only errors.
    #[arg(long, short, global = true)]
    quiet: bool,
}

/// The command line of a program.
pub trait CommandLine: CommandFactory + FromArgMatches {
    /// Options of the output.
    fn output(&self) -> OutputArgs;

    /// Runs its command.
    ///
    /// # Errors
    /// Those of the command.
    fn run(self, output: Output) -> Result<Verdict, Error>;
}

/// Runs the program with the arguments of the process.
pub fn main<C: CommandLine>() -> ExitCode {
    stratann_storage::budget::keep_little_freed();
    let program = command::<C>();
    if let Some(help) = help::asked(&program, std::env::args_os()) {
        return match output::print(&help.to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                output::eprint_line(&format!("stratann: {}", e.message));
                ExitCode::from(1)
            }
        };
    }
    let parsed = program.try_get_matches().and_then(|matches| C::from_arg_matches(&matches));
    let line = match parsed {
        Ok(line) => line,
        Err(e) => {
            let arguments = std::env::args_os().skip(1).map(|text| text.to_string_lossy().into()).collect();
            return match unknown::text(&command::<C>(), arguments, &e) {
                Some(text) => {
                    output::eprint_line(&format!("stratann: {text}"));
                    ExitCode::from(2)
                }
                None => usage(&e),
            };
        }
    };
    let OutputArgs { json, quiet } = line.output();
    let output = Output { json, quiet };
    // The tables of the command line are free now.
    stratann_storage::budget::release_freed();
    match line.run(output) {
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
fn command<C: CommandLine>() -> clap::Command {
    let values = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    C::command().mut_subcommands(|command| command.mut_args(values))
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
