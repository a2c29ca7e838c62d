//! Replies of collections.

use std::collections::BTreeMap;

use base64::display::Base64Display;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Serialize, Serializer};
use stratann_engine::DType;
use stratann_node::collections::{
    Facts, IndexFacts, JobFacts, MemoryLimits, PayloadJson, Point, Spec, Specs, VectorJson,
};
use stratann_node::rows::ExternalId;
use stratann_params::IndexKind;
use stratann_payload::Schema;

use super::body::VectorForm;

/// What vectors are.
#[derive(Serialize)]
struct SpecReply {
    dim: usize,
    metric: &'static str,
    dtype: &'static str,
    kind: &'static str,
}

impl SpecReply {
    fn of(spec: &Spec) -> SpecReply {
        SpecReply {
            dim: spec.dim,
            metric: spec.metric.name(),
            dtype: spec.dtype.name(),
            kind: spec.kind.map_or("auto", IndexKind::name),
        }
    }
}

/// The vectors of a collection: the fields of its only ones, or those of each name.
#[derive(Serialize)]
struct SpecsReply<'a> {
    #[serde(flatten)]
    only: Option<SpecReply>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vectors: Option<BTreeMap<&'a str, SpecReply>>,
}

impl<'a> SpecsReply<'a> {
    fn of(specs: &'a Specs) -> SpecsReply<'a> {
        match specs.only() {
            Ok(spec) => SpecsReply { only: Some(SpecReply::of(spec)), vectors: None },
            Err(_) => {
                let each = specs.iter().map(|own| (own.name.as_str(), SpecReply::of(&own.spec)));
                SpecsReply { only: None, vectors: Some(each.collect()) }
            }
        }
    }
}

/// A collection in a list.
#[derive(Serialize)]
pub(super) struct Described<'a> {
    name: &'a str,
    #[serde(flatten)]
    specs: SpecsReply<'a>,
}

impl<'a> Described<'a> {
    pub(super) fn of(name: &'a str, specs: &'a Specs) -> Described<'a> {
        Described { name, specs: SpecsReply::of(specs) }
    }
}

/// All collections. One that is damaged has `name` and `error` alone.
#[derive(Serialize)]
pub(super) struct ListReply<'a> {
    pub(super) collections: Vec<Listed<'a>>,
    /// Why nothing is written; null where all is whole.
    pub(super) read_only: Option<&'a str>,
}

/// A collection, or why it cannot be used.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Listed<'a> {
    Whole(Described<'a>),
    Damaged { name: &'a str, error: &'a str },
}

/// A segment of a collection.
#[derive(Serialize)]
struct SegmentReply<'a> {
    number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    rows: u64,
    dead: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    indexes: Option<Vec<IndexReply<'a>>>,
}

/// The index of a name of vectors in a segment.
#[derive(Serialize)]
struct IndexReply<'a> {
    vector_name: &'a str,
    kind: &'static str,
    rows: u64,
}

impl<'a> IndexReply<'a> {
    fn of(own: &'a IndexFacts) -> IndexReply<'a> {
        IndexReply { vector_name: &own.vector_name, kind: own.kind.name(), rows: own.rows }
    }
}

/// How far a job is.
#[derive(Serialize)]
struct ProgressReply<'a> {
    kind: &'static str,
    stage: &'a str,
    done: u64,
    total: u64,
    unit: &'a str,
    elapsed_ms: u64,
}

impl<'a> ProgressReply<'a> {
    fn of(own: &'a JobFacts) -> ProgressReply<'a> {
        let JobFacts { kind, stage, done, total, unit, elapsed_ms } = own;
        ProgressReply { kind, stage, done: *done, total: *total, unit, elapsed_ms: *elapsed_ms }
    }
}

/// What a collection is made of.
#[derive(Serialize)]
pub(super) struct InfoReply<'a> {
    name: &'a str,
    #[serde(flatten)]
    specs: SpecsReply<'a>,
    points: u64,
    seq: u64,
    delta_points: u64,
    delta_bytes: u64,
    segments: Vec<SegmentReply<'a>>,
    indexes_built: u64,
    payloads_folded: u64,
    rows_taken_over: u64,
    trouble: Option<&'a str>,
    trouble_code: Option<&'static str>,
    jobs: &'a [&'static str],
    progress: Vec<ProgressReply<'a>>,
    schema: &'a Schema,
    memory_bytes: u64,
    memory_quota_bytes: Option<u64>,
    memory_minimum_bytes: u64,
}

impl<'a> InfoReply<'a> {
    pub(super) fn of(name: &'a str, specs: &'a Specs, facts: &'a Facts, schema: &'a Schema) -> InfoReply<'a> {
        let segments = facts.segments.iter().map(|own| SegmentReply {
            number: own.number,
            kind: own.kind.map(IndexKind::name),
            rows: own.rows,
            dead: own.dead,
            bytes: own.bytes,
            indexes: specs.has_names().then(|| own.indexes.iter().map(IndexReply::of).collect()),
        });
        InfoReply {
            name,
            specs: SpecsReply::of(specs),
            points: facts.points,
            seq: facts.seq,
            delta_points: facts.delta_points,
            delta_bytes: facts.delta_bytes,
            segments: segments.collect(),
            indexes_built: facts.indexes_built,
            payloads_folded: facts.payloads_folded,
            rows_taken_over: facts.rows_taken_over,
            trouble: facts.trouble.as_ref().map(|e| &*e.message),
            trouble_code: facts.trouble.as_ref().map(|e| e.kind.code()),
            jobs: &facts.jobs,
            progress: facts.progress.iter().map(ProgressReply::of).collect(),
            schema,
            memory_bytes: facts.memory_bytes,
            memory_quota_bytes: facts.limits.quota_bytes,
            memory_minimum_bytes: facts.limits.minimum_bytes,
        }
    }
}

