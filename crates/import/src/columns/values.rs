//! Values of columns as JSON.
//!
//! | type | JSON |
//! |---|---|
//! | booleans, whole numbers, floats | the same; a 32-bit float as its shortest decimal, 0.1 and not 0.10000000149011612 |
//! | decimals of up to 15 digits, or whole ones of 64 bits | numbers |
//! | texts; of the extension type `arrow.json` | strings; what they are as JSON |
//! | dates, times, timestamps | strings `2024-05-01`, `12:30:00`, `2024-05-01T12:30:00.5Z`, without `Z` where there is no zone |
//! | UUIDs of the extension type `arrow.uuid` | strings |
//! | lists, structs, maps by texts, dictionaries | arrays, objects, objects, their values |
//! | null | null |
//!
//! Other types are refused when the file is opened, and so are NaN and infinite numbers where they are.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef, PrimitiveArray};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use serde_json::{Map, Number, Value};
use stratann_payload::IdValue;

use super::{JSON, UUID, extension};

/// Most digits of a decimal that a float has exactly.
const DIGITS_MAX: usize = 15;

/// Refuses a column whose values have no JSON.
///
/// # Errors
/// Why, as a part of a sentence behind the name of the column.
pub(super) fn check(field: &Field) -> Result<(), String> {
    let fine = |of: &DataType| {
        of.is_integer()
            || of.is_floating()
            || matches!(
                of,
                DataType::Null
                    | DataType::Boolean
                    | DataType::Utf8
                    | DataType::LargeUtf8
                    | DataType::Utf8View
                    | DataType::Date32
                    | DataType::Date64
                    | DataType::Time32(_)
                    | DataType::Time64(_)
                    | DataType::Timestamp(..)
                    | DataType::Decimal128(..)
            )
    };
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => check(item),
        DataType::Struct(fields) => fields.iter().try_for_each(|field| check(field)),
        DataType::Map(entries, _) => check_map(entries),
        DataType::Dictionary(_, values) if fine(values) => Ok(()),
        DataType::FixedSizeBinary(16) if extension(field) == Some(UUID) => Ok(()),
        of if fine(of) => Ok(()),
        of => Err(format!("has values of type {of}, for which payloads have no form")),
    }
}

fn check_map(entries: &Field) -> Result<(), String> {
    let (key, value) = entries_of(entries).ok_or("has maps of another form")?;
    if !matches!(key.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
        return Err(format!("has maps with keys of type {}; keys of payloads are texts", key.data_type()));
    }
    check(value)
}

/// The fields of keys and values of a map.
fn entries_of(entries: &Field) -> Option<(&Field, &Field)> {
    match entries.data_type() {
        DataType::Struct(fields) => match fields.as_ref() {
            [key, value] => Some((key.as_ref(), value.as_ref())),
            _ => None,
        },
        _ => None,
    }
}

