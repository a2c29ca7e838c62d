//! Random payloads, filters, schemas and rewrites of filters, for tests. Equal seeds give equal ones. Other crates have
//! them with the feature `random`.
#![allow(clippy::missing_panics_doc, reason = "what tests make is right")]

use serde_json::{Map, Value, json};

use super::{Condition, Filter, Interval, Match, MinShould};
use crate::date::Date;
use crate::id::IdValue;
use crate::number::Number;
use crate::path::Path;
use crate::scalar::Scalar;
use crate::schema::{IndexKind, Schema};
use crate::value::Payload;

const TEXTS: [&str; 19] = [
    "red",
    "f4000000-0000-4000-8000-000000000000",
    "f47b0000-0000-4000-8000-000000000000",
    "",
    "x",
    "xy",
    "Xy",
    "red fox",
    "Red Fox jumps",
    "fox, red",
    "a\0b",
    "é",
    "2024-05-01",
    "2024-05-01T12:00:00+02:00",
    "2024-05-01T10:00:00Z",
    "2024-05-02 00:00:00",
    "f47ac10b-58cc-4372-a567-0e02b2c3d479",
    "F47AC10B-58CC-4372-A567-0E02B2C3D479",
    "f47ac10b-58cc-4372-a567-0e02b2c3d47",
];
const PATHS: [&str; 14] = [
    "a",
    "b",
    "c",
    "a.x",
    "a[].x",
    "a[]",
    "b[0]",
    "b[0].x",
    "a.x.y",
    "a[].x[].y",
    "c.x",
    "c.y",
    "b[].x",
    "no.such",
];
const DATES: [&str; 4] =
    ["2024-05-01", "2024-05-01T11:00:00+01:00", "2024-05-01T23:59:59-05:00", "1970-01-01T00:00:00Z"];

