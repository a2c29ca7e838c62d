//! Numbers of JSON with an exact order: 64-bit integers and floats are compared by value, without rounding.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// A number as it is sorted: the nearest float, and what an integer has beyond it.
///
/// The nearest float never descends where integers ascend, so the pair is in the order of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumberKey {
    /// Bits of the float, so that their order as an integer is that of the floats.
    pub order: u64,
    /// The integer minus the float; within ±1,024.
    pub rest: i16,
}

/// A number of JSON. Equal values are equal: 5 and 5.0 are one number.
#[derive(Clone, Copy, Debug)]
pub struct Number {
    key: NumberKey,
    is_float: bool,
}

impl Number {
    /// The number of a JSON value; `None` for a number that is not finite.
    pub fn of_json(number: &serde_json::Number) -> Option<Number> {
        let integer = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        integer.map(Number::of_integer).or_else(|| Number::of_float(number.as_f64()?))
    }

    /// A finite float; `None` for NaN and infinities.
    pub fn of_float(float: f64) -> Option<Number> {
        float
            .is_finite()
            .then(|| Number { key: NumberKey { order: order_of(float), rest: 0 }, is_float: true })
    }

    /// A signed integer.
    pub fn of_i64(integer: i64) -> Number {
        Number::of_integer(integer.into())
    }

    /// An unsigned integer.
    pub fn of_u64(integer: u64) -> Number {
        Number::of_integer(integer.into())
    }

    /// An integer in the range of `i64` and `u64`.
    fn of_integer(integer: i128) -> Number {
        let float = integer as f64;
        let rest = (integer - float as i128) as i16;
        Number { key: NumberKey { order: order_of(float), rest }, is_float: false }
    }

    /// The number as it is sorted.
    pub fn key(&self) -> NumberKey {
        self.key
    }

    /// The number as JSON, in the form that it was read in.
    pub fn to_json(&self) -> serde_json::Value {
        let float = float_of(self.key.order);
        if self.is_float {
            return serde_json::Number::from_f64(float).map_or(serde_json::Value::Null, Into::into);
        }
        let integer = float as i128 + i128::from(self.key.rest);
        match i64::try_from(integer) {
            Ok(small) => small.into(),
            Err(_) => u64::try_from(integer).unwrap_or(u64::MAX).into(),
        }
    }
}

/// Bits whose order as an integer is that of the floats; -0 is 0.
fn order_of(float: f64) -> u64 {
    let bits = (float + 0.0).to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// The inverse of [`order_of`].
fn float_of(order: u64) -> f64 {
    f64::from_bits(if order >> 63 == 1 { order & !(1 << 63) } else { !order })
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.key == other.key
    }
}

impl Eq for Number {}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Number) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Number {
    fn cmp(&self, other: &Number) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn integers() -> impl Strategy<Value = i128> {
        let near = |middle: i128| (middle - 3000..middle + 3000).prop_map(move |n| n);
        prop_oneof![
            any::<i64>().prop_map(i128::from),
            any::<u64>().prop_map(i128::from),
            near(0),
            near(1 << 53),
            near(-(1 << 53)),
            (0..3000i128).prop_map(|n| i128::from(u64::MAX) - n),
            (0..3000i128).prop_map(|n| i128::from(i64::MIN) + n),
        ]
    }

    proptest! {
        #[test]
        fn integers_are_in_their_order_and_come_back(one in integers(), two in integers()) {
            let (a, b) = (Number::of_integer(one), Number::of_integer(two));
            prop_assert_eq!(a.cmp(&b), one.cmp(&two));
            prop_assert_eq!(a.to_json().to_string(), one.to_string());
        }

        #[test]
        fn integers_and_floats_are_compared_by_value(integer in integers(), step in -3i64..4) {
            // A float near the integer is a whole number where the integer is large, so i128 compares exactly.
            let float = f64::from_bits(((integer as f64).to_bits() as i64 + step) as u64);
            prop_assume!(float.is_finite());
            let whole = float.trunc();
            let expected = integer.cmp(&(whole as i128)).then_with(|| {
                whole.partial_cmp(&float).unwrap_or(Ordering::Equal)
            });
            let found = Number::of_integer(integer).cmp(&Number::of_float(float).unwrap());
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn floats_are_in_their_order(one in any::<f64>(), two in any::<f64>()) {
            prop_assume!(one.is_finite() && two.is_finite());
            let (a, b) = (Number::of_float(one).unwrap(), Number::of_float(two).unwrap());
            prop_assert_eq!(Some(a.cmp(&b)), one.partial_cmp(&two));
            prop_assert_eq!(a.to_json().as_f64(), Some(one));
        }
    }

    #[test]
    fn zero_has_no_sign_and_five_is_five() {
        assert_eq!(Number::of_float(-0.0), Number::of_float(0.0));
        assert_eq!(Number::of_i64(5), Number::of_float(5.0).unwrap());
        assert_eq!(Number::of_float(f64::NAN), None);
        assert_eq!(Number::of_float(5.0).unwrap().to_json().to_string(), "5.0");
    }
}
