//! Parses a where text.

use stratann_storage::Result;

use super::tokens::{Token, tokens};
use super::{DEPTH_MAX, wrong};
use crate::date::Date;
use crate::filter::{CONDITIONS_MAX, Condition, Filter, Interval, Match, MinShould};
use crate::id::IdValue;
use crate::number::Number;
use crate::path::Path;
use crate::scalar::Scalar;

const OPERATORS: &str = "=, !=, <, <=, >, >=, in, between, like, match, phrase, is null or not";
const FUNCTIONS: [&str; 8] =
    ["exists", "is_empty", "is_null", "has_id", "has_vector", "nested", "count", "at_least"];
/// Words that no field may have without backticks.
const WORDS: [&str; 11] =
    ["and", "or", "not", "in", "between", "like", "match", "phrase", "is", "null", "any"];

/// Parses a text.
pub(super) fn parse(text: &str) -> Result<Filter> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, depth: 0, conditions: 0 };
    let condition = parser.any_of()?;
    parser.demand_end()?;
    Ok(match condition {
        Condition::Filter(filter) => filter,
        other => Filter::all(vec![other]),
    })
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    conditions: usize,
}

/// A literal.
enum Literal {
    Scalar(Scalar),
    Date(Date),
}

impl Parser<'_> {
    /// The token that comes next; after the end comes the end.
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    /// The error at the next token.
    fn expected<T>(&self, what: &str) -> Result<T> {
        let at = self.tokens.get(self.next).map_or(self.text.len(), |(at, _)| *at);
        Err(wrong(self.text, at, &format!("{what} is expected, not {}", self.peek().shown())))
    }

    fn demand_end(&self) -> Result<()> {
        if *self.peek() == Token::End { Ok(()) } else { self.expected("and, or, or the end") }
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Word(own) if own.eq_ignore_ascii_case(word))
    }

    fn take_word(&mut self, word: &str) -> bool {
        let is = self.is_word(word);
        self.next += usize::from(is);
        is
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        let is = matches!(self.peek(), Token::Sign(own) if *own == sign);
        self.next += usize::from(is);
        is
    }

    fn sign(&mut self, sign: &str) -> Result<()> {
        if self.take_sign(sign) { Ok(()) } else { self.expected(sign) }
    }

    /// Reads what is one level deeper.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.expected(&format!(
                "at most {DEPTH_MAX} levels of parentheses, not and functions; a flatter text"
            ));
        }
        let found = read(self);
        self.depth -= 1;
        found
    }

    fn any_of(&mut self) -> Result<Condition> {
        let mut parts = vec![self.all_of()?];
        while self.take_word("or") {
            parts.push(self.all_of()?);
        }
        Ok(single(parts, Filter::any))
    }

    fn all_of(&mut self) -> Result<Condition> {
        let mut parts = vec![self.one()?];
        while self.take_word("and") {
            parts.push(self.one()?);
        }
        Ok(single(parts, Filter::all))
    }

    fn one(&mut self) -> Result<Condition> {
        self.conditions += 1;
        if self.conditions > CONDITIONS_MAX {
            return self.expected(&format!("at most {CONDITIONS_MAX} conditions; in with a list of values"));
        }
        if self.take_word("not") {
            return Ok(Condition::Filter(Filter::none(vec![self.deeper(Self::one)?])));
        }
        if self.take_sign("(") {
            let inside = self.deeper(Self::any_of)?;
            return if self.take_sign(")") { Ok(inside) } else { self.expected("and, or or )") };
        }
        if let (Token::Word(word), Some((_, Token::Sign("(")))) =
            (self.peek(), self.tokens.get(self.next + 1))
        {
            let name = word.to_ascii_lowercase();
            if !FUNCTIONS.contains(&name.as_str()) {
                return self.expected(&format!("a function ({})", FUNCTIONS.join(", ")));
            }
            self.next += 2;
            return self.deeper(|parser| parser.function(&name));
        }
        let path = self.path()?;
        self.compared(path)
    }

    /// What stands behind the name of a function and its parenthesis.
    fn function(&mut self, name: &str) -> Result<Condition> {
        let condition = match name {
            "exists" => Condition::Exists(self.path()?),
            "is_empty" => Condition::IsEmpty(self.path()?),
            "is_null" => Condition::IsNull(self.path()?),
            "has_vector" => match self.take() {
                Token::Text(name) => Condition::HasVector(name),
                _ => return self.back("the name of a vector in quotes"),
            },
            "has_id" => {
                let mut ids = vec![self.id()?];
                while self.take_sign(",") {
                    ids.push(self.id()?);
                }
                Condition::HasId(ids)
            }
            "nested" => {
                let path = self.path()?;
                self.sign(",")?;
                let start = self.next;
                let filter = match self.any_of()? {
                    Condition::Filter(filter) => filter,
                    other => Filter::all(vec![other]),
                };
                if crate::filter::names_points(&filter) {
                    self.next = start;
                    return self
                        .expected("a condition on fields; has_id and has_vector stand beside nested, which");
                }
                Condition::Nested(path, filter)
            }
            "count" => {
                let path = self.path()?;
                self.sign(")")?;
                return self.counted(path);
            }
            _ => {
                let min_count = self.whole_number()?;
                let mut conditions = Vec::new();
                while self.take_sign(",") {
                    conditions.push(self.any_of()?);
                }
                let min_count = usize::try_from(min_count).unwrap_or(usize::MAX);
                let min_should = Some(MinShould { conditions, min_count });
                Condition::Filter(Filter { min_should, ..Filter::default() })
            }
        };
        if self.take_sign(")") { Ok(condition) } else { self.expected(")") }
    }

    /// The error at the token that was taken last.
    fn back<T>(&mut self, what: &str) -> Result<T> {
        self.next -= 1;
        self.expected(what)
    }

    fn id(&mut self) -> Result<IdValue> {
        let id = match self.take() {
            Token::Number(number) => number.to_json().as_u64().map(IdValue::Number),
            Token::Text(text) => IdValue::of_text(&text),
            _ => None,
        };
        id.map_or_else(|| self.back("an id: a number from 0 on, or 1 to 255 bytes in quotes"), Ok)
    }

    fn whole_number(&mut self) -> Result<u64> {
        let number = match self.take() {
            Token::Number(number) => number.to_json().as_u64(),
            _ => None,
        };
        number.map_or_else(|| self.back("a whole number from 0 on"), Ok)
    }

    fn path(&mut self) -> Result<Path> {
        let start = self.next;
        let mut text = self.key()?;
        loop {
            if self.take_sign(".") {
                text.push('.');
                text.push_str(&self.key()?);
            } else if self.take_sign("[") {
                text.push('[');
                if !self.take_sign("]") {
                    text.push_str(&self.whole_number()?.to_string());
                    self.sign("]")?;
                }
                text.push(']');
            } else {
                break;
            }
        }
        Path::parse(&text).or_else(|e| {
            self.next = start;
            self.expected(&format!("another field ({})", e.message))
        })
    }

    /// A key, as a path has it in quotes.
    fn key(&mut self) -> Result<String> {
        let key = match self.take() {
            Token::Name(name) => name,
            Token::Word(word) if !WORDS.contains(&word.to_ascii_lowercase().as_str()) => word,
            Token::Word(_) => return self.back("a field (in backticks where it is a word of the language)"),
            _ => return self.back("a field"),
        };
        Ok(format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\"")))
    }

    /// What a field is compared with.
    fn compared(&mut self, path: Path) -> Result<Condition> {
        if let Token::Sign(sign @ ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=")) = self.peek() {
            let sign = *sign;
            self.next += 1;
            return self.signed(path, sign);
        }
        if self.take_word("is") {
            let is_not = self.take_word("not");
            if !self.take_word("null") {
                return self.expected("null or not null");
            }
            let empty = Condition::IsEmpty(path);
            return Ok(if is_not { Condition::Filter(Filter::none(vec![empty])) } else { empty });
        }
        let is_not = self.take_word("not");
        if self.take_word("in") {
            let values = self.list()?;
            return Ok(Condition::Match(
                path,
                if is_not { Match::Except(values) } else { Match::Any(values) },
            ));
        }
        let condition = if self.take_word("between") {
            let low = self.limit()?;
            if !self.take_word("and") {
                return self.expected("and");
            }
            let start = self.next;
            match (low, self.limit()?) {
                (Limit::Number(low), Limit::Number(high)) => {
                    Condition::Range(path.clone(), Interval::between(low, high))
                }
                (Limit::Date(low), Limit::Date(high)) => {
                    Condition::DateRange(path.clone(), Interval::between(low, high))
                }
                _ => {
                    self.next = start;
                    return self.expected("two numbers or two dates; another limit");
                }
            }
        } else if self.take_word("like") {
            Condition::Match(path.clone(), self.pattern()?)
        } else if self.take_word("match") {
            let any = self.take_word("any");
            let text = self.quoted_text()?;
            Condition::Match(path.clone(), if any { Match::TextAny(text) } else { Match::Text(text) })
        } else if self.take_word("phrase") {
            Condition::Match(path.clone(), Match::Phrase(self.quoted_text()?))
        } else {
            return self.expected(if is_not { "in, between, like, match or phrase" } else { OPERATORS });
        };
        Ok(if is_not { opposite(path, condition) } else { condition })
    }

    /// What stands behind an operator.
    fn signed(&mut self, path: Path, sign: &str) -> Result<Condition> {
        let is_equal = matches!(sign, "=" | "==");
        if is_equal || matches!(sign, "!=" | "<>") {
            return Ok(match self.literal()? {
                Literal::Scalar(value) if is_equal => Condition::Match(path, Match::Value(value)),
                Literal::Scalar(value) => Condition::Match(path, Match::Except(vec![value])),
                Literal::Date(date) => {
                    let same = Condition::DateRange(path.clone(), Interval::between(date.clone(), date));
                    if is_equal { same } else { opposite(path, same) }
                }
            });
        }
        Ok(match self.limit()? {
            Limit::Number(number) => Condition::Range(path, beyond(sign, number)),
            Limit::Date(date) => Condition::DateRange(path, beyond(sign, date)),
        })
    }

    fn counted(&mut self, path: Path) -> Result<Condition> {
        let sign = match self.take() {
            Token::Sign(sign @ ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=")) => sign,
            _ => return self.back("=, !=, <, <=, > or >="),
        };
        let count = self.whole_number()?;
        Ok(match sign {
            "=" | "==" => Condition::ValuesCount(path, Interval::between(count, count)),
            "!=" | "<>" => {
                let same = Condition::ValuesCount(path, Interval::between(count, count));
                Condition::Filter(Filter::none(vec![same]))
            }
            sign => Condition::ValuesCount(path, beyond(sign, count)),
        })
    }

    fn list(&mut self) -> Result<Vec<Scalar>> {
        self.sign("(")?;
        let mut values = Vec::new();
        loop {
            match self.literal()? {
                Literal::Scalar(value) => values.push(value),
                Literal::Date(_) => {
                    return self.back("a string, number or boolean; dates are compared by = and between,");
                }
            }
            if self.take_sign(")") {
                return Ok(values);
            }
            if !self.take_sign(",") {
                return self.expected(", or )");
            }
        }
    }

    fn literal(&mut self) -> Result<Literal> {
        if self.is_word("date") {
            return self.date().map(Literal::Date);
        }
        let value = match self.take() {
            Token::Text(text) => Scalar::Text(text),
            Token::Number(number) => Scalar::Number(number),
            Token::Word(word) if word.eq_ignore_ascii_case("true") => Scalar::Bool(true),
            Token::Word(word) if word.eq_ignore_ascii_case("false") => Scalar::Bool(false),
            Token::Word(word) if word.eq_ignore_ascii_case("null") => {
                return self.back("a value (write `is null` to find fields without one)");
            }
            _ => return self.back("a value: 'text', a number, true, false or date '…'"),
        };
        Ok(Literal::Scalar(value))
    }

    fn date(&mut self) -> Result<Date> {
        self.next += 1;
        let date = match self.take() {
            Token::Text(text) => Date::of_text(&text),
            _ => None,
        };
        date.map_or_else(|| self.back("a date such as '2024-05-01' or '2024-05-01T12:00:00+02:00'"), Ok)
    }

    /// A number or a date.
    fn limit(&mut self) -> Result<Limit> {
        match self.literal()? {
            Literal::Date(date) => Ok(Limit::Date(date)),
            Literal::Scalar(Scalar::Number(number)) => Ok(Limit::Number(number)),
            Literal::Scalar(_) => self.back("a number, or a date as in date '2024-05-01',"),
        }
    }

    fn quoted_text(&mut self) -> Result<String> {
        match self.take() {
            Token::Text(text) => Ok(text),
            _ => self.back("a text in quotes"),
        }
    }

    /// A pattern: text with % at the end, or at both ends.
    fn pattern(&mut self) -> Result<Match> {
        let text = self.quoted_text()?;
        let (mut plain, mut percents, mut chars) = (String::new(), Vec::new(), text.chars());
        while let Some(c) = chars.next() {
            match c {
                '%' => percents.push(plain.len()),
                '_' => {
                    return self.back(
                        "\\_ in place of _, which stands for any character and is not possible; a pattern",
                    );
                }
                '\\' => match chars.next() {
                    Some(c @ ('%' | '_' | '\\')) => plain.push(c),
                    _ => return self.back("\\\\ in place of a single backslash; a pattern"),
                },
                c => plain.push(c),
            }
        }
        let end = plain.len();
        match percents[..] {
            [] => Ok(Match::Value(Scalar::Text(plain))),
            [at] if at == end => Ok(Match::Prefix(plain)),
            [0, at] if at == end => Ok(Match::Substring(plain)),
            _ => self.back("% at the end, or at both ends, of a pattern"),
        }
    }
}

/// A limit of an interval.
enum Limit {
    Number(Number),
    Date(Date),
}

/// The interval on one side of a limit.
fn beyond<T>(sign: &str, limit: T) -> Interval<T> {
    let limit = Some(limit);
    match sign {
        "<" => Interval { lt: limit, ..Interval::default() },
        "<=" => Interval { lte: limit, ..Interval::default() },
        ">" => Interval { gt: limit, ..Interval::default() },
        _ => Interval { gte: limit, ..Interval::default() },
    }
}

/// The field has a value, and the condition does not hold.
fn opposite(path: Path, condition: Condition) -> Condition {
    let has_value = Condition::Match(path, Match::Except(Vec::new()));
    Condition::Filter(Filter { must: vec![has_value], must_not: vec![condition], ..Filter::default() })
}

/// The only part, or a filter of several.
fn single(mut parts: Vec<Condition>, several: fn(Vec<Condition>) -> Filter) -> Condition {
    match parts.pop() {
        Some(part) if parts.is_empty() => part,
        last => {
            parts.extend(last);
            Condition::Filter(several(parts))
        }
    }
}
