//! Errors after RFC 9457: each has a code, which does not change.

use axum::http::StatusCode;
use serde::Serialize;

/// Media type of an error.
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// Why a request is refused, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request is wrong.
    BadInput,
    /// The request has a longer body than the server takes.
    BodyTooLong,
    /// The answer would be longer than the server sends.
    ReplyTooLong,
    /// The request could come from a web page.
    Forbidden,
    /// There is no such path.
    NoPath,
    /// There is no such collection.
    MissingCollection,
    /// There is no such point.
    MissingPoint,
    /// The path has other methods.
    WrongMethod,
    /// The body came too slowly.
    SlowBody,
    /// There is such a collection already.
    NameTaken,
    /// The body is of a type that is not read.
    WrongType,
    /// There is no room for more points now.
    Busy,
    /// The server has failed.
    Failed,
    /// A file is damaged.
    Corrupt,
    /// The disk has failed.
    Io,
    /// The server is overloaded.
    Overloaded,
    /// There is no memory to open the collection.
    NoMemory,
    /// Whether a change is there is not known.
    UnknownOutcome,
    /// The data folder is damaged and read-only.
    ReadOnly,
    /// The work was interrupted.
    Interrupted,
    /// The disk is full.
    DiskFull,
}

/// Name, status and title of each code, in the order of [`Code`].
const ROWS: [(Code, &str, u16, &str); 21] = [
    (Code::BadInput, "bad_input", 400, "The request is wrong"),
    (Code::BodyTooLong, "body_too_long", 400, "The body is too long"),
    (Code::ReplyTooLong, "reply_too_long", 400, "The answer would be too long"),
    (Code::Forbidden, "forbidden", 403, "The request could come from a web page"),
    (Code::NoPath, "no_path", 404, "There is no such path"),
    (Code::MissingCollection, "missing_collection", 404, "There is no such collection"),
    (Code::MissingPoint, "missing_point", 404, "There is no such point"),
    (Code::WrongMethod, "wrong_method", 405, "The path has other methods"),
    (Code::SlowBody, "slow_body", 408, "The body came too slowly"),
    (Code::NameTaken, "name_taken", 409, "There is such a collection already"),
    (Code::WrongType, "wrong_type", 415, "The type of the body is not read"),
    (Code::Busy, "busy", 429, "There is no room now"),
    (Code::Failed, "failed", 500, "The server has failed"),
    (Code::Corrupt, "corrupt", 500, "A file is damaged"),
    (Code::Io, "io", 500, "The disk has failed"),
    (Code::Overloaded, "overloaded", 503, "The server is overloaded"),
    (Code::NoMemory, "no_memory", 503, "There is no memory"),
    (Code::UnknownOutcome, "unknown_outcome", 503, "The outcome is unknown"),
    (Code::ReadOnly, "read_only", 503, "The data folder is read-only"),
    (Code::Interrupted, "interrupted", 503, "The work was interrupted"),
    (Code::DiskFull, "disk_full", 507, "The disk is full"),
];

impl Code {
    /// All codes.
    pub fn all() -> impl Iterator<Item = Code> {
        ROWS.iter().map(|row| row.0)
    }

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        ROWS[self as usize].1
    }

    /// Its HTTP status.
    pub fn status(self) -> u16 {
        ROWS[self as usize].2
    }

    /// A short description, the same for each error of the code.
    pub fn title(self) -> &'static str {
        ROWS[self as usize].3
    }

    /// The code of this name.
    pub fn from_name(name: &str) -> Option<Code> {
        Code::all().find(|code| code.name() == name)
    }

    /// The usual code of a status.
    pub(crate) fn of_status(status: StatusCode) -> Code {
        match status.as_u16() {
            400 => Code::BadInput,
            404 => Code::NoPath,
            503 => Code::Overloaded,
            status => Code::all().find(|code| code.status() == status).unwrap_or(Code::Failed),
        }
    }
}

/// An error as JSON.
#[derive(Serialize)]
pub(crate) struct Problem<'a> {
    #[serde(rename = "type")]
    kind: String,
    title: &'static str,
    status: u16,
    detail: &'a str,
    code: &'static str,
    /// The same as `detail`, for clients of earlier versions.
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
}

impl<'a> Problem<'a> {
    /// An error, and the sequence number of a change whose outcome is not known.
    pub(crate) fn of(code: Code, status: StatusCode, detail: &'a str, unknown: Option<u64>) -> Problem<'a> {
        Problem {
            kind: format!("urn:stratann:error:{}", code.name()),
            title: code.title(),
            status: status.as_u16(),
            detail,
            code: code.name(),
            error: detail,
            outcome: unknown.map(|_| "unknown"),
            seq: unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_codes() {
        for (at, code) in Code::all().enumerate() {
            assert_eq!(code as usize, at);
            assert_eq!(Code::from_name(code.name()), Some(code));
            let status = StatusCode::from_u16(code.status()).unwrap();
            assert_eq!(Code::of_status(status).status(), code.status());
        }
        assert_eq!(Code::of_status(StatusCode::IM_A_TEAPOT), Code::Failed);
    }

    #[test]
    fn the_book_lists_all_codes() {
        let book = include_str!("../../../docs/book/collections.md");
        for code in Code::all() {
            let row = format!("| `{}` | {} |", code.name(), code.status());
            assert!(book.contains(&row), "collections.md lacks a row {row}");
        }
    }
}
