//! Bodies of requests to collections.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use stratann_engine::{DType, Metric};
use stratann_node::collections::{Condition, GivenVectors, MemoryLimits, OrderBy, Spec, Specs};
use stratann_node::rows::ExternalId;
use stratann_params::{IndexKind, list_of};
use stratann_payload::Path;

use super::filters::{self, PointFilter};
use super::ids;
use crate::request::{quoting, shortened};
use crate::vectors::{self, Wanted};

/// Target recall where a request has none.
const USUAL_RECALL: f64 = 0.95;
const USUAL_K: usize = 10;
const USUAL_LIMIT: usize = 100;

/// How vectors are written in a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum VectorForm {
    /// Lists of numbers.
    #[default]
    Numbers,
    /// Strings: the components one after another, little-endian, in base64.
    Base64,
}

/// Points that are read by their ids.
pub(super) struct Get {
    pub(super) ids: Vec<ExternalId>,
    pub(super) with_vectors: bool,
    pub(super) form: VectorForm,
}

/// Points to write.
pub(super) struct Points<'a> {
    pub(super) ids: Vec<ExternalId>,
    pub(super) vectors: Vec<Column>,
    /// JSON of each; none at all where no point has one.
    pub(super) payloads: Vec<Option<&'a [u8]>>,
    pub(super) condition: Condition,
}

/// Vectors of a name.
pub(super) struct Column {
    name: String,
    vectors: Vec<u8>,
    /// Which points have one; `None` for all.
    has: Option<Vec<bool>>,
}

impl Column {
    /// The same, borrowed.
    pub(super) fn given(&self) -> GivenVectors<'_> {
        GivenVectors { name: &self.name, vectors: &self.vectors, has: self.has.as_deref() }
    }
}

/// A search.
pub(super) struct Query {
    /// The vectors that are searched.
    pub(super) spec: Spec,
    pub(super) vector_name: Option<String>,
    pub(super) vectors: Vec<u8>,
    pub(super) k: usize,
    pub(super) recall: f64,
    pub(super) with_vectors: bool,
    pub(super) form: VectorForm,
    pub(super) with_payload: bool,
    pub(super) filter: Option<PointFilter>,
}

/// A page of points.
pub(super) struct Scroll {
    pub(super) from: ScrollFrom,
    pub(super) limit: usize,
    pub(super) with_vectors: bool,
    pub(super) form: VectorForm,
    pub(super) filter: Option<PointFilter>,
}

/// The order of a page, and where it begins.
pub(super) enum ScrollFrom {
    /// In the order of ids, behind one.
    Ids(Option<ExternalId>),
    /// In the order of a field, behind the place that a page before names.
    Field(OrderBy, Option<String>),
}

/// Limits of memory that change; `None` for one that stays.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitsBody {
    #[serde(default, deserialize_with = "given")]
    pub(super) memory_quota_bytes: Option<Option<u64>>,
    pub(super) memory_minimum_bytes: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SpecBody {
    dim: Option<u64>,
    metric: Option<String>,
    dtype: Option<String>,
    kind: Option<String>,
    vectors: Option<BTreeMap<String, VectorsBody>>,
    memory_quota_bytes: Option<u64>,
    memory_minimum_bytes: Option<u64>,
}

/// What the vectors of a name are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VectorsBody {
    dim: u64,
    metric: Option<String>,
    dtype: Option<String>,
    kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PointsBody<'a> {
    #[serde(borrow)]
    ids: &'a RawValue,
    #[serde(borrow)]
    vectors: &'a RawValue,
    #[serde(borrow, default)]
    payloads: Option<Vec<Option<&'a RawValue>>>,
    #[serde(default)]
    if_absent: bool,
    if_unchanged_since: Option<u64>,
}

