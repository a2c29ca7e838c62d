//! Ids that a request names, of rows that its queries may return, or may not.

use std::fmt;

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, SeqAccess, Visitor};
use stratann_engine::dataset::IdLists;
use stratann_engine::search::Naming;
use stratann_storage::budget::size;

use crate::request::shortened;

/// The fields of a request that name ids.
pub(crate) const FIELDS: [&str; 2] = ["only", "without"];

/// Ids that a request names.
#[derive(Debug)]
pub(crate) struct NamedIds {
    pub(crate) naming: Naming,
    /// One list, or one for each query.
    pub(crate) lists: IdLists,
    pub(crate) is_each: bool,
}

/// Reserves memory before it is allocated. Returns false where there is none.
pub(crate) type Reserve<'a> = dyn FnMut(u64) -> bool + 'a;

impl NamedIds {
    /// Reads the value of a field in JSON, whose ids may take `left` bytes.
    ///
    /// # Errors
    /// One line for the client.
    pub(crate) fn from_json(
        naming: Naming,
        text: &str,
        left: u64,
        reserve: &mut Reserve<'_>,
    ) -> Result<NamedIds, String> {
        // Counted before they are read, so that no list grows.
        let bytes_of = |wanted: u8| text.bytes().filter(|&b| b == wanted).count();
        let (ids, lists) = (bytes_of(b',') + 1, bytes_of(b'[') + 1);
        let lists = reserved((lists, ids), naming, left, reserve)?;
        let mut reading = Reading { naming, lists, inner: 0, outer: false, is_inner: false, wrong: None };
        let read = serde_json::Deserializer::from_str(text).deserialize_any(Lists(&mut reading));
        if let Some(wrong) = reading.wrong {
            return Err(wrong);
        }
        let name = name(naming);
        let forms = "give [1, 2] for all queries, or [[1], [2]], a list for each";
        read.map_err(|_| format!("{name} is no list of ids; {forms}"))?;
        let Reading { mut lists, inner, outer, .. } = reading;
        if inner > 0 && outer {
            return Err(format!("{name} has ids beside lists of ids; {forms}"));
        }
        if inner == 0 {
            lists.end();
        }
        Ok(NamedIds { naming, lists, is_each: inner > 0 })
    }

    /// Reads the value of a parameter of a URL: ids with commas between them, for all queries.
    ///
    /// # Errors
    /// As [`NamedIds::from_json`].
    pub(crate) fn from_url(naming: Naming, text: &str) -> Result<NamedIds, String> {
        let mut lists = IdLists::default();
        for word in text.split(',').filter(|word| !word.is_empty()) {
            lists.push(word.parse().map_err(|_| not_an_id(naming, None, word))?);
        }
        lists.end();
        Ok(NamedIds { naming, lists, is_each: false })
    }

    /// Refuses lists that are not one for each query.
    ///
    /// # Errors
    /// One line for the client.
    pub(crate) fn check(&self, queries: usize) -> Result<(), String> {
        match self.lists.count() {
            lists if self.is_each && lists != queries => Err(format!(
                "{} has {lists} lists of ids for {queries} queries; give one for each, or one list of ids for all",
                name(self.naming)
            )),
            _ => Ok(()),
        }
    }

    /// Memory, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.lists.bytes()
    }
}

fn name(naming: Naming) -> &'static str {
    match naming {
        Naming::Only => FIELDS[0],
        Naming::Without => FIELDS[1],
    }
}

/// Room for so many lists and ids.
fn reserved(
    (lists, ids): (usize, usize),
    naming: Naming,
    left: u64,
    reserve: &mut Reserve<'_>,
) -> Result<IdLists, String> {
    let bytes = (ids * size_of::<u64>() + lists * size_of::<usize>()) as u64;
    if bytes > left {
        return Err(format!(
            "{} has {ids} ids, which take {}, and this server has {} for them beside the body; name fewer, or start it \
             with a larger --http-memory",
            name(naming),
            size(bytes),
            size(left)
        ));
    }
    match reserve(bytes) {
        true => Ok(IdLists::with_capacity(lists, ids)),
        false => Err("the server has no memory left for these ids".into()),
    }
}

fn not_an_id(naming: Naming, query: Option<usize>, what: impl fmt::Display) -> String {
    let of = query.map_or(String::new(), |query| format!(" of query {query}"));
    let what = shortened(&what.to_string());
    format!(
        "{}{of}: {what} is no id; give whole numbers from 0 to 2^64 - 1, as numbers or as strings",
        name(naming)
    )
}

/// Lists as they are read.
struct Reading {
    naming: Naming,
    lists: IdLists,
    /// Lists that have ended within the outer one, and whether that has ids of its own.
    inner: usize,
    outer: bool,
    is_inner: bool,
    wrong: Option<String>,
}

impl Reading {
    fn push(&mut self, id: u64) {
        self.outer |= !self.is_inner;
        self.lists.push(id);
    }

