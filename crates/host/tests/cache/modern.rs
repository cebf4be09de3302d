//! Answers of servers of the modern era: what they say of themselves, and further rounds.

use bowline_core::era::{Era, Stateless};

use super::*;

/// Arguments that ask for a whole answer of the modern era, good for a minute, for all.
const WHOLE: &str = r#"{"ttlMs":60000,"cacheScope":"public","resultType":"complete"}"#;

fn modern(call: Call, retried: bool) -> Call {
    let stateless = Stateless {
        claims: None,
        retried,
        task: None,
    };
    Call {
        stateless: Some(Box::new(stateless)),
        ..call
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_given_again_is_of_the_era_that_it_was_given_in() {
    let (_world, host) = ready().await;
    for origin in [Origin::Live, Origin::Cached] {
        let reply = host.call(call("s__do", WHOLE)).await.unwrap();
        assert_eq!((reply.origin, reply.era), (origin, Era::Modern));
    }
    for origin in [Origin::Live, Origin::Cached] {
        let reply = host.call(call("s__do", MINUTE)).await.unwrap();
        assert_eq!((reply.origin, reply.era), (origin, Era::Legacy));
    }
    // Who asks, and in which words, does not matter for what the answer is.
    let reply = host.call(modern(call("s__do", WHOLE), false)).await;
    assert_eq!(reply.unwrap().origin, Origin::Cached);
}

#[tokio::test(start_paused = true)]
async fn a_question_and_a_task_are_nobody_elses_and_say_nothing_of_answers() {
    let (_world, host) = ready().await;
    assert_eq!(get(&host, call("s__do", WHOLE)).await, live(0));
    for kind in ["input_required", "input_required", "task", "task"] {
        for hint in ["\"x\":1", "\"ttlMs\":60000"] {
            let arguments = format!(r#"{{{hint},"resultType":"{kind}"}}"#);
            let (_, origin) = get(&host, call("s__do", &arguments)).await;
            assert_eq!(origin, Origin::Live, "{arguments}");
        }
    }
    assert_eq!(get(&host, call("s__do", WHOLE)).await, cached(0));
    assert_eq!(host.cache_stats().entries, 1);
}

#[tokio::test(start_paused = true)]
async fn a_further_round_is_never_answered_from_what_is_kept_and_never_kept() {
    let (_world, host) = ready().await;
    assert_eq!(
        get(&host, modern(call("s__do", WHOLE), true)).await,
        live(0)
    );
    assert_eq!(host.cache_stats().entries, 0);
    assert_eq!(get(&host, call("s__do", WHOLE)).await, live(1));
    assert_eq!(
        get(&host, modern(call("s__do", WHOLE), true)).await,
        live(2)
    );
    assert_eq!(get(&host, call("s__do", WHOLE)).await, cached(1));
}
