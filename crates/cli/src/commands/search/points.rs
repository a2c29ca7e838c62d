//! Searches of an index that was built with ids of any form and payloads.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::SerializeMap;
use stratann_engine::index::Index;
use stratann_engine::manifest::{Manifest, PointFacts};
use stratann_engine::search::Answers;
use stratann_node::collections::Hit;
use stratann_node::points::{Matching, Points};
use stratann_storage::{Error, Result};

use super::Args;
use super::answer::{Answer, TextField, shown_text};
use super::result_file::{Extras, ResultFile};
use super::text::RESULTS_SHOWN;
use crate::memory;
use crate::output::Output;
use crate::point_filter::{PointFilterArgs, WithoutIndex};

/// What a search of a collection returns, or of an index with payloads.
#[derive(clap::Args)]
pub(crate) struct PointArgs {
    #[command(flatten)]
    pub(super) filter: PointFilterArgs,
    /// With payloads: print this field of the payload beside each result, such as title or author.name
    #[arg(long, value_name = "FIELD")]
    pub(super) text_field: Option<String>,
    /// With payloads: put them into --json, .jsonl and .csv
    #[arg(long)]
    pub(super) with_payload: bool,
    /// With --data: name of the vectors that are searched, where they have names
    #[arg(long, value_name = "NAME")]
    pub(super) vector_name: Option<String>,
}

impl PointArgs {
    /// The field that is printed beside each result.
    ///
    /// # Errors
    /// `BadInput` for a text that is no path.
    pub(super) fn text_field(&self) -> Result<Option<TextField>> {
        let wrong = |e: Error| Error::bad_input(format!("--text-field: {}", e.message));
        self.text_field.as_deref().map(TextField::parse).transpose().map_err(wrong)
    }

    /// Refuses what only points have. `index` is the folder of an index without payloads.
    pub(super) fn check_absent(&self, index: Option<&Path>) -> Result<()> {
        let field = self.text_field.as_ref().map(|_| "--text-field");
        let payload = self.with_payload.then_some("--with-payload");
        let vector_name = self.vector_name.as_ref().map(|_| "--vector-name");
        match (self.filter.option().or(field).or(payload).or(vector_name), index) {
            (None, _) => Ok(()),
            (Some(option), Some(index)) if vector_name.is_none() => Err(Error::bad_input(format!(
                "{option} asks for payloads, and {} has none; build it again from a file of points (`stratann build \
                 FILE.parquet -o INDEX --payload`), or search a collection with --data",
                index.display()
            ))),
            (Some(option), _) => Err(Error::bad_input(format!(
                "{option} is for collections, whose points have payloads; give --data, or leave it out"
            ))),
        }
    }
}

/// Points of an index that is searched, and those of them that a filter lets through.
pub(crate) struct SearchedPoints {
    points: Points,
    version: u64,
    field: Option<TextField>,
    payloads: bool,
    matching: Option<Arc<Matching>>,
}

impl SearchedPoints {
    /// Opens the points of an index, and finds those that match the filter. `None` where the search is about ids that
    /// are numbers alone, which the index itself has.
    ///
    /// # Errors
    /// Options about payloads of an index without; a filter that is none; two filters at once; what knows numbers alone
    /// of an index with other ids; damage; an index of a newer format.
    pub(super) fn open(args: &Args, folder: &Path) -> Result<Option<SearchedPoints>> {
        let (version, manifest) = Manifest::read(folder)?;
        let Some(facts) = &manifest.points else {
            args.points.check_absent(Some(folder))?;
            return Ok(None);
        };
        check_options(args, folder, facts)?;
        let predicate = args.points.filter.read()?;
        let field = args.points.text_field()?;
        let payloads = args.points.with_payload;
        if predicate.is_none() && field.is_none() && !payloads && facts.has_numbers() {
            return Ok(None);
        }
        let Some(points) = Points::open(folder, &manifest)? else { return Ok(None) };
        if let Some(predicate) = predicate.as_ref().filter(|_| args.points.filter.is_indexed_only()) {
            points.check_indexed(predicate)?;
        }
        let matching = predicate.map(|predicate| points.matching(&predicate)).transpose()?;
        Ok(Some(SearchedPoints { points, version, field, payloads, matching }))
    }

    /// Refuses a version of the index that is not the one whose points are open.
    ///
    /// # Errors
    /// `BadInput` for another one.
    pub(super) fn check(&self, index: &Index) -> Result<()> {
        match index.version() == self.version {
            true => Ok(()),
            false => Err(Error::bad_input(format!(
                "{} got a newer version meanwhile; run this again",
                index.folder().display()
            ))),
        }
    }