/// Limits of the memory of a collection.
#[derive(Serialize)]
pub(super) struct LimitsReply<'a> {
    name: &'a str,
    memory_quota_bytes: Option<u64>,
    memory_minimum_bytes: u64,
}

impl<'a> LimitsReply<'a> {
    pub(super) fn of(name: &'a str, limits: &MemoryLimits) -> LimitsReply<'a> {
        let MemoryLimits { quota_bytes, minimum_bytes } = *limits;
        LimitsReply { name, memory_quota_bytes: quota_bytes, memory_minimum_bytes: minimum_bytes }
    }
}

/// A collection whose compaction was asked for.
#[derive(Serialize)]
pub(super) struct NameReply<'a> {
    pub(super) name: &'a str,
}

/// A collection that is dropped.
#[derive(Serialize)]
pub(super) struct DroppedReply<'a> {
    pub(super) name: &'a str,
    pub(super) rows: u64,
    pub(super) unfinished: Option<String>,
}

/// Points that are written.
#[derive(Serialize)]
pub(super) struct UpsertReply<'a> {
    pub(super) seq: u64,
    pub(super) new: u64,
    pub(super) replaced: u64,
    pub(super) repeated: u64,
    pub(super) skipped: Vec<&'a ExternalId>,
}

/// Points whose vectors changed.
#[derive(Serialize)]
pub(super) struct VectorsReply {
    pub(super) seq: u64,
    pub(super) changed: u64,
}

/// Points that are deleted.
#[derive(Serialize)]
pub(super) struct DeleteReply {
    pub(super) seq: u64,
    pub(super) deleted: u64,
    pub(super) unknown: u64,
    pub(super) changed: u64,
    pub(super) changes: u64,
    pub(super) unindexed: Vec<String>,
}

/// A number of points.
#[derive(Serialize)]
pub(super) struct CountReply {
    pub(super) seq: u64,
    pub(super) count: u64,
    pub(super) least: u64,
    pub(super) most: u64,
    pub(super) unindexed: Vec<String>,
}

/// Fields of payloads that are indexed.
#[derive(Serialize)]
pub(super) struct SchemaReply<'a> {
    pub(super) name: &'a str,
    pub(super) schema: &'a Schema,
}

/// Payloads that are changed.
#[derive(Serialize)]
pub(super) struct PayloadReply {
    pub(super) seq: u64,
    pub(super) changed: u64,
    pub(super) unchanged: u64,
    pub(super) unknown: u64,
    pub(super) changes: u64,
}

/// What was compared.
#[derive(Serialize)]
pub(super) struct VerifyReply<'a> {
    pub(super) name: &'a str,
    pub(super) seq: u64,
    pub(super) points: u64,
}

/// Points by their ids; null where there is none.
#[derive(Serialize)]
pub(super) struct GetReply<'a> {
    pub(super) points: Vec<Option<PointReply<'a>>>,
}

/// A point.
#[derive(Serialize)]
pub(super) struct PointReply<'a> {
    pub(super) id: &'a ExternalId,
    pub(super) seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vector: Option<Vector<'a>>,
    /// By name, those that it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vectors: Option<BTreeMap<&'a str, Vector<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<PayloadJson<'a>>,
}

impl<'a> PointReply<'a> {
    /// The point with its vectors, or without.
    pub(super) fn of(point: &'a Point, specs: &'a Specs, form: Option<VectorForm>) -> PointReply<'a> {
        let payload = point.payload.as_deref().map(PayloadJson);
        let mut reply = PointReply { id: &point.id, seq: point.seq, vector: None, vectors: None, payload };
        let Some(form) = form else { return reply };
        let each = specs.iter().zip(&point.vectors).filter_map(|(own, bytes)| {
            let vector = Vector { bytes: bytes.as_deref()?, dtype: own.spec.dtype, form };
            Some((own.name.as_str(), vector))
        });
        let mut vectors: BTreeMap<_, _> = each.collect();
        match specs.has_names() {
            true => reply.vectors = Some(vectors),
            false => reply.vector = vectors.remove(""),
        }
        reply
    }
}

/// A page of points.
#[derive(Serialize)]
pub(super) struct ScrollReply<'a> {
    pub(super) seq: u64,
    pub(super) points: Vec<PointReply<'a>>,
    /// Where the next page begins; null at the end.
    pub(super) next: Option<Next<'a>>,
    /// Conditions of the filter for which payloads were read.
    pub(super) unindexed: Vec<String>,
}

/// Where a page begins: behind an id, or a place in the order of a field.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Next<'a> {
    Id(&'a ExternalId),
    Place(&'a str),
}

/// The answers to the queries of a request, all of one state of the collection.
#[derive(Serialize)]
pub(super) struct QueryReply<'a> {
    pub(super) seq: u64,
    pub(super) latency_us: u64,
    pub(super) answers: Vec<Results<'a>>,
    /// Conditions of the filter for which payloads were read.
    pub(super) unindexed: Vec<String>,
}

/// The nearest points of a query, nearest first.
#[derive(Serialize)]
pub(super) struct Results<'a> {
    pub(super) ids: Vec<&'a ExternalId>,
    pub(super) distances: Vec<f32>,
    /// As the search saw them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vectors: Option<Vec<Vector<'a>>>,
    /// As the search saw them; null for a point without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payloads: Option<Vec<Option<PayloadJson<'a>>>>,
}

/// Components of a vector.
pub(super) struct Vector<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: DType,
    pub(super) form: VectorForm,
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.form == VectorForm::Base64 {
            return serializer.collect_str(&Base64Display::new(self.bytes, &BASE64));
        }
        VectorJson { bytes: self.bytes, dtype: self.dtype }.serialize(serializer)
    }
}
