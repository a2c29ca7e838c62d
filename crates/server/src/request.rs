//! Search requests: their parameters, checked, and their queries as rows of the index's element type.

use std::fmt;
use std::time::Duration;

use half::f16;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use stratann_core::plan::grid_ivf::MAX_FAN_OUT;
use stratann_core::plan::remote_hnsw::MAX_EF;
use stratann_core::query::{MAX_WIDTH, Mode};
use stratann_engine::dataset::check_row;
use stratann_engine::exec::Width;
use stratann_engine::kinds::options::{GraphSwitches, GridSwitches, RemoteSwitches, Switches};
use stratann_engine::manifest::Manifest;
use stratann_engine::search::{Effort, SearchOptions};
use stratann_engine::{DType, Metric};

use crate::limits::Limits;

const USUAL_K: usize = 10;
const USUAL_RECALL: f64 = 0.95;
const USUAL_TIMEOUT_MS: u64 = 5000;

/// Layout of the rows of an index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowShape {
    pub(crate) dim: usize,
    pub(crate) dtype: DType,
    pub(crate) metric: Metric,
}

impl RowShape {
    /// `None` for types that this program does not know.
    pub(crate) fn of(manifest: &Manifest) -> Option<RowShape> {
        let (dtype, metric) = (manifest.dtype()?, manifest.metric()?);
        Some(RowShape { dim: manifest.dim, dtype, metric })
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.dim * self.dtype.size()
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

/// An error of a parser, which quotes what it could not read. The list of known fields is the program's own text.
fn quoting(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    match text.strip_prefix("unknown field `").and_then(|rest| rest.rsplit_once("`, expected ")) {
        Some((name, _)) if name.chars().count() <= QUOTED_MAX => text,
        Some((_, known)) => format!("an unknown field of many characters, expected {}", shortened(known)),
        None => shortened(&text),
    }
}

/// A checked request.
#[derive(Debug)]
pub(crate) struct Request {
    /// At least one row.
    pub(crate) rows: Vec<u8>,
    pub(crate) options: SearchOptions,
    pub(crate) timeout: Duration,
    pub(crate) partial: bool,
    /// The version of the cached clusters that the client knows; `None` where it does not ask for them.
    pub(crate) cached: Option<u64>,
}

/// The fields of a body in JSON, or the parameters of a URL.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestFields<'a> {
    #[serde(borrow)]
    queries: Option<&'a RawValue>,
    k: Option<usize>,
    recall: Option<f64>,
    search_list: Option<u32>,
    nprobe: Option<u32>,
    ef: Option<u32>,
    early_stop: Option<f32>,
    stop_slack: Option<f32>,
    patience: Option<u32>,
    width: Option<WidthName>,
    mode: Option<ModeName>,
    head: Option<bool>,
    whole_blocks: Option<bool>,
    prune_dimension: Option<bool>,
    prune_vector: Option<bool>,
    prewarm: Option<bool>,
    fan_out: Option<u8>,
    busy_last: Option<bool>,
    balance: Option<bool>,
    pipeline: Option<bool>,
    timeout_ms: Option<u64>,
    partial: Option<bool>,
    cached: Option<VersionName>,
}

/// A version of cached clusters: hexadecimal digits.
struct VersionName(u64);

impl<'de> Deserialize<'de> for VersionName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16)
            .map(VersionName)
            .map_err(|_| de::Error::custom("cached is no version of up to 16 hexadecimal digits"))
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    Barrier,
    Eager,
}

/// A number, or `auto`.
#[derive(Clone, Copy)]
struct WidthName(Width);

