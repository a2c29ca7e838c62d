//! Points as JSON: their ids, vectors and payloads.

use std::collections::BTreeMap;

use serde::Serialize;
use stratann_node::collections::{PayloadJson, Point, Specs, VectorJson};
use stratann_node::rows::ExternalId;

/// A point as a line of a file.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PointJson<'a> {
    pub(crate) id: &'a ExternalId,
    /// Absent where it is not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vector: Option<VectorJson<'a>>,
    /// By name, those that it has; absent where vectors have no names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) vectors: Option<BTreeMap<&'a str, VectorJson<'a>>>,
    /// Null for a point without.
    pub(crate) payload: Option<PayloadJson<'a>>,
}

impl<'a> PointJson<'a> {
    /// The line of a point, with its vectors or without.
    pub(crate) fn of(point: &'a Point, specs: Option<&'a Specs>) -> PointJson<'a> {
        let payload = point.payload.as_deref().map(PayloadJson);
        let mut line = PointJson { id: &point.id, vector: None, vectors: None, payload };
        let Some(specs) = specs else { return line };
        let vectors = specs.iter().zip(&point.vectors).filter_map(|(own, bytes)| {
            Some((own.name.as_str(), VectorJson { bytes: bytes.as_deref()?, dtype: own.spec.dtype }))
        });
        let mut vectors: BTreeMap<_, _> = vectors.collect();
        match specs.has_names() {
            true => line.vectors = Some(vectors),
            false => line.vector = vectors.remove(""),
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use stratann_kernel::{DType, Metric};
    use stratann_node::collections::Spec;

    use super::*;

    fn specs(dim: usize, dtype: DType) -> Specs {
        Spec { dim, dtype, metric: Metric::L2, kind: None }.into()
    }

    #[test]
    fn a_point_is_a_line_of_json() {
        let floats = [0.1f32, -0.0, f32::MIN_POSITIVE / 2.0].map(f32::to_le_bytes).concat();
        for (id, shown) in [
            (ExternalId::Number(u64::MAX), "18446744073709551615"),
            (ExternalId::Text("7".into()), "\"7\""),
            (ExternalId::Uuid([0; 16]), "\"00000000-0000-0000-0000-000000000000\""),
        ] {
            let point = Point {
                id,
                seq: 1,
                vectors: vec![Some(floats.clone())],
                payload: Some(br#"{"a":[1,null]}"#.to_vec()),
            };
            let line = serde_json::to_string(&PointJson::of(&point, Some(&specs(3, DType::F32)))).unwrap();
            assert_eq!(
                line,
                format!(r#"{{"id":{shown},"vector":[0.1,-0.0,5.877472e-39],"payload":{{"a":[1,null]}}}}"#)
            );
        }
        let vectors = vec![Some(vec![255, 1])];
        let bytes = Point { id: ExternalId::Number(1), seq: 1, vectors, payload: None };
        let text = |dtype: Option<DType>| {
            let specs = dtype.map(|dtype| specs(2, dtype));
            serde_json::to_string(&PointJson::of(&bytes, specs.as_ref())).unwrap()
        };
        assert_eq!(text(Some(DType::I8)), r#"{"id":1,"vector":[-1,1],"payload":null}"#);
        assert_eq!(text(Some(DType::U8)), r#"{"id":1,"vector":[255,1],"payload":null}"#);
        assert_eq!(text(None), r#"{"id":1,"payload":null}"#);
        let spec = Spec { dim: 2, dtype: DType::I8, metric: Metric::L2, kind: None };
        let named = Specs::named([("b".into(), spec), ("a".into(), spec)]).unwrap();
        let point = Point { vectors: vec![None, Some(vec![255, 1])], ..bytes };
        let line = serde_json::to_string(&PointJson::of(&point, Some(&named))).unwrap();
        assert_eq!(line, r#"{"id":1,"vectors":{"b":[-1,1]},"payload":null}"#);
    }
}
