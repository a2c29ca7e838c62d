//! Filters over payloads that a user gives, and notes on fields without an index.

use std::collections::BTreeSet;
use std::sync::Arc;

use stratann_node::collections::Collection;
use stratann_payload::index::Unindexed;
use stratann_payload::{Filter, Predicate};
use stratann_storage::{Error, Result};

use crate::data_folder::plain;
use crate::output::Output;

/// A filter over the payloads of points, in one of its two forms.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PointFilterArgs {
    /// Only points that match: JSON in the form of Qdrant, {"must": [{"key": "price", "range": {"lt": 50}}]}
    #[arg(long, value_name = "JSON", help_heading = "Filter")]
    filter: Option<String>,
    /// The same as text: price < 50 and brand = 'x'
    #[arg(long = "where", value_name = "TEXT", help_heading = "Filter")]
    text: Option<String>,
    /// Refuse a filter with conditions that no index answers, instead of reading payloads for them
    #[arg(long, help_heading = "Filter")]
    indexed_only: bool,
}

impl PointFilterArgs {
    /// Name of the option that is given; `None` without a filter.
    pub(crate) fn option(&self) -> Option<&'static str> {
        let filter = self.filter.as_ref().map(|_| "--filter");
        let text = self.text.as_ref().map(|_| "--where");
        filter.or(text).or(self.indexed_only.then_some("--indexed-only"))
    }

    /// Whether conditions without an index are refused.
    pub(crate) fn is_indexed_only(&self) -> bool {
        self.indexed_only
    }

    /// The filter; `None` where none is given.
    ///
    /// # Errors
    /// `BadInput` for both forms at once, and for what is no filter, with its place.
    pub(crate) fn read(&self) -> Result<Option<Arc<Predicate>>> {
        let named = |option: &str, e: Error| Error::bad_input(format!("{option}: {}", e.message));
        let filter = match (&self.filter, &self.text) {
            (None, None) if self.indexed_only => {
                return Err(Error::bad_input(
                    "--indexed-only has no use without a filter; give --where or --filter",
                ));
            }
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(Error::bad_input("--filter and --where are both given; give one of them"));
            }
            (Some(json), None) => Filter::from_json(json.as_bytes()).map_err(|e| named("--filter", e)),
            (None, Some(text)) => Filter::from_where(text).map_err(|e| named("--where", e)),
        };
        filter.map(|filter| Some(Arc::new(filter.compile())))
    }
}

impl PointFilterArgs {
    /// Refuses a filter that lacks an index of a collection, where that is asked for.
    ///
    /// # Errors
    /// Those of the collection.
    pub(crate) fn check(&self, filter: Option<&Arc<Predicate>>, collection: &Collection) -> Result<()> {
        match filter.filter(|_| self.indexed_only) {
            Some(filter) => collection.check_indexed(filter).map_err(plain),
            None => Ok(()),
        }
    }
}

/// Conditions of a filter for which payloads were read, for want of an index.
#[derive(Debug, Default)]
pub(crate) struct WithoutIndex(BTreeSet<String>);

impl WithoutIndex {
    /// Those of one reply.
    pub(crate) fn of(unindexed: &[Unindexed]) -> WithoutIndex {
        let mut own = WithoutIndex::default();
        own.add(unindexed);
        own
    }

    /// Adds those of a reply.
    pub(crate) fn add(&mut self, unindexed: &[Unindexed]) {
        self.0.extend(unindexed.iter().map(ToString::to_string));
    }

    /// Fields with the index that each lacks, in their order.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.0.iter().cloned().collect()
    }

    /// Notes that payloads of a collection were read.
    pub(crate) fn note(&self, output: Output) {
        self.note_with("`stratann collection schema --set` makes one", output);
    }

    /// Notes that payloads of an index were read.
    pub(crate) fn note_of_index(&self, output: Output) {
        self.note_with("a build with --set FIELD=KIND makes one", output);
    }

    fn note_with(&self, remedy: &str, output: Output) {
        if !self.0.is_empty() {
            let fields = self.texts().join(", ");
            output.note(&format!("note: payloads were read for want of an index: {fields}; {remedy}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(filter: Option<&str>, text: Option<&str>) -> Result<Option<Arc<Predicate>>> {
        let (filter, text) = (filter.map(String::from), text.map(String::from));
        PointFilterArgs { filter, text, indexed_only: false }.read()
    }

    #[test]
    fn both_forms_are_the_same_filter_and_mistakes_are_named() {
        let json = r#"{"must": [{"key": "price", "range": {"lt": 50}}]}"#;
        let (one, two) = (given(Some(json), None), given(None, Some("price < 50")));
        assert_eq!(one.unwrap().unwrap().key(), two.unwrap().unwrap().key());
        assert!(given(None, None).unwrap().is_none());
        for (filter, text, why) in [
            (Some("{}"), Some("a = 1"), "give one of them"),
            (Some("{"), None, "--filter: "),
            (Some(r#"{"most": []}"#), None, "most"),
            (None, Some("price <"), "--where: the where text is wrong at column"),
        ] {
            let error = given(filter, text).unwrap_err();
            assert!(error.message.contains(why), "{error}");
        }
    }
}