impl<'de> Deserialize<'de> for WidthName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = WidthName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a width: \"auto\", or 1 to {MAX_WIDTH}")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<WidthName, E> {
                match u32::try_from(number) {
                    Ok(n) if (1..=MAX_WIDTH).contains(&n) => Ok(WidthName(Width::Fixed(n))),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(number), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WidthName, E> {
                match text.parse() {
                    _ if text == "auto" => Ok(WidthName(Width::Auto)),
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Name)
    }
}

/// Reads a body in JSON.
///
/// # Errors
/// One line for the client.
pub(crate) fn from_json(body: &[u8], shape: &RowShape, limits: &Limits) -> Result<Request, String> {
    let fields: RequestFields<'_> =
        serde_json::from_slice(body).map_err(|e| format!("the body: {}", quoting(&e)))?;
    let queries = fields.queries.ok_or("the body has no \"queries\"; give a list of vectors")?;
    let mut rows = Rows { shape, limits, bytes: Vec::new(), count: 0, wrong: None };
    let read = serde_json::Deserializer::from_str(queries.get()).deserialize_seq(&mut rows);
    if let Some(wrong) = rows.wrong {
        return Err(wrong);
    }
    read.map_err(|_| "\"queries\" is no list of vectors; give [[…], …]".to_string())?;
    finish(&fields, rows.bytes, shape, limits)
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
    let fields: RequestFields<'_> = serde_urlencoded::from_str(url_query)
        .map_err(|e| format!("the parameters of the URL: {}", quoting(&e)))?;
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
        return Err(too_many(count, limits));
    }
    for (i, row) in body.chunks_exact(shape.row_bytes()).enumerate() {
        check(i, row, shape)?;
    }
    finish(&fields, body, shape, limits)
}

fn too_many(count: usize, limits: &Limits) -> String {
    format!(
        "{count} queries in one request; this server takes up to {} (max_batch), send more requests",
        limits.queries
    )
}

fn check(number: usize, row: &[u8], shape: &RowShape) -> Result<(), String> {
    match check_row(shape.dtype, shape.metric, row) {
        None => Ok(()),
        Some(bad) => Err(format!("query {number}: {bad}; correct the query")),
    }
}

fn grid_switches(fields: &RequestFields<'_>) -> Result<GridSwitches, String> {
    let usual = GridSwitches::default();
    let fan_out = fields.fan_out.unwrap_or(usual.fan_out);
    if !(1..=MAX_FAN_OUT).contains(&fan_out) {
        return Err(format!("fan_out is {fan_out}; give 1 to {MAX_FAN_OUT}"));
    }
    Ok(GridSwitches {
        prune_dimension: fields.prune_dimension.unwrap_or(usual.prune_dimension),
        prune_vector: fields.prune_vector.unwrap_or(usual.prune_vector),
        prewarm: fields.prewarm.unwrap_or(usual.prewarm),
        fan_out,
        busy_last: fields.busy_last.unwrap_or(usual.busy_last),
        balance: fields.balance.unwrap_or(usual.balance),
        pipeline: fields.pipeline.unwrap_or(usual.pipeline),
    })
}

/// The length of the beam in each cluster of a remote-hnsw.
fn remote_switches(fields: &RequestFields<'_>) -> Result<RemoteSwitches, String> {
    match fields.ef {
        Some(ef) if !(1..=MAX_EF).contains(&ef) => Err(format!("ef is {ef}; give 1 to {MAX_EF}")),
        ef => Ok(RemoteSwitches { ef }),
    }
}

/// The techniques of the one kind whose techniques are given.
fn switches(fields: &RequestFields<'_>) -> Result<Switches, String> {
    let graph = GraphSwitches {
        head: fields.head.unwrap_or(true),
        whole_blocks: fields.whole_blocks.unwrap_or(true),
        patience: fields.patience,
    };
    let (grid, remote) = (grid_switches(fields)?, remote_switches(fields)?);
    let all = [
        (graph != GraphSwitches::default()).then_some(Switches::from(graph)),
        (grid != GridSwitches::default()).then_some(grid.into()),
        (remote != RemoteSwitches::default()).then_some(remote.into()),
    ];
    let mut given = all.into_iter().flatten();
    match (given.next(), given.next()) {
        (None, _) => Ok(graph.into()),
        (Some(one), None) => Ok(one),
        _ => Err("techniques of several kinds of index are switched; leave out those of others".into()),
    }
}

