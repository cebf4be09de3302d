//! Has the allocator keep what is freed.

use std::hint::black_box;

/// What is kept, about: twice this is freed before the system gets any of it back.
const KEPT_BYTES: usize = 2 * 1024 * 1024;

/// Has the C library keep a few megabytes of what is freed. By default it gives them back at once
/// and asks for them anew, page by page: where bodies pass through, that was half of the work. The
/// GNU library learns it from one large piece that is freed; others do what they always do.
pub fn keep_freed() {
    drop(black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}
