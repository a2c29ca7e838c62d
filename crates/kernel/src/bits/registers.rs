//! Sums of four codes at a time in registers of 256 bits.
//!
//! The forms of AVX2 and of AVX-512 differ in how they multiply alone: registers of 512 bits were half as fast, as few
//! planes fill them.

/// Makes the functions of an instruction set, which has `multiplied::<WIDTH>(sums, packed, query)`, the sums with
/// products of the lowest `WIDTH` bits of each byte and components, and `widened::<WIDTH>(sums)`, such sums in 32
/// bits.
macro_rules! in_registers {
    ($feature:literal) => {
        form!($feature);

        /// Bytes of a register: of one code, where a plane has as many.
        const WIDE: usize = 32;
        /// Bytes of each of four codes that share a register: at the end of a plane.
        const NARROW: usize = 8;

        /// Sums of four codes in lanes: of wide steps in a register for each code, of narrow ones in a quarter of
        /// one.
        #[derive(Clone, Copy)]
        struct Lanes {
            wide: [__m256i; FOUR],
            narrow: __m256i,
        }

        /// Σ of levels times components, of each code.
        #[inline]
        #[target_feature(enable = $feature)]
        fn several(planes: &[Plane], codes: [&[u8]; FOUR], components: &[i8]) -> [i32; FOUR] {
            let mut total = none();
            for plane in planes {
                match plane.width {
                    8 => add::<8, 1>(&mut total, plane, codes, components),
                    4 => add::<4, 2>(&mut total, plane, codes, components),
                    2 => add::<2, 4>(&mut total, plane, codes, components),
                    _ => add::<1, 8>(&mut total, plane, codes, components),
                }
            }
            folded(total)
        }

        /// Adds the sums of a plane, shifted. Most planes of several are shorter than a register.
        #[inline]
        #[target_feature(enable = $feature)]
        fn add<const WIDTH: i32, const GROUPS: usize>(
            total: &mut Lanes,
            plane: &Plane,
            codes: [&[u8]; FOUR],
            components: &[i8],
        ) {
            let shift = _mm_cvtsi32_si128(plane.shift as i32);
            if plane.bytes >= WIDE {
                let lanes = wide::<WIDTH, GROUPS, false>(plane, codes, components);
                for (total, lanes) in total.wide.iter_mut().zip(lanes) {
                    *total = _mm256_add_epi32(*total, _mm256_sll_epi32(lanes, shift));
                }
            }
            if !plane.bytes.is_multiple_of(WIDE) {
                let lanes = narrow::<WIDTH, GROUPS>(plane, codes, components);
                total.narrow = _mm256_add_epi32(total.narrow, _mm256_sll_epi32(lanes, shift));
            }
        }

        /// As [`several`], of a single plane without a shift.
        #[inline]
        #[target_feature(enable = $feature)]
        fn one<const WIDTH: i32, const GROUPS: usize>(
            plane: &Plane,
            codes: [&[u8]; FOUR],
            components: &[i8],
        ) -> [i32; FOUR] {
            let mut lanes = Lanes { wide: wide::<WIDTH, GROUPS, true>(plane, codes, components), ..none() };
            if !plane.bytes.is_multiple_of(WIDE) {
                lanes.narrow = narrow_apart::<WIDTH, GROUPS>(plane, codes, components);
            }
            folded(lanes)
        }

        #[inline]
        #[target_feature(enable = $feature)]
        fn none() -> Lanes {
            let zero = _mm256_setzero_si256();
            Lanes { wide: [zero; FOUR], narrow: zero }
        }

        // Arrays of registers are written out: `map` of an array is compiled without AVX2, and passes them through
        // memory.

        /// The whole registers of a plane of `WIDTH` bits in `GROUPS` groups. What is compiled for a plane `ALONE`
        /// becomes a part of its callers.
        #[inline]
        #[target_feature(enable = $feature)]
        fn wide<const WIDTH: i32, const GROUPS: usize, const ALONE: bool>(
            plane: &Plane,
            codes: [&[u8]; FOUR],
            components: &[i8],
        ) -> [__m256i; FOUR] {
            let mut lanes = [_mm256_setzero_si256(); FOUR];
            let whole = plane.bytes / WIDE * WIDE;
            let mut planes = [codes[0].as_ptr(); FOUR];
            for i in 0..FOUR {
                planes[i] = codes[i][plane.first..plane.first + plane.bytes].as_ptr();
            }
            let query = components[plane.start..][..GROUPS * plane.bytes + WIDE].as_ptr();
            for at in (0..whole).step_by(WIDE) {
                let mut packed = [_mm256_setzero_si256(); FOUR];
                for i in 0..FOUR {
                    // SAFETY: the plane has 32 bytes from `at` on; alignment is not required.
                    packed[i] = unsafe { _mm256_loadu_si256(planes[i].add(at).cast()) };
                }
                let mut sums = [_mm256_setzero_si256(); FOUR];
                for group in 0..GROUPS {
                    // SAFETY: every group has a component for each byte of the plane, and 32 more follow the last.
                    let query = unsafe { _mm256_loadu_si256(query.add(group * plane.bytes + at).cast()) };
                    for i in 0..FOUR {
                        sums[i] = multiplied::<WIDTH>(sums[i], packed[i], query);
                        packed[i] = _mm256_srli_epi16::<WIDTH>(packed[i]);
                    }
                }
                for (lanes, sums) in lanes.iter_mut().zip(sums) {
                    *lanes = _mm256_add_epi32(*lanes, widened::<WIDTH>(sums));
                }
            }
            lanes
        }

        /// As [`narrow`]. A function that is called, so that the loop of a plane `ALONE` stays short enough to become
        /// a part of its callers.
        #[inline(never)]
        #[target_feature(enable = $feature)]
        fn narrow_apart<const WIDTH: i32, const GROUPS: usize>(
            plane: &Plane,
            codes: [&[u8]; FOUR],
            components: &[i8],
        ) -> __m256i {
            narrow::<WIDTH, GROUPS>(plane, codes, components)
        }

        /// The bytes of a plane behind the last whole register, eight of each code at a time.
        #[inline]
        #[target_feature(enable = $feature)]
        fn narrow<const WIDTH: i32, const GROUPS: usize>(
            plane: &Plane,
            codes: [&[u8]; FOUR],
            components: &[i8],
        ) -> __m256i {
            let mut lanes = _mm256_setzero_si256();
            let past = plane.first + plane.bytes;
            // A code whose first bytes are fewer than eight is read in a copy that begins with zeros.
            let mut early = [[0u8; 2 * NARROW]; FOUR];
            if past < NARROW {
                for (early, code) in early.iter_mut().zip(codes) {
                    early[NARROW..NARROW + past].copy_from_slice(&code[..past]);
                }
            }
            let mut ends = [codes[0].as_ptr(); FOUR];
            for i in 0..FOUR {
                let code = if past < NARROW { &early[i][..NARROW + past] } else { &codes[i][..past] };
                ends[i] = code.as_ptr_range().end;
            }
            let query = components[plane.start..][..GROUPS * plane.bytes + WIDE].as_ptr();
            let mut at = plane.bytes / WIDE * WIDE;
            while at < plane.bytes {
                let count = NARROW.min(plane.bytes - at);
                let after = plane.bytes - at - count;
                let mut words = [0i64; FOUR];
                for i in 0..FOUR {
                    // SAFETY: at least eight bytes lie before the one at `after` from the end, in the code or its
                    // copy.
                    words[i] = unsafe { ends[i].sub(after + NARROW).cast::<i64>().read_unaligned() };
                }
                let packed = _mm256_set_epi64x(words[3], words[2], words[1], words[0]);
                // What lies before these bytes is shifted out.
                let mut packed = _mm256_srl_epi64(packed, _mm_cvtsi32_si128(8 * (NARROW - count) as i32));
                let mut sums = _mm256_setzero_si256();
                for group in 0..GROUPS {
                    // SAFETY: every group has a component for each byte of the plane, and 32 more follow the last.
                    let query = unsafe { query.add(group * plane.bytes + at).cast::<i64>().read_unaligned() };
                    sums = multiplied::<WIDTH>(sums, packed, _mm256_set1_epi64x(query));
                    packed = _mm256_srli_epi16::<WIDTH>(packed);
                }
                lanes = _mm256_add_epi32(lanes, widened::<WIDTH>(sums));
                at += NARROW;
            }
            lanes
        }

        /// The sum of the lanes of each code.
        #[inline]
        #[target_feature(enable = $feature)]
        fn folded(lanes: Lanes) -> [i32; FOUR] {
            let Lanes { wide, narrow } = lanes;
            let pairs = [_mm256_hadd_epi32(wide[0], wide[1]), _mm256_hadd_epi32(wide[2], wide[3])];
            let fours = _mm256_hadd_epi32(pairs[0], pairs[1]);
            let wide = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256::<1>(fours));
            let twos = _mm256_hadd_epi32(narrow, narrow);
            let narrow =
                _mm_unpacklo_epi64(_mm256_castsi256_si128(twos), _mm256_extracti128_si256::<1>(twos));
            let mut out = [0i32; FOUR];
            // SAFETY: `out` has 16 bytes; alignment is not required.
            unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm_add_epi32(wide, narrow)) };
            out
        }
    };
}
pub(super) use in_registers;
