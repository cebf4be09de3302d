//! Jitter of retries: components that failed together must not retry together.

use std::hash::{DefaultHasher, Hash, Hasher as _};

/// Source of well-mixed numbers that shorten the waits of one owner.
#[derive(Clone, Debug)]
pub struct JitterSource(DefaultHasher);

impl JitterSource {
    /// Creates a source that differs between owners and is reproducible on the same clock.
    #[must_use]
    pub fn from_owner(owner: impl Hash) -> Self {
        let mut mixer = DefaultHasher::new();
        owner.hash(&mut mixer);
        Self(mixer)
    }

    /// Creates a source that differs between processes, for owners without a unique name.
    #[must_use]
    pub fn random() -> Self {
        let mut random = [0; 8];
        // Without entropy all sources are equal: the waits are still correct.
        let _unlikely = getrandom::fill(&mut random);
        Self::from_owner(random)
    }

    /// Returns the number for a wait; `at` is the time when the wait begins.
    #[must_use]
    pub fn jitter(&self, at: impl Hash) -> u64 {
        let mut mixer = self.0.clone();
        at.hash(&mut mixer);
        mixer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_times_have_different_jitter() {
        let (ann, bob) = (
            JitterSource::from_owner("ann"),
            JitterSource::from_owner("bob"),
        );
        let (first, second) = (1_u64, 2_u64);
        assert_eq!(
            ann.jitter(first),
            JitterSource::from_owner("ann").jitter(first)
        );
        assert_ne!(ann.jitter(first), ann.jitter(second));
        assert_ne!(ann.jitter(first), bob.jitter(first));
        assert_ne!(
            JitterSource::random().jitter(first),
            JitterSource::random().jitter(first)
        );
    }
}
