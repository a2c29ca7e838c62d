//! Phases of a build that is split into tasks: each may begin when all tasks of those before are done.

pub mod tasks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use stratann_params::build::GraphOptions;
use stratann_params::choices::{CodePlace, OnBadRow};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stratann_storage::data_file::FileEntry;
use stratann_storage::names::FileName;
use stratann_storage::{Error, Quiet, Result};

use crate::curve::Curve;
use crate::dataset::{self, Reader, Scan};
use crate::kinds::disk_graph::build::divide::Division;
use crate::kinds::disk_graph::build::graph_stage::{self, GraphFacts};
use crate::kinds::disk_graph::build::{
    DIVIDE, GRAPH, HEAD, NUMBERED, divide, layout_stage, merge, report_layout,
};
use crate::kinds::known::facts as facts_of;
use crate::kinds::options::KindOptions;
use crate::kinds::section::Section;
use crate::manifest::PARTIAL;
use crate::stages::blocks::layout::LayoutFacts;
use crate::stages::blocks::write::Written;
use crate::stages::build::{Build, Parts, ScanFacts, made_with};
use crate::stages::codes::CodeErrors;
use crate::stages::options::BuildOptions;
use crate::stages::plan::{BuildPlan, check_disk};
use crate::stages::publish;
use crate::stages::report::BuildReport;
use crate::stages::space::Space;
use crate::stages::stage::{CALIBRATE, CODEBOOK, CODES, LAYOUT, SCAN, Stage};
use crate::stages::state::{self, Partial, facts};
use tasks::{Done, IdFacts, Job, ScanPart, Task, joined};

/// Tasks that may be done at the same time, in any order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// Name of the work, for a person.
    pub name: &'static str,
    /// Unit of the tasks.
    pub unit: &'static str,
    /// Tasks that are not done yet, those first that take longest, with their measure.
    pub tasks: Vec<(String, u64)>,
    /// Measure of all its tasks, those done before included.
    pub total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Scan,
    Sample,
    Nearest,
    Divide,
    Graph,
    Merge,
    Pack,
    Number,
    Codes,
    Blocks,
    Join,
    Calibrate,
}

/// Marks in the state: whether the rows are divided into cells, and the steps that end no stage.
const DIVIDED: Stage = Stage::named("divided");
const CENTROIDS: Stage = Stage::named("centroids");
const NEAREST: Stage = Stage::named("nearest");
const CELLS: Stage = Stage::named("cells");
const ENCODED: Stage = Stage::named("encoded");
const PACKED: Stage = Stage::named("packed");
const BLOCKS: Stage = Stage::named("blocks");

/// A task, and how much work it is beside the others of its step.
type TaskAndWork = (Task, u64);

const STEPS: [Step; 12] = [
    Step::Scan,
    Step::Sample,
    Step::Nearest,
    Step::Divide,
    Step::Graph,
    Step::Merge,
    Step::Pack,
    Step::Number,
    Step::Codes,
    Step::Blocks,
    Step::Join,
    Step::Calibrate,
];

/// Words of a step, for a person.
struct StepWords {
    /// The stage in the report.
    stage: Stage,
    name: &'static str,
    /// Unit of its tasks.
    unit: &'static str,
}

impl Step {
    const fn words(self) -> StepWords {
        let (stage, name, unit) = match self {
            Step::Scan => (SCAN, "checking vectors", "rows"),
            Step::Sample => (CODEBOOK, "preparing codes", "tasks"),
            Step::Nearest => (DIVIDE, "dividing into cells", "rows"),
            Step::Divide => (DIVIDE, "joining the division", "tasks"),
            Step::Graph => (GRAPH, "graph", "points"),
            Step::Merge => (GRAPH, "merging cells", "nodes"),
            Step::Pack => (LAYOUT, "packing", "nodes"),
            Step::Number => (LAYOUT, "giving ids", "tasks"),
            Step::Codes => (CODES, "joining codes", "tasks"),
            Step::Blocks => (LAYOUT, "writing blocks", "nodes"),
            Step::Join => (LAYOUT, "joining blocks", "tasks"),
            Step::Calibrate => (CALIBRATE, "calibrating", "tasks"),
        };
        StepWords { stage, name, unit }
    }
}

