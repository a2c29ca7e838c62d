use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// Rows of more than two chunks; the last is short.
const ROWS: u32 = 2 * CHUNK_ROWS + 777;

fn sieve(rows: u32, ids: impl IntoIterator<Item = u32>) -> Sieve {
    Sieve::from_sorted(rows, &ids.into_iter().collect::<Vec<_>>()).unwrap()
}

fn sieve_of(other: &Sieve) -> Sieve {
    sieve(other.rows(), other.iter())
}

/// Sets of every form: few rows, many, runs, none, all.
fn sets() -> impl Strategy<Value = BTreeSet<u32>> {
    let some = |most: usize| proptest::collection::btree_set(0..ROWS, 0..most);
    let every = (1..9u32, 0..9u32).prop_map(|(step, first)| (first..ROWS).step_by(step as usize).collect());
    let run = (0..ROWS, 0..ROWS).prop_map(|(one, two)| (one.min(two)..one.max(two)).collect());
    let one_missing = (0..ROWS).prop_map(|gone| (0..ROWS).filter(|&id| id != gone).collect());
    prop_oneof![some(20), some(4000), every, run, one_missing]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn it_answers_as_a_set_of_numbers(ids in sets(), from in 0..ROWS + 70_000, length in 0..200_000u32) {
        let sieve = sieve(ROWS, ids.iter().copied());
        prop_assert_eq!(sieve.count() as usize, ids.len());
        prop_assert!(sieve.iter().eq(ids.iter().copied()));
        prop_assert_eq!(sieve.has(from), ids.contains(&from));
        prop_assert_eq!(sieve.next(from), ids.range(from..).next().copied());
        for range in [from..from.saturating_add(length), from..from + length % 100] {
            prop_assert_eq!(sieve.count_in(range.clone()) as usize, ids.range(range.clone()).count());
            prop_assert!(sieve.iter_in(range.clone()).eq(ids.range(range.clone()).copied()));
            prop_assert_eq!(sieve.has_any(range.clone()), ids.range(range).next().is_some());
        }
    }

    #[test]
    fn it_comes_back_from_its_bytes_and_no_others_are_panic(
        ids in sets(),
        cut in any::<prop::sample::Index>(),
        change in any::<u8>(),
    ) {
        let sieve = sieve(ROWS, ids);
        let mut bytes = Vec::new();
        sieve.encode(&mut bytes);
        prop_assert_eq!(bytes.len(), sieve.encoded_bytes());
        prop_assert_eq!(Sieve::decode(ROWS, &bytes), Ok(sieve));
        prop_assert!(Sieve::decode(ROWS - 1, &bytes).is_err());
        let at = cut.index(bytes.len());
        prop_assert!(Sieve::decode(ROWS, &bytes[..at]).is_err());
        bytes[at] ^= change;
        if let Ok(other) = Sieve::decode(ROWS, &bytes) {
            // What is accepted is in its usual form.
            let mut again = Vec::new();
            other.encode(&mut again);
            prop_assert_eq!(&again, &bytes);
            prop_assert_eq!(other.iter().count(), other.count() as usize);
            prop_assert_eq!(&sieve_of(&other), &other);
        }
        bytes.push(0);
        prop_assert!(Sieve::decode(ROWS, &bytes).is_err());
    }

    #[test]
    fn it_combines_as_sets_do(one in sets(), two in sets(), rows in 1..=ROWS) {
        let (a, b) = (sieve(ROWS, one.iter().copied()), sieve(ROWS, two.iter().copied()));
        prop_assert!(a.complement().iter().eq((0..ROWS).filter(|id| !one.contains(id))));
        prop_assert_eq!(&a.complement().complement(), &a);
        prop_assert_eq!(Sieve::from_words(ROWS, &a.to_words()), Some(a.clone()));
        prop_assert_eq!(a.intersection(&b), sieve(ROWS, one.intersection(&two).copied()));
        let shorter = sieve(rows, two.range(..rows).copied());
        let both = sieve(rows, one.intersection(&two).copied().filter(|&id| id < rows));
        prop_assert_eq!(&a.intersection(&shorter), &both);
        prop_assert_eq!(&shorter.intersection(&a), &both);
    }
}

#[test]
fn the_form_of_a_chunk_follows_from_its_rows() {
    let of = |ids: Range<u32>| sieve(CHUNK_ROWS, ids).chunks.remove(0);
    assert_eq!(of(0..0), Chunk::None);
    assert!(matches!(of(5..5 + LISTED_MAX as u32), Chunk::Listed(_)));
    assert!(matches!(of(5..6 + LISTED_MAX as u32), Chunk::Words(..)));
    assert_eq!(of(0..CHUNK_ROWS), Chunk::All);
    let fewer = sieve(CHUNK_ROWS, 5..6 + LISTED_MAX as u32).intersection(&sieve(CHUNK_ROWS, 6..CHUNK_ROWS));
    assert_eq!(fewer, sieve(CHUNK_ROWS, 6..6 + LISTED_MAX as u32));
    assert_eq!(Sieve::all(70_000), sieve(70_000, 0..70_000));
}

#[test]
fn rows_that_descend_repeat_or_lie_beyond_are_refused() {
    for ids in [&[3, 2][..], &[2, 2], &[0, 10], &[u32::MAX]] {
        assert_eq!(Sieve::from_sorted(10, ids), None);
    }
    let nothing = Sieve::from_sorted(0, &[]).unwrap();
    assert_eq!((nothing.count(), nothing.next(0), nothing.has(0)), (0, None, false));
    assert_eq!(nothing.count_in(0..u32::MAX), 0);
}

#[test]
fn words_are_as_many_as_rows_need_and_end_with_them() {
    let of = |rows, words: &[u64]| Sieve::from_words(rows, words).map(|sieve| sieve.count());
    assert_eq!([of(65, &[1, 1]), of(64, &[u64::MAX]), of(0, &[])], [Some(2), Some(64), Some(0)]);
    assert_eq!([of(65, &[1, 2]), of(65, &[1]), of(64, &[1, 0]), of(0, &[0])], [None; 4]);
}

#[test]
fn the_last_number_of_all_is_a_row_like_others() {
    let last = u32::MAX - 1;
    let sieve = sieve(u32::MAX, [0, last]);
    assert!(sieve.iter().eq([0, last]));
    assert_eq!((sieve.next(1), sieve.next(u32::MAX), sieve.has(u32::MAX)), (Some(last), None, false));
    assert_eq!(sieve.count_in(last..u32::MAX), 1);
}

#[test]
fn a_million_rows_take_130_kib_at_most() {
    let rows = 1_000_000;
    for step in [1, 2, 3, 50, 64, 70, 1000] {
        let bytes = sieve(rows, (0..rows).step_by(step)).bytes();
        assert!(bytes <= 130 << 10, "every {step}th row: {bytes}");
    }
}
