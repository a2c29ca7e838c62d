//! The structure of an HDF5 file: its superblock, object headers, groups and B-trees.
//!
//! Names and layouts are those of the HDF5 File Format Specification, version 3.0, sections II to IV. Lengths and
//! places are compared with the file before anything is allocated, and what is visited is counted, so that no file
//! leads to endless work.

use std::path::Path;

use stratann_storage::{Error, Result};

use super::fields::Fields;
use crate::dataset::source::Source;

const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";
/// Most bytes of a part that is read as a whole.
const PART_BYTES_MAX: u64 = 64 << 20;
/// Most messages of an object, and parts that they are in.
const MESSAGES_MAX: usize = 10_000;
/// Most entries of a B-tree.
const ENTRIES_MAX: usize = 1 << 22;
/// Most links of a group.
const LINKS_MAX: usize = 1 << 16;

/// Types of messages.
pub(super) mod kind {
    pub(crate) const DATASPACE: u16 = 1;
    pub(crate) const LINK_INFO: u16 = 2;
    pub(crate) const DATATYPE: u16 = 3;
    pub(crate) const LINK: u16 = 6;
    pub(crate) const LAYOUT: u16 = 8;
    pub(crate) const FILTERS: u16 = 11;
    pub(crate) const CONTINUATION: u16 = 16;
    pub(crate) const SYMBOL_TABLE: u16 = 17;
}

/// Flag of a message whose content is elsewhere.
const SHARED: u8 = 2;

/// A message of an object header.
pub(super) struct Message {
    pub(super) kind: u16,
    /// Whether its content is that of another object.
    pub(super) is_shared: bool,
    pub(super) body: Vec<u8>,
}

/// An HDF5 file.
pub(super) struct Container<'a> {
    path: &'a Path,
    source: &'a Source,
    /// Place from which on places are counted.
    base: u64,
    /// Bytes of a place.
    pub(super) place_bytes: usize,
    /// Bytes of a length.
    pub(super) length_bytes: usize,
    /// Place of the header of the root group.
    root: u64,
}

/// Where messages are: a part of an object header.
struct Part {
    bytes: Vec<u8>,
    /// Bytes of the head of a message: version 1 has eight, version 2 four or, with the order of creation, six.
    head: usize,
}

