//! Why a collection did not do what it was asked.

use stratann_storage::ErrorKind;

/// Remedy of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no such collection, or it was dropped.
    Missing,
    /// The collection, its memory quota or the memory of points is full; nothing was written. Remove points or make
    /// room, and try again.
    Busy,
    /// Whether a change is there is not known. The next change opens the rows again; then
    /// [`Collection::is_there`](super::Collection::is_there) tells.
    Unknown {
        /// Sequence number of the change; 0 for a change of the catalogue.
        seq: u64,
    },
    /// The disk is full; nothing was written. Deletes are admitted, and writes once there is room again.
    DiskFull,
    /// The storage engine is damaged: nothing is written, and segments are searched as they were.
    ReadOnly,
    /// One of the kinds that all crates have; nothing was written.
    Other(ErrorKind),
}

impl Kind {
    /// A name for programs, which does not change.
    pub fn code(self) -> &'static str {
        match self {
            Kind::Missing => "missing_collection",
            Kind::Busy => "busy",
            Kind::Unknown { .. } => "unknown_outcome",
            Kind::DiskFull => "disk_full",
            Kind::ReadOnly => "read_only",
            Kind::Other(ErrorKind::BadInput) => "bad_input",
            Kind::Other(ErrorKind::Budget) => "no_memory",
            Kind::Other(ErrorKind::Corrupt) => "corrupt",
            Kind::Other(ErrorKind::Io) => "io",
            Kind::Other(ErrorKind::Interrupted) => "interrupted",
        }
    }
}

/// An error of a collection: one line for a person, a kind for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Remedy.
    pub kind: Kind,
    /// Event, place and remedy.
    pub message: String,
}

/// A checkpoint of a full delta takes about so long.
const RETRY_AFTER_S: u64 = 1;

/// Result of what a collection is asked.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<stratann_storage::Error> for Error {
    fn from(error: stratann_storage::Error) -> Error {
        Error { kind: Kind::Other(error.kind), message: error.message }
    }
}

impl Error {
    /// Seconds after which to try again what a full collection refused; `None` for what time does not mend.
    pub fn retry_after_s(&self) -> Option<u64> {
        (self.kind == Kind::Busy).then_some(RETRY_AFTER_S)
    }

    /// Whether memory that others give back would mend it.
    pub(super) fn lacks_memory(&self) -> bool {
        matches!(self.kind, Kind::Busy | Kind::Other(ErrorKind::Budget))
    }

    pub(super) fn bad_input(message: impl Into<String>) -> Error {
        stratann_storage::Error::bad_input(message).into()
    }

    pub(super) fn corrupt(message: impl Into<String>) -> Error {
        stratann_storage::Error::corrupt(message).into()
    }

    pub(super) fn busy(message: impl Into<String>) -> Error {
        Error { kind: Kind::Busy, message: message.into() }
    }

    /// The refusal of a change where the storage engine is damaged.
    pub(super) fn read_only(why: &stratann_storage::Error) -> Error {
        Error { kind: Kind::ReadOnly, message: why.message.clone() }
    }

    pub(super) fn disk_full(why: &stratann_storage::Error) -> Error {
        Error { kind: Kind::DiskFull, message: why.message.clone() }
    }

    pub(super) fn missing(name: &str) -> Error {
        let message = format!("there is no collection \"{name}\"; create it, or list those that there are");
        Error { kind: Kind::Missing, message }
    }

    pub(super) fn dropped(name: &str) -> Error {
        let message = format!("the collection \"{name}\" was dropped; ask the node for it again");
        Error { kind: Kind::Missing, message }
    }

    pub(super) fn unknown(seq: u64, what: &str, why: &stratann_storage::Error) -> Error {
        let message =
            format!("whether {what} is there is not known: {}; ask for it, or repeat it", why.message);
        Error { kind: Kind::Unknown { seq }, message }
    }

    /// The error with the name of its collection before.
    pub(super) fn of_collection(mut self, name: &str) -> Error {
        self.message = format!("collection \"{name}\": {}", self.message);
        self
    }
}
