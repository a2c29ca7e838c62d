//! Sums of a group over bytes, by integers.

use super::{GROUP_MAX, Group, LANES, Sums, Term, in_units};
use crate::distance::{dot_i8, dot_u8, l2_i8, l2_u8, l2_u8_strip};

/// Rows that are compared at a time.
const ROWS: usize = 4;

/// Adds the sums of some lanes whose components are bytes, signed or not, where the query's are bytes of the same sign
/// and no lane has a factor. Returns false, and adds nothing, otherwise.
///
/// Sums of so few products of bytes are below 2²⁴, so that sums of floats in any order have the same bits.
#[inline(always)]
pub(super) fn add_rows<const SIGNED: bool>(
    group: &Group<'_>,
    rows: &[u8],
    lanes: &[u8],
    sums: &mut Sums,
) -> bool {
    let mut query = [0u8; GROUP_MAX];
    let width = group.query.len();
    if !group.factors.is_empty() || !in_bytes::<SIGNED>(group.query, &mut query) {
        return false;
    }
    let query = &query[..width];
    let row = |lane: u8| &rows[width * usize::from(lane)..][..width];
    let mut add = |lane: u8, sum: f32| sums[usize::from(lane) % LANES] += in_units(sum, group.scale);
    let mut rest = lanes;
    if !SIGNED && group.term == Term::Square {
        let (fours, few) = lanes.as_chunks::<ROWS>();
        for four in fours {
            let found = l2_u8_strip(query, four.map(row));
            four.iter().zip(found).for_each(|(&lane, sum)| add(lane, sum as f32));
        }
        rest = few;
    }
    for &lane in rest {
        let row = row(lane);
        let sum = match (group.term, SIGNED) {
            (Term::Square, false) => l2_u8(query, row) as f32,
            (Term::Square, true) => l2_i8(query, row) as f32,
            (Term::MinusProduct, false) => -(dot_u8(query, row) as f32),
            (Term::MinusProduct, true) => -(dot_i8(query, row) as f32),
        };
        add(lane, sum);
    }
    true
}

/// Writes a query as bytes. Returns false where a component is none.
#[inline(always)]
fn in_bytes<const SIGNED: bool>(query: &[f32], out: &mut [u8; GROUP_MAX]) -> bool {
    let mut are_bytes = query.len() <= GROUP_MAX;
    for (out, &x) in out.iter_mut().zip(query) {
        // Conversions saturate, so that other numbers do not come back.
        let (byte, back) =
            if SIGNED { (x as i8 as u8, f32::from(x as i8)) } else { (x as u8, f32::from(x as u8)) };
        *out = byte;
        are_bytes &= back == x;
    }
    are_bytes
}
