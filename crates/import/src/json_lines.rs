//! Points as lines of JSON: an object for each, with the fields that are columns of other files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;
use serde_json::{Map, Value};
use stratann_engine::dataset::check_row;
use stratann_kernel::DType;
use stratann_payload::value::BYTES_MAX;
use stratann_payload::{IdValue, Payload};
use stratann_storage::{Error, Result, input};

use crate::cast::{self, Component};
use crate::file::{
    BATCH_BYTES, Columns, FileRows, Named, PAYLOAD, PayloadColumns, Roles, Rows, Total, VectorColumn, Wanted,
    has_names, rows_at_once,
};
use crate::lines::Lines;

/// Longest line: a payload, and 16 vectors of 4,096 components with room to spare.
const LINE_BYTES_MAX: usize = BYTES_MAX + (2 << 20);
/// The field whose object has vectors by name.
const BY_NAME: &str = "vectors";

/// The fields of a line.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Fields of ids and vectors, by the first line.
#[derive(Clone, Debug)]
struct Names {
    ids: Option<String>,
    /// For each name of vectors.
    vectors: Vec<VectorField>,
    /// Whether vectors have names, so that a line may lack them.
    has_names: bool,
    payload: PayloadColumns,
}

/// A line.
struct Line<'a> {
    fields: Fields<'a>,
    /// Vectors by name, where they have names and the line has an object of them.
    by_name: Option<Fields<'a>>,
}

/// Where the vectors of a name are.
#[derive(Clone, Debug)]
struct VectorField {
    /// A field of lines.
    field: String,
    /// Whether the field was chosen: then its values are vectors or null. Otherwise other values are of the payload.
    is_chosen: bool,
}

/// Rows of a file of JSON lines.
pub(crate) struct JsonRows {
    lines: Lines,
    columns: Columns,
    path: PathBuf,
    /// Known from the first line on.
    names: Option<Names>,
    wanted: Vec<Wanted>,
    /// Of which names there was a vector; nothing is known of lines that were left out.
    found: Vec<bool>,
    is_ended: bool,
    row: u64,
    bytes: u64,
}

impl JsonRows {
    /// Opens a file.
    pub(crate) fn open(path: &Path, columns: &Columns, wanted: &[Wanted]) -> Result<JsonRows> {
        let bytes = input::open(path)?.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
        let lines = Lines::open(path, LINE_BYTES_MAX)?;
        Ok(JsonRows {
            lines,
            columns: columns.clone(),
            path: path.into(),
            names: None,
            found: vec![false; wanted.len()],
            wanted: wanted.to_vec(),
            is_ended: false,
            row: 0,
            bytes,
        })
    }

    /// Components of the first vector of each of these names; `None` for a name of which there is none.
    pub(crate) fn shapes_of(
        path: &Path,
        columns: &Columns,
        of_vectors: &[&str],
    ) -> Result<Vec<Option<(usize, DType)>>> {
        let mut lines = Lines::open(path, LINE_BYTES_MAX)?;
        let (mut shapes, mut names) = (vec![None; of_vectors.len()], None);
        while shapes.iter().any(Option::is_none) {
            let Some(line) = lines.next_line()? else { break };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let line = line.to_vec();
            let fields = fields_of(&line).map_err(|why| lines.wrong(&why))?;
            let names = match &mut names {
                Some(names) => names,
                names => names.insert(Names::of(path, &fields, (columns, of_vectors))?),
            };
            let given = Line::of(fields, names.has_names).and_then(|own| names.given(&own));
            let given = given.map_err(|why| lines.wrong(&why))?;
            for (shape, json) in shapes.iter_mut().zip(given).filter(|(shape, _)| shape.is_none()) {
                let Some(json) = json else { continue };
                let vector = numbers(json).map_err(|why| lines.wrong(&why))?;
                *shape = Some((vector.len(), DType::F32));
            }
        }
        Ok(shapes)
    }

