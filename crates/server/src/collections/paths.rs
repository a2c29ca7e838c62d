//! The paths of collections: the handler of each, and its entry in the OpenAPI document.

use axum::routing::MethodFilter;

use super::document::{self as tables, Object, Shape};
use super::{Handler, handlers};

/// What the document says of a path and a method.
pub(super) struct Operation {
    /// Its name, different from all others.
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    /// The body of a request, and whether there has to be one.
    pub(super) body: Option<(Shape, bool)>,
    /// Status and body of the reply.
    pub(super) reply: (u16, Shape),
}

/// A served path.
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) filter: MethodFilter,
    pub(super) path: &'static str,
    pub(super) handler: Handler,
    pub(super) operation: Operation,
}

const fn asks(name: &'static str, about: &'static str, reply: &'static Object) -> Operation {
    Operation { name, about, body: None, reply: (200, Shape::Object(reply)) }
}

const fn sends(
    name: &'static str,
    about: &'static str,
    (body, is_required): (&'static Object, bool),
    reply: (u16, &'static Object),
) -> Operation {
    let reply = (reply.0, Shape::Object(reply.1));
    Operation { name, about, body: Some((Shape::Object(body), is_required)), reply }
}

const ALL: &str = "/v1/collections";
const ONE: &str = "/v1/collections/{collection}";
const POINTS: &str = "/v1/collections/{collection}/points";
const SCHEMA: &str = "/v1/collections/{collection}/schema";

fn get(path: &'static str, handler: Handler, operation: Operation) -> Route {
    Route { method: "GET", filter: MethodFilter::GET, path, handler, operation }
}

fn put(path: &'static str, handler: Handler, operation: Operation) -> Route {
    Route { method: "PUT", filter: MethodFilter::PUT, path, handler, operation }
}

fn post(path: &'static str, handler: Handler, operation: Operation) -> Route {
    Route { method: "POST", filter: MethodFilter::POST, path, handler, operation }
}

/// The served paths with their methods, but for those below.
pub(super) fn routes() -> Vec<Route> {
    let mut all = of_collections();
    all.extend(of_points());
    all.extend(of_payloads());
    all
}

fn of_collections() -> Vec<Route> {
    let create =
        sends("createCollection", "a new collection", (&tables::SPEC, true), (201, &tables::DESCRIBED));
    let change =
        sends("setLimits", "other memory limits", (&tables::LIMITS, true), (200, &tables::LIMITS_REPLY));
    let compact = sends(
        "compactCollection",
        "one segment of all points, made in the background",
        (&tables::NOTHING, false),
        (202, &tables::NAME_REPLY),
    );
    let verify = sends(
        "verifyCollection",
        "the comparison of all that is stored",
        (&tables::NOTHING, false),
        (200, &tables::VERIFY_REPLY),
    );
    let set_schema = Operation {
        name: "setSchema",
        about: "the fields of payloads that are indexed",
        body: Some((Shape::Fields, true)),
        reply: (200, Shape::Object(&tables::SCHEMA_REPLY)),
    };
    let dropped = asks("dropCollection", "the end of a collection", &tables::DROPPED_REPLY);
    vec![
        get(ALL, handlers::list, asks("listCollections", "all collections", &tables::LIST_REPLY)),
        put(ONE, handlers::create, create),
        get(ONE, handlers::info, asks("describeCollection", "what it is made of", &tables::INFO_REPLY)),
        Route {
            method: "PATCH",
            filter: MethodFilter::PATCH,
            path: ONE,
            handler: handlers::change,
            operation: change,
        },
        Route {
            method: "DELETE",
            filter: MethodFilter::DELETE,
            path: ONE,
            handler: handlers::drop_collection,
            operation: dropped,
        },
        post("/v1/collections/{collection}/compact", handlers::compact, compact),
        post("/v1/collections/{collection}/verify", handlers::verify, verify),
        get(SCHEMA, handlers::schema, asks("getSchema", "the indexed fields", &tables::SCHEMA_REPLY)),
        put(SCHEMA, handlers::set_schema, set_schema),
    ]
}

fn of_points() -> Vec<Route> {
    let upsert = sends(
        "upsertPoints",
        "new points, or points in place of others",
        (&tables::POINTS, true),
        (200, &tables::UPSERT_REPLY),
    );
    let update = sends(
        "updateVectors",
        "other vectors of points",
        (&tables::UPDATE_VECTORS, true),
        (200, &tables::VECTORS_REPLY),
    );
    let point = Operation {
        name: "getPoint",
        about: "a point by its id",
        body: None,
        reply: (200, tables::POINT_REPLY),
    };
    let several = sends("getPoints", "points by their ids", (&tables::GET, true), (200, &tables::GET_REPLY));
    let delete =
        sends("deletePoints", "the end of points", (&tables::CHOSEN, true), (200, &tables::DELETE_REPLY));
    let query =
        sends("queryPoints", "the nearest points", (&tables::QUERY, true), (200, &tables::QUERY_REPLY));
    let scroll =
        sends("scrollPoints", "a page of points", (&tables::SCROLL, false), (200, &tables::SCROLL_REPLY));
    let count =
        sends("countPoints", "a number of points", (&tables::COUNT, false), (200, &tables::COUNT_REPLY));
    vec![
        put(POINTS, handlers::upsert, upsert),
        post("/v1/collections/{collection}/vectors", handlers::update_vectors, update),
        get("/v1/collections/{collection}/points/{id}", handlers::point, point),
        post("/v1/collections/{collection}/get", handlers::get, several),
        post("/v1/collections/{collection}/delete", handlers::delete, delete),
        post("/v1/collections/{collection}/query", handlers::query, query),
        post("/v1/collections/{collection}/scroll", handlers::scroll, scroll),
        post("/v1/collections/{collection}/count", handlers::count, count),
    ]
}

fn of_payloads() -> Vec<Route> {
    let reply = (200, &tables::PAYLOAD_REPLY);
    let change = |name, about, body| sends(name, about, (body, true), reply);
    vec![
        post(
            "/v1/collections/{collection}/payload/set",
            handlers::set_payload,
            change("setPayload", "fields that come to payloads", &tables::SET),
        ),
        post(
            "/v1/collections/{collection}/payload/overwrite",
            handlers::overwrite_payload,
            change("overwritePayload", "a payload in place of others", &tables::OVERWRITE),
        ),
        post(
            "/v1/collections/{collection}/payload/delete",
            handlers::delete_payload_keys,
            change("deletePayloadKeys", "payloads without some fields", &tables::DELETE_KEYS),
        ),
        post(
            "/v1/collections/{collection}/payload/clear",
            handlers::clear_payload,
            change("clearPayload", "points without payloads", &tables::CHOSEN),
        ),
    ]
}

/// Paths that are answered without a handler that may block.
pub(super) const OWN_PATHS: [(&str, &str, Operation); 3] = [
    ("GET", "/v1/health", asks("health", "whether it answers", &tables::HEALTH_REPLY)),
    ("GET", "/v1/status", asks("status", "memory, counters and limits", &tables::STATUS_REPLY)),
    (
        "GET",
        super::openapi::PATH,
        Operation { name: "openapi", about: "this document", body: None, reply: (200, Shape::Any) },
    ),
];