/// Vectors of points that change.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateVectorsBody<'a> {
    #[serde(borrow)]
    ids: &'a RawValue,
    #[serde(borrow)]
    vectors: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueryBody<'a> {
    #[serde(borrow)]
    vectors: &'a RawValue,
    vector_name: Option<String>,
    k: Option<u64>,
    recall: Option<f64>,
    with_vectors: Option<bool>,
    vectors_as: Option<VectorForm>,
    with_payload: Option<bool>,
    #[serde(borrow, default)]
    filter: Option<&'a RawValue>,
    #[serde(rename = "where")]
    text: Option<String>,
    #[serde(default)]
    indexed_only: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScrollBody<'a> {
    #[serde(borrow, default)]
    after: Option<&'a RawValue>,
    order_by: Option<String>,
    descending: Option<bool>,
    limit: Option<u64>,
    with_vectors: Option<bool>,
    vectors_as: Option<VectorForm>,
    #[serde(borrow, default)]
    filter: Option<&'a RawValue>,
    #[serde(rename = "where")]
    text: Option<String>,
    #[serde(default)]
    indexed_only: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetBody<'a> {
    #[serde(borrow)]
    ids: &'a RawValue,
    with_vectors: Option<bool>,
    vectors_as: Option<VectorForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// A field that is there, null included.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

pub(super) fn read<'a, T: Deserialize<'a>>(body: &'a [u8], wanted: &str) -> Result<T, String> {
    if body.is_empty() {
        return Err(format!("the request has no body; send {wanted}"));
    }
    serde_json::from_slice(body).map_err(|e| format!("the body: {}; send {wanted}", quoting(&e)))
}

/// The vectors of a new collection, and the limits of its memory.
///
/// # Errors
/// One line for the client; so have the others.
pub(super) fn spec(body: &[u8]) -> Result<(Specs, MemoryLimits), String> {
    let wanted = r#"{"dim": 384, "metric": "cosine"}"#;
    let read: SpecBody = read(body, wanted)?;
    let limits = MemoryLimits {
        quota_bytes: read.memory_quota_bytes,
        minimum_bytes: read.memory_minimum_bytes.unwrap_or(0),
    };
    let SpecBody { dim, metric, dtype, kind, vectors, .. } = read;
    let specs = match (dim, vectors) {
        (Some(dim), None) => spec_of(VectorsBody { dim, metric, dtype, kind })?.into(),
        (None, Some(vectors)) if metric.is_none() && dtype.is_none() && kind.is_none() => {
            let named = |(name, own): (String, VectorsBody)| {
                let spec = spec_of(own).map_err(|e| format!("vectors {:?}: {e}", shortened(&name)))?;
                Ok((name, spec))
            };
            let all = vectors.into_iter().map(named).collect::<Result<Vec<_>, String>>()?;
            Specs::named(all).map_err(|e| e.message)?
        }
        (_, Some(_)) => {
            return Err(
                "both vectors by name and dim, metric, dtype or kind are there; send these for each name"
                    .into(),
            );
        }
        (None, None) => {
            return Err(format!("the body: missing field `dim`, or `vectors` by name; send {wanted}"));
        }
    };
    Ok((specs, limits))
}

fn spec_of(read: VectorsBody) -> Result<Spec, String> {
    let metric = read.metric.as_deref().unwrap_or(Metric::L2.name());
    let dtype = read.dtype.as_deref().unwrap_or(DType::F32.name());
    Ok(Spec {
        // What does not fit is beyond the range, too.
        dim: usize::try_from(read.dim).unwrap_or(usize::MAX),
        metric: Metric::from_name(metric)
            .ok_or_else(|| not_among("metric", metric, &Metric::ALL.map(Metric::name)))?,
        dtype: DType::from_name(dtype)
            .ok_or_else(|| not_among("dtype", dtype, &DType::ALL.map(DType::name)))?,
        kind: match read.kind.as_deref() {
            None | Some("auto") => None,
            Some(name) => Some(kind(name)?),
        },
    })
}

