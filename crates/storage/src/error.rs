//! The public error: a kind that tells the remedy, and one line with what, where and what to do.

use std::path::Path;

/// Remedy of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Input, option or usage is wrong: correct it and try again.
    BadInput,
    /// The RAM budget is too small for the job: raise it to the named size.
    Budget,
    /// A file is damaged: restore it or build again.
    Corrupt,
    /// The operating system refused an operation (disk full, permission, I/O error): correct that and try again.
    Io,
    /// The work was interrupted on request; nothing is broken.
    Interrupted,
}

/// An error of the engine: one line for a person, a kind for a program.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Remedy.
    pub kind: ErrorKind,
    /// Event, place and remedy.
    pub message: String,
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<stratann_params::Wrong> for Error {
    fn from(wrong: stratann_params::Wrong) -> Error {
        Error::bad_input(wrong.0)
    }
}

impl Error {
    /// Creates an error of wrong input, option or usage.
    pub fn bad_input(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::BadInput, message: message.into() }
    }

    /// Creates the refusal of something that only a command of the laboratory does.
    pub fn laboratory(what: &str, command: &str) -> Error {
        Error::bad_input(format!(
            "{what} is for studies, which the laboratory has; use `stratann-lab {command}`, which `make lab` compiles \
             in the source tree (or `cargo run --release -p stratann-lab -- {command}`)"
        ))
    }

    /// Creates an error of a budget that is too small.
    pub fn budget(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Budget, message: message.into() }
    }

    /// Creates an error of a damaged file.
    pub fn corrupt(message: impl Into<String>) -> Error {
        Error { kind: ErrorKind::Corrupt, message: message.into() }
    }

    /// Creates the error of an interruption on request.
    pub fn interrupted() -> Error {
        Error { kind: ErrorKind::Interrupted, message: "interrupted".into() }
    }

    /// Creates an error of the operating system at `path` while doing `what` (for example "reading").
    pub fn io(what: &str, path: &Path, error: &std::io::Error) -> Error {
        let hint = match error.kind() {
            std::io::ErrorKind::StorageFull => "; free some space and run it again",
            std::io::ErrorKind::PermissionDenied => "; check the permissions",
            std::io::ErrorKind::NotADirectory => {
                "; give a folder, such as the index that `stratann build` made"
            }
            _ => "",
        };
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => ErrorKind::BadInput,
            _ => ErrorKind::Io,
        };
        Error { kind, message: format!("{what} {}: {error}{hint}", path.display()) }
    }
}

/// Characters that an error quotes of a text from elsewhere.
const QUOTED_MAX: usize = 400;

/// A text from another machine as an error quotes it: one line of limited length without what steers a terminal.
pub fn quoted(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let plain: String = line.chars().map(plain).take(QUOTED_MAX).collect();
    if line.chars().nth(QUOTED_MAX).is_some() { plain + "…" } else { plain }
}

/// The character, or a mark in place of one that steers a terminal or changes the direction of what follows.
pub fn plain(c: char) -> char {
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || turns { char::REPLACEMENT_CHARACTER } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_one_plain_line() {
        assert_eq!(quoted("a\r\n b\tc é 日"), "a b c é 日");
        assert_eq!(quoted("\u{1b}[2J\u{9b}31m\u{7}\u{202e}x"), "\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}x");
        let long = quoted(&"é".repeat(10_000));
        assert!(long.ends_with('…') && long.chars().count() == QUOTED_MAX + 1);
        assert_eq!(quoted(&"é".repeat(QUOTED_MAX)).chars().count(), QUOTED_MAX);
    }
}
