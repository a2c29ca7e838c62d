//! Dates: strings of RFC 3339 with any offset, and dates alone, as microseconds since 1970 in UTC.

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime};
use serde_json::Value;
use stratann_storage::error::quoted;
use stratann_storage::{Error, Result};

/// Forms without an offset, which are in UTC.
const LOCAL_FORMS: [&str; 4] =
    ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M"];
/// Characters of a date without a time.
const DATE_CHARS: usize = 10;
/// Longest date, in bytes.
const BYTES_MAX: usize = 64;

/// A date, with the text that it was read from. Equal instants are equal.
#[derive(Clone, Debug)]
pub struct Date {
    /// Microseconds since 1970-01-01T00:00:00Z; smaller parts are cut off.
    pub micros: i64,
    text: String,
}

impl Date {
    /// Reads a date; see [`micros_of`].
    pub fn of_text(text: &str) -> Option<Date> {
        micros_of(text).map(|micros| Date { micros, text: text.to_string() })
    }

    /// The text that it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Reads a date of a filter, which `place` names in the error.
    pub(crate) fn demanded(value: &Value, place: &str) -> Result<Date> {
        let text = value.as_str().unwrap_or_default();
        Date::of_text(text).ok_or_else(|| {
            let shown = quoted(&value.to_string());
            let forms =
                "RFC 3339 such as \"2024-05-01T12:00:00+02:00\", or a date alone such as \"2024-05-01\"";
            Error::bad_input(format!("{place} is {shown}, which is no date; give {forms}"))
        })
    }
}

impl PartialEq for Date {
    fn eq(&self, other: &Date) -> bool {
        self.micros == other.micros
    }
}

impl Eq for Date {}

/// Microseconds since 1970 in UTC of a date: RFC 3339 with any offset; a date and a time without an offset, which is
/// UTC; a date alone, which is its midnight in UTC. `None` for another text.
pub fn micros_of(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let head = bytes.get(..DATE_CHARS)?;
    let is_date = head.iter().enumerate().all(|(at, byte)| match at {
        4 | 7 => *byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    if !is_date || bytes.len() > BYTES_MAX {
        return None;
    }
    if bytes.len() == DATE_CHARS {
        let date = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
        return Some(date.and_time(NaiveTime::MIN).and_utc().timestamp_micros());
    }
    if let Ok(date) = DateTime::parse_from_rfc3339(text) {
        return Some(date.timestamp_micros());
    }
    let local = LOCAL_FORMS.iter().find_map(|form| NaiveDateTime::parse_from_str(text, form).ok())?;
    Some(local.and_utc().timestamp_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_names_the_same_instant() {
        let noon = micros_of("2024-05-01T12:00:00Z").unwrap();
        assert_eq!(noon, 1_714_564_800_000_000);
        for minutes in -(23 * 60 + 59)..=23 * 60 + 59i64 {
            let local = DateTime::from_timestamp_micros(noon + minutes * 60_000_000).unwrap();
            let sign = if minutes < 0 { '-' } else { '+' };
            let offset = format!("{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60);
            let text = format!("{}{offset}", local.format("%Y-%m-%dT%H:%M:%S"));
            assert_eq!(micros_of(&text), Some(noon), "{text}");
        }
    }

    #[test]
    fn forms_without_an_offset_are_in_utc() {
        let day = micros_of("2024-02-29").unwrap();
        for text in ["2024-02-29T00:00:00Z", "2024-02-29 00:00:00", "2024-02-29T00:00", "2024-02-29 00:00"] {
            assert_eq!(micros_of(text), Some(day), "{text}");
        }
        assert_eq!(micros_of("2024-02-29T00:00:00.123456789Z"), Some(day + 123_456));
        assert_eq!(micros_of("2024-02-29T00:00:00.5"), Some(day + 500_000));
        assert_eq!(micros_of("1969-12-31T23:59:59.999999Z"), Some(-1));
        assert_eq!(micros_of("2016-12-31T23:59:60Z"), micros_of("2017-01-01T00:00:00Z"));
        assert!(micros_of("0000-01-01") < micros_of("9999-12-31T23:59:59Z"));
    }

    #[test]
    fn other_texts_are_no_dates() {
        let bad = [
            "",
            "2024",
            "2023-02-29",
            "2024-13-01",
            "2024-1-01x",
            "2024-05-01T25:00:00Z",
            "2024-05-01T12:00:00+25:00",
            "12024-05-01",
            "-024-05-01",
            "2024-05-01junk",
            "2024-05-01T12:00:00Zjunk",
            "é024-05-01",
            "2024-05-01\0",
        ];
        for text in bad {
            assert_eq!(micros_of(text), None, "{text}");
        }
        assert_eq!(micros_of(&format!("2024-05-01T12:00:00.{}Z", "0".repeat(100))), None);
    }
}
