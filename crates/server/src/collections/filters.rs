//! Filters and payloads in the bodies of requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use stratann_node::collections::{Chosen, Collection, Error};
use stratann_node::rows::ExternalId;
use stratann_params::list_of;
use stratann_payload::value::Update;
use stratann_payload::{Filter, IndexKind, Path, Payload, Predicate, Schema};

use super::body::read;
use super::ids;
use crate::request::shortened;

/// A filter of a request.
#[derive(Debug)]
pub(crate) struct PointFilter {
    pub(crate) predicate: Arc<Predicate>,
    /// Refuses conditions that no index answers.
    pub(crate) indexed_only: bool,
}

impl PointFilter {
    /// The filter, once a collection has the indexes that it asks for.
    ///
    /// # Errors
    /// Those of the collection.
    pub(super) fn checked(&self, collection: &Collection) -> Result<&Arc<Predicate>, Error> {
        if self.indexed_only {
            collection.check_indexed(&self.predicate)?;
        }
        Ok(&self.predicate)
    }
}

/// The points that a request is about.
pub(super) enum Wanted {
    Ids(Vec<ExternalId>),
    Matching(PointFilter),
}

impl Wanted {
    /// The same, borrowed.
    ///
    /// # Errors
    /// As [`PointFilter::checked`].
    pub(super) fn chosen(&self, collection: &Collection) -> Result<Chosen<'_>, Error> {
        Ok(match self {
            Wanted::Ids(ids) => Chosen::Ids(ids),
            Wanted::Matching(filter) => Chosen::Matching(filter.checked(collection)?),
        })
    }
}

/// How a payload is changed.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Set,
    Overwrite,
    Delete,
    Clear,
}

