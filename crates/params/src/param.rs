//! A row of the table, a group of rows, and what they say.

use std::marker::PhantomData;
use std::ops::RangeInclusive;

use crate::GROUPS;
use crate::choices::IndexKind;
use crate::given::Wrong;
use crate::value::{Choice, Parameter, Type, Unit, Value, parse_size};

/// When a parameter is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// When an index is built.
    Build,
    /// When an index is opened.
    Open,
    /// When queries are searched.
    Search,
    /// When an index is partitioned over servers.
    Partition,
    /// When a server starts.
    Serve,
    /// When a cluster is simulated.
    Simulate,
    /// When settings of searches are compared.
    Bench,
    /// When the recall curve is measured again.
    Tune,
    /// When exact neighbours are computed.
    Truth,
    /// When a query or a plan is explained.
    Explain,
    /// When a machine is examined.
    Doctor,
    /// When costs of a machine are measured.
    Profile,
    /// When vectors are inserted or deleted.
    Update,
    /// When an index is planned for another RAM budget.
    Replan,
    /// When a collection is made, changed or examined.
    Collection,
}

impl Stage {
    /// Words for the kind that lacks a parameter.
    pub(crate) fn describe(self, kind: &str) -> String {
        match self {
            Stage::Build => format!("the kind is {kind}"),
            _ => format!("this index is a {kind}"),
        }
    }
}

/// Place where queries are searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this process, in an index in a folder.
    Folder,
    /// In a server of one part of an index, which is in a folder.
    Part,
    /// In this process, in an index that memory nodes hold.
    MemoryNodes,
    /// On running servers.
    Servers,
    /// In this process, in a collection of a data folder.
    Collections,
}

impl Place {
    /// Every place of an index. What a collection has, too, says so.
    pub const ALL: &'static [Place] = &[Place::Folder, Place::Part, Place::MemoryNodes, Place::Servers];
    /// Places of an index that this process opens.
    pub const LOCAL: &'static [Place] = &[Place::Folder, Place::Part, Place::MemoryNodes];
    /// Places of files that this process opens.
    pub const FOLDERS: &'static [Place] = &[Place::Folder, Place::Part];
    /// Every place of an index, and collections.
    pub const ALL_AND_COLLECTIONS: &'static [Place] =
        &[Place::Folder, Place::Part, Place::MemoryNodes, Place::Servers, Place::Collections];
    /// What this process opens: an index, or collections.
    pub const LOCAL_AND_COLLECTIONS: &'static [Place] =
        &[Place::Folder, Place::Part, Place::MemoryNodes, Place::Collections];
    /// Files that this process opens: an index, or collections.
    pub const FOLDERS_AND_COLLECTIONS: &'static [Place] = &[Place::Folder, Place::Part, Place::Collections];

    /// Words for an error.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Place::Folder => "a search in this process",
            Place::Part => "a server of a partition",
            Place::MemoryNodes => "a search in memory nodes",
            Place::Servers => "a search on servers",
            Place::Collections => "a collection",
        }
    }
}

/// Surface on which a user names parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// Options of the command line: `--search-list`.
    CommandLine,
    /// Fields of a request: `search_list`.
    Request,
    /// Keywords in Python: `search_list`.
    Python,
    /// Keys of a file of options: `search_list`.
    File,
}

impl Surface {
    /// A value as users of the surface write it.
    pub fn shown(self, value: &Value) -> String {
        match (self, value) {
            (Surface::Python, Value::Flag(true)) => "True".into(),
            (Surface::Python, Value::Flag(false)) => "False".into(),
            (Surface::Python | Surface::Request | Surface::File, Value::Text(text)) => format!("{text:?}"),
            (_, value) => value.to_string(),
        }
    }
}

/// For whom a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Most users: `--help` shows it.
    Usual,
    /// Users of a kind: `--help KIND` shows it.
    Kind,
    /// Comparisons: `--help-all` shows it.
    Research,
}

