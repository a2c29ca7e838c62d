//! Replies of collections have the fields that the OpenAPI document says, and no others.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};
use stratann_node::collections::{Node, Options};
use stratann_server::callers::Callers;
use stratann_server::problem::Code;
use stratann_server::{Front, FrontOptions, Limits, ServedCollections, collection_paths};
use stratann_storage::Quiet;
use stratann_storage::ledger::Ledger;

struct Place {
    _folder: tempfile::TempDir,
    front: Option<Front>,
    address: SocketAddr,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::open(&folder.path().join("data"), &Options::default(), &Quiet).unwrap();
        let served =
            ServedCollections { node: Arc::new(node), calls: 4, threads: 1, max_k: 1000, ram_budget: None };
        let options = FrontOptions {
            http: "127.0.0.1:0".parse().unwrap(),
            limits: Limits::default(),
            callers: Callers::default(),
            threads: 1,
            ledger: Ledger::new(None),
            log: Arc::new(|_| {}),
        };
        let front = Front::of_collections(served, options).unwrap();
        Place { _folder: folder, address: front.address(), front: Some(front) }
    }

    /// Status, media type and body of a reply.
    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, String, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let kind = head.to_ascii_lowercase();
        let kind = kind.split("content-type: ").nth(1).unwrap().lines().next().unwrap().to_string();
        (head[9..12].parse().unwrap(), kind, serde_json::from_str(body).unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(front) = self.front.take() {
            front.stop();
        }
    }
}

/// Compares values with schemas of a document, and counts the fields that were there.
struct Checked<'a> {
    document: &'a Value,
    fields: BTreeMap<String, u32>,
}

impl Checked<'_> {
    /// What is wrong with a value.
    fn wrong(&mut self, schema: &Value, value: &Value, place: &str) -> Option<String> {
        if let Some(path) = schema["$ref"].as_str() {
            let name = path.rsplit('/').next().unwrap();
            let own = &self.document["components"]["schemas"][name];
            assert!(own.is_object(), "{path} leads nowhere");
            return self.object(own, value, name);
        }
        if let Some(several) = schema["oneOf"].as_array() {
            let all: Option<Vec<String>> =
                several.iter().map(|schema| self.wrong(schema, value, place)).collect();
            return all.map(|all| all.join(" and "));
        }
        let named: Vec<&str> = match &schema["type"] {
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            one => one.as_str().into_iter().collect(),
        };
        let is_of = |kind: &&str| match *kind {
            "string" => value.is_string(),
            "integer" => value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "array" => value.is_array(),
            _ => value.is_object(),
        };
        if !named.iter().any(is_of) {
            return Some(format!("{place} is {value}, not {named:?}"));
        }
        if schema["enum"].as_array().is_some_and(|names| !names.contains(value)) {
            return Some(format!("{place} is {value}, which is not among {}", schema["enum"]));
        }
        let items = value.as_array().into_iter().flatten();
        if let Some(wrong) = items.filter_map(|item| self.wrong(&schema["items"], item, place)).next() {
            return Some(wrong);
        }
        let rest = &schema["additionalProperties"];
        let values = value.as_object().into_iter().flatten().filter(|_| rest.is_object());
        values.filter_map(|(_, own)| self.wrong(rest, own, place)).next()
    }

    fn object(&mut self, schema: &Value, value: &Value, name: &str) -> Option<String> {
        let Some(fields) = value.as_object() else { return Some(format!("{name} is {value}")) };
        for wanted in schema["required"].as_array().unwrap() {
            let wanted = wanted.as_str().unwrap();
            if !fields.contains_key(wanted) {
                return Some(format!("{name} lacks {wanted}: {value}"));
            }
        }
        for (field, own) in fields {
            let place = format!("{name}.{field}");
            let schema = &schema["properties"][field];
            if schema.is_null() {
                return Some(format!("{place} is not in the document: {value}"));
            }
            if let Some(wrong) = self.wrong(schema, own, &place) {
                return Some(wrong);
            }
            *self.fields.entry(place).or_default() += 1;
        }
        None
    }
}

