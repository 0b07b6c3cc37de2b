//! Writes a JSON Patch (RFC 6902) straight into its wire form.
//!
//! Only `add` and `replace`: a `test` or `remove` that doesn't apply makes the API server answer 500 even under
//! `failurePolicy: Ignore`. Whoever adds sees to it that the parent exists.

use std::borrow::Cow;

use serde::Serialize;

/// A JSON Patch that is being written.
#[derive(Debug, Default)]
pub(super) struct PatchWriter {
    json: Vec<u8>,
}

#[derive(Serialize)]
struct Operation<'a, V: Serialize + ?Sized> {
    op: &'static str,
    path: &'a str,
    value: &'a V,
}

impl PatchWriter {
    /// Adds a member (replacing one of that name), or an item where the path ends in `/-`.
    pub(super) fn add<V: Serialize + ?Sized>(&mut self, path: &str, value: &V) {
        self.write(&Operation {
            op: "add",
            path,
            value,
        });
    }

    /// Replaces a value that exists.
    pub(super) fn replace<V: Serialize + ?Sized>(&mut self, path: &str, value: &V) {
        self.write(&Operation {
            op: "replace",
            path,
            value,
        });
    }

    /// Adds to a list that may be absent: as a whole then, otherwise item by item at its end, in order.
    pub(super) fn append<V: Serialize>(&mut self, path: &str, list_exists: bool, items: &[V]) {
        if !list_exists {
            return self.add(path, items);
        }
        let end = format!("{path}/-");
        for item in items {
            self.add(&end, item);
        }
    }

    /// Whether nothing was written.
    pub(super) fn is_empty(&self) -> bool {
        self.json.is_empty()
    }

    /// The patch, where it has operations.
    pub(super) fn finish(mut self) -> Option<String> {
        if self.json.is_empty() {
            return None;
        }
        self.json.push(b']');
        Some(String::from_utf8(self.json).expect("serde_json must write UTF-8"))
    }

    fn write<V: Serialize + ?Sized>(&mut self, operation: &Operation<'_, V>) {
        self.json
            .push(if self.json.is_empty() { b'[' } else { b',' });
        serde_json::to_writer(&mut self.json, operation)
            .expect("values with string keys must serialise into memory");
    }
}

/// A name as one token of a JSON Pointer: `~` and `/` mean something there.
pub(super) fn escape(name: &str) -> Cow<'_, str> {
    if name.contains(['~', '/']) {
        Cow::Owned(name.replace('~', "~0").replace('/', "~1"))
    } else {
        Cow::Borrowed(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn two_items_are_appended_in_order_whether_the_list_exists_or_not() {
        // S32: two adds that each believe the list absent end in `/-/-` or lose the first.
        for list in [json!({}), json!({"list": []}), json!({"list": ["x"]})] {
            let mut writer = PatchWriter::default();
            writer.append("/list", list.get("list").is_some(), &["a", "b"]);
            let patch: json_patch::Patch = serde_json::from_str(&writer.finish().unwrap()).unwrap();
            let mut patched = list.clone();
            json_patch::patch(&mut patched, &patch).unwrap();
            let mut expected: Vec<_> = list["list"].as_array().cloned().unwrap_or_default();
            expected.extend([json!("a"), json!("b")]);
            assert_eq!(patched["list"], json!(expected));
        }
    }

    #[test]
    fn names_survive_the_way_through_a_pointer() {
        for name in ["plain", "prestop-gate.dev/status", "a~b/c~1"] {
            let mut writer = PatchWriter::default();
            writer.add(&format!("/{}", escape(name)), &1);
            let patch: json_patch::Patch = serde_json::from_str(&writer.finish().unwrap()).unwrap();
            let mut patched = json!({});
            json_patch::patch(&mut patched, &patch).unwrap();
            assert_eq!(patched, json!({name: 1}));
        }
    }

    #[test]
    fn no_operation_is_no_patch() {
        assert_eq!(PatchWriter::default().finish(), None);
    }
}
