//! Writes the lists, each with the members nearest to its centroid first.

use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use stratann_core::PAGE;
use stratann_core::format::grid::{GridLayout, ListMember, write_list};
use stratann_core::kinds::grid_ivf::{Codes, Pilot};
use stratann_kernel::distance::{dot_f32, inverse_norm, l2_f32};
use stratann_kernel::element::widen;
use stratann_kernel::{DType, Metric};
use stratann_storage::Result;
use stratann_storage::output::AtomicFile;

use super::axes::AxesFacts;
use crate::dataset::Scan;
use crate::files;
use crate::kinds::grid_ivf::facts::{GridFacts, SizeStats, coarser, code_layout};
use crate::kinds::grid_ivf::open::{AxesFile, StoredAxes, StoredCoder};
use crate::kinds::grid_ivf::units::Places;
use crate::manifest::BlockShape;
use crate::stages::build::Build;
use crate::stages::cells;
use crate::stages::list_rows::{ListRows, RowsOfList};
use crate::stages::space::Space;
use crate::stages::tables::{read_table, write_table};

/// One part in so many of the components is stored component by component, and one group at least.
const COLUMN_PART: usize = 4;

/// Facts of the lists, and shape of the blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) facts: GridFacts,
    pub(super) blocks: BlockShape,
}

pub(super) fn run(
    build: &Build<'_>,
    space: &Space,
    scan: &Scan,
    count: u32,
    found: AxesFacts,
) -> Result<Written> {
    let shape = build.base.shape();
    let list_of_row: Vec<u32> = read_table(&build.partial.path(cells::OF_ROW))?;
    let centroids: Vec<f32> = read_table(&build.file(files::CENTROIDS))?;
    let axes = build.file(files::AXES);
    let bytes: Vec<u8> = read_table(&axes)?;
    let layout = layout(build, &found);
    let stored = AxesFile::decode(&bytes, &layout);
    let AxesFile { axes, pilot, coder } = stored.ok_or_else(|| files::senseless(&axes))?;
    let mut sizes = vec![0u32; count as usize];
    list_of_row.iter().filter(|&&list| list != u32::MAX).for_each(|&list| sizes[list as usize] += 1);
    write_table(&build.file(files::SIZES), &sizes)?;
    let places = Places::new(&sizes, 1, &layout, vec![0, layout.groups() as u32]);
    let first = &places.first;
    let bytes = places.end.next_multiple_of(PAGE as u64).max(PAGE as u64);
    let out = AtomicFile::create(&build.file(files::GRID))?;
    out.set_len(bytes)?;
    build.progress.stage("writing lists", scan.rows, "rows");
    let rows =
        ListRows { build, list_of_row: &list_of_row, first, vector_bytes: shape.dim * shape.dtype.size() };
    let pilot = pilot.as_ref().map(|pilot| pilot.view(found.pilot_step));
    let codes = coder.as_ref().map(StoredCoder::view);
    let writer = Writer { build, space, layout: &layout, axes: &axes, pilot, codes, centroids: &centroids };
    let farthest = Mutex::new(0f32);
    rows.write_each(
        scan,
        || (),
        |(), of| {
            let EncodedList { bytes, rows, distance } = writer.list(of);
            out.write_at(&bytes, places.starts[2 * of.list as usize])?;
            let mut farthest = farthest.lock().unwrap_or_else(|e| e.into_inner());
            *farthest = farthest.max(distance);
            Ok(rows)
        },
    )?;
    out.commit()?;
    let made_from =
        [build.file(files::CENTROIDS), build.file(files::AXES), build.partial.path(cells::OF_ROW)];
    let blocks = BlockShape::of_pages(bytes, layout.id_bytes, build.checksum_seed(&made_from)?);
    let farthest = farthest.into_inner().unwrap_or_else(|e| e.into_inner());
    let sizes: Vec<u64> = sizes.iter().map(|&size| u64::from(size)).collect();
    let AxesFacts { scale_exponent, pilot, pilot_step, code_bits, keeps_digits } = found;
    let is_exact = !shape.dtype.is_float() && layout.metric != Metric::Cosine;
    let reach = reach(&centroids, shape.dim, layout.metric, farthest);
    let scale_exponent = if is_exact { 0 } else { coarser(scale_exponent, reach) };
    let GridLayout { edges, columns, .. } = layout;
    let sizes = SizeStats::of(&sizes);
    let axes =
        GridFacts { scale_exponent, pilot, pilot_step, code_bits, keeps_digits, ..GridFacts::default() };
    Ok(Written { facts: GridFacts { sizes, stripes: 1, edges, columns, ..axes }, blocks })
}

/// The square of how far vectors may be from the first centroid, or from zero where products are summed. No vector is
/// farther than `farthest`, squared, from its centroid.
fn reach(centroids: &[f32], dim: usize, metric: Metric, farthest: f32) -> f64 {
    let zero = vec![0.0; dim];
    let from = if metric == Metric::Ip { &zero[..] } else { &centroids[..dim] };
    let distances = centroids.chunks_exact(dim).map(|point| l2_f32(from, bytemuck::cast_slice(point)));
    2.0 * (f64::from(distances.fold(0f32, f32::max)) + f64::from(farthest))
}

/// The layout of the lists of this build.
fn layout(build: &Build<'_>, &AxesFacts { pilot, code_bits, .. }: &AxesFacts) -> GridLayout {
    let shape = build.base.shape();
    let edges = GridLayout::edges_of(shape.dim);
    let is_early = |edge: &&u32| (**edge as usize) <= shape.dim / COLUMN_PART;
    let early = edges[1..].iter().filter(is_early).count().max(1);
    // After a pilot or codes few are left.
    let columns = if pilot > 0 || code_bits > 0 { 0 } else { early };
    let (dtype, metric, id_bytes) = (shape.dtype, build.options.metric, build.id_bytes());
    GridLayout { dtype, metric, edges, columns, id_bytes, pilot, code: code_layout(shape.dim, code_bits) }
}

