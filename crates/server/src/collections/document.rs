//! Requests and replies as tables, from which the OpenAPI document is made.
//!
//! Tests compare them with what serde reads, and with what is replied.

use stratann_engine::{DType, Metric};
use stratann_params::IndexKind;
use stratann_payload::IndexKind as FieldIndex;

use crate::problem::Code;

/// What JSON a value is.
pub(super) enum Shape {
    /// A string.
    Text,
    /// A whole number from 0 on.
    Whole,
    /// A number.
    Real,
    /// True or false.
    Flag,
    /// A whole number, or a string.
    Id,
    /// Vectors: lists of numbers, or a string in base64.
    Vectors,
    /// The same, in which a vector may be null, or in base64 by itself.
    SomeVectors,
    /// A vector: a list of numbers, or a string in base64.
    Vector,
    /// An object with any fields.
    Any,
    /// One of some names.
    Name(Names),
    /// Kinds of indexes by field, each a name or a list of them.
    Fields,
    /// An object.
    Object(&'static Object),
    /// An object with values of a shape by name.
    Map(&'static Shape),
    /// A list.
    List(&'static Shape),
    /// The value, or null.
    Null(&'static Shape),
    /// One of several.
    OneOf(&'static [Shape]),
}

/// Names that the code has in lists of its own.
#[derive(Clone, Copy)]
pub(super) enum Names {
    Metric,
    DType,
    Kind,
    VectorForm,
    Code,
    Job,
}

impl Names {
    pub(super) fn all(self) -> Vec<&'static str> {
        match self {
            Names::Metric => Metric::ALL.map(Metric::name).to_vec(),
            Names::DType => DType::ALL.map(DType::name).to_vec(),
            Names::Kind => ["auto"].into_iter().chain(IndexKind::ALL.map(IndexKind::name)).collect(),
            Names::VectorForm => vec!["numbers", "base64"],
            Names::Code => Code::all().map(Code::name).collect(),
            Names::Job => vec!["checkpoint", "minor_merge", "merge"],
        }
    }
}

/// Kinds of indexes of fields.
pub(super) fn field_indexes() -> Vec<&'static str> {
    FieldIndex::ALL.map(FieldIndex::name).to_vec()
}

/// An object with a name.
pub(super) struct Object {
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
}

/// A field: its name, whether it is always there, its value, and what it says.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) shape: Shape,
    pub(super) about: &'static str,
}

const fn always(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, is_required: true, shape, about }
}

const fn maybe(name: &'static str, shape: Shape, about: &'static str) -> Field {
    Field { name, is_required: false, shape, about }
}

const FILTER: &str = "a filter in Qdrant's form";
const WHERE: &str = "a filter as text, instead of filter";
const INDEXED_ONLY: &str = "whether a filter on a field without an index is refused; false";
const IDS: &str = "ids of points, instead of a filter";
const WITH_VECTORS: &str = "whether points have their vectors";
const VECTORS_AS: &str = "how vectors are written in the reply; numbers";
const UNINDEXED: &str = "conditions for which payloads were read, for want of an index";
const SEQ: &str = "number of the newest change of the collection";

const NAME: Field = always("name", Shape::Text, "name of the collection");
const DIM: Field = always("dim", Shape::Whole, "components of a vector");
const LIMITS_REQUESTED: [Field; 2] = [
    maybe("memory_quota_bytes", Shape::Null(&Shape::Whole), "the most memory that it takes; null for none"),
    maybe("memory_minimum_bytes", Shape::Null(&Shape::Whole), "memory that others never take"),
];

const METRIC_REQUESTED: Field = maybe("metric", Shape::Name(Names::Metric), "the distance; l2");
const DTYPE_REQUESTED: Field = maybe("dtype", Shape::Name(Names::DType), "type of a component; f32");
const KIND_REQUESTED: Field =
    maybe("kind", Shape::Name(Names::Kind), "kind of index of its larger parts; auto");

pub(super) const VECTORS_SPEC: Object =
    Object { name: "VectorsRequest", fields: &[DIM, METRIC_REQUESTED, DTYPE_REQUESTED, KIND_REQUESTED] };
pub(super) const SPEC: Object = Object {
    name: "CreateRequest",
    fields: &[
        maybe("dim", Shape::Whole, "components of a vector"),
        METRIC_REQUESTED,
        DTYPE_REQUESTED,
        KIND_REQUESTED,
        maybe(
            "vectors",
            Shape::Map(&Shape::Object(&VECTORS_SPEC)),
            "vectors by name, in place of dim, metric, dtype and kind",
        ),
        maybe(
            "memory_quota_bytes",
            Shape::Null(&Shape::Whole),
            "the most memory that it takes; null for none",
        ),
        maybe("memory_minimum_bytes", Shape::Null(&Shape::Whole), "memory that others never take"),
    ],
};
pub(super) const LIMITS: Object = Object { name: "LimitsRequest", fields: &LIMITS_REQUESTED };
pub(super) const POINTS: Object = Object {
    name: "UpsertRequest",
    fields: &[
        always("ids", Shape::List(&Shape::Id), "an id for each vector"),
        always(
            "vectors",
            Shape::OneOf(&[Shape::Vectors, Shape::Map(&Shape::SomeVectors)]),
            "a vector for each id; where vectors have names, those of each name, null for a point without",
        ),
        maybe("payloads", Shape::List(&Shape::Null(&Shape::Any)), "an object or null for each id"),
        maybe("if_absent", Shape::Flag, "whether only points of ids without a point are written; false"),
        maybe(
            "if_unchanged_since",
            Shape::Null(&Shape::Whole),
            "the number of a change: points that a later one wrote are left as they are",
        ),
    ],
};
pub(super) const UPDATE_VECTORS: Object = Object {
    name: "UpdateVectorsRequest",
    fields: &[
        always("ids", Shape::List(&Shape::Id), "ids of points that are there"),
        always(
            "vectors",
            Shape::OneOf(&[Shape::Vectors, Shape::Map(&Shape::Null(&Shape::SomeVectors))]),
            "new vectors by name, null to remove one; those of other names stay",
        ),
    ],
};
pub(super) const QUERY: Object = Object {
    name: "QueryRequest",
    fields: &[
        always("vectors", Shape::Vectors, "one query or more"),
        maybe("vector_name", Shape::Text, "name of the vectors that are searched, where they have names"),
        maybe("k", Shape::Whole, "results of each query; 10"),
        maybe("recall", Shape::Real, "share of the true nearest points that is asked for; 0.95"),
        maybe("with_vectors", Shape::Flag, WITH_VECTORS),
        maybe("vectors_as", Shape::Name(Names::VectorForm), VECTORS_AS),
        maybe("with_payload", Shape::Flag, "whether points have their payloads"),
        maybe("filter", Shape::Any, FILTER),
        maybe("where", Shape::Text, WHERE),
        maybe("indexed_only", Shape::Flag, INDEXED_ONLY),
    ],
};
pub(super) const SCROLL: Object = Object {
    name: "ScrollRequest",
    fields: &[
        maybe("after", Shape::Null(&Shape::Id), "the next of the page before; without order_by any id"),
        maybe("order_by", Shape::Text, "a field with an integer, float or datetime index; the order of ids"),
        maybe("descending", Shape::Flag, "whether the greatest values of order_by come first; false"),
        maybe("limit", Shape::Whole, "most points of the page; 100"),
        maybe("with_vectors", Shape::Flag, WITH_VECTORS),
        maybe("vectors_as", Shape::Name(Names::VectorForm), VECTORS_AS),
        maybe("filter", Shape::Any, FILTER),
        maybe("where", Shape::Text, WHERE),
        maybe("indexed_only", Shape::Flag, INDEXED_ONLY),
    ],
};
pub(super) const GET: Object = Object {
    name: "GetRequest",
    fields: &[
        always("ids", Shape::List(&Shape::Id), "ids of points"),
        maybe("with_vectors", Shape::Flag, "whether points have their vectors; true"),
        maybe("vectors_as", Shape::Name(Names::VectorForm), VECTORS_AS),
    ],
};
pub(super) const CHOSEN: Object = Object {
    name: "PointsRequest",
    fields: &[
        maybe("ids", Shape::List(&Shape::Id), IDS),
        maybe("filter", Shape::Any, FILTER),
        maybe("where", Shape::Text, WHERE),
        maybe("indexed_only", Shape::Flag, INDEXED_ONLY),
    ],
};
pub(super) const COUNT: Object = Object {
    name: "CountRequest",
    fields: &[
        maybe("filter", Shape::Any, FILTER),
        maybe("where", Shape::Text, WHERE),
        maybe("indexed_only", Shape::Flag, INDEXED_ONLY),
        maybe("exact", Shape::Flag, "false for an estimate, which reads a sample of the payloads; true"),
    ],
};
pub(super) const SET: Object = Object {
    name: "SetPayloadRequest",
    fields: &[
        maybe("ids", Shape::List(&Shape::Id), IDS),
        maybe("filter", Shape::Any, FILTER),
        maybe("where", Shape::Text, WHERE),
        maybe("indexed_only", Shape::Flag, INDEXED_ONLY),
        always("payload", Shape::Any, "the fields that are set"),
        maybe("key", Shape::Text, "the path below which they are set"),
    ],
};
pub(super) const OVERWRITE: Object = Object {
    name: "OverwritePayloadRequest",
    fields: &[
        maybe("ids", Shape::List(&Shape::Id), IDS),
        maybe("filter", Shape::Any, FILTER),
        maybe("where", Shape::Text, WHERE),
        maybe("indexed_only", Shape::Flag, INDEXED_ONLY),
        always("payload", Shape::Any, "the new payload"),
    ],
};
pub(super) const DELETE_KEYS: Object = Object {
    name: "DeletePayloadKeysRequest",
    fields: &[
        maybe("ids", Shape::List(&Shape::Id), IDS),
        maybe("filter", Shape::Any, FILTER),
        maybe("where", Shape::Text, WHERE),
        maybe("indexed_only", Shape::Flag, INDEXED_ONLY),
        always("keys", Shape::List(&Shape::Text), "paths of the fields that are removed"),
    ],
};
pub(super) const NOTHING: Object = Object { name: "EmptyRequest", fields: &[] };

const VECTORS: Object = Object {
    name: "Vectors",
    fields: &[
        DIM,
        always("metric", Shape::Name(Names::Metric), "the distance"),
        always("dtype", Shape::Name(Names::DType), "type of a component"),
        always("kind", Shape::Name(Names::Kind), "kind of index of its larger parts"),
    ],
};
const DIM_DESCRIBED: Field =
    maybe("dim", Shape::Whole, "components of a vector, where vectors have no names");
const METRIC_DESCRIBED: Field =
    maybe("metric", Shape::Name(Names::Metric), "the distance, where vectors have no names");
const DTYPE_DESCRIBED: Field =
    maybe("dtype", Shape::Name(Names::DType), "type of a component, where vectors have no names");
const KIND_DESCRIBED: Field =
    maybe("kind", Shape::Name(Names::Kind), "kind of index of its larger parts, where vectors have no names");
const VECTORS_DESCRIBED: Field =
    maybe("vectors", Shape::Map(&Shape::Object(&VECTORS)), "vectors by name, where they have names");

pub(super) const DESCRIBED: Object = Object {
    name: "Collection",
    fields: &[NAME, DIM_DESCRIBED, METRIC_DESCRIBED, DTYPE_DESCRIBED, KIND_DESCRIBED, VECTORS_DESCRIBED],
};
const DAMAGED: Object = Object {
    name: "DamagedCollection",
    fields: &[NAME, always("error", Shape::Text, "why it cannot be used")],
};
pub(super) const LIST_REPLY: Object = Object {
    name: "ListReply",
    fields: &[
        always(
            "collections",
            Shape::List(&Shape::OneOf(&[Shape::Object(&DESCRIBED), Shape::Object(&DAMAGED)])),
            "all collections",
        ),
        always("read_only", Shape::Null(&Shape::Text), "why nothing is written"),
    ],
};
const INDEX: Object = Object {
    name: "SegmentIndex",
    fields: &[
        always("vector_name", Shape::Text, "name of its vectors"),
        always("kind", Shape::Name(Names::Kind), "its kind"),
        always("rows", Shape::Whole, "points with a vector of the name, dead ones included"),
    ],
};
const SEGMENT: Object = Object {
    name: "Segment",
    fields: &[
        always("number", Shape::Whole, "its number in the collection"),
        maybe("kind", Shape::Name(Names::Kind), "kind of its index, where vectors have no names"),
        maybe("indexes", Shape::List(&Shape::Object(&INDEX)), "the index of each name that some point has"),
        always("rows", Shape::Whole, "points, dead ones included"),
        always("dead", Shape::Whole, "points that are deleted or replaced"),
        always("bytes", Shape::Whole, "bytes of its files"),
    ],
};
const PROGRESS: Object = Object {
    name: "Progress",
    fields: &[
        always("kind", Shape::Name(Names::Job), "kind of the job"),
        always("stage", Shape::Text, "what it does now; a job has several stages"),
        always("done", Shape::Whole, "units of the stage that are done"),
        always("total", Shape::Whole, "units of the stage; 0 where that is not known"),
        always("unit", Shape::Text, "what is counted"),
        always("elapsed_ms", Shape::Whole, "time since the stage began, milliseconds"),
    ],
};
pub(super) const INFO_REPLY: Object = Object {
    name: "InfoReply",
    fields: &[
        NAME,
        DIM_DESCRIBED,
        METRIC_DESCRIBED,
        DTYPE_DESCRIBED,
        KIND_DESCRIBED,
        VECTORS_DESCRIBED,
        always("points", Shape::Whole, "points"),
        always("seq", Shape::Whole, SEQ),
        always("delta_points", Shape::Whole, "points that are in no segment"),
        always("delta_bytes", Shape::Whole, "memory of these"),
        always("segments", Shape::List(&Shape::Object(&SEGMENT)), "segments, the largest first"),
        always(
            "indexes_built",
            Shape::Whole,
            "indexes that checkpoints and merges built since the folder was opened",
        ),
        always(
            "payloads_folded",
            Shape::Whole,
            "segments whose payloads alone were written again since then",
        ),
        always(
            "rows_taken_over",
            Shape::Whole,
            "rows of merged segments whose neighbours in a graph were taken over from an older one since then",
        ),
        always("trouble", Shape::Null(&Shape::Text), "why the last checkpoint or merge failed"),
        always("trouble_code", Shape::Null(&Shape::Name(Names::Code)), "the code of that error"),
        always("jobs", Shape::List(&Shape::Name(Names::Job)), "kinds of jobs that wait or run"),
        always(
            "progress",
            Shape::List(&Shape::Object(&PROGRESS)),
            "how far the jobs are that run in the background",
        ),
        always("schema", Shape::Fields, "fields of payloads that are indexed"),
        always("memory_bytes", Shape::Whole, "memory of its points and open segments"),
        always("memory_quota_bytes", Shape::Null(&Shape::Whole), "the most memory that it takes"),
        always("memory_minimum_bytes", Shape::Whole, "memory that others never take"),
    ],
};
pub(super) const LIMITS_REPLY: Object = Object {
    name: "LimitsReply",
    fields: &[
        NAME,
        always("memory_quota_bytes", Shape::Null(&Shape::Whole), "the most memory that it takes"),
        always("memory_minimum_bytes", Shape::Whole, "memory that others never take"),
    ],
};
pub(super) const DROPPED_REPLY: Object = Object {
    name: "DroppedReply",
    fields: &[
        NAME,
        always("rows", Shape::Whole, "rows that were removed"),
        always("unfinished", Shape::Null(&Shape::Text), "why others are removed later"),
    ],
};
pub(super) const NAME_REPLY: Object = Object { name: "AcceptedReply", fields: &[NAME] };
pub(super) const UPSERT_REPLY: Object = Object {
    name: "UpsertReply",
    fields: &[
        always("seq", Shape::Whole, SEQ),
        always("new", Shape::Whole, "ids that had no point"),
        always("replaced", Shape::Whole, "ids whose point was replaced"),
        always("repeated", Shape::Whole, "points before a later one of their id"),
        always("skipped", Shape::List(&Shape::Id), "ids whose point was left as it was, by a condition"),
    ],
};
pub(super) const VECTORS_REPLY: Object = Object {
    name: "VectorsReply",
    fields: &[
        always("seq", Shape::Whole, SEQ),
        always("changed", Shape::Whole, "points that were written again"),
    ],
};
const POINT: Object = Object {
    name: "Point",
    fields: &[
        always("id", Shape::Id, "its id"),
        always("seq", Shape::Whole, "number of the change that wrote it"),
        maybe("vector", Shape::Vector, "its vector, where that is asked for"),
        maybe("vectors", Shape::Map(&Shape::Vector), "its vectors by name, where they have names"),
        maybe("payload", Shape::Any, "its payload, where it has fields"),
    ],
};
pub(super) const POINT_REPLY: Shape = Shape::Object(&POINT);
pub(super) const GET_REPLY: Object = Object {
    name: "GetReply",
    fields: &[always(
        "points",
        Shape::List(&Shape::Null(&Shape::Object(&POINT))),
        "the point of each id, or null",
    )],
};
pub(super) const DELETE_REPLY: Object = Object {
    name: "DeleteReply",
    fields: &[
        always("seq", Shape::Whole, SEQ),
        always("deleted", Shape::Whole, "points that are gone"),
        always("unknown", Shape::Whole, "ids without a point"),
        always("changed", Shape::Whole, "points that matched and that others changed meanwhile"),
        always("changes", Shape::Whole, "changes that were made"),
        always("unindexed", Shape::List(&Shape::Text), UNINDEXED),
    ],
};
const ANSWER: Object = Object {
    name: "Answer",
    fields: &[
        always("ids", Shape::List(&Shape::Id), "the nearest points, nearest first"),
        always("distances", Shape::List(&Shape::Null(&Shape::Real)), "their distances; null is infinite"),
        maybe("vectors", Shape::List(&Shape::Vector), "their vectors, as the search saw them"),
        maybe("payloads", Shape::List(&Shape::Null(&Shape::Any)), "their payloads; null without"),
    ],
};
pub(super) const QUERY_REPLY: Object = Object {
    name: "QueryReply",
    fields: &[
        always("seq", Shape::Whole, "number of the newest change that the search saw"),
        always("latency_us", Shape::Whole, "time of the search, microseconds"),
        always("answers", Shape::List(&Shape::Object(&ANSWER)), "an answer for each query"),
        always("unindexed", Shape::List(&Shape::Text), UNINDEXED),
    ],
};
pub(super) const SCROLL_REPLY: Object = Object {
    name: "ScrollReply",
    fields: &[
        always("seq", Shape::Whole, "number of the newest change that the page has"),
        always("points", Shape::List(&Shape::Object(&POINT)), "points in the order that was asked for"),
        always("next", Shape::Null(&Shape::Id), "the value for after; null at the end"),
        always("unindexed", Shape::List(&Shape::Text), UNINDEXED),
    ],
};
pub(super) const COUNT_REPLY: Object = Object {
    name: "CountReply",
    fields: &[
        always("seq", Shape::Whole, "number of the newest change up to which all are counted"),
        always("count", Shape::Whole, "points, or about so many"),
        always("least", Shape::Whole, "at least so many points"),
        always("most", Shape::Whole, "at most so many points; the same where they are counted"),
        always("unindexed", Shape::List(&Shape::Text), UNINDEXED),
    ],
};
pub(super) const SCHEMA_REPLY: Object = Object {
    name: "SchemaReply",
    fields: &[NAME, always("schema", Shape::Fields, "fields of payloads that are indexed")],
};
pub(super) const PAYLOAD_REPLY: Object = Object {
    name: "PayloadReply",
    fields: &[
        always("seq", Shape::Whole, SEQ),
        always("changed", Shape::Whole, "points with another payload"),
        always("unchanged", Shape::Whole, "points whose payload is as it was"),
        always("unknown", Shape::Whole, "ids without a point, or points that others changed meanwhile"),
        always("changes", Shape::Whole, "changes that were made"),
    ],
};
pub(super) const VERIFY_REPLY: Object = Object {
    name: "VerifyReply",
    fields: &[NAME, always("seq", Shape::Whole, SEQ), always("points", Shape::Whole, "points")],
};
pub(super) const HEALTH_REPLY: Object =
    Object { name: "HealthReply", fields: &[always("healthy", Shape::Flag, "true")] };
pub(super) const STATUS_REPLY: Object = Object {
    name: "StatusReply",
    fields: &[
        always("pid", Shape::Whole, "number of the process"),
        always("read_only", Shape::Null(&Shape::Text), "why nothing is written"),
        always("ram_budget_bytes", Shape::Null(&Shape::Whole), "limit of all memory"),
        always("memory", Shape::Any, "memory by component"),
        always("rows", Shape::Any, "counters of the storage engine"),
        always("http", Shape::Any, "counters of requests"),
        always("limits", Shape::Any, "what a request and an answer may have"),
    ],
};
pub(super) const PROBLEM: Object = Object {
    name: "Problem",
    fields: &[
        always("type", Shape::Text, "a URI of the code"),
        always("title", Shape::Text, "the code in words"),
        always("status", Shape::Whole, "the HTTP status"),
        always("detail", Shape::Text, "the problem, its place, and what to do"),
        always("code", Shape::Name(Names::Code), "the reason, for programs"),
        always("error", Shape::Text, "the same as detail"),
        maybe("outcome", Shape::Text, "unknown, where a change may be there"),
        maybe("seq", Shape::Whole, "number of that change"),
    ],
};
