//! The definition of the sums, in plain Rust.

use super::layout::Plane;
use super::query::{FOUR, form};

form!();

/// Σ of levels times components, of each code.
fn several(planes: &[Plane], codes: [&[u8]; FOUR], components: &[i8]) -> [i32; FOUR] {
    codes.map(|code| {
        let of =
            |plane: &Plane| of_plane(plane, &code[plane.first..][..plane.bytes], components) << plane.shift;
        planes.iter().map(of).sum()
    })
}

fn one<const WIDTH: u32, const GROUPS: u32>(
    plane: &Plane,
    codes: [&[u8]; FOUR],
    components: &[i8],
) -> [i32; FOUR] {
    several(core::slice::from_ref(plane), codes, components)
}

fn of_plane(plane: &Plane, bytes: &[u8], components: &[i8]) -> i32 {
    let mask = ((1u32 << plane.width) - 1) as u8;
    let groups = components[plane.start..].chunks(plane.bytes).take((8 / plane.width) as usize);
    groups
        .enumerate()
        .map(|(group, components)| {
            let bits = |byte: u8| i32::from((byte >> (group as u32 * plane.width)) & mask);
            bytes.iter().zip(components).map(|(&byte, &x)| bits(byte) * i32::from(x)).sum::<i32>()
        })
        .sum()
}