impl<'a> Container<'a> {
    /// Reads the superblock.
    pub(super) fn open(path: &'a Path, source: &'a Source) -> Result<Container<'a>> {
        let mut own = Container { path, source, base: 0, place_bytes: 8, length_bytes: 8, root: 0 };
        let mut at = 0u64;
        loop {
            let Ok(signature) = own.read(at, SIGNATURE.len() as u64, "its signature") else {
                let name = path.display();
                return Err(Error::bad_input(format!(
                    "{name} is not an HDF5 file; save it again, or convert it"
                )));
            };
            if signature == SIGNATURE {
                break;
            }
            at = if at == 0 { 512 } else { at.saturating_mul(2) };
        }
        let length = source.len().saturating_sub(at).min(128);
        let bytes = own.read(at, length, "its superblock")?;
        // Places are counted from the superblock on, also where another program put something before it.
        own.base = at;
        own.root = own
            .superblock(&bytes)
            .ok_or_else(|| own.wrong("its superblock is cut, or of a version that is not read"))?;
        Ok(own)
    }

    /// The place of the root group.
    fn superblock(&mut self, bytes: &[u8]) -> Option<u64> {
        let mut fields = Fields::new(bytes);
        fields.skip(SIGNATURE.len())?;
        let version = fields.byte()?;
        if version <= 1 {
            fields.skip(4)?;
        }
        let (place_bytes, length_bytes) = (usize::from(fields.byte()?), usize::from(fields.byte()?));
        if !matches!((place_bytes, length_bytes), (2 | 4 | 8, 2 | 4 | 8)) {
            return None;
        }
        (self.place_bytes, self.length_bytes) = (place_bytes, length_bytes);
        match version {
            0 | 1 => {
                // A reserved byte, numbers of the B-trees, and flags.
                fields.skip(if version == 0 { 9 } else { 13 })?;
                // Base, free space, end, driver; then of the entry of the root group the place of its name.
                fields.skip(5 * place_bytes)?;
                fields.number(place_bytes)
            }
            2 | 3 => {
                // Flags; base, extension, end.
                fields.skip(1 + 3 * place_bytes)?;
                fields.number(place_bytes)
            }
            _ => None,
        }
    }

    /// The error of a file that is damaged, or has what is not read.
    pub(super) fn wrong(&self, why: &str) -> Error {
        let path = self.path.display();
        Error::bad_input(format!(
            "{path}: cannot be read as HDF5: {why}; convert it: numpy.save(\"vectors.npy\", h5py.File(…)[\"train\"])"
        ))
    }

    fn damaged(&self, what: &str) -> Error {
        self.wrong(&format!("{what} is damaged"))
    }

    /// Place in the file of some bytes.
    ///
    /// # Errors
    /// `BadInput` for a place beyond the file.
    pub(super) fn place(&self, at: u64, length: u64, what: &str) -> Result<u64> {
        let place = self.base.checked_add(at);
        let place =
            place.filter(|place| place.checked_add(length).is_some_and(|end| end <= self.source.len()));
        place.ok_or_else(|| self.wrong(&format!("{what} would lie beyond the file, which may be cut")))
    }

    /// Some bytes of the file.
    pub(super) fn read(&self, at: u64, length: u64, what: &str) -> Result<Vec<u8>> {
        let place = self.place(at, length, what)?;
        if length > PART_BYTES_MAX {
            return Err(self.wrong(&format!("{what} has {length} bytes, more than {PART_BYTES_MAX}")));
        }
        let mut bytes = vec![0; length as usize];
        self.source.read_at(self.path, place, &mut bytes)?;
        Ok(bytes)
    }

    /// Whether a place is one of the file, rather than none.
    pub(super) fn is_place(&self, at: u64) -> bool {
        at != u64::MAX >> (64 - 8 * self.place_bytes as u32)
    }

    /// Messages of the header of an object.
    pub(super) fn messages(&self, at: u64) -> Result<Vec<Message>> {
        let damaged = || self.damaged("an object header");
        let (first, left) = self.header(at)?;
        let (mut parts, mut messages) = (vec![first], Vec::new());
        let mut visited = 0;
        while let Some(part) = parts.pop() {
            visited += 1;
            let mut fields = Fields::new(&part.bytes);
            while fields.left() >= part.head && messages.len() < left {
                let message = message(&mut fields, part.head).ok_or_else(damaged)?;
                if message.kind == kind::CONTINUATION {
                    let mut own = Fields::new(&message.body);
                    let (next, length) = (own.number(self.place_bytes), own.number(self.length_bytes));
                    let (Some(next), Some(length)) = (next, length) else { return Err(damaged()) };
                    parts.push(self.continuation(next, length, part.head)?);
                }
                messages.push(message);
            }
            if visited > MESSAGES_MAX || messages.len() > MESSAGES_MAX {
                return Err(damaged());
            }
        }
        Ok(messages)
    }

    /// The first part of an object header, and how many messages all of it has at most.
    fn header(&self, at: u64) -> Result<(Part, usize)> {
        let damaged = || self.damaged("an object header");
        let begin = self.read(at, 16, "an object header")?;
        let mut fields = Fields::new(&begin);
        if fields.is(b"OHDR") {
            let (Some(2), Some(flags)) = (fields.byte(), fields.byte()) else { return Err(damaged()) };
            let times = if flags & 0x20 == 0 { 0 } else { 16 };
            let attributes = if flags & 0x10 == 0 { 0 } else { 4 };
            let size_bytes = 1 << (flags & 3);
            let before = 6 + times + attributes;
            let size = self.read(at.saturating_add(before), size_bytes, "an object header")?;
            let size = Fields::new(&size).number(size_bytes as usize).ok_or_else(damaged)?;
            let bytes = self.read(at.saturating_add(before + size_bytes), size, "an object header")?;
            return Ok((Part { bytes, head: if flags & 4 == 0 { 4 } else { 6 } }, MESSAGES_MAX + 1));
        }
        let mut fields = Fields::new(&begin);
        let (Some(1), Some(_), Some(count)) = (fields.byte(), fields.byte(), fields.count(2)) else {
            return Err(damaged());
        };
        let size = fields.skip(4).and_then(|()| fields.number(4)).ok_or_else(damaged)?;
        let bytes = self.read(at.saturating_add(16), size, "an object header")?;
        Ok((Part { bytes, head: 8 }, count))
    }

    /// A further part of an object header.
    fn continuation(&self, at: u64, length: u64, head: usize) -> Result<Part> {
        let mut bytes = self.read(at, length, "an object header")?;
        if head == 8 {
            return Ok(Part { bytes, head });
        }
        // A signature before the messages, and a checksum behind them.
        if !bytes.starts_with(b"OCHK") || bytes.len() < 8 {
            return Err(self.damaged("an object header"));
        }
        bytes.truncate(bytes.len() - 4);
        bytes.drain(..4);
        Ok(Part { bytes, head })
    }

    /// Links of the root group: names, and places of the headers of their objects.
    pub(super) fn links(&self) -> Result<Vec<(String, u64)>> {
        let mut links = Vec::new();
        let mut is_dense = false;
        for message in self.messages(self.root)? {
            let mut fields = Fields::new(&message.body);
            match message.kind {
                kind::SYMBOL_TABLE => {
                    let (tree, heap) = (fields.number(self.place_bytes), fields.number(self.place_bytes));
                    let (Some(tree), Some(heap)) = (tree, heap) else {
                        return Err(self.damaged("the root group"));
                    };
                    self.symbol_table(tree, heap, &mut links)?;
                }
                kind::LINK => {
                    let link = self.link(&mut fields).ok_or_else(|| self.damaged("a link"))?;
                    links.extend(link);
                }
                kind::LINK_INFO => is_dense |= self.is_dense(&mut fields).unwrap_or(true),
                _ => {}
            }
        }
        match links.is_empty() && is_dense {
            true => Err(self.wrong("its root group is stored in a heap of links, which is not read")),
            false => Ok(links),
        }
    }

    /// Whether a group has its links in a heap.
    fn is_dense(&self, fields: &mut Fields<'_>) -> Option<bool> {
        fields.skip(1)?;
        if fields.byte()? & 1 == 1 {
            fields.skip(8)?;
        }
        fields.number(self.place_bytes).map(|heap| self.is_place(heap))
    }

    /// A link of a message: name and place, or nothing for one that is not to an object of this file.
    fn link(&self, fields: &mut Fields<'_>) -> Option<Option<(String, u64)>> {
        if fields.byte()? != 1 {
            return None;
        }
        let flags = fields.byte()?;
        let kind = if flags & 8 == 0 { 0 } else { fields.byte()? };
        fields.skip(if flags & 4 == 0 { 0 } else { 8 })?;
        fields.skip(usize::from(flags & 0x10 != 0))?;
        let length = fields.count(1 << (flags & 3))?;
        let name = String::from_utf8_lossy(fields.take(length)?).into_owned();
        if kind != 0 {
            return Some(None);
        }
        Some(Some((name, fields.number(self.place_bytes)?)))
    }

    /// Links of a symbol table, whose names are in a heap.
    fn symbol_table(&self, tree: u64, heap: u64, links: &mut Vec<(String, u64)>) -> Result<()> {
        let damaged = || self.damaged("a symbol table");
        let place_bytes = self.place_bytes;
        let head = self.read(heap, (8 + 2 * self.length_bytes + place_bytes) as u64, "a heap of names")?;
        let mut fields = Fields::new(&head);
        if !fields.is(b"HEAP") {
            return Err(damaged());
        }
        let size = fields.skip(4).and_then(|()| fields.number(self.length_bytes)).ok_or_else(damaged)?;
        let data = fields.skip(self.length_bytes).and_then(|()| fields.number(place_bytes));
        let names = self.read(data.ok_or_else(damaged)?, size, "a heap of names")?;
        let name = |at: u64| {
            let own = names.get(usize::try_from(at).ok()?..)?;
            let end = own.iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(own.get(..end)?).into_owned())
        };
        self.leaves(tree, (0, self.length_bytes), &mut |_, node| {
            let head = self.read(node, 8, "a symbol table")?;
            let mut fields = Fields::new(&head);
            let count = fields.is(b"SNOD").then(|| fields.skip(2).and_then(|()| fields.count(2))).flatten();
            let count = count.ok_or_else(damaged)?;
            let entry = 2 * place_bytes + 24;
            let entries = self.read(node.saturating_add(8), (count * entry) as u64, "a symbol table")?;
            for own in entries.chunks_exact(entry) {
                let mut fields = Fields::new(own);
                let (name_at, header) = (fields.number(place_bytes), fields.number(place_bytes));
                let link = name_at.and_then(name).zip(header);
                links.push(link.ok_or_else(damaged)?);
            }
            match links.len() > LINKS_MAX {
                true => Err(damaged()),
                false => Ok(()),
            }
        })
    }

    /// Calls `each` with keys and children of the leaves of a B-tree of version 1, whose kind and bytes of a key these
    /// are.
    pub(super) fn leaves(
        &self,
        tree: u64,
        (kind, key_bytes): (u8, usize),
        each: &mut dyn FnMut(&[u8], u64) -> Result<()>,
    ) -> Result<()> {
        let damaged = || self.damaged("a B-tree");
        let place_bytes = self.place_bytes;
        let (mut nodes, mut visited) = (vec![(tree, None)], 0);
        while let Some((at, level)) = nodes.pop() {
            let head = self.read(at, (8 + 2 * place_bytes) as u64, "a B-tree")?;
            let mut fields = Fields::new(&head);
            let is_node = fields.is(b"TREE") && fields.byte() == Some(kind);
            let (own, count) = (fields.byte(), fields.count(2));
            let (true, Some(own), Some(count)) = (is_node, own, count) else { return Err(damaged()) };
            // Levels descend by one, so that there are no circles.
            if level.is_some_and(|level| level != own) {
                return Err(damaged());
            }
            visited += 1 + count;
            if visited > ENTRIES_MAX {
                return Err(damaged());
            }
            let entry = key_bytes + place_bytes;
            let place = at.saturating_add(head.len() as u64);
            for bytes in self.read(place, (count * entry) as u64, "a B-tree")?.chunks_exact(entry) {
                let (key, child) = bytes.split_at_checked(key_bytes).ok_or_else(damaged)?;
                let child = Fields::new(child).number(place_bytes).ok_or_else(damaged)?;
                match own.checked_sub(1) {
                    None => each(key, child)?,
                    below => nodes.push((child, below)),
                }
            }
        }
        Ok(())
    }
}

/// The next message of a part.
fn message(fields: &mut Fields<'_>, head: usize) -> Option<Message> {
    let (kind, size, flags);
    if head == 8 {
        (kind, size, flags) = (fields.number(2)? as u16, fields.count(2)?, fields.byte()?);
        fields.skip(3)?;
    } else {
        (kind, size, flags) = (fields.byte()?.into(), fields.count(2)?, fields.byte()?);
        fields.skip(head - 4)?;
    }
    Some(Message { kind, is_shared: flags & SHARED != 0, body: fields.take(size)?.to_vec() })
}
