//! Which lists share blocks: lists begin at a block where they can, and what is left of near lists is combined
//! (FusionANNS §4.3).
//!
//! Own members of a list stay a run of ids. A list of q blocks and a remainder therefore has its remainder at the end,
//! in a block that it shares with lists after it, or at the beginning, in a block that it shares with lists before it.
//! So a shared block has at most two remainders of lists with blocks of their own; others fit between them.

/// Lists after one that are looked at for its remainder.
const WINDOW: usize = 64;
/// A shared block that is filled to this share is not combined further.
const FULL: f64 = 0.97;

/// Lists in the order of their ids, and how many vectors each block has.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Packed {
    /// The old number of each list.
    pub(crate) lists: Vec<u32>,
    /// Vectors of each block.
    pub(crate) counts: Vec<u16>,
}

/// Rest of some lists, for one block.
#[derive(Clone, Debug)]
struct Shared {
    lists: Vec<u32>,
    filled: usize,
    /// Lists with blocks of their own.
    long: usize,
}

/// Packs lists of these sizes, which are in an order where near lists are mostly near each other, into blocks of
/// `capacity` vectors.
pub(crate) fn pack(sizes: &[u32], capacity: usize) -> Packed {
    let (mut shared, whole) = combine_near(sizes, capacity);
    combine_rest(&mut shared, capacity);
    // In the order of their first lists; whole ones stand alone.
    let alone = whole.into_iter().map(|list| Shared { lists: vec![list], filled: 0, long: 1 });
    shared.extend(alone);
    shared.sort_by_key(|block| block.lists[0]);
    let mut packed = Packed::default();
    for block in &shared {
        write(block, sizes, capacity, &mut packed);
    }
    packed
}

/// Combines remainders of lists that are near each other. Returns the shared blocks, and the lists without a remainder.
fn combine_near(sizes: &[u32], capacity: usize) -> (Vec<Shared>, Vec<u32>) {
    let remainder = |list: usize| sizes[list] as usize % capacity;
    let is_long = |list: usize| usize::from(sizes[list] as usize >= capacity);
    let (mut shared, mut whole) = (Vec::new(), Vec::new());
    let mut is_placed = vec![false; sizes.len()];
    for list in 0..sizes.len() {
        if is_placed[list] {
            continue;
        }
        if remainder(list) == 0 {
            whole.push(list as u32);
            continue;
        }
        let mut block = Shared { lists: vec![list as u32], filled: remainder(list), long: is_long(list) };
        let window = list + 1..sizes.len().min(list + WINDOW);
        for (other, is_placed) in window.clone().zip(&mut is_placed[window]) {
            let fits = remainder(other) > 0
                && !*is_placed
                && block.filled + remainder(other) <= capacity
                && block.long + is_long(other) <= 2;
            if fits {
                *is_placed = true;
                block.lists.push(other as u32);
                block.filled += remainder(other);
                block.long += is_long(other);
            }
        }
        shared.push(block);
    }
    (shared, whole)
}

/// Combines blocks that are not full, the fullest with the emptiest that fits (max–min).
fn combine_rest(shared: &mut Vec<Shared>, capacity: usize) {
    let is_full = |block: &Shared| block.filled as f64 >= FULL * capacity as f64;
    let (mut done, mut rest): (Vec<Shared>, Vec<Shared>) = shared.drain(..).partition(is_full);
    rest.sort_by_key(|block| (block.filled, block.lists[0]));
    let mut rest = std::collections::VecDeque::from(rest);
    while let Some(mut fullest) = rest.pop_back() {
        while let Some(emptiest) = rest.front() {
            if fullest.filled + emptiest.filled > capacity || fullest.long + emptiest.long > 2 {
                break;
            }
            fullest.filled += emptiest.filled;
            fullest.long += emptiest.long;
            fullest.lists.extend(rest.pop_front().into_iter().flat_map(|block| block.lists));
        }
        done.push(fullest);
    }
    *shared = done;
}

/// Appends the lists of a shared block, with the blocks that some have for themselves.
fn write(block: &Shared, sizes: &[u32], capacity: usize, packed: &mut Packed) {
    let is_long = |list: &u32| sizes[*list as usize] as usize >= capacity;
    let own_blocks = |list: u32| sizes[list as usize] as usize / capacity;
    let mut long = block.lists.iter().copied().filter(is_long);
    let (before, after) = (long.next(), long.next());
    let push_blocks = |list: Option<u32>, packed: &mut Packed| {
        let count = list.map_or(0, own_blocks);
        packed.counts.extend(std::iter::repeat_n(capacity as u16, count));
    };
    push_blocks(before, packed);
    if block.filled > 0 {
        packed.counts.push(block.filled as u16);
    }
    push_blocks(after, packed);
    packed.lists.extend(before);
    packed.lists.extend(block.lists.iter().copied().filter(|list| !is_long(list)));
    packed.lists.extend(after);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_list_is_a_run_in_as_few_blocks_as_it_needs(
            sizes in prop::collection::vec(prop_oneof![0u32..12, 0u32..70], 1..300), capacity in 1usize..31,
        ) {
            let packed = pack(&sizes, capacity);
            let mut lists = packed.lists.clone();
            lists.sort_unstable();
            prop_assert!(lists.into_iter().eq(0..sizes.len() as u32));
            prop_assert!(packed.counts.iter().all(|&count| (1..=capacity).contains(&usize::from(count))));
            let total = |counts: &[u16]| counts.iter().map(|&c| usize::from(c)).sum::<usize>();
            prop_assert_eq!(total(&packed.counts), sizes.iter().sum::<u32>() as usize);
            // The block of each id.
            let blocks: Vec<usize> = (0..).zip(&packed.counts).flat_map(|(b, &c)| vec![b; usize::from(c)]).collect();
            let mut first = 0;
            for &list in &packed.lists {
                let size = sizes[list as usize] as usize;
                if size > 0 {
                    let touched = blocks[first + size - 1] - blocks[first] + 1;
                    prop_assert_eq!(touched, size.div_ceil(capacity), "list {} of {}", list, size);
                }
                first += size;
            }
        }
    }

    #[test]
    fn blocks_of_small_lists_are_nearly_full() {
        let sizes: Vec<u32> =
            (0..10_000u64).map(|i| 4 + (stratann_core::build::hash(1, 0, i) % 13) as u32).collect();
        let packed = pack(&sizes, 30);
        let filled = sizes.iter().sum::<u32>() as f64 / (30 * packed.counts.len()) as f64;
        assert!(filled > 0.96, "{filled}");
        // Lists that share a block are near in the order: the paper's example combines neighbours first.
        let far = packed.lists.windows(2).filter(|w| w[0].abs_diff(w[1]) > 2 * WINDOW as u32).count();
        assert!(far < 500, "{far}");
    }
}
