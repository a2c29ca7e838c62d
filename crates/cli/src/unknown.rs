//! Options that a command does not have: the error names a similar one that the command and the kind of index have.

use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use stratann_engine::manifest::Manifest;
use stratann_params::{IndexKind, Place, Scope, Surface, retired, similar};

use crate::help::{command_of, levels, stages};

/// The error for an option that does not exist; `None` for any other error of the command line.
pub(crate) fn text(program: &Command, mut arguments: Vec<String>, error: &clap::Error) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else { return None };
    if !option.starts_with("--") {
        return None;
    }
    // Options of output may come first.
    arguments.drain(..arguments.iter().take_while(|text| text.starts_with('-')).count());
    let (_, command) = command_of(program, &arguments)?;
    if let Some(gone) = retired(stages(command.get_name()), option, Surface::CommandLine) {
        return Some(gone.0);
    }
    Some(match similar(option, &options(command, &arguments)) {
        Some(near) => format!("there is no option {option}; use {near}"),
        None => format!("there is no option {option}; see --help"),
    })
}

/// The options of a command, but for those of the table that the kind or the place does not have.
fn options(command: &Command, arguments: &[String]) -> Vec<String> {
    let has =
        |option: &str| arguments.iter().any(|text| text == option || text.starts_with(&format!("{option}=")));
    let place = match (has("--connect"), has("--memory"), has("--data")) {
        (true, ..) => Place::Servers,
        (false, true, _) => Place::MemoryNodes,
        (false, false, true) => Place::Collections,
        (false, false, false) => Place::Folder,
    };
    let stages = stages(command.get_name());
    let scope =
        Scope { stages, kinds: kind(arguments).into_iter().collect(), place, surface: Surface::CommandLine };
    let of_table = scope.names();
    let all = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let named =
        all.filter_map(|arg| Some((format!("--{}", arg.get_long()?), levels(stages, arg).is_empty())));
    named.filter(|(name, is_own)| *is_own || of_table.contains(name)).map(|(name, _)| name).collect()
}

/// The kind that arguments name: by `--kind`, or by an index; `None` where they name none.
fn kind(arguments: &[String]) -> Option<IndexKind> {
    let after = |option: &str| {
        let at = arguments.iter().position(|text| text == option)?;
        arguments.get(at + 1).cloned()
    };
    let by_name =
        after("--kind").or(arguments.iter().find_map(|text| text.strip_prefix("--kind=").map(String::from)));
    if let Some(name) = by_name {
        return IndexKind::parse(&name);
    }
    let manifest = |text: &String| Manifest::read(Path::new(text)).ok();
    let (_, manifest) = arguments.iter().filter(|text| !text.starts_with('-')).find_map(manifest)?;
    manifest.kind()
}