/// Other limits of memory.
pub(super) fn limits(body: &[u8]) -> Result<LimitsBody, String> {
    let wanted = r#"{"memory_quota_bytes": 1073741824} or {"memory_minimum_bytes": 0}"#;
    let read: LimitsBody = read(body, wanted)?;
    match (&read.memory_quota_bytes, &read.memory_minimum_bytes) {
        (None, None) => Err(format!("nothing changes; send {wanted}")),
        _ => Ok(read),
    }
}

fn kind(name: &str) -> Result<IndexKind, String> {
    let kinds: Vec<&str> = ["auto"].into_iter().chain(IndexKind::ALL.map(IndexKind::name)).collect();
    IndexKind::parse(name).ok_or_else(|| not_among("kind", name, &kinds))
}

fn not_among(field: &str, value: &str, names: &[&str]) -> String {
    format!("{field} is {:?}; use {}", shortened(value), list_of(names))
}

/// Vectors of points: of their only vector, or of names.
fn columns(json: &RawValue, specs: &Specs, count: usize) -> Result<Vec<Column>, String> {
    let column = |name: Option<&str>, json: &RawValue| {
        let (_, spec) = specs.find(name).map_err(|e| e.message)?;
        let wanted = wanted(spec, ("vector", "vectors"), usize::MAX);
        let (vectors, has) = match (name, json.get()) {
            (None, text) => (vectors::from_json_or_base64(text, &wanted)?, None),
            (Some(_), "null") => (Vec::new(), Some(vec![false; count])),
            (Some(_), text) => vectors::some_from_json_or_base64(text, &wanted)?,
        };
        let rows = has.as_ref().map_or(vectors.len() / spec.row_bytes().max(1), Vec::len);
        if rows != count {
            return Err(format!("{count} ids and {rows} vectors; send one vector for each id"));
        }
        Ok(Column { name: name.unwrap_or_default().into(), vectors, has })
    };
    if !json.get().starts_with('{') {
        return Ok(vec![column(None, json)?]);
    }
    let named: BTreeMap<String, &RawValue> =
        serde_json::from_str(json.get()).map_err(|e| format!("\"vectors\": {}", quoting(&e)))?;
    let of = |(name, json): (String, &RawValue)| {
        column(Some(&name), json).map_err(|e| match specs.has_names() && specs.find(Some(&name)).is_ok() {
            true => format!("vectors {:?}: {e}", shortened(&name)),
            false => e,
        })
    };
    named.into_iter().map(of).collect()
}

/// Points to write. Each has an id, and a vector or vectors by name.
pub(super) fn points<'a>(body: &'a [u8], specs: &Specs) -> Result<Points<'a>, String> {
    let read: PointsBody<'_> = read(body, r#"{"ids": [1, 2], "vectors": [[…], […]]}"#)?;
    let ids = ids::from_json(read.ids.get())?;
    let vectors = columns(read.vectors, specs, ids.len())?;
    let payloads = read.payloads.unwrap_or_default();
    if !payloads.is_empty() && payloads.len() != ids.len() {
        let count = payloads.len();
        return Err(format!(
            "{} ids and {count} payloads; send an object or null for each id, or none",
            ids.len()
        ));
    }
    let payloads = payloads.into_iter().map(|own| own.map(|json| json.get().as_bytes())).collect();
    let condition = match (read.if_absent, read.if_unchanged_since) {
        (false, None) => Condition::Always,
        (true, None) => Condition::IfAbsent,
        (false, Some(seq)) => Condition::IfNotNewer(seq),
        (true, Some(_)) => return Err("both if_absent and if_unchanged_since are there; send one".into()),
    };
    Ok(Points { ids, vectors, payloads, condition })
}

