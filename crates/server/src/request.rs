//! Search requests: their parameters, checked, and their queries as rows of the index's element type.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Naming, SearchOptions};
use stratann_engine::{DType, Metric};
use stratann_params::{Given, IndexKind, Place, Scope, Stage, Surface, Value, named};

use crate::collections::filters::{self, PointFilter};
use crate::limits::Limits;
use crate::named_ids::{self, NamedIds, Reserve};
use crate::vectors::{self, Wanted};

const USUAL_TIMEOUT_MS: u64 = 5000;

/// Layout of the rows of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowShape {
    pub(crate) dim: usize,
    pub(crate) dtype: DType,
    pub(crate) metric: Metric,
    /// Kind of the index, whose parameters a request may have.
    pub(crate) kind: IndexKind,
}

impl RowShape {
    /// `None` for types that this program does not know.
    pub(crate) fn of(manifest: &Manifest) -> Option<RowShape> {
        let (dtype, metric, kind) = (manifest.dtype()?, manifest.metric()?, manifest.kind()?);
        Some(RowShape { dim: manifest.dim, dtype, metric, kind })
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.dim * self.dtype.size()
    }

    /// The queries of a request.
    fn vectors(&self, limits: &Limits) -> Wanted {
        let RowShape { dim, dtype, metric, .. } = *self;
        Wanted { dim, dtype, metric, nouns: ("query", "queries"), owner: "index", most: limits.queries }
    }
}

/// Most characters of a client's text that an error quotes.
const QUOTED_MAX: usize = 200;

/// The text, or its beginning and its end where it is longer than an error quotes.
pub(crate) fn shortened(text: &str) -> String {
    const END: usize = 40;
    let count = text.chars().count();
    if count <= QUOTED_MAX {
        return text.into();
    }
    let start: String = text.chars().take(QUOTED_MAX - END - 1).collect();
    let end: String = text.chars().skip(count - END).collect();
    format!("{start}…{end}")
}

/// An error of a parser, which quotes what it could not read.
pub(crate) fn quoting(error: &impl fmt::Display) -> String {
    shortened(&error.to_string())
}

/// A checked request.
#[derive(Debug)]
pub(crate) struct Request {
    /// One row or more.
    pub(crate) rows: Vec<u8>,
    pub(crate) options: SearchOptions,
    /// Ids of the rows that queries may return, or may not.
    pub(crate) named: Option<NamedIds>,
    /// The filter over payloads.
    pub(crate) filter: Option<PointFilter>,
    /// Whether payloads of results are returned.
    pub(crate) with_payload: bool,
    pub(crate) timeout: Duration,
    pub(crate) partial: bool,
    /// The version of the cached clusters that the client knows; `None` where it does not ask for them.
    pub(crate) cached: Option<u64>,
}

impl Request {
    /// Number of its filters.
    pub(crate) fn filters(&self) -> usize {
        self.named.as_ref().map_or(usize::from(self.filter.is_some()), |named| named.lists.count())
    }

    /// Memory of its queries and of the ids that it names, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.rows.len() as u64 + self.named.as_ref().map_or(0, NamedIds::bytes)
    }
}

/// The fields of a body in JSON, or the parameters of a URL.
#[derive(Default)]
struct RequestFields<'a> {
    queries: Option<&'a RawValue>,
    /// Ids in JSON that are not read yet.
    unread: Option<(Naming, &'a RawValue)>,
    /// Ids that are.
    named: Option<NamedIds>,
    /// The filter over payloads in JSON, and as text.
    filter: Option<Cow<'a, str>>,
    text: Option<String>,
    indexed_only: bool,
    with_payload: bool,
    timeout_ms: Option<u64>,
    partial: bool,
    /// A version of cached clusters.
    cached: Option<u64>,
    /// The parameters of the table.
    given: Given,
}

fn scope(kind: IndexKind) -> Scope {
    Scope { stages: &[Stage::Search], kinds: vec![kind], place: Place::Servers, surface: Surface::Request }
}

/// What to do where ids that are named are refused.
pub(crate) const BY_ID: &str = "use the condition has_id of filter";

/// The error of a request with both kinds of ids.
const BOTH: &str = "only and without are both given; give one of them";