fn finish(
    fields: &RequestFields<'_>,
    rows: Vec<u8>,
    shape: &RowShape,
    limits: &Limits,
) -> Result<Request, String> {
    let count = rows.len() / shape.row_bytes();
    if count == 0 {
        return Err("there are no queries; send at least one".into());
    }
    let options = options(fields)?;
    let most = limits.large_bytes;
    if Limits::answer_bytes(count, options.k) > most {
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
    let partial = fields.partial.unwrap_or(false);
    let cached = fields.cached.as_ref().map(|version| version.0);
    Ok(Request { rows, options, timeout: Duration::from_millis(timeout_ms), partial, cached })
}

/// Reads how queries would be searched from the parameters of a URL without queries.
///
/// # Errors
/// One line for the client.
pub(crate) fn options_of(url_query: &str) -> Result<SearchOptions, String> {
    let fields: RequestFields<'_> = serde_urlencoded::from_str(url_query)
        .map_err(|e| format!("the parameters of the URL: {}", quoting(&e)))?;
    options(&fields)
}

fn options(fields: &RequestFields<'_>) -> Result<SearchOptions, String> {
    let usual = SearchOptions::default();
    Ok(SearchOptions {
        k: fields.k.unwrap_or(USUAL_K),
        effort: effort(fields)?,
        mode: match fields.mode {
            Some(ModeName::Eager) => Mode::Eager,
            Some(ModeName::Barrier) | None => Mode::Barrier,
        },
        width: fields.width.map_or(usual.width, |w| w.0),
        switches: switches(fields)?,
        ..usual
    })
}

fn effort(fields: &RequestFields<'_>) -> Result<Effort, String> {
    let given = [
        ("recall", fields.recall.is_some()),
        ("search_list", fields.search_list.is_some()),
        ("nprobe", fields.nprobe.is_some()),
    ];
    let named: Vec<&str> = given.iter().filter(|g| g.1).map(|g| g.0).collect();
    if let [first, second, ..] = named.as_slice() {
        return Err(format!("{first} and {second} are both given; give one of them"));
    }
    if fields.early_stop.is_some() && fields.nprobe.is_none() {
        return Err("early_stop goes with nprobe; leave it out, or give both".into());
    }
    match (fields.search_list, fields.nprobe) {
        (Some(list), _) => Ok(Effort::List(list, fields.stop_slack)),
        (None, Some(clusters)) => Ok(Effort::Clusters(clusters, fields.stop_slack, fields.early_stop)),
        (None, None) if fields.stop_slack.is_some() => {
            Err("stop_slack goes with search_list or nprobe; leave it out, or give both".into())
        }
        (None, None) => Ok(Effort::Recall(fields.recall.unwrap_or(USUAL_RECALL))),
    }
}

/// Converts a list of lists of numbers into rows, one list at a time. An invalid list ends the conversion; `wrong` has
/// the reason.
struct Rows<'a> {
    shape: &'a RowShape,
    limits: &'a Limits,
    bytes: Vec<u8>,
    count: usize,
    wrong: Option<String>,
}

impl<'de> Visitor<'de> for &mut Rows<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of vectors")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(row) = seq.next_element::<&'de RawValue>()? {
            if let Err(wrong) = self.push(row.get()) {
                self.wrong = Some(wrong);
                return Err(de::Error::custom("wrong"));
            }
        }
        Ok(())
    }
}

impl Rows<'_> {
    fn push(&mut self, text: &str) -> Result<(), String> {
        let (number, shape) = (self.count, self.shape);
        if number == self.limits.queries {
            return Err(too_many(number + 1, self.limits));
        }
        // Components are counted before they are read, so that a vector takes no more memory than one of the index.
        let found = if text.contains(|c: char| !c.is_whitespace() && !"[]".contains(c)) {
            text.bytes().filter(|&b| b == b',').count() + 1
        } else {
            0
        };
        if found != shape.dim && text.starts_with('[') {
            return Err(format!("query {number} has {found} dimensions, the index has {}", shape.dim));
        }
        let unread = |e: serde_json::Error| format!("query {number}: {}", quoting(&e));
        let start = self.bytes.len();
        if shape.dtype.is_float() {
            let row: Vec<f32> = serde_json::from_str(text).map_err(unread)?;
            match shape.dtype {
                DType::F16 => self.bytes.extend(row.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
                _ => self.bytes.extend(row.iter().flat_map(|x| x.to_le_bytes())),
            }
        } else {
            let row: Vec<f64> = serde_json::from_str(text).map_err(unread)?;
            for (component, &x) in row.iter().enumerate() {
                let byte = whole(x, shape.dtype).ok_or_else(|| {
                    let dtype = shape.dtype.name();
                    format!("query {number}: component {component} is {x}, the index holds {dtype}")
                })?;
                self.bytes.push(byte);
            }
        }
        self.count += 1;
        check(number, &self.bytes[start..], shape)
    }
}

