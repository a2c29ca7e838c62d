//! Output: results to stdout, everything else to stderr.

use std::io::Write;
use std::ops::Deref;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use stratann_storage::error::plain;
use stratann_storage::{Error, ErrorKind, Result};

/// Output options of the user.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// Print one JSON document on stdout.
    pub json: bool,
    /// Print only errors on stderr.
    pub quiet: bool,
}

/// A path in a JSON document; bytes that are not UTF-8 are replaced.
pub struct Named<'a>(pub &'a Path);

impl Serialize for Named<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.display())
    }
}

impl Deref for Named<'_> {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0
    }
}

impl Output {
    /// Prints the result: the document under `--json`, else the text.
    pub fn result<T: Serialize>(self, document: &T, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print_json(document) } else { print(&text()) }
    }

    /// Prints a note to stderr.
    pub fn note(self, line: &str) {
        if !self.quiet {
            eprint_line(line);
        }
    }

    /// Prints the error that ended a command.
    pub fn error(self, error: &Error) {
        eprint_line(&format!("stratann: {}", error.message));
        if self.json {
            let kind = match error.kind {
                ErrorKind::BadInput => "bad_input",
                ErrorKind::Budget => "budget",
                ErrorKind::Corrupt => "corrupt",
                ErrorKind::Io => "io",
                ErrorKind::Interrupted => "interrupted",
            };
            let document = serde_json::json!({ "error": error.message, "kind": kind });
            let _ = print(&escaped(&format!("{document:#}\n")));
        }
    }
}

/// Prints a document on stdout.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print_json<T: Serialize>(document: &T) -> Result<()> {
    let document = serde_json::to_string_pretty(document).map_err(|e| unwritable(&e))?;
    print(&(escaped(&document) + "\n"))
}

/// Prints a line of JSON on stdout.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn json_line<T: Serialize>(value: &T) -> Result<()> {
    let line = serde_json::to_string(value).map_err(|e| unwritable(&e))?;
    print(&(escaped(&line) + "\n"))
}

/// Prints JSON on stdout, so that it is read back as it is.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn print_escaped(json: &str) -> Result<()> {
    print(&escaped(json))
}

fn unwritable(e: &serde_json::Error) -> Error {
    Error::bad_input(format!("writing JSON: {e}"))
}

/// Escapes in JSON what [`print`] would replace. JSON itself escapes the lower control characters alone.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match plain(c) == c || c == '\n' {
            true => out.push(c),
            false => out += &format!("\\u{:04x}", u32::from(c)),
        }
    }
    out
}

/// Text as a terminal may have it: what it quotes comes from files and from other machines.
fn for_terminal(text: &str) -> String {
    text.chars().map(|c| if matches!(c, '\n' | '\t') { c } else { plain(c) }).collect()
}

/// Writes to stdout. Exits quietly when the reader has closed the pipe (`| head`).
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(for_terminal(text).as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(|e| Error::io("writing to", Path::new("standard output"), &e)),
    }
}

/// Writes a line to stderr and ignores errors.
pub fn eprint_line(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", for_terminal(line));
}

/// Formats rows under headings, with aligned columns: the first to the left, the others to the right.
pub fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|r| r.get(column).map_or(0, |c| c.chars().count()));
        cells.max().unwrap_or(0).max(headings[column].chars().count())
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut row = String::new();
        for (column, cell) in cells.enumerate() {
            let pad = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            row += &if column == 0 { format!("{cell}{pad}") } else { format!("  {pad}{cell}") };
        }
        out.push_str(row.trim_end());
        out.push('\n');
    };
    line(&mut headings.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    out
}

/// Formats a whole number with separators: `12,345`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a duration: `3.2 s`, `4 min`, `2.5 h`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 6000.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

/// Formats a time as `2026-01-31T12:00:00Z`.
pub(crate) fn utc(moment: SystemTime) -> String {
    let seconds = moment.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years start with March here, so that the leap day comes last; 400 years have 146,097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            ["0", "999", "1,000", "12,345,678"],
            [0, 999, 1000, 12_345_678].map(count).each_ref().map(String::as_str)
        );
        assert_eq!(
            ["0.5 s", "61 s", "2 min", "2.0 h"],
            [0.5, 61.0, 100.0, 7200.0].map(duration).each_ref().map(String::as_str)
        );
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(for_terminal("a\u{1b}[31m\tb\n\u{9b}c"), "a\u{fffd}[31m\tb\n\u{fffd}c");
        let text = "a\u{1b}\u{7f}\u{9b}\u{202e}é";
        let json = escaped(&serde_json::json!({ "x": text }).to_string());
        assert!(json.chars().all(|c| plain(c) == c), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["x"], text);
    }

    #[test]
    fn columns_line_up() {
        let text =
            table(&["name", "n"], &[vec!["a".into(), "10".into()], vec!["long name".into(), "7".into()]]);
        assert_eq!(text, "name        n\na          10\nlong name   7\n");
    }

    #[test]
    fn moments_are_told_in_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }
}
