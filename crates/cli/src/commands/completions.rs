//! `stratann completions`: prints a completion script.

use clap_complete::Shell;
use stratann_storage::Result;

use crate::Verdict;
use crate::output::print;

/// Print a completion script for a shell
///
/// For example: stratann completions bash > ~/.local/share/bash-completion/completions/stratann
#[derive(clap::Args)]
pub struct Args {
    /// Shell
    shell: Shell,
}

/// Runs `stratann completions`.
pub(crate) fn run(args: &Args, mut command: clap::Command) -> Result<Verdict> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "stratann", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Verdict::Fine)
}
