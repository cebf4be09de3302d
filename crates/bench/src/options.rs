//! Options of the command line: `--key value`, `--key=value` and `--flag`.

use std::str::FromStr;

use anyhow::{Context, Result, anyhow};

/// Options in the order of the command line; the last value of a key counts.
#[derive(Debug)]
pub(crate) struct ToolOptions(Vec<ToolOption>);

#[derive(Debug)]
struct ToolOption {
    key: String,
    value: Option<String>,
}

impl ToolOptions {
    pub(crate) fn from_words(words: impl Iterator<Item = String>) -> Self {
        let mut options: Vec<ToolOption> = Vec::new();
        for word in words {
            if let Some(option) = word.strip_prefix("--") {
                let (key, value) = match option.split_once('=') {
                    Some((key, value)) => (key, Some(value.to_owned())),
                    None => (option, None),
                };
                let key = key.to_owned();
                options.push(ToolOption { key, value });
            } else if let Some(last) = options.last_mut() {
                last.value = Some(word);
            }
        }
        Self(options)
    }

    /// Returns the last value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let mut options = self.0.iter().rev();
        options.find(|option| option.key == key)?.value.as_deref()
    }

    /// Returns the value of a key that must be given.
    pub(crate) fn require(&self, key: &str) -> Result<&str> {
        self.get(key).with_context(|| format!("--{key} is missing"))
    }

    /// Returns every value of a key.
    pub(crate) fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        let options = self.0.iter().filter(move |option| option.key == key);
        options.filter_map(|option| option.value.as_deref())
    }

    pub(crate) fn has_flag(&self, key: &str) -> bool {
        self.0.iter().any(|option| option.key == key)
    }

    /// Returns the value of a key as a number, or `default`.
    pub(crate) fn number<T: FromStr>(&self, key: &str, default: T) -> Result<T> {
        match self.get(key) {
            Some(text) => parse_number(key, text),
            None => Ok(default),
        }
    }

    /// Returns every value of a key as a number.
    pub(crate) fn numbers<T: FromStr>(&self, key: &str) -> Result<Vec<T>> {
        self.values(key)
            .map(|text| parse_number(key, text))
            .collect()
    }
}

fn parse_number<T: FromStr>(key: &str, text: &str) -> Result<T> {
    text.parse()
        .map_err(|_| anyhow!("--{key} {text}: not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_value_counts_and_all_are_kept() {
        let words = "--pid 3 --op=list --contains --pid 4".split(' ');
        let options = ToolOptions::from_words(words.map(str::to_owned));
        assert_eq!(options.get("op"), Some("list"));
        assert_eq!(options.number("pid", 0).unwrap(), 4);
        assert_eq!(options.numbers::<u32>("pid").unwrap(), [3, 4]);
        assert!(options.has_flag("contains") && !options.has_flag("reconnect"));
    }

    #[test]
    fn wrong_number_is_error_with_key() {
        let options = ToolOptions::from_words(["--c".to_owned(), "x".to_owned()].into_iter());
        let error = options.number("c", 1).unwrap_err().to_string();
        assert_eq!(error, "--c x: not a number");
    }
}
