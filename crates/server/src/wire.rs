//! JSON of requests and answers over HTTP, written by the server and read by clients.

use std::borrow::Cow;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use stratann_core::kinds::KindParams;
use stratann_core::query::{Params, QueryStats};
use stratann_engine::kinds::answers::Setting;
use stratann_engine::kinds::shares_loads::CachedClusters;
use stratann_engine::kinds::{params_of, setting};
pub use stratann_engine::search::FilterReport;
use stratann_storage::names::BuildId;

/// Largest number of queries in one request of this project's clients.
pub const QUERIES_PER_REQUEST: usize = 16;

/// The answer to `POST /v1/search`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply<A = Answered> {
    /// One for each query, in their order.
    pub answers: Vec<A>,
    /// Whether ids are numbers and strings, as in replies of collections: some id of the index is no number.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_ids: bool,
    /// Conditions of a filter over payloads for which payloads were read, where it has such a filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unindexed: Option<Vec<String>>,
    /// The server that received the request.
    pub server: u8,
    /// Parameters of its queries.
    pub params: Used,
    /// The filters of its queries, where it has some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<FilterReports>,
    /// Clusters of a `remote-hnsw` that the server has cached now, when the request asks for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached: Option<Cached>,
    /// One line, when there is no answer because the server is overloaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a reply says of filters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FilterReports {
    /// Of one for all queries.
    Shared(FilterReport),
    /// Of each query.
    Each(Vec<FilterReport>),
}

impl FilterReports {
    /// What is said of the filter of the query at this position.
    pub fn of(&self, query: usize) -> Option<FilterReport> {
        match self {
            FilterReports::Shared(report) => Some(*report),
            FilterReports::Each(each) => each.get(query).copied(),
        }
    }
}

/// The clusters that a server has in its cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cached {
    /// Equal for equal sets of one build: 16 hexadecimal digits.
    pub version: String,
    /// Two hexadecimal digits for each eight clusters, the lowest bit for the first of them. It is left out where the
    /// client has this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bitmap: Option<String>,
}

impl Cached {
    /// Reply to a client that knows a version, or 0.
    pub fn of(own: &CachedClusters, known: u64) -> Cached {
        let digits = || own.clusters.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let bitmap = (own.version != known).then(digits);
        Cached { version: format!("{:016x}", own.version), bitmap }
    }

    /// The version and the bitmap, if there is one; `None` where they are not written as they should be.
    pub fn read(&self) -> Option<(u64, Option<Vec<u8>>)> {
        let version = u64::from_str_radix(&self.version, 16).ok()?;
        let Some(text) = &self.bitmap else { return Some((version, None)) };
        if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).ok();
        let bytes = (0..text.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        Some((version, Some(bytes)))
    }
}

/// The answer to `GET /v1/clusters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clusters {
    /// The build of the index.
    pub build_id: BuildId,
    /// Build of the index, on which the checksum of the meta-HNSW depends: 16 hexadecimal digits.
    pub build: String,
    /// Clusters that a query with the parameters of the URL needs.
    pub nprobe: u32,
    /// Bytes of each cluster.
    pub bytes: Vec<u32>,
    /// The clusters that are cached now.
    pub cached: Cached,
}

/// The answer to any request that was refused, as far as clients of `/v1/search` read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// The problem, its place, and what to do, in one line.
    pub error: String,
}

/// Result of one query.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "nearly all are the large one")]
pub enum Answered<F = Found> {
    /// The query has an answer.
    Found(F),
    /// The query has no answer.
    Failed(Failed),
}

/// The answer to one query.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Closest first. Decimal strings, since many JSON readers round numbers above 2^53.
    #[serde(serialize_with = "decimal")]
    pub ids: Vec<u64>,
    /// Distances of the results.
    pub distances: Vec<f32>,
    /// Whether a part of the index could not be reached.
    pub partial: bool,
    /// Indexes of a cluster that gave no answer, by number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost_parts: Vec<u8>,
    /// Time on the server from question to answer, microseconds.
    pub latency_us: u64,
    /// Counters of the query.
    pub per_query: Counters,
}

/// Why a query has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failed {
    /// The problem, its place, and what to do, in one line.
    pub error: String,
    /// The reason, for programs.
    pub kind: FailureKind,
}

/// Why a query has no answer, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// The server holds as many queries as it may.
    Overloaded,
    /// The timeout of the query has passed.
    Expired,
    /// No live server holds a part of the index, or none answers.
    Unreachable,
    /// Anything else.
    Failed,
}