/// One parameter.
#[derive(Clone, Debug)]
pub struct Param {
    /// Name of the field, of the field of a request and of the keyword in Python.
    pub name: &'static str,
    /// Type of a value.
    pub of: Type,
    /// Whether it may be without a value.
    pub is_optional: bool,
    /// Whether a command cannot do without it.
    pub is_required: bool,
    /// Whether it may have several values, all of which count.
    pub is_list: bool,
    /// Unit of a number.
    pub unit: Unit,
    /// Least and largest number.
    pub range: RangeInclusive<f64>,
    /// Help: the first paragraph is short, all of it is long.
    pub help: &'static str,
    /// Value where none is given, in words; empty where the default itself says it.
    pub usual: &'static str,
    /// Name of the value in help, such as `R`.
    pub shown: &'static str,
    /// Option of the command line where it is not the name with dashes; empty where there is none.
    pub option: Option<&'static str>,
    /// Help of an option that turns a flag off; empty for that of the flag.
    pub off: &'static str,
    /// Short option.
    pub short: Option<char>,
    /// For whom it is.
    pub level: Level,
    /// Stages that have it beside that of its group.
    pub also: &'static [Stage],
    /// Kinds that have it, of the kinds of its group; empty for all of them.
    pub kinds: &'static [IndexKind],
    /// Places that have it.
    pub places: &'static [Place],
    /// Setting that kinds make by parameters with different names.
    pub role: &'static str,
    /// Whether several values make several runs on the command line.
    pub is_swept: bool,
    /// Whether requests have it.
    pub in_requests: bool,
    /// Whether Python has it.
    pub in_python: bool,
    /// Whether only the laboratory has it; elsewhere it is refused by the name of the laboratory.
    pub is_of_lab: bool,
    /// Whether it leaves the choice of `--kind auto` open, although not every kind has it.
    pub keeps_auto: bool,
    /// Names of parameters that it does not go with.
    pub conflicts: &'static [&'static str],
    /// Names of parameters one of which it needs; empty where it needs none.
    pub requires: &'static [&'static str],
}

impl Param {
    /// A row with usual facts, as the macro starts it.
    pub const fn row<T: Parameter>(name: &'static str, help: &'static str) -> Param {
        Param {
            name,
            of: T::TYPE,
            is_optional: T::IS_OPTIONAL,
            is_required: false,
            is_list: T::IS_LIST,
            unit: Unit::None,
            range: f64::NEG_INFINITY..=f64::INFINITY,
            help,
            usual: "",
            shown: "",
            option: None,
            off: "",
            short: None,
            level: Level::Kind,
            also: &[],
            kinds: &[],
            places: Place::ALL,
            role: "",
            is_swept: false,
            in_requests: true,
            in_python: true,
            is_of_lab: false,
            keeps_auto: false,
            conflicts: &[],
            requires: &[],
        }
    }

    /// Whether a surface has it.
    pub fn is_on(&self, surface: Surface) -> bool {
        match surface {
            Surface::CommandLine => self.option != Some("") || self.short.is_some(),
            Surface::Request => self.in_requests,
            Surface::Python => self.in_python,
            Surface::File => true,
        }
    }

    /// The first paragraph of the help, in one line.
    pub fn short_help(&self) -> String {
        paragraphs(self.help).swap_remove(0)
    }

    /// The paragraphs of the help, each in one line.
    pub fn long_help(&self) -> Vec<String> {
        paragraphs(self.help)
    }

    /// The names of choices; empty where any value of the type is one.
    pub fn choices(&self) -> &'static [Choice] {
        match self.of {
            Type::Choice(choices) => choices,
            _ => &[],
        }
    }

    /// The numbers that it may have, in words; `None` where any may be given.
    pub fn range_text(&self) -> Option<String> {
        let (least, most) = (*self.range.start(), *self.range.end());
        let first = if least == f64::MIN_POSITIVE { "above 0".to_string() } else { least.to_string() };
        let numbers = match (least.is_finite(), most < f64::MAX) {
            (false, false) => return None,
            (true, true) if least == f64::MIN_POSITIVE => format!("{first} and up to {most}"),
            (true, true) => format!("{first} to {most}"),
            (true, false) => format!("{first} or more"),
            (false, true) => format!("up to {most}"),
        };
        Some(match self.of {
            Type::AutoOrWhole => format!("auto, or {numbers}"),
            _ => numbers,
        })
    }

    /// The value of a text: of an argument of the command line, or of a parameter of a URL.
    ///
    /// # Errors
    /// The values to give instead.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let number = || match self.unit {
            Unit::Bytes => parse_size(text),
            Unit::None => text.parse::<u64>().map_err(|_| self.wanted(Surface::CommandLine)),
        };
        match self.of {
            Type::Flag => text.parse().map(Value::Flag).map_err(|_| self.wanted(Surface::CommandLine)),
            Type::Whole => number().map(Value::Whole),
            Type::AutoOrWhole if text == "auto" => Ok(Value::Text(text.into())),
            Type::AutoOrWhole if self.unit == Unit::Bytes => {
                number().map(Value::Whole).map_err(|why| format!("{why}, or auto"))
            }
            Type::AutoOrWhole => number().map(Value::Whole),
            Type::Real => text.parse().map(Value::Real).map_err(|_| self.wanted(Surface::CommandLine)),
            Type::Path => Ok(Value::Path(text.into())),
            Type::Text => Ok(Value::Text(text.into())),
            Type::Choice(choices) => match choices.iter().find(|choice| choice.name == text) {
                Some(choice) => Ok(Value::Text(choice.name.into())),
                None => Err(self.wanted(Surface::CommandLine)),
            },
        }
    }

    /// Values to give, for an error.
    pub fn wanted(&self, surface: Surface) -> String {
        match (self.of, self.range_text()) {
            (Type::Flag, _) if surface == Surface::Python => "give True or False".into(),
            (Type::Flag, _) => "use true or false".into(),
            (Type::Choice(choices), _) => {
                let name = |choice: &Choice| surface.shown(&Value::Text(choice.name.into()));
                format!("use {}", list_of(choices.iter().map(name)))
            }
            (Type::Path, _) => "give a path".into(),
            (Type::Text, _) => "give a text".into(),
            (Type::Real, Some(range)) if self.shown == "SHARE" => {
                let from = if range.starts_with("above") { "" } else { "from " };
                let range = range.replace(" or more", " up");
                let such =
                    self.usual.parse().map_or(String::new(), |usual: f64| format!(", such as {usual}"));
                format!("give a share {from}{range}{such}")
            }
            (_, Some(range)) => format!("use {range}"),
            (Type::Real, None) => "use a number".into(),
            (Type::AutoOrWhole, None) if self.unit == Unit::Bytes => {
                "use auto, or a size such as 512MiB".into()
            }
            (Type::AutoOrWhole, None) => "use auto, or a whole number".into(),
            (Type::Whole, None) if self.unit == Unit::Bytes => "use a size such as 512MiB".into(),
            (Type::Whole, None) => "use a whole number".into(),
        }
    }

    /// The option of the command line, without dashes; `None` where there is none.
    pub fn option(&self, usual_is_on: bool) -> Option<String> {
        match self.option {
            Some("") => None,
            Some(option) => Some(option.into()),
            None => Some(match usual_is_on {
                true => format!("no-{}", self.name.replace('_', "-")),
                false => self.name.replace('_', "-"),
            }),
        }
    }
}

