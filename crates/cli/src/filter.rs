//! Filters that a user names: files of ids.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use stratann_core::sieve::Sieve;
use stratann_engine::dataset::{IdLists, read_all_ids, read_id_lists};
use stratann_engine::index::Index;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Filter, FilterReport, Filters, Naming, SearchOptions, SieveWay};
use stratann_storage::{Error, Progress, Result};

use crate::output::count;

/// Options of a filter for all queries.
#[derive(clap::Args)]
pub(crate) struct FilterArgs {
    /// Return only rows with these ids: a .npy, .u64bin or .txt file, in any order
    ///
    /// Ids are those of the index (--ids at build), else row numbers. Ids that no row has are ignored and counted, but
    /// in memory nodes, which do not tell. Recall is then that among these rows.
    #[arg(long, value_name = "IDS", conflicts_with = "without", help_heading = "Filter")]
    only: Option<PathBuf>,
    /// Return no row with these ids: a file as that of --only
    #[arg(long, value_name = "IDS", help_heading = "Filter")]
    without: Option<PathBuf>,
}

/// Options of a filter for all queries, or of one for each.
#[derive(clap::Args)]
pub(crate) struct QueryFilterArgs {
    #[command(flatten)]
    shared: FilterArgs,
    /// As --only, with ids of its own for each query: a .txt file with a line for each, or a .npy file with a row for
    /// each
    ///
    /// Ids in a line have spaces or commas between them. An empty line: no row matches.
    #[arg(
        long,
        value_name = "LISTS",
        conflicts_with_all = ["only", "without", "without_per_query"],
        help_heading = "Filter"
    )]
    only_per_query: Option<PathBuf>,
    /// As --without, with ids of its own for each query: a file as that of --only-per-query
    #[arg(long, value_name = "LISTS", conflicts_with_all = ["only", "without"], help_heading = "Filter")]
    without_per_query: Option<PathBuf>,
}

/// Ids that a user names.
#[derive(Clone, Debug)]
pub(crate) struct NamedIds {
    pub(crate) naming: Naming,
    /// One list, or one for each query.
    pub(crate) lists: IdLists,
    is_each: bool,
}

/// Ids that the queries of a request may return, or may not: one list for all of them, or one for each.
#[derive(Clone, Debug)]
pub(crate) struct RequestIds<'a> {
    pub(crate) naming: Naming,
    pub(crate) lists: Vec<&'a [u64]>,
    pub(crate) is_each: bool,
}

impl<'a> RequestIds<'a> {
    /// Those of some queries, by their positions in the request. A list for all is there once.
    pub(crate) fn of(&self, queries: &[usize]) -> RequestIds<'a> {
        let own = |&query: &usize| self.lists.get(query).copied().unwrap_or(&[]);
        let lists = if self.is_each { queries.iter().map(own).collect() } else { self.lists.clone() };
        RequestIds { lists, ..*self }
    }
}

impl FilterArgs {
    fn named(&self) -> Option<(&Path, Naming)> {
        let only = self.only.as_deref().map(|path| (path, Naming::Only));
        only.or(self.without.as_deref().map(|path| (path, Naming::Without)))
    }

    /// The file; `None` without a filter.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.named().map(|(path, _)| path)
    }

    /// Reads the ids.
    ///
    /// # Errors
    /// A file that cannot be read, or is no file of ids.
    pub(crate) fn read(&self) -> Result<Option<NamedIds>> {
        let read = |(path, naming)| {
            Ok(NamedIds { naming, lists: IdLists::from(read_all_ids(path)?), is_each: false })
        };
        self.named().map(read).transpose()
    }
}

impl QueryFilterArgs {
    fn per_query(&self) -> Option<(&Path, Naming)> {
        let only = self.only_per_query.as_deref().map(|path| (path, Naming::Only));
        only.or(self.without_per_query.as_deref().map(|path| (path, Naming::Without)))
    }

    /// The file; `None` without a filter.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.shared.path().or(self.per_query().map(|(path, _)| path))
    }

    /// Reads the ids for so many queries.
    ///
    /// # Errors
    /// As [`FilterArgs::read`]; lists that are not one for each query.
    pub(crate) fn read(&self, queries: usize) -> Result<Option<NamedIds>> {
        let Some((path, naming)) = self.per_query() else { return self.shared.read() };
        let lists = read_id_lists(path)?;
        if lists.count() != queries {
            return Err(Error::bad_input(format!(
                "{} has {} lists of ids, and there are {queries} queries; give a list for each",
                path.display(),
                lists.count()
            )));
        }
        Ok(Some(NamedIds { naming, lists, is_each: true }))
    }
}