impl<'a> RequestFields<'a> {
    /// Takes ids in JSON; null is none.
    fn take_ids(&mut self, naming: Naming, raw: &'a RawValue) -> Result<(), String> {
        match (raw.get(), self.unread) {
            ("null", _) => Ok(()),
            (_, Some(_)) => Err(BOTH.into()),
            (_, None) => {
                self.unread = Some((naming, raw));
                Ok(())
            }
        }
    }

    /// The filter over payloads, compiled.
    fn filter(&self) -> Result<Option<PointFilter>, String> {
        let json = self.filter.as_deref().map(serde_json::from_str::<&RawValue>).transpose();
        let json = json.map_err(|e| format!("filter is no JSON: {}", quoting(&e)))?;
        let filter = filters::filter(json, self.text.as_deref(), self.indexed_only)?;
        match self.named {
            Some(_) if filter.is_some() => Err(format!("only and without do not go with a filter; {BY_ID}")),
            _ => Ok(filter),
        }
    }

    /// Takes a field, whose value is of this type.
    fn set(&mut self, name: &str, value: Value, scope: &Scope) -> Result<(), String> {
        let wrong = |wanted: &str| Err(format!("{name} is {}; {wanted}", shortened(&value.to_string())));
        match (name, &value) {
            ("timeout_ms", Value::Whole(ms)) => self.timeout_ms = Some(*ms),
            ("timeout_ms", _) => return wrong("use a whole number"),
            ("partial", Value::Flag(partial)) => self.partial = *partial,
            ("indexed_only", Value::Flag(flag)) => self.indexed_only = *flag,
            ("with_payload", Value::Flag(flag)) => self.with_payload = *flag,
            ("partial" | "indexed_only" | "with_payload", _) => return wrong("use true or false"),
            ("filter", Value::Text(json)) => self.filter = Some(Cow::Owned(json.clone())),
            ("where", Value::Text(text)) => self.text = Some(text.clone()),
            ("filter" | "where", _) => return wrong("use text, such as price < 50"),
            ("cached", Value::Text(version)) => match u64::from_str_radix(version, 16) {
                Ok(version) => self.cached = Some(version),
                Err(_) => return Err("cached is no version of up to 16 hexadecimal digits".into()),
            },
            ("cached", _) => return Err("cached is no version of up to 16 hexadecimal digits".into()),
            _ if named(scope.stages, name).next().is_none() => {
                return Err(shortened(&scope.unknown(name, &OWN_FIELDS).0));
            }
            _ => return self.given.add(scope, name, value).map_err(|wrong| shortened(&wrong.0)),
        }
        Ok(())
    }

    /// Takes a parameter of a URL.
    fn set_text(&mut self, name: &str, text: String, scope: &Scope) -> Result<(), String> {
        let number = || text.parse().map_or_else(|_| Value::Text(text.clone()), Value::Whole);
        let value = match name {
            "timeout_ms" => number(),
            "partial" | "indexed_only" | "with_payload" => {
                text.parse().map_or_else(|_| Value::Text(text.clone()), Value::Flag)
            }
            "cached" | "filter" | "where" => Value::Text(text),
            _ => match named(scope.stages, name).next() {
                Some((_, param)) => {
                    param.parse(&text).map_err(|why| format!("{name} is {}; {why}", shortened(&text)))?
                }
                None => Value::Text(text),
            },
        };
        self.set(name, value, scope)
    }
}

