//! The OpenAPI document, made from the table of routes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::document::{self, Object, Shape};
use super::{OWN_PATHS, Operation, routes};
use crate::problem::MEDIA_TYPE;

/// Path of the document.
pub(super) const PATH: &str = "/v1/openapi.json";

const ABOUT: &str = "Collections of points that change, of a data folder. Ids are numbers, exact to 2^64 - 1, or \
                     strings. Errors have a code, which does not change.";

/// The document.
pub(super) fn document() -> Value {
    let mut schemas = BTreeMap::new();
    let mut paths: BTreeMap<&str, Value> = BTreeMap::new();
    let own = routes().into_iter().map(|route| (route.method, route.path, route.operation));
    for (method, path, operation) in own.chain(OWN_PATHS) {
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method.to_ascii_lowercase()] = described(path, &operation, &mut schemas);
    }
    named(&document::PROBLEM, true, &mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "StratANN collections",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
        },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

fn described(path: &str, operation: &Operation, schemas: &mut BTreeMap<&'static str, Value>) -> Value {
    let mut own = json!({ "operationId": operation.name, "summary": operation.about });
    let parameters: Vec<Value> = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    if !parameters.is_empty() {
        own["parameters"] = parameters.into();
    }
    if let Some((shape, is_required)) = &operation.body {
        let schema = schema(shape, false, schemas);
        own["requestBody"] =
            json!({ "required": is_required, "content": { "application/json": { "schema": schema } } });
    }
    let (status, shape) = &operation.reply;
    let reply = schema(shape, true, schemas);
    let problem = json!({ "$ref": format!("#/components/schemas/{}", document::PROBLEM.name) });
    own["responses"] = json!({
        status.to_string(): { "description": "done", "content": { "application/json": { "schema": reply } } },
        "default": { "description": "refused", "content": { MEDIA_TYPE: { "schema": problem } } },
    });
    own
}

fn schema(shape: &Shape, is_reply: bool, schemas: &mut BTreeMap<&'static str, Value>) -> Value {
    let base64 = || json!({ "type": "string", "contentEncoding": "base64" });
    let numbers = || json!({ "type": "array", "items": { "type": "number" } });
    match shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::Whole => json!({ "type": "integer", "minimum": 0 }),
        Shape::Real => json!({ "type": "number" }),
        Shape::Flag => json!({ "type": "boolean" }),
        Shape::Id => json!({ "type": ["integer", "string"], "minimum": 0 }),
        Shape::Vector => json!({ "oneOf": [numbers(), base64()] }),
        Shape::Vectors => json!({ "oneOf": [{ "type": "array", "items": numbers() }, base64()] }),
        Shape::SomeVectors => {
            let one = json!({ "oneOf": [numbers(), base64(), { "type": "null" }] });
            json!({ "oneOf": [{ "type": "array", "items": one }, base64()] })
        }
        Shape::Map(values) => {
            json!({ "type": "object", "additionalProperties": schema(values, is_reply, schemas) })
        }
        Shape::Any => json!({ "type": "object" }),
        Shape::Name(names) => json!({ "type": "string", "enum": names.all() }),
        Shape::Fields => {
            let one = json!({ "type": "string", "enum": document::field_indexes() });
            let several = json!({ "type": "array", "items": one });
            let kinds = if is_reply { several } else { json!({ "oneOf": [one, several] }) };
            json!({ "type": "object", "additionalProperties": kinds })
        }
        Shape::Object(object) => {
            named(object, is_reply, schemas);
            json!({ "$ref": format!("#/components/schemas/{}", object.name) })
        }
        Shape::List(items) => json!({ "type": "array", "items": schema(items, is_reply, schemas) }),
        Shape::Null(value) => {
            json!({ "oneOf": [schema(value, is_reply, schemas), { "type": "null" }] })
        }
        Shape::OneOf(several) => {
            let each: Vec<Value> = several.iter().map(|one| schema(one, is_reply, schemas)).collect();
            json!({ "oneOf": each })
        }
    }
}