    /// Adds the next line to rows; false at the end.
    fn take(&mut self, rows: &mut Rows) -> Result<bool> {
        let line = loop {
            match self.lines.next_line()? {
                None => {
                    self.is_ended = true;
                    return Ok(false);
                }
                Some(line) if line.trim_ascii().is_empty() => {}
                Some(line) => break line.to_vec(),
            }
        };
        let wrong = |why: String| self.lines.wrong(&why);
        let fields = fields_of(&line).map_err(wrong)?;
        if self.names.is_none() {
            self.names = Some(Names::of(&self.path, &fields, (&self.columns, &self.wanted[..]))?);
        }
        let Some(names) = &self.names else { return Ok(false) };
        if let Some(name) = &names.ids {
            let id = fields
                .get(name)
                .ok_or_else(|| wrong(format!("the field {name:?} is not there; give every point an id")))?;
            let id = serde_json::from_str(id.get()).map_err(|e| wrong(format!("the field {name:?}: {e}")))?;
            let id = IdValue::of_json(&id, "the id")
                .map_err(|e| wrong(format!("the field {name:?}: {}", e.message)))?;
            rows.ids.get_or_insert_default().push(id);
        }
        let own_line = Line::of(fields, names.has_names).map_err(wrong)?;
        let given = names.given(&own_line).map_err(wrong)?;
        for (at, (own, json)) in names.vectors.iter().zip(given).enumerate() {
            let (Some(wanted), Some(to)) = (self.wanted.get(at), rows.vectors.get_mut(at)) else { continue };
            to.has.push(json.is_some());
            let Some(json) = json else { continue };
            append_vector(json, wanted, to)
                .map_err(|why| wrong(format!("{}: {why}", own.of_line(&own_line))))?;
            self.found.get_mut(at).into_iter().for_each(|found| *found = true);
        }
        rows.payloads.push(names.payload_of(&own_line).map_err(wrong)?);
        rows.count += 1;
        Ok(true)
    }
}

impl FileRows for JsonRows {
    fn next_rows(&mut self) -> Result<Option<Rows>> {
        let (mut rows, most) = (Rows::new(self.row, &self.wanted), rows_at_once(&self.wanted));
        let mut payload_bytes = 0;
        while rows.count < most && payload_bytes < BATCH_BYTES && self.take(&mut rows)? {
            payload_bytes += rows.payloads.last().and_then(Option::as_ref).map_or(0, Vec::len);
        }
        self.row += rows.count as u64;
        Ok((rows.count > 0).then_some(rows))
    }

    fn skip(&mut self, rows: u64) -> Result<u64> {
        let mut left = rows;
        while left > 0 {
            let Some(line) = self.lines.next_line()? else { break };
            if line.trim_ascii().is_empty() {
                continue;
            }
            if self.names.is_none() {
                let line = line.to_vec();
                let fields = fields_of(&line).map_err(|why| self.lines.wrong(&why))?;
                self.names = Some(Names::of(&self.path, &fields, (&self.columns, &self.wanted[..]))?);
            }
            self.found.fill(true);
            left -= 1;
        }
        self.row += rows - left;
        Ok(rows - left)
    }

    fn total(&self) -> Total {
        Total::Bytes(self.bytes)
    }

    fn done(&self) -> u64 {
        self.lines.bytes()
    }

    fn names_without(&self) -> Vec<String> {
        let without = self.wanted.iter().zip(&self.found).filter(|(_, found)| self.is_ended && !**found);
        without.map(|(own, _)| own.name.clone()).filter(|name| !name.is_empty()).collect()
    }
}

