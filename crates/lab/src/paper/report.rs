//! What a paper says beside what was measured: as text, as JSON, as a page of the book.

use std::path::Path;

use serde::Serialize;
use stratann_cli::output::table;
use stratann_storage::output::OutputPath;
use stratann_storage::{Error, Result};

use super::chart::{self, Chart};
use super::item::{Found, Item, Measure, Row};
use super::sets::Set;

const HEADINGS: [&str; 6] = ["quantity", "unit", "paper", "ours", "ratio", "why they differ"];

/// All items of a study.
#[derive(Serialize)]
pub(super) struct Report {
    paper: &'static str,
    /// The command, without the paths of this machine.
    command: String,
    set: Set,
    /// Cores of the machine that measured.
    cores: usize,
    items: Vec<Measured>,
}

/// One figure or table.
#[derive(Serialize)]
struct Measured {
    id: &'static str,
    title: &'static str,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<&'static str>,
    rows: Vec<Row>,
    charts: Vec<Chart>,
    /// The commands that measured it.
    commands: Vec<String>,
}

impl Report {
    pub(super) fn new(paper: &'static str, command: String, set: &Set) -> Report {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Report { paper, command, set: set.clone(), cores, items: Vec::new() }
    }

    /// Adds what was measured.
    pub(super) fn add(&mut self, item: &Item, found: Found, commands: Vec<String>) {
        let Found { rows, charts } = found;
        self.items.push(Measured { id: item.id, title: item.title, left_out: None, rows, charts, commands });
    }

    /// Adds what was not measured.
    pub(super) fn left_out(&mut self, item: &Item, why: &'static str) {
        let (id, title) = (item.id, item.title);
        let (rows, charts, commands) = Default::default();
        self.items.push(Measured { id, title, left_out: Some(why), rows, charts, commands });
    }

    /// Writes the documents and the figures.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let file = |name: String| OutputPath::check(&folder.join(name), true, &[]);
        let json = serde_json::to_vec_pretty(self).map_err(|e| Error::bad_input(e.to_string()))?;
        file(format!("{}.json", self.paper))?.write(&json)?;
        file(format!("{}.md", self.paper))?.write(self.page().as_bytes())?;
        // Earlier figures are there already.
        let last = self.items.last().filter(|item| !item.charts.is_empty());
        last.map_or(Ok(()), |item| chart::draw(&file(item.figure(self.paper))?, &item.charts))
    }

    fn scale(&self) -> String {
        format!("{}; {} cores", self.set.name, self.cores)
    }

    /// For a terminal.
    pub(super) fn text(&self) -> String {
        let mut out = format!("{}: {}\n", self.paper, self.scale());
        for item in &self.items {
            out += &format!("\n{}: {}\n", item.id, item.title);
            match item.left_out {
                Some(why) => out += &format!("left out: {why}\n"),
                None => out += &item.text(),
            }
        }
        out
    }

    /// As Markdown.
    pub(super) fn page(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | ").replace('\n', " "));
        let mut out = format!("`{}`: {}.\n", self.command, self.scale());
        for item in &self.items {
            out += &format!("\n**{}**: {}\n\n", item.id, item.title);
            if let Some(why) = item.left_out {
                out += &format!("Left out: {why}.\n");
                continue;
            }
            out += &line(&HEADINGS.map(String::from));
            out += "|---|---|---|---|---|---|\n";
            item.cells().iter().for_each(|cells| out += &line(cells));
        }
        out
    }
}

impl Measured {
    fn cells(&self) -> Vec<Vec<String>> {
        self.rows.iter().map(Row::cells).collect()
    }

    /// A table, with the reasons below: they are long.
    fn text(&self) -> String {
        let mut reasons: Vec<String> = Vec::new();
        let mut number_of = |why: String| {
            let known = reasons.iter().position(|known| *known == why);
            known.unwrap_or_else(|| {
                reasons.push(why);
                reasons.len() - 1
            })
        };
        let mut rows = self.cells();
        for cells in &mut rows {
            match cells.pop() {
                Some(why) if !why.is_empty() => cells.push(format!("({})", 1 + number_of(why))),
                _ => cells.push(String::new()),
            }
        }
        let mut out = table(&HEADINGS, &rows);
        for (at, why) in reasons.iter().enumerate() {
            out += &format!("({}) {why}\n", at + 1);
        }
        out
    }

    /// Name of the figure's file.
    fn figure(&self, paper: &str) -> String {
        format!("{paper}-{}.svg", self.id.replace(' ', "-"))
    }
}

/// What a paper has, without measuring.
#[derive(Serialize)]
pub(super) struct List<'a> {
    pub(super) paper: &'static str,
    #[serde(serialize_with = "listed")]
    pub(super) items: &'a [&'static Item],
}

fn listed<S: serde::Serializer>(items: &[&'static Item], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_seq(items.iter().map(|item| {
        let left_out = match item.measure {
            Measure::LeftOut(why) => Some(why),
            Measure::By(_) => None,
        };
        serde_json::json!({ "id": item.id, "title": item.title, "left_out": left_out })
    }))
}

impl List<'_> {
    pub(super) fn text(&self) -> String {
        let line = |item: &&Item| match item.measure {
            Measure::LeftOut(why) => format!("{}: {}; left out: {why}\n", item.id, item.title),
            Measure::By(_) => format!("{}: {}\n", item.id, item.title),
        };
        self.items.iter().map(line).collect()
    }
}