/// Another name on the command line for one value of a parameter, or for values of several.
#[derive(Clone, Copy, Debug)]
pub struct Shorthand {
    /// The option, with underscores.
    pub name: &'static str,
    /// Help.
    pub help: &'static str,
    /// The parameters and the values that they get.
    pub sets: &'static [(&'static str, Fixed)],
}

/// A value that is known before the program runs.
#[derive(Clone, Copy, Debug)]
pub enum Fixed {
    /// A flag.
    Flag(bool),
    /// A name.
    Name(&'static str),
}

impl From<Fixed> for Value {
    fn from(fixed: Fixed) -> Value {
        match fixed {
            Fixed::Flag(flag) => Value::Flag(flag),
            Fixed::Name(name) => Value::Text(name.into()),
        }
    }
}

/// A struct of parameters.
pub trait Group: Default {
    /// Name of the struct.
    const NAME: &'static str;
    /// Heading.
    const ABOUT: &'static str;
    /// The stage in which its parameters are read.
    const STAGE: Stage;
    /// Kinds that have them; empty for every kind.
    const KINDS: &'static [IndexKind];
    /// The rows.
    const PARAMS: &'static [Param];
    /// Other names on the command line.
    const SHORTHANDS: &'static [Shorthand];
    /// Sets one field; false where no field has this name, or the value is of another type.
    fn set(&mut self, name: &str, value: &Value) -> bool;
    /// The value of a field; `None` where it has none.
    fn get(&self, name: &str) -> Option<Value>;

    /// The parameters that differ from their defaults.
    fn differing(&self) -> Vec<(&'static str, Value)> {
        let usual = Self::default();
        let value = |param: &Param| Some((param.name, self.get(param.name)?));
        Self::PARAMS
            .iter()
            .filter_map(value)
            .filter(|(name, value)| usual.get(name).as_ref() != Some(value))
            .collect()
    }

    /// Refuses numbers out of range, of values that no surface has read.
    ///
    /// # Errors
    /// The first such field, by its option.
    fn check_ranges(&self) -> Result<(), Wrong> {
        for param in Self::PARAMS {
            let value = self.get(param.name);
            if let Some(value) =
                value.filter(|value| value.number().is_some_and(|n| !param.range.contains(&n)))
            {
                let option = param.option(false).unwrap_or(param.name.into());
                let wanted = param.wanted(Surface::CommandLine);
                return Err(Wrong(format!("--{option} is {value}; {wanted}")));
            }
        }
        Ok(())
    }
}

/// No parameters: those of a kind without any.
impl Group for () {
    const NAME: &'static str = "";
    const ABOUT: &'static str = "";
    const STAGE: Stage = Stage::Build;
    const KINDS: &'static [IndexKind] = &[];
    const PARAMS: &'static [Param] = &[];
    const SHORTHANDS: &'static [Shorthand] = &[];

