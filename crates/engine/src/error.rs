//! The public error: a few kinds that say what the caller should do, and one line that says what, where and how to go
//! on.

use std::path::Path;

/// What the caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Input, option or usage is wrong: mend it and try again.
    BadInput,
    /// The RAM budget is too small for the job: raise it to the size named.
    Budget,
    /// A file is damaged: restore it or build again.
    Corrupt,
    /// The operating system refused (disk full, permission, I/O error): mend that and try again.
    Io,
    /// The work was interrupted on request; nothing is broken.
    Interrupted,
}

/// An error of the engine: one line for a person, a kind for a program.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What the caller can do.
    pub kind: Kind,
    /// What, where, what to do.
    pub message: String,
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wrong input, option or usage.
    pub fn bad_input(message: impl Into<String>) -> Error {
        Error { kind: Kind::BadInput, message: message.into() }
    }

    /// A budget that cannot work.
    pub fn budget(message: impl Into<String>) -> Error {
        Error { kind: Kind::Budget, message: message.into() }
    }

    /// A damaged file.
    pub fn corrupt(message: impl Into<String>) -> Error {
        Error { kind: Kind::Corrupt, message: message.into() }
    }

    /// Interrupted on request.
    pub fn interrupted() -> Error {
        Error { kind: Kind::Interrupted, message: "interrupted".into() }
    }

    /// An operating-system error at `path` while doing `what` (for example "reading").
    pub fn io(what: &str, path: &Path, error: &std::io::Error) -> Error {
        let hint = match error.kind() {
            std::io::ErrorKind::StorageFull => "; free some space and run it again",
            std::io::ErrorKind::PermissionDenied => "; check the permissions",
            _ => "",
        };
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::BadInput,
            _ => Kind::Io,
        };
        Error { kind, message: format!("{what} {}: {error}{hint}", path.display()) }
    }
}
