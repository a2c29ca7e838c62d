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
    Columns, FileRows, Named, PAYLOAD, PayloadColumns, Roles, Rows, Total, VECTOR_BYTES, Wanted, empty,
};
use crate::lines::Lines;

/// Longest line: a payload, and a vector of 4,096 components with room to spare.
const LINE_BYTES_MAX: usize = BYTES_MAX + (1 << 20);

/// The fields of a line.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Names of the fields of ids and vectors, by the first line.
#[derive(Clone, Debug)]
struct Names {
    ids: Option<String>,
    vectors: String,
    payload: PayloadColumns,
}

/// Rows of a file of JSON lines.
pub(crate) struct JsonRows {
    lines: Lines,
    columns: Columns,
    path: PathBuf,
    /// Known from the first line on.
    names: Option<Names>,
    wanted: Wanted,
    row: u64,
    bytes: u64,
}

impl JsonRows {
    /// Opens a file.
    pub(crate) fn open(path: &Path, columns: &Columns, wanted: Wanted) -> Result<JsonRows> {
        let bytes = input::open(path)?.metadata().map_err(|e| Error::io("reading", path, &e))?.len();
        let lines = Lines::open(path, LINE_BYTES_MAX)?;
        Ok(JsonRows {
            lines,
            columns: columns.clone(),
            path: path.into(),
            names: None,
            wanted,
            row: 0,
            bytes,
        })
    }

    /// Components of the vector in the first line.
    pub(crate) fn shape_of(path: &Path, columns: &Columns) -> Result<(usize, DType)> {
        let mut lines = Lines::open(path, LINE_BYTES_MAX)?;
        loop {
            let Some(line) = lines.next_line()? else { return Err(empty(path)) };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let line = line.to_vec();
            let fields = fields_of(&line).map_err(|why| lines.wrong(&why))?;
            let names = Names::of(path, &fields, columns)?;
            let vector = fields.get(&names.vectors).map_or(Ok(Vec::new()), |json| numbers(json));
            return vector.map(|vector| (vector.len(), DType::F32)).map_err(|why| lines.wrong(&why));
        }
    }

    /// Adds the next line to rows; false at the end.
    fn take(&mut self, rows: &mut Rows) -> Result<bool> {
        let line = loop {
            match self.lines.next_line()? {
                None => return Ok(false),
                Some(line) if line.trim_ascii().is_empty() => {}
                Some(line) => break line.to_vec(),
            }
        };
        let wrong = |why: String| self.lines.wrong(&why);
        let fields = fields_of(&line).map_err(wrong)?;
        if self.names.is_none() {
            self.names = Some(Names::of(&self.path, &fields, &self.columns)?);
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
        let name = &names.vectors;
        let json = fields.get(name);
        let json =
            json.ok_or_else(|| wrong(format!("the field {name:?} is not there; give every point a vector")))?;
        append_vector(json, &self.wanted, &mut rows.vectors)
            .map_err(|why| wrong(format!("the field {name:?}: {why}")))?;
        rows.payloads.push(names.payload_of(&fields).map_err(wrong)?);
        rows.count += 1;
        Ok(true)
    }
}

impl FileRows for JsonRows {
    fn next_rows(&mut self) -> Result<Option<Rows>> {
        let mut rows = Rows { first: self.row, ..Rows::default() };
        let most = self.wanted.rows_at_once();
        let mut payload_bytes = 0;
        while rows.count < most && payload_bytes < VECTOR_BYTES && self.take(&mut rows)? {
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
                self.names = Some(Names::of(&self.path, &fields, &self.columns)?);
            }
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
}

impl Names {
    /// The names that the first line has, or that are given.
    fn of(path: &Path, fields: &Fields<'_>, columns: &Columns) -> Result<Names> {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        let of = |name: &&'_ str| fields.get(*name).is_some_and(|json| json.get().starts_with('['));
        let all: Vec<Named<'_>> = names.iter().map(|name| Named { name, is_vectors: of(name) }).collect();
        // A field of the payload may be missing in the first line.
        let most = Columns { payload: PayloadColumns::Nothing, ..columns.clone() };
        let roles = Roles::of(path, &all, &most)?;
        let name = |at: usize| names.get(at).map_or(String::new(), |name| (*name).to_string());
        Ok(Names { ids: roles.ids.map(name), vectors: name(roles.vectors), payload: columns.payload.clone() })
    }

    /// The payload of a line: a field for each, and those of the field that is the payload itself.
    fn payload_of(&self, fields: &Fields<'_>) -> Result<Option<Vec<u8>>, String> {
        let is_wanted = |name: &String| match &self.payload {
            PayloadColumns::All => self.ids.as_ref() != Some(name) && self.vectors != *name,
            PayloadColumns::Nothing => false,
            PayloadColumns::These(these) => these.contains(name),
        };
        let mut map = Map::new();
        for (name, json) in fields.iter().filter(|(name, _)| is_wanted(name)) {
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
fn append_vector(json: &RawValue, wanted: &Wanted, vectors: &mut Vec<u8>) -> Result<(), String> {
    let Wanted { dim, dtype, metric } = *wanted;
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
