//! The place of a point in the order of a field, and its text: where a page begins.
//!
//! | characters, hexadecimal | place |
//! |---|---|
//! | 8 | which order it is of: field, type of its values, direction |
//! | 20 | rank of the value, ascending in the order |
//! | | the id as it ends a key |

use std::fmt;

use stratann_payload::Path;
use stratann_payload::index::SortField;
use stratann_payload::number::NumberKey;
use xxhash_rust::xxh3::xxh3_64;

use super::error::{Error, Result};
use crate::rows::ExternalId;

/// Characters before the id.
const HEAD_CHARS: usize = 28;
/// Bits of a rank.
const RANK_BITS: u32 = 80;

/// The order of points by a field of their payloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderBy {
    /// A field with an `integer`, `float` or `datetime` index.
    pub field: Path,
    /// From the greatest value to the least; points with equal values are in the order of their ids in both directions.
    pub descending: bool,
}

/// Place of a value in an order: ascends in the direction of the order.
pub(super) type Rank = u128;

/// The place of a point: points follow one another by ranks, and by ids where these are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderPlace {
    pub(super) rank: Rank,
    pub(super) id: ExternalId,
}

/// An order of one type of values.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) field: SortField,
    pub(super) is_descending: bool,
}

impl Order {
    /// The rank of a value.
    pub(super) fn rank(&self, key: NumberKey) -> Rank {
        let ascending = Rank::from(key.order) << 16 | Rank::from(key.rest as u16 ^ 1 << 15);
        self.turned(ascending)
    }

    /// The value of a rank.
    pub(super) fn key(&self, rank: Rank) -> NumberKey {
        let ascending = self.turned(rank);
        NumberKey { order: (ascending >> 16) as u64, rest: (ascending as u16 ^ 1 << 15) as i16 }
    }

    fn turned(&self, rank: Rank) -> Rank {
        if self.is_descending { rank ^ ((1 << RANK_BITS) - 1) } else { rank }
    }

    /// Tells orders from one another.
    fn mark(&self) -> u32 {
        let text = format!("{} {} {}", self.field.is_date(), self.is_descending, self.field.path());
        xxh3_64(text.as_bytes()) as u32
    }

    /// The text of a place.
    pub(super) fn text(&self, place: &OrderPlace) -> String {
        let mut id = Vec::new();
        place.id.append(&mut id);
        format!("{:08x}{:020x}{}", self.mark(), place.rank, Hex(&id))
    }

    /// Reads the text of a place.
    ///
    /// # Errors
    /// `BadInput` for a text of another order, and for what is none.
    pub(super) fn place(&self, text: &str) -> Result<OrderPlace> {
        let refused = |why: &str| {
            let what = if self.is_descending { "descending " } else { "" };
            Error::bad_input(format!(
                "after {why}; give the next of a page in {what}order of {}, or leave it out for the first page",
                self.field.path()
            ))
        };
        let read = || {
            // Other characters than digits may stand on the border of a slice.
            let text = text.is_ascii().then_some(text)?;
            let (head, id) = text.split_at_checked(HEAD_CHARS)?;
            let mark = u32::from_str_radix(&head[..8], 16).ok()?;
            let rank = Rank::from_str_radix(&head[8..], 16).ok()?;
            let digits = id.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).ok());
            let bytes = digits.map(|two| u8::from_str_radix(two?, 16).ok()).collect::<Option<Vec<u8>>>()?;
            Some((mark, OrderPlace { rank, id: ExternalId::decode(&bytes)? }))
        };
        let (mark, place) = read().ok_or_else(|| refused("names no place in an order"))?;
        if mark != self.mark() {
            return Err(refused("is of another order"));
        }
        Ok(place)
    }
}

/// Bytes as text.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stratann_payload::IndexKind;
    use stratann_payload::number::Number;

    fn order(field: &str, kind: IndexKind, is_descending: bool) -> Order {
        Order { field: SortField::new(Path::parse(field).unwrap(), kind).unwrap(), is_descending }
    }

    #[test]
    fn ranks_are_in_the_order_of_values() {
        let values = [-1e300, -2.5, -0.0, 1.0, 1e9].map(|float| Number::of_float(float).unwrap());
        let large = [i64::MAX - 1, i64::MAX].map(Number::of_i64);
        let keys: Vec<NumberKey> = values.iter().chain(&large).map(Number::key).collect();
        for is_descending in [false, true] {
            let own = order("a", IndexKind::Float, is_descending);
            let ranks: Vec<Rank> = keys.iter().map(|key| own.rank(*key)).collect();
            let is_sorted = |two: &[Rank]| if is_descending { two[0] > two[1] } else { two[0] < two[1] };
            assert!(ranks.windows(2).all(is_sorted));
            assert_eq!(ranks.iter().map(|rank| own.key(*rank)).collect::<Vec<_>>(), keys);
        }
    }

    #[test]
    fn a_place_is_read_by_its_own_order_alone() {
        let own = order("a.b", IndexKind::Float, true);
        let ids = [ExternalId::Number(7), ExternalId::Uuid([9; 16]), ExternalId::Text("é".repeat(127))];
        for id in ids {
            let place = OrderPlace { rank: own.rank(Number::of_i64(-5).key()), id };
            let text = own.text(&place);
            assert_eq!(own.place(&text).unwrap(), place);
            for length in (0..text.len()).step_by(7).filter(|length| *length < 30) {
                assert!(own.place(&text[..length]).unwrap_err().message.contains("names no place"));
            }
            for other in [
                ("a.b", IndexKind::Float, false),
                ("a.b", IndexKind::Datetime, true),
                ("a", IndexKind::Float, true),
            ] {
                let error = order(other.0, other.1, other.2).place(&text).unwrap_err();
                assert!(error.message.contains("is of another order"), "{error}");
            }
        }
        for wrong in ["", "7", "é".repeat(40).as_str(), "+".repeat(60).as_str()] {
            assert!(own.place(wrong).is_err(), "{wrong}");
        }
    }
}
