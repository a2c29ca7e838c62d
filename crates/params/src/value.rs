//! Values between a surface and a typed field: a text, a number of JSON or an object of Python becomes a [`Value`].

use std::path::PathBuf;

/// Value that a user gave for a parameter, before it has the type of its field.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Whole(u64),
    /// Any other number.
    Real(f64),
    /// A number of 32 bits, as a field has it.
    Single(f32),
    /// A text, or the name of a choice.
    Text(String),
    /// The path of a file.
    Path(PathBuf),
}

impl Value {
    /// The number, for the check of a range.
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Whole(n) => Some(*n as f64),
            Value::Real(x) => Some(*x),
            Value::Single(x) => Some(f64::from(*x)),
            Value::Flag(_) | Value::Text(_) | Value::Path(_) => None,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Whole(n) => write!(f, "{n}"),
            Value::Real(x) => write!(f, "{x}"),
            Value::Single(x) => write!(f, "{x}"),
            Value::Text(text) => write!(f, "{text}"),
            Value::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A name that a parameter may have as its value.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The name on every surface.
    pub name: &'static str,
    /// One line of help.
    pub help: &'static str,
}

/// Type of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// Yes or no.
    Flag,
    /// A whole number.
    Whole,
    /// A number.
    Real,
    /// `auto`, or a whole number.
    AutoOrWhole,
    /// The path of a file.
    Path,
    /// Any text.
    Text,
    /// One of some names.
    Choice(&'static [Choice]),
}

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A plain number.
    None,
    /// Bytes: texts such as `512MiB` are read, too.
    Bytes,
}

/// A type that a field of the table may have.
pub trait Parameter: Sized {
    /// Type of the values for the surfaces.
    const TYPE: Type;
    /// Whether the field may be without a value.
    const IS_OPTIONAL: bool = false;
    /// Whether the field may have several values.
    const IS_LIST: bool = false;
    /// The value as the field's type; `None` for one of another type.
    fn read(value: &Value) -> Option<Self>;
    /// The value of the field; `None` of an optional one without, and of a list.
    fn show(&self) -> Option<Value>;

    /// Puts a value into the field, or at the end of a list; false for a value of another type.
    fn put(&mut self, value: &Value) -> bool {
        Self::read(value).map(|value| *self = value).is_some()
    }
}

impl Parameter for bool {
    const TYPE: Type = Type::Flag;

    fn read(value: &Value) -> Option<bool> {
        match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        }
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Flag(*self))
    }
}

macro_rules! whole_numbers {
    ($($number:ty)*) => {$(
        impl Parameter for $number {
            const TYPE: Type = Type::Whole;

            fn read(value: &Value) -> Option<$number> {
                match value {
                    Value::Whole(n) => <$number>::try_from(*n).ok(),
                    _ => None,
                }
            }

            fn show(&self) -> Option<Value> {
                Some(Value::Whole(*self as u64))
            }
        }
    )*};
}

whole_numbers!(u8 u32 u64 usize);

impl Parameter for f32 {
    const TYPE: Type = Type::Real;

    fn read(value: &Value) -> Option<f32> {
        // A number that is too large for 32 bits is none.
        value.number().filter(|x| !x.is_finite() || (*x as f32).is_finite()).map(|x| x as f32)
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Single(*self))
    }
}

impl Parameter for f64 {
    const TYPE: Type = Type::Real;

    fn read(value: &Value) -> Option<f64> {
        value.number()
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Real(*self))
    }
}

impl Parameter for PathBuf {
    const TYPE: Type = Type::Path;

    fn read(value: &Value) -> Option<PathBuf> {
        match value {
            Value::Path(path) => Some(path.clone()),
            Value::Text(text) => Some(text.into()),
            _ => None,
        }
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Path(self.clone()))
    }
}

impl Parameter for String {
    const TYPE: Type = Type::Text;

    fn read(value: &Value) -> Option<String> {
        match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn show(&self) -> Option<Value> {
        Some(Value::Text(self.clone()))
    }
}

impl<T: Parameter> Parameter for Vec<T> {
    const TYPE: Type = T::TYPE;
    const IS_OPTIONAL: bool = true;
    const IS_LIST: bool = true;

    fn read(value: &Value) -> Option<Vec<T>> {
        T::read(value).map(|value| vec![value])
    }

    fn show(&self) -> Option<Value> {
        None
    }

    fn put(&mut self, value: &Value) -> bool {
        T::read(value).map(|value| self.push(value)).is_some()
    }
}

impl<T: Parameter> Parameter for Option<T> {
    const TYPE: Type = T::TYPE;
    const IS_OPTIONAL: bool = true;

    fn read(value: &Value) -> Option<Option<T>> {
        T::read(value).map(Some)
    }

    fn show(&self) -> Option<Value> {
        self.as_ref().and_then(T::show)
    }
}

/// A number, or the choice of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoOr<T> {
    /// The program chooses.
    Auto,
    /// This number.
    Given(T),
}

impl<T: Parameter> Parameter for AutoOr<T> {
    const TYPE: Type = Type::AutoOrWhole;

    fn read(value: &Value) -> Option<AutoOr<T>> {
        match value {
            Value::Text(text) if text == "auto" => Some(AutoOr::Auto),
            value => T::read(value).map(AutoOr::Given),
        }
    }

    fn show(&self) -> Option<Value> {
        match self {
            AutoOr::Auto => Some(Value::Text("auto".into())),
            AutoOr::Given(number) => number.show(),
        }
    }
}

/// Parses `512MiB`, `2GiB`, `1.5GB`, `4096`.
///
/// # Errors
/// For other texts.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024f64.powi(2),
        "g" | "gib" => 1024f64.powi(3),
        "t" | "tib" => 1024f64.powi(4),
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        other => return Err(format!("{other:?} is not a unit of size; use KiB, MiB, GiB or TiB")),
    };
    match number.parse::<f64>() {
        Ok(x) if x.is_finite() && x * factor < 1e18 => Ok((x * factor) as u64),
        _ => Err(format!("{text:?} is not a size; write for example 512MiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("2GiB"), Ok(2 << 30));
        assert_eq!(parse_size("1.5k"), Ok(1536));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("1MB"), Ok(1_000_000));
        assert!(parse_size("two").is_err() && parse_size("5 parsecs").is_err() && parse_size("").is_err());
    }
}
