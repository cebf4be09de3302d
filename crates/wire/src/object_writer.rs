//! Writes a JSON object member by member.

use crate::splice::write_string;

/// An object in progress.
#[derive(Debug)]
pub struct ObjectWriter<'a> {
    out: &'a mut Vec<u8>,
    /// The byte before the next member.
    before: u8,
}

impl<'a> ObjectWriter<'a> {
    /// Begins a frame with a `kind`.
    pub fn begin_frame(kind: &str, out: &'a mut Vec<u8>) -> Self {
        Self::begin(out).text("kind", kind)
    }

    /// Begins an object.
    pub fn begin(out: &'a mut Vec<u8>) -> Self {
        Self { out, before: b'{' }
    }

    fn write_key(mut self, name: &str) -> Self {
        self.out.push(self.before);
        self.before = b',';
        write_string(self.out, name);
        self.out.push(b':');
        self
    }

    /// Writes a member with a callback for the value.
    pub fn value_with(self, name: &str, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let this = self.write_key(name);
        write(this.out);
        this
    }

    pub fn raw(self, name: &str, json: &[u8]) -> Self {
        let this = self.write_key(name);
        this.out.extend_from_slice(json);
        this
    }

    pub fn text(self, name: &str, text: &str) -> Self {
        let this = self.write_key(name);
        write_string(this.out, text);
        this
    }

    pub fn text_if(self, name: &str, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    pub fn number(self, name: &str, number: u64) -> Self {
        let this = self.write_key(name);
        let mut digits = itoa::Buffer::new();
        this.out.extend_from_slice(digits.format(number).as_bytes());
        this
    }

    pub fn integer(self, name: &str, number: i64) -> Self {
        let this = self.write_key(name);
        let mut digits = itoa::Buffer::new();
        this.out.extend_from_slice(digits.format(number).as_bytes());
        this
    }

    pub fn number_if(self, name: &str, number: Option<u64>) -> Self {
        match number {
            Some(number) => self.number(name, number),
            None => self,
        }
    }

    pub fn size(self, name: &str, size: usize) -> Self {
        self.number(name, u64::try_from(size).unwrap_or(u64::MAX))
    }

    pub fn flag(self, name: &str, flag: bool) -> Self {
        self.raw(name, if flag { b"true" } else { b"false" })
    }

    pub fn end(self) {
        if self.before == b'{' {
            self.out.push(b'{');
        }
        self.out.push(b'}');
    }
}
