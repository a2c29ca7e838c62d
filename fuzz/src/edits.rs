//! Changes to valid content, read from the fuzzer's bytes.

use serde_json::Value;

/// Bytes of one change in binary content.
const CHANGE: usize = 7;
/// Bytes of one change in a document.
const JSON_CHANGE: usize = 11;

/// Splits off the first byte; 0 when there is none.
pub fn first(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(&first, rest)| (first, rest))
}

/// The content that `data` makes of `valid`. The first byte chooses: the rest is the content itself, or a list of
/// changes to `valid`.
pub fn bytes(valid: &[u8], data: &[u8]) -> Vec<u8> {
    let (choice, rest) = first(data);
    if choice & 1 == 0 {
        return rest.to_vec();
    }
    let mut out = valid.to_vec();
    for change in rest.chunks_exact(CHANGE) {
        let offset = u32::from_le_bytes([change[1], change[2], change[3] & 0x0F, 0]) as usize;
        let at = if out.is_empty() { 0 } else { offset % out.len() };
        let word = [change[3], change[4], change[5], change[6]];
        match change[0] % 8 {
            0 => out.truncate(at),
            1 => out.extend_from_slice(&word),
            2 => drop(out.drain(at..(at + usize::from(change[4])).min(out.len()))),
            3 => put(&mut out, at, &[change[6]]),
            4 => put(&mut out, at, &[0xFF; 4]),
            5 => put(&mut out, at, &u32::from(change[6]).to_le_bytes()),
            6 => put(&mut out, at / 4 * 4, &u32::from_le_bytes(word).to_le_bytes()),
            _ => put(
                &mut out,
                at / 4 * 4,
                &f32::from(i16::from_le_bytes([change[5], change[6]])).to_le_bytes(),
            ),
        }
    }
    out
}

fn put(out: &mut [u8], at: usize, value: &[u8]) {
    for (byte, value) in out.iter_mut().skip(at).zip(value) {
        *byte = *value;
    }
}

/// The document that `data` makes of `valid`; `None` where it is none. The first byte chooses: the rest is the
/// document's text, or a list of changes to the values of `valid`.
pub fn json(valid: &Value, data: &[u8]) -> Option<Value> {
    let (choice, rest) = first(data);
    if choice & 1 == 0 {
        return serde_json::from_slice(rest).ok();
    }
    let mut out = valid.clone();
    for change in rest.chunks_exact(JSON_CHANGE) {
        let mut places = Vec::new();
        collect(&out, String::new(), &mut places);
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % places.len().max(1);
        let Some(value) = places.get(at).and_then(|place| out.pointer_mut(place)) else { continue };
        let number: [u8; 8] = change[3..].try_into().ok()?;
        *value = match change[2] % 12 {
            0 => Value::Null,
            1 => u64::from_le_bytes(number).into(),
            2 => i64::from_le_bytes(number).into(),
            3 => f64::from_le_bytes(number).into(),
            4 => u64::from(number[0]).into(),
            5 => u64::from(u32::from_le_bytes([number[0], number[1], number[2], number[3]])).into(),
            6 => String::from_utf8_lossy(&number).into(),
            7 => Value::Array(vec![value.clone(); usize::from(number[0] % 4)]),
            8 => Value::Bool(number[0] & 1 == 1),
            9 => (1u64 << (number[0] % 64)).into(),
            10 => [
                "flat",
                "disk-graph",
                "hybrid-ivf",
                "gpu-ivf",
                "l2",
                "ip",
                "cosine",
                "f32",
                "f16",
                "u8",
                "i8",
                "",
                "auto",
            ][usize::from(number[0]) % 13]
                .into(),
            _ => {
                (f64::from(i32::from_le_bytes([number[0], number[1], number[2], number[3]])) / 65536.0).into()
            }
        };
    }
    Some(out)
}

/// Pointers to all values of a document, those of objects and arrays included.
fn collect(value: &Value, pointer: String, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            let name = name.replace('~', "~0").replace('/', "~1");
            collect(value, format!("{pointer}/{name}"), out);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| collect(value, format!("{pointer}/{i}"), out));
        }
        _ => {}
    }
    out.push(pointer);
}
