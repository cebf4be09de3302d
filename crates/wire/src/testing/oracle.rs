//! Parsing by `serde_json`, as a reference.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Whether the text is JSON.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Whether any object of a JSON text repeats a key; `None` if `serde_json` cannot decide, for a
/// lone surrogate in a key or a number out of range.
pub(crate) fn has_duplicate_keys(bytes: &[u8]) -> Option<bool> {
    let found = Cell::new(false);
    let mut from = serde_json::Deserializer::from_slice(bytes);
    match Distinct(&found).deserialize(&mut from) {
        Ok(()) => Some(false),
        Err(_) if found.get() => Some(true),
        Err(_) => None,
    }
}

/// Returns the members of a JSON object, keys unescaped and values raw.
pub(crate) fn members(bytes: &[u8]) -> Option<Vec<(String, String)>> {
    struct Members;
    impl<'de> Visitor<'de> for Members {
        type Value = Vec<(String, String)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut members = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                members.push((key, value.get().to_owned()));
            }
            Ok(members)
        }
    }
    let mut from = serde_json::Deserializer::from_slice(bytes);
    from.deserialize_map(Members).ok()
}

struct Distinct<'a>(&'a Cell<bool>);

impl<'de> DeserializeSeed<'de> for Distinct<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Distinct<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Distinct(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if !seen.insert(key) {
                self.0.set(true);
                return Err(A::Error::custom("repeated"));
            }
            map.next_value_seed(Distinct(self.0))?;
        }
        Ok(())
    }
}