/// A number as one byte of u8 or i8; `None` when it is none of them.
fn whole(x: f64, dtype: DType) -> Option<u8> {
    let (low, high) = if dtype == DType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
    (x.fract() == 0.0 && (low..=high).contains(&x)).then_some(x as i16 as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dtype: DType, metric: Metric) -> RowShape {
        RowShape { dim: 2, dtype, metric }
    }

    fn json(text: &str, dtype: DType) -> Result<Request, String> {
        from_json(text.as_bytes(), &shape(dtype, Metric::Cosine), &Limits::default())
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
            assert_eq!((options.k, options.effort), (3, Effort::List(40, Some(1.5))));
            assert_eq!((options.width, options.mode), (Width::Fixed(4), Mode::Eager));
            let switches = GraphSwitches { head: false, whole_blocks: false, patience: Some(9) };
            assert_eq!(options.switches, switches.into());
            assert_eq!((request.timeout, request.partial), (Duration::from_millis(70), true));
        }
    }

    #[test]
    fn nprobe_is_a_number_of_lists() {
        let body =
            json(r#"{"queries":[[1,2]],"nprobe":7,"early_stop":0.25,"stop_slack":2}"#, DType::F32).unwrap();
        assert_eq!(body.options.effort, Effort::Clusters(7, Some(2.0), Some(0.25)));
        let shape = shape(DType::F32, Metric::Cosine);
        let octets = from_octets(body.rows.clone(), "nprobe=7", &shape, &Limits::default()).unwrap();
        assert_eq!(octets.options.effort, Effort::Clusters(7, None, None));
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
            (r#"{"queries":[[1,2]],"colour":1}"#, "unknown field `colour`"),
            (r#"{"queries":[[1,2]],"k":-1}"#, "invalid value"),
            (r#"{"queries":[[1,2]],"recall":0.9,"search_list":9}"#, "give one of them"),
            (r#"{"queries":[[1,2]],"stop_slack":1}"#, "goes with search_list"),
            (r#"{"queries":[[1,2]],"nprobe":3,"search_list":9}"#, "search_list and nprobe are both given"),
            (r#"{"queries":[[1,2]],"recall":0.9,"nprobe":9}"#, "recall and nprobe are both given"),
            (r#"{"queries":[[1,2]],"early_stop":0.3}"#, "early_stop goes with nprobe"),
            (r#"{"queries":[[1,2]],"nprobe":-3}"#, "invalid value"),
            (r#"{"queries":[[1,2]],"nprobe":3,"ef":0}"#, "ef is 0; give 1 to 65536"),
            (r#"{"queries":[[1,2]],"nprobe":3,"ef":65537}"#, "ef is 65537; give 1 to 65536"),
            (r#"{"queries":[[1,2]],"nprobe":3,"ef":50,"fan_out":2}"#, "techniques of several kinds"),
            (r#"{"queries":[[1,2]],"width":65}"#, "1 to 64"),
            (r#"{"queries":[[1,2]],"width":"wide"}"#, "1 to 64"),
            (r#"{"queries":[[1,2]],"mode":"slow"}"#, "barrier"),
            (r#"{"queries":[[1,2]],"timeout_ms":0}"#, "timeout_ms is 0"),
            (r#"{"queries":[[1,2]],"timeout_ms":60001}"#, "give 1 to 60000"),
            (r#"{"queries":[[1,2]],"k":18446744073709551615}"#, "ask for less at a time"),
        ] {
            let error = json(text, DType::F32).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{text}: {error}");
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
            (vec![0; 8], "colour=1", "unknown field `colour`"),
            (vec![0; 8], "queries=1", "URL"),
            (vec![0; 8], "k=1&k=2", "duplicate field"),
        ] {
            let error = from_octets(body, url, &shape, &Limits::default()).unwrap_err();
            assert!(error.contains(said), "{url}: {error}");
        }
    }
}
