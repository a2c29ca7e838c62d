//! Checks the files of a `grid-ivf`, and what must hold between them.

use std::collections::HashSet;
use std::path::Path;

use stratann_core::format::grid::List;
use stratann_core::place::Placement;
use stratann_kernel::columns::LANES;
use stratann_kernel::distance::dot_f32;
use stratann_kernel::element::widen;
use stratann_storage::{Error, Progress, Result};

use super::open::{GridIndex, StoredAxes};
use crate::base::Base;
use crate::files;
use crate::findings::{Finding, Report, file_in};
use crate::manifest::Manifest;
use crate::units::Held;

/// How far a product of two axes may be from that of orthonormal ones.
const ORTHONORMAL: f32 = 1e-3;
/// How far the length of a stored unit vector may be from 1.
const UNIT: f32 = 1e-3;

/// Opens the index, which compares all files with the manifest, and checks each list. The data file has been read once
/// before.
pub(crate) fn check(
    folder: &Path,
    number: u64,
    manifest: &Manifest,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let opened = Base::open(folder, number, manifest.clone(), files::GRID)
        .and_then(|base| GridIndex::open(&base, None, None).map(|grid| (base, grid)));
    let (base, grid) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            let file = file_in(&e.message, manifest);
            // A file that differs from the manifest is a finding already.
            if report.violations.iter().all(|finding| finding.file != file) {
                report.found(Finding { file, what: e.message, ..Finding::default() });
            }
            return Ok(());
        }
    };
    let file_of = |role| manifest.file(role).map_or_else(|_| role.into(), |(name, _)| name.to_string());
    if !are_orthonormal(grid.axes(), manifest.dim) {
        let what = "the axes are not orthonormal".into();
        report.found(Finding { file: file_of(files::AXES), what, ..Finding::default() });
    }
    let view = grid.view();
    let (mut ids, name) = (HashSet::with_capacity(manifest.rows as usize), file_of(files::GRID));
    for number in 0..view.lists() {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let wrong = match view.list(number) {
            Some(list) => check_list(&base, &grid, &list, &mut ids),
            None => Some("it is not in the file".into()),
        };
        if let Some(what) = wrong {
            let offset = Some(view.starts[2 * number as usize]);
            report.found(Finding { file: name.clone(), list: Some(number), offset, what, block: None });
        }
    }
    report.lists = Some(view.lists());
    report.nodes = manifest.rows;
    Ok(())
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

/// What is wrong with a list; `None` for nothing.
fn check_list(base: &Base, grid: &GridIndex, list: &List<'_>, ids: &mut HashSet<u64>) -> Option<String> {
    let layout = &grid.layout;
    let mut floats = vec![0f32; layout.dim()];
    let mut stored = Vec::new();
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
    }
    None
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
pub(crate) fn check_parts(
    folder: &Path,
    manifest: &Manifest,
    placement: &Placement,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let mut sums: Vec<Option<u64>> = vec![None; placement.all().len()];
    for server in 0..placement.servers() {
        if progress.interrupted() {
            return Err(Error::interrupted());
        }
        let name = manifest.part_name(server).unwrap_or(".").to_string();
        let held = Held { placement, server };
        let opened = Base::open(folder, 0, manifest.clone(), &manifest.part_role(server))
            .and_then(|base| GridIndex::open(&base, Some(held), None));
        let grid = match opened {
            Ok(grid) => grid,
            Err(e) => {
                report.found(Finding {
                    file: file_in(&e.message, manifest),
                    what: e.message,
                    ..Finding::default()
                });
                continue;
            }
        };
        check_slices(&grid, held, (&name, &mut sums), report);
        report.files += 1;
        report.bytes += manifest.file(&manifest.part_role(server))?.1.bytes;
    }
    report.lists = Some(manifest.grid(folder)?.facts.lists());
    report.nodes = manifest.rows;
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
    let mut found = |list, what| {
        report.found(Finding { file: name.into(), list: Some(list), what, ..Finding::default() });
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