/// Random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.below(at + 1));
        }
    }

    fn number(&mut self) -> Value {
        match self.below(8) {
            0 => json!(u64::MAX - self.next() % 3),
            1 => json!((1i64 << 53) + self.below(3) as i64),
            2 => json!(self.below(10) as f64 / 2.0),
            3 => json!((1u64 << 53) as f64),
            4 => json!(-(self.below(3) as i64)),
            _ => json!(self.below(6)),
        }
    }

    fn scalar(&mut self) -> Value {
        match self.below(10) {
            0 => Value::Null,
            1 => self.chance(50).into(),
            2..=5 => self.number(),
            _ => self.pick(&TEXTS).into(),
        }
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(10) {
            0..=4 => self.scalar(),
            _ if depth == 0 => self.scalar(),
            5 | 6 => self.alike(),
            7 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => Value::Object(self.object(&["x", "y"], depth - 1)),
        }
    }

    /// An array of values of one type, of which many are equal.
    fn alike(&mut self) -> Value {
        let kind = self.below(3);
        let value = |random: &mut Random| match kind {
            0 => random.pick(&["red", "fox", "red fox", "x"]).into(),
            1 => json!(random.below(5)),
            _ => random.pick(&DATES).into(),
        };
        (0..self.below(4)).map(|_| value(self)).collect()
    }

    fn object(&mut self, keys: &[&str], depth: usize) -> Map<String, Value> {
        let mut map = Map::new();
        for key in keys {
            if self.chance(70) {
                map.insert((*key).to_string(), self.value(depth));
            }
        }
        map
    }

    /// A payload, which may be empty.
    pub fn payload(&mut self) -> Payload {
        if self.chance(10) {
            return Payload::new();
        }
        Payload::from_value(Value::Object(self.object(&["a", "b", "c"], 3))).unwrap()
    }

    /// A schema of some fields with some indexes each.
    pub fn schema(&mut self) -> Schema {
        let mut schema = Schema::new();
        let percent = self.pick(&[0, 30, 70, 100]);
        for path in PATHS {
            if self.chance(percent) {
                for _ in 0..=self.below(6) {
                    let kind = self.pick(&IndexKind::ALL);
                    schema.add(Path::parse(path).unwrap(), kind).unwrap();
                }
            }
        }
        schema
    }

    fn path(&mut self) -> Path {
        let path = if self.chance(50) { self.pick(&["a", "b", "c"]) } else { self.pick(&PATHS) };
        Path::parse(path).unwrap()
    }

    fn wanted(&mut self) -> Scalar {
        loop {
            if let Some(scalar) = Scalar::of_json(&self.scalar()) {
                return scalar;
            }
        }
    }

    fn list(&mut self) -> Vec<Scalar> {
        if self.chance(40) {
            let values = self.alike();
            return values.as_array().unwrap().iter().filter_map(Scalar::of_json).collect();
        }
        (0..self.below(5)).map(|_| self.wanted()).collect()
    }

    fn interval<T: Clone>(&mut self, mut limit: impl FnMut(&mut Random) -> T) -> Interval<T> {
        let mut some = |random: &mut Random| random.chance(40).then(|| limit(random));
        Interval { gt: some(self), gte: some(self), lt: some(self), lte: some(self) }
    }

    fn match_of(&mut self) -> Match {
        let text = self.pick(&[
            "fox",
            "Red FOX",
            "red red",
            "x",
            "",
            "fox red",
            "!",
            "jumps fox",
            "f47",
            "f47ac10b-5",
            "2024",
            "f4",
            "y",
        ]);
        let text = text.to_string();
        match self.below(12) {
            0..=2 => Match::Value(self.wanted()),
            3 | 4 => Match::Any(self.list()),
            5 | 6 => Match::Except(self.list()),
            7 => Match::Text(text),
            8 => Match::TextAny(text),
            9 => Match::Phrase(text),
            10 => Match::Prefix(text),
            _ => Match::Substring(text),
        }
    }

    /// An id: a number below 60, or `id` with one behind.
    pub fn id(&mut self) -> IdValue {
        match self.below(3) {
            0 => IdValue::Text(format!("id{}", self.below(60))),
            _ => IdValue::Number(self.below(60) as u64),
        }
    }

    fn condition(&mut self, depth: usize, in_nested: bool) -> Condition {
        let (path, most) = (self.path(), if depth == 0 { 18 } else { 24 });
        match self.below(most) {
            0..=6 => Condition::Match(path, self.match_of()),
            7 | 8 => Condition::Range(
                path,
                self.interval(|r| Number::of_json(r.number().as_number().unwrap()).unwrap()),
            ),
            9 => {
                let mut range = self.interval(|r| Date::of_text(r.pick(&DATES)).unwrap());
                // Without any limit it would be a range of numbers in JSON.
                range.lt = range.lt.or_else(|| Date::of_text("9999-12-31"));
                Condition::DateRange(path, range)
            }
            10 | 11 => Condition::ValuesCount(path, self.interval(|r| r.below(4) as u64)),
            12 => Condition::Exists(path),
            13 => Condition::IsEmpty(path),
            14 => Condition::IsNull(path),
            15 if !in_nested => Condition::HasId((0..self.below(5)).map(|_| self.id()).collect()),
            16 if !in_nested => Condition::HasVector(self.pick(&["v", "w"]).to_string()),
            15..=17 => Condition::Match(path, self.match_of()),
            18..=20 => {
                let array = Path::parse(self.pick(&["a", "b", "a[].x", "c", "a[]"])).unwrap();
                Condition::Nested(array, self.inner_filter(depth - 1))
            }
            _ => Condition::Filter(self.filter_within(depth - 1, in_nested)),
        }
    }

    /// A filter on an element, whose fields are `x` and `y`.
    fn inner_filter(&mut self, depth: usize) -> Filter {
        let mut filter = self.filter_within(depth, true);
        rename(&mut filter, &mut || Path::parse(self.pick(&["x", "y", "x[]", "x.y"])).unwrap());
        filter
    }

    /// A range whose limits are two conditions, which two values of a field may fulfil.
    fn range_in_two(&mut self) -> [Condition; 2] {
        let path = self.path();
        if self.chance(50) {
            let (low, high) = (Number::of_i64(self.below(5) as i64), Number::of_i64(self.below(5) as i64));
            return [
                Condition::Range(path.clone(), Interval { gte: Some(low), ..Interval::default() }),
                Condition::Range(path, Interval { lt: Some(high), ..Interval::default() }),
            ];
        }
        let mut date = || Date::of_text(self.pick(&DATES));
        [
            Condition::DateRange(path.clone(), Interval { gt: date(), ..Interval::default() }),
            Condition::DateRange(path, Interval { lte: date(), ..Interval::default() }),
        ]
    }

    fn conditions(&mut self, depth: usize, most: usize, in_nested: bool) -> Vec<Condition> {
        (0..self.below(most + 1)).map(|_| self.condition(depth, in_nested)).collect()
    }

    fn filter_within(&mut self, depth: usize, in_nested: bool) -> Filter {
        let mut list = |most| self.conditions(depth, most, in_nested);
        let (mut must, should, must_not) = (list(2), list(2), list(1));
        if self.chance(15) {
            must.extend(self.range_in_two());
        }
        let min_should = self.chance(15).then(|| MinShould {
            conditions: self.conditions(depth, 4, in_nested),
            min_count: self.below(4),
        });
        Filter { must, should, must_not, min_should }
    }

    /// A filter of all conditions.
    pub fn filter(&mut self) -> Filter {
        let depth = self.below(4);
        self.filter_within(depth, false)
    }

    /// A filter in another form that is equal.
    pub fn rewritten(&mut self, filter: &Filter) -> Filter {
        let mut own = filter.clone();
        for list in [&mut own.must, &mut own.should, &mut own.must_not] {
            list.iter_mut().for_each(|condition| *condition = self.rewritten_condition(condition));
            if !list.is_empty() && self.chance(20) {
                list.push(list[self.below(list.len())].clone());
            }
            self.shuffle(list);
        }
        if let Some(least) = &mut own.min_should {
            least
                .conditions
                .iter_mut()
                .for_each(|condition| *condition = self.rewritten_condition(condition));
            self.shuffle(&mut least.conditions);
        }
        match self.below(7) {
            0 => Filter::all(vec![Condition::Filter(own)]),
            1 if !own.should.is_empty() => {
                let should = std::mem::take(&mut own.should);
                own.must.push(Condition::Filter(Filter::any(should)));
                own
            }
            2 if !own.should.is_empty() && own.min_should.is_none() => {
                own.min_should =
                    Some(MinShould { conditions: std::mem::take(&mut own.should), min_count: 1 });
                own
            }
            3 if !own.must_not.is_empty() => {
                own.must_not = vec![Condition::Filter(Filter::any(own.must_not))];
                own
            }
            4 => {
                // All of these: not one of their opposites.
                let opposite = |condition| Condition::Filter(Filter::none(vec![condition]));
                let opposites: Vec<Condition> = own.must.drain(..).map(opposite).collect();
                own.must_not.extend(opposites);
                own
            }
            5 if own.min_should.is_none() => {
                let conditions = own.must.drain(..).collect::<Vec<_>>();
                own.min_should = Some(MinShould { min_count: conditions.len(), conditions });
                own
            }
            _ => own,
        }
    }

    fn rewritten_condition(&mut self, condition: &Condition) -> Condition {
        let own = match condition {
            Condition::Filter(filter) => Condition::Filter(self.rewritten(filter)),
            Condition::Nested(path, filter) => Condition::Nested(path.clone(), self.rewritten(filter)),
            Condition::Match(path, Match::Value(value)) if self.chance(50) => {
                Condition::Match(path.clone(), Match::Any(vec![value.clone(); 1 + self.below(2)]))
            }
            Condition::Match(path, Match::Any(values)) if self.chance(50) && !values.is_empty() => {
                let one = |value: &Scalar| Condition::Match(path.clone(), Match::Value(value.clone()));
                Condition::Filter(Filter::any(values.iter().map(one).collect()))
            }
            Condition::Match(path, Match::Any(values)) => {
                let mut values = values.clone();
                self.shuffle(&mut values);
                Condition::Match(path.clone(), Match::Any(values))
            }
            Condition::HasId(ids) if ids.len() > 1 && self.chance(50) => {
                let one = |id: &IdValue| Condition::HasId(vec![id.clone()]);
                Condition::Filter(Filter::any(ids.iter().map(one).collect()))
            }
            Condition::ValuesCount(path, range) => {
                let above = range.gt.map(|gt| gt + 1);
                let gte = above.into_iter().chain(range.gte).max();
                Condition::ValuesCount(path.clone(), Interval { gt: None, gte, ..range.clone() })
            }
            other => other.clone(),
        };
        match self.below(8) {
            0 => Condition::Filter(Filter::all(vec![own])),
            1 => Condition::Filter(Filter::any(vec![own])),
            2 => {
                let inner = Condition::Filter(Filter::none(vec![own]));
                Condition::Filter(Filter::none(vec![inner]))
            }
            _ => own,
        }
    }
}

/// Gives the conditions of a filter other paths; those of inner nested filters stay.
fn rename(filter: &mut Filter, path: &mut dyn FnMut() -> Path) {
    let least = filter.min_should.iter_mut().flat_map(|least| &mut least.conditions);
    let all = filter.must.iter_mut().chain(&mut filter.should).chain(&mut filter.must_not).chain(least);
    for condition in all {
        match condition {
            Condition::Match(own, _)
            | Condition::Range(own, _)
            | Condition::DateRange(own, _)
            | Condition::ValuesCount(own, _)
            | Condition::Exists(own)
            | Condition::IsEmpty(own)
            | Condition::IsNull(own)
            | Condition::Nested(own, _) => *own = path(),
            Condition::Filter(inner) => rename(inner, path),
            Condition::HasId(_) | Condition::HasVector(_) => {}
        }
    }
}
