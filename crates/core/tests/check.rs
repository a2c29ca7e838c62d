//! The checker finds each kind of damage, also where checksums were computed again.

use stratann_core::check::{Blocks, Checker, Violation};
use stratann_core::format::block::{BlockLayout, CodedNodes, Damage, Node, write};
use stratann_core::format::block_map::BlockMap;
use stratann_core::format::seeded_checksum;
use stratann_core::kinds::{disk_graph, flat};
use stratann_core::route::HeadGraph;
use stratann_core::view::Base;
use stratann_kernel::coder::Coder;
use stratann_kernel::trained_codes::Codebook;
use stratann_kernel::{DType, Metric};

const BLOCK: usize = 4096;
const DIM: usize = 3;
const COUNTS: [u32; 4] = [3, 2, 1, 2];
const NODES: u32 = 8;

/// Parts of a small index with four blocks; block 3 has no head node and is led to by node 0 alone.
struct Small {
    coder: Coder,
    map: BlockMap,
    head: HeadGraph,
    blocks: Vec<u8>,
}

fn shape(lists: bool) -> BlockLayout {
    BlockLayout {
        block_bytes: BLOCK,
        vector_bytes: 4 * DIM,
        id_bytes: 4,
        norms: true,
        adjacency: lists,
        code_bytes: 0,
        checksum_seed: 7,
    }
}

fn lists() -> [Vec<u32>; 8] {
    [vec![1, 6], vec![0, 3], vec![5], vec![4], vec![0], vec![2], vec![7], vec![0, 6]]
}

impl Small {
    fn new(lists: &[Vec<u32>; 8]) -> Small {
        Small::with(lists, |_| [1.0, 2.0, 3.0], |_| 0.5)
    }

    fn with(lists: &[Vec<u32>; 8], vector: impl Fn(u32) -> [f32; DIM], norm: impl Fn(u32) -> f32) -> Small {
        let vectors: Vec<Vec<u8>> =
            (0..NODES).map(|i| vector(i).iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        let (mut blocks, mut first) = (Vec::new(), 0);
        for (number, count) in COUNTS.into_iter().enumerate() {
            let nodes: Vec<Node<'_>> = (first..first + count)
                .map(|i| Node {
                    vector: &vectors[i as usize],
                    inverse_norm: norm(i),
                    external_id: u64::from(i) + 100,
                    neighbours: &lists[i as usize],
                })
                .collect();
            write(&shape(true), number as u32, first, &nodes, &[], &mut blocks);
            first += count;
        }
        let head = HeadGraph { ids: vec![0, 3, 5], starts: vec![0; 4], neighbours: vec![] };
        Small {
            coder: Coder::Trained(Codebook::default()),
            map: BlockMap::from_counts(COUNTS).unwrap(),
            head,
            blocks,
        }
    }

    fn index<'a>(&'a self, layout: &'a BlockLayout, codes: disk_graph::Codes<'a>) -> Blocks<'a> {
        let view = disk_graph::View {
            block: layout,
            blocks: COUNTS.len() as u32,
            coder: &self.coder,
            codes,
            map: &self.map,
            code_error: 0.0,
            vector_norm: 0.0,
            head: &self.head,
            resident: None,
        };
        view.checked(base(NODES))
    }

    fn check(&self) -> (Vec<Violation>, Checker) {
        check(&self.index(&shape(true), disk_graph::Codes::All(&[])), &self.blocks)
    }

    /// Changes bytes of a block and computes its checksum again.
    fn forge(mut self, block: usize, at: usize, bytes: &[u8]) -> Small {
        let block = &mut self.blocks[block * BLOCK..(block + 1) * BLOCK];
        block[at..at + bytes.len()].copy_from_slice(bytes);
        let sum = seeded_checksum(shape(true).checksum_seed, &block[8..]);
        block[..8].copy_from_slice(&sum.to_le_bytes());
        self
    }
}

fn base(nodes: u32) -> Base<'static> {
    Base::whole((Metric::Cosine, DType::F32), DIM, nodes)
}