/// Requests of all operations, in an order in which each succeeds.
fn requests() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    const ONE: &str = "/v1/collections/{collection}";
    vec![
        ("GET", "/v1/health", "", Value::Null),
        ("GET", "/v1/status", "", Value::Null),
        ("GET", "/v1/openapi.json", "", Value::Null),
        (
            "PUT",
            ONE,
            "",
            json!({ "dim": 2, "metric": "l2", "dtype": "f32", "kind": "flat", "memory_quota_bytes": null,
                    "memory_minimum_bytes": 1 }),
        ),
        ("GET", "/v1/collections", "", Value::Null),
        ("PATCH", ONE, "", json!({ "memory_quota_bytes": 100_000_000, "memory_minimum_bytes": 0 })),
        (
            "PUT",
            ONE,
            "/points",
            json!({ "ids": [1, "two", 3], "vectors": "AACAPwAAAAAAAABAAAAAAAAAQEAAAAAA",
                    "payloads": [{ "a": 1 }, null, { "a": 3 }] }),
        ),
        ("PUT", ONE, "/schema", json!({ "a": ["integer", "float"], "b": "text" })),
        ("GET", ONE, "/schema", Value::Null),
        ("POST", ONE, "/verify", Value::Null),
        ("GET", ONE, "/points/{id}", Value::Null),
        ("POST", ONE, "/get", json!({ "ids": [1, 9], "with_vectors": true, "vectors_as": "base64" })),
        (
            "POST",
            ONE,
            "/query",
            json!({ "vectors": [[1, 0], [2, 0]], "k": 2, "recall": 1, "with_vectors": true, "vectors_as": "base64",
                    "with_payload": true, "where": "a > 0", "indexed_only": true }),
        ),
        (
            "POST",
            ONE,
            "/query",
            json!({ "vectors": [[1, 0]], "with_vectors": true, "vectors_as": "numbers" }),
        ),
        (
            "POST",
            ONE,
            "/scroll",
            json!({ "after": 1, "limit": 1, "with_vectors": true, "vectors_as": "numbers", "filter": {} }),
        ),
        (
            "PUT",
            ONE,
            "/points",
            json!({ "ids": [1, 4], "vectors": [[9, 9], [4, 4]], "if_absent": true, "payloads": [null, { "a": 0 }] }),
        ),
        (
            "POST",
            ONE,
            "/scroll",
            json!({ "order_by": "a", "descending": true, "limit": 1, "where": "a >= 0" }),
        ),
        ("POST", ONE, "/count", json!({ "filter": { "must": [{ "key": "c", "match": { "value": 1 } }] } })),
        ("POST", ONE, "/payload/set", json!({ "ids": [1], "payload": { "x": 1 }, "key": "y" })),
        ("POST", ONE, "/payload/overwrite", json!({ "where": "a = 3", "payload": { "a": 4 } })),
        ("POST", ONE, "/payload/delete", json!({ "filter": {}, "keys": ["y"] })),
        ("POST", ONE, "/payload/clear", json!({ "ids": ["two"] })),
        ("POST", ONE, "/compact", json!({})),
        ("GET", ONE, "", Value::Null),
        ("POST", ONE, "/delete", json!({ "ids": [1] })),
        ("POST", ONE, "/delete", json!({ "where": "a = 4" })),
        ("DELETE", ONE, "", Value::Null),
        (
            "PUT",
            ONE,
            "",
            json!({ "vectors": { "a": { "dim": 2, "metric": "ip", "dtype": "u8", "kind": "flat" },
                                 "b": { "dim": 1 } } }),
        ),
        ("GET", "/v1/collections", "", Value::Null),
        (
            "PUT",
            ONE,
            "/points",
            json!({ "ids": [1, 2], "vectors": { "a": [[1, 0], null], "b": "AACAPwAAAEA=" } }),
        ),
        (
            "POST",
            ONE,
            "/vectors",
            json!({ "ids": [1, 2], "vectors": { "a": null, "b": ["AACAPw==", null] } }),
        ),
        ("GET", ONE, "/points/{id}", Value::Null),
        (
            "POST",
            ONE,
            "/query",
            json!({ "vectors": [[1]], "vector_name": "b", "filter": { "must": [{ "has_vector": "b" }] } }),
        ),
        ("POST", ONE, "/scroll", json!({ "with_vectors": true, "vectors_as": "base64" })),
        ("GET", ONE, "", Value::Null),
        ("DELETE", ONE, "", Value::Null),
    ]
}