impl VectorField {
    /// The value of a line, as JSON, in a field of its own. Where it has an object of vectors by name, only a chosen
    /// field is one; else lists and nulls are.
    fn alone<'a>(&self, line: &Line<'a>) -> Option<&'a RawValue> {
        let is_vector = |json: &&RawValue| {
            self.is_chosen || (line.by_name.is_none() && json.get().starts_with(['[', 'n']))
        };
        line.fields.get(&self.field).copied().filter(is_vector)
    }

    /// The value of a line, as JSON; `None` where there is none.
    fn json_of<'a>(&self, line: &Line<'a>) -> Option<&'a RawValue> {
        self.alone(line).or_else(|| line.by_name.as_ref()?.get(&self.field).copied())
    }

    /// The field as errors name it.
    fn of_line(&self, line: &Line<'_>) -> String {
        match self.alone(line) {
            None => format!("the field {:?} in {BY_NAME:?}", self.field),
            Some(_) => format!("the field {:?}", self.field),
        }
    }
}

impl<'a> Line<'a> {
    /// Reads a line; where vectors have names, an object of them is read, too.
    fn of(fields: Fields<'a>, has_names: bool) -> Result<Line<'a>, String> {
        let by_name = match fields.get(BY_NAME).filter(|json| has_names && json.get().starts_with('{')) {
            None => None,
            Some(json) => Some(
                serde_json::from_str(json.get())
                    .map_err(|e| format!("the field {BY_NAME:?}: {e}; give an object of vectors by name"))?,
            ),
        };
        Ok(Line { fields, by_name })
    }
}

impl Names {
    /// The names that the first line has, or that are given.
    fn of<N: AsRef<str>>(
        path: &Path,
        fields: &Fields<'_>,
        (columns, of_vectors): (&Columns, &[N]),
    ) -> Result<Names> {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let of = |name: &&'_ str| fields.get(*name).is_some_and(|json| json.get().starts_with('['));
        let all: Vec<Named<'_>> = names.iter().map(|name| Named { name, is_vectors: of(name) }).collect();
        let has_names = has_names(of_vectors);
        // Fields of the payload may be missing in the first line, and so may vectors that have names.
        let vectors = if has_names { Vec::new() } else { columns.vectors.clone() };
        let most = Columns { payload: PayloadColumns::Nothing, vectors, ..columns.clone() };
        let roles = Roles::of(path, &all, (&most, of_vectors))?;
        let name = |at: usize| names.get(at).map_or(String::new(), |name| (*name).to_string());
        let vectors = of_vectors.iter().zip(roles.vectors).map(|(own, at)| {
            let own = own.as_ref();
            let chosen = columns.vectors.iter().find(|(of, _)| of == own).map(|(_, field)| field.clone());
            let is_chosen = chosen.is_some() || !has_names;
            let usual = || if has_names { own.to_string() } else { at.map_or(String::new(), name) };
            VectorField { field: chosen.unwrap_or_else(usual), is_chosen }
        });
        let vectors = vectors.collect();
        Ok(Names { ids: roles.ids.map(name), vectors, has_names, payload: columns.payload.clone() })
    }

    /// The vector of each name in a line, as JSON; `None` for one that it lacks.
    fn given<'a>(&self, line: &Line<'a>) -> Result<Vec<Option<&'a RawValue>>, String> {
        let unknown = |name: &&String| !self.vectors.iter().any(|own| own.field == **name);
        if let Some(name) = line.by_name.iter().flat_map(BTreeMap::keys).find(unknown) {
            let known: Vec<String> = self.vectors.iter().map(|own| format!("{:?}", own.field)).collect();
            return Err(format!(
                "unknown vector name {name:?} in {BY_NAME:?}; there are {}; leave it out, or name the field with \
                 --vectors NAME=FIELD",
                known.join(", ")
            ));
        }
        let given = self.vectors.iter().map(|own| {
            let json = own.json_of(line);
            match (json.filter(|json| json.get() != "null"), self.has_names) {
                (None, false) => Err(match json {
                    None => format!("the field {:?} is not there; give every point a vector", own.field),
                    Some(_) => format!("the field {:?} is null; give every point a vector", own.field),
                }),
                (json, _) => Ok(json),
            }
        });
        given.collect()
    }

