//! The parameters that a user gave, and what is refused of them: one text for every surface.

use std::fmt;

use crate::choices::IndexKind;
use crate::param::{Group, GroupInfo, Param, Place, Stage, Surface, list_of, named, rows};
use crate::retired::retired;
use crate::value::{Unit, Value};

/// A parameter that is refused: what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong(pub String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// Stages, kinds, place and surface that parameters are given for.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The stages whose parameters may be given.
    pub stages: &'static [Stage],
    /// Kind of the index, or of several that are searched as one; empty before it is known.
    pub kinds: Vec<IndexKind>,
    /// Place where queries are searched.
    pub place: Place,
    /// Surface on which the parameters are named.
    pub surface: Surface,
}

/// One parameter as a user gave it.
#[derive(Clone, Debug, PartialEq)]
struct Entry {
    name: &'static str,
    value: Value,
    /// The text of the user.
    written: String,
}

/// The parameters that a user gave, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Given {
    entries: Vec<Entry>,
}

impl Given {
    /// Whether nothing is given.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a parameter is given.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.name == name)
    }

    /// Every value of a parameter.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.entries.iter().filter(move |entry| entry.name == name).map(|entry| &entry.value)
    }

    /// Takes a value of a row of the table.
    pub fn push(&mut self, name: &'static str, value: Value, written: String) {
        self.entries.push(Entry { name, value, written });
    }

    /// The first parameter that only the laboratory has: as it was written, with its values.
    pub fn of_lab(&self, stages: &'static [Stage]) -> Option<String> {
        let is_of_lab = |entry: &&Entry| named(stages, entry.name).any(|(_, param)| param.is_of_lab);
        let first = self.entries.iter().find(is_of_lab)?;
        let values: Vec<String> = self.values(first.name).map(Value::to_string).collect();
        Some(format!("{} {}", first.written, values.join(",")))
    }

    /// Takes what others gave for parameters that are not given here.
    pub fn or(mut self, others: Given) -> Given {
        let absent: Vec<Entry> = others.entries.into_iter().filter(|entry| !self.has(entry.name)).collect();
        self.entries.extend(absent);
        self
    }

    /// Takes what others gave, too.
    pub fn extend(&mut self, others: &Given) {
        self.entries.extend(others.entries.iter().cloned());
    }

    /// Takes a parameter by its name.
    ///
    /// # Errors
    /// A name that the stages do not have, with a similar one of the kind; a value of another type.
    pub fn add(&mut self, scope: &Scope, name: &str, value: Value) -> Result<(), Wrong> {
        let all: Vec<_> = named(scope.stages, name).filter(|(_, param)| param.is_on(scope.surface)).collect();
        let Some((group, param)) = all.first() else {
            return Err(scope.unknown(name, &[]));
        };
        let shown = group.name_on(scope.surface, param);
        let value = match value {
            // Such as 512MiB.
            Value::Text(text) if param.unit == Unit::Bytes => {
                param.parse(&text).map_err(|why| Wrong(format!("{shown} is {text:?}: {why}")))?
            }
            value => value,
        };
        if !all.iter().any(|(group, param)| group.accepts(param, &value)) {
            return Err(Wrong(format!(
                "{shown} is {}; {}",
                scope.surface.shown(&value),
                param.wanted(scope.surface)
            )));
        }
        self.push(param.name, value, shown);
        Ok(())
    }

    /// Refuses what the kind or the place does not have, numbers out of range, and what does not go together.
    ///
    /// # Errors
    /// The first such parameter.
    pub fn check(&self, scope: &Scope) -> Result<(), Wrong> {
        for entry in &self.entries {
            let all: Vec<_> = named(scope.stages, entry.name).collect();
            let of_kind = |(group, param): &&(&'static GroupInfo, &'static Param)| {
                scope.has_kind(group.kinds_of(param))
            };
            let Some((group, param)) = all.iter().find(of_kind) else {
                return Err(scope.foreign(entry, &all));
            };
            let here = all.iter().filter(of_kind).any(|(_, param)| param.places.contains(&scope.place));
            if !here && !all.is_empty() {
                return Err(scope.misplaced(entry));
            }
            self.check_entry(entry, (group, param), scope)?;
        }
        Ok(())
    }

    /// Refuses numbers out of range, and what does not go together, before kind and place are known.
    ///
    /// # Errors
    /// The first such parameter.
    pub fn check_values(&self, scope: &Scope) -> Result<(), Wrong> {
        for entry in &self.entries {
            if let Some(row) = named(scope.stages, entry.name).next() {
                self.check_entry(entry, row, scope)?;
            }
        }
        Ok(())
    }

    /// Given values by their names.
    pub fn values_by_name(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.entries.iter().map(|entry| (entry.name, &entry.value))
    }

    fn check_entry(
        &self,
        entry: &Entry,
        (group, param): (&GroupInfo, &Param),
        scope: &Scope,
    ) -> Result<(), Wrong> {
        let written = &entry.written;
        if entry.value.number().is_some_and(|number| !param.range.contains(&number))
            || !group.accepts(param, &entry.value)
        {
            return Err(Wrong(format!(
                "{written} is {}; {}",
                scope.surface.shown(&entry.value),
                param.wanted(scope.surface)
            )));
        }
        let differs = |other: &&Entry| other.name == entry.name && other.value != entry.value;
        let is_several = param.is_list || param.is_swept;
        if let Some(other) = self.entries.iter().find(differs).filter(|_| !is_several) {
            return Err(Wrong(format!("{written} and {} are both given; give one of them", other.written)));
        }
        let shown = |name: &str| {
            named(scope.stages, name)
                .next()
                .map_or(name.to_string(), |(group, param)| group.name_on(scope.surface, param))
        };
        if let Some(other) = param.conflicts.iter().find(|other| self.has(other)) {
            return Err(Wrong(format!("{written} and {} are both given; give one of them", shown(other))));
        }
        if !param.requires.is_empty() && !param.requires.iter().any(|other| self.has(other)) {
            let others = list_of(param.requires.iter().map(|other| shown(other)));
            return Err(Wrong(format!("{written} goes with {others}; leave it out, or give both")));
        }
        Ok(())
    }

    /// The kinds of `among` that have all that is given, for an automatic choice of the kind.
    ///
    /// # Errors
    /// When no kind has it.
    pub fn kinds(&self, stages: &'static [Stage], among: &[IndexKind]) -> Result<Vec<IndexKind>, Wrong> {
        let mut left = among.to_vec();
        let mut narrowed: Option<&Entry> = None;
        for entry in &self.entries {
            let all: Vec<_> = named(stages, entry.name).collect();
            if all.iter().any(|(_, param)| param.keeps_auto) {
                continue;
            }
            let has =
                |kind: &IndexKind| all.iter().any(|(group, param)| group.kinds_of(param).contains(kind));
            let next: Vec<IndexKind> = left.iter().copied().filter(has).collect();
            if next.is_empty() {
                let kinds = list_of(IndexKind::ALL.iter().filter(|kind| has(kind)).map(|kind| kind.name()));
                return Err(Wrong(match narrowed.filter(|_| among.iter().any(has)) {
                    Some(other) => format!(
                        "no kind of index has both {} and {}, which is for {kinds}; leave one of them out",
                        other.written, entry.written
                    ),
                    None => format!(
                        "{} is for {kinds}, and an automatic choice is among {}; give the kind, or leave it out",
                        entry.written,
                        list_of(among.iter().map(|kind| kind.name()))
                    ),
                }));
            }
            if next.len() < left.len() {
                narrowed = Some(entry);
            }
            left = next;
        }
        Ok(left)
    }

    /// Given values of each run: one run for each value of a parameter that has several.
    pub fn runs(&self) -> Vec<Given> {
        let several = |entry: &&Entry| self.values(entry.name).count() > 1;
        let is_swept = |name: &str| named(&[Stage::Search], name).any(|(_, param)| param.is_swept);
        let Some(swept) = self.entries.iter().find(|entry| several(entry) && is_swept(entry.name)) else {
            return vec![self.clone()];
        };
        let others = self.entries.iter().filter(|entry| entry.name != swept.name);
        let of_run = |value: &Value| {
            let own = Entry { value: value.clone(), ..swept.clone() };
            Given { entries: others.clone().cloned().chain([own]).collect() }
        };
        self.values(swept.name).map(of_run).collect()
    }

    /// The struct of a group with the values that are given.
    pub fn read<G: Group>(&self) -> G {
        let mut group = G::default();
        for entry in &self.entries {
            group.set(entry.name, &entry.value);
        }
        group
    }
}

