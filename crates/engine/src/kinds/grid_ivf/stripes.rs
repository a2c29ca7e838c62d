//! Lists whose members are dealt over several: *striped*. Each of them may be on another server, so that every server
//! has an equal share of every list. HARMONY does not consider this division.

use stratann_core::PAGE;
use stratann_core::format::grid::{Copies, List};
use stratann_core::kinds::grid_ivf::prewarmed;
use stratann_storage::tier::Resident;
use stratann_storage::{Error, Progress, Result};

use super::facts::GridFacts;
use super::open::GridIndex;
use super::units::Places;
use crate::clusterings::sizes::SizeStats;

/// A grid whose lists are striped.
pub(crate) struct Striped {
    pub(crate) facts: GridFacts,
    pub(crate) sizes: Vec<u32>,
    pub(crate) places: Places,
    pub(crate) data: Resident,
}

/// Sizes of the lists that one of so many members is dealt over: equal, but for one.
pub(crate) fn sizes_of(members: u32, stripes: u32) -> impl Iterator<Item = u32> {
    (0..stripes).map(move |stripe| members / stripes + u32::from(stripe < members % stripes))
}

/// The members of each list that one of so many members is dealt over. The first one begins with those that are scored
/// first, and each goes on from near to far.
fn deal(members: u32, stripes: u32) -> Vec<Vec<usize>> {
    let sizes: Vec<usize> = sizes_of(members, stripes).map(|size| size as usize).collect();
    let first = sizes.first().map_or(0, |&size| prewarmed(size, (0, stripes)));
    let mut dealt: Vec<Vec<usize>> = sizes.iter().map(|&size| Vec::with_capacity(size)).collect();
    if let Some(list) = dealt.first_mut() {
        list.extend(0..first);
    }
    let mut member = first;
    while member < members as usize {
        for (list, &size) in dealt.iter_mut().zip(&sizes) {
            if list.len() < size && member < members as usize {
                list.push(member);
                member += 1;
            }
        }
    }
    dealt
}

impl GridIndex {
    /// Deals the members of each list over `stripes` lists. Takes as much memory as the vectors.
    ///
    /// # Errors
    /// No memory for them, an interruption.
    pub(crate) fn stripe(&self, stripes: u32, progress: &dyn Progress) -> Result<Striped> {
        let view = self.view();
        let members = |list: u32| view.members(list) as u32;
        let sizes: Vec<u32> = (0..view.lists()).flat_map(|list| sizes_of(members(list), stripes)).collect();
        let groups = self.layout.groups() as u32;
        let places = Places::new(&sizes, stripes, &self.layout, vec![0, groups]);
        let bytes = places.end.next_multiple_of(PAGE as u64).max(PAGE as u64);
        let mut data = usize::try_from(bytes).ok().and_then(Resident::new).ok_or_else(|| {
            Error::budget("there is no memory for the lists a second time; use another mode than striped")
        })?;
        let (mut out, mut at) = (Vec::new(), 0);
        progress.stage("dealing lists", view.lists().into(), "lists");
        for list in (0..view.lists()).filter_map(|list| view.list(list)) {
            progress.check_interrupted()?;
            for members in deal(list.members() as u32, stripes) {
                self.write(&list, members, &mut out);
                data[at..at + out.len()].copy_from_slice(&out);
                at += out.len();
            }
            progress.advance(1);
        }
        let stats: Vec<u64> = sizes.iter().map(|&size| size.into()).collect();
        let facts = GridFacts { sizes: SizeStats::of(&stats), stripes, ..self.facts.clone() };
        Ok(Striped { facts, sizes, places, data })
    }

    fn write(&self, list: &List<'_>, members: Vec<usize>, out: &mut Vec<u8>) {
        let mut copies = Copies::default();
        copies.take_members(list, members);
        out.clear();
        copies.write(&self.layout, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_dealt_evenly_and_once() {
        for members in [0, 1, 3, 63, 64, 257, 10_001] {
            for stripes in [1, 2, 7, 64] {
                let dealt = deal(members, stripes);
                let sizes: Vec<u32> = dealt.iter().map(|list| list.len() as u32).collect();
                assert_eq!(sizes, sizes_of(members, stripes).collect::<Vec<u32>>());
                let mut all: Vec<usize> = dealt.concat();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..members as usize));
                assert!(dealt.iter().all(|list| list.is_sorted()));
                let first = prewarmed(sizes[0] as usize, (0, stripes));
                assert!(dealt[0].iter().take(first).copied().eq(0..first));
            }
        }
    }
}