    /// The payload of a line: a field for each, and those of the field that is the payload itself.
    fn payload_of(&self, line: &Line<'_>) -> Result<Option<Vec<u8>>, String> {
        let has_vector = |name: &String| {
            let is_own = |own: &VectorField| own.field == *name && own.alone(line).is_some();
            (line.by_name.is_some() && name == BY_NAME) || self.vectors.iter().any(is_own)
        };
        let is_wanted = |name: &String| match &self.payload {
            PayloadColumns::All => self.ids.as_ref() != Some(name) && !has_vector(name),
            PayloadColumns::Nothing => false,
            PayloadColumns::These(these) => these.contains(name),
        };
        let mut map = Map::new();
        for (name, json) in line.fields.iter().filter(|(name, _)| is_wanted(name)) {
            let json = json.get();
            if name == PAYLOAD {
                match json {
                    "null" => continue,
                    json if json.starts_with('{') => {}
                    _ => return Err(format!("the field {PAYLOAD:?} is no object; give an object or null")),
                }
                let own = Payload::parse(json.as_bytes()).map_err(|e| e.message)?;
                for (name, value) in own.as_map() {
                    insert(&mut map, name, value.clone())?;
                }
                continue;
            }
            // Parsed as a payload, which has limits of depth.
            let own = Payload::parse(format!("{{\"x\":{json}}}").as_bytes()).map_err(|e| e.message)?;
            insert(&mut map, name, own.as_map().get("x").cloned().unwrap_or_default())?;
        }
        if map.is_empty() {
            return Ok(None);
        }
        let payload = Payload::from_value(Value::Object(map)).map_err(|e| e.message)?;
        Ok(Some(payload.to_bytes()))
    }
}

fn insert(map: &mut Map<String, Value>, name: &str, value: Value) -> Result<(), String> {
    match map.insert(name.to_string(), value) {
        None => Ok(()),
        Some(_) => Err(format!(
            "the field {name:?} is there, and in {PAYLOAD:?}, too; name the fields with --payload"
        )),
    }
}

fn fields_of(line: &[u8]) -> Result<Fields<'_>, String> {
    let text = std::str::from_utf8(line)
        .map_err(|e| format!("it is not UTF-8 at byte {}; encode it as UTF-8", e.valid_up_to()))?;
    serde_json::from_str(text).map_err(|e| {
        format!("it is no JSON object: {e}; write an object such as {{\"id\": 1, \"vector\": [0.5]}}")
    })
}

/// The numbers of a list.
fn numbers(json: &RawValue) -> Result<Vec<f64>, String> {
    serde_json::from_str(json.get()).map_err(|e| format!("it is no list of finite numbers: {e}"))
}

/// Appends the vector of a line.
fn append_vector(json: &RawValue, wanted: &Wanted, to: &mut VectorColumn) -> Result<(), String> {
    let Wanted { dim, dtype, metric, .. } = *wanted;
    let vectors = &mut to.vectors;
    let first = vectors.len();
    let count = match dtype {
        // The shortest decimal of a float of 32 bits is not always that of the nearest one of 64 bits.
        DType::F32 => {
            let own: Vec<f32> = serde_json::from_str(json.get())
                .map_err(|e| format!("it is no list of finite numbers: {e}"))?;
            for (at, value) in own.iter().enumerate() {
                let component = Component { value: f64::from(*value), is_whole: false };
                cast::append(dtype, component, vectors).map_err(|why| format!("component {at} {why}"))?;
            }
            own.len()
        }
        _ => {
            let own = numbers(json)?;
            for (at, value) in own.iter().enumerate() {
                let component = Component { value: *value, is_whole: false };
                cast::append(dtype, component, vectors).map_err(|why| format!("component {at} {why}"))?;
            }
            own.len()
        }
    };
    if count != dim {
        return Err(format!("the vector has {count} dimensions, the collection has {dim}; all must agree"));
    }
    match vectors.get(first..).and_then(|own| check_row(dtype, metric, own)) {
        Some(bad) => Err(format!("{bad}; correct the vector or leave the line out")),
        None => Ok(()),
    }
}