/// A build that others do, task by task. It holds the folder's lock.
pub struct Split {
    base: Reader,
    out: PathBuf,
    options: BuildOptions,
    plan: BuildPlan,
    partial: Partial,
    number: u64,
    report: BuildReport,
    _lock: crate::stages::state::FolderLock,
}

impl Split {
    /// Begins a build, or goes on with one.
    ///
    /// # Errors
    /// As [`crate::build::build`], as far as it can be known beforehand.
    pub fn begin(base: Reader, out: &Path, options: BuildOptions) -> Result<Split> {
        if !facts_of(options.kind()).is_built_in_tasks {
            return Err(Error::bad_input(
                "a hybrid-ivf is not built by several processes; build it on one machine with `stratann build`",
            ));
        }
        let plan = crate::kinds::checked_plan(&base, &options)?;
        let (number, lock) = crate::stages::folder::claim_folder(out, options.force)?;
        check_disk(out, plan.disk_bytes)?;
        let partial = Partial::open(out, made_with(&base, number, &options), options.resume)?;
        let report = BuildReport::default();
        Ok(Split { base, out: out.into(), options, plan, partial, number, report, _lock: lock })
    }

    /// Division of the work, in a line for a person.
    pub fn describe(&self) -> String {
        self.plan.describe()
    }

    /// Facts that processes need to do the tasks of this phase.
    pub fn job(&self) -> Job {
        Job { number: self.number, state: self.partial.state().clone() }
    }

    /// The phase that is to be done now; `None` when all are.
    ///
    /// # Errors
    /// Rows that cannot be read.
    pub fn phase(&self) -> Result<Option<Phase>> {
        let Some((step, all)) = self.current()? else { return Ok(None) };
        let StepWords { name, unit, .. } = step.words();
        let total = all.iter().map(|t| t.1).sum();
        let mut tasks: Vec<(String, u64)> = all.into_iter().map(|(t, work)| (t.to_string(), work)).collect();
        tasks.retain(|(name, _)| self.partial.task_facts(name).is_none());
        // Equal tasks keep their order.
        tasks.sort_by_key(|t| std::cmp::Reverse(t.1));
        Ok(Some(Phase { name, unit, tasks, total }))
    }

    /// The first step that has tasks, and all of them.
    fn current(&self) -> Result<Option<(Step, Vec<TaskAndWork>)>> {
        for step in STEPS {
            let tasks = self.tasks(step)?;
            if !tasks.is_empty() {
                return Ok(Some((step, tasks)));
            }
        }
        Ok(None)
    }

