//! Makes the allocator retain freed memory.

use std::hint::black_box;

/// Approximate size to retain: the trim threshold becomes twice this value.
const RETAINED_BYTES: usize = 2 * 1024 * 1024;

/// Makes the C library retain a few megabytes of freed memory. By default glibc returns freed
/// memory at once and faults pages in again; for body traffic this was half of the work. Freeing
/// one large block raises the threshold of glibc; different allocators are unaffected.
pub fn retain_freed_memory() {
    drop(black_box(Vec::<u8>::with_capacity(RETAINED_BYTES)));
}
