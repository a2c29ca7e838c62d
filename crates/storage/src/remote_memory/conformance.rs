//! Duties of remote memory, whatever its back end; each one runs this in its tests.

use super::operation::{OPERATIONS_MAX, WRITE_BYTES_MAX};
use super::{MemoryError, Operation, Range, RemoteMemory};

/// Smallest region that [`check`] can use.
pub const REGION_BYTES_MIN: u64 = 1 << 20;
/// Threads of the test of atomic operations.
const THREADS: u64 = 4;
/// Operations of each.
const ROUNDS: u64 = 500;

/// Runs the contract against the region of one node, which `connect` connects to. It overwrites the region.
///
/// # Panics
/// When the back end breaks the contract.
pub fn check(connect: &(dyn Fn() -> Box<dyn RemoteMemory> + Sync)) {
    let mut memory = connect();
    let facts = memory.facts();
    assert!(facts.region_bytes >= REGION_BYTES_MIN && facts.epoch != 0);
    reads_return_what_was_written(memory.as_mut());
    writes_are_applied_in_order(memory.as_mut());
    operations_run_in_order(memory.as_mut());
    mistakes_are_refused_whole(memory.as_mut());
    another_connection_sees_changes(memory.as_mut(), connect().as_mut());
    atomic_operations_are_exact(connect);
    words_are_never_torn(connect);
    assert_eq!(memory.facts(), facts, "facts do not change");
}