struct Writer<'a> {
    build: &'a Build<'a>,
    space: &'a Space,
    layout: &'a GridLayout,
    axes: &'a StoredAxes,
    pilot: Option<Pilot<'a>>,
    codes: Option<Codes<'a>>,
    centroids: &'a [f32],
}

struct EncodedList {
    bytes: Vec<u8>,
    /// Rows of the list, in the order of their ids.
    rows: Vec<u32>,
    /// Squared distance of the last row from the centroid.
    distance: f32,
}

impl Writer<'_> {
    fn list(&self, of: &RowsOfList<'_>) -> EncodedList {
        let rows = of.rows;
        let mut floats = vec![0f32; self.layout.dim()];
        let size = floats.len() * self.layout.dtype.size();
        let vector = |i: usize| &of.vectors[i * size..(i + 1) * size];
        let centroid = &self.centroids[of.list as usize * floats.len()..][..floats.len()];
        let mut order: Vec<(f32, usize)> = (0..rows.len())
            .map(|i| {
                self.space.code_floats(vector(i), &mut floats);
                (l2_f32(&floats, bytemuck::cast_slice(centroid)), i)
            })
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(rows[a.1].cmp(&rows[b.1])));
        let pilots: Vec<(Vec<u8>, f32)> =
            order.iter().map(|&(_, i)| self.code(vector(i), &mut floats)).collect();
        let radius = pilots.iter().map(|pilot| pilot.1).fold(0f32, f32::max);
        let stored: Vec<Vec<u8>> = order.iter().map(|&(_, i)| self.stored(vector(i), &mut floats)).collect();
        let reference = self.codes.map_or(Vec::new(), |codes| codes.reference(self.axes.turned(centroid)));
        let codes: Vec<(Vec<u8>, f32)> = order
            .iter()
            .zip(&stored)
            .map(|(&(_, i), stored)| self.bits(vector(i), stored, &reference))
            .collect();
        let members: Vec<ListMember<'_>> = order
            .iter()
            .zip(stored.iter().zip(pilots.iter().zip(&codes)))
            .map(|(&(_, i), (stored, ((pilot, _), (code, radius))))| ListMember {
                pilot,
                code,
                radius: *radius,
                ..self.member(vector(i), stored, self.build.external_id(rows[i]))
            })
            .collect();
        let mut bytes = Vec::new();
        write_list(self.layout, &members, (radius, &reference), &mut bytes);
        self.build.progress.advance(rows.len() as u64);
        let distance = order.last().map_or(0.0, |last| last.0);
        EncodedList { bytes, rows: order.iter().map(|&(_, i)| rows[i]).collect(), distance }
    }

    /// The code of a vector in all components, as it is stored, and its radius.
    fn bits(&self, vector: &[u8], stored: &[u8], reference: &[f32]) -> (Vec<u8>, f32) {
        let Some(codes) = self.codes else { return (Vec::new(), 0.0) };
        let mut floats = vec![0f32; self.layout.dim()];
        widen(self.layout.dtype, stored, &mut floats);
        let factor = self.member(vector, stored, 0).factor;
        floats.iter_mut().for_each(|x| *x *= factor);
        let mut code = vec![0; codes.coder.layout().code_bytes()];
        let radius = codes.encode(floats, reference, &mut code);
        (code, radius)
    }

    /// The code of a vector, and a bound of its distance from it.
    fn code(&self, vector: &[u8], floats: &mut [f32]) -> (Vec<u8>, f32) {
        let Some(pilot) = &self.pilot else { return (Vec::new(), 0.0) };
        self.space.code_floats(vector, floats);
        let mut turned = Vec::new();
        pilot.turn(floats, &mut turned);
        let codes: Vec<u8> = turned.iter().map(|x| x.round() as u8).collect();
        let squares: f64 =
            turned.iter().zip(&codes).map(|(&x, &c)| f64::from(x - f32::from(c)).powi(2)).sum();
        // More than components lose by rounding.
        let length = f64::from(dot_f32(floats, bytemuck::cast_slice(floats))).sqrt();
        (codes, (squares.sqrt() * f64::from(pilot.step) * 1.0001 + 1e-5 * length) as f32)
    }

    /// A vector as it is stored.
    fn stored(&self, vector: &[u8], floats: &mut [f32]) -> Vec<u8> {
        match self.axes {
            StoredAxes::Rotated(_) => {
                self.space.code_floats(vector, floats);
                bytemuck::cast_slice(&self.axes.turned(floats)).to_vec()
            }
            StoredAxes::Ordered(order) if self.layout.dtype == DType::F32 => {
                self.space.code_floats(vector, floats);
                order.iter().flat_map(|&c| floats[c as usize].to_le_bytes()).collect()
            }
            StoredAxes::Ordered(order) => {
                let size = self.layout.dtype.size();
                order.iter().flat_map(|&c| &vector[size * c as usize..][..size]).copied().collect()
            }
        }
    }

    fn member<'m>(&self, vector: &[u8], stored: &'m [u8], external_id: u64) -> ListMember<'m> {
        let dtype = self.layout.dtype;
        let (mut factor, mut length) = (1.0, 1.0);
        if self.layout.metric == Metric::Cosine {
            let inverse = inverse_norm(dtype, vector);
            // Floats are stored as unit vectors.
            (factor, length) = if dtype == DType::F32 { (1.0, 1.0 / inverse) } else { (inverse, 1.0) };
        }
        ListMember { external_id, vector: stored, factor, length, pilot: &[], code: &[], radius: 0.0 }
    }
}