/// The fields of an object in JSON, in their order.
struct Fields<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut fields: Vec<(Cow<'de, str>, &RawValue)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<Name<'de>, _>()? {
                    if fields.iter().any(|known| known.0 == name.0) {
                        return Err(de::Error::custom(format!("duplicate field {}", name.0)));
                    }
                    if fields.len() == FIELDS_MAX {
                        return Err(de::Error::custom("too many fields"));
                    }
                    fields.push((name.0, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Fields that are no parameters of the table.
const OWN_FIELDS: [&str; 10] = [
    "queries",
    "only",
    "without",
    "filter",
    "where",
    "indexed_only",
    "with_payload",
    "timeout_ms",
    "partial",
    "cached",
];

/// Most fields of a request: more than the table has.
const FIELDS_MAX: usize = 256;

/// The name of a field.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// A value of JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum Field {
    Flag(bool),
    Whole(u64),
    Real(f64),
    Text(String),
    None(()),
}

/// Reads the fields of a body in JSON.
fn fields<'a>(body: &'a [u8], kind: IndexKind) -> Result<RequestFields<'a>, String> {
    let Fields(all) = serde_json::from_slice(body).map_err(|e| format!("the body: {}", quoting(&e)))?;
    let (mut fields, scope) = (RequestFields::default(), scope(kind));
    for (name, raw) in all {
        if name == "queries" {
            fields.queries = Some(raw);
            continue;
        }
        if let Some(naming) = naming_of(&name) {
            fields.take_ids(naming, raw)?;
            continue;
        }
        if name == "filter" {
            fields.filter = (raw.get() != "null").then(|| raw.get().into());
            continue;
        }
        let value = match serde_json::from_str(raw.get()) {
            Ok(Field::Flag(flag)) => Value::Flag(flag),
            Ok(Field::Whole(number)) => Value::Whole(number),
            Ok(Field::Real(number)) => Value::Real(number),
            Ok(Field::Text(text)) => Value::Text(text),
            Ok(Field::None(())) => continue,
            // A list or an object is the value of no parameter.
            Err(_) => Value::Text(raw.get().into()),
        };
        fields.set(&name, value, &scope)?;
    }
    Ok(fields)
}

/// The meaning of a field that names ids; `None` of another.
fn naming_of(name: &str) -> Option<Naming> {
    let [only, without] = named_ids::FIELDS;
    match name {
        _ if name == only => Some(Naming::Only),
        _ if name == without => Some(Naming::Without),
        _ => None,
    }
}

/// Reads the parameters of a URL.
fn url_fields(url_query: &str, kind: IndexKind) -> Result<RequestFields<'static>, String> {
    let within = |why: String| format!("the parameters of the URL: {why}");
    let all: Vec<(String, String)> =
        serde_urlencoded::from_str(url_query).map_err(|e| within(quoting(&e)))?;
    let (mut fields, scope) = (RequestFields::default(), scope(kind));
    let mut names: Vec<String> = Vec::new();
    for (name, text) in all {
        if names.contains(&name) {
            return Err(within(format!("duplicate field {}", shortened(&name))));
        }
        match naming_of(&name) {
            Some(_) if fields.named.is_some() => return Err(BOTH.into()),
            Some(naming) => fields.named = Some(NamedIds::from_url(naming, &text).map_err(within)?),
            None => fields.set_text(&name, text, &scope).map_err(within)?,
        }
        names.push(name);
    }
    Ok(fields)
}

/// Reads a body in JSON.
///
/// # Errors
/// One line for the client.
pub(crate) fn from_json(
    body: &[u8],
    shape: &RowShape,
    limits: &Limits,
    reserve: &mut Reserve<'_>,
) -> Result<Request, String> {
    let mut fields = fields(body, shape.kind)?;
    let queries = fields.queries.ok_or("the body has no \"queries\"; give a list of vectors")?;
    // Numbers as text take at least two bytes; as rows they take four, in a list that may double.
    let rows_bytes = 2 * queries.get().len() as u64;
    if !reserve(rows_bytes) {
        return Err("the server has no memory left for these queries".into());
    }
    let rows = vectors::from_json(queries.get(), &shape.vectors(limits))?;
    // A filter as it was read, and as it is evaluated.
    if !reserve(2 * fields.filter.as_ref().map_or(0, |filter| filter.len() as u64)) {
        return Err("the server has no memory left for this filter".into());
    }
    if let Some((naming, ids)) = fields.unread {
        let left = (limits.large_bytes as u64).saturating_sub(body.len() as u64 + rows_bytes);
        fields.named = Some(NamedIds::from_json(naming, ids.get(), left, reserve)?);
    }
    finish(fields, rows, shape, limits)
}

/// Reads a body of rows as bytes, with parameters from the URL.
///
/// # Errors
/// One line for the client.
pub(crate) fn from_octets(
    body: Vec<u8>,
    url_query: &str,
    shape: &RowShape,
    limits: &Limits,
) -> Result<Request, String> {
    let fields = url_fields(url_query, shape.kind)?;
    if !body.len().is_multiple_of(shape.row_bytes()) {
        return Err(format!(
            "the body has {} bytes, a vector of this index has {} ({} × {}); send whole vectors",
            body.len(),
            shape.row_bytes(),
            shape.dim,
            shape.dtype.name()
        ));
    }
    let count = body.len() / shape.row_bytes();
    if count > limits.queries {
        return Err(shape.vectors(limits).too_many(count));
    }
    for (i, row) in body.chunks_exact(shape.row_bytes()).enumerate() {
        shape.vectors(limits).check(i, row)?;
    }
    finish(fields, body, shape, limits)
}

