//! Where secrets come from, and when programs are run.
