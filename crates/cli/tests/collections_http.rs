//! `stratann serve --data` over HTTP, with a real process.
#![allow(missing_docs)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use common::*;
use serde_json::{Value, json as value};

const UUID: &str = "f47ac10b-58cc-4372-a567-0e02b2c3d479";

/// A server of a data folder.
struct Place {
    folder: TempDir,
    server: Option<Running>,
}

/// A reply.
struct Reply {
    status: u16,
    head: String,
    body: Value,
}

impl Place {
    fn new(more: &[&str]) -> Place {
        let mut place = Place { folder: folder(), server: None };
        place.start(more);
        place
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn start(&mut self, more: &[&str]) {
        let data = self.data();
        let args = ["serve", "--data", arg(&data), "--http", "127.0.0.1:0", "--until-eof"];
        self.server = Some(Running::start(&[&args[..], more].concat()));
    }

    /// Ends the server in order, and starts it again.
    fn restart(&mut self) {
        let mut server = self.server.take().unwrap();
        drop(server.child.stdin.take());
        let (status, said) = server.end();
        assert!(status == Some(0) && said.contains("stopped"), "{said}");
        self.start(&[]);
    }

    fn text(&self, method: &str, path: &str, kind: &str, body: &str) -> Reply {
        let mut stream = TcpStream::connect(self.server.as_ref().unwrap().address()).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply {
            status,
            head: head.to_ascii_lowercase(),
            body: serde_json::from_str(body).unwrap_or_default(),
        }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.text(method, path, "Content-Type: application/json\r\n", &body)
    }

    /// The reply of a request that succeeds.
    #[track_caller]
    fn ok(&self, method: &str, path: &str, body: Value) -> Value {
        let reply = self.ask(method, path, &body);
        assert!((200..300).contains(&reply.status), "{path}: {}", reply.body);
        reply.body
    }
}

#[test]
fn what_is_written_is_found_also_after_a_restart() {
    let mut place = Place::new(&[]);
    assert_eq!(
        place.ok("GET", "/v1/collections", Value::Null),
        value!({ "collections": [], "read_only": null })
    );
    let made = place.ok("PUT", "/v1/collections/c", value!({ "dim": 2, "metric": "l2" }));
    assert_eq!(made, value!({ "name": "c", "dim": 2, "metric": "l2", "dtype": "f32", "kind": "auto" }));
    let ids = value!([7, 9_007_199_254_740_993_u64, u64::MAX, "seven", UUID.to_uppercase()]);
    let vectors = value!([[0, 0], [1, 0], [2, 0], [3, 0], [4, 0]]);
    let points = "/v1/collections/c/points";
    let written = place.ok("PUT", points, value!({ "ids": ids, "vectors": vectors }));
    assert_eq!(written, value!({ "seq": 1, "new": 5, "replaced": 0, "repeated": 0, "skipped": [] }));
    let again = value!({ "ids": [7, 8, 7], "vectors": [[9, 9], [8, 8], [0, 0]] });
    assert_eq!(
        place.ok("PUT", points, again),
        value!({ "seq": 2, "new": 1, "replaced": 1, "repeated": 1, "skipped": [] })
    );
    for _ in 0..2 {
        let query = value!({ "vectors": [[0.1, 0], [4, 0]], "k": 2, "recall": 1.0, "with_vectors": true });
        let found = place.ok("POST", "/v1/collections/c/query", query);
        let answers = &found["answers"];
        assert_eq!(answers[0]["ids"], value!([7, 9_007_199_254_740_993_u64]), "{found}");
        assert_eq!(answers[1]["ids"], value!([UUID, "seven"]));
        assert_eq!(answers[1]["vectors"], value!([[4.0, 0.0], [3.0, 0.0]]));
        assert_eq!((&answers[1]["distances"], &found["seq"]), (&value!([0.0, 1.0]), &2.into()));
        let counted = place.ok("POST", "/v1/collections/c/count", Value::Null);
        assert_eq!(counted, value!({ "seq": 2, "count": 6, "least": 6, "most": 6, "unindexed": [] }));
        let point = place.ok("GET", &format!("/v1/collections/c/points/{}", u64::MAX), Value::Null);
        assert_eq!(point, value!({ "id": u64::MAX, "seq": 1, "vector": [2.0, 0.0] }));
        place.restart();
    }
    let gone = value!({ "ids": [7, "seven", UUID, "7"] });
    let deleted = place.ok("POST", "/v1/collections/c/delete", gone);
    assert_eq!(
        deleted,
        value!({ "seq": 3, "deleted": 3, "unknown": 1, "changed": 0, "changes": 1, "unindexed": [] })
    );
    let found = place.ok("POST", "/v1/collections/c/query", value!({ "vectors": [[0, 0]] }));
    assert_eq!(found["answers"][0]["ids"], value!([9_007_199_254_740_993_u64, u64::MAX, 8]));
    assert!(found["answers"][0].get("vectors").is_none());
    let info = place.ok("GET", "/v1/collections/c", Value::Null);
    assert_eq!((&info["points"], &info["seq"], &info["trouble"]), (&3.into(), &3.into(), &Value::Null));
    assert_eq!(place.ok("DELETE", "/v1/collections/c", Value::Null)["name"], "c");
    assert_eq!(place.ask("GET", "/v1/collections/c", &Value::Null).status, 404);
}

#[test]
fn points_have_payloads_and_searches_have_filters() {
    let place = Place::new(&[]);
    place.ok("PUT", "/v1/collections/c", value!({ "dim": 1 }));
    place.ok("PUT", "/v1/collections/c/schema", value!({ "price": "float", "tags": ["keyword", "text"] }));
    let payloads =
        value!([{ "price": 5, "tags": ["red", "old"] }, null, { "price": 7.5 }, { "tags": "red" }]);
    let points = value!({ "ids": [1, 2, 3, "four"], "vectors": [[1], [2], [3], [4]], "payloads": payloads });
    place.ok("PUT", "/v1/collections/c/points", points);
    let (text, json) = (
        value!({ "where": "price < 6 or tags = 'red'" }),
        value!({ "filter": { "should": [
            { "key": "tags", "match": { "value": "red" } },
            { "key": "price", "range": { "lt": 6 } },
        ] } }),
    );
    for _ in 0..2 {
        for filter in [&text, &json] {
            let mut query = filter.clone();
            query["vectors"] = value!([[0]]);
            query["with_payload"] = true.into();
            query["recall"] = 1.into();
            let found = place.ok("POST", "/v1/collections/c/query", query);
            assert_eq!(found["answers"][0]["ids"], value!([1, "four"]), "{found}");
            assert_eq!(found["answers"][0]["payloads"], value!([payloads[0], payloads[3]]));
            let counted = place.ok("POST", "/v1/collections/c/count", filter.clone());
            assert_eq!((&counted["count"], &counted["unindexed"]), (&2.into(), &value!([])), "{counted}");
            let page = place.ok("POST", "/v1/collections/c/scroll", filter.clone());
            assert_eq!(page["points"][1]["payload"], payloads[3], "{page}");
        }
        // Then the same from a segment.
        assert_eq!(place.ask("POST", "/v1/collections/c/compact", &Value::Null).status, 202);
        while place.ok("GET", "/v1/collections/c", Value::Null)["jobs"] != value!([]) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    let counted = place.ok("POST", "/v1/collections/c/count", value!({ "where": "size = 3" }));
    assert!(counted["unindexed"][0].as_str().unwrap().starts_with("size"), "{counted}");
    // So few payloads are all asked.
    let about = place.ok("POST", "/v1/collections/c/count", value!({ "where": "size = 3", "exact": false }));
    assert_eq!(about, counted);
    let refused = place.ask("POST", "/v1/collections/c/count", &value!({ "exact": "no" }));
    assert_eq!(refused.status, 400);
    let change =
        |what: &str, body: Value| place.ok("POST", &format!("/v1/collections/c/payload/{what}"), body);
    let set = change("set", value!({ "where": "price > 5", "payload": { "size": 3 }, "key": "box" }));
    assert_eq!((&set["changed"], &set["unknown"]), (&1.into(), &0.into()), "{set}");
    change("delete", value!({ "ids": [1, 9], "keys": ["tags[0]"] }));
    change("overwrite", value!({ "ids": [2], "payload": { "price": 1 } }));
    change("clear", value!({ "ids": ["four"] }));
    let payload =
        |id: &str| place.ok("GET", &format!("/v1/collections/c/points/{id}"), Value::Null)["payload"].clone();
    assert_eq!(payload("3"), value!({ "price": 7.5, "box": { "size": 3 } }));
    assert_eq!((payload("2"), payload("four")), (value!({ "price": 1 }), Value::Null));
    let deleted = place.ok("POST", "/v1/collections/c/delete", value!({ "where": "price < 6" }));
    assert_eq!((&deleted["deleted"], &deleted["changed"]), (&2.into(), &0.into()), "{deleted}");
    let info = place.ok("GET", "/v1/collections/c", Value::Null);
    assert_eq!(info["schema"], value!({ "price": ["float"], "tags": ["keyword", "text"] }), "{info}");
    assert_eq!(info["points"], 2);
}

#[test]
fn vectors_have_names() {
    let mut place = Place::new(&[]);
    let spec = |dim: u64, metric| value!({ "dim": dim, "metric": metric, "dtype": "f32", "kind": "auto" });
    let vectors = value!({ "title": spec(2, "l2"), "image": spec(1, "ip") });
    let made = place.ok("PUT", "/v1/collections/c", value!({ "vectors": vectors }));
    assert_eq!(made, value!({ "name": "c", "vectors": vectors }));
    let points = "/v1/collections/c/points";
    let given = value!({ "title": [[1, 0], [2, 0], null], "image": "AACAPwAAAEAAAEBA" });
    let payloads = value!([null, { "a": 1 }, null]);
    place.ok("PUT", points, value!({ "ids": [1, 2, "x"], "vectors": given, "payloads": payloads }));
    let query = |name: &str, vector: Value| {
        let query =
            value!({ "vectors": [vector], "vector_name": name, "k": 5, "recall": 1, "with_vectors": true });
        place.ok("POST", "/v1/collections/c/query", query)["answers"][0].clone()
    };
    let found = query("title", value!([2, 0]));
    assert_eq!((&found["ids"], &found["vectors"]), (&value!([2, 1]), &value!([[2.0, 0.0], [1.0, 0.0]])));
    assert_eq!(query("image", value!([1]))["ids"], value!(["x", 2, 1]));
    let changed =
        value!({ "ids": [2, "x"], "vectors": { "image": [null, "AACAPw=="], "title": [[5, 5], [6, 6]] } });
    assert_eq!(place.ok("POST", "/v1/collections/c/vectors", changed), value!({ "seq": 2, "changed": 2 }));
    place.restart();
    let point = place.ok("GET", &format!("{points}/2"), Value::Null);
    assert_eq!(
        point,
        value!({ "id": 2, "seq": 2, "vectors": { "title": [5.0, 5.0] }, "payload": { "a": 1 } })
    );
    let page = place.ok("POST", "/v1/collections/c/scroll", value!({ "with_vectors": true, "after": 2 }));
    assert_eq!(page["points"][0]["vectors"], value!({ "image": [1.0], "title": [6.0, 6.0] }), "{page}");
    let counted = place.ok("POST", "/v1/collections/c/count", value!({ "where": "has_vector('image')" }));
    assert_eq!(counted["count"], 2);
    let (update, query) = ("/v1/collections/c/vectors", "/v1/collections/c/query");
    let named = value!({ "ids": [1], "vectors": { "titel": [[1, 2]] } });
    for (method, path, body, why) in [
        ("PUT", points, named.clone(), "unknown vector name \"titel\"; there are \"image\", \"title\""),
        ("POST", update, named, "unknown vector name"),
        ("PUT", points, value!({ "ids": [1], "vectors": [[1, 2]] }), "have names"),
        ("PUT", points, value!({ "ids": [1, 2], "vectors": { "title": [[1, 2]] } }), "2 ids and 1 vectors"),
        (
            "PUT",
            points,
            value!({ "ids": [1], "vectors": { "title": [[1]] } }),
            "vectors \"title\": vector 0 has 1",
        ),
        ("PUT", points, value!({ "ids": [1], "vectors": { "title": ["AACAPw=="] } }), "vector 0"),
        ("POST", update, value!({ "ids": [9], "vectors": { "title": null } }), "no point 9"),
        ("POST", query, value!({ "vectors": [[1]] }), "have names"),
        ("POST", query, value!({ "vectors": [[1]], "vector_name": "x" }), "unknown vector name \"x\""),
        ("PUT", "/v1/collections/d", value!({ "vectors": {} }), "no name"),
        ("PUT", "/v1/collections/d", value!({ "dim": 2, "vectors": {} }), "for each name"),
        ("PUT", "/v1/collections/d", value!({ "vectors": { "a/b": { "dim": 2 } } }), "slash"),
        (
            "PUT",
            "/v1/collections/d",
            value!({ "vectors": { "a": { "dim": 2, "metric": "l3" } } }),
            "vectors \"a\": metric",
        ),
    ] {
        let reply = place.ask(method, path, &body);
        let error = reply.body["error"].as_str().unwrap_or_default();
        assert!(reply.status == 400 && error.contains(why), "{method} {path} {body}: {}", reply.body);
    }
    assert_eq!(place.ok("GET", "/v1/collections/c", Value::Null)["seq"], 2);
}

#[test]
fn pages_are_in_the_order_of_a_field_and_filters_may_need_an_index() {
    let place = Place::new(&[]);
    place.ok("PUT", "/v1/collections/c", value!({ "dim": 1 }));
    place.ok("PUT", "/v1/collections/c/schema", value!({ "price": "float" }));
    let payloads: Vec<Value> =
        (0..20).map(|n| value!({ "price": (n * 7 % 10) as f64 / 2.0, "n": n })).collect();
    let vectors: Vec<_> = (0..20).map(|n| [n]).collect();
    let points = value!({ "ids": (0..20).collect::<Vec<_>>(), "vectors": vectors, "payloads": payloads });
    place.ok("PUT", "/v1/collections/c/points", points);
    let price = |n: &u64| payloads[*n as usize]["price"].as_f64().unwrap();
    for descending in [false, true] {
        let (mut after, mut found) = (Value::Null, Vec::new());
        loop {
            let body = value!({ "order_by": "price", "descending": descending, "after": after, "limit": 7 });
            let page = place.ok("POST", "/v1/collections/c/scroll", body);
            found
                .extend(page["points"].as_array().unwrap().iter().map(|point| point["id"].as_u64().unwrap()));
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
            place.ok("POST", "/v1/collections/c/compact", Value::Null);
        }
        let mut expected: Vec<u64> = (0..20).collect();
        let turned = if descending { -1.0 } else { 1.0 };
        expected
            .sort_by(|one, two| (turned * price(one)).total_cmp(&(turned * price(two))).then(one.cmp(two)));
        assert_eq!(found, expected);
    }
    let body = value!({ "order_by": "price", "where": "n < 3", "with_vectors": true });
    let page = place.ok("POST", "/v1/collections/c/scroll", body);
    assert_eq!(
        (&page["points"][2]["id"], &page["points"][2]["vector"]),
        (&1.into(), &value!([1.0])),
        "{page}"
    );
    for path in ["count", "scroll", "delete", "payload/clear"] {
        let body = value!({ "where": "n < 3 and price < 9", "indexed_only": true });
        let refused = place.ask("POST", &format!("/v1/collections/c/{path}"), &body);
        let error = refused.body["error"].as_str().unwrap();
        assert!(refused.status == 400 && error.contains("n (create an index of kind float)"), "{error}");
    }
    let body = value!({ "vectors": [[3]], "where": "price < 1", "indexed_only": true, "with_vectors": true, "k": 2 });
    let found = place.ok("POST", "/v1/collections/c/query", body);
    assert_eq!(found["answers"][0]["vectors"], value!([[3.0], [0.0]]), "{found}");
    // What a condition leaves is named.
    let write = |more: Value| {
        let mut body = value!({ "ids": [3, "new"], "vectors": [[7], [8]] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        place.ok("PUT", "/v1/collections/c/points", body)
    };
    let done = write(value!({ "if_absent": true }));
    assert_eq!(done, value!({ "seq": 2, "new": 1, "replaced": 0, "repeated": 0, "skipped": [3] }));
    let done = write(value!({ "if_unchanged_since": 1 }));
    assert_eq!(done, value!({ "seq": 3, "new": 0, "replaced": 1, "repeated": 0, "skipped": ["new"] }));
    assert_eq!(write(value!({ "if_absent": true }))["seq"], 3, "nothing is written");
}

#[test]
fn elements_of_other_types_are_whole_numbers_or_rounded() {
    let place = Place::new(&[]);
    for (dtype, vector, bad) in
        [("u8", value!([0, 255]), value!([0, 256])), ("i8", value!([-128, 127]), value!([0.5, 0]))]
    {
        let (path, points) = (format!("/v1/collections/{dtype}"), format!("/v1/collections/{dtype}/points"));
        place.ok("PUT", &path, value!({ "dim": 2, "dtype": dtype, "kind": "flat" }));
        place.ok("PUT", &points, value!({ "ids": [1], "vectors": [vector] }));
        assert_eq!(place.ok("GET", &format!("{points}/1"), Value::Null)["vector"], vector);
        let refused = place.ask("PUT", &points, &value!({ "ids": [1], "vectors": [bad] }));
        assert_eq!(refused.status, 400, "{}", refused.body);
    }
    place.ok("PUT", "/v1/collections/f16", value!({ "dim": 1, "dtype": "f16" }));
    place.ok("PUT", "/v1/collections/f16/points", value!({ "ids": ["a b/ü"], "vectors": [[0.1]] }));
    let point = place.ok("GET", "/v1/collections/f16/points/a%20b%2F%C3%BC", Value::Null);
    assert!((point["vector"][0].as_f64().unwrap() - 0.1).abs() < 1e-4, "{point}");
}

#[test]
fn mistakes_are_refused_in_one_line_and_change_nothing() {
    let place = Place::new(&[]);
    place.ok("PUT", "/v1/collections/c", value!({ "dim": 2, "metric": "cosine" }));
    place.ok("PUT", "/v1/collections/c/points", value!({ "ids": [1], "vectors": [[1, 2]] }));
    let (points, query, delete) =
        ("/v1/collections/c/points", "/v1/collections/c/query", "/v1/collections/c/delete");
    let scroll = "/v1/collections/c/scroll";
    let long = "x".repeat(256);
    for (method, path, body, status, why) in [
        ("PUT", "/v1/collections/c", value!({ "dim": 2 }), 409, "already"),
        ("PUT", "/v1/collections/d", value!({}), 400, "missing field `dim`"),
        ("PUT", "/v1/collections/d", value!({ "dim": 0 }), 400, "0 dimensions"),
        ("PUT", "/v1/collections/d", value!({ "dim": 4097 }), 400, "give 1 to 4096"),
        ("PUT", "/v1/collections/d", value!({ "dim": 2, "metric": "l3" }), 400, "use l2, ip or cosine"),
        ("PUT", "/v1/collections/d", value!({ "dim": 2, "dtype": "f64" }), 400, "dtype is \"f64\""),
        ("PUT", "/v1/collections/d", value!({ "dim": 2, "kind": "tree" }), 400, "kind is \"tree\""),
        ("PUT", "/v1/collections/d", value!({ "dim": 2, "size": 3 }), 400, "unknown field `size`"),
        ("PUT", "/v1/collections/a%2Fb", value!({ "dim": 2 }), 400, "has a slash"),
        ("PUT", points, value!({ "ids": [1] }), 400, "missing field `vectors`"),
        ("PUT", points, value!({ "ids": [1, 2], "vectors": [[1, 2]] }), 400, "2 ids and 1 vectors"),
        ("PUT", points, value!({ "ids": [1], "vectors": [[1, 2, 3]] }), 400, "vector 0 has 3 dimensions"),
        ("PUT", points, value!({ "ids": [1], "vectors": [[1, null]] }), 400, "vector 0"),
        ("PUT", points, value!({ "ids": [1], "vectors": [[0, 0]] }), 400, "zero vector"),
        ("PUT", points, value!({ "ids": [], "vectors": [] }), 400, "no id"),
        ("PUT", points, value!({ "ids": [-1], "vectors": [[1, 2]] }), 400, "whole number"),
        ("PUT", points, value!({ "ids": [""], "vectors": [[1, 2]] }), 400, "empty"),
        ("PUT", points, value!({ "ids": [long], "vectors": [[1, 2]] }), 400, "256 bytes"),
        (
            "PUT",
            "/v1/collections/d/points",
            value!({ "ids": [1], "vectors": [[1, 2]] }),
            404,
            "no collection",
        ),
        ("POST", query, value!({ "vectors": [[1, 2]], "k": 0 }), 400, "k is 0"),
        ("POST", query, value!({ "vectors": [[1, 2]], "k": 2049 }), 400, "use 1 to 2048"),
        ("POST", query, value!({ "vectors": [[1, 2]], "recall": 2 }), 400, "a recall of 2"),
        ("POST", query, value!({ "vectors": [] }), 400, "no query"),
        ("POST", query, value!({ "vectors": [[1]] }), 400, "query 0 has 1 dimensions, the collection has 2"),
        ("POST", query, Value::Null, 400, "no body"),
        ("POST", "/v1/collections/d/query", value!({ "vectors": [[1, 2]] }), 404, "no collection"),
        ("POST", delete, value!({ "ids": 3 }), 400, "ids: "),
        ("POST", "/v1/collections/c/count", value!({ "wher": 3 }), 400, "unknown field"),
        ("POST", "/v1/collections/c/count", value!({ "where": "a = " }), 400, "column"),
        ("POST", query, value!({ "vectors": [[1, 2]], "filter": { "must": 3 } }), 400, "must"),
        ("POST", delete, value!({ "ids": [1], "where": "a = 1" }), 400, "both ids and a filter"),
        ("POST", delete, value!({}), 400, "send ids, filter or where"),
        (
            "PUT",
            points,
            value!({ "ids": [1], "vectors": [[1, 2]], "payloads": [] , "x": 1 }),
            400,
            "unknown field",
        ),
        ("PUT", points, value!({ "ids": [1], "vectors": [[1, 2]], "payloads": [{}, {}] }), 400, "2 payloads"),
        ("PUT", points, value!({ "ids": [1], "vectors": [[1, 2]], "payloads": [[1]] }), 400, "object"),
        (
            "PUT",
            points,
            value!({ "ids": [1], "vectors": [[1, 2]], "if_absent": true, "if_unchanged_since": 1 }),
            400,
            "send one",
        ),
        ("POST", scroll, value!({ "order_by": "a" }), 400, "the field a has no index that keeps an order"),
        ("POST", scroll, value!({ "order_by": "a..b" }), 400, "column"),
        ("POST", scroll, value!({ "order_by": "a", "after": 7 }), 400, "after: "),
        ("POST", scroll, value!({ "descending": true }), 400, "no use without order_by"),
        ("POST", scroll, value!({ "indexed_only": true }), 400, "no use without a filter"),
        (
            "POST",
            scroll,
            value!({ "indexed_only": true, "where": "a = 1" }),
            400,
            "a (create an index of kind",
        ),
        ("PUT", "/v1/collections/c/schema", value!({ "a": "geo" }), 400, "field a is \"geo\"; use keyword"),
        ("POST", "/v1/collections/c/payload/set", value!({ "ids": [1] }), 400, "missing"),
        ("GET", "/v1/collections/c/points/2", Value::Null, 404, "no point 2"),
        ("GET", "/v1/collections/d/points/2", Value::Null, 404, "no collection"),
        ("GET", "/v1/collections/c/points/18446744073709551616", Value::Null, 400, "larger than 2^64 - 1"),
        ("GET", "/v1/collections/%ff", Value::Null, 400, "UTF-8"),
        ("DELETE", "/v1/collections/d", Value::Null, 404, "no collection"),
        ("GET", "/v1/search", Value::Null, 404, "no such path"),
        ("POST", "/v1/collections", Value::Null, 405, "wrong method"),
    ] {
        let reply = place.ask(method, path, &body);
        let error = reply.body["error"].as_str().unwrap_or_default();
        assert_eq!(reply.status, status, "{method} {path} {body}: {}", reply.body);
        assert!(error.contains(why) && !error.contains('\n'), "{method} {path} {body}: {error}");
        assert!(reply.head.contains("content-type: application/problem+json"), "{}", reply.head);
        assert_eq!((&reply.body["detail"], &reply.body["status"]), (&reply.body["error"], &status.into()));
    }
    let octets = place.text("PUT", points, "Content-Type: application/octet-stream\r\n", "12345678");
    let plain = place.text("POST", delete, "Content-Type: text/plain\r\n", "{\"ids\": [1]}");
    assert_eq!((octets.status, plain.status), (415, 415));
    let nan = place.text(
        "PUT",
        points,
        "Content-Type: application/json\r\n",
        "{\"ids\":[1],\"vectors\":[[1,NaN]]}",
    );
    let beyond =
        place.text("POST", delete, "Content-Type: application/json\r\n", "{\"ids\":[18446744073709551616]}");
    assert_eq!((nan.status, beyond.status), (400, 400), "{} {}", nan.body, beyond.body);
    let info = place.ok("GET", "/v1/collections/c", Value::Null);
    assert_eq!((&info["points"], &info["seq"]), (&1.into(), &1.into()));
    let status = place.ok("GET", "/v1/status", Value::Null);
    assert!(status["http"]["refused"].as_u64() > Some(20) && status["rows"]["batches"].as_u64() >= Some(2));
    assert_eq!(place.ok("GET", "/v1/health", Value::Null), value!({ "healthy": true }));
}

#[test]
fn limits_of_the_front_hold() {
    let place = Place::new(&["--max-k", "5", "--max-batch", "2", "--http-memory", "96KiB"]);
    place.ok("PUT", "/v1/collections/c", value!({ "dim": 2 }));
    place.ok(
        "PUT",
        "/v1/collections/c/points",
        value!({ "ids": [1, 2, 3], "vectors": [[1, 2], [1, 2], [3, 4]] }),
    );
    let query = |body: Value| place.ask("POST", "/v1/collections/c/query", &body);
    let many = query(value!({ "vectors": [[1, 2], [1, 2], [1, 2]] }));
    assert!(
        many.status == 400 && many.body["error"].as_str().unwrap().contains("max_batch"),
        "{}",
        many.body
    );
    assert_eq!(query(value!({ "vectors": [[1, 2]], "k": 6 })).status, 400);
    let found = query(value!({ "vectors": [[1, 2]], "k": 5 }));
    assert_eq!(found.body["answers"][0]["ids"], value!([1, 2, 3]), "ties are in the order of ids");
    let long = place.ask("POST", "/v1/collections/c/delete", &value!({ "ids": vec!["x".repeat(200); 300] }));
    assert!(long.body["error"].as_str().unwrap().contains("--http-memory"), "{}", long.body);
    let evil = place.text("GET", "/v1/collections", "Origin: https://evil.example\r\n", "");
    assert_eq!(evil.status, 403);
}

#[test]
fn memory_limits_are_set_and_hold() {
    let mut place = Place::new(&[]);
    let (path, points) = ("/v1/collections/c", "/v1/collections/c/points");
    place.ok("PUT", path, value!({ "dim": 2, "memory_quota_bytes": 200_000, "memory_minimum_bytes": 1000 }));
    let limits = |place: &Place| {
        let info = place.ok("GET", path, Value::Null);
        (info["memory_quota_bytes"].clone(), info["memory_minimum_bytes"].clone())
    };
    assert_eq!(limits(&place), (200_000.into(), 1000.into()));
    let some =
        |from: u64| value!({ "ids": (from..from + 500).collect::<Vec<_>>(), "vectors": vec![[1, 2]; 500] });
    let full =
        (0..20).map(|step| place.ask("PUT", points, &some(500 * step))).find(|reply| reply.status != 200);
    let full = full.expect("a quota");
    let error = full.body["error"].as_str().unwrap();
    assert!(full.status == 429 && error.contains("memory quota of 195.3 KiB"), "{error}");
    assert!(full.head.contains("retry-after: 1"), "{}", full.head);
    let used = place.ok("GET", path, Value::Null)["memory_bytes"].as_u64();
    assert!(used > Some(10_000), "{used:?}");
    let changed = place.ok("PATCH", path, value!({ "memory_quota_bytes": null }));
    assert_eq!(changed, value!({ "name": "c", "memory_quota_bytes": null, "memory_minimum_bytes": 1000 }));
    place.ok("PUT", points, some(20_000));
    place.ok("PATCH", path, value!({ "memory_quota_bytes": 50_000_000, "memory_minimum_bytes": 0 }));
    place.restart();
    assert_eq!(limits(&place), (50_000_000.into(), 0.into()));
    for (method, path, body, status, why) in [
        ("PATCH", path, value!({}), 400, "nothing changes"),
        ("PATCH", path, value!({ "memory_quota_bytes": 0 }), 400, "quota of 0"),
        ("PATCH", path, value!({ "memory_quota_bytes": -1 }), 400, "memory_quota_bytes"),
        ("PATCH", path, value!({ "memory_minimum_bytes": 60_000_000 }), 400, "more than the quota"),
        ("PATCH", "/v1/collections/d", value!({ "memory_minimum_bytes": 1 }), 404, "no collection"),
        ("PUT", "/v1/collections/d", value!({ "dim": 2, "memory_quota_bytes": 0 }), 400, "quota of 0"),
    ] {
        let reply = place.ask(method, path, &body);
        assert!(
            reply.status == status && reply.body["error"].as_str().unwrap().contains(why),
            "{}",
            reply.body
        );
    }
}

#[test]
fn pages_have_all_points_and_a_compaction_goes_on_beside() {
    let place = Place::new(&[]);
    place.ok("PUT", "/v1/collections/c", value!({ "dim": 2, "kind": "flat" }));
    let vectors: Vec<_> = (0..250).map(|x| [x, 1]).collect();
    let ids = (0..249).map(Value::from).chain([value!("last")]).collect::<Vec<_>>();
    place.ok("PUT", "/v1/collections/c/points", value!({ "ids": ids, "vectors": vectors }));
    let accepted = place.ask("POST", "/v1/collections/c/compact", &Value::Null);
    assert_eq!((accepted.status, accepted.body), (202, value!({ "name": "c" })));
    let scroll = |body: Value| place.ok("POST", "/v1/collections/c/scroll", body);
    let (mut after, mut found) = (Value::Null, Vec::new());
    loop {
        let page = scroll(value!({ "after": after, "limit": 99 }));
        assert_eq!(page["seq"], 1);
        found.extend(page["points"].as_array().unwrap().iter().map(|point| point["id"].clone()));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(found, ids);
    let first = scroll(Value::Null);
    assert_eq!((first["points"].as_array().unwrap().len(), &first["next"]), (100, &99.into()));
    assert_eq!(first["points"][3], value!({ "id": 3, "seq": 1 }));
    let last = scroll(value!({ "after": 248, "with_vectors": true }));
    assert_eq!(last["points"], value!([{ "id": "last", "seq": 1, "vector": [249.0, 1.0] }]));
    for (body, why) in [
        (value!({ "limit": 0 }), "use 1 to 16384"),
        (value!({ "limit": 16_385 }), "use 1 to 16384"),
        (value!({ "after": [1] }), "whole number"),
        (value!({ "after": "" }), "empty"),
        (value!({ "before": 1 }), "unknown field"),
    ] {
        let reply = place.ask("POST", "/v1/collections/c/scroll", &body);
        assert!(reply.status == 400 && reply.body["error"].as_str().unwrap().contains(why), "{}", reply.body);
    }
    let begun = std::time::Instant::now();
    let info = loop {
        let info = place.ok("GET", "/v1/collections/c", Value::Null);
        if info["jobs"] == value!([]) {
            break info;
        }
        assert!(begun.elapsed().as_secs() < 60, "{info}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    assert_eq!((info["segments"].as_array().unwrap().len(), &info["delta_points"]), (1, &0.into()), "{info}");
    assert_eq!(place.ask("POST", "/v1/collections/d/compact", &Value::Null).status, 404);
}

#[test]
fn a_damaged_data_folder_is_searched_and_not_written() {
    let mut place = Place::new(&[]);
    place.ok("PUT", "/v1/collections/c", value!({ "dim": 2, "kind": "flat" }));
    place.ok("PUT", "/v1/collections/c/points", value!({ "ids": [1], "vectors": [[1, 2]] }));
    assert_eq!(place.ok("GET", "/v1/status", Value::Null)["read_only"], Value::Null);
    drop(place.server.take());
    json(&["collection", "compact", "--data", arg(&place.data()), "c"]);
    // The engine's names are whole, and no byte of its files.
    let mut folders = vec![place.data().join("db")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let flipped: Vec<u8> =
                        std::fs::read(&path).unwrap().iter().map(|byte| byte ^ 0x55).collect();
                    std::fs::write(&path, flipped).unwrap();
                }
            }
        }
    }
    place.start(&[]);
    let listed = place.ok("GET", "/v1/collections", Value::Null);
    assert!(listed["read_only"].as_str().unwrap().contains("nothing is written"), "{listed}");
    assert_eq!(place.ok("GET", "/v1/status", Value::Null)["read_only"], listed["read_only"]);
    let found = place.ok("POST", "/v1/collections/c/query", value!({ "vectors": [[1, 2]] }));
    assert_eq!(found["answers"][0]["ids"], value!([1]));
    for (method, path, body) in [
        ("PUT", "/v1/collections/c/points", value!({ "ids": [2], "vectors": [[1, 2]] })),
        ("POST", "/v1/collections/c/delete", value!({ "ids": [1] })),
        ("PUT", "/v1/collections/d", value!({ "dim": 2 })),
        ("PATCH", "/v1/collections/c", value!({ "memory_minimum_bytes": 1 })),
        ("POST", "/v1/collections/c/compact", Value::Null),
        ("DELETE", "/v1/collections/c", Value::Null),
    ] {
        let reply = place.ask(method, path, &body);
        assert!(
            reply.status == 503 && !reply.head.contains("retry-after"),
            "{method} {path}: {}",
            reply.body
        );
    }
    drop(place.server.take());
    let output = run(&["collection", "list", "--data", arg(&place.data())]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("read-only: "), "{text}");
}

#[test]
fn options_of_an_index_are_refused() {
    let folder = folder();
    let file = folder.path().join("home/server.toml");
    let data = folder.path().join("data");
    for (more, why) in [
        (&["--index", "x"][..], "both index and data"),
        (&["--cache-budget", "0"], "collections are served"),
        (&["--queue", "9"], "collections are served"),
        (&["--ram-budget", "1MiB"], "budget"),
    ] {
        let error = refused(&[&["serve", "--data", arg(&data)], more].concat(), 2);
        assert!(error.contains(why), "{more:?}: {error}");
    }
    let error = refused(&["serve", "--data", arg(&data), "--ram-budget", "100MiB"], 2);
    let least = error.rsplit("--ram-budget ").next().unwrap();
    drop(Running::start(&["serve", "--data", arg(&data), "--http", "127.0.0.1:0", "--ram-budget", least]));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "data = \"data\"\nhttp = \"127.0.0.1:0\"\n").unwrap();
    drop(server_of(&file));
    let server = server_of(&file);
    assert_eq!(get(server.address(), "/v1/collections").0, 200);
    assert!(file.with_file_name("data").is_dir(), "paths are relative to the folder of the file");
}

fn server_of(file: &Path) -> Running {
    Running::start(&["serve", "--config", arg(file), "--until-eof"])
}
