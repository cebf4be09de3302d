//! Answers that ask, and requests that go on with the answer: nothing changes but the state, which
//! is the gateway's on the client's side.

use bowline_core::caller::{Abilities, Ability};
use bowline_wire::era::input::{Required, Round};
use bowline_wire::object;
use bowline_wire::splice::replace;

use super::super::client::text;
use super::super::echo::with_case;
use super::super::make::Maker;
use super::super::rows::ROWS;
use super::super::trip::{self, NAME, Road, Row, Trip};
use super::Schema;
use super::client::{Asking, Client};
use super::peer::{Peers, lines};

/// The state of the server, as it writes it.
const STATE: &str = "\"st\\u0061te \\\"of\\\" 🧶 the server\"";

/// Requests that may be answered with a question.
pub(super) const ASKED: [&str; 3] = ["CallToolRequest", "GetPromptRequest", "ReadResourceRequest"];

/// Sends requests of one type that are answered with questions, and goes on with each.
pub(super) fn go(
    schema: &Schema,
    maker: &mut Maker<'_>,
    peers: &Peers,
    (request, road): (&str, Road),
    instances: usize,
) -> usize {
    let row = ROWS.iter().find(|row| row.request == request).unwrap();
    let mut client = peers.client(road);
    let server = match road {
        Road::Own => "own",
        Road::Server | Road::All => "echo",
    };
    for at in 0..instances {
        there_and_back(schema, maker, (peers, server), &mut client, (row, at));
    }
    // A question and an answer each.
    instances * 2
}

/// Makes one request that is answered with a question, and goes on with it.
fn there_and_back(
    schema: &Schema,
    maker: &mut Maker<'_>,
    (peers, server): (&Peers, &str),
    client: &mut Client,
    (row, at): (&Row, usize),
) {
    let part = |name: &str| schema.get(name).unwrap();
    let state = if at.is_multiple_of(2) { STATE } else { "" };
    let requests = maker.make(part("InputRequests"), &[]);
    let fixed = [
        ("resultType", "\"input_required\""),
        ("requestState", state),
        ("inputRequests", &requests),
    ];
    let mut first = row.trip(schema, maker, at);
    first.answer = maker.make(part("InputRequiredResult"), &fixed);
    let whole = row.trip(schema, maker, at).answer;
    // What answers the answer to a question is an answer of the request's own.
    let second = Trip {
        method: first.method.clone(),
        params: first.params.clone(),
        token: first.token.clone(),
        name: first.name.clone(),
        member: "result",
        answer: whole,
        ..Trip::default()
    };
    if at < trip::CHECKED {
        schema.check(part("InputRequiredResult"), &first.answer);
    }
    let [case, case_again] = &peers.write(&[copy(&first), copy(&second)])[..] else {
        panic!("two cases");
    };
    let begun = peers.recorded().len();
    let sent = able(&with_case(&first.sent(), case));
    let answer = ask(client, &first.method, &sent);
    let result = object::field(&answer, "result").map(|at| text(at.of(&answer)));
    let result = result.unwrap_or_else(|| panic!("{}", text(&answer)));
    let required = Required::read(result.as_bytes()).unwrap();
    let sealed = required.state.map(|at| text(at.of(result.as_bytes())));
    let came = sealed.as_ref().filter(|_| !state.is_empty());
    let came = came.map_or_else(
        || result.clone(),
        |sealed| result.replacen(sealed, state, 1),
    );
    assert_eq!(came, marked(&first.answer, server), "{sent}");

    let responses = maker.make(part("InputResponses"), &[]);
    let mut further = format!("\"inputResponses\":{responses},");
    if let Some(sealed) = &sealed {
        further.push_str(&format!("\"requestState\":{sealed},"));
    }
    // The same request as before, but for what only a further round has and for its case.
    let again = format!(
        "{{{further}{}",
        second.sent().trim_start().strip_prefix('{').unwrap()
    );
    let again = able(&with_case(&again, case_again));
    let answer = ask(client, &second.method, &again);
    let result = object::field(&answer, "result").map(|at| text(at.of(&answer)));
    assert_eq!(
        result.as_ref(),
        Some(&second.answer),
        "{again}\n{}",
        text(&answer)
    );
    came_back(peers, begun, (case_again, &responses, state));
}

/// Checks that the server got the answers and its own state, once.
fn came_back(peers: &Peers, begun: usize, (case, responses, state): (&str, &String, &str)) {
    let record = peers.recorded();
    let lines = lines(&record[begun..]);
    let came = &lines[case];
    assert_eq!(came.len(), 1, "{case} was sent more than once");
    let message = came[0].message;
    let params = object::field(message, "params").unwrap().of(message);
    let round = Round::read(params);
    let came = round.answers_at.map(|at| text(at.of(params)));
    assert_eq!(came.as_ref(), Some(responses));
    let came = round.state.map(|at| text(at.of(params)));
    let is_same = match state {
        "" => came.is_none(),
        state => came.as_deref().map(meaning) == Some(meaning(state)),
    };
    assert!(is_same, "{state} came back as {came:?}");
}

/// Says of the client that it can be asked everything: what it cannot is not passed on.
fn able(params: &str) -> String {
    const ALL: &[u8] =
        br#"{"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"roots":{}}"#;
    let params = params.as_bytes();
    let meta = object::field(params, "_meta").unwrap();
    let said = object::field(
        meta.of(params),
        "io.modelcontextprotocol/clientCapabilities",
    );
    text(&replace(params, said.unwrap().shift(meta.start), ALL))
}

/// The name of the server is all that questions gain on their way.
fn marked(answer: &str, server: &str) -> String {
    let answer = answer.as_bytes();
    let at = object::field(answer, "inputRequests").unwrap();
    let all = Ability::ALL.into_iter();
    let all = all.fold(Abilities::default(), Abilities::with);
    text(&bowline_link::relayed(server, all, answer, at).unwrap())
}

fn meaning(literal: &str) -> String {
    serde_json::from_str(literal).unwrap()
}

/// A trip as far as its server is concerned.
fn copy(trip: &Trip) -> Trip {
    Trip {
        member: trip.member,
        answer: trip.answer.clone(),
        extra: trip.extra.clone(),
        ..Trip::default()
    }
}

fn ask(client: &mut Client, method: &str, params: &str) -> bytes::Bytes {
    assert!(!params.contains(NAME));
    let asking = Asking {
        extra: "",
        id: "7",
        method,
        params,
    };
    client.request(&asking).0
}