fn check(index: &Blocks<'_>, blocks: &[u8]) -> (Vec<Violation>, Checker) {
    let (mut found, mut checker) = (Vec::new(), Checker::new(index));
    for (number, bytes) in blocks.chunks(BLOCK).enumerate() {
        checker.block(index, number as u32, bytes, &mut found);
    }
    let checker = checker.finish(index, &mut found);
    (found, checker)
}

#[test]
fn a_sound_index_passes() {
    let (found, checker) = Small::new(&lists()).check();
    assert_eq!(found, []);
    assert_eq!((checker.edges, checker.unreachable), (11, 0));
}

#[test]
fn a_damaged_block_is_found_and_its_neighbours_are_not_blamed() {
    for (at, damage) in [(0, Damage::Checksum), (2000, Damage::Checksum)] {
        let mut small = Small::new(&lists());
        small.blocks[BLOCK + at] ^= 1;
        assert_eq!(small.check().0, [Violation::Block { block: 1, damage }]);
    }
    let mut cut = Small::new(&lists());
    cut.blocks.pop();
    assert_eq!(cut.check().0, [Violation::Block { block: 3, damage: Damage::Short }]);
    let astray = Small::new(&lists()).forge(2, 8, &3u32.to_le_bytes());
    assert_eq!(astray.check().0, [Violation::Block { block: 2, damage: Damage::WrongBlock }]);
    let overfull = Small::new(&lists()).forge(2, 16, &u16::MAX.to_le_bytes());
    assert_eq!(overfull.check().0, [Violation::Block { block: 2, damage: Damage::Layout }]);
}

#[test]
fn nodes_that_are_not_where_the_map_says_are_found() {
    for (block, first) in [(0usize, 1u32), (1, 2), (1, 4), (3, 7), (2, u32::MAX)] {
        let moved = Small::new(&lists()).forge(block, 12, &first.to_le_bytes());
        assert_eq!(
            moved.check().0,
            [Violation::Misplaced { block: block as u32 }],
            "block {block} begins with {first}"
        );
    }
    let empty = Small::new(&lists()).forge(2, 16, &0u16.to_le_bytes());
    assert_eq!(empty.check().0, [Violation::Misplaced { block: 2 }]);
}

#[test]
fn missing_blocks_are_found() {
    let mut small = Small::new(&lists());
    small.blocks.truncate(3 * BLOCK);
    assert_eq!(small.check().0, [Violation::Misplaced { block: 4 }]);
}

#[test]
fn lists_that_make_no_sense_are_found() {
    let mut beyond = lists();
    beyond[4] = vec![0, NODES];
    assert_eq!(Small::new(&beyond).check().0, [Violation::List { node: 4 }]);
    let mut own = lists();
    own[7] = vec![6, 7];
    assert_eq!(Small::new(&own).check().0, [Violation::List { node: 7 }]);
    // The table of block 2, which has one node: its list ends far beyond the block.
    let table = 24 + 4 * DIM + 4 + 4;
    let endless = Small::new(&lists()).forge(2, table + 2, &u16::MAX.to_le_bytes());
    assert_eq!(endless.check().0, [Violation::List { node: 5 }]);
}

#[test]
fn numbers_that_are_not_finite_are_found() {
    let nan = Small::with(&lists(), |i| if i == 6 { [0.0, f32::NAN, 0.0] } else { [1.0; 3] }, |_| 0.5);
    assert_eq!(nan.check().0, [Violation::Vector { node: 6 }]);
    let norm = Small::with(&lists(), |_| [1.0; 3], |i| if i == 2 { f32::INFINITY } else { 0.5 });
    assert_eq!(norm.check().0, [Violation::Vector { node: 2 }]);
}

#[test]
fn nodes_of_a_block_that_nothing_leads_to_are_counted() {
    let mut cut_off = lists();
    cut_off[0] = vec![1];
    let (found, checker) = Small::new(&cut_off).check();
    assert_eq!(found, []);
    // Nodes 6 and 7 name each other, but nobody else names them.
    assert_eq!(checker.unreachable, 2);
    let mut led = Small::new(&cut_off);
    led.head.ids.push(7);
    led.head.starts.push(0);
    assert_eq!(led.check().1.unreachable, 0);
}