fn finish(
    fields: RequestFields<'_>,
    rows: Vec<u8>,
    shape: &RowShape,
    limits: &Limits,
) -> Result<Request, String> {
    let count = rows.len() / shape.row_bytes();
    if count == 0 {
        return Err("there are no queries; send at least one".into());
    }
    let options = options(&fields, shape.kind)?;
    if let Some(named) = &fields.named {
        named.check(count)?;
    }
    let filter = fields.filter()?;
    let most = limits.large_bytes;
    let filters = fields.named.as_ref().map_or(usize::from(filter.is_some()), |named| named.lists.count());
    if Limits::reply_bytes(count, options.k, filters) > most {
        return Err(format!(
            "{count} queries with k = {} have answers of more than {most} bytes; ask for less at a time, or start the \
             server with a larger --http-memory",
            options.k
        ));
    }
    let timeout_ms = fields.timeout_ms.unwrap_or(USUAL_TIMEOUT_MS);
    if !(1..=limits.timeout_ms).contains(&timeout_ms) {
        return Err(format!("timeout_ms is {timeout_ms}; give 1 to {} (max_timeout_ms)", limits.timeout_ms));
    }
    let RequestFields { named, with_payload, partial, cached, .. } = fields;
    let timeout = Duration::from_millis(timeout_ms);
    Ok(Request { rows, options, named, filter, with_payload, timeout, partial, cached })
}

/// Reads how queries would be searched in an index of this kind from the parameters of a URL without queries.
///
/// # Errors
/// One line for the client.
pub(crate) fn options_of(url_query: &str, kind: IndexKind) -> Result<SearchOptions, String> {
    options(&url_fields(url_query, kind)?, kind)
}

fn options(fields: &RequestFields<'_>, kind: IndexKind) -> Result<SearchOptions, String> {
    fields.given.check(&scope(kind)).map_err(|wrong| shortened(&wrong.0))?;
    let options = SearchOptions::read(&fields.given, kind).map_err(|e| e.message)?;
    Ok(SearchOptions { threads: 1, ..options })
}

#[cfg(test)]
mod tests {
    use half::f16;
    use stratann_core::query::Mode;
    use stratann_engine::exec::Width;
    use stratann_engine::search::Effort;
    use stratann_params::search::GraphSwitches;

    use super::*;

    fn shape(dtype: DType, metric: Metric) -> RowShape {
        RowShape { dim: 2, dtype, metric, kind: IndexKind::DiskGraph }
    }

    fn json(text: &str, dtype: DType) -> Result<Request, String> {
        from_json(text.as_bytes(), &shape(dtype, Metric::Cosine), &Limits::default(), &mut |_| true)
    }

    fn of_kind(kind: IndexKind, text: &str) -> Result<Request, String> {
        let shape = RowShape { kind, ..shape(DType::F32, Metric::Cosine) };
        from_json(text.as_bytes(), &shape, &Limits::default(), &mut |_| true)
    }