    /// The tasks of a step; none when it is behind, or this build does without.
    fn tasks(&self, step: Step) -> Result<Vec<TaskAndWork>> {
        let has = |stage: Stage| self.partial.has(stage);
        let mut tasks = Vec::new();
        let KindOptions::DiskGraph(own) = &self.options.kind else {
            match step {
                Step::Scan if !has(SCAN) => self.scan_tasks(&mut tasks),
                Step::Blocks if !has(LAYOUT) => tasks.push((Task::Flat, self.base.shape().rows)),
                _ => {}
            }
            return Ok(tasks);
        };
        match step {
            Step::Scan if !has(SCAN) => self.scan_tasks(&mut tasks),
            Step::Sample => {
                if !has(CODEBOOK) {
                    tasks.push((Task::Codebook, 1));
                }
                if !has(GRAPH) && !has(DIVIDE) && !has(CENTROIDS) && self.is_divided(own)? {
                    tasks.push((Task::Centroids, 1));
                }
            }
            Step::Nearest if !has(GRAPH) && !has(DIVIDE) && !has(NEAREST) && self.is_divided(own)? => {
                self.each_part(Task::Nearest, &mut tasks);
            }
            Step::Divide if !has(GRAPH) && !has(DIVIDE) && self.is_divided(own)? => {
                tasks.push((Task::Divide, 1));
            }
            Step::Graph => {
                if !has(GRAPH) && !has(CELLS) {
                    match self.partial.facts::<Division>(DIVIDE) {
                        Some(d) => {
                            tasks.extend((0..d.cells.len()).map(|c| (Task::Cell(c), d.members_of(c))));
                        }
                        None => tasks.push((Task::Graph, self.base.shape().rows)),
                    }
                }
                if !has(CODES) && !has(ENCODED) {
                    // Little work beside the graph's: it fills what the last cells leave idle.
                    let parts = Parts { rows: self.base.shape().rows }.count();
                    tasks.extend((0..parts).map(|part| (Task::Encode(part), 0)));
                }
            }
            Step::Merge if !has(GRAPH) => {
                let division: Division = facts(&self.partial, DIVIDE)?;
                let cells = division.cells.iter().enumerate();
                tasks.extend(cells.map(|(c, at)| (Task::Merge(c), u64::from(at.end - at.start))));
            }
            Step::Pack if !has(LAYOUT) && !has(PACKED) && !has(NUMBERED) => {
                self.each_cell(Task::Pack, &mut tasks)?;
            }
            Step::Number if !has(LAYOUT) && !has(NUMBERED) => tasks.push((Task::Number, 1)),
            // Blocks that carry codes are made from all of them.
            Step::Codes if own.codes == CodePlace::Disk && !has(CODES) => {
                tasks.push((Task::Codes, 1));
            }
            Step::Blocks => {
                if !has(LAYOUT) && !has(BLOCKS) {
                    self.each_cell(Task::Blocks, &mut tasks)?;
                }
                let rest = [(CODES, Task::Codes), (HEAD, Task::Head)];
                tasks.extend(rest.into_iter().filter(|(stage, _)| !has(*stage)).map(|(_, task)| (task, 0)));
            }
            Step::Join if !has(LAYOUT) => tasks.push((Task::Join, 1)),
            Step::Calibrate if !has(CALIBRATE) => tasks.push((Task::Calibrate, 1)),
            _ => {}
        }
        Ok(tasks)
    }

    /// Whether the graph is built in cells.
    fn is_divided(&self, own: &GraphOptions) -> Result<bool> {
        if let Some(known) = self.partial.facts(DIVIDED) {
            return Ok(known);
        }
        let scan: ScanFacts = facts(&self.partial, SCAN)?;
        let rows = self.base.shape().rows - scan.skipped.len() as u64;
        let ScanFacts { skipped, max_squared_norm, .. } = scan;
        let scan = Scan { rows, skipped, max_squared_norm, ..Scan::default() };
        let space = Space::choose(&self.base, self.options.metric, &scan, own.exact_points)?;
        Ok(!graph_stage::is_in_one(&self.plan, &self.options, own, &space, rows))
    }

    fn each_part(&self, task: fn(usize) -> Task, tasks: &mut Vec<TaskAndWork>) {
        let parts = Parts { rows: self.base.shape().rows };
        let rows = |part| parts.rows_of(part).end - parts.rows_of(part).start;
        tasks.extend((0..parts.count()).map(|part| (task(part), rows(part))));
    }

    fn each_cell(&self, task: fn(usize) -> Task, tasks: &mut Vec<TaskAndWork>) -> Result<()> {
        let graph: GraphFacts = facts(&self.partial, GRAPH)?;
        let cells = graph.cells.iter().enumerate();
        tasks.extend(cells.map(|(c, at)| (task(c), u64::from(at.end - at.start))));
        Ok(())
    }

    fn scan_tasks(&self, tasks: &mut Vec<TaskAndWork>) {
        self.each_part(Task::Scan, tasks);
        if self.options.ids.is_some() {
            tasks.push((Task::Ids, 0));
        }
    }

