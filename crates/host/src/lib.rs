//! What happens: catalog, call path and supervisors; starts every task. The library others embed.