    #[test]
    fn numbers_become_rows_of_the_index_type() {
        let rows = |text: &str, dtype| json(text, dtype).unwrap().rows;
        let floats = rows(r#"{"queries": [[1, -2.5], [ 0.1 , 3 ]]}"#, DType::F32);
        assert_eq!(floats, [1.0f32, -2.5, 0.1, 3.0].map(f32::to_le_bytes).concat());
        let halves = rows(r#"{"queries":[[1,-2.5]]}"#, DType::F16);
        assert_eq!(halves, [1.0, -2.5].map(|x| f16::from_f64(x).to_le_bytes()).concat());
        assert_eq!(rows(r#"{"queries":[[0,255.0]]}"#, DType::U8), [0, 255]);
        assert_eq!(rows(r#"{"queries":[[-128,127]]}"#, DType::I8), [128, 127]);
    }

    #[test]
    fn missing_parameters_have_their_defaults() {
        let request = json(r#"{"queries":[[1,2]]}"#, DType::F32).unwrap();
        assert_eq!((request.options.k, request.options.effort), (10, Effort::Recall(0.95)));
        assert_eq!((request.timeout, request.partial), (Duration::from_secs(5), false));
        let text = r#"{"queries":[[1,2]],"k":3,"search_list":40,"stop_slack":1.5,"width":4,"mode":"eager",
                       "partial":true,"timeout_ms":70,"patience":9,"head":false,"whole_blocks":false}"#;
        let body = json(text, DType::F32).unwrap();
        let url = "k=3&search_list=40&stop_slack=1.5&width=4&mode=eager&partial=true&timeout_ms=70&patience=9\
                   &head=false&whole_blocks=false";
        let shape = shape(DType::F32, Metric::Cosine);
        let octets = from_octets(body.rows.clone(), url, &shape, &Limits::default()).unwrap();
        for request in [body, octets] {
            let options = request.options;
            assert_eq!((options.k, options.effort), (3, Effort::SearchList(40, Some(1.5))));
            assert_eq!((options.width, options.mode), (Width::Fixed(4), Mode::Eager));
            let switches = GraphSwitches {
                head: false,
                whole_blocks: false,
                patience: Some(9),
                ..GraphSwitches::default()
            };
            assert_eq!(options.switches, switches.into());
            assert_eq!((request.timeout, request.partial), (Duration::from_millis(70), true));
        }
    }

    #[test]
    fn nprobe_is_a_number_of_lists() {
        let text = r#"{"queries":[[1,2]],"nprobe":7,"early_stop":0.25,"stop_slack":2}"#;
        let body = of_kind(IndexKind::HybridIvf, text).unwrap();
        assert_eq!(body.options.effort, Effort::Nprobe(7, Some(2.0), Some(0.25)));
        let shape = RowShape { kind: IndexKind::HybridIvf, ..shape(DType::F32, Metric::Cosine) };
        let octets = from_octets(body.rows.clone(), "nprobe=7", &shape, &Limits::default()).unwrap();
        assert_eq!(octets.options.effort, Effort::Nprobe(7, None, None));
    }

    #[test]
    fn an_invalid_request_gets_the_reason() {
        for (text, said) in [
            ("", "the body: EOF"),
            ("{}", "no \"queries\""),
            ("[[1,2]]", "the body: invalid"),
            (r#"{"queries":[[1,2]]} 7"#, "trailing"),
            (r#"{"queries":[]}"#, "no queries"),
            (r#"{"queries":{}}"#, "no list of vectors"),
            (r#"{"queries":[[1,2],[1,2,3]]}"#, "query 1 has 3 dimensions, the index has 2"),
            (r#"{"queries":[[1,2],[]]}"#, "query 1 has 0 dimensions"),
            (r#"{"queries":[7]}"#, "query 0: invalid type"),
            (r#"{"queries":[[1,null]]}"#, "query 0: invalid type: null"),
            (r#"{"queries":[[1,NaN]]}"#, "the body: expected value"),
            (r#"{"queries":[[1,1e39]]}"#, "query 0: number out of range"),
            (r#"{"queries":[[1,2],[0,0.0]]}"#, "query 1: a zero vector"),
            (r#"{"queries":[[1,2]],"colour":1}"#, "there is no parameter colour"),
            (r#"{"queries":[[1,2]],"k":-1}"#, "k is -1; use 1 to 16384"),
            (r#"{"queries":[[1,2]],"recall":0.9,"search_list":9}"#, "give one of them"),
            (r#"{"queries":[[1,2]],"stop_slack":1}"#, "goes with search_list"),
            (r#"{"queries":[[1,2]],"nprobe":3,"search_list":9}"#, "nprobe is for hybrid-ivf"),
            (r#"{"queries":[[1,2]],"recall":0.9,"nprobe":9}"#, "both given"),
            (r#"{"queries":[[1,2]],"nprobe":-3}"#, "nprobe is -3"),
            (r#"{"queries":[[1,2]],"serch_list":3}"#, "no parameter serch_list; use search_list"),
            (r#"{"queries":[[1,2]],"timout_ms":3}"#, "no parameter timout_ms; use timeout_ms"),
            // Another kind has nprobe, and no request has batch.
            (r#"{"queries":[[1,2]],"n_probe":3}"#, "no parameter n_probe; leave it out"),
            (r#"{"queries":[[1,2]],"batches":3}"#, "no parameter batches; leave it out"),
            (
                r#"{"queries":[[1,2]],"ef":50}"#,
                "ef is for remote-hnsw, and this index is a disk-graph; leave it out",
            ),
            (r#"{"queries":[[1,2]],"nprobe":50}"#, "give search_list instead"),
            (r#"{"queries":[[1,2]],"width":65}"#, "1 to 64"),
            (r#"{"queries":[[1,2]],"width":"wide"}"#, "1 to 64"),
            (r#"{"queries":[[1,2]],"mode":"slow"}"#, "barrier"),
            (r#"{"queries":[[1,2]],"only":[1],"without":[2]}"#, "only and without are both given"),
            (r#"{"queries":[[1,2]],"only":[[1],[2]]}"#, "only has 2 lists of ids for 1 queries"),
            (r#"{"queries":[[1,2]],"without":[-1]}"#, "without: -1 is no id"),
            (r#"{"queries":[[1,2]],"onyl":[1]}"#, "no parameter onyl"),
            (r#"{"queries":[[1,2]],"where":"a ="}"#, "column"),
            (r#"{"queries":[[1,2]],"filter":{"most":[]}}"#, "most"),
            (r#"{"queries":[[1,2]],"filter":{},"where":"a = 1"}"#, "both filter and where"),
            (r#"{"queries":[[1,2]],"filter":{},"only":[1]}"#, "has_id"),
            (r#"{"queries":[[1,2]],"filter":null,"indexed_only":true}"#, "no use without a filter"),
            (r#"{"queries":[[1,2]],"with_payload":"yes"}"#, "use true or false"),
            (r#"{"queries":[[1,2]],"timeout_ms":0}"#, "timeout_ms is 0"),
            (r#"{"queries":[[1,2]],"timeout_ms":60001}"#, "give 1 to 60000"),
            (r#"{"queries":[[1,2]],"k":18446744073709551615}"#, "use 1 to 16384"),
        ] {
            let error = json(text, DType::F32).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{text}: {error}");
        }
        for (kind, text, said) in [
            (IndexKind::HybridIvf, r#"{"queries":[[1,2]],"early_stop":0.3}"#, "early_stop goes with nprobe"),
            (IndexKind::RemoteHnsw, r#"{"queries":[[1,2]],"nprobe":3,"ef":0}"#, "ef is 0; use 1 to 65536"),
            (
                IndexKind::RemoteHnsw,
                r#"{"queries":[[1,2]],"nprobe":3,"ef":65537}"#,
                "ef is 65537; use 1 to 65536",
            ),
            (IndexKind::GridIvf, r#"{"queries":[[1,2]],"nprobe":3,"ef":50}"#, "ef is for remote-hnsw"),
        ] {
            let error = of_kind(kind, text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        for (text, said) in [("[[1,256]]", "component 1 is 256, the index holds u8"), ("[[0.5,1]]", "is 0.5")]
        {
            let error = json(&format!(r#"{{"queries":{text}}}"#), DType::U8).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let many = format!(r#"{{"queries":[[1,2]{}]}}"#, ",[1,2]".repeat(1024));
        assert!(json(&many, DType::F32).unwrap_err().contains("1025 queries"));
    }

    #[test]
    fn invalid_octets_get_the_reason() {
        let shape = shape(DType::F32, Metric::L2);
        let nan = [1.0f32, f32::NAN].map(f32::to_le_bytes).concat();
        for (body, url, said) in [
            (vec![0; 9], "", "has 9 bytes, a vector of this index has 8 (2 × f32)"),
            (vec![], "k=3", "no queries"),
            (vec![0; 8 * 1025], "", "1025 queries"),
            (nan, "", "query 0: component 1 is NaN"),
            (vec![0; 8], "k=ten", "URL"),
            (vec![0; 8], "colour=1", "there is no parameter colour"),
            (vec![0; 8], "queries=1", "URL"),
            (vec![0; 8], "k=1&k=2", "duplicate field"),
            (vec![0; 8], "only=1&without=2", "both given"),
            (vec![0; 8], "filter=%7B", "filter is no JSON"),
            (vec![0; 8], "where=a+%3D", "column"),
            (vec![0; 8], "where=a+%3D+1&indexed_only=7", "use true or false"),
            (vec![0; 8], "only=1,-2", "only: -2 is no id"),
        ] {
            let error = from_octets(body, url, &shape, &Limits::default()).unwrap_err();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