/// Vectors of points that change: null for those that are removed.
pub(super) fn update_vectors(body: &[u8], specs: &Specs) -> Result<(Vec<ExternalId>, Vec<Column>), String> {
    let read: UpdateVectorsBody<'_> = read(body, r#"{"ids": [1, 2], "vectors": {"title": [[…], null]}}"#)?;
    let ids = ids::from_json(read.ids.get())?;
    let vectors = columns(read.vectors, specs, ids.len())?;
    Ok((ids, vectors))
}

/// A page of points. Without a body it is the first one.
pub(super) fn scroll(body: &[u8]) -> Result<Scroll, String> {
    let body = if body.is_empty() { b"{}" } else { body };
    let read: ScrollBody<'_> = read(body, r#"{"after": 7, "limit": 100}"#)?;
    Ok(Scroll {
        from: from(&read)?,
        limit: read.limit.map_or(USUAL_LIMIT, |limit| usize::try_from(limit).unwrap_or(usize::MAX)),
        with_vectors: read.with_vectors.unwrap_or(false),
        form: read.vectors_as.unwrap_or_default(),
        filter: filters::filter(read.filter, read.text.as_deref(), read.indexed_only)?,
    })
}

fn from(read: &ScrollBody<'_>) -> Result<ScrollFrom, String> {
    let wrong = |e: &serde_json::Error| format!("after: {}", quoting(e));
    let Some(field) = &read.order_by else {
        if read.descending == Some(true) {
            return Err(
                "descending has no use without order_by; send the field that points are ordered by".into()
            );
        }
        let after = read.after.map(|after| serde_json::from_str::<ids::Read>(after.get()));
        return Ok(ScrollFrom::Ids(after.transpose().map_err(|e| wrong(&e))?.map(|id| id.0)));
    };
    let after = read.after.map(|after| serde_json::from_str::<String>(after.get()));
    let after = after.transpose().map_err(|e| wrong(&e))?;
    let field = Path::parse(field).map_err(|e| e.message)?;
    Ok(ScrollFrom::Field(OrderBy { field, descending: read.descending.unwrap_or(false) }, after))
}

/// A search with at most so many queries.
pub(super) fn query(body: &[u8], specs: &Specs, most: usize) -> Result<Query, String> {
    let read: QueryBody<'_> = read(body, r#"{"vectors": [[…], […]], "k": 10}"#)?;
    let spec = *specs.find(read.vector_name.as_deref()).map_err(|e| e.message)?.1;
    let vectors =
        vectors::from_json_or_base64(read.vectors.get(), &wanted(&spec, ("query", "vectors"), most))?;
    if vectors.is_empty() {
        return Err("there is no query; send at least one".into());
    }
    Ok(Query {
        spec,
        vector_name: read.vector_name,
        vectors,
        k: read.k.map_or(USUAL_K, |k| usize::try_from(k).unwrap_or(usize::MAX)),
        recall: read.recall.unwrap_or(USUAL_RECALL),
        with_vectors: read.with_vectors.unwrap_or(false),
        form: read.vectors_as.unwrap_or_default(),
        with_payload: read.with_payload.unwrap_or(false),
        filter: filters::filter(read.filter, read.text.as_deref(), read.indexed_only)?,
    })
}

/// Points that are read by their ids.
pub(super) fn get(body: &[u8]) -> Result<Get, String> {
    let read: GetBody<'_> = read(body, r#"{"ids": [1, 2]}"#)?;
    Ok(Get {
        ids: ids::from_json(read.ids.get())?,
        with_vectors: read.with_vectors.unwrap_or(true),
        form: read.vectors_as.unwrap_or_default(),
    })
}

/// No body, or an empty object.
pub(super) fn nothing(body: &[u8]) -> Result<(), String> {
    match body {
        [] => Ok(()),
        body => read::<Nothing>(body, "{} or no body").map(|_| ()),
    }
}

fn wanted(spec: &Spec, nouns: (&'static str, &'static str), most: usize) -> Wanted {
    let Spec { dim, dtype, metric, .. } = *spec;
    Wanted { dim, dtype, metric, nouns, owner: "collection", most }
}