/// The value of a row.
///
/// # Errors
/// Why it has no JSON.
pub(super) fn value_of(field: &Field, column: &ArrayRef, row: usize) -> Result<Value, String> {
    if let DataType::Dictionary(..) = column.data_type() {
        let own = column.as_any_dictionary();
        return match key_of(own.keys(), row) {
            Some(key) => value_of(field, own.values(), key),
            None => Ok(Value::Null),
        };
    }
    if column.is_null(row) {
        return Ok(Value::Null);
    }
    if let Some(text) = text_of(column, row) {
        return match extension(field) {
            Some(JSON) => {
                serde_json::from_str(text).map_err(|e| format!("a text is not JSON: {e}; correct it"))
            }
            _ => Ok(text.into()),
        };
    }
    if let Some(whole) = whole_of(column, row) {
        return Ok(i64::try_from(whole).map_or_else(|_| (whole as u64).into(), Value::from));
    }
    match column.data_type() {
        DataType::Null => Ok(Value::Null),
        DataType::Boolean => Ok(column.as_boolean().value(row).into()),
        DataType::Float16 => float(shortest(column.as_primitive::<Float16Type>().value(row).to_f32())),
        DataType::Float32 => float(shortest(column.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => float(column.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(..) => decimal(&column.as_primitive::<Decimal128Type>().value_as_string(row)),
        DataType::FixedSizeBinary(_) => uuid(column.as_fixed_size_binary().value(row)),
        DataType::List(item) => elements(item, &column.as_list::<i32>().value(row)),
        DataType::LargeList(item) => elements(item, &column.as_list::<i64>().value(row)),
        DataType::FixedSizeList(item, _) => elements(item, &column.as_fixed_size_list().value(row)),
        DataType::Struct(fields) => object(fields, column.as_struct().columns(), row),
        DataType::Map(entries, _) => entries_as_object(entries, &column.as_map().value(row)),
        of => moment(of, column, row),
    }
}

/// The text of a row; `None` for a column of something else.
pub(super) fn text_of(column: &ArrayRef, row: usize) -> Option<&str> {
    match column.data_type() {
        DataType::Utf8 => Some(column.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(column.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(column.as_string_view().value(row)),
        _ => None,
    }
}

/// The whole number of a row; `None` for a column of something else.
pub(super) fn whole_of(column: &dyn Array, row: usize) -> Option<i128> {
    match column.data_type() {
        DataType::Int8 => Some(column.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => Some(column.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => Some(column.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => Some(column.as_primitive::<Int64Type>().value(row).into()),
        DataType::UInt8 => Some(column.as_primitive::<UInt8Type>().value(row).into()),
        DataType::UInt16 => Some(column.as_primitive::<UInt16Type>().value(row).into()),
        DataType::UInt32 => Some(column.as_primitive::<UInt32Type>().value(row).into()),
        DataType::UInt64 => Some(column.as_primitive::<UInt64Type>().value(row).into()),
        _ => None,
    }
}

/// The key of a row of a dictionary; `None` where it is null.
pub(super) fn key_of(keys: &dyn Array, row: usize) -> Option<usize> {
    let key = (!keys.is_null(row)).then(|| whole_of(keys, row)).flatten()?;
    usize::try_from(key).ok()
}

/// The float with the shortest decimal that is this one among those of 32 bits.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

fn float(value: f64) -> Result<Value, String> {
    let number = Number::from_f64(value).map(Value::Number);
    number.ok_or_else(|| format!("{value} has no form in JSON; replace it by null, or leave the column out"))
}

fn decimal(text: &str) -> Result<Value, String> {
    let whole = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
    if let Ok(whole) = whole {
        return Ok(whole);
    }
    let digits = text.bytes().filter(u8::is_ascii_digit).skip_while(|digit| *digit == b'0').count();
    match text.parse::<f64>() {
        Ok(value) if digits <= DIGITS_MAX => float(value),
        _ => Err(format!("{text} has more than {DIGITS_MAX} digits; convert the column to texts")),
    }
}

fn uuid(bytes: &[u8]) -> Result<Value, String> {
    let bytes = bytes.try_into().map_err(|_| "a UUID has 16 bytes; write the column again")?;
    Ok(IdValue::Uuid(bytes).to_json())
}

fn elements(item: &Field, values: &ArrayRef) -> Result<Value, String> {
    (0..values.len()).map(|at| value_of(item, values, at)).collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn object(fields: &Fields, columns: &[ArrayRef], row: usize) -> Result<Value, String> {
    let mut map = Map::new();
    for (field, column) in fields.iter().zip(columns) {
        insert(&mut map, field.name(), value_of(field, column, row)?)?;
    }
    Ok(Value::Object(map))
}

fn entries_as_object(entries: &Field, own: &arrow_array::StructArray) -> Result<Value, String> {
    let ((_, value), [keys, values]) = (entries_of(entries).ok_or("a map has another form")?, own.columns())
    else {
        return Err("a map has another form; write the column again".into());
    };
    let mut map = Map::new();
    for row in 0..own.len() {
        let key =
            text_of(keys, row).filter(|_| !keys.is_null(row)).ok_or("a key of a map is null; correct it")?;
        insert(&mut map, key, value_of(value, values, row)?)?;
    }
    Ok(Value::Object(map))
}

fn insert(map: &mut Map<String, Value>, name: &str, value: Value) -> Result<(), String> {
    match map.insert(name.to_string(), value) {
        None => Ok(()),
        Some(_) => Err(format!("the key {name:?} is there twice; rename one of them")),
    }
}

/// A date, a time or a timestamp.
fn moment(of: &DataType, column: &ArrayRef, row: usize) -> Result<Value, String> {
    let text = match of {
        DataType::Date32 => column.as_primitive::<Date32Type>().value_as_date(row).map(|day| day.to_string()),
        DataType::Date64 => column.as_primitive::<Date64Type>().value_as_date(row).map(|day| day.to_string()),
        DataType::Time32(TimeUnit::Second) => time(column.as_primitive::<Time32SecondType>(), row),
        DataType::Time32(_) => time(column.as_primitive::<Time32MillisecondType>(), row),
        DataType::Time64(TimeUnit::Microsecond) => time(column.as_primitive::<Time64MicrosecondType>(), row),
        DataType::Time64(_) => time(column.as_primitive::<Time64NanosecondType>(), row),
        DataType::Timestamp(unit, zone) => {
            let local = match unit {
                TimeUnit::Second => date_time(column.as_primitive::<TimestampSecondType>(), row),
                TimeUnit::Millisecond => date_time(column.as_primitive::<TimestampMillisecondType>(), row),
                TimeUnit::Microsecond => date_time(column.as_primitive::<TimestampMicrosecondType>(), row),
                TimeUnit::Nanosecond => date_time(column.as_primitive::<TimestampNanosecondType>(), row),
            };
            // Arrow keeps moments with a zone in UTC.
            local.map(|text| text + if zone.is_some() { "Z" } else { "" })
        }
        _ => None,
    };
    text.map(Value::String).ok_or_else(|| "a date is out of range; correct it".to_string())
}

fn time<T>(column: &PrimitiveArray<T>, row: usize) -> Option<String>
where
    T: ArrowPrimitiveType + ArrowTemporalType,
    i64: From<T::Native>,
{
    column.value_as_time(row).map(|time| time.format("%H:%M:%S%.f").to_string())
}

fn date_time<T>(column: &PrimitiveArray<T>, row: usize) -> Option<String>
where
    T: ArrowPrimitiveType + ArrowTemporalType,
    i64: From<T::Native>,
{
    column.value_as_datetime(row).map(|at| at.format("%Y-%m-%dT%H:%M:%S%.f").to_string())
}