fn pattern(bytes: usize, seed: u64) -> Vec<u8> {
    (0..bytes as u64).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn read(memory: &mut dyn RemoteMemory, offset: u64, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    memory.read(&[Range { offset, bytes: bytes as u32 }], &mut into).expect("a read succeeds");
    into
}

/// All lengths and offsets within words, many ranges, adjacent and overlapping ones, large ones.
fn reads_return_what_was_written(memory: &mut dyn RemoteMemory) {
    let size = (1 << 20) - 4096;
    let whole = pattern(size, 1);
    memory.write(&[(0, &whole)]).expect("a write succeeds");
    assert_eq!(read(memory, 0, size), whole);
    for offset in 0..9usize {
        for bytes in 0..20usize {
            assert_eq!(read(memory, offset as u64, bytes), whole[offset..offset + bytes]);
            let own = pattern(bytes, 7 + offset as u64);
            memory.write(&[(1000 + offset as u64, &own)]).expect("a write succeeds");
            let mut expected = whole[990..1040].to_vec();
            expected[10 + offset..10 + offset + bytes].copy_from_slice(&own);
            assert_eq!(read(memory, 990, 50), expected, "{bytes} bytes at {offset}");
            memory.write(&[(990, &whole[990..1040])]).expect("a write succeeds");
        }
    }
    let many: Vec<Range> = (0..OPERATIONS_MAX as u64)
        .map(|i| Range { offset: i * 7919 % (size as u64 - 300), bytes: (i % 300) as u32 })
        .collect();
    let adjacent: Vec<Range> = (0..100).map(|i| Range { offset: 5 + i * 3, bytes: 3 }).collect();
    let overlapping = vec![Range { offset: 10, bytes: 100 }, Range { offset: 50, bytes: 100 }];
    for ranges in [many, adjacent, overlapping, Vec::new()] {
        let expected: Vec<u8> = ranges
            .iter()
            .flat_map(|range| &whole[range.offset as usize..][..range.bytes as usize])
            .copied()
            .collect();
        let mut into = vec![0; expected.len()];
        memory.read(&ranges, &mut into).expect("a doorbell succeeds");
        assert_eq!(into, expected);
    }
    let end = memory.facts().region_bytes;
    memory.write(&[(end - 5, b"limit")]).expect("the last bytes are in the region");
    assert_eq!(read(memory, end - 5, 5), b"limit");
}

fn writes_are_applied_in_order(memory: &mut dyn RemoteMemory) {
    memory.write(&[(64, &[1; 32]), (72, &[2; 16]), (75, &[3; 2])]).expect("a write succeeds");
    let expected = [vec![1; 8], vec![2; 3], vec![3; 2], vec![2; 11], vec![1; 8]].concat();
    assert_eq!(read(memory, 64, 32), expected);
}

fn operations_run_in_order(memory: &mut dyn RemoteMemory) {
    memory.write(&[(128, &5u64.to_le_bytes())]).expect("a write succeeds");
    let (mut before, mut between, mut after) = ([0; 8], [0; 8], [0; 12]);
    let mut operations = [
        Operation::Read { offset: 128, into: &mut before },
        Operation::FetchAdd { offset: 128, add: 10, old: 0 },
        Operation::Read { offset: 128, into: &mut between },
        Operation::CompareSwap { offset: 128, expected: 15, new: 77, old: 0 },
        Operation::CompareSwap { offset: 128, expected: 15, new: 99, old: 0 },
        Operation::FetchAdd { offset: 128, add: u64::MAX, old: 0 },
        Operation::Write { offset: 136, from: &[9; 4] },
        Operation::Read { offset: 128, into: &mut after },
    ];
    memory.execute(&mut operations).expect("a request succeeds");
    let old: Vec<u64> = operations.iter().map(Operation::old).collect();
    assert_eq!(old, [0, 5, 0, 15, 77, 77, 0, 0]);
    assert_eq!((u64::from_le_bytes(before), u64::from_le_bytes(between)), (5, 15));
    assert_eq!(after[..8], 76u64.to_le_bytes(), "a sum wraps around");
    assert_eq!(after[8..], [9; 4]);
    assert_eq!(memory.fetch_add(128, 1).expect("an atomic operation succeeds"), 76);
    assert_eq!(memory.compare_swap(128, 77, 0).expect("an atomic operation succeeds"), 77);
    assert_eq!(memory.compare_swap(128, 77, 5).expect("an atomic operation succeeds"), 0);
}

/// A request with a mistake changes nothing, and the next one is executed.
fn mistakes_are_refused_whole(memory: &mut dyn RemoteMemory) {
    let region_bytes = memory.facts().region_bytes;
    memory.write(&[(256, &[1; 8])]).expect("a write succeeds");
    let (mut eight, mut many) = ([0; 8], vec![[0u8; 1]; OPERATIONS_MAX + 1]);
    let far = |offset: u64, bytes: u64| MemoryError::OutOfBounds { offset, bytes, region_bytes };
    let mistakes = [
        (Operation::Read { offset: region_bytes - 7, into: &mut eight }, far(region_bytes - 7, 8)),
        (Operation::Write { offset: u64::MAX - 3, from: &[0; 8] }, far(u64::MAX - 3, 8)),
        (Operation::Write { offset: region_bytes, from: &[0; 1] }, far(region_bytes, 1)),
        (Operation::FetchAdd { offset: 260, add: 1, old: 0 }, MemoryError::Unaligned { offset: 260 }),
        (
            Operation::CompareSwap { offset: region_bytes.next_multiple_of(8), expected: 0, new: 1, old: 0 },
            far(region_bytes.next_multiple_of(8), 8),
        ),
    ];
    for (mistake, expected) in mistakes {
        let first = Operation::Write { offset: 256, from: &[2; 8] };
        assert_eq!(memory.execute(&mut [first, mistake]), Err(expected));
        assert_eq!(read(memory, 256, 8), [1; 8], "nothing of the request was executed");
    }
    let mut operations: Vec<Operation<'_>> =
        many.iter_mut().map(|into| Operation::Read { offset: 0, into }).collect();
    let (count, limit) = (operations.len() as u64, OPERATIONS_MAX as u64);
    let too_many = MemoryError::TooMany { operations: count, limit };
    assert_eq!(memory.execute(&mut operations), Err(too_many));
    let huge = vec![0; (WRITE_BYTES_MAX + 1) as usize];
    let too_large = |bytes, limit| Err(MemoryError::TooLarge { bytes, limit });
    assert_eq!(memory.write(&[(0, &huge)]), too_large(WRITE_BYTES_MAX + 1, WRITE_BYTES_MAX));
    assert_eq!(read(memory, 256, 8), [1; 8]);
}

fn another_connection_sees_changes(one: &mut dyn RemoteMemory, other: &mut dyn RemoteMemory) {
    assert_eq!(one.facts(), other.facts());
    for round in 0..50u64 {
        one.write(&[(512, &round.to_le_bytes())]).expect("a write succeeds");
        assert_eq!(read(other, 512, 8), round.to_le_bytes());
        assert_eq!(other.fetch_add(520, 1).ok(), one.fetch_add(520, 1).ok().map(|old| old - 1));
    }
}

fn atomic_operations_are_exact(connect: &(dyn Fn() -> Box<dyn RemoteMemory> + Sync)) {
    let mut memory = connect();
    memory.write(&[(1024, &[0; 16])]).expect("a write succeeds");
    let add = || {
        let mut memory = connect();
        let mut seen = Vec::new();
        for _ in 0..ROUNDS {
            seen.push(memory.fetch_add(1024, 1).expect("an atomic operation succeeds"));
            // A sum by compare-and-swap.
            let mut known = 0;
            loop {
                let swap = memory.compare_swap(1032, known, known + 3);
                match swap.expect("an atomic operation succeeds") {
                    old if old == known => break,
                    old => known = old,
                }
            }
        }
        seen
    };
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(add)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a thread")).collect()
    });
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..THREADS * ROUNDS), "each value is seen once");
    let sums = [(THREADS * ROUNDS).to_le_bytes(), (3 * THREADS * ROUNDS).to_le_bytes()].concat();
    assert_eq!(read(memory.as_mut(), 1024, 16), sums);
}

/// Words that are written whole are read whole, while others write.
fn words_are_never_torn(connect: &(dyn Fn() -> Box<dyn RemoteMemory> + Sync)) {
    const WORDS: usize = 512;
    connect().write(&[(8192, &[0; 8 * WORDS])]).expect("a write succeeds");
    let write = |thread: u8| {
        let mut memory = connect();
        for round in 0..100u8 {
            let byte = round.wrapping_mul(2).wrapping_add(thread);
            memory.write(&[(8192, &[byte; 8 * WORDS])]).expect("a write succeeds");
        }
    };
    std::thread::scope(|scope| {
        (0..2).for_each(|thread| _ = scope.spawn(move || write(thread)));
        let mut memory = connect();
        for _ in 0..100 {
            let bytes = read(memory.as_mut(), 8192, 8 * WORDS);
            for word in bytes.chunks_exact(8) {
                assert!(word.iter().all(|byte| *byte == word[0]), "a torn word: {word:?}");
            }
        }
    });
}
