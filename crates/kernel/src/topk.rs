//! The k smallest of a stream, ordered by `(distance, id)`.

/// One scored row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Smaller is closer; never NaN.
    pub distance: f32,
    /// Ties are broken by the smaller id.
    pub id: u64,
}

impl Scored {
    /// Total order by `(distance, id)`.
    pub fn order(&self, other: &Scored) -> std::cmp::Ordering {
        self.distance.total_cmp(&other.distance).then(self.id.cmp(&other.id))
    }
}

/// Keeps the k smallest entries, independent of the order of pushes.
#[derive(Clone, Debug)]
pub struct TopK {
    k: usize,
    // A max-heap by `Scored::order`: the worst kept entry is at the root.
    heap: Vec<Scored>,
}

impl TopK {
    /// Creates an empty set of at most `k` entries.
    pub fn new(k: usize) -> Self {
        TopK { k, heap: Vec::with_capacity(k) }
    }

    /// The largest kept distance once k entries are kept, infinity before: the pruning threshold of a scan.
    pub fn threshold(&self) -> f32 {
        if self.heap.len() < self.k {
            f32::INFINITY
        } else {
            self.heap.first().map_or(f32::NEG_INFINITY, |s| s.distance)
        }
    }

    /// Inserts an entry if it is among the k smallest.
    pub fn push(&mut self, entry: Scored) {
        if self.heap.len() < self.k {
            self.heap.push(entry);
            self.sift_up(self.heap.len() - 1);
        } else if self.heap.first().is_some_and(|worst| entry.order(worst).is_lt()) {
            self.heap[0] = entry;
            self.sift_down(0);
        }
    }

    /// The kept entries, closest first.
    pub fn into_sorted(mut self) -> Vec<Scored> {
        self.heap.sort_unstable_by(Scored::order);
        self.heap
    }

    fn sift_up(&mut self, mut i: usize) {
        while i > 0 {
            let parent = (i - 1) / 2;
            if self.heap[i].order(&self.heap[parent]).is_le() {
                break;
            }
            self.heap.swap(i, parent);
            i = parent;
        }
    }

    fn sift_down(&mut self, mut i: usize) {
        loop {
            let (left, right) = (2 * i + 1, 2 * i + 2);
            let mut largest = i;
            for child in [left, right] {
                if child < self.heap.len() && self.heap[child].order(&self.heap[largest]).is_gt() {
                    largest = child;
                }
            }
            if largest == i {
                break;
            }
            self.heap.swap(i, largest);
            i = largest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keeps_what_a_full_sort_keeps(distances in prop::collection::vec(0u8..20, 0..200), k in 0usize..30) {
            let all: Vec<Scored> = distances.iter().enumerate()
                .map(|(i, &d)| Scored { distance: f32::from(d), id: (i as u64 * 7919) % 211 }).collect();
            let mut top = TopK::new(k);
            all.iter().for_each(|&s| top.push(s));
            let mut naive = all;
            naive.sort_by(Scored::order);
            naive.truncate(k);
            prop_assert_eq!(top.into_sorted(), naive);
        }
    }
}
