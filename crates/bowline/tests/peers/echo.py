"""A server that does what each request tells it to, and keeps every line that it was sent.

    echo.py CASES RECORD LISTS

A request whose params hold "x-case": "OFFSET:LENGTH" finds at that place of the file CASES what to
do: an array of ["send", LINE] and ["ask", ID, LINE], of which the second waits for the answer. In
a line @ID@ is the id of the request and @TOKEN@ its progress token. Whatever comes in with a case,
or answers one, is appended to RECORD: the case, a tab and the line; of a notification that is all.
LISTS is an object of methods and the results that they have, as they are to be written.
"""

import json
import re
import sys

CASE = re.compile(rb'"x-case":"(\d+):(\d+)"')

CAPABILITIES = {
    "completions": {},
    "logging": {},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "tasks": {"cancel": {}, "list": {}, "requests": {"tools": {"call": {}}}},
    "tools": {"listChanged": True},
}


def send(line):
    sys.stdout.buffer.write(line.encode("utf-8", "surrogatepass") + b"\n")


def go_on(case, waiting):
    """Does the next steps of a case, up to one that waits."""
    steps = case["steps"]
    while steps:
        kind, *rest = steps.pop(0)
        line = rest[-1].replace("@ID@", case["id"]).replace("@TOKEN@", case["token"])
        send(line)
        if kind == "ask":
            waiting[rest[0]] = case
            return


def begin(message, found, cases):
    offset, length = int(found[1]), int(found[2])
    cases.seek(offset)
    meta = message["params"].get("_meta") or {}
    return {
        "name": f"{offset}:{length}",
        "id": json.dumps(message.get("id")),
        "token": json.dumps(meta.get("progressToken")),
        "steps": json.loads(cases.read(length)) if "id" in message else [],
    }


def answer(message, lists):
    """Answers what every server is asked."""
    identity, method = json.dumps(message["id"]), message["method"]
    if method == "initialize":
        result = json.dumps(
            {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": CAPABILITIES,
                "serverInfo": {"name": "echo", "version": "1"},
            }
        )
    else:
        result = lists.get(method, "{}")
    send(f'{{"jsonrpc":"2.0","id":{identity},"result":{result}}}')


def main():
    waiting = {}
    with open(sys.argv[3], encoding="utf-8") as file:
        lists = json.load(file)
    with open(sys.argv[1], "rb") as cases, open(sys.argv[2], "ab") as record:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            found = CASE.search(line) if "method" in message else None
            if found is not None:
                case = begin(message, found, cases)
            elif "method" not in message and message.get("id") in waiting:
                case = waiting.pop(message["id"])
            else:
                if "id" in message and "method" in message:
                    answer(message, lists)
                    sys.stdout.buffer.flush()
                continue
            record.write(case["name"].encode() + b"\t" + line)
            # Written before the answer, so that who has the answer finds the record.
            record.flush()
            go_on(case, waiting)
            sys.stdout.buffer.flush()


main()