impl Scope {
    /// Whether one of these kinds is here.
    fn has_kind(&self, kinds: &[IndexKind]) -> bool {
        self.kinds.is_empty() || self.kinds.iter().any(|kind| kinds.contains(kind))
    }

    /// The rows of the kind and the place.
    fn rows(&self) -> impl Iterator<Item = (&'static GroupInfo, &'static Param)> {
        rows(self.stages).filter(|(group, param)| {
            self.has_kind(group.kinds_of(param)) && param.places.contains(&self.place)
        })
    }

    /// The names that may be given: those of the kind, where it is known.
    pub fn names(&self) -> Vec<String> {
        let here: Vec<_> = self.rows().collect();
        let on_surface = here.iter().filter(|(_, param)| param.is_on(self.surface));
        let mut names: Vec<String> =
            on_surface.map(|(group, param)| group.name_on(self.surface, param)).collect();
        if self.surface == Surface::CommandLine {
            let is_here = |name: &str| here.iter().any(|(_, param)| param.name == name);
            let all = here.iter().flat_map(|(group, _)| group.shorthands(self.stages));
            let own = all.filter(|shorthand| shorthand.sets.iter().all(|(name, _)| is_here(name)));
            names.extend(own.map(|shorthand| format!("--{}", shorthand.name.replace('_', "-"))));
        }
        names.sort();
        names.dedup();
        names
    }