    /// Takes what came of the tasks of this phase, by name; those that were done before it knows itself. `seconds` is
    /// how long they took.
    ///
    /// # Errors
    /// A row that cannot be indexed, by number; tasks that are missing.
    pub fn complete(&mut self, mut done: BTreeMap<String, Done>, seconds: f64) -> Result<()> {
        let Some((step, tasks)) = self.current()? else { return Ok(()) };
        let mut all = Vec::with_capacity(tasks.len());
        for (task, _) in tasks {
            let name = task.to_string();
            let facts = match done.remove(&name) {
                Some(done) => {
                    self.report.peak_rss_bytes = self.report.peak_rss_bytes.max(done.peak_rss_bytes);
                    Some(done.facts)
                }
                None => self.partial.task_facts(&name),
            };
            let missing =
                || Error::bad_input(format!("the task {name} was not done; run all tasks of a phase"));
            all.push((task, facts.ok_or_else(missing)?));
        }
        *self.report.stages.entry(step.words().stage.reported.into()).or_default() += seconds;
        match step {
            Step::Scan => self.complete_scan(all),
            Step::Graph | Step::Merge => self.complete_graph(all),
            Step::Codes | Step::Blocks => self.complete_blocks(all),
            _ => self.complete_other(step, all),
        }
    }

    fn complete_scan(&mut self, all: Vec<(Task, Value)>) -> Result<()> {
        let mut scan = ScanFacts {
            skipped: Vec::new(),
            max_squared_norm: 0.0,
            largest_id: self.base.shape().rows,
            drawn: Vec::new(),
            content: 0,
        };
        for (task, facts) in all {
            if task == Task::Ids {
                let ids: IdFacts = read(facts)?;
                scan.largest_id = ids.largest;
                scan.content = scan.content.wrapping_add(ids.content);
                continue;
            }
            let part: ScanPart = read(facts)?;
            scan.skipped.extend(part.skipped);
            scan.max_squared_norm = scan.max_squared_norm.max(part.max_squared_norm);
            scan.content = scan.content.wrapping_add(part.content);
        }
        if let (OnBadRow::Fail, Some(&row)) = (self.options.on_bad_row, scan.skipped.first()) {
            dataset::refuse_row(&self.base, self.options.metric, row)?;
        }
        let rows = self.base.shape().rows - scan.skipped.len() as u64;
        if rows == 0 {
            return Err(dataset::no_good_row(&self.base));
        }
        let ScanFacts { skipped, max_squared_norm, .. } = scan.clone();
        let found = Scan { rows, skipped, max_squared_norm, ..Scan::default() };
        scan.drawn = self.build().draw(&found);
        self.partial.finish(SCAN, &scan)?;
        if let KindOptions::DiskGraph(own) = &self.options.kind {
            let divided = self.is_divided(own)?;
            self.partial.finish(DIVIDED, &divided)?;
        }
        Ok(())
    }

    fn complete_graph(&mut self, all: Vec<(Task, Value)>) -> Result<()> {
        let (mut errors, mut edges, mut merged) = (Vec::new(), 0u64, false);
        for (task, facts) in all {
            match task {
                Task::Graph => self.partial.finish(GRAPH, &read::<GraphFacts>(facts)?)?,
                Task::Encode(_) => errors.push(read::<CodeErrors>(facts)?),
                Task::Merge(_) => {
                    edges += read::<u64>(facts)?;
                    merged = true;
                }
                _ => {}
            }
        }
        if merged {
            let division: Division = facts(&self.partial, DIVIDE)?;
            let cells = division.cells.len();
            self.partial.finish(GRAPH, &GraphFacts::new(division.cells, edges))?;
            merge::remove_lists(&self.build(), cells);
            return Ok(());
        }
        if !errors.is_empty() {
            self.partial.finish(ENCODED, &CodeErrors::mean(errors))?;
        }
        self.partial.finish(CELLS, &())
    }

