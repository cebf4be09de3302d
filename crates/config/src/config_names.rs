//! Name rules: servers and profiles follow [`bowline_core::name`]; roles, principals and contexts
//! are labels.

pub(crate) use bowline_core::name::{is_server_name as is_valid, to_slug, unique_slug};

/// Maximum bytes of a role, principal or context name.
const LABEL_BYTES_MAX: usize = 128;

/// Returns whether `name` is valid for a role, a principal or a context.
pub(crate) fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte);
    (1..=LABEL_BYTES_MAX).contains(&name.len()) && name.bytes().all(inner)
}