    /// The error for a name that the table does not have, with a similar one of the kind or of `others`.
    pub fn unknown(&self, name: &str, others: &[&str]) -> Wrong {
        if let Some(gone) = retired(self.stages, name, self.surface) {
            return gone;
        }
        let names = [self.names(), others.iter().map(|&other| other.into()).collect()].concat();
        unknown_among(name, &names)
    }

    fn foreign(&self, entry: &Entry, rows: &[(&'static GroupInfo, &'static Param)]) -> Wrong {
        let mut kinds: Vec<IndexKind> =
            rows.iter().flat_map(|(group, param)| group.kinds_of(param).iter().copied()).collect();
        kinds.dedup();
        let kinds = list_of(kinds.iter().map(|kind| kind.name()));
        let kind = list_of(self.kinds.iter().map(|kind| kind.name()));
        let this = self.stages.first().map_or(String::new(), |stage| stage.describe(&kind));
        let role = rows.first().map_or("", |(_, param)| param.role);
        let instead = self.instead(role);
        let remedy = match instead.is_empty() {
            true => "leave it out".to_string(),
            false => format!("give {} instead", list_of(instead)),
        };
        Wrong(format!("{} is for {kinds}, and {this}; {remedy}", entry.written))
    }

    /// Parameters that the kind has for the same purpose.
    fn instead(&self, role: &str) -> Vec<String> {
        let same = self.rows().filter(|(_, param)| !role.is_empty() && param.role == role);
        let here = same.filter(|(_, param)| param.is_on(self.surface));
        let mut names: Vec<String> = here.map(|(group, param)| group.name_on(self.surface, param)).collect();
        names.dedup();
        names
    }

    fn misplaced(&self, entry: &Entry) -> Wrong {
        let written = &entry.written;
        if self.stages.contains(&Stage::Serve) {
            return Wrong(match self.place {
                Place::Part => format!("{written} is for a server of a whole index; leave it out"),
                Place::MemoryNodes => {
                    format!(
                        "{written} is for an index in a folder, and memory nodes hold this one; leave it out"
                    )
                }
                Place::Collections => {
                    format!("{written} is for a server of an index, and collections are served; leave it out")
                }
                _ => format!(
                    "{written} is for a server of a partition, and this index is not partitioned; leave it out"
                ),
            });
        }
        Wrong(match (self.place, self.surface) {
            (Place::Servers, Surface::CommandLine) => format!(
                "{written} cannot be used with --connect: it is for an index that this process opens; leave it out"
            ),
            (Place::MemoryNodes, Surface::CommandLine) => {
                format!("{written} cannot be used with --memory; leave it out")
            }
            (Place::Collections, Surface::CommandLine) => {
                format!("{written} cannot be used with --data: it is for a search of an index; leave it out")
            }
            (Place::Folder, Surface::CommandLine) => {
                format!("{written} is for a search on servers, with --connect; leave it out")
            }
            (Place::Folder, _) => format!("{written} is for a search on servers; leave it out"),
            (place, _) => format!("{written} cannot be used in {}; leave it out", place.describe()),
        })
    }
}

/// The error for a name that is none of `known`, with the one that is most like it.
pub fn unknown_among(name: &str, known: &[String]) -> Wrong {
    Wrong(match similar(name, known) {
        Some(near) => format!("there is no parameter {name}; use {near}"),
        None => format!("there is no parameter {name}; leave it out"),
    })
}

/// The name that is most like a misspelt one; `None` where none is.
pub fn similar<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let plain = |text: &str| text.trim_start_matches('-').replace('-', "_");
    let name = plain(name);
    let distance = |known: &&'a String| edits(&name, &plain(known));
    let near = known.iter().min_by_key(distance)?;
    (distance(&near) <= (name.chars().count() / 3).max(1)).then_some(near)
}

/// Letters to insert, delete or replace between two texts (Levenshtein).
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}