#[test]
fn requests_and_replies_are_as_the_document_says() {
    let place = Place::new();
    let (status, kind, document) = place.ask("GET", "/v1/openapi.json", &Value::Null);
    assert_eq!((status, &*kind, &document["openapi"]), (200, "application/json", &json!("3.1.0")));
    let mut checked = Checked { document: &document, fields: BTreeMap::new() };
    let mut asked = Vec::new();
    for (method, path, more, body) in requests() {
        let path = format!("{path}{more}");
        asked.push(format!("{method} {path}"));
        let operation = &document["paths"][&path][method.to_lowercase()];
        let content = |part: &Value| part["content"]["application/json"]["schema"].clone();
        let request = &operation["requestBody"];
        assert!(request["required"] != true || !body.is_null(), "{path} has a body");
        if !body.is_null() {
            assert_eq!(checked.wrong(&content(request), &body, "a request"), None, "{path}");
        }
        let path = path.replace("{collection}", "c").replace("{id}", "1");
        let (status, kind, reply) = place.ask(method, &path, &body);
        let said = &operation["responses"][status.to_string()];
        assert!(said.is_object() && kind == "application/json", "{method} {path}: {status} {reply}");
        assert_eq!(checked.wrong(&content(said), &reply, "a reply"), None, "{method} {path}");
    }
    let (mut asked_all, mut served) = (asked, collection_paths());
    asked_all.sort();
    asked_all.dedup();
    served.sort();
    assert_eq!(asked_all, served, "each operation is tried");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for field in schema["properties"].as_object().unwrap().keys() {
            let place = format!("{name}.{field}");
            // Fields of requests are compared with those that are read, by a test beside them. Errors and damage have
            // tests of their own; a compaction may go on.
            let is_tried = !name.ends_with("Request")
                && !["Problem", "DamagedCollection", "Segment", "SegmentIndex", "Progress"]
                    .contains(&&**name);
            assert!(!is_tried || checked.fields.contains_key(&place), "{place} is in no reply");
        }
    }
}

#[test]
fn errors_have_a_code_and_are_as_the_document_says() {
    let place = Place::new();
    let document = place.ask("GET", "/v1/openapi.json", &Value::Null).2;
    let problem = json!({ "$ref": "#/components/schemas/Problem" });
    let mut checked = Checked { document: &document, fields: BTreeMap::new() };
    place.ask("PUT", "/v1/collections/c", &json!({ "dim": 2 }));
    let large = json!({ "vectors": vec![[1, 1]; 1000], "k": 1000 });
    for (method, path, body, code) in [
        ("PUT", "/v1/collections/c", json!({ "dim": 2 }), "name_taken"),
        ("PUT", "/v1/collections/d", json!({ "dim": 2, "sise": 1 }), "bad_input"),
        ("GET", "/v1/collections/d", Value::Null, "missing_collection"),
        ("GET", "/v1/collections/c/points/7", Value::Null, "missing_point"),
        ("GET", "/v2", Value::Null, "no_path"),
        ("POST", "/v1/collections", Value::Null, "wrong_method"),
        ("POST", "/v1/collections/c/query", large, "reply_too_long"),
        ("PUT", "/v1/collections/c/points", json!("x".repeat(9 << 20)), "body_too_long"),
    ] {
        let (status, kind, reply) = place.ask(method, path, &body);
        let said = Code::from_name(code).unwrap();
        assert_eq!((status, &*kind), (said.status(), "application/problem+json"), "{path}: {reply}");
        assert_eq!((&reply["code"], &reply["status"]), (&json!(code), &json!(status)), "{path}: {reply}");
        assert_eq!((&reply["title"], &reply["error"]), (&json!(said.title()), &reply["detail"]));
        assert_eq!(checked.wrong(&problem, &reply, "an error"), None);
    }
}