impl NamedIds {
    /// The rows of a set with these numbers: for all queries, or for each.
    ///
    /// # Errors
    /// More rows than one index has.
    pub(crate) fn rows(&self, rows: u64) -> Result<(bool, Vec<Sieve>)> {
        let sieves = self.lists.iter().map(|ids| self.naming.rows(ids, rows)).collect::<Result<_>>()?;
        Ok((self.is_each, sieves))
    }

    /// The ids of a request of some queries, by number.
    pub(crate) fn of_request(&self, queries: &[usize]) -> RequestIds<'_> {
        let all =
            RequestIds { naming: self.naming, lists: self.lists.iter().collect(), is_each: self.is_each };
        all.of(queries)
    }

    /// Whether each query has its own.
    pub(crate) fn is_each(&self) -> bool {
        self.is_each
    }

    /// The first of these ids that the filter of a query leaves out, for a list of each query's ids.
    pub(crate) fn first_left_out<'a>(
        &self,
        queries: impl Iterator<Item = &'a [u32]>,
    ) -> Option<(usize, u32)> {
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        let sorted: Vec<Vec<u64>> = self.lists.iter().map(sorted).collect();
        let is_only = self.naming == Naming::Only;
        queries.enumerate().find_map(|(query, ids)| {
            let own = sorted.get(if self.is_each { query } else { 0 })?;
            let is_out = |&&id: &&u32| own.binary_search(&id.into()).is_ok() != is_only;
            ids.iter().find(is_out).map(|&id| (query, id))
        })
    }

    /// Most memory of the filters of an index with this manifest, of these ids, and of the ids of all rows, bytes.
    pub(crate) fn bytes_max(&self, manifest: &Manifest) -> u64 {
        let lengths = self.lists.iter().map(<[u64]>::len);
        if !self.is_each {
            return Index::filter_bytes_max(manifest, lengths.sum());
        }
        let most = Index::filters_bytes_max(manifest, self.naming, lengths);
        Index::ids_bytes_max(manifest) + self.lists.bytes() + most
    }

    /// The same of an index in memory nodes.
    pub(crate) fn id_bytes_max(&self) -> u64 {
        let lengths = self.lists.iter().map(<[u64]>::len);
        self.lists.bytes() + lengths.map(Index::id_sieve_bytes_max).sum::<u64>()
    }
}

/// The filters of a search: one for all queries, or one for each.
#[derive(Clone, Debug)]
pub(crate) struct OwnFilters {
    all: Vec<Filter>,
    is_each: bool,
}

impl OwnFilters {
    /// Makes the filters of an index.
    ///
    /// # Errors
    /// As [`Index::filters`].
    pub(crate) fn new(
        index: &Index,
        named: &NamedIds,
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<OwnFilters> {
        let ids: Vec<&[u64]> = named.lists.iter().collect();
        let all = index.filters(&ids, named.naming, options, progress)?;
        Ok(OwnFilters { all, is_each: named.is_each })
    }

    /// A filter of these rows of an index, for all queries. With ground truth the ids of rows are read, too, which it
    /// is compared by.
    ///
    /// # Errors
    /// As [`Index::filter_of_rows`] and [`Index::read_ids`].
    pub(crate) fn of_rows(
        index: &Index,
        (rows, has_truth): (&Sieve, bool),
        options: &SearchOptions,
        progress: &dyn Progress,
    ) -> Result<OwnFilters> {
        if has_truth {
            index.read_ids(progress)?;
        }
        Ok(OwnFilters { all: vec![index.filter_of_rows(rows, options)?], is_each: false })
    }

    /// The same rows, for searches with other options.
    ///
    /// # Errors
    /// Bad options.
    pub(crate) fn planned(&self, index: &Index, options: &SearchOptions) -> Result<OwnFilters> {
        let all = self.all.iter().map(|filter| index.filter_for(filter, options)).collect::<Result<_>>()?;
        Ok(OwnFilters { all, is_each: self.is_each })
    }

    /// Those of some queries, by number.
    pub(crate) fn of(&self, queries: std::ops::Range<usize>) -> Filters<'_> {
        match self.all.first() {
            Some(shared) if !self.is_each => Filters::Shared(shared),
            _ => Filters::Each(self.all.get(queries).unwrap_or(&[])),
        }
    }

    /// The filter of a query.
    pub(crate) fn of_query(&self, query: usize) -> Option<&Filter> {
        self.all.get(if self.is_each { query } else { 0 })
    }

