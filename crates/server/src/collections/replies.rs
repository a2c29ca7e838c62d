//! Replies of collections.

use half::f16;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use stratann_engine::DType;
use stratann_node::collections::{Point, Spec};
use stratann_params::IndexKind;

use super::ids::IdJson;

/// A collection in a list.
#[derive(Serialize)]
pub(super) struct Described<'a> {
    name: &'a str,
    dim: usize,
    metric: &'static str,
    dtype: &'static str,
    kind: &'static str,
}

impl<'a> Described<'a> {
    pub(super) fn of(name: &'a str, spec: &Spec) -> Described<'a> {
        Described {
            name,
            dim: spec.dim,
            metric: spec.metric.name(),
            dtype: spec.dtype.name(),
            kind: spec.kind.map_or("auto", IndexKind::name),
        }
    }
}

/// A point.
#[derive(Serialize)]
pub(super) struct PointReply<'a> {
    pub(super) id: IdJson<'a>,
    pub(super) seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vector: Option<Vector<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<PayloadJson<'a>>,
}

impl<'a> PointReply<'a> {
    pub(super) fn of(point: &'a Point, dtype: DType, with_vector: bool) -> PointReply<'a> {
        let vector = with_vector.then_some(Vector { bytes: &point.vector, dtype });
        let payload = point.payload.as_deref().map(PayloadJson);
        PointReply { id: IdJson(&point.id), seq: point.seq, vector, payload }
    }
}

/// A page of points.
#[derive(Serialize)]
pub(super) struct ScrollReply<'a> {
    pub(super) seq: u64,
    pub(super) points: Vec<PointReply<'a>>,
    /// The id behind which the next page begins; null at the end.
    pub(super) next: Option<IdJson<'a>>,
    /// Conditions of the filter for which payloads were read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unindexed: Vec<String>,
}

/// The answers to the queries of a request, all of one state of the collection.
#[derive(Serialize)]
pub(super) struct QueryReply<'a> {
    pub(super) seq: u64,
    pub(super) latency_us: u64,
    pub(super) answers: Vec<Results<'a>>,
    /// Conditions of the filter for which payloads were read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unindexed: Vec<String>,
}

/// The nearest points of a query, nearest first.
#[derive(Serialize)]
pub(super) struct Results<'a> {
    pub(super) ids: Vec<IdJson<'a>>,
    pub(super) distances: Vec<f32>,
    /// Null for a point that was deleted since the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) vectors: Option<Vec<Option<Vector<'a>>>>,
    /// Null for a point without one, or that was deleted since the search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payloads: Option<Vec<Option<PayloadJson<'a>>>>,
}

/// A payload, which is JSON.
pub(super) struct PayloadJson<'a>(pub(super) &'a [u8]);

impl Serialize for PayloadJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let json: &RawValue = serde_json::from_slice(self.0).map_err(serde::ser::Error::custom)?;
        json.serialize(serializer)
    }
}

/// Components of a vector, as numbers.
pub(super) struct Vector<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) dtype: DType,
}

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.dtype {
            DType::F32 => {
                serializer.collect_seq(self.bytes.as_chunks::<4>().0.iter().map(|c| f32::from_le_bytes(*c)))
            }
            DType::F16 => {
                let halves = self.bytes.as_chunks::<2>().0.iter().map(|c| f16::from_le_bytes(*c).to_f32());
                serializer.collect_seq(halves)
            }
            DType::U8 => serializer.collect_seq(self.bytes),
            DType::I8 => serializer.collect_seq(self.bytes.iter().map(|&byte| byte as i8)),
        }
    }
}