#[test]
fn flat_blocks_must_follow_each_other() {
    let mut blocks = Vec::new();
    let node = Node { vector: &[0; 4 * DIM], inverse_norm: 1.0, external_id: 1, neighbours: &[] };
    for (number, first) in [(0, 0), (1, 2), (2, 5)] {
        write(&shape(false), number, first, &[node, node], &[], &mut blocks);
    }
    let layout = shape(false);
    let index = flat::View { block: &layout, blocks: 3 }.checked(base(6));
    assert_eq!(check(&index, &blocks).0, [Violation::Misplaced { block: 2 }]);
    blocks.truncate(2 * BLOCK);
    write(&shape(false), 2, 4, &[node, node], &[], &mut blocks);
    assert_eq!(check(&index, &blocks).0, []);
    // After a block that cannot be read, the next may begin anywhere within the set.
    blocks[BLOCK + 100] ^= 1;
    assert_eq!(check(&index, &blocks).0, [Violation::Block { block: 1, damage: Damage::Checksum }]);
}

const CODE: usize = 4;

fn with_codes() -> BlockLayout {
    BlockLayout { code_bytes: CODE, ..shape(true) }
}

/// The blocks of [`Small`], with the codes that `code` gives a node in a block.
fn blocks_with_codes(lists: &[Vec<u32>; 8], code: impl Fn(u32, u32) -> [u8; CODE]) -> Vec<u8> {
    let (mut blocks, mut first) = (Vec::new(), 0);
    for (number, count) in (0..).zip(COUNTS) {
        let own = first..first + count;
        let node = |i: u32| Node {
            vector: &[0; 4 * DIM],
            inverse_norm: 0.5,
            external_id: u64::from(i),
            neighbours: &lists[i as usize],
        };
        let nodes: Vec<Node<'_>> = own.clone().map(node).collect();
        let coded = CodedNodes::new(first, nodes.len(), own.map(|i| lists[i as usize].as_slice()));
        let codes: Vec<u8> = coded.ids().iter().flat_map(|&id| code(number, id)).collect();
        write(&with_codes(), number, first, &nodes, &codes, &mut blocks);
        first += count;
    }
    blocks
}

#[test]
fn copies_of_a_code_must_agree() {
    let code = |_: u32, node: u32| [node as u8, 1, 2, 3];
    let small = Small::new(&lists());
    let check_with = |head: &[u8], blocks: &[u8]| {
        let layout = with_codes();
        let (found, checker) = check(&small.index(&layout, disk_graph::Codes::Head(head)), blocks);
        assert_eq!(checker.edges, 11);
        found
    };
    let head: Vec<u8> = small.head.ids.iter().flat_map(|&id| code(0, id)).collect();
    let sound = blocks_with_codes(&lists(), code);
    assert_eq!(check_with(&head, &sound), []);
    // Node 3 lies in block 1, and node 1 in block 0 names it.
    for (bad, met) in [(0, 0), (1, 1)] {
        let blocks = blocks_with_codes(&lists(), |block, node| {
            let mut code = code(block, node);
            code[2] ^= u8::from(block == bad && node == 3);
            code
        });
        assert_eq!(check_with(&head, &blocks), [Violation::Code { block: met, node: 3 }]);
    }
    // Without the head graph's codes the block that comes first is believed.
    let blocks =
        blocks_with_codes(&lists(), |block, node| [node as u8, u8::from(block == 0 && node == 3), 2, 3]);
    assert_eq!(check_with(&[], &blocks), [Violation::Code { block: 1, node: 3 }]);
    let mut other = head.clone();
    other[0] ^= 8;
    let found = check_with(&other, &sound);
    assert!(
        !found.is_empty() && found.iter().all(|v| matches!(v, Violation::Code { node: 0, .. })),
        "{found:?}"
    );
}
