//! Points as JSON: their ids, vectors and payloads.

use serde::Serialize;
use stratann_kernel::DType;
use stratann_node::collections::{PayloadJson, Point, VectorJson};
use stratann_node::rows::ExternalId;

/// A point as a line of a file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PointJson<'a> {
    pub(crate) id: &'a ExternalId,
    /// Absent where it is not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vector: Option<VectorJson<'a>>,
    /// Null for a point without.
    pub(crate) payload: Option<PayloadJson<'a>>,
}

impl<'a> PointJson<'a> {
    /// The line of a point, with its vector of this type or without.
    pub(crate) fn of(point: &'a Point, vector: Option<DType>) -> PointJson<'a> {
        PointJson {
            id: &point.id,
            vector: vector.map(|dtype| VectorJson { bytes: &point.vector, dtype }),
            payload: point.payload.as_deref().map(PayloadJson),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_a_line_of_json() {
        let floats = [0.1f32, -0.0, f32::MIN_POSITIVE / 2.0].map(f32::to_le_bytes).concat();
        for (id, shown) in [
            (ExternalId::Number(u64::MAX), "18446744073709551615"),
            (ExternalId::Text("7".into()), "\"7\""),
            (ExternalId::Uuid([0; 16]), "\"00000000-0000-0000-0000-000000000000\""),
        ] {
            let point =
                Point { id, seq: 1, vector: floats.clone(), payload: Some(br#"{"a":[1,null]}"#.to_vec()) };
            let line = serde_json::to_string(&PointJson::of(&point, Some(DType::F32))).unwrap();
            assert_eq!(
                line,
                format!(r#"{{"id":{shown},"vector":[0.1,-0.0,5.877472e-39],"payload":{{"a":[1,null]}}}}"#)
            );
        }
        let bytes = Point { id: ExternalId::Number(1), seq: 1, vector: vec![255, 1], payload: None };
        let text = |dtype| serde_json::to_string(&PointJson::of(&bytes, dtype)).unwrap();
        assert_eq!(text(Some(DType::I8)), r#"{"id":1,"vector":[-1,1],"payload":null}"#);
        assert_eq!(text(Some(DType::U8)), r#"{"id":1,"vector":[255,1],"payload":null}"#);
        assert_eq!(text(None), r#"{"id":1,"payload":null}"#);
    }
}
