//! The handshake, and what is no handshake.

use bowline_core::flow::FlowLimits;
use bowline_link::executor::{Carrier as _, GreetError};
use bowline_link::websocket::Ended;
use bowline_wire::executor::{Frame, Hello, Opened, VERSION};

use crate::script::{asking, dialled_pair, hello, join, limits, session, sockets, text};

#[tokio::test]
async fn an_executor_says_who_it_is_and_is_told_its_session() {
    let (gateway, mut script) = sockets(limits()).await;
    let hello = hello();
    let (tunnel, open) = tokio::join!(
        join(gateway, session(FlowLimits::default())),
        script.open(&hello)
    );
    let tunnel = tunnel.unwrap();
    assert_eq!(open.v, VERSION);
    assert_eq!(&*open.session, "session");
    assert!(open.marks.is_empty());
    assert_eq!(&*tunnel.offers().software, "script/1");
    assert_eq!(tunnel.offers().servers, ["files".into()]);
    assert_eq!(tunnel.offers().secrets, ["tracker".into()]);
}

#[tokio::test]
async fn roles_stay_the_same_where_the_gateway_has_dialled() {
    let (tunnel, mut script) = dialled_pair().await;
    let asked_for = asking(&tunnel);
    let stream = script.bare().await;
    script.whole(stream, "answered").await;
    assert_eq!(
        text(&mut asked_for.await.unwrap().unwrap()).await,
        "answered"
    );
}

#[tokio::test]
async fn a_greeting_that_is_none_is_refused_with_a_reason() {
    let other = Hello {
        v: VERSION + 1,
        ..hello()
    };
    let firsts = [
        (Frame::Hello(other), GreetError::Version(VERSION + 1)),
        (Frame::Cancel { stream: 1 }, GreetError::Unexpected),
        (Frame::Opened(Opened::default()), GreetError::Unexpected),
    ];
    for (first, want) in firsts {
        let (gateway, mut script) = sockets(limits()).await;
        script.say(first).await;
        let error = join(gateway, session(FlowLimits::default())).await;
        assert_eq!(error.unwrap_err(), want);
        let ended = script.end().await;
        assert!(
            matches!(ended, Ended::Closed { code: 4004, .. }),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_frame_is_no_greeting() {
    let (gateway, mut script) = sockets(limits()).await;
    script.out.send("hello".into()).await.unwrap();
    let error = join(gateway, session(FlowLimits::default())).await;
    assert!(matches!(error, Err(GreetError::Frame(_))), "{error:?}");
    let ended = script.end().await;
    assert!(
        matches!(ended, Ended::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}

#[tokio::test]
async fn an_answer_before_the_session_is_open_is_no_opened() {
    let (gateway, mut script) = sockets(limits()).await;
    let early = async {
        script.say(Frame::Hello(hello())).await;
        script.next().await;
        script.answer(1).await;
        script.end().await
    };
    let (joined, ended) = tokio::join!(join(gateway, session(FlowLimits::default())), early);
    assert_eq!(joined.unwrap_err(), GreetError::Unexpected);
    assert!(
        matches!(ended, Ended::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_says_nothing_is_not_waited_for() {
    let (gateway, mut script) = sockets(limits()).await;
    let error = join(gateway, session(FlowLimits::default())).await;
    assert_eq!(error.unwrap_err(), GreetError::Timeout);
    let ended = script.end().await;
    assert!(
        matches!(ended, Ended::Closed { code: 4004, .. }),
        "{ended:?}"
    );
}
