//! Bodies of requests in JSON, for those that name ids: these would not fit into a URL.

use std::io::Write;

use half::f16;
use stratann_engine::DType;
use stratann_engine::search::Naming;

use crate::filter::RequestIds;
use crate::queries::Wanted;

/// The body of a request with these queries, as rows of the index's type, and the parameters of a URL.
pub(super) fn body(rows: &[u8], wanted: Wanted, parameters: &str, ids: &RequestIds<'_>) -> Vec<u8> {
    let named: usize = ids.lists.iter().map(|list| list.len()).sum();
    let mut out = Vec::with_capacity(8 * rows.len() + 12 * named + 256);
    out.extend_from_slice(b"{\"queries\":");
    list(&mut out, rows.chunks_exact(wanted.dim * wanted.dtype.size()), |out, row| {
        list(out, row.chunks_exact(wanted.dtype.size()), |out, component| {
            number(out, wanted.dtype, component)
        });
    });
    let name = if ids.naming == Naming::Only { "only" } else { "without" };
    write(&mut out, format_args!(",\"{name}\":"));
    match ids.lists.first() {
        Some(shared) if !ids.is_each => id_list(&mut out, shared),
        _ => list(&mut out, ids.lists.iter(), |out, ids| id_list(out, ids)),
    }
    for (name, text) in parameters.split('&').filter_map(|parameter| parameter.split_once('=')) {
        write(&mut out, format_args!(",\"{name}\":"));
        let is_plain = name != "cached" && serde_json::from_str::<serde_json::Value>(text).is_ok();
        if is_plain {
            out.extend_from_slice(text.as_bytes());
        } else {
            write(&mut out, format_args!("{}", serde_json::Value::from(text)));
        }
    }
    out.push(b'}');
    out
}

fn id_list(out: &mut Vec<u8>, ids: &[u64]) {
    list(out, ids.iter(), |out, id| write(out, format_args!("{id}")));
}

/// Writes each of `all` between brackets and commas.
fn list<T>(out: &mut Vec<u8>, all: impl Iterator<Item = T>, each: impl Fn(&mut Vec<u8>, T)) {
    out.push(b'[');
    for (at, one) in all.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        each(out, one);
    }
    out.push(b']');
}

/// A component. Real ones have all digits of a double, so that readers that round find the same number.
fn number(out: &mut Vec<u8>, dtype: DType, bytes: &[u8]) {
    let real = |out: &mut Vec<u8>, x: f32| write(out, format_args!("{:?}", f64::from(x)));
    match (dtype, bytes) {
        (DType::U8, &[byte]) => write(out, format_args!("{byte}")),
        (DType::I8, &[byte]) => write(out, format_args!("{}", byte as i8)),
        (DType::F16, &[a, b]) => real(out, f16::from_le_bytes([a, b]).to_f32()),
        (_, &[a, b, c, d]) => real(out, f32::from_le_bytes([a, b, c, d])),
        _ => {}
    }
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Memory takes all that is written.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use stratann_engine::Metric;

    use super::*;

    #[test]
    fn bodies_have_all_digits_and_a_shared_list_once() {
        let wanted = Wanted { dim: 2, dtype: DType::F32, metric: Metric::L2 };
        let components = [0.1f32, -0.0, f32::MIN_POSITIVE / 2.0, 16_777_215.5, f32::MAX, -1.0e-30];
        let rows: Vec<u8> = components.iter().flat_map(|x| x.to_le_bytes()).collect();
        let beyond = (1u64 << 53) + 1;
        let lists: [&[u64]; 1] = [&[beyond, u64::MAX, 0]];
        let shared = RequestIds { naming: Naming::Only, lists: lists.to_vec(), is_each: false };
        let text =
            body(&rows, wanted, "k=3&recall=0.95&mode=eager&head=false&cached=00ab", &shared.of(&[2, 0]));
        let read: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read["only"], json!([beyond, u64::MAX, 0]));
        assert_eq!((&read["k"], &read["recall"], &read["head"]), (&json!(3), &json!(0.95), &json!(false)));
        assert_eq!((&read["mode"], &read["cached"]), (&json!("eager"), &json!("00ab")));
        let back = read["queries"].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        let back: Vec<u32> = back.map(|x| (x.as_f64().unwrap() as f32).to_bits()).collect();
        assert_eq!(back, components.map(f32::to_bits));
        let own: [&[u64]; 3] = [&[1], &[], &[2, 3]];
        let each = RequestIds { naming: Naming::Without, lists: own.to_vec(), is_each: true };
        let text = body(&[200, 1, 0, 255], Wanted { dtype: DType::I8, ..wanted }, "k=1", &each.of(&[2, 1]));
        let read: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(read, json!({ "queries": [[-56, 1], [0, -1]], "without": [[2, 3], []], "k": 1 }));
    }
}
