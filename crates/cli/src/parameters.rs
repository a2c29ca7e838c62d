//! Options of the command line that follow from the table of parameters.

use std::marker::PhantomData;

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, StringValueParser};
use clap::builder::{TypedValueParser, ValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use stratann_params::Value;
use stratann_params::{
    GROUPS, Given, GroupInfo, IndexKind, Param, Place, Scope, Shorthand, Stage, Surface, Type, named,
};
use stratann_storage::Error;

/// Rows of the table that a command has as options.
pub(crate) trait Rows {
    /// Stages of the rows.
    const STAGES: &'static [Stage];

    /// Whether the command has a row of these stages.
    fn has(_: &Param) -> bool {
        true
    }

    /// Whether the command goes on without an option that the table requires.
    fn goes_without(_: &Param) -> bool {
        false
    }
}

/// The options of a command that follow from the table.
#[derive(Debug)]
pub(crate) struct Parameters<R> {
    /// Values that the command line gives.
    pub(crate) given: Given,
    rows: PhantomData<R>,
}

impl<R> Clone for Parameters<R> {
    fn clone(&self) -> Self {
        Parameters { given: self.given.clone(), rows: PhantomData }
    }
}

impl<R: Rows> Parameters<R> {
    /// Options as if the command line gave them.
    pub(crate) fn of(given: Given) -> Parameters<R> {
        Parameters { given, rows: PhantomData }
    }

    /// Scope of the options: stages, kinds, place and surface.
    pub(crate) fn scope(&self, kinds: impl IntoIterator<Item = IndexKind>, place: Place) -> Scope {
        Scope { stages: R::STAGES, kinds: kinds.into_iter().collect(), place, surface: Surface::CommandLine }
    }
}

impl<R: Rows> Parameters<R> {
    /// Refuses what kinds or place do not have.
    ///
    /// # Errors
    /// The first such option; a baseline, which the laboratory has.
    pub(crate) fn check(
        &self,
        kinds: impl IntoIterator<Item = IndexKind>,
        place: Place,
    ) -> Result<(), Error> {
        let command = if R::STAGES.contains(&Stage::Simulate) { "simulate" } else { "search" };
        if let Some(baseline) = self.given.of_lab(R::STAGES).filter(|_| !cfg!(feature = "lab")) {
            return Err(Error::laboratory(&baseline, command));
        }
        Ok(self.given.check(&self.scope(kinds, place))?)
    }
}

/// One option of the table.
#[derive(Clone, Copy)]
pub(crate) enum Row {
    /// A parameter.
    Param(&'static Param),
    /// Another name for values.
    Shorthand(&'static Shorthand),
}

/// One option with its name and the first group that has it.
struct NamedRow {
    option: String,
    group: &'static GroupInfo,
    row: Row,
}

/// The options of some stages.
fn rows(stages: &'static [Stage]) -> Vec<NamedRow> {
    let mut all: Vec<NamedRow> = Vec::new();
    for group in GROUPS {
        let params = group.rows(stages).filter_map(|param| {
            let option = group.option(param).or(param.short.map(String::from))?;
            Some(NamedRow { option, group, row: Row::Param(param) })
        });
        let shorthands = group.shorthands(stages).map(|shorthand| {
            let option = shorthand.name.replace('_', "-");
            NamedRow { option, group, row: Row::Shorthand(shorthand) }
        });
        for row in params.chain(shorthands) {
            if !all.iter().any(|known| known.option == row.option) {
                all.push(row);
            }
        }
    }
    all
}

/// The id of an option in the parser.
pub(crate) fn id(option: &str) -> String {
    option.replace('-', "_")
}

fn arg(stages: &'static [Stage], option: &str, group: &GroupInfo, row: Row) -> Arg {
    let arg = Arg::new(id(option));
    let arg = if group.kinds.is_empty() { arg } else { arg.help_heading(group.heading()) };
    match row {
        Row::Shorthand(shorthand) => {
            arg.long(option.to_string()).action(ArgAction::SetTrue).help(one_line(shorthand.help))
        }
        Row::Param(param) => {
            of_param(arg, option, group, param).value_parser(parser(stages, param)).hide(is_refused(param))
        }
    }
}

fn of_param(arg: Arg, option: &str, group: &GroupInfo, param: &'static Param) -> Arg {
    let arg = arg.required(param.is_required);
    // What depends on the kind is checked when it is known.
    let arg = match param.requires {
        [other] if group.kinds_of(param).len() == IndexKind::ALL.len() => arg.requires(*other),
        _ => arg,
    };
    let arg = if group.option(param).is_some() { arg.long(option.to_string()) } else { arg };
    let arg = if let Some(short) = param.short { arg.short(short) } else { arg };
    let usual = group.usual(param);
    if let Type::Flag = param.of {
        let off = param.off;
        let help = if usual == Some(Value::Flag(true)) && !off.is_empty() {
            one_line(off)
        } else {
            param.short_help()
        };
        return arg.action(ArgAction::SetTrue).help(help);
    }
    let mut help = param.long_help();
    if !param.usual.is_empty() {
        help[0] += &format!(" [default: {}]", param.usual);
    }
    let short = help[0].clone();
    if let Some(range) = param.range_text() {
        help.push(format!("Range: {range}"));
    }
    let arg = match param.shown {
        "" => arg.value_name(param.name.to_uppercase()),
        shown => arg.value_name(shown),
    };
    let arg = match (param.is_swept || param.is_list, param.of) {
        (true, Type::Path) => arg.action(ArgAction::Append),
        (true, _) => arg.action(ArgAction::Append).value_delimiter(','),
        (false, _) => arg.action(ArgAction::Set),
    };
    let arg = arg.allow_negative_numbers(matches!(param.of, Type::Real));
    let arg = match usual.filter(|_| !param.is_optional) {
        Some(usual) => arg.default_value(usual.to_string()),
        None => arg,
    };
    let arg = arg.help(short);
    if help.len() > 1 { arg.long_help(help.join("\n\n")) } else { arg }
}

/// Whether only the laboratory has a parameter. Elsewhere it is refused with the name of the laboratory's command.
fn is_refused(param: &Param) -> bool {
    param.is_of_lab && !cfg!(feature = "lab")
}

/// The parser of an option. Kinds may have one of this name with choices of their own.
fn parser(stages: &'static [Stage], param: &'static Param) -> ValueParser {
    match param.of {
        Type::Path => PathBufValueParser::new().map(Value::Path).into(),
        Type::Text => StringValueParser::new().map(Value::Text).into(),
        Type::Flag => clap::value_parser!(bool),
        // The laboratory knows the names.
        Type::Choice(_) if is_refused(param) => StringValueParser::new().map(Value::Text).into(),
        Type::Choice(_) => {
            let mut choices: Vec<&stratann_params::Choice> = Vec::new();
            for choice in named(stages, param.name).flat_map(|(_, param)| param.choices()) {
                if !choices.iter().any(|known| known.name == choice.name) {
                    choices.push(choice);
                }
            }
            let value = |choice: &&stratann_params::Choice| {
                let value = PossibleValue::new(choice.name).help(one_line(choice.help));
                if choice.name == "cosine" { value.alias("cos") } else { value }
            };
            let named = move |name: String| Value::Text(if name == "cos" { "cosine".into() } else { name });
            PossibleValuesParser::new(choices.iter().map(value)).map(named).into()
        }
        _ => StringValueParser::new().try_map(|text| param.parse(&text)).into(),
    }
}

/// Help in one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl<R: Rows> clap::Args for Parameters<R> {
    fn augment_args(command: Command) -> Command {
        own_rows::<R>().fold(command, |command, own| {
            let goes_without = matches!(own.row, Row::Param(param) if R::goes_without(param));
            let arg = arg(R::STAGES, &own.option, own.group, own.row);
            command.arg(if goes_without { arg.required(false) } else { arg })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The rows that a command has.
fn own_rows<R: Rows>() -> impl Iterator<Item = NamedRow> {
    rows(R::STAGES).into_iter().filter(|own| match &own.row {
        Row::Param(param) => R::has(param),
        Row::Shorthand(shorthand) => {
            shorthand.sets.iter().all(|(name, _)| named(R::STAGES, name).any(|(_, param)| R::has(param)))
        }
    })
}

impl<R: Rows> clap::FromArgMatches for Parameters<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Given::default();
        for NamedRow { option, group, row } in own_rows::<R>() {
            let id = id(&option);
            if matches.value_source(&id) != Some(ValueSource::CommandLine) {
                continue;
            }
            match row {
                Row::Shorthand(shorthand) => {
                    for (name, value) in shorthand.sets {
                        given.push(name, (*value).into(), format!("--{option}"));
                    }
                }
                Row::Param(param) => {
                    let written = group.name_on(Surface::CommandLine, param);
                    let values: Vec<Value> = match param.of {
                        Type::Flag => vec![Value::Flag(group.usual(param) != Some(Value::Flag(true)))],
                        _ => matches.get_many::<Value>(&id).into_iter().flatten().cloned().collect(),
                    };
                    values.into_iter().for_each(|value| given.push(param.name, value, written.clone()));
                }
            }
        }
        Ok(Parameters { given, rows: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
