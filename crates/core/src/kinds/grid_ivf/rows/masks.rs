//! The rows that a query with a filter may return, as its jobs carry them: of the lists that a job visits, a bit for
//! each member. Other servers know nothing else of the filter, so a job without its masks cannot be.

use alloc::vec::Vec;
use core::ops::Range;

use stratann_kernel::columns::LANES;

use super::super::{GridIvf, View};
use super::wire::{bits_bytes, put_bits, take_bits};
use super::{Probe, Row, full, has_whole_lists, ones};
use crate::codec::{Reader, Refused, Writer, varint_bytes};
use crate::kinds::kind::StepContext;
use crate::sieve::Sieve;

/// The members of a list that may be returned.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Mask {
    list: u32,
    // A bit for each member of each block.
    words: Vec<u64>,
}

/// The ids of a list's members.
fn ids(view: &View<'_>, list: u32) -> Range<u32> {
    let first = view.first[list as usize];
    first..first + view.members(list) as u32
}

/// The masks of these lists, in the order of their numbers; none of a query without a filter.
pub(super) fn of<'p>(cx: &StepContext<'_, GridIvf>, lists: impl Iterator<Item = &'p Probe>) -> Vec<Mask> {
    let Some(sieve) = cx.base.sieve.filter(|_| cx.base.is_filtered) else { return Vec::new() };
    let mask = |list: u32| {
        let ids = ids(cx.view, list);
        let mut words = alloc::vec![0; ids.len().div_ceil(LANES)];
        for member in sieve.iter_in(ids.clone()).map(|id| (id - ids.start) as usize) {
            words[member / LANES] |= 1 << (member % LANES);
        }
        Mask { list, words }
    };
    let mut masks: Vec<Mask> = lists.map(|probe| mask(probe.list)).collect();
    masks.sort_unstable_by_key(|mask| mask.list);
    masks
}

/// The rows that the masks of a row name, if it has some. `None` where they do not fit its lists, or one of these has
/// none: a row from another server may say anything.
pub(super) fn sieve(row: &Row, view: &View<'_>, nodes: u32) -> Option<Option<Sieve>> {
    let masks = &row.masks;
    if masks.is_empty() {
        return Some(None);
    }
    let ascends = masks.windows(2).all(|pair| pair[0].list < pair[1].list);
    let has_mask = |probe: &Probe| masks.binary_search_by_key(&probe.list, |mask| mask.list).is_ok();
    if !ascends || !row.lists.iter().chain(&row.later).all(has_mask) {
        return None;
    }
    let mut rows = Vec::new();
    for mask in masks {
        let ids = if mask.list < view.lists() { ids(view, mask.list) } else { return None };
        if mask.words.len() != ids.len().div_ceil(LANES) {
            return None;
        }
        for (&word, from) in mask.words.iter().zip((0..ids.len()).step_by(LANES)) {
            if word & !full(ids.len() - from) != 0 {
                return None;
            }
            rows.extend(ones(word).map(|lane| ids.start + from as u32 + u32::from(lane)));
        }
    }
    Sieve::from_sorted(nodes, &rows).map(Some)
}

impl Row {
    /// All members of all lists are left that may be returned, but those that were scored before. Of whole lists
    /// nothing is kept: they are scanned at once.
    pub(super) fn begin(&mut self, cx: &StepContext<'_, GridIvf>) {
        self.begin_among(cx.view, cx.base.sieve.filter(|_| cx.base.is_filtered || !self.masks.is_empty()));
    }

    fn begin_among(&mut self, view: &View<'_>, sieve: Option<&Sieve>) {
        self.sums.clear();
        self.fine.clear();
        if has_whole_lists(view) {
            return;
        }
        for probe in &self.lists {
            let members = view.members(probe.list);
            let skipped = if probe.is_warm { view.prewarmed(probe.list) } else { 0 };
            for from in (0..members).step_by(LANES) {
                let all = full(members - from);
                let first = if from == 0 { full(skipped) } else { 0 };
                let id = view.first[probe.list as usize] + from as u32;
                let matches = sieve.map_or(u64::MAX, |sieve| bits(sieve, id));
                self.alive.push(all & !first & matches);
            }
        }
        self.sums.resize(self.left(), 0.0);
    }
}

/// A bit for each of a block's ids from this one on that may be returned.
fn bits(sieve: &Sieve, first: u32) -> u64 {
    let ids = sieve.iter_in(first..first.saturating_add(LANES as u32));
    ids.map(|id| 1u64 << (id - first)).sum()
}

/// Drops the masks of lists that the row has visited.
pub(super) fn keep_needed(row: &mut Row) {
    let mut lists: Vec<u32> = row.lists.iter().chain(&row.later).map(|probe| probe.list).collect();
    lists.sort_unstable();
    row.masks.retain(|mask| lists.binary_search(&mask.list).is_ok());
}

/// Bytes of masks in a message.
pub(super) fn bytes(masks: &[Mask]) -> u64 {
    let bytes = |mask: &Mask| varint_bytes(mask.list.into()) + bits_bytes(&mask.words, left(&mask.words));
    let count = if masks.is_empty() { 0 } else { varint_bytes(masks.len() as u64) };
    count + masks.iter().map(bytes).sum::<u64>()
}

fn left(words: &[u64]) -> usize {
    words.iter().map(|word| word.count_ones() as usize).sum()
}

/// Appends masks.
pub(super) fn encode(masks: &[Mask], w: &mut Writer<'_>) {
    w.varint(masks.len() as u64);
    for mask in masks {
        w.varint(mask.list.into());
        put_bits(&mask.words, left(&mask.words), w);
    }
}

/// Most words of the masks of a row: those of more than 200 million members.
const WORDS_MAX: usize = 1 << 22;

/// Reads what [`encode`] wrote.
pub(super) fn decode(r: &mut Reader<'_>) -> Result<Vec<Mask>, Refused> {
    let (mut masks, mut all) = (Vec::new(), 0);
    for _ in 0..r.count(super::super::MAX_PROBES)? {
        let list = u32::try_from(r.varint()?).map_err(|_| Refused::Content)?;
        let mut words = Vec::new();
        take_bits(r, 1, &mut words)?;
        all += words.len();
        if all > WORDS_MAX {
            return Err(Refused::Content);
        }
        masks.push(Mask { list, words });
    }
    Ok(masks)
}

/// Memory beside the struct itself, bytes.
pub(super) fn memory_bytes(masks: &Vec<Mask>) -> usize {
    masks.capacity() * size_of::<Mask>() + masks.iter().map(|mask| 8 * mask.words.capacity()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn masks_survive_their_bytes_and_nothing_else_is_read() {
        let dense = Mask { list: 3, words: vec![u64::MAX, 7] };
        let sparse = Mask { list: 700, words: vec![0, 1 << 63, 0, 0] };
        let masks = vec![dense, sparse, Mask { list: 701, words: vec![] }];
        let mut out = vec![];
        encode(&masks, &mut Writer(&mut out));
        assert_eq!(out.len() as u64, bytes(&masks));
        assert_eq!(decode(&mut Reader(&out)), Ok(masks));
        for end in 0..out.len() {
            assert!(decode(&mut Reader(&out[..end])).is_err(), "cut at {end}");
        }
        // Many empty masks of long lists would take much more memory than their bytes.
        let long = Mask { list: 1, words: vec![0; 1 << 16] };
        out.clear();
        encode(&vec![long; 65], &mut Writer(&mut out));
        assert_eq!(decode(&mut Reader(&out)), Err(Refused::Content));
    }
}
