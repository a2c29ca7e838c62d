//! A filter as a line of text, in the manner of SQL: `price < 50 and brand = 'x'`.
//!
//! | text | condition |
//! |---|---|
//! | `a = 5`, `a in (1, 'x')` | match value, any |
//! | `a != 5`, `a not in (1, 2)` | match except: a value is there, and is another one |
//! | `a < 5`, `<=`, `>`, `>=`, `a between 1 and 5` | range, with numbers or with `date '2024-05-01'` |
//! | `a like 'x%'`, `a like '%x%'` | match prefix, substring; `\%`, `\_` and `\\` stand for themselves |
//! | `a match 'some words'`, `a match any 'some words'`, `a phrase 'some words'` | match text, text_any, phrase |
//! | `a is null`, `is_empty(a)` | is_empty: no value, as in SQL |
//! | `is_null(a)`, `exists(a)` | is_null, exists |
//! | `count(a) >= 2` | values_count |
//! | `nested(a, b = 1 and c = 2)` | nested |
//! | `has_id(7, 'x')`, `has_vector('image')` | has_id, has_vector |
//! | `at_least(2, a = 1, b = 1, c = 1)` | min_should |
//! | `… and …`, `… or …`, `not …`, `(…)` | must, should, must_not |
//!
//! Fields are [paths](crate::path); names with other characters than letters, digits, `_` and `-`, and those that are
//! words of this language, are written in backticks: `` `first name`.`a.b` ``. Strings are in `'…'` or `"…"`, where a
//! doubled quote is a quote. Words of the language may have either case.
//!
//! `not in`, `!=`, `not between`, `not like` and `not match` hold where the field has a value, as in SQL. `not (a = 5)`
//! holds wherever `a = 5` does not, also where the field is missing.

mod parser;
#[cfg(test)]
mod tests;
mod tokens;

use stratann_storage::{Error, Result};

use crate::filter::Filter;

/// Longest text, in bytes.
pub const BYTES_MAX: usize = 4 << 20;
/// Most levels of parentheses, `not` and functions.
pub const DEPTH_MAX: usize = crate::filter::DEPTH_MAX / 3;

impl Filter {
    /// Reads a filter from a line of text, as the module [`where_text`](mod@crate::where_text) has it.
    ///
    /// # Errors
    /// `BadInput` with the column, in characters from 1 on, and what was expected there.
    pub fn from_where(text: &str) -> Result<Filter> {
        if text.len() > BYTES_MAX {
            return Err(Error::bad_input(format!(
                "the where text has {} bytes, at most {BYTES_MAX} are possible; give a filter in JSON",
                text.len()
            )));
        }
        parser::parse(text)
    }
}

/// The error at a byte of a text.
fn wrong(text: &str, at: usize, why: &str) -> Error {
    let column = text.get(..at).map_or(0, |before| before.chars().count()) + 1;
    Error::bad_input(format!("the where text is wrong at column {column}: {why}"))
}
