//! Input-required results and continuation requests: only the state changes, because the gateway
//! seals the state for the client.

use bowline_core::client_handle::{ClientCapabilities, ClientCapability};
use bowline_wire::era::input_required::{ContinuationParams, InputRequired};
use bowline_wire::object;
use bowline_wire::splice::replace_span;

use bowline_testkit::McpSchema;

use super::super::assert_part_valid;
use super::super::byte_client::utf8_text;
use super::super::echo_gateway::insert_case_name;
use super::super::instances::InstanceGenerator;
use super::super::round_trip::{self, NAME, RoundTrip, TripEndpoint, TripSpec};
use super::super::trip_specs::TRIP_SPECS;
use super::echo_servers::{EchoServers, received_by_case};
use super::modern_byte_client::{ModernByteClient, RequestText};

/// The state of the server, as written.
const STATE: &str = "\"st\\u0061te \\\"of\\\" 🧶 the server\"";

/// Requests with possible input-required results.
pub(super) const INPUT_REQUIRED: [&str; 3] =
    ["CallToolRequest", "GetPromptRequest", "ReadResourceRequest"];

/// Sends requests of a type, gets input-required results, and continues each.
pub(super) fn run_rounds(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    peers: &EchoServers,
    request: &str,
    road: TripEndpoint,
    instances: usize,
) -> usize {
    let row = TRIP_SPECS
        .iter()
        .find(|row| row.request == request)
        .unwrap();
    let mut client = peers.open_client(road);
    let server = match road {
        TripEndpoint::PerSession => "own",
        TripEndpoint::Server | TripEndpoint::All => "echo",
    };
    for at in 0..instances {
        assert_round(schema, maker, peers, server, &mut client, row, at);
    }
    // A server request and an answer each.
    instances * 2
}

/// Makes a request with an input-required result, and the continuation.
fn assert_round(
    schema: &McpSchema,
    maker: &mut InstanceGenerator<'_>,
    peers: &EchoServers,
    server: &str,
    client: &mut ModernByteClient,
    row: &TripSpec,
    at: usize,
) {
    let part = |name: &str| schema.find_type(name).unwrap();
    let state = if at.is_multiple_of(2) { STATE } else { "" };
    let requests = maker.make_instance(part("InputRequests"), &[]);
    let fixed = [
        ("resultType", "\"input_required\""),
        ("requestState", state),
        ("inputRequests", &requests),
    ];
    let mut first = row.make_trip(schema, maker, at);
    first.response = maker.make_instance(part("InputRequiredResult"), &fixed);
    let whole = row.make_trip(schema, maker, at).response;
    // The continuation gets the final response of the request.
    let second = RoundTrip {
        method: first.method.clone(),
        params: first.params.clone(),
        token: first.token.clone(),
        name: first.name.clone(),
        member: "result",
        response: whole,
        ..RoundTrip::default()
    };
    if at < round_trip::CHECKED {
        assert_part_valid(schema, part("InputRequiredResult"), &first.response);
    }
    let [case, case_again] = &peers.write_script(&[copy_trip(&first), copy_trip(&second)])[..]
    else {
        panic!("two cases");
    };
    let begun = peers.read_record().len();
    let sent = with_all_capabilities(&insert_case_name(&first.client_params(), case));
    let answer = send_request(client, &first.method, &sent);
    let result = object::field(&answer, "result").map(|at| utf8_text(at.slice(&answer)));
    let result = result.unwrap_or_else(|| panic!("{}", utf8_text(&answer)));
    let required = InputRequired::parse(result.as_bytes()).unwrap();
    let sealed = required
        .state
        .map(|at| utf8_text(at.slice(result.as_bytes())));
    let came = sealed.as_ref().filter(|_| !state.is_empty());
    let came = came.map_or_else(
        || result.clone(),
        |sealed| result.replacen(sealed, state, 1),
    );
    assert_eq!(came, with_server_name(&first.response, server), "{sent}");

    let responses = maker.make_instance(part("InputResponses"), &[]);
    let mut further = format!("\"inputResponses\":{responses},");
    if let Some(sealed) = &sealed {
        further.push_str(&format!("\"requestState\":{sealed},"));
    }
    // The same request, except for the members of a further round and the case name.
    let again = format!(
        "{{{further}{}",
        second
            .client_params()
            .trim_start()
            .strip_prefix('{')
            .unwrap()
    );
    let again = with_all_capabilities(&insert_case_name(&again, case_again));
    let answer = send_request(client, &second.method, &again);
    let result = object::field(&answer, "result").map(|at| utf8_text(at.slice(&answer)));
    assert_eq!(
        result.as_ref(),
        Some(&second.response),
        "{again}\n{}",
        utf8_text(&answer)
    );
    assert_answers_received(peers, begun, case_again, &responses, state);
}

/// Checks that the server received the answers and the original state, once.
fn assert_answers_received(
    peers: &EchoServers,
    begun: usize,
    case: &str,
    responses: &String,
    state: &str,
) {
    let record = peers.read_record();
    let lines = received_by_case(&record[begun..]);
    let came = &lines[case];
    assert_eq!(came.len(), 1, "{case} was sent more than once");
    let message = came[0].message;
    let params = object::field(message, "params").unwrap().slice(message);
    let round = ContinuationParams::parse(params);
    let came = round.responses_at.map(|at| utf8_text(at.slice(params)));
    assert_eq!(came.as_ref(), Some(responses));
    let came = round.state.map(|at| utf8_text(at.slice(params)));
    let is_same = match state {
        "" => came.is_none(),
        state => came.as_deref().map(unescape_literal) == Some(unescape_literal(state)),
    };
    assert!(is_same, "{state} came back as {came:?}");
}

/// Declares all client capabilities: requests for undeclared ones are not passed on.
fn with_all_capabilities(params: &str) -> String {
    const ALL: &[u8] =
        br#"{"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}},"roots":{}}"#;
    let params = params.as_bytes();
    let meta = object::field(params, "_meta").unwrap();
    let said = object::field(
        meta.slice(params),
        "io.modelcontextprotocol/clientCapabilities",
    );
    utf8_text(&replace_span(params, said.unwrap().shift(meta.start), ALL))
}

/// The gateway adds only the server name to server requests.
fn with_server_name(answer: &str, server: &str) -> String {
    let answer = answer.as_bytes();
    let at = object::field(answer, "inputRequests").unwrap();
    let all = ClientCapability::ALL.into_iter();
    let all = all.fold(
        ClientCapabilities::default(),
        ClientCapabilities::with_capability,
    );
    utf8_text(&bowline_link::relay_input_requests(server, all, answer, at).unwrap())
}

fn unescape_literal(literal: &str) -> String {
    serde_json::from_str(literal).unwrap()
}

/// The server's part of a trip.
fn copy_trip(trip: &RoundTrip) -> RoundTrip {
    RoundTrip {
        member: trip.member,
        response: trip.response.clone(),
        extra: trip.extra.clone(),
        ..RoundTrip::default()
    }
}

fn send_request(client: &mut ModernByteClient, method: &str, params: &str) -> bytes::Bytes {
    assert!(!params.contains(NAME));
    let asking = RequestText {
        extra: "",
        id: "7",
        method,
        params,
    };
    client.send_request(&asking).0
}