    fn complete_blocks(&mut self, all: Vec<(Task, Value)>) -> Result<()> {
        let mut written: Option<Written> = None;
        for (task, found) in all {
            match task {
                Task::Blocks(_) => written.get_or_insert_default().add(&read(found)?),
                Task::Codes => {
                    let error: f32 = facts(&self.partial, ENCODED)?;
                    self.partial.finish(CODES, &error)?;
                }
                Task::Head => self.partial.finish(HEAD, &())?,
                _ => self.partial.finish(LAYOUT, &read::<LayoutFacts>(found)?)?,
            }
        }
        written.map_or(Ok(()), |written| self.partial.finish(BLOCKS, &written))
    }

    fn complete_other(&mut self, step: Step, all: Vec<(Task, Value)>) -> Result<()> {
        for (task, found) in all {
            match task {
                Task::Codebook => self.partial.finish(CODEBOOK, &found)?,
                Task::Centroids => self.partial.finish(CENTROIDS, &())?,
                Task::Divide => {
                    self.partial.finish(DIVIDE, &read::<Division>(found)?)?;
                    divide::remove_nearest(&self.build());
                }
                Task::Number => self.partial.finish(NUMBERED, &())?,
                Task::Join => {
                    let (layout, entry): (LayoutFacts, FileEntry) = read(found)?;
                    self.partial.finish(publish::FILES, &joined(self.number, entry))?;
                    self.partial.finish(LAYOUT, &layout)?;
                    let graph: GraphFacts = facts(&self.partial, GRAPH)?;
                    layout_stage::remove_parts(&self.build(), graph.cells.len());
                }
                Task::Calibrate => {
                    let (curves, entries): (Vec<Curve>, BTreeMap<FileName, FileEntry>) = read(found)?;
                    self.partial.finish(publish::FILES, &entries)?;
                    self.partial.finish(CALIBRATE, &curves)?;
                }
                _ => {}
            }
        }
        match step {
            Step::Nearest => self.partial.finish(NEAREST, &()),
            Step::Pack => self.partial.finish(PACKED, &()),
            _ => Ok(()),
        }
    }

    fn build(&mut self) -> Build<'_> {
        Build::new(&self.base, &self.options, &self.plan, &mut self.partial, self.number, &Quiet)
    }

    /// Publishes the index, when all phases are complete.
    ///
    /// # Errors
    /// A phase that is not complete; what the disk says.
    pub fn publish(mut self) -> Result<BuildReport> {
        if let Some(phase) = self.phase()? {
            return Err(Error::bad_input(format!("{} is not done; complete all phases first", phase.name)));
        }
        let report = std::mem::take(&mut self.report);
        let out = self.out.clone();
        let mut build = self.build();
        build.report = report;
        let scan = build.take_scan(facts(build.partial, SCAN)?);
        let layout: LayoutFacts = facts(build.partial, LAYOUT)?;
        let manifest = match &build.options.kind {
            KindOptions::DiskGraph(own) => {
                let code_error: f32 = facts(build.partial, CODES)?;
                let mut manifest =
                    publish::manifest(&build, scan.rows, layout.blocks, code_error, Section::None {})?;
                manifest.curves = facts(build.partial, CALIBRATE)?;
                let graph: GraphFacts = facts(build.partial, GRAPH)?;
                let space = build.space(&scan, own.exact_points)?;
                report_layout(&mut build, &space, &graph, &layout);
                manifest
            }
            _ => publish::manifest(&build, scan.rows, layout.blocks, 0.0, Section::None {})?,
        };
        build.partial.finish(publish::FILES, &manifest.files)?;
        publish::publish(build, &out, &manifest)
    }

    /// Removes the unfinished build: it cannot be resumed.
    pub fn abandon(self) {
        let out = self.out.clone();
        state::abandon(&out);
        drop(self);
        // An empty folder was made by this build.
        let _ = std::fs::remove_dir(out);
    }

    /// Remedy, for an error that ends the build.
    pub fn hint(&self) -> String {
        format!("run the same build with --resume to go on, or delete {}", self.out.join(PARTIAL).display())
    }
}

/// The facts of a task.
fn read<T: for<'a> Deserialize<'a>>(facts: Value) -> Result<T> {
    serde_json::from_value(facts).map_err(|e| Error::corrupt(format!("facts of a build's task: {e}")))
}
