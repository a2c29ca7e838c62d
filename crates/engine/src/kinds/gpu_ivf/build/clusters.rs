//! The centroids of the lists, by hierarchical balanced clustering. Where rows exceed the memory, they are first
//! divided into groups, which are clustered one after another.

use stratann_kernel::element::{narrow_f16, widen};
use stratann_kernel::{DType, distance};
use stratann_params::build::GpuOptions;
use stratann_storage::Result;

use crate::clusterings::balanced::Balanced;
use crate::clusterings::{evenly, hierarchy, order, sample_of};
use crate::dataset::Scan;
use crate::stages::build::Build;
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};

/// The centroids as points, f32: rounded to f16 where that tells them apart.
const CENTROIDS: &str = "list-centroids.tmp";
/// Rows that groups are found from, for each of them, and rounds.
const SAMPLE_PER_GROUP: usize = 128;
const ROUNDS: usize = 8;
/// Size that a group may reach, over the mean.
const ROOM: f64 = 1.25;
/// Rows that are assigned to groups at a time.
const ROWS: usize = 8192;

/// Number of lists.
pub(super) fn run(build: &Build<'_>, own: &GpuOptions, space: &Space, scan: &Scan) -> Result<u32> {
    let dim = space.point_dim();
    let leaves = own.lists(scan.rows);
    let live = build.live_rows(scan);
    let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
    let groups = groups(build, dim, live.len());
    let found = if groups <= 1 {
        let points = sample_of(dim, &live, load)?;
        drop(live);
        build.progress.stage("clustering", scan.rows, "rows");
        hierarchy::centroids(&points, dim, leaves, build.options.seed, build.progress)?
    } else {
        by_groups(build, space, (&live, groups), leaves)?
    };
    let mut numbers: Vec<u32> = (0..(found.len() / dim) as u32).collect();
    order::halve(&found, dim, &mut numbers, 1);
    let sorted = numbers.iter().flat_map(|&c| &found[c as usize * dim..][..dim]).copied();
    let stored: Vec<f32> = rounded(sorted.collect(), dim);
    write_table(&build.partial.path(CENTROIDS), &stored)?;
    Ok((stored.len() / dim) as u32)
}

/// The centroids, a point for each list.
pub(super) fn read(build: &Build<'_>) -> Result<Vec<f32>> {
    read_table(&build.partial.path(CENTROIDS))
}

/// Sorted centroids as f16 has them. Unchanged where one in twenty moves by more than a share of its distance from the
/// next one: far from zero, or very near to it, f16 does not tell them apart.
fn rounded(floats: Vec<f32>, dim: usize) -> Vec<f32> {
    const SHARE: f32 = 1e-3;
    let mut back = floats.clone();
    widen(DType::F16, &narrow_f16(&floats).collect::<Vec<u8>>(), &mut back);
    let moved = floats.chunks_exact(dim).zip(back.chunks_exact(dim)).map(|(a, b)| squared(a, b));
    let next = floats.chunks_exact(dim).zip(floats.chunks_exact(dim).skip(1)).map(|(a, b)| squared(a, b));
    let lost = moved.zip(next).filter(|(moved, next)| *moved > SHARE * next).count();
    if 20 * dim * lost > floats.len() { floats } else { back }
}

/// Centroids as they are stored: as f16 where that has all of their digits, else as f32.
pub(super) fn stored(centroids: &[f32]) -> Vec<u8> {
    let halves: Vec<u8> = narrow_f16(centroids).collect();
    let mut back = vec![0f32; centroids.len()];
    widen(DType::F16, &halves, &mut back);
    if back == centroids { halves } else { bytemuck::cast_slice(centroids).to_vec() }
}

/// Groups that are clustered one after another, so that each fits in memory.
fn groups(build: &Build<'_>, dim: usize, rows: usize) -> usize {
    let fit = (build.plan.cell_bytes as f64 / hierarchy::row_bytes(dim) as f64 / ROOM).max(1.0);
    (rows as f64 / fit).ceil() as usize
}

/// Divides rows into groups, and finds the centroids of each. Those of a group are kept in a file of its own, so that
/// an interrupted build goes on with the next.
fn by_groups(
    build: &Build<'_>,
    space: &Space,
    (live, count): (&[u32], usize),
    leaves: usize,
) -> Result<Vec<f32>> {
    let dim = space.point_dim();
    let load = |rows: &[u32], out: &mut [f32]| space.load_floats(build.base, rows, out);
    let room_rows = (build.plan.cell_bytes / (4 * dim as u64 + 4 * count as u64)) as usize;
    let wanted = (SAMPLE_PER_GROUP * count).min(live.len()).min(room_rows.max(count));
    let sample = sample_of(dim, &evenly(live, wanted), load)?;
    let seed = build.options.seed;
    build.progress.stage("clustering in groups", 2 * live.len() as u64, "rows");
    let mut balanced = Balanced::train(&sample, dim, count, ROUNDS, seed, build.progress)?;
    drop(sample);
    let room = (live.len() as f64 / count as f64 * ROOM).ceil() as u64;
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut points = vec![0f32; ROWS * dim];
    for rows in live.chunks(ROWS) {
        build.progress.check_interrupted()?;
        let points = &mut points[..rows.len() * dim];
        load(rows, points)?;
        let mut each = rows.iter();
        balanced.assign(points, room, |group| members[group].extend(each.next()));
        build.progress.advance(rows.len() as u64);
    }
    drop(points);
    let sizes: Vec<usize> = members.iter().map(Vec::len).collect();
    let shares = hierarchy::shares(&sizes, leaves);
    let mut all = Vec::new();
    for (group, rows) in members.iter().enumerate() {
        let path = build.partial.path(&format!("list-centroids-{group}.tmp"));
        if !path.exists() {
            let points = sample_of(dim, rows, load)?;
            let seed = seed.wrapping_add(1 + group as u64);
            let found = hierarchy::centroids(&points, dim, shares[group], seed, build.progress)?;
            write_table(&path, &found)?;
        }
        all.extend(read_table::<f32>(&path)?);
    }
    Ok(all)
}

/// Squared l2 of two points.
pub(super) fn squared(a: &[f32], b: &[f32]) -> f32 {
    distance::l2_f32(a, bytemuck::cast_slice(b))
}