    /// Notes the first value that is no id, and ends the reading.
    fn refuse<E: de::Error>(&mut self, what: impl fmt::Display) -> E {
        let query = self.is_inner.then_some(self.inner);
        self.wrong.get_or_insert_with(|| not_an_id(self.naming, query, what));
        E::custom("no id")
    }
}

/// A list of ids, or of lists of ids.
struct Lists<'a>(&'a mut Reading);

impl<'de> Visitor<'de> for Lists<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of ids")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Element(self.0))?.is_some() {}
        Ok(())
    }
}

/// An element of a list: an id, or in the outer list a list of ids.
struct Element<'a>(&'a mut Reading);

impl<'de> DeserializeSeed<'de> for Element<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Element<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id")
    }

    fn visit_u64<E: de::Error>(self, id: u64) -> Result<(), E> {
        self.0.push(id);
        Ok(())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        Err(self.0.refuse(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<(), E> {
        Err(self.0.refuse(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        match text.parse() {
            Ok(id) => self.visit_u64(id),
            Err(_) => Err(self.0.refuse(format!("{:?}", shortened(text)))),
        }
    }

    fn visit_bool<E: de::Error>(self, flag: bool) -> Result<(), E> {
        Err(self.0.refuse(format!("{flag}, of a mask?,")))
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Err(self.0.refuse("null"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        if self.0.is_inner {
            return Err(self.0.refuse("a list within a list"));
        }
        self.0.is_inner = true;
        while seq.next_element_seed(Element(self.0))?.is_some() {}
        self.0.is_inner = false;
        self.0.inner += 1;
        self.0.lists.end();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<NamedIds, String> {
        NamedIds::from_json(Naming::Only, text, 1 << 20, &mut |_| true)
    }

    fn lists(named: &NamedIds) -> Vec<Vec<u64>> {
        named.lists.iter().map(<[u64]>::to_vec).collect()
    }

    #[test]
    fn ids_are_exact_as_numbers_and_as_strings() {
        let most = u64::MAX;
        let shared =
            read(&format!(r#"[9007199254740993, "9007199254740993", {most}, "{most}", 0]"#)).unwrap();
        assert_eq!(lists(&shared), [[9007199254740993, 9007199254740993, most, most, 0]]);
        assert!(!shared.is_each);
        let each = read(r#"[[3], [], ["2", 1]]"#).unwrap();
        assert_eq!(lists(&each), [vec![3], vec![], vec![2, 1]]);
        assert!(each.is_each && each.check(3).is_ok());
        assert!(each.check(2).unwrap_err().contains("3 lists of ids for 2 queries"));
        let none = read("[]").unwrap();
        assert!(lists(&none) == [[0u64; 0]] && none.check(7).is_ok());
        let url = NamedIds::from_url(Naming::Without, "7,18446744073709551615,,3").unwrap();
        assert_eq!(lists(&url), [[7, most, 3]]);
    }

    #[test]
    fn what_is_no_id_is_said() {
        for (text, said) in [
            ("[-2]", "only: -2 is no id"),
            ("[1, 2.5]", "only: 2.5 is no id"),
            ("[1.0]", "is no id"),
            ("[18446744073709551616]", "is no id"),
            (r#"["1", "18446744073709551616"]"#, "18446744073709551616"),
            (r#"["x"]"#, "is no id"),
            (r#"[" 1"]"#, "is no id"),
            ("[null]", "null is no id"),
            ("[true, false]", "true, of a mask?, is no id"),
            ("[[1], [2, -7]]", "only of query 1: -7 is no id"),
            ("[[[1]]]", "only of query 0: a list within a list"),
            ("[1, [2]]", "ids beside lists"),
            ("[[2], 1]", "ids beside lists"),
            ("7", "only is no list of ids"),
            (r#""7""#, "only is no list of ids"),
            (r#"{"1": 2}"#, "only is no list of ids"),
            (r#"[{"1": 2}]"#, "only is no list of ids"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(said) && !error.contains('\n'), "{text}: {error}");
        }
        for text in ["-1", "1,x", "1.5"] {
            assert!(
                NamedIds::from_url(Naming::Without, text).unwrap_err().starts_with("without: "),
                "{text}"
            );
        }
    }

    #[test]
    fn ids_are_reserved_before_they_are_read() {
        let mut reserved = 0;
        let text = format!("[{}]", vec!["7"; 1000].join(","));
        let mut reserve = |bytes| {
            reserved += bytes;
            true
        };
        let named = NamedIds::from_json(Naming::Only, &text, 1 << 20, &mut reserve).unwrap();
        assert!(named.bytes() <= reserved && reserved < 2 * named.bytes());
        let refused = NamedIds::from_json(Naming::Only, &text, 1 << 20, &mut |_| false);
        assert!(refused.unwrap_err().contains("no memory left"));
        let many = NamedIds::from_json(Naming::Without, &text, 1000, &mut |_| true).unwrap_err();
        assert!(many.contains("without has 1000 ids") && many.contains("--http-memory"), "{many}");
    }
}
