//! Numbers as bytes: little-endian, varints, and fields of single bits. Shared by states and frames.

use alloc::vec::Vec;
use core::fmt;

/// Reason why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Written by another version.
    Version(u32),
    /// Shorter or longer than declared, or than the limit.
    Length,
    /// The checksum does not match.
    Checksum,
    /// The sender serves another build of the index.
    Build(u64),
    /// A state of another kind of index: its number.
    Kind(u8),
    /// A search that only the laboratory has.
    Laboratory,
    /// A field is outside of its limits.
    Content,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Version(version) => write!(
                f,
                "it is of version {version}, which this program does not read; run the same stratann everywhere"
            ),
            Refused::Length => write!(f, "its length is wrong"),
            Refused::Checksum => write!(f, "its checksum does not match"),
            Refused::Build(build) => write!(
                f,
                "it is of another build of the index ({build:016x}); give all servers the same index"
            ),
            Refused::Kind(kind) => {
                write!(f, "it is of another kind of index (number {kind}); give all servers the same index")
            }
            Refused::Laboratory => write!(
                f,
                "it searches as another system does, which only stratann-lab can; run that program on all servers"
            ),
            Refused::Content => write!(f, "a field is outside of its limits"),
        }
    }
}

/// Writes numbers of any length in bits, lowest bit first. Bytes go out by the word.
pub(crate) struct Packer<'a, 'b> {
    out: &'a mut Writer<'b>,
    // Below 32 bits between two calls.
    held: u64,
    bits: u32,
}

impl<'a, 'b> Packer<'a, 'b> {
    pub(crate) fn new(out: &'a mut Writer<'b>) -> Packer<'a, 'b> {
        Packer { out, held: 0, bits: 0 }
    }

    /// Writes a number of up to 32 bits.
    pub(crate) fn put(&mut self, number: u32, bits: u32) {
        self.held |= u64::from(number) << self.bits;
        self.bits += bits;
        if self.bits >= 32 {
            self.out.u32(self.held as u32);
            self.held >>= 32;
            self.bits -= 32;
        }
    }

    /// Writes so many ones, and a zero.
    pub(crate) fn put_unary(&mut self, mut ones: u32) {
        while ones >= 32 {
            self.put(u32::MAX, 32);
            ones -= 32;
        }
        self.put((1 << ones) - 1, ones + 1);
    }

    pub(crate) fn finish(self) {
        let bytes = self.held.to_le_bytes();
        self.out.0.extend_from_slice(&bytes[..self.bits.div_ceil(8) as usize]);
    }
}

/// Reads what [`Packer`] wrote.
pub(crate) struct Unpacker<'a> {
    // Those that are not held.
    bytes: &'a [u8],
    held: u64,
    bits: u32,
    // All bytes, the held ones too.
    all: &'a [u8],
}

impl<'a> Unpacker<'a> {
    pub(crate) fn new(all: &'a [u8]) -> Unpacker<'a> {
        Unpacker { bytes: all, held: 0, bits: 0, all }
    }

    /// Holds at least 32 bits, as far as there are any.
    fn fill(&mut self) {
        if self.bits >= 32 {
            return;
        }
        if let Some((word, rest)) = self.bytes.split_first_chunk::<4>() {
            self.held |= u64::from(u32::from_le_bytes(*word)) << self.bits;
            self.bits += 32;
            self.bytes = rest;
            return;
        }
        while let Some((byte, rest)) = self.bytes.split_first() {
            self.held |= u64::from(*byte) << self.bits;
            self.bits += 8;
            self.bytes = rest;
        }
    }

    fn skip(&mut self, bits: u32) {
        self.held >>= bits;
        self.bits -= bits;
    }

    /// Reads a number of up to 32 bits.
    pub(crate) fn take(&mut self, bits: u32) -> Result<u32, Refused> {
        self.fill();
        if self.bits < bits {
            return Err(Refused::Length);
        }
        let number = self.held & ((1 << bits) - 1);
        self.skip(bits);
        Ok(number as u32)
    }

    /// Reads ones, up to the zero that ends them. Returns their number.
    pub(crate) fn take_unary(&mut self) -> Result<u64, Refused> {
        let mut all = 0;
        loop {
            self.fill();
            // Bits that are not held are zero.
            let ones = self.held.trailing_ones();
            all += u64::from(ones);
            if ones < self.bits {
                self.skip(ones + 1);
                return Ok(all);
            }
            if self.bits == 0 {
                return Err(Refused::Length);
            }
            (self.held, self.bits) = (0, 0);
        }
    }

    /// The bytes after the last number. The unused bits of its byte must be zero.
    pub(crate) fn finish(self) -> Result<&'a [u8], Refused> {
        let unused = self.held & ((1 << (self.bits % 8)) - 1);
        let left = self.bytes.len() + self.bits as usize / 8;
        if unused == 0 { Ok(&self.all[self.all.len() - left..]) } else { Err(Refused::Content) }
    }
}

pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, x: u8) {
        self.0.push(x);
    }

    pub(crate) fn u32(&mut self, x: u32) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    pub(crate) fn varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.u8(x as u8 | 0x80);
            x >>= 7;
        }
        self.u8(x as u8);
    }
}

/// Bytes that [`Writer::varint`] takes for a number.
pub(crate) fn varint_bytes(x: u64) -> u64 {
    u64::from((64 - (x | 1).leading_zeros()).div_ceil(7))
}

/// Reads numbers from the front of bytes.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Refused::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Refused> {
        self.take::<1>().map(|b| b[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Refused> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Refused> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn slice(&mut self, length: usize) -> Result<&'a [u8], Refused> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(Refused::Length)?;
        self.0 = rest;
        Ok(head)
    }

    /// Only the shortest form is accepted, so that each state has one encoding.
    pub(crate) fn varint(&mut self) -> Result<u64, Refused> {
        let mut x = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7F);
            if (part << shift) >> shift != part || (byte == 0 && shift > 0) {
                return Err(Refused::Content);
            }
            x |= part << shift;
            if byte < 0x80 {
                return Ok(x);
            }
        }
        Err(Refused::Content)
    }

    /// A varint that fits into 32 bits.
    pub(crate) fn varint_u32(&mut self) -> Result<u32, Refused> {
        u32::try_from(self.varint()?).map_err(|_| Refused::Content)
    }

    /// A counter; at most half of the range, so that further counting cannot overflow.
    pub(crate) fn counter(&mut self) -> Result<u64, Refused> {
        let count = self.varint()?;
        if count <= u64::MAX / 2 { Ok(count) } else { Err(Refused::Content) }
    }

    pub(crate) fn count(&mut self, limit: u32) -> Result<u32, Refused> {
        let count = u32::try_from(self.varint()?).map_err(|_| Refused::Content)?;
        if count <= limit { Ok(count) } else { Err(Refused::Content) }
    }
}
