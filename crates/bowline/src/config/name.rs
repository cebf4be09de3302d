//! Names: of servers and profiles as [`bowline_core::name`] has them; of roles, principals and
//! contexts labels.

pub(crate) use bowline_core::name::{is_server as is_valid, slug, unique};

/// Longest name of a role, a principal or a context.
const LABEL_BYTES_MAX: usize = 128;

/// Whether `name` can name a role, a principal or a context.
pub(crate) fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte);
    (1..=LABEL_BYTES_MAX).contains(&name.len()) && name.bytes().all(inner)
}