impl FailureKind {
    /// All reasons.
    pub const ALL: [FailureKind; 4] =
        [FailureKind::Overloaded, FailureKind::Expired, FailureKind::Unreachable, FailureKind::Failed];

    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Overloaded => "overloaded",
            FailureKind::Expired => "expired",
            FailureKind::Unreachable => "unreachable",
            FailureKind::Failed => "failed",
        }
    }
}

/// Counters of one query as JSON: an object with the names of [`QueryStats::NAMES`]. A missing counter is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters(pub QueryStats);

impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(QueryStats::NAMES.iter().zip(self.0.values()))
    }
}

impl<'de> Deserialize<'de> for Counters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(CountersVisitor)
    }
}

struct CountersVisitor;

impl<'de> Visitor<'de> for CountersVisitor {
    type Value = Counters;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("counters by name")
    }

    /// Counters of a newer server that this program does not know are skipped.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counters, A::Error> {
        let mut stats = QueryStats::default();
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if QueryStats::NAMES.contains(&&*name) {
                stats.set(&name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Counters(stats))
    }
}

/// A kind of index that shares its parameters with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UsedKind {
    /// A `grid-ivf`.
    GridIvf,
    /// A `gpu-ivf`.
    GpuIvf,
    /// A `remote-hnsw`.
    RemoteHnsw,
    /// One of a newer server, which this program does not know.
    #[serde(other)]
    Unknown,
}

/// Parameters of the queries of a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Kind of the index, where the other parameters do not tell it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<UsedKind>,
    /// Results for each query.
    pub k: u32,
    /// Length of the candidate queue.
    pub search_list: u32,
    /// Slack of the adaptive stop, standard errors; `None` when it is off.
    pub stop_slack: Option<f32>,
    /// Reads in a row without a change that end a query; 0 when that is off.
    pub patience: u32,
    /// Most inverted lists visited, for a kind that has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nprobe: Option<u32>,
    /// Share of them, one after another without a gain, that ends the query; `None` when that is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early_stop: Option<f32>,
}

impl Used {
    /// The parameters that concern a client.
    pub fn of(params: &Params) -> Used {
        let setting = setting(params);
        Used {
            kind: params
                .kind
                .grid_ivf()
                .map(|_| UsedKind::GridIvf)
                .or(params.kind.gpu_ivf().map(|_| UsedKind::GpuIvf))
                .or(params.kind.remote_hnsw().map(|_| UsedKind::RemoteHnsw)),
            k: params.k,
            search_list: setting.search_list,
            stop_slack: setting.slack,
            patience: setting.patience,
            nprobe: setting.nprobe,
            early_stop: setting.early_stop,
        }
    }

    /// Parameters with these values, and defaults for the others.
    pub fn params(&self) -> Params {
        if let (Some(UsedKind::GridIvf), Some(nprobe)) = (self.kind, self.nprobe) {
            return Params::grid_ivf(self.k, nprobe);
        }
        if let (Some(UsedKind::GpuIvf), Some(nprobe)) = (self.kind, self.nprobe) {
            return Params::gpu_ivf(self.k, nprobe);
        }
        if let (Some(UsedKind::RemoteHnsw), Some(nprobe)) = (self.kind, self.nprobe) {
            let mut params = Params::remote_hnsw(self.k, nprobe);
            if let KindParams::RemoteHnsw(own) = &mut params.kind {
                own.ef = self.search_list;
            }
            return params;
        }
        params_of(
            self.k,
            &Setting {
                effort: self.nprobe.unwrap_or(self.search_list),
                search_list: self.search_list,
                slack: self.stop_slack,
                patience: self.patience,
                nprobe: self.nprobe,
                early_stop: self.early_stop,
            },
        )
    }
}

/// Ids as decimal strings.
pub(crate) fn decimal<S: Serializer>(ids: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ids.iter().map(|&id| Decimal(id)))
}

/// A number as a string.
struct Decimal(u64);

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(deserializer)?;
        text.parse().map(Decimal).map_err(|_| serde::de::Error::custom(format!("{text:?} is no id")))
    }
}

/// Both forms of [`Answered`] in one, so that it is read in one pass.
#[derive(Deserialize)]
struct Either {
    #[serde(default)]
    ids: Vec<Decimal>,
    #[serde(default)]
    distances: Vec<f32>,
    #[serde(default)]
    partial: bool,
    #[serde(default)]
    lost_parts: Vec<u8>,
    #[serde(default)]
    latency_us: u64,
    #[serde(default)]
    per_query: Counters,
    error: Option<String>,
    kind: Option<FailureKind>,
}

