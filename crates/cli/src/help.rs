//! Help of a command: what most users need, the options of one kind, or all.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};
use stratann_params::{GROUPS, IndexKind, Level};

use crate::parameters::id;

/// How much help is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// Options that most users need.
    Usual,
    /// All options of one kind.
    Kind(IndexKind),
    /// All options.
    All,
}

/// Columns of help, at most.
const COLUMNS: usize = 100;

/// The help that the arguments ask for; `None` where they ask for none, or of a command without options of kinds.
pub(crate) fn asked(program: &Command, arguments: impl Iterator<Item = OsString>) -> Option<StyledStr> {
    let texts: Vec<String> =
        arguments.skip(1).take_while(|text| text != "--").map(|text| text.to_string_lossy().into()).collect();
    let command = program.find_subcommand(texts.first()?)?;
    let at = texts.iter().position(|text| matches!(text.as_str(), "-h" | "--help" | "--help-all"))?;
    let extent = match (texts[at].as_str(), texts.get(at + 1)) {
        ("--help-all", _) => Extent::All,
        (_, Some(kind)) => IndexKind::parse(kind).map_or(Extent::Usual, Extent::Kind),
        (_, None) => Extent::Usual,
    };
    if command.has_subcommands() {
        return None;
    }
    let has_kinds = command.get_arguments().any(|arg| levels(arg).iter().any(|(kinds, _)| !kinds.is_empty()));
    if !has_kinds && extent != Extent::All {
        return None;
    }
    let name = command.get_name().to_string();
    let mut program = program.clone().mut_subcommand(&name, |command| shown(command, extent));
    program.build();
    let command = program.find_subcommand_mut(&name)?;
    Some(if extent == Extent::Usual { command.render_help() } else { command.render_long_help() })
}

/// The command with the options of an extent alone.
fn shown(command: Command, extent: Extent) -> Command {
    let name = command.get_name().to_string();
    let more = format!(
        "All options of one kind: stratann {name} --help KIND, such as --help hybrid-ivf.\n\
         All options, with those for comparisons: stratann {name} --help-all."
    );
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    let command = command.max_term_width(COLUMNS).after_help(more).disable_help_flag(true);
    command.arg(help.help("Print help; followed by a kind, all options of that kind")).mut_args(|arg| {
        let levels = levels(&arg);
        let is_shown = levels.is_empty()
            || match extent {
                Extent::All => true,
                Extent::Usual => levels.iter().any(|(_, level)| *level == Level::Usual),
                Extent::Kind(kind) => levels.iter().any(|(kinds, _)| kinds.contains(&kind)),
            };
        let is_hidden = arg.is_hide_set() || !is_shown;
        arg.hide(is_hidden)
    })
}

/// The kinds and the level of each row of the table that an option follows from.
fn levels(arg: &Arg) -> Vec<(&'static [IndexKind], Level)> {
    let own = arg.get_id().as_str();
    let mut found = Vec::new();
    for group in GROUPS {
        for param in group.params {
            let option = group.option(param).or(param.short.map(String::from));
            if option.is_some_and(|option| id(&option) == own) {
                found.push((group.kinds_of(param), param.level));
            }
        }
        if group.shorthands.iter().any(|shorthand| shorthand.name == own) {
            found.push((group.kinds, Level::Research));
        }
    }
    found
}