    /// Whether each query has its own.
    pub(crate) fn is_each(&self) -> bool {
        self.is_each
    }

    /// What a report says of each.
    fn reports(&self) -> Vec<FilterReport> {
        self.all.iter().map(Filter::report).collect()
    }

    /// What a report says of them.
    pub(crate) fn report(&self) -> Option<FiltersReport> {
        FiltersReport::of(&self.reports(), self.is_each)
    }

    /// A note where queries cannot have k results.
    pub(crate) fn note(&self, k: usize) -> Option<String> {
        note(&self.reports(), self.is_each, k)
    }
}

/// A note where queries cannot have k results, by what is said of their filters.
pub(crate) fn note(reports: &[FilterReport], is_each: bool, k: usize) -> Option<String> {
    let few = reports.iter().filter(|filter| (filter.matches as usize) < k).count();
    let matches = reports.iter().map(|filter| filter.matches).min().unwrap_or(0);
    match (few, is_each, matches) {
        (0, ..) => None,
        (_, false, 0) => Some("note: no row matches the filter; queries have no results".into()),
        (_, false, _) => Some(format!(
            "note: {} rows match the filter; queries have as many results, not {k}",
            count(matches.into())
        )),
        (_, true, _) => Some(format!(
            "note: fewer than {k} rows match the filters of {} queries; they have as many results",
            count(few as u64)
        )),
    }
}

/// Filters in a report.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum FiltersReport {
    /// One for all queries.
    Shared(FilterReport),
    /// One for each.
    Each(EachReport),
}

/// Filters of their own for all queries, in a report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EachReport {
    /// Rows that match the filter of a query: fewest, mean, most.
    matches: Spread,
    /// Queries by the way in which their rows were found.
    ways: BTreeMap<SieveWay, usize>,
    /// Null where that is not known.
    unknown_ids: Option<usize>,
    repeated_ids: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    least: u32,
    mean: f64,
    most: u32,
}

impl EachReport {
    fn of(each: &[FilterReport]) -> EachReport {
        let matches = || each.iter().map(|filter| filter.matches);
        let mut ways = BTreeMap::new();
        each.iter().for_each(|filter| *ways.entry(filter.way).or_default() += 1);
        EachReport {
            matches: Spread {
                least: matches().min().unwrap_or(0),
                mean: matches().map(f64::from).sum::<f64>() / each.len().max(1) as f64,
                most: matches().max().unwrap_or(0),
            },
            ways,
            unknown_ids: each.iter().map(|filter| filter.unknown_ids).sum::<Option<usize>>(),
            repeated_ids: each.iter().map(|filter| filter.repeated_ids).sum(),
        }
    }
}

/// A way, in words.
pub(crate) fn way(way: SieveWay) -> &'static str {
    match way {
        SieveWay::Exact => "all of them were looked at",
        SieveWay::Codes => "the codes of all of them were compared",
        SieveWay::Search => "by the usual search with more effort",
    }
}

impl FiltersReport {
    /// Of what is said of one filter for all queries, or of that of each; `None` where nothing is said.
    pub(crate) fn of(reports: &[FilterReport], is_each: bool) -> Option<FiltersReport> {
        match reports {
            [] => None,
            [shared] if !is_each => Some(FiltersReport::Shared(*shared)),
            each => Some(FiltersReport::Each(EachReport::of(each))),
        }
    }

    /// A line for a person.
    pub(crate) fn text(&self) -> String {
        let (mut line, unknown_ids, repeated_ids) = match self {
            FiltersReport::Shared(filter) => (
                format!(
                    "filter: {}{} rows match; {}",
                    if filter.matches_exact { "" } else { "about " },
                    count(filter.matches.into()),
                    way(filter.way)
                ),
                filter.unknown_ids,
                filter.repeated_ids,
            ),
            FiltersReport::Each(each) => {
                let of_way = |(&of, &queries): (&SieveWay, &usize)| {
                    format!("{} queries: {}", count(queries as u64), way(of))
                };
                let ways: Vec<String> = each.ways.iter().map(of_way).collect();
                let Spread { least, mean, most } = each.matches;
                let (least, most) = (count(least.into()), count(most.into()));
                let matches = format!("filters: {least} to {most} rows match, {mean:.0} in the mean");
                (format!("{matches}; {}", ways.join(", ")), each.unknown_ids, each.repeated_ids)
            }
        };
        for (ids, what) in [(unknown_ids.unwrap_or(0), "no row has"), (repeated_ids, "were named twice")] {
            if ids > 0 {
                line += &format!("; {} ids {what}", count(ids as u64));
            }
        }
        line + "\n"
    }
}