    /// The rows that match the filter; `None` without one.
    pub(super) fn matching(&self) -> Option<&Matching> {
        self.matching.as_deref()
    }

    /// Memory beside the index, by component. Ground truth needs the ids of all rows beside a filter.
    pub(super) fn memory(&self, manifest: &Manifest, has_truth: bool) -> Vec<(&'static str, u64)> {
        let mut all = vec![("ids and payloads", self.points.memory_bytes())];
        if let Some(Matching { rows, .. }) = self.matching.as_deref() {
            let ids = if has_truth { Index::ids_bytes_max(manifest) } else { 0 };
            // The rows that match, and those of them that are not deleted.
            all.push((memory::FILTER, ids + 2 * rows.bytes() as u64));
        }
        all
    }

    /// What results have beside ids and distances.
    pub(super) fn extras(&self) -> Extras<'_> {
        Extras { payloads: self.payloads, text: self.field.as_ref() }
    }

    /// Puts the results of the queries from `first` on into a file. Returns those of the first `show` queries.
    ///
    /// # Errors
    /// Damaged ids or payloads; ids that the file cannot have; a disk that is full.
    pub(super) fn take(
        &self,
        (first, answers): (usize, &Answers),
        mut file: Option<&mut ResultFile>,
        show: usize,
    ) -> Result<Vec<(usize, Vec<Hit>)>> {
        let mut shown = Vec::new();
        for (at, query) in (0..answers.counts.len()).zip(first..) {
            if file.is_none() && query >= show {
                break;
            }
            let with_payload = self.payloads || self.field.is_some();
            let hits = [self.points.hits(answers.results(at), with_payload)?];
            if let Some(file) = file.as_mut() {
                file.put_points(query, &hits, self.extras())?;
            }
            if query < show {
                shown.extend(hits.map(|hits| (query, hits)));
            }
        }
        Ok(shown)
    }

    /// The part of the report about points, with the results of the first queries.
    pub(super) fn report(&self, shown: Vec<(usize, Vec<Hit>)>) -> ShownPoints<'_> {
        let unindexed = self.matching.iter().flat_map(|found| &found.unindexed).cloned();
        let unindexed = WithoutIndex::of(&unindexed.collect::<Vec<_>>());
        ShownPoints { shown, unindexed, extras: self.extras() }
    }
}

/// Refuses options that do not go with an index of points.
fn check_options(args: &Args, folder: &Path, facts: &PointFacts) -> Result<()> {
    let refused = |why: String| Err(Error::bad_input(why));
    if args.points.vector_name.is_some() {
        return refused("--vector-name is for collections; give --data, or leave it out".into());
    }
    if let (Some(option), Some(path)) = (args.points.filter.option(), args.filter.path()) {
        return refused(format!(
            "{option} and a filter of ids, {}, are both given; give one of them (has_id is a condition of --filter)",
            path.display()
        ));
    }
    if facts.has_numbers() {
        return Ok(());
    }
    let folder = folder.display();
    if args.filter.path().is_some() {
        return refused(format!(
            "{folder} has ids that are UUIDs or strings; filter by them with --filter and the condition has_id"
        ));
    }
    if args.groundtruth.is_some() {
        return refused(format!(
            "{folder} has ids that are UUIDs or strings, and ground truth has numbers; leave --groundtruth out"
        ));
    }
    Ok(())
}

/// Results of the first queries of an index of points, in a report.
pub(super) struct ShownPoints<'a> {
    shown: Vec<(usize, Vec<Hit>)>,
    unindexed: WithoutIndex,
    extras: Extras<'a>,
}

impl Serialize for ShownPoints<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let answers: Vec<Answer<'_>> =
            self.shown.iter().map(|(query, hits)| Answer::of(*query, hits, self.extras)).collect();
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("unindexed", &self.unindexed.texts())?;
        map.serialize_entry("answers", &answers)?;
        map.end()
    }
}

impl ShownPoints<'_> {
    /// The results as text.
    pub(super) fn text(&self) -> String {
        if self.shown.is_empty() {
            return String::new();
        }
        let each = self.shown.iter();
        let each = each.map(|(query, hits)| shown_text(*query, hits, RESULTS_SHOWN, self.extras.text));
        format!("nearest first, id (distance):\n{}\n", each.collect::<String>())
    }

    /// Notes that payloads were read.
    pub(super) fn note(&self, output: Output) {
        self.unindexed.note_of_index(output);
    }
}
