//! Vectors of rows: lists of numbers.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use stratann_engine::dataset::check_row;
use stratann_kernel::DType;
use stratann_storage::Result;

use super::Cell;
use crate::cast::{self, Component};
use crate::file::{VectorColumn, Wanted};

/// Whether a column of this type has lists of numbers.
pub(super) fn is_of_numbers(of: &DataType) -> bool {
    match of {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_number(item.data_type())
        }
        _ => false,
    }
}

fn is_number(of: &DataType) -> bool {
    of.is_integer() || of.is_floating()
}

/// The lists of a column: the numbers of all rows, and which of them are those of a row.
struct Lists<'a> {
    numbers: &'a ArrayRef,
    range: Box<dyn Fn(usize) -> Range<usize> + 'a>,
}

impl<'a> Lists<'a> {
    fn of(column: &'a ArrayRef) -> Option<Lists<'a>> {
        if let Some(own) = column.as_list_opt::<i32>() {
            let offsets = own.value_offsets();
            let range = move |row: usize| offsets[row] as usize..offsets[row + 1] as usize;
            return Some(Lists { numbers: own.values(), range: Box::new(range) });
        }
        if let Some(own) = column.as_list_opt::<i64>() {
            let offsets = own.value_offsets();
            let range = move |row: usize| offsets[row] as usize..offsets[row + 1] as usize;
            return Some(Lists { numbers: own.values(), range: Box::new(range) });
        }
        let own = column.as_fixed_size_list_opt()?;
        let range = move |row: usize| {
            let first = own.value_offset_at(row);
            first..first + own.value_length() as usize
        };
        Some(Lists { numbers: own.values(), range: Box::new(range) })
    }
}

/// The components of a column of numbers, by place.
fn components(numbers: &ArrayRef) -> Option<Box<dyn Fn(usize) -> Component + '_>> {
    fn of<'a, T: ArrowPrimitiveType>(
        numbers: &'a ArrayRef,
        is_whole: bool,
        widen: impl Fn(T::Native) -> f64 + 'a,
    ) -> Option<Box<dyn Fn(usize) -> Component + 'a>> {
        let values = numbers.as_primitive_opt::<T>()?.values();
        Some(Box::new(move |at| Component { value: widen(values[at]), is_whole }))
    }
    match numbers.data_type() {
        DataType::Float16 => of::<Float16Type>(numbers, false, half::f16::to_f64),
        DataType::Float32 => of::<Float32Type>(numbers, false, f64::from),
        DataType::Float64 => of::<Float64Type>(numbers, false, |x| x),
        DataType::Int8 => of::<Int8Type>(numbers, true, f64::from),
        DataType::Int16 => of::<Int16Type>(numbers, true, f64::from),
        DataType::Int32 => of::<Int32Type>(numbers, true, f64::from),
        DataType::Int64 => of::<Int64Type>(numbers, true, |x| x as f64),
        DataType::UInt8 => of::<UInt8Type>(numbers, true, f64::from),
        DataType::UInt16 => of::<UInt16Type>(numbers, true, f64::from),
        DataType::UInt32 => of::<UInt32Type>(numbers, true, f64::from),
        DataType::UInt64 => of::<UInt64Type>(numbers, true, |x| x as f64),
        _ => None,
    }
}

/// Components of the first vector, and the type of a collection that holds them; `None` where all are null.
pub(super) fn shape(cell: Cell<'_>, column: &ArrayRef) -> Result<Option<(usize, DType)>> {
    let lists = Lists::of(column).ok_or_else(|| cell.wrong("it has no lists of numbers"))?;
    let Some(row) = (0..column.len()).find(|row| column.is_valid(*row)) else { return Ok(None) };
    let dtype = match lists.numbers.data_type() {
        DataType::Float16 => DType::F16,
        DataType::Int8 => DType::I8,
        DataType::UInt8 => DType::U8,
        _ => DType::F32,
    };
    Ok(Some(((lists.range)(row).len(), dtype)))
}

/// Appends the vectors of all rows, where rows may lack them or not.
pub(super) fn append<'a>(
    cell: impl Fn(usize) -> Cell<'a>,
    column: &ArrayRef,
    (wanted, may_lack): (&Wanted, bool),
    to: &mut VectorColumn,
) -> Result<()> {
    let Wanted { dim, dtype, metric, .. } = *wanted;
    let no_lists = || cell(0).wrong("it has no lists of numbers");
    let lists = Lists::of(column).ok_or_else(no_lists)?;
    let component = components(lists.numbers).ok_or_else(no_lists)?;
    for row in 0..column.len() {
        to.has.push(column.is_valid(row));
        if column.is_null(row) && may_lack {
            continue;
        }
        if column.is_null(row) {
            return Err(cell(row).wrong("the vector is null; every point needs one: leave the row out"));
        }
        let range = (lists.range)(row);
        if range.len() != dim {
            return Err(cell(row).wrong(&format!(
                "the vector has {} dimensions, the collection has {dim}; all must agree",
                range.len()
            )));
        }
        let first = to.vectors.len();
        for (at, place) in range.enumerate() {
            if lists.numbers.is_null(place) {
                return Err(
                    cell(row).wrong(&format!("component {at} is null; every component needs a value"))
                );
            }
            cast::append(dtype, component(place), &mut to.vectors)
                .map_err(|why| cell(row).wrong(&format!("component {at} {why}")))?;
        }
        if let Some(bad) = to.vectors.get(first..).and_then(|own| check_row(dtype, metric, own)) {
            return Err(cell(row).wrong(&format!("{bad}; correct the vector or leave the row out")));
        }
    }
    Ok(())
}
