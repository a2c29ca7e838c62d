//! Vectors of a `grid-ivf`, as they are in the data set.

use stratann_core::format::grid::List;
use stratann_kernel::DType;
use stratann_kernel::distance::inverse_norm;
use stratann_storage::{Error, Progress, Result};

use super::open::{GridIndex, StoredAxes};
use crate::base::Base;
use crate::kinds::answers::{Member, SeeMembers};
use crate::kinds::questions::Members;

/// Members that are shown at a time.
const RUN: usize = 1024;

impl Members for GridIndex {
    // One that is stored rotated, or as a unit vector, is turned back, and differs by rounding.
    fn member(&self, base: &Base, id: u32) -> Result<(u64, Vec<u8>)> {
        let view = self.view();
        let list = view.first.partition_point(|&first| first <= id).saturating_sub(1) as u32;
        let member = id.saturating_sub(view.first[list as usize]) as usize;
        let found = view.list(list).filter(|list| member < list.members());
        let found = found
            .ok_or_else(|| Error::bad_input(format!("vector {id} is not in {}", base.folder.display())))?;
        Ok((found.external_id(member), Turner::new(base, self).vector(&found, member)))
    }

    fn for_each_member(&self, base: &Base, progress: &dyn Progress, see: &mut SeeMembers<'_>) -> Result<()> {
        let view = self.view();
        let mut turner = Turner::new(base, self);
        for number in 0..view.lists() {
            let Some(list) = view.list(number) else { continue };
            for first in (0..list.members()).step_by(RUN) {
                progress.check_interrupted()?;
                let members = first..list.members().min(first + RUN);
                let vectors: Vec<Vec<u8>> = members.clone().map(|i| turner.vector(&list, i)).collect();
                let shown: Vec<Member<'_>> = members
                    .clone()
                    .zip(&vectors)
                    .map(|(i, vector)| Member {
                        id: view.first[number as usize] + i as u32,
                        vector,
                        inverse_norm: list.length(i).map_or(1.0, |_| inverse_norm(base.dtype, vector)),
                        external_id: list.external_id(i),
                    })
                    .collect();
                see(&shown);
                progress.advance(members.len() as u64);
            }
        }
        Ok(())
    }

    fn keeps_vectors(&self, base: &Base) -> bool {
        base.dtype != DType::F32
    }

    fn scan_work(&self, base: &Base) -> (u64, &'static str) {
        (base.manifest.rows, "rows")
    }
}

/// Turns stored vectors back into those of the data set.
struct Turner<'a> {
    size: usize,
    // Whether floats are stored as unit vectors, where lists have lengths.
    is_unit: bool,
    axes: &'a StoredAxes,
    stored: Vec<u8>,
}

impl<'a> Turner<'a> {
    fn new(base: &Base, grid: &'a GridIndex) -> Turner<'a> {
        Turner {
            size: base.dtype.size(),
            is_unit: base.dtype == DType::F32,
            axes: grid.axes(),
            stored: Vec::new(),
        }
    }

    fn vector(&mut self, list: &List<'_>, member: usize) -> Vec<u8> {
        self.stored.clear();
        list.vector(member, &mut self.stored);
        match self.axes {
            StoredAxes::Ordered(order) => {
                let mut out = vec![0; self.stored.len()];
                for (&c, bytes) in order.iter().zip(self.stored.chunks_exact(self.size)) {
                    out[self.size * c as usize..][..self.size].copy_from_slice(bytes);
                }
                if let Some(length) = list.length(member).filter(|_| self.is_unit) {
                    for x in out.as_chunks_mut::<4>().0 {
                        *x = (f32::from_le_bytes(*x) * length).to_le_bytes();
                    }
                }
                out
            }
            StoredAxes::Rotated(floats) => {
                let dim = self.stored.len() / self.size;
                let (matrix, means) = floats.split_at(dim * dim);
                let mut sums: Vec<f64> = means.iter().map(|&mean| f64::from(mean)).collect();
                for (x, axis) in self.stored.as_chunks::<4>().0.iter().zip(matrix.chunks_exact(dim)) {
                    let x = f64::from(f32::from_le_bytes(*x));
                    sums.iter_mut().zip(axis).for_each(|(sum, &a)| *sum += x * f64::from(a));
                }
                let length = f64::from(list.length(member).unwrap_or(1.0));
                sums.iter().flat_map(|&sum| ((sum * length) as f32).to_le_bytes()).collect()
            }
        }
    }
}