impl<'de> Deserialize<'de> for Answered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = Either::deserialize(deserializer)?;
        if let Some(error) = read.error {
            return Ok(Answered::Failed(Failed { error, kind: read.kind.unwrap_or(FailureKind::Failed) }));
        }
        if read.ids.len() != read.distances.len() {
            return Err(serde::de::Error::custom("ids and distances differ in number"));
        }
        if !read.distances.iter().all(|distance| distance.is_finite()) {
            return Err(serde::de::Error::custom("a distance is too large"));
        }
        Ok(Answered::Found(Found {
            ids: read.ids.into_iter().map(|id| id.0).collect(),
            distances: read.distances,
            partial: read.partial,
            lost_parts: read.lost_parts,
            latency_us: read.latency_us,
            per_query: read.per_query,
        }))
    }
}

#[cfg(test)]
mod tests {
    use stratann_engine::kinds::cluster_set::ClusterSet;

    use super::*;

    #[test]
    fn answers_survive_json() {
        let mut stats = QueryStats::default();
        (1..).zip(QueryStats::NAMES).for_each(|(i, name)| assert!(stats.set(name, i)));
        let found = Answered::Found(Found {
            ids: vec![0, 7, u64::MAX - 1],
            distances: vec![0.1, 1.0e-30, 3.4e38],
            partial: true,
            lost_parts: vec![1, 63],
            latency_us: 123,
            per_query: Counters(stats),
        });
        let failed = Answered::Failed(Failed { error: "gone".into(), kind: FailureKind::Unreachable });
        let text = serde_json::to_string(&[&found, &failed]).unwrap();
        assert!(text.contains(r#""ids":["0","7","18446744073709551614"]"#), "{text}");
        assert!(text.contains(r#""reads":4,"pages_read":5,"bytes_read":6,"cache_hits":7"#), "{text}");
        assert!(text.ends_with(r#"{"error":"gone","kind":"unreachable"}]"#), "{text}");
        let back: Vec<Answered> = serde_json::from_str(&text).unwrap();
        assert_eq!(back, [found, failed]);
    }

    #[test]
    fn parameters_survive_json() {
        for params in [Params::disk_graph(10, 60), Params::hybrid_ivf(5, 7), Params::grid_ivf(5, 7)] {
            let used = Used::of(&params);
            let text = serde_json::to_string(&used).unwrap();
            let back: Used = serde_json::from_str(&text).unwrap();
            assert_eq!((back, back.params().kind), (used, params.kind), "{text}");
            assert_eq!(text.contains("grid-ivf"), params.kind.grid_ivf().is_some());
        }
        let newer = r#"{"kind":"of-later","k":3,"search_list":9,"stop_slack":null,"patience":0}"#;
        let used: Used = serde_json::from_str(newer).unwrap();
        assert_eq!((used.kind, used.params().k), (Some(UsedKind::Unknown), 3));
    }

    #[test]
    fn cached_clusters_survive_json() {
        let bits = vec![0x01, 0xF0, 0x00];
        let clusters = ClusterSet::from_bytes(bits.clone(), 20).unwrap();
        let own = CachedClusters { version: 0xAB, clusters };
        let said = Cached::of(&own, 0);
        assert_eq!(said.bitmap.as_deref(), Some("01f000"));
        let back: Cached = serde_json::from_str(&serde_json::to_string(&said).unwrap()).unwrap();
        assert_eq!(back.read(), Some((0xAB, Some(bits))));
        assert_eq!(Cached::of(&own, 0xAB).read(), Some((0xAB, None)));
        for bad in ["0", "0g", "\u{e9}\u{e9}"] {
            assert_eq!(Cached { bitmap: Some(bad.into()), ..said.clone() }.read(), None, "{bad}");
        }
    }

    #[test]
    fn missing_counters_are_0_and_unknown_ones_are_skipped() {
        let counters: Counters = serde_json::from_str(r#"{"reads":3,"of_tomorrow":[1,2],"hops":2}"#).unwrap();
        assert_eq!(counters.0, QueryStats { reads: 3, hops: 2, ..QueryStats::default() });
        assert!(serde_json::from_str::<Counters>(r#"{"reads":-1}"#).is_err());
    }

    #[test]
    fn invalid_answers_are_refused() {
        for text in [
            r#"{"ids":["1"],"distances":[]}"#,
            r#"{"ids":["x"],"distances":[1]}"#,
            "[]",
            r#"{"ids":["1"],"distances":[1e39]}"#,
        ] {
            assert!(serde_json::from_str::<Answered>(text).is_err(), "{text}");
        }
    }
}