impl Change {
    fn example(self) -> &'static str {
        match self {
            Change::Set => r#"{"ids": [1], "payload": {"price": 5}}"#,
            Change::Overwrite => r#"{"where": "price > 5", "payload": {}}"#,
            Change::Delete => r#"{"ids": [1], "keys": ["price"]}"#,
            Change::Clear => r#"{"ids": [1]}"#,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WantedBody<'a> {
    #[serde(borrow, default)]
    ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    filter: Option<&'a RawValue>,
    #[serde(rename = "where")]
    text: Option<String>,
    #[serde(default)]
    indexed_only: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CountBody<'a> {
    #[serde(borrow, default)]
    filter: Option<&'a RawValue>,
    #[serde(rename = "where")]
    text: Option<String>,
    #[serde(default)]
    indexed_only: bool,
    #[serde(default = "yes")]
    exact: bool,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangeBody<'a> {
    #[serde(borrow, default)]
    ids: Option<&'a RawValue>,
    #[serde(borrow, default)]
    filter: Option<&'a RawValue>,
    #[serde(rename = "where")]
    text: Option<String>,
    #[serde(default)]
    indexed_only: bool,
    #[serde(borrow, default)]
    payload: Option<&'a RawValue>,
    key: Option<String>,
    keys: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Kinds {
    One(String),
    Several(Vec<String>),
}

/// A filter in one of its two forms; `None` without.
///
/// # Errors
/// One line for the client; so have the others.
pub(crate) fn filter(
    json: Option<&RawValue>,
    text: Option<&str>,
    indexed_only: bool,
) -> Result<Option<PointFilter>, String> {
    let filter = match (json, text) {
        (None, None) if indexed_only => {
            return Err("indexed_only has no use without a filter; send filter or where, too".into());
        }
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => return Err("both filter and where are there; send one".into()),
        (Some(json), None) => Filter::from_json(json.get().as_bytes()),
        (None, Some(text)) => Filter::from_where(text),
    };
    let predicate = Arc::new(filter.map_err(|e| e.message)?.compile());
    Ok(Some(PointFilter { predicate, indexed_only }))
}

/// The points that are counted, and whether exactly. All without a filter.
pub(super) fn counted(body: &[u8]) -> Result<(Option<PointFilter>, bool), String> {
    let body = if body.is_empty() { b"{}" } else { body };
    let read: CountBody<'_> = read(body, r#"{"where": "price < 50"}, {} or no body"#)?;
    Ok((filter(read.filter, read.text.as_deref(), read.indexed_only)?, read.exact))
}

/// The points that a body is about: by ids, or by a filter.
pub(super) fn wanted(body: &[u8]) -> Result<Wanted, String> {
    let read: WantedBody<'_> = read(body, r#"{"ids": [1, 2]} or {"where": "price < 50"}"#)?;
    one_of(read.ids, filter(read.filter, read.text.as_deref(), read.indexed_only)?)
}

fn one_of(ids: Option<&RawValue>, filter: Option<PointFilter>) -> Result<Wanted, String> {
    match (ids, filter) {
        (Some(ids), None) => Ok(Wanted::Ids(ids::from_json(ids.get())?)),
        (None, Some(filter)) => Ok(Wanted::Matching(filter)),
        (Some(_), Some(_)) => Err("both ids and a filter are there; send one".into()),
        (None, None) => Err("no points are named; send ids, filter or where".into()),
    }
}

/// A change of payloads, and the points that get it.
pub(super) fn change(body: &[u8], change: Change) -> Result<(Wanted, Update), String> {
    let read: ChangeBody<'_> = read(body, change.example())?;
    let wanted = one_of(read.ids, filter(read.filter, read.text.as_deref(), read.indexed_only)?)?;
    let example = change.example();
    let unwanted = |name: &str| Err(format!("{name} has no use here; send {example}"));
    let payload = match (read.payload, change) {
        (Some(json), Change::Set | Change::Overwrite) => {
            Some(Payload::parse(json.get().as_bytes()).map_err(|e| e.message)?)
        }
        (Some(_), _) => return unwanted("payload"),
        (None, _) => None,
    };
    if read.key.is_some() && !matches!(change, Change::Set) {
        return unwanted("key");
    }
    if read.keys.is_some() && !matches!(change, Change::Delete) {
        return unwanted("keys");
    }
    let path = |text: &String| Path::parse(text).map_err(|e| e.message);
    let update = match (change, payload, read.keys) {
        (Change::Set, Some(payload), _) => {
            Update::Set { payload, key: read.key.as_ref().map(path).transpose()? }
        }
        (Change::Overwrite, Some(payload), _) => Update::Overwrite(payload),
        (Change::Delete, _, Some(keys)) => {
            Update::DeleteKeys(keys.iter().map(path).collect::<Result<_, _>>()?)
        }
        (Change::Clear, ..) => Update::Clear,
        _ => return Err(format!("something is missing; send {example}")),
    };
    Ok((wanted, update))
}

/// Fields that are indexed.
pub(super) fn schema(body: &[u8]) -> Result<Schema, String> {
    let read: BTreeMap<String, Kinds> = read(body, r#"{"price": "float", "title": ["keyword", "text"]}"#)?;
    let mut schema = Schema::new();
    for (field, kinds) in read {
        let kinds = match kinds {
            Kinds::One(kind) => vec![kind],
            Kinds::Several(kinds) => kinds,
        };
        for name in kinds {
            let kind = IndexKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
                let names = list_of(IndexKind::ALL.map(IndexKind::name));
                format!("the index of the field {} is {:?}; use {names}", shortened(&field), shortened(&name))
            })?;
            let path = Path::parse(&field).map_err(|e| e.message)?;
            schema.add(path, kind).map_err(|e| e.message)?;
        }
    }
    Ok(schema)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_named_in_one_way() {
        assert!(matches!(wanted(br#"{"ids": [1, "a"]}"#), Ok(Wanted::Ids(ids)) if ids.len() == 2));
        let (text, json) =
            (br#"{"where": "a = 1"}"#, br#"{"filter": {"must": [{"key": "a", "match": {"value": 1}}]}}"#);
        let (Ok(Wanted::Matching(one)), Ok(Wanted::Matching(two))) = (wanted(text), wanted(json)) else {
            panic!("filters are filters");
        };
        assert_eq!(one.predicate.key(), two.predicate.key());
        for (body, why) in [
            (&b"{}"[..], "send ids, filter or where"),
            (br#"{"ids": [1], "where": "a = 1"}"#, "both ids and a filter"),
            (br#"{"filter": {}, "where": "a = 1"}"#, "both filter and where"),
            (br#"{"where": "a ="}"#, "column"),
            (br#"{"filter": {"most": []}}"#, "most"),
            (br#"{"idz": [1]}"#, "idz"),
            (br#"{"ids": [1], "indexed_only": true}"#, "no use without a filter"),
        ] {
            let error = wanted(body).map(|_| ()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        for (body, is_exact) in [(&b""[..], true), (b"{}", true), (br#"{"exact": false}"#, false)] {
            assert!(matches!(counted(body), Ok((None, own)) if own == is_exact));
        }
        assert!(counted(br#"{"where": "a = 1", "exact": 0}"#).is_err());
    }

    #[test]
    fn changes_have_what_they_need_and_nothing_else() {
        for (kind, body) in [
            (Change::Set, br#"{"ids": [1], "payload": {"a": 1}, "key": "b.c"}"#.as_slice()),
            (Change::Overwrite, br#"{"ids": [1], "payload": {}}"#),
            (Change::Delete, br#"{"where": "a = 1", "keys": ["a", "b[0]"]}"#),
            (Change::Clear, br#"{"ids": [1]}"#),
        ] {
            assert!(change(body, kind).is_ok());
        }
        for (kind, body, why) in [
            (Change::Set, br#"{"ids": [1]}"#.as_slice(), "missing"),
            (Change::Set, br#"{"ids": [1], "payload": [1]}"#, "object"),
            (Change::Delete, br#"{"ids": [1], "payload": {}}"#, "payload has no use"),
            (Change::Delete, br#"{"ids": [1], "keys": ["a..b"]}"#, "column"),
            (Change::Clear, br#"{"ids": [1], "keys": ["a"]}"#, "keys has no use"),
            (Change::Overwrite, br#"{"ids": [1], "payload": {}, "key": "a"}"#, "key has no use"),
        ] {
            let error = change(body, kind).map(|_| ()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(schema(br#"{"a": "text", "b.c": ["float", "integer"]}"#).unwrap().fields().count(), 2);
        assert!(schema(br#"{"a": "geo"}"#).is_err() && schema(br#"{"a..b": "text"}"#).is_err());
    }
}