/// Adds the schema of an object, which a request has no other fields than.
fn named(object: &Object, is_reply: bool, schemas: &mut BTreeMap<&'static str, Value>) {
    if schemas.contains_key(object.name) {
        return;
    }
    let mut properties = BTreeMap::new();
    for field in object.fields {
        let mut own = schema(&field.shape, is_reply, schemas);
        own["description"] = field.about.into();
        properties.insert(field.name, own);
    }
    let required: Vec<&str> =
        object.fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    let mut own = json!({ "type": "object", "properties": properties, "required": required });
    if !is_reply {
        own["additionalProperties"] = false.into();
    }
    schemas.insert(object.name, own);
}

#[cfg(test)]
mod tests {
    use serde::de::value::Error;
    use serde::de::{Error as _, Visitor};
    use serde::{Deserialize, Deserializer, forward_to_deserialize_any};

    use super::super::body::{
        GetBody, LimitsBody, Nothing, PointsBody, QueryBody, ScrollBody, SpecBody, UpdateVectorsBody,
        VectorsBody,
    };
    use super::super::document::*;
    use super::super::filters::{ChangeBody, CountBody, WantedBody};
    use super::*;

    /// Takes the names of the fields that a type reads.
    struct Capture<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Capture<'_> {
        type Error = Error;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
            Err(Error::custom("no struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> Result<V::Value, Error> {
            *self.0 = fields;
            Err(Error::custom("read"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    fn read_by<'de, T: Deserialize<'de>>() -> Vec<&'static str> {
        let mut fields: &'static [&'static str] = &["nothing was read"];
        let _ = T::deserialize(Capture(&mut fields));
        let mut fields = fields.to_vec();
        fields.sort_unstable();
        fields
    }

    fn said_of(objects: &[&Object]) -> Vec<&'static str> {
        let mut fields: Vec<_> = objects.iter().flat_map(|own| own.fields).map(|field| field.name).collect();
        fields.sort_unstable();
        fields.dedup();
        fields
    }

    #[test]
    fn requests_have_the_fields_that_are_read() {
        assert_eq!(said_of(&[&SPEC]), read_by::<SpecBody>());
        assert_eq!(said_of(&[&VECTORS_SPEC]), read_by::<VectorsBody>());
        assert_eq!(said_of(&[&UPDATE_VECTORS]), read_by::<UpdateVectorsBody<'_>>());
        assert_eq!(said_of(&[&LIMITS]), read_by::<LimitsBody>());
        assert_eq!(said_of(&[&POINTS]), read_by::<PointsBody<'_>>());
        assert_eq!(said_of(&[&QUERY]), read_by::<QueryBody<'_>>());
        assert_eq!(said_of(&[&SCROLL]), read_by::<ScrollBody<'_>>());
        assert_eq!(said_of(&[&GET]), read_by::<GetBody<'_>>());
        assert_eq!(said_of(&[&CHOSEN]), read_by::<WantedBody<'_>>());
        assert_eq!(said_of(&[&COUNT]), read_by::<CountBody<'_>>());
        assert_eq!(said_of(&[&SET, &OVERWRITE, &DELETE_KEYS, &CHOSEN]), read_by::<ChangeBody<'_>>());
        assert_eq!(said_of(&[&NOTHING]), read_by::<Nothing>());
    }

    #[test]
    fn every_served_path_is_in_the_document() {
        let document = document();
        let mut said = Vec::new();
        let mut names = Vec::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                said.push(format!("{} {path}", method.to_uppercase()));
                names.push(operation["operationId"].as_str().unwrap());
                assert!(operation["responses"]["default"].is_object(), "{path}");
            }
        }
        let mut served = super::super::paths();
        said.sort();
        served.sort();
        names.sort_unstable();
        assert_eq!(said, served);
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "names of operations are different");
    }
}
