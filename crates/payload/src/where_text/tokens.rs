//! Tokens of a where text.

use stratann_storage::Result;
use stratann_storage::error::quoted;

use super::wrong;
use crate::number::Number;

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A word: a name of the language or of a field.
    Word(String),
    /// A name in backticks.
    Name(String),
    Text(String),
    Number(Number),
    /// An operator, a bracket, a comma or a dot.
    Sign(&'static str),
    End,
}

/// Longer ones first.
const SIGNS: [&str; 14] = ["<=", ">=", "!=", "<>", "==", "<", ">", "=", "(", ")", "[", "]", ",", "."];

impl Token {
    /// The token for messages.
    pub(super) fn shown(&self) -> String {
        match self {
            Token::Word(word) => quoted(word),
            Token::Name(name) => format!("`{}`", quoted(name)),
            Token::Text(text) => format!("'{}'", quoted(text)),
            Token::Number(number) => number.to_json().to_string(),
            Token::Sign(sign) => (*sign).to_string(),
            Token::End => "the end".to_string(),
        }
    }
}

/// The tokens of a text, each with its first byte. The last one is the end.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let at = text.len() - rest.len();
        let Some(first) = rest.chars().next() else {
            found.push((at, Token::End));
            return Ok(found);
        };
        let (token, after) = match first {
            '\'' | '"' | '`' => {
                let (inside, after) = in_quotes(&rest[1..], first)
                    .ok_or_else(|| wrong(text, at, &format!("this quote is not closed; add {first}")))?;
                (if first == '`' { Token::Name(inside) } else { Token::Text(inside) }, after)
            }
            // A dot that is not followed by a digit separates keys.
            '0'..='9' | '-' | '+' => number(rest).ok_or_else(|| {
                wrong(text, at, "a number such as 5, -0.5 or 1e3 is expected, within the range of a float")
            })?,
            c if is_name(c) => {
                let (word, after) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
                (Token::Word(word.to_string()), after)
            }
            c => {
                let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign)).ok_or_else(|| {
                    let c = stratann_storage::error::plain(c);
                    wrong(
                        text,
                        at,
                        &format!("the character {c} has no meaning here; quote names with backticks"),
                    )
                })?;
                (Token::Sign(sign), &rest[sign.len()..])
            }
        };
        found.push((at, token));
        rest = after;
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '-'
}

/// What stands before the closing quote, with doubled ones made single, and the rest.
fn in_quotes(text: &str, quote: char) -> Option<(String, &str)> {
    let mut inside = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once(quote)?;
        inside.push_str(before);
        match after.strip_prefix(quote) {
            Some(more) => {
                inside.push(quote);
                rest = more;
            }
            None => return Some((inside, after)),
        }
    }
}

/// The number that a text begins with, and the rest.
fn number(text: &str) -> Option<(Token, &str)> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let is_part = |(at, c): (usize, char)| match c {
        '0'..='9' | '.' | 'e' | 'E' => true,
        '-' => at == 0 || unsigned[..at].ends_with(['e', 'E']),
        '+' => unsigned[..at].ends_with(['e', 'E']),
        _ => false,
    };
    let end = unsigned.char_indices().find(|part| !is_part(*part)).map_or(unsigned.len(), |(at, _)| at);
    let (digits, rest) = unsigned.split_at(end);
    if rest.starts_with(is_name) {
        return None;
    }
    let json: serde_json::Number = serde_json::from_str(digits).ok()?;
    Some((Token::Number(Number::of_json(&json)?), rest))
}
