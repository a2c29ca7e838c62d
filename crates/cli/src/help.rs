//! Help of a command: what most users need, the options of one kind, or all.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};
use stratann_params::{GROUPS, IndexKind, Level, Param, Stage};

use crate::parameters::id;

/// Extent of the help that is asked for.
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
    let (names, command) = command_of(program, &texts)?;
    let at = texts.iter().position(|text| matches!(text.as_str(), "-h" | "--help" | "--help-all"))?;
    let extent = match (texts[at].as_str(), texts.get(at + 1)) {
        ("--help-all", _) => Extent::All,
        (_, Some(kind)) => IndexKind::parse(kind).map_or(Extent::Usual, Extent::Kind),
        (_, None) => Extent::Usual,
    };
    if command.has_subcommands() {
        return None;
    }
    let stages = stages(command.get_name());
    if stages.is_empty() && extent != Extent::All {
        return None;
    }
    let mut program = changed(program.clone(), &names, &|command| shown(command, &names, stages, extent));
    program.build();
    let command = names.iter().try_fold(&mut program, |command, name| command.find_subcommand_mut(name))?;
    Some(if extent == Extent::Usual { command.render_help() } else { command.render_long_help() })
}

/// The command that arguments begin with, and the names that lead to it.
pub(crate) fn command_of<'a>(
    program: &'a Command,
    arguments: &[String],
) -> Option<(Vec<String>, &'a Command)> {
    let mut names: Vec<String> = Vec::new();
    let mut command = program;
    while let Some(inner) = arguments.get(names.len()).and_then(|name| command.find_subcommand(name)) {
        names.push(inner.get_name().into());
        command = inner;
    }
    (!names.is_empty()).then_some((names, command))
}

/// The program with another form of the command of these names.
fn changed(program: Command, names: &[String], change: &dyn Fn(Command) -> Command) -> Command {
    match names {
        [] => change(program),
        [first, others @ ..] => program.mut_subcommand(first, |command| changed(command, others, change)),
    }
}

/// Stages of the rows of a command that has options of kinds; none for any other command.
pub(crate) fn stages(command: &str) -> &'static [Stage] {
    match command {
        "build" => &[Stage::Build],
        "search" => &[Stage::Open, Stage::Search],
        "explain" => &[Stage::Open, Stage::Search, Stage::Explain],
        "bench" => &[Stage::Bench],
        "partition" => &[Stage::Partition],
        "serve" | "up" => &[Stage::Serve],
        "simulate" => &[Stage::Simulate],
        _ => &[],
    }
}

/// The command with the options of an extent alone.
fn shown(command: Command, names: &[String], stages: &'static [Stage], extent: Extent) -> Command {
    let name = names.join(" ");
    let more = format!(
        "All options of one kind: stratann {name} --help KIND, such as --help hybrid-ivf.\n\
         All options, with those for comparisons: stratann {name} --help-all."
    );
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    let command = command.max_term_width(COLUMNS).after_help(more).disable_help_flag(true);
    command.arg(help.help("Print help; followed by a kind, all options of that kind")).mut_args(|arg| {
        let levels = levels(stages, &arg);
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
pub(crate) fn levels(stages: &[Stage], arg: &Arg) -> Vec<(&'static [IndexKind], Level)> {
    let own = arg.get_id().as_str();
    let mut found = Vec::new();
    for group in GROUPS {
        let option = |param: &Param| group.option(param).or(param.short.map(String::from));
        let is_own = |param: &&Param| option(param).is_some_and(|option| id(&option) == own);
        found.extend(group.rows(stages).filter(is_own).map(|param| (group.kinds_of(param), param.level)));
        let shorthands = group.shorthands(stages).filter(|shorthand| shorthand.name == own);
        found.extend(shorthands.map(|_| (group.kinds, Level::Research)));
    }
    found
}