    fn set(&mut self, _: &str, _: &Value) -> bool {
        false
    }

    fn get(&self, _: &str) -> Option<Value> {
        None
    }
}

/// The names of the parameters of a group, for keys of reports: `Key::<SearchSettings>::k`.
pub struct Key<G>(PhantomData<G>);

/// A group without its struct, to walk the table.
pub struct GroupInfo {
    /// Name of the struct.
    pub name: &'static str,
    /// Heading.
    pub about: &'static str,
    /// The stage in which its parameters are read.
    pub stage: Stage,
    /// Kinds that have them; empty for every kind.
    pub kinds: &'static [IndexKind],
    /// The rows.
    pub params: &'static [Param],
    /// Other names on the command line.
    pub shorthands: &'static [Shorthand],
    usual: fn(&str) -> Option<Value>,
    accepts: fn(&str, &Value) -> bool,
}

impl GroupInfo {
    pub(crate) const fn of<G: Group>() -> GroupInfo {
        GroupInfo {
            name: G::NAME,
            about: G::ABOUT,
            stage: G::STAGE,
            kinds: G::KINDS,
            params: G::PARAMS,
            shorthands: G::SHORTHANDS,
            usual: |name| G::default().get(name),
            accepts: |name, value| G::default().set(name, value),
        }
    }

    /// The rows of some stages.
    pub fn rows(&'static self, stages: &[Stage]) -> impl Iterator<Item = &'static Param> {
        let is_of = |stage: Stage, param: &Param| self.stage == stage || param.also.contains(&stage);
        self.params.iter().filter(move |param| stages.iter().any(|&stage| is_of(stage, param)))
    }

    /// The shorthands whose parameters are rows of some stages.
    pub fn shorthands(&'static self, stages: &[Stage]) -> impl Iterator<Item = &'static Shorthand> {
        let is_row = move |name: &str| self.rows(stages).any(|param| param.name == name);
        self.shorthands.iter().filter(move |shorthand| shorthand.sets.iter().all(|(name, _)| is_row(name)))
    }

    /// The default of a parameter; `None` where it has none.
    pub fn usual(&self, param: &Param) -> Option<Value> {
        (self.usual)(param.name)
    }

    /// Whether a parameter may have this value, by its type.
    pub fn accepts(&self, param: &Param, value: &Value) -> bool {
        (self.accepts)(param.name, value)
    }

    /// The heading, in one line.
    pub fn heading(&self) -> String {
        paragraphs(self.about).swap_remove(0)
    }

    /// The kinds that have a parameter.
    pub fn kinds_of(&self, param: &Param) -> &'static [IndexKind] {
        match (param.kinds, self.kinds) {
            ([], []) => &IndexKind::ALL,
            ([], kinds) => kinds,
            (kinds, _) => kinds,
        }
    }

    /// The option of a parameter on the command line, without dashes.
    pub fn option(&self, param: &Param) -> Option<String> {
        param.option(self.usual(param) == Some(Value::Flag(true)))
    }

    /// The name of a parameter as a surface has it.
    pub fn name_on(&self, surface: Surface, param: &Param) -> String {
        match (surface, self.option(param), param.short) {
            (Surface::CommandLine, Some(option), _) => format!("--{option}"),
            (Surface::CommandLine, None, Some(short)) => format!("-{short}"),
            _ => param.name.into(),
        }
    }
}

/// The rows of some stages, in the order of the table.
pub fn rows(stages: &[Stage]) -> impl Iterator<Item = (&'static GroupInfo, &'static Param)> + '_ {
    GROUPS.iter().flat_map(move |group| group.rows(stages).map(move |param| (group, param)))
}

/// The rows of this name in some stages: one, or one for each of several kinds.
pub fn named<'a>(
    stages: &'a [Stage],
    name: &'a str,
) -> impl Iterator<Item = (&'static GroupInfo, &'static Param)> + 'a {
    rows(stages).filter(move |(_, param)| param.name == name)
}

/// A list of names for a sentence: `a, b or c`.
pub fn list_of(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().into()).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Paragraphs of a doc comment, each in one line.
pub(crate) fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in text.lines().map(str::trim) {
        match (line.is_empty(), found.last_mut()) {
            (true, _) => found.push(String::new()),
            (false, Some(last)) if last.is_empty() => last.push_str(line),
            (false, Some(last)) => {
                last.push(' ');
                last.push_str(line);
            }
            (false, None) => {}
        }
    }
    found.retain(|paragraph| !paragraph.is_empty());
    if found.is_empty() { vec![String::new()] } else { found }
}
