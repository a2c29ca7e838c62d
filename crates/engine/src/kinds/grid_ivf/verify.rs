//! Checks the files of a `grid-ivf`, and what must hold between them.

use std::collections::HashSet;

use stratann_core::format::grid::List;
use stratann_core::place::Placement;
use stratann_kernel::bits::radius;
use stratann_kernel::columns::LANES;
use stratann_kernel::distance::dot_f32;
use stratann_kernel::element::widen;
use stratann_storage::Result;

use super::open::{GridIndex, StoredAxes};
use crate::base::Base;
use crate::files;
use crate::findings::{Finding, Report, Verification};
use crate::kinds::section::Section;
use crate::units::Held;

/// Difference that a product of two axes may have to that of orthonormal ones.
const ORTHONORMAL: f32 = 1e-3;
/// Difference that the length of a stored unit vector may have to 1.
const UNIT: f32 = 1e-3;

/// Opens the index, which compares all files with the manifest, and checks each list. The data file has been read once
/// before.
pub(crate) fn check(check: &mut Verification<'_>) -> Result<()> {
    let opened = check.open(|base| GridIndex::open(base, None, None));
    // A file that differs from the manifest is a finding already.
    if opened.as_ref().is_err_and(|e| check.has_found_in(&e.message)) {
        return Ok(());
    }
    let Some((base, grid)) = check.ok(opened) else { return Ok(()) };
    if !are_orthonormal(grid.axes(), check.manifest.dim) {
        check.found(&check.name_of(files::AXES), "the axes are not orthonormal");
    }
    let view = grid.view();
    let mut ids = HashSet::with_capacity(check.manifest.rows as usize);
    check.lists(files::GRID, view.lists(), |number| {
        let wrong = match view.list(number) {
            Some(list) => check_list(&base, &grid, &list, &mut ids),
            None => Some("it is not in the file".into()),
        };
        wrong.map(|what| (Some(view.starts[2 * number as usize]), what))
    })
}

fn are_orthonormal(axes: &StoredAxes, dim: usize) -> bool {
    let StoredAxes::Rotated(floats) = axes else { return true };
    let axis = |i: usize| &floats[i * dim..(i + 1) * dim];
    let is_close = |i: usize, j: usize| {
        let wanted = if i == j { 1.0 } else { 0.0 };
        (dot_f32(axis(i), bytemuck::cast_slice(axis(j))) - wanted).abs() <= ORTHONORMAL
    };
    (0..dim).all(|i| (0..=i).all(|j| is_close(i, j)))
}

/// Damage of a list; `None` for nothing.
fn check_list(base: &Base, grid: &GridIndex, list: &List<'_>, ids: &mut HashSet<u64>) -> Option<String> {
    let layout = &grid.layout;
    let mut floats = vec![0f32; layout.dim()];
    let mut stored = Vec::new();
    let reference: Vec<f32> = list.reference().collect();
    for member in 0..list.members() {
        if !ids.insert(list.external_id(member)) {
            return Some(format!("member {member} has the id of another vector"));
        }
        stored.clear();
        list.vector(member, &mut stored);
        widen(base.dtype, &stored, &mut floats);
        if floats.iter().any(|x| !x.is_finite()) {
            return Some(format!("member {member} is not finite"));
        }
        let mut factors = [1.0; LANES];
        list.factors(member / LANES, &mut factors);
        let factor = factors[member % LANES];
        let length = dot_f32(&floats, bytemuck::cast_slice(&floats)).sqrt() * factor;
        if layout.has_factors() && (length - 1.0).abs() > UNIT {
            return Some(format!("member {member} is no unit vector"));
        }
        if layout.has_norms() && !has_norms(list, layout.groups(), member, |g| &floats[layout.components(g)])
        {
            return Some(format!("a norm of member {member} is too small"));
        }
        floats.iter_mut().for_each(|x| *x *= factor);
        if !has_radius(grid, list, member, &floats, &reference) {
            return Some(format!("the radius of member {member} is too small"));
        }
    }
    None
}

/// Whether the point that the code of a member stands for is within its radius, where it has a code.
fn has_radius(grid: &GridIndex, list: &List<'_>, member: usize, vector: &[f32], reference: &[f32]) -> bool {
    let Some(codes) = grid.view().codes else { return true };
    let (radii, all) = list.codes(member / LANES);
    let size = codes.coder.layout().code_bytes();
    let code = all.get(member % LANES * size..).and_then(|all| all.get(..size));
    let stored = radius(radii, member % LANES);
    code.is_some_and(|code| codes.radius(vector.to_vec(), reference, code) <= stored * (1.0 + 1e-6))
}

fn has_norms<'a>(list: &List<'_>, groups: usize, member: usize, part: impl Fn(usize) -> &'a [f32]) -> bool {
    (0..groups).all(|group| {
        let (largest, codes) = list.norms(group, member / LANES);
        let norm = dot_f32(part(group), bytemuck::cast_slice(part(group))).sqrt();
        // A float's sum may be off by rounding.
        norm <= largest * f32::from(codes[member % LANES]) / 255.0 * (1.0 + 1e-5) + f32::MIN_POSITIVE
    })
}

/// Checks what every server has of a partitioned index: its file as a whole, and the slices of each list in it. Copies
/// must be equal, and all servers together must hold every vector once.
pub(crate) fn check_parts(check: &mut Verification<'_>, placement: &Placement) -> Result<()> {
    let manifest = check.manifest;
    let mut sums: Vec<Option<u64>> = vec![None; placement.all().len()];
    for server in 0..placement.servers() {
        check.progress.check_interrupted()?;
        let held = Held { placement, server };
        let opened = Base::open(check.folder, 0, manifest.clone(), &manifest.part_role(server))
            .and_then(|base| GridIndex::open(&base, Some(held), None));
        let Some(grid) = check.ok(opened) else { continue };
        let (name, entry) = manifest.file(&manifest.part_role(server))?;
        check_slices(&grid, held, (name, &mut sums), &mut check.report);
        check.report.files += 1;
        check.report.bytes += entry.bytes;
    }
    check.report.lists = Some(manifest.own(check.folder, Section::grid)?.facts.lists());
    check.report.nodes = manifest.rows;
    Ok(())
}

/// Checks the slices of one server against those of the servers before.
fn check_slices(
    grid: &GridIndex,
    held: Held<'_>,
    (name, sums): (&str, &mut Vec<Option<u64>>),
    report: &mut Report,
) {
    let view = grid.view();
    let mut found = |list, what: String| {
        report.found(Finding { list: Some(list), ..Finding::of(name, what) });
    };
    for list in 0..view.lists() {
        for slice in 0..view.slice_count() {
            let unit = view.unit(list, slice);
            match view.slice(list, slice) {
                None if held.holds(unit) => found(list, format!("its slice {slice} is not in the file")),
                Some(part) if held.holds(unit) => {
                    let sum = part.checksum();
                    if *sums[unit as usize].get_or_insert(sum) != sum {
                        found(list, format!("its slice {slice} is not that of another server"));
                    }
                }
                _ => {}
            }
        }
    }
}
